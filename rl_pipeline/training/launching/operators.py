"""Where the operators that DeepSpeed compiles are kept, compiled ahead, and freed of locks that nobody holds."""

import fcntl
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import IO

from rl_pipeline.errors import PipelineError
from rl_pipeline.training.plans.plan import DistributionPlan

_IN_USE = "in-use"
_BUILD = """
import sys
from deepspeed.accelerator import get_accelerator
for builder in sys.argv[1:]:
    get_accelerator().create_op_builder(builder).load()
"""


class OperatorsNotCompiled(PipelineError):
    """An operator that the plan needs does not compile here."""


def needed_operators(distribution: DistributionPlan) -> tuple[str, ...]:
    """The operators of a plan, by the names of DeepSpeed's builders. Without offloading nothing has to be compiled."""
    return ("CPUAdamBuilder",) if distribution.deepspeed and distribution.offload_optimizer else ()


def operators_directory(cache: Path) -> Path:
    """Where the operators for the installed libraries are; what goes into TORCH_EXTENSIONS_DIR."""
    return (
        cache
        / f"torch-{version('torch')}-deepspeed-{version('deepspeed')}-python-{sys.version_info[0]}{sys.version_info[1]}"
    )


@contextmanager
def operators_ready(directory: Path, needed: Sequence[str], environment: Mapping[str, str]) -> Iterator[None]:
    """Compile what is needed and not there yet; the directory is in use until the block ends.

    PyTorch locks an operator by a file while it compiles or loads it. A process that is killed then leaves the file,
    and every later one waits for it for ever. Such files are removed here whenever nobody uses the directory.
    Raises `OperatorsNotCompiled`.
    """
    directory.mkdir(parents=True, exist_ok=True)
    with (directory / _IN_USE).open("a") as usage:
        if _is_alone(usage):
            for stale in directory.glob("*/lock"):
                stale.unlink()
            _compile([name for name in needed if not _stamp(directory, name).exists()], directory, environment)
        fcntl.flock(usage, fcntl.LOCK_SH)
        yield


def _is_alone(usage: IO[str]) -> bool:
    try:
        fcntl.flock(usage, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _compile(missing: Sequence[str], directory: Path, environment: Mapping[str, str]) -> None:
    if not missing:
        return
    variables = {**environment, "TORCH_EXTENSIONS_DIR": str(directory)}
    build = subprocess.run(  # noqa: S603 - the program is our own
        [sys.executable, "-c", _BUILD, *missing], env=variables, capture_output=True, text=True, check=False
    )
    if build.returncode != 0:
        reason = (build.stderr.strip() or build.stdout.strip() or "it said nothing").splitlines()[-1]
        raise OperatorsNotCompiled(
            f"DeepSpeed cannot compile {', '.join(missing)} here ({reason[:300]}): install a C++ compiler and ninja, or"
            " train without offload_optimizer."
        )
    for name in missing:
        _stamp(directory, name).touch()


def _stamp(directory: Path, name: str) -> Path:
    return directory / f"compiled-{name}"
