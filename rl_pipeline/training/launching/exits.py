"""How the training program says how it ended: exit codes, failure records, and the names of the files it writes.

The program writes them, the launcher reads them. Nothing here imports what trains.
"""

import json
from enum import IntEnum
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from rl_pipeline.contracts.training_status import FailureCode

PLAN_FILE = "plan.json"
LOG_FILE = "program.log"
PROGRESS_FILE = "progress.jsonl"
RESULT_FILE = "result.json"
_FAILURE_FILES = "failure-rank{rank}.json"


class Exit(IntEnum):
    """The exit codes of the training program. A process that was killed has none of these."""

    DONE = 0
    DATA = 65
    CONVERGENCE = 66
    OOM = 67
    INFRA = 68
    UNKNOWN = 70
    SAVED = 75
    """Stopped on request, with its state saved at the end of a step."""


EXIT_OF_FAILURE: dict[FailureCode, Exit] = {
    "DATA": Exit.DATA,
    "CONVERGENCE": Exit.CONVERGENCE,
    "OOM": Exit.OOM,
    "INFRA": Exit.INFRA,
    # A hang is seen from outside: the program has no exit code of its own for it.
    "TIMEOUT": Exit.INFRA,
    "UNKNOWN": Exit.UNKNOWN,
}
FAILURE_OF_EXIT: dict[int, FailureCode] = {
    Exit.DATA: "DATA",
    Exit.CONVERGENCE: "CONVERGENCE",
    Exit.OOM: "OOM",
    Exit.INFRA: "INFRA",
    Exit.UNKNOWN: "UNKNOWN",
}


class FailureRecord(BaseModel):
    """Why one process of the program failed, in its own words."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    code: FailureCode
    message: str
    traceback: str = ""
    trajectory_ids: tuple[str, ...] = ()
    """Rows that cannot be trained on; for DATA alone."""
    step: Annotated[int, Field(ge=0)] = 0
    rank: Annotated[int, Field(ge=0)] = 0


def write_failure(attempt: Path, record: FailureRecord) -> None:
    """Leave the record in the attempt's directory, whole or not at all."""
    target = attempt / _FAILURE_FILES.format(rank=record.rank)
    unfinished = target.with_suffix(".partial")
    unfinished.write_text(record.model_dump_json())
    unfinished.replace(target)


def read_failures(attempt: Path) -> tuple[FailureRecord, ...]:
    """The records of all ranks in the order in which they were written: who failed first may have pulled the others
    down. One that cannot be read counts as UNKNOWN, and says so."""
    paths = attempt.glob(_FAILURE_FILES.format(rank="*"))
    return tuple(_record(path) for path in sorted(paths, key=lambda path: (path.stat().st_mtime_ns, path.name)))


def forget_ending(attempt: Path) -> None:
    """Remove what an earlier run of the same attempt left of its end, so that it is not taken for the next one's."""
    for path in [*attempt.glob(_FAILURE_FILES.format(rank="*")), attempt / RESULT_FILE]:
        path.unlink(missing_ok=True)


def has_result(attempt: Path) -> bool:
    """Whether the program came to its end and said what it reached."""
    try:
        return isinstance(json.loads((attempt / RESULT_FILE).read_bytes()), dict)
    except (FileNotFoundError, ValueError):
        return False


def _record(path: Path) -> FailureRecord:
    try:
        return FailureRecord.model_validate_json(path.read_bytes())
    except ValidationError:
        return FailureRecord(code="UNKNOWN", message=f"The failure record {path.name} cannot be read.")
