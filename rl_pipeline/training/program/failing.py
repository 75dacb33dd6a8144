"""From whatever was raised to the kind of failure that decides what the next attempt does otherwise.

Imports nothing that trains: memory may have run out while it was being imported.
"""

import errno
import re
import traceback
from collections.abc import Iterator

from rl_pipeline.contracts.training_status import FailureCode
from rl_pipeline.training.launching.exits import FailureRecord

# torch, CUDA, C++ and the kernel each have words of their own for it.
_OUT_OF_MEMORY = re.compile(
    r"out of memory|can't allocate memory|cannot allocate memory|failed to allocate|bad_alloc|can't start new thread",
    re.IGNORECASE,
)
# Another process of the training is gone, or the network between them.
_PEERS_LOST = re.compile(
    r"connection (?:closed|reset|refused)|gloo|nccl|timed out (?:waiting|initializing)|broken pipe|socket",
    re.IGNORECASE,
)


def failure_of(error: BaseException, *, rank: int, step: int) -> FailureRecord:
    """The record of `error`, which ended the program after `step` steps, unless it knows better."""
    return FailureRecord(
        code=_code(error),
        message=f"{type(error).__name__}: {error}",
        traceback="".join(traceback.format_exception(error)),
        trajectory_ids=getattr(error, "trajectory_ids", ()),
        step=getattr(error, "step", step),
        rank=rank,
    )


def _code(error: BaseException) -> FailureCode:
    for cause in _causes(error):
        if isinstance(cause, MemoryError) or (isinstance(cause, OSError) and cause.errno == errno.ENOMEM):
            return "OOM"
        if isinstance(cause, RuntimeError | ImportError) and _OUT_OF_MEMORY.search(str(cause)):
            return "OOM"
    own: FailureCode | None = getattr(error, "code", None)
    if own is not None:
        return own
    if isinstance(error, OSError) or (isinstance(error, RuntimeError) and _PEERS_LOST.search(str(error))):
        return "INFRA"
    return "UNKNOWN"


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__
