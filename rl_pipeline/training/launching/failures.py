"""What an end of the training program means: done, stopped, or a failure of a class that decides about the retry."""

import re
import signal
from collections.abc import Sequence
from dataclasses import dataclass

from rl_pipeline.contracts.training_status import FailureCode
from rl_pipeline.training.launching.exits import FAILURE_OF_EXIT, Exit, FailureRecord
from rl_pipeline.training.launching.launch import LaunchOutcome

# The other ranks only notice that one is gone, which is none of these.
_OWN_CAUSES: tuple[FailureCode, ...] = ("DATA", "CONVERGENCE", "OOM")
_LOG_SIGNS: tuple[tuple[FailureCode, re.Pattern[str]], ...] = (
    ("OOM", re.compile(r"out of memory|can't allocate memory|Cannot allocate memory|MemoryError|std::bad_alloc")),
    (
        "INFRA",
        re.compile(
            r"Address already in use|No space left on device|Connection (?:refused|reset|closed)"
            r"|not reachable via ssh|NCCL error|Stale file handle|Input/output error|CUDA error: (?:unknown|device)"
        ),
    ),
)
_LOST_A_PEER = re.compile(r"connection (?:closed|reset)|gloo|nccl|broken pipe", re.IGNORECASE)
_SIGNALS_FROM_OUTSIDE = {signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP}
_TRACEBACK = "Traceback (most recent call last)"


@dataclass(frozen=True)
class Failure:
    """Why an attempt failed. `trajectory_ids` are the rows that broke it, for DATA alone."""

    code: FailureCode
    message: str
    traceback: str = ""
    trajectory_ids: tuple[str, ...] = ()


def classify(outcome: LaunchOutcome) -> Failure | None:
    """The failure, or None when the program is done or was stopped on request.

    The program's own records come first: DeepSpeed's launcher passes on the exit code of whichever process it saw
    first, which may only have lost the one that failed. Then what was seen from outside (a hang, a kill for want of
    memory), then the exit code, then the log.
    """
    if outcome.stopped or (outcome.exit_code == Exit.DONE and outcome.has_result):
        return None
    tail = _last_traceback(outcome.log_tail)
    record = _first_cause(outcome.records)
    if record is not None and record.code in _OWN_CAUSES:
        return _recorded(record)
    if outcome.hung:
        return Failure("TIMEOUT", "The training did not move any more and was ended.", tail)
    if outcome.memory_kills and _was_killed(outcome):
        return Failure("OOM", "The kernel ended a process because the machine's memory had run out.", tail)
    if record is not None:
        return _recorded(record)
    return _unrecorded(outcome, tail)


def signal_of(exit_code: int) -> signal.Signals | None:
    """The signal that ended the program, if one did. A shell adds 128 to its number; DeepSpeed's launcher, which exits
    with the negative number, arrives at 256 less the number."""
    for number in (-exit_code, exit_code - 128, 256 - exit_code):
        if 0 < number < 32:
            return signal.Signals(number)
    return None


def _was_killed(outcome: LaunchOutcome) -> bool:
    """Whether a process of the program was killed, be it that only the others could say that they lost it. The kernel
    may have killed a process of somebody else."""
    if not all(_LOST_A_PEER.search(record.message) for record in outcome.records):
        return False
    return bool(outcome.records) or signal_of(outcome.exit_code) == signal.SIGKILL


def _unrecorded(outcome: LaunchOutcome, tail: str) -> Failure:
    """A program that could not say anything any more."""
    if (code := FAILURE_OF_EXIT.get(outcome.exit_code)) is not None:
        return Failure(code, f"The training ended with exit code {outcome.exit_code} and left no record.", tail)
    for code, sign in _LOG_SIGNS:
        if found := sign.search(outcome.log_tail):
            return Failure(code, f"The training ended; its log says: {found.group()}.", tail)
    ended_by = signal_of(outcome.exit_code)
    if outcome.exit_code == Exit.SAVED or ended_by in _SIGNALS_FROM_OUTSIDE:
        how = f"with {ended_by.name}" if ended_by else "and it saved its state"
        return Failure("INFRA", f"Something outside of the pipeline ended the training {how}.", tail)
    how = f"crashed with {ended_by.name}" if ended_by else f"ended with exit code {outcome.exit_code} and no result"
    return Failure("UNKNOWN", f"The training {how}: look into its log.", tail)


def _first_cause(records: Sequence[FailureRecord]) -> FailureRecord | None:
    """Of records in the order in which they were written."""
    return min(records, key=lambda record: record.code not in _OWN_CAUSES, default=None)


def _recorded(record: FailureRecord) -> Failure:
    return Failure(record.code, record.message, record.traceback, record.trajectory_ids)


def _last_traceback(log_tail: str) -> str:
    """The last traceback in the log, else its last lines."""
    start = log_tail.rfind(_TRACEBACK)
    return log_tail[start:] if start >= 0 else "\n".join(log_tail.splitlines()[-20:])
