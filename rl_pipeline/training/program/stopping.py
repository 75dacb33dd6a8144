"""How the program comes to an end before its time: on request at the end of a step, or because the loss is lost.

A request is a signal. Processes receive it at different moments and have to leave after the same step, so they ask each
other after every step; the same question tells all of them when the loss of one is no longer a number.
"""

import ctypes
import os
import signal
from types import FrameType
from typing import TYPE_CHECKING, ClassVar

from rl_pipeline.contracts.training_status import FailureCode
from rl_pipeline.errors import PipelineError

if TYPE_CHECKING:
    from transformers import Trainer

_PR_SET_PDEATHSIG = 1


class StoppedOnRequest(BaseException):
    """Somebody wants the program to end, and there is nothing more to save. No `except Exception` may stop it."""


class LossNotFinite(PipelineError):
    """The training has diverged."""

    code: ClassVar[FailureCode] = "CONVERGENCE"

    def __init__(self, step: int) -> None:
        self.step = step
        super().__init__(f"The loss or a weight is no number after step {step}: train on with a smaller learning rate.")


class StopRequest:
    """Whether the program was asked to stop. While it trains the request waits for the end of the step."""

    def __init__(self) -> None:
        self.made = False
        self.waits = False
        """Whether a request waits for the end of a step, in place of ending the program at once."""

    def listen(self) -> None:
        """Take SIGTERM and SIGINT as requests from now on."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_signal)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002  the shape of a handler
        self.made = True
        if not self.waits:
            raise StoppedOnRequest


def die_with_parent() -> None:
    """Have the kernel kill this process as soon as whoever started it is gone, however it went."""
    parent = os.getppid()
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it went in between
        os.kill(os.getpid(), signal.SIGKILL)


def heed(trainer: "Trainer", stop: StopRequest) -> bool:
    """At the end of a step, on all processes: whether any was asked to stop. Raises when any has lost its loss."""
    import torch

    lost = not torch.isfinite(trainer._tr_loss).all()  # noqa: SLF001  the Trainer has no public name for it
    any_lost, any_stop = _of_any(trainer, lost, stop.made)
    if any_lost:
        raise LossNotFinite(trainer.state.global_step)
    stop.made = stop.made or any_stop
    return any_stop


def check_weights(trainer: "Trainer") -> None:
    """Raise on all processes if any weight is no number: a loss is lost only one step after its weights."""
    import torch

    weights = (getattr(parameter, "ds_tensor", parameter) for parameter in trainer.model_wrapped.parameters())
    [any_lost] = _of_any(trainer, not all(bool(torch.isfinite(weight).all()) for weight in weights))
    if any_lost:
        raise LossNotFinite(trainer.state.global_step)


def _of_any(trainer: "Trainer", *answers: bool) -> list[bool]:
    """Whether each holds in any of the processes."""
    import torch

    tensor = torch.tensor(answers, dtype=torch.int, device=trainer.args.device)
    if trainer.args.world_size > 1:
        torch.distributed.all_reduce(tensor, op=torch.distributed.ReduceOp.MAX)
    return [bool(answer) for answer in tensor.tolist()]
