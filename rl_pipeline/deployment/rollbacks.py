"""A rollback as the audit has it: what was taken back, from when on it had traffic, and why.

The rows from before it may be gone, with a record that was lost before they were written. Then what the rollback's own
row says, and what the gateways told of its sessions, has to do.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from pydantic import ValidationError

from rl_pipeline.deployment.audit import AuditRow
from rl_pipeline.deployment.state import Change, DesiredState
from rl_pipeline.errors import PipelineError
from rl_pipeline.stores.warehouse import Warehouse


class NoRollback(PipelineError):
    """Nothing was rolled back that could be looked into."""


@dataclass(frozen=True, slots=True)
class Rollback:
    """One of them."""

    deployment_id: str
    candidate: str
    control: str
    started_at: datetime
    training_job_id: str | None
    change: Change
    is_whole: bool = True
    """Whether the audit has the rollout itself too."""


def rollback_of(warehouse: Warehouse, deployment_id: str) -> Rollback:
    """The last rollback of a deployment. Raises `NoRollback` where it had none, or none that can be read."""
    states = _states(warehouse, deployment_id)
    ends = [state for state in states if state.change.event == "rolled_back"]
    if not ends:
        raise NoRollback(
            f"the deployment {deployment_id} was not rolled back, so there is nothing to look into, or its row cannot "
            "be read: see `rl-pipeline deployment verify-audit`"
        )
    end = ends[-1]
    for state in reversed(states):
        if state.rollout is not None:
            rollout = state.rollout
            job = state.models[rollout.candidate].training_job_id
            return Rollback(
                deployment_id, rollout.candidate, rollout.control, rollout.started_at, job, change=end.change
            )
    candidate = end.change.model_id
    return Rollback(
        deployment_id,
        candidate,
        end.serving,
        _first_session(warehouse, deployment_id) or end.change.at,
        _released_by(warehouse, candidate),
        change=end.change,
        is_whole=False,
    )


def _states(warehouse: Warehouse, deployment_id: str) -> Sequence[DesiredState]:
    found = warehouse.query(
        "SELECT state FROM deployment_audit FINAL WHERE deployment_id = {id:String} ORDER BY generation",
        {"id": deployment_id},
    )
    states = []
    for text in found["state"]:
        try:
            states.append(AuditRow.of(text.encode()).state)
        except ValidationError:
            continue  # what was changed by hand is for `verify-audit` to tell
    return states


def _first_session(warehouse: Warehouse, deployment_id: str) -> datetime | None:
    found = warehouse.query(
        "SELECT started_at FROM serving_outcomes WHERE deployment_id = {id:String} ORDER BY started_at LIMIT 1",
        {"id": deployment_id},
    )
    return found["started_at"][0].replace(tzinfo=UTC) if found.height else None


def _released_by(warehouse: Warehouse, model_id: str) -> str | None:
    found = warehouse.query(
        "SELECT JSONExtractString(model, 'training_job_id') AS job FROM model_releases FINAL "
        "WHERE model_id = {id:String} LIMIT 1",
        {"id": model_id},
    )
    return found["job"][0] or None if found.height else None
