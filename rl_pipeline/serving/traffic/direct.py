"""One backend without a split behind the port of the traffic: a file says which model it is, a callable switches."""

from collections.abc import Callable, Sequence
from pathlib import Path

from pydantic import ValidationError

from rl_pipeline.deployment.state import DesiredState, ServedModel
from rl_pipeline.deployment.traffic import ModelMetrics, Standing, TrafficRefused, TrafficUnavailable
from rl_pipeline.deployment.windows import Window
from rl_pipeline.errors import PipelineError
from rl_pipeline.serving.durable_file import write_durably
from rl_pipeline.serving.following import Following
from rl_pipeline.serving.traffic.kept_routing import KeptRouting


class DirectBackend:
    """Agents ask one backend (vLLM, Ollama) for the model that `pointer_file` names, so one model has everything.

    `switch` makes the backend serve a model and raises a `PipelineError` where it cannot. Beside the file stands a
    directory with what has to be remembered.
    """

    def __init__(self, pointer_file: Path, switch: Callable[[ServedModel], None] = lambda _: None) -> None:
        self._file = pointer_file
        self._switch = switch
        self._kept = KeptRouting(pointer_file.with_name(f"{pointer_file.name}.routing"), self._put)

    def register(self, model: ServedModel) -> None:
        """See `TrafficController.register`."""
        self._kept.register(model)

    def apply(self, state: DesiredState) -> None:
        """See `TrafficController.apply`. A split is refused."""
        if sum(weight > 0 for weight in state.weights.values()) > 1:
            raise TrafficRefused("a single backend cannot split traffic: use the strategy immediate, or a gateway")
        self._kept.follow(state)

    def fence(self, model_id: str, reason: str) -> Sequence[str]:
        """See `TrafficController.fence`."""
        self._kept.fence(model_id, reason)
        return [str(self._file)]

    def standings(self) -> Sequence[Standing]:
        """See `TrafficController.standings`."""
        pointed = self._pointed()
        weights = {pointed.model_id: 1.0} if pointed else {}
        return [self._kept.standing(str(self._file), weights)]

    def metrics(self, model_id: str) -> ModelMetrics:  # noqa: ARG002  # the port's
        """Always refused: nobody stands between the agents and the backend to count."""
        raise TrafficRefused("a backend that is asked directly counts for itself: see its own metrics")

    def windows(self, deployment_id: str, candidate: str, control: str) -> Sequence[Window]:  # noqa: ARG002
        """Always none: see `metrics`."""
        return ()

    def _put(self, following: Following) -> None:
        """Switch first, then say so: agents read the file."""
        for model_id in following.weights:
            model = following.models()[model_id]
            if model == self._pointed():
                return
            try:
                self._switch(model)
            except PipelineError as problem:
                raise TrafficUnavailable(f"the backend did not switch to {model_id}: {problem}") from problem
            write_durably(self._file, model.model_dump_json().encode())

    def _pointed(self) -> ServedModel | None:
        try:
            return ServedModel.model_validate_json(self._file.read_bytes())
        except FileNotFoundError:
            return None
        except (OSError, ValidationError) as error:
            raise TrafficUnavailable(f"{self._file} cannot be read ({type(error).__name__}): remove it") from error
