"""What a superior tells the `rl-trainer` in words: to train, to cancel, or to say how things stand.

Nothing is guessed: a sentence is understood to its last word, or refused with what it could have said.
"""

import re
from dataclasses import dataclass

from rl_pipeline.contracts.fields import IDENTIFIER_PATTERN
from rl_pipeline.training.spoken import UnclearSentence

EXAMPLES = (
    "Trigger training job with 10K samples from last 30 days",
    "What is the status of job <job id>?",
    "Cancel job <job id>",
    "How is the training?",
)

_JOB = r"(?:the )?(?:training )?job (?P<job>\S+)"
_STATUS = re.compile(rf"(?:(?:what(?:'s| is) )?(?:the )?status (?:of|for)|how is) {_JOB}", re.IGNORECASE)
_CANCEL = re.compile(rf"(?:please )?(?:cancel|stop|abort) {_JOB}", re.IGNORECASE)
_LOOP = re.compile(r"(?:how is|(?:what(?:'s| is) )?(?:the )?status of) (?:the )?training", re.IGNORECASE)
_IDENTIFIER = re.compile(IDENTIFIER_PATTERN)


@dataclass(frozen=True, slots=True)
class TrainOrder:
    """Train; what exactly is for `spoken_request` to say."""

    sentence: str


@dataclass(frozen=True, slots=True)
class StatusOrder:
    """Say how a job stands."""

    job_id: str


@dataclass(frozen=True, slots=True)
class CancelOrder:
    """End a job."""

    job_id: str


@dataclass(frozen=True, slots=True)
class LoopOrder:
    """Say what trains and what waits."""


Order = TrainOrder | StatusOrder | CancelOrder | LoopOrder


def understood(sentence: str) -> Order:
    """What a sentence orders. Raises `UnclearSentence` for a job that cannot be one; a training is read elsewhere."""
    text = re.sub(r"\s+", " ", sentence.strip()).rstrip(".?! ")
    if _LOOP.fullmatch(text):
        return LoopOrder()
    for pattern, order in ((_STATUS, StatusOrder), (_CANCEL, CancelOrder)):
        if found := pattern.fullmatch(text):
            if not _IDENTIFIER.fullmatch(found["job"]):
                raise UnclearSentence("what is named is no id of a job")
            return order(found["job"])
    return TrainOrder(sentence)
