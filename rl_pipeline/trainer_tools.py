"""The tools of the `rl-trainer` agent, under the names its profile gives them: thin doors that read the settings."""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any, cast
from uuid import uuid4

from rl_pipeline.collection import publishing, subscribing
from rl_pipeline.contracts import Message, serialize, validate_trajectory
from rl_pipeline.errors import PipelineError
from rl_pipeline.opening import current_settings, edge_redactor, open_raw_objects, open_stream, redaction_policy
from rl_pipeline.redaction.redactor import Redactor
from rl_pipeline.redaction.rule import KINDS, packaged_rules
from rl_pipeline.stores.stream import Published

__all__ = [
    "REWARD_WEIGHTS",
    "compute_reward",
    "publish_nats",
    "redact_sensitive_info",
    "request_training",
    "subscribe_nats",
    "validate_trajectory",
]

REWARD_WEIGHTS: Mapping[str, float] = MappingProxyType(
    {"task_completion": 0.40, "efficiency": 0.20, "code_quality": 0.15, "user_feedback": 0.25}
)

_PATTERNS = {"api_key": {"API_KEY", "SECRET", "JWT", "PRIVATE_KEY"}}


class UnknownPattern(PipelineError):
    """A pattern that names nothing that can be redacted."""


def publish_nats(
    subject: str, payload: Message | dict[str, Any] | str | bytes, schema_validate: bool = True
) -> Published:
    """Publish one message at `NATS_URL`; see `rl_pipeline.collection.publish_nats`."""
    settings = current_settings()
    with open_stream(settings) as stream:
        return publishing.publish_nats(
            *(stream, subject, payload, schema_validate),
            open_objects=lambda: open_raw_objects(settings),
            redactor=edge_redactor(settings),
        )


@contextmanager
def subscribe_nats(subject: str, queue_group: str = "rl-trainers") -> Iterator[subscribing.Subscription]:
    """Hear a subject at `NATS_URL` for the length of the block; see `rl_pipeline.collection.subscribe_nats`."""
    with open_stream(current_settings()) as stream, subscribing.subscribe_nats(stream, subject, queue_group) as heard:
        yield heard


def request_training(message: str) -> str:
    """Ask for a training in words, as `Trigger training job with 10K samples from last 30 days`.

    Returns what to report to the superior agent, and the job's id in a line of its own. Raises `UnclearSentence`.
    """
    from rl_pipeline.training.spoken import spoken_request
    from rl_pipeline.training_commands import publish_request

    now, job_id = datetime.now(UTC), f"manual-{uuid4()}"
    return publish_request(spoken_request(message, job_id=job_id, requester="rl-trainer-subordinate", now=now))


def compute_reward(
    trajectory: dict[str, Any], historical_data: Sequence[dict[str, Any]], weights: Mapping[str, float] = REWARD_WEIGHTS
) -> dict[str, Any]:
    """The reward of a trajectory as `agent.rl.reward.v1`, against earlier trajectories in their order.

    With fewer than 30 earlier ones of its task type, each term that is normalised counts as 0.5.
    """
    from rl_pipeline.rewards.configuration import read_configuration
    from rl_pipeline.rewards.linting import CodeChecker
    from rl_pipeline.rewards.single import reward_of

    settings = current_settings()
    found = replace(read_configuration(settings.reward_configuration_file, settings.reward_weights), weights=weights)
    checker = CodeChecker(found.options.security_scanner)
    valid = json.loads(serialize(validate_trajectory(trajectory)))
    reward = reward_of(valid, historical_data, found, checker=checker, now=datetime.now(UTC))
    return cast("dict[str, Any]", json.loads(serialize(reward)))


def redact_sensitive_info(
    trajectory_data: dict[str, Any], patterns: Sequence[str] = ("api_key", "password", "email")
) -> dict[str, Any]:
    """The trajectory with placeholders for what the patterns name: `api_key` (keys and tokens of every kind) or any
    kind of placeholder in lower case, such as `password`, `email`, `phone`. Values under names such as `password` are
    replaced whatever the patterns are. Ingest always uses all of them.
    """
    known = {kind.lower(): {kind} for kind in KINDS} | _PATTERNS
    if unknown := [pattern for pattern in patterns if pattern not in known]:
        raise UnknownPattern(f"there is no pattern {unknown[0]!r}: use {', '.join(sorted(known))}")
    kinds = set().union(*(known[pattern] for pattern in patterns))
    policy = replace(redaction_policy(current_settings()), rules_on=frozenset(), rules_off=frozenset())
    redacted = Redactor(policy, [rule for rule in packaged_rules() if rule.kind in kinds]).redact(trajectory_data).tree
    return cast("dict[str, Any]", redacted)
