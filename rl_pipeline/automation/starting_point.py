"""From which model a training starts whose request names none: the one in service, so that experience adds up."""

from rl_pipeline.deployment import record
from rl_pipeline.deployment.state import DesiredState
from rl_pipeline.resources.training import TrainingResource
from rl_pipeline.stores.jetstream import JetStream
from rl_pipeline.stores.jetstream_desired_state import JetStreamDesiredStates


def model_to_start_from(training: TrainingResource, messages: JetStream) -> str:
    """The checkpoint of the model that has most of the traffic; before one was trained here, the base model."""
    state = _state(training, messages)
    if state is None:
        return training.base_model
    foremost = state.models[max(state.weights, key=lambda model: (state.weights[model], model == state.serving))]
    # What was not trained here has no checkpoint of ours; the first model is the base model itself.
    return (foremost.checkpoint_path if foremost.training_job_id else None) or training.base_model


def model_on_its_way(training: TrainingResource, messages: JetStream) -> str | None:
    """The model of a canary that is growing: what starts now starts from the model that it is to replace."""
    state = _state(training, messages)
    return state.rollout.candidate if state and state.rollout and state.phase == "ramping" else None


def _state(training: TrainingResource, messages: JetStream) -> DesiredState | None:
    if training.train_from == "base":
        return None
    recorded = record.read(JetStreamDesiredStates(messages))
    return recorded.state if recorded else None
