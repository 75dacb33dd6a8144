"""Tasks of inspect-ai that a deployment names in a file."""

import json
import stat
import sys
from pathlib import Path

import pytest

from rl_pipeline.definitions import build_definitions
from rl_pipeline.environments.crafting import CraftingWorld
from rl_pipeline.resources.deployment import DeploymentResource
from rl_pipeline.validation.answers import ChatEndpoint
from rl_pipeline.validation.inspect_runner import InspectTask
from rl_pipeline.validation.suite import BENCHMARKS, SAFETY, Item
from rl_pipeline.validation.suites.choosing import suites_for
from rl_pipeline.validation.suites.inspect_file import InspectFileInvalid, inspect_suites
from rl_pipeline.validation.validating import Budget, validate

FILE = """
[suites.code_generation]
task = "humaneval.py@humaneval"
samples = 164
floor = 0.4

[suites.our_tickets]
kind = "safety"
task = "tickets.py@tickets"
samples = ["t-1", "t-2", "t-3"]
floor = 0.5
minimum = 3
scorer = "verify"
arguments = { hard = "yes" }
timeout_seconds = 60
max_retries = 1
"""


def written(directory: Path, text: str) -> Path:
    file = directory / "inspect.toml"
    file.write_text(text)
    return file


def test_a_task_takes_the_place_of_a_suite_or_stands_beside_them(tmp_path: Path) -> None:
    suites = {
        suite.name: suite for suite in suites_for(CraftingWorld(), None, items=40, inspect_file=written(tmp_path, FILE))
    }
    assert suites.keys() == {*BENCHMARKS, *SAFETY, "our_tickets"}
    coding, tickets = suites["code_generation"], suites["our_tickets"]
    assert (coding.kind, coding.minimum, coding.floor, len(coding.items)) == ("benchmark", 20, 0.4, 164)
    assert (coding.items[0].id, coding.items[-1].id) == ("1", "164")
    assert (tickets.kind, tickets.minimum, [item.id for item in tickets.items]) == ("safety", 3, ["t-1", "t-2", "t-3"])
    assert tickets.ask == InspectTask(
        "tickets.py@tickets", "verify", {"hard": "yes"}, sys.executable, 60.0, 1, directory=tmp_path
    )


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "suites: Field required"),
        ("[suites]", "suites: "),
        ("no toml", "is no TOML"),
        (FILE.replace('kind = "safety"', ""), "our_tickets has no kind: give benchmark, safety or regression"),
        (FILE.replace("[suites.code_generation]", '[suites.bias]\nkind = "benchmark"'), "bias is a safety suite"),
        (FILE.replace("our_tickets", "Our-Tickets"), "suites.Our-Tickets"),
        (FILE.replace("samples = 164", "samples = 0"), "suites.code_generation.samples"),
        (FILE.replace("samples = 164", "sample = 164"), "suites.code_generation.samples"),
        (FILE + "cores = 2", "suites.our_tickets.cores"),
    ],
)
def test_a_file_that_is_not_as_it_should_be_is_told(tmp_path: Path, text: str, complaint: str) -> None:
    with pytest.raises(InspectFileInvalid, match=complaint):
        inspect_suites(written(tmp_path, text))


def test_a_file_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(InspectFileInvalid, match="correct VALIDATION_INSPECT"):
        inspect_suites(tmp_path / "nowhere.toml")


def test_a_setting_alone_puts_the_tasks_into_the_pipeline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VALIDATION_INSPECT", str(written(tmp_path, FILE)))
    monkeypatch.setenv("RL_PIPELINE_HOME", str(tmp_path))
    resource = (build_definitions().resources or {})["deployment"]
    assert isinstance(resource, DeploymentResource)
    assert "our_tickets" in {suite.name for suite in resource.validation_suites(None)}


RUNNER = """
option = lambda name: sys.argv[sys.argv.index(name) + 1]
assert os.path.exists('beside.txt'), 'files are looked for beside the file that names them'
samples = [{'id': name, 'scores': {'match': {'value': 'C'}}} for name in option('--sample-id').split(',')]
with open(os.path.join(option('--log-dir'), 'log.json'), 'w') as file:
    json.dump({'status': 'success', 'samples': samples}, file)
"""


def test_no_reward_is_computed_of_what_a_task_gave_and_a_person_is_asked(tmp_path: Path) -> None:
    """Where every benchmark is a task, nothing is probed."""
    python = tmp_path / "python"
    python.write_text(f"#!{sys.executable}\nimport json, os, sys\n{RUNNER}")
    python.chmod(python.stat().st_mode | stat.S_IXUSR)
    (tmp_path / "beside.txt").touch()
    text = f'python = {json.dumps(str(python))}\n[suites.code_generation]\ntask = "t.py"\nsamples = 400\nfloor = 0.4'

    def crash(_items: list[Item], _answers: list[str]) -> list[float]:
        raise AssertionError("a score is no trajectory")

    model = ChatEndpoint("http://127.0.0.1:9/v1", "small")
    report = validate(
        model,
        model,
        inspect_suites(written(tmp_path, text)),
        budget=Budget((400,)),
        seed=0,
        required=["code_generation"],
        rewards=crash,  # type: ignore[arg-type]
        unprobed="nothing was probed",
    )
    assert (report.suites[0].mean, report.suites[0].outcome) == (1.0, "PASS")
    assert (report.decision, report.reasons) == ("ask_a_person", ("nothing was probed",))
