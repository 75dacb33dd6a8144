"""From which model a training starts whose request names none: the one in service, so that experience adds up."""

from collections.abc import Collection
from dataclasses import replace
from datetime import datetime

from rl_pipeline.deployment import record
from rl_pipeline.deployment.state import DesiredState
from rl_pipeline.errors import PipelineError
from rl_pipeline.resources.training import TrainingResource
from rl_pipeline.stores.jetstream import JetStream
from rl_pipeline.stores.jetstream_desired_state import JetStreamDesiredStates
from rl_pipeline.stores.stream import StreamMissing
from rl_pipeline.stores.warehouse import Warehouse
from rl_pipeline.training.evidence import model_to_be_rolled_out
from rl_pipeline.training.jobs.requests import StartingPoint, StartUnknown
from rl_pipeline.training.triggers import OnItsWay


def starting_point(training: TrainingResource, messages: JetStream, tables: Warehouse) -> StartingPoint:
    """The checkpoint of the model in service; before one was trained here, the base model. Raises `StartUnknown`.

    Never a candidate that still shares the traffic with its control: nobody knows yet which is better. One that bakes
    has won and has all of it; should it be taken back yet, what has not begun to go on from it is cancelled.
    """
    state = _in_service(messages, tables) if training.train_from == "serving" else None
    if state is None:
        return StartingPoint(training.base_model)
    baking = state.rollout if state.phase == "baking" else None
    serving = state.models[baking.candidate if baking else state.serving]
    # What was not trained here has no checkpoint of ours; the first model is the base model itself.
    if serving.training_job_id is None or serving.checkpoint_path is None:
        return StartingPoint(training.base_model)
    return StartingPoint(serving.checkpoint_path, serving.model_id)


def rolled_back_models(messages: JetStream) -> Collection[str]:
    """Those that never serve again. While that cannot be told, none: what was accepted is trained and validated."""
    try:
        recorded = _recorded(messages)
    except StartUnknown:
        return ()
    return recorded.state.retired if recorded else ()


def model_on_its_way(
    training: TrainingResource, messages: JetStream, tables: Warehouse, now: datetime
) -> OnItsWay | None:
    """A model from which a training would start that starts later: one that was trained, or grows as a canary.

    While it cannot be told what is in service, none: a request that names no model then waits by itself.
    """
    if training.train_from == "base":
        return None
    # The record is read last: what has left the tables meanwhile is there.
    trained = model_to_be_rolled_out(tables, now)
    try:
        state = _in_service(messages, tables)
    except StartUnknown:
        return None
    if state is None:
        return None
    waits = state.frozen is not None or state.phase in ("awaiting_approval", "testing")
    if state.rollout is not None and state.phase != "baking":
        return OnItsWay(state.rollout.candidate, now - state.rollout.started_at, waits)
    return replace(trained, waits_for_a_person=waits) if trained else None


def _in_service(messages: JetStream, tables: Warehouse) -> DesiredState | None:
    """The record of what is to be served; none where nothing ever was. Raises `StartUnknown`."""
    recorded = _recorded(messages)
    if recorded is None and not tables.query("SELECT 1 FROM deployment_audit LIMIT 1").is_empty():
        raise StartUnknown("the record of what is in service was lost: `rollout_under_way` restores it from the audit")
    return recorded.state if recorded else None


def _recorded(messages: JetStream) -> record.Recorded | None:
    try:
        return record.read(JetStreamDesiredStates(messages))
    except StreamMissing:
        return None
    except PipelineError as unreadable:
        raise StartUnknown(f"it cannot be told which model is in service: {unreadable}") from unreadable
