"""`agent.rl.model.deployed.v1`: what agents, gateways and people are told of a deployment, made from the audit's rows.

A message's id is its deployment and generation, so saying it again within the stream's duplicate window changes
nothing, and whoever hears it twice later can tell. A row remembers that it was announced; what its writer did not come
to say is said by whoever looks next.
"""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal, cast

from rl_pipeline.contracts import ContractError, DeploymentEvent, ModelDeployed, parse_message, serialize
from rl_pipeline.contracts.model_deployed import (
    DeploymentConfig,
    DeploymentMetadata,
    ModelInfo,
    ValidationResults,
)
from rl_pipeline.deployment.audit import AuditLog, AuditRow, Unannounced
from rl_pipeline.deployment.state import DesiredState, Rollout, ServedModel
from rl_pipeline.deployment.strategy import ramp_schedule
from rl_pipeline.stores.stream import Stream

DEPLOYED_SUBJECT = "agent.rl.model.deployed.v1"
DEPLOYED_BY = "rl-pipeline"
"""Who announces: by this a publisher that also listens knows its own events."""

UNTRAINED = "untrained"
"""In place of the training job of a model that none of ours has made."""

_EVENTS: dict[str, DeploymentEvent] = {"approved": "deployed", "rechecked": "ramped"}
_STRATEGIES = {"ab_test": "canary"}
"""The contract knows no A/B test; its metadata does."""


@dataclass(frozen=True, slots=True)
class ServingPlace:
    """Where models are served, as the announcements have it."""

    platform: Literal["tensorzero", "vllm", "tgi", "ollama"]
    endpoint: str


@dataclass(frozen=True, slots=True)
class Announcement:
    """A message and the id under which it is said once."""

    message: ModelDeployed
    message_id: str


Announce = Callable[[Unannounced], None]
"""Tells the world of a row. Telling it again is harmless."""


def announcer(messages: Stream, place: ServingPlace) -> Announce:
    """What publishes announcements."""

    def announce(due: Unannounced) -> None:
        announcement = announcement_of(due.row, due.before, place)
        messages.publish(DEPLOYED_SUBJECT, serialize(announcement.message), announcement.message_id)

    return announce


def announce_due(log: AuditLog, announce: Announce, now: datetime) -> int:
    """Announce what nobody was told yet, in order; returns how many. Raises what the stores raise."""
    due = log.unannounced()
    for each in due:
        announce(each)
        log.mark_announced(each.row, now)
    return len(due)


def is_own(subject: str, data: bytes) -> bool:
    """Whether this is an announcement that the pipeline itself has published."""
    if subject != DEPLOYED_SUBJECT:
        return False
    try:
        message = parse_message(subject, data)
    except ContractError:
        return False  # the pipeline publishes nothing that breaks the contract
    return isinstance(message, ModelDeployed) and message.metadata.deployed_by == DEPLOYED_BY


def announcement_of(row: AuditRow, before: AuditRow | None, place: ServingPlace) -> Announcement:
    """What to say of a row. A rollout that it ended is known from the row before it."""
    state, change = row.state, row.state.change
    rollout = state.rollout or (before.state.rollout if before else None)
    if rollout is not None and change.model_id != rollout.candidate:
        rollout = None
    deployment_id = change.deployment_id or f"generation-{state.generation}"
    model = _model(change.model_id, state, before)
    event = _EVENTS.get(change.event) or cast("DeploymentEvent", change.event)
    message = ModelDeployed(
        deployment_id=deployment_id,
        training_job_id=model.training_job_id or UNTRAINED,
        timestamp=change.at,
        model_info=ModelInfo(
            model_id=model.model_id,
            base_model=model.base_model,
            checkpoint_path=model.checkpoint_path or model.endpoint or model.base_model,
        ),
        deployment_config=_config(model, state, rollout, place),
        validation_results=_validation(rollout),
        metadata=DeploymentMetadata.model_validate(
            {
                "event": event,
                "reason": change.reason,
                "deployed_by": DEPLOYED_BY,
                "approval_status": change.evidence.get("approval_status", "automated"),
                "previous_model": _other_model(event, state, rollout),
                "changed_by": change.by,
                "generation": state.generation,
                "phase": state.phase,
                "strategy": rollout.strategy if rollout else None,
                "evidence": change.evidence,
                # Whoever looks for a rollback in the stream looks for the word.
                **({"rollback_reason": change.reason} if event == "rolled_back" else {}),
            }
        ),
    )
    return Announcement(message, f"{deployment_id}/{state.generation}")


def _model(model_id: str, state: DesiredState, before: AuditRow | None) -> ServedModel:
    known = (before.state.models if before else {}) | state.models
    return known.get(model_id) or ServedModel(model_id=model_id, base_model="unknown")


def _other_model(event: DeploymentEvent, state: DesiredState, rollout: Rollout | None) -> str | None:
    """The model that served before, or that serves again after a rollback."""
    if event == "rolled_back":
        return state.serving
    return rollout.control if rollout else None


def _config(model: ServedModel, state: DesiredState, rollout: Rollout | None, place: ServingPlace) -> DeploymentConfig:
    strategy = rollout.strategy if rollout else "immediate"
    return DeploymentConfig(
        serving_platform=place.platform,
        endpoint=place.endpoint,
        model_name=model.model_id,
        rollout_strategy=_STRATEGIES.get(strategy, strategy),  # type: ignore[arg-type]  # all of them are the contract's
        traffic_percentage=100 * state.weights.get(model.model_id, 0.0),
        ramp_schedule=ramp_schedule(rollout) if rollout else None,
    )


def _validation(rollout: Rollout | None) -> ValidationResults:
    """What validation said; a model that was not validated has passed nothing."""
    nothing: dict[str, Any] = {
        "benchmark_passed": False,
        "safety_checks_passed": False,
        "performance_regression": False,
    }
    return ValidationResults.model_validate(nothing | (rollout.validation if rollout else {}))
