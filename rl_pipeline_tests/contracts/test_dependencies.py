import subprocess
import sys

PROGRAM = """
import sys
allowed = {"rl_pipeline", "pydantic", "pydantic_core", "annotated_types", "typing_extensions", "typing_inspection"}
import rl_pipeline.contracts
installed = {
    name.partition(".")[0]
    for name, module in sys.modules.items()
    if "site-packages" in (getattr(module, "__file__", None) or "")
}
foreign = sorted(name for name in installed - allowed if not name.startswith("_"))
print(*foreign)
"""


def test_the_contracts_need_nothing_but_pydantic() -> None:
    finished = subprocess.run([sys.executable, "-I", "-c", PROGRAM], capture_output=True, text=True, check=True)

    assert finished.stdout.split() == []
