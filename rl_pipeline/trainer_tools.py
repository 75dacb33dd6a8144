"""The tools of the `rl-trainer` agent, under the names its profile gives them: thin doors that read the settings."""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, cast
from uuid import uuid4

from rl_pipeline.collection import publishing, subscribing
from rl_pipeline.contracts import Message, serialize, validate_trajectory
from rl_pipeline.errors import PipelineError
from rl_pipeline.opening import (
    base_models,
    current_settings,
    edge_redactor,
    model_objects,
    open_raw_objects,
    open_stream,
    open_warehouse,
    redaction_policy,
    rollout_terms,
)
from rl_pipeline.redaction.redactor import Redactor
from rl_pipeline.redaction.rule import KINDS, packaged_rules
from rl_pipeline.stores.stream import Published

__all__ = [
    "REWARD_WEIGHTS",
    "compute_reward",
    "deploy_to_tensorzero",
    "download_checkpoint",
    "publish_nats",
    "redact_sensitive_info",
    "request_training",
    "run_benchmarks",
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
    """Hear a subject at `NATS_URL` for the length of the block, but for what the pipeline itself tells of its releases;
    see `rl_pipeline.collection.subscribe_nats`."""
    from rl_pipeline.deployment.announcing import is_own

    def own(message: subscribing.LiveMessage) -> bool:
        return is_own(message.subject, message.data)

    with (
        open_stream(current_settings()) as stream,
        subscribing.subscribe_nats(stream, subject, queue_group, passes_over=own) as heard,
    ):
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


def download_checkpoint(s3_path: str, local_path: str = "/tmp/checkpoints/") -> str:  # noqa: S108 - as the profile has it
    """Fetch a released checkpoint of `MODEL_STORAGE_PATH` below `local_path`, and return its directory.

    It is there only if a trusted key has signed it and every byte is as it was signed. To fetch it again costs nothing.
    """
    from rl_pipeline.serving.fetching import ModelElsewhere
    from rl_pipeline.training.checkpoints.releasing import download_checkpoint, prefix_of

    settings = current_settings()
    objects = model_objects(settings).open()
    prefix = prefix_of(objects, s3_path.rstrip("/"))
    if prefix is None:
        raise ModelElsewhere(f"{s3_path} is not in the store of this deployment: set MODEL_STORAGE_PATH to where it is")
    directory = Path(local_path) / prefix
    download_checkpoint(objects, prefix, directory, base_models(settings).public_keys)
    return str(directory)


def run_benchmarks(
    model_path: str, tasks: Sequence[str] = ("code_gen", "data_analysis", "research")
) -> dict[str, dict[str, Any]]:
    """The `score` of each benchmark by its full name, with its 95 % `interval` and how many `items` it is of.

    `model_path` is a directory, such as `download_checkpoint` gives, an address, or the name of a base model. Raises
    `UnknownSuite` and `BenchmarkFailed`: what is missing is never left out quietly.
    """
    from rl_pipeline.serving.model_child import served_model
    from rl_pipeline.training.small_model.building import world_of_ancestor
    from rl_pipeline.validation import benchmarking
    from rl_pipeline.validation.answers import ChatEndpoint
    from rl_pipeline.validation.suite import canonical
    from rl_pipeline.validation.suites.choosing import suites_for

    names = [canonical(task) for task in tasks]
    settings = current_settings()
    models, released = base_models(settings), model_objects(settings).open()
    directory = models.find(model_path, released)
    world = world_of_ancestor(directory, lambda name: models.find(name, released))
    suites = suites_for(
        world, settings.validation_suites, items=settings.validation_items, inspect_file=settings.validation_inspect
    )
    log = settings.rl_pipeline_home.absolute() / "validation" / "benchmarks.log"
    with served_model(directory, "benchmarked", log) as address:
        scores = benchmarking.run_benchmarks(ChatEndpoint(address, "benchmarked"), names, suites=suites)
    return {name: asdict(score) for name, score in scores.items()}


def deploy_to_tensorzero(
    model_id: str,
    checkpoint_path: str,
    rollout_strategy: Literal["canary", "blue_green", "immediate"] = "canary",
) -> dict[str, Any]:
    """Release a checkpoint that was validated; what splits the traffic here lets it in, step by step on evidence.

    Nobody gets past validation: raises `NotValidated` and `NotAdmitted`. A checkpoint that the pipeline has released
    itself keeps the id that it has; what is returned tells it, with the plan and how far it is.
    """
    from rl_pipeline.deployment.admission import admit
    from rl_pipeline.stores.jetstream_lease import JetStreamLeases
    from rl_pipeline.validation.storing import job_of_checkpoint

    settings = current_settings()
    with open_stream(settings) as stream, closing(open_warehouse(settings)) as tables:
        release = admit(
            tables,
            JetStreamLeases(stream),
            job_of_checkpoint(tables, checkpoint_path),
            rollout_terms(settings),
            now=datetime.now(UTC),
            strategy=rollout_strategy,
            model_id=model_id,
        )
    return {
        "model_id": release.model.model_id,
        "deployment_id": release.deployment_id,
        "training_job_id": release.training_job_id,
        "rollout_strategy": release.plan.strategy,
        "traffic_percentages": [100 * step.share for step in release.plan.steps],
        "needs_approval": release.needs_approval,
        "state": release.state,
        "explanation": f"{release.plan.explanation}; {release.explanation}",
    }
