"""From a sentence to a request: `Trigger training job with 10K samples from last 30 days`.

Nothing is guessed. A sentence has to be understood to its last word, or it is refused with what was not understood: a
training costs money, and half of an order is another order.
"""

import re
from datetime import datetime
from typing import Any

from rl_pipeline.contracts import TrainingRequest
from rl_pipeline.errors import PipelineError
from rl_pipeline.training.jobs.requests import PRIORITIES

EXAMPLE = "Trigger training job with 10K samples from last 30 days"

_NUMBER = r"(?P<number>\d{1,3}(?:[, ]\d{3})+|\d+(?:\.\d+)?)\s*(?P<unit>k|m|thousand|million)?"
_WHAT = {
    "samples": re.compile(rf"(?<![\w.,-]){_NUMBER}\s+(?:samples?|trajector(?:y|ies)|examples?)\b"),
    "days": re.compile(r"\b(?:last|past)\s+(?:(?P<count>\d+)\s+)?(?P<span>days?|weeks?|months?)\b"),
    "algorithm": re.compile(r"\b(?P<algorithm>ppo|dpo|rloo|grpo|reinforce|sft)\b"),
    "priority": re.compile(r"\b(?P<priority>low|normal|high|urgent)\s+priority\b"),
    "shadow": re.compile(r"\bshadow\b"),
}
_UNITS = {"": 1, "k": 1_000, "thousand": 1_000, "m": 1_000_000, "million": 1_000_000}
_DAYS = {"day": 1, "week": 7, "month": 30}
_ORDER = re.compile(r"\b(?:trigger|start|run|launch|begin|initiate|request)\b.*\btraining\b|\btrain\b")
_SAYING_NOTHING = re.compile(
    "a|an|and|as|at|begin|by|for|from|in|initiate|job|launch|model|new|of|on|over|please|request|rl|run|start|the|"
    "train|training|trigger|using|with"
)


class UnclearSentence(PipelineError):
    """A sentence that is not understood to its last word."""

    def __init__(self, why: str) -> None:
        super().__init__(f"{why}: say it as in '{EXAMPLE}', or use `rl-pipeline train` with its options")


def spoken_request(sentence: str, *, job_id: str, requester: str, now: datetime) -> TrainingRequest:
    """The request that a sentence makes; what it leaves open is left to the pipeline. Raises `UnclearSentence`."""
    text = sentence.lower().strip()
    if not _ORDER.search(text):
        raise UnclearSentence("this does not ask for a training")
    found: dict[str, re.Match[str]] = {}
    for what, pattern in _WHAT.items():
        matches = list(pattern.finditer(text))
        if len(matches) > 1:
            raise UnclearSentence(f"it gives {what} twice")
        if matches:
            found[what] = matches[0]
            text = f"{text[: matches[0].start()]} , {text[matches[0].end() :]}"
    words = [word for word in re.split(r"[\s,;.!]+", text) if word and not _SAYING_NOTHING.fullmatch(word)]
    if words:
        raise UnclearSentence(f"'{words[0][:40]}' is not understood")
    return TrainingRequest.model_validate(
        {
            "training_job_id": job_id,
            "timestamp": now,
            "requester": requester,
            "trigger_reason": "manual",
            "priority": found["priority"]["priority"] if "priority" in found else PRIORITIES["manual"],
            "training_config": _config(found),
            "metadata": {"shadow": True} if "shadow" in found else {},
        }
    )


def _config(found: dict[str, re.Match[str]]) -> dict[str, Any]:
    dataset: dict[str, Any] = {"source": "clickhouse"}
    if "samples" in found:
        dataset["sample_size"] = _samples(found["samples"])
    if "days" in found:
        dataset["filter"] = {"last_days": _days(found["days"])}
    config: dict[str, Any] = {"dataset": dataset}
    if "algorithm" in found:
        config["algorithm"] = found["algorithm"]["algorithm"]
    return config


def _samples(found: re.Match[str]) -> int:
    number, unit = found["number"], found["unit"] or ""
    if "." in number and not unit:
        raise UnclearSentence("the number of samples is not whole")
    samples = float(re.sub("[, ]", "", number)) * _UNITS[unit]
    if not samples.is_integer() or samples < 1:
        raise UnclearSentence("the number of samples is not whole and above 0")
    return int(samples)


def _days(found: re.Match[str]) -> int:
    count = int(found["count"] or 1)
    if count < 1:
        raise UnclearSentence("the time to look back is 0")
    return count * _DAYS[found["span"].rstrip("s")]
