"""From what a person or a program writes down to a whole request: what is left out is filled in."""

from datetime import datetime
from typing import Any

from rl_pipeline.contracts import ContractError, TrainingRequest
from rl_pipeline.contracts.registry import validated
from rl_pipeline.training.jobs.requests import PRIORITIES

_CONFIG = "training_config"
REQUEST_FIELDS = frozenset(TrainingRequest.model_fields)
"""By any of these a whole request is told from a mere configuration."""


def asked_request(tree: Any, *, job_id: str, requester: str, now: datetime) -> TrainingRequest:
    """The request that a JSON object means: `agent.rl.training.request.v1`, of which all but `training_config` may be
    left out or null, or the content of `training_config` alone. Raises `ContractError`.
    """
    if not isinstance(tree, dict):
        raise ContractError("type", "$", "array or scalar", "send a JSON object")
    whole = tree if REQUEST_FIELDS & tree.keys() else {_CONFIG: tree}
    said = {name: value for name, value in whole.items() if value is not None}
    filled = {
        "training_job_id": job_id,
        "timestamp": now,
        "requester": requester,
        "trigger_reason": "manual",
        **said,
    }
    request = validated(TrainingRequest, filled)
    if "priority" in said:
        return request
    return request.model_copy(update={"priority": PRIORITIES[request.trigger_reason]})


def loop_request(knobs: dict[str, Any], *, job_id: str, requester: str, now: datetime) -> TrainingRequest:
    """The request for a training with `batch_size`, `learning_rate` and `num_epochs`, as far as they are given."""
    named = {"num_epochs": "epochs"}
    hyperparameters = {named.get(name, name): value for name, value in knobs.items()}
    config = {"dataset": {"source": "clickhouse"}, "hyperparameters": hyperparameters}
    return asked_request({_CONFIG: config}, job_id=job_id, requester=requester, now=now)
