"""Cancellations as messages: whose they are, which job they end, and what becomes of those that end none.

A cancellation of a job that is not known waits for it a while, because its request may still be on its way, and then
becomes a dead letter. A request that waits itself, because nobody can tell from which model it would start, becomes a
job that is cancelled. Of a job that has ended it changes nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import cast

from rl_pipeline.contracts import ContractError, TrainingCancel, parse_message
from rl_pipeline.stores.stream import Delivery, Stream
from rl_pipeline.training.jobs.refusals import TRAINING_STREAM, OpenRedactor, dead_letter

CANCELLATIONS_CONSUMER = "training_cancellations"
CANCEL_SUBJECT = "agent.rl.training.cancel.v1"

_BATCH = 100
_WAIT_SECONDS = 20.0
# The request comes from the same stream: it is late only if a sensor died over it. One that had been handed out often,
# because it waits, then comes again after half an hour, which is the longest that its consumer keeps a message back.
_PATIENCE = timedelta(minutes=45)


@dataclass(frozen=True, slots=True)
class Cancellation:
    """A cancellation to be carried out, and its message, to be settled afterwards."""

    asked: TrainingCancel
    delivery: Delivery


def fetch_cancellations(messages: Stream, redactor: OpenRedactor, now: datetime) -> Sequence[Cancellation]:
    """The valid cancellations that wait; what is invalid becomes a dead letter.

    Fetched before the requests are: a request is in the stream before its cancellation, so its job is known then.
    """
    found: list[Cancellation] = []
    for delivery in messages.fetch(TRAINING_STREAM, CANCELLATIONS_CONSUMER, _BATCH, 0):
        try:
            asked = cast("TrainingCancel", parse_message(CANCEL_SUBJECT, delivery.message.data))
        except ContractError as error:
            dead_letter(messages, delivery.message, error, redactor, now)
            delivery.term()
        else:
            found.append(Cancellation(asked, delivery))
    return found


def nobody_to_cancel(messages: Stream, cancellation: Cancellation, redactor: OpenRedactor, now: datetime) -> None:
    """The job is not known: let the cancellation come again, and give it up in the end."""
    delivery = cancellation.delivery
    if now - delivery.message.time < _PATIENCE:
        delivery.nak(_WAIT_SECONDS)
        return
    advice = "there is no such job: `rl-pipeline jobs` lists those there are"
    error = ContractError("unknown_job", "training_job_id", "string", advice)
    dead_letter(messages, delivery.message, error, redactor, now)
    delivery.term()
