"""The edges of the house: what imports what, and what an import costs."""

import subprocess
import sys
from pathlib import Path

import pytest

PROJECT = Path(__file__).parent.parent
SHELL = {"definitions", "partitions", "resources", "assets", "automation"}
CORE = sorted(
    ".".join(path.relative_to(PROJECT).with_suffix("").parts).removesuffix(".__init__")
    for path in (PROJECT / "rl_pipeline").rglob("*.py")
    if path.relative_to(PROJECT / "rl_pipeline").parts[0].removesuffix(".py") not in SHELL and path.stem != "__main__"
)

BLOCKED_IMPORT = """
import importlib, sys

class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {blocked!r}:
            raise ImportError(f"{{name}} is blocked")

sys.meta_path.insert(0, Refuse())
for module in {modules!r}:
    importlib.import_module(module)
"""


def import_without(modules: list[str], blocked: set[str]) -> subprocess.CompletedProcess[str]:
    program = BLOCKED_IMPORT.format(modules=modules, blocked=blocked)
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)


def test_the_core_imports_without_dagster() -> None:
    dagster = {"dagster", "dagster_aws", "dagster_graphql", "dagster_webserver", "dagster_shared"}
    outcome = import_without(CORE, dagster)
    assert outcome.returncode == 0, outcome.stderr


def test_the_shell_does_need_dagster() -> None:
    outcome = import_without(["rl_pipeline.partitions"], {"dagster"})
    assert "dagster is blocked" in outcome.stderr, "the test above could not fail"


def test_the_agent_side_imports_without_polars_torch_and_dagster() -> None:
    heavy = {
        "polars",
        "torch",
        "dagster",
        "numpy",
        "pyarrow",
        "chdb",
        "clickhouse_connect",
        "boto3",
        "orjson",
        "psutil",
    }
    light = ["rl_pipeline.collection", "rl_pipeline.collection.formats.publishing", "rl_pipeline.contracts"]
    light += ["rl_pipeline.collection.massgen", "rl_pipeline.collection.otlp"]
    outcome = import_without([*light, "rl_pipeline.cli"], heavy)
    assert outcome.returncode == 0, outcome.stderr


@pytest.mark.parametrize("module", ["rl_pipeline.definitions", "rl_pipeline.cli"])
def test_loading_the_code_location_or_the_command_line_loads_nothing_heavy(module: str) -> None:
    program = f"import sys, {module}; print([n for n in ('torch', 'trl', 'mlflow', 'chdb') if n in sys.modules])"
    assert subprocess.check_output([sys.executable, "-c", program], text=True).strip() == "[]"


def test_the_import_contracts_hold() -> None:
    lint = Path(sys.executable).with_name("lint-imports")
    outcome = subprocess.run([lint, "--no-cache"], cwd=PROJECT, capture_output=True, text=True, check=False)
    assert outcome.returncode == 0, outcome.stdout
