"""From which model a training starts whose request names none: the one in service, so that experience adds up."""

from collections.abc import Collection

from rl_pipeline.deployment import record
from rl_pipeline.deployment.state import DesiredState
from rl_pipeline.errors import PipelineError
from rl_pipeline.resources.training import TrainingResource
from rl_pipeline.stores.jetstream import JetStream
from rl_pipeline.stores.jetstream_desired_state import JetStreamDesiredStates
from rl_pipeline.stores.stream import StreamMissing
from rl_pipeline.stores.warehouse import Warehouse
from rl_pipeline.training.jobs.requests import StartingPoint, StartUnknown


def starting_point(training: TrainingResource, messages: JetStream, tables: Warehouse) -> StartingPoint:
    """The checkpoint of the model in service; before one was trained here, the base model. Raises `StartUnknown`.

    Never a candidate, whatever its share of the traffic: it may be taken back yet.
    """
    state = _in_service(messages, tables) if training.train_from == "serving" else None
    if state is None:
        return StartingPoint(training.base_model)
    serving = state.models[state.serving]
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


def model_on_its_way(training: TrainingResource, messages: JetStream) -> str | None:
    """The model of a canary that is growing: what starts now starts from the model that it is to replace."""
    recorded = _recorded(messages) if training.train_from == "serving" else None
    state = recorded.state if recorded else None
    return state.rollout.candidate if state and state.rollout and state.phase == "ramping" else None
