"""TensorZero behind the port of the traffic: its configuration is rendered, read back, and reloaded.

TensorZero has no interface for administration and reads its configuration when it starts; how a new one gets into
service (a rebuilt embedded gateway, a rolling restart) is the caller's `reload`. It assigns by a hash of the episode,
so a change of weights moves running episodes: attribute by the variant that TensorZero stores, which is the model's id.
"""

import json
import tomllib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from rl_pipeline.deployment.state import DesiredState, ServedModel
from rl_pipeline.deployment.traffic import ModelMetrics, Standing, TrafficRefused, TrafficUnavailable
from rl_pipeline.deployment.windows import Window
from rl_pipeline.errors import PipelineError
from rl_pipeline.serving.durable_file import write_durably
from rl_pipeline.serving.following import Following
from rl_pipeline.serving.traffic.kept_routing import KeptRouting
from rl_pipeline.serving.upstream import Address, EndpointInvalid

_HEADER = (
    "# Written by rl-pipeline, which replaces it with every change of the traffic. Keep what is yours elsewhere.\n"
)


class TensorZero:
    """One TensorZero that reads `configuration_file`; beside it stands a directory with what it has to remember.

    `reload` brings the file into service and raises a `PipelineError` where it cannot.
    """

    def __init__(self, configuration_file: Path, reload: Callable[[], None], function: str = "agent") -> None:
        self._file = configuration_file
        self._reload = reload
        self._function = function
        self._is_loaded = False
        self._kept = KeptRouting(configuration_file.with_name(f"{configuration_file.name}.routing"), self._put)

    def register(self, model: ServedModel) -> None:
        """See `TrafficController.register`."""
        _address(model)
        self._kept.register(model)

    def apply(self, state: DesiredState) -> None:
        """See `TrafficController.apply`."""
        for model_id in {state.serving, *(model for model, weight in state.weights.items() if weight > 0)}:
            _address(state.models[model_id])
        self._kept.follow(state)

    def fence(self, model_id: str, reason: str) -> Sequence[str]:
        """See `TrafficController.fence`. The model's variant is gone from the configuration, so nobody can pin it."""
        self._kept.fence(model_id, reason)
        return [str(self._file)]

    def standings(self) -> Sequence[Standing]:
        """See `TrafficController.standings`. The weights are those that the file has."""
        return [self._kept.standing(str(self._file), self._weights_in_file())]

    def metrics(self, model_id: str) -> ModelMetrics:  # noqa: ARG002  # the port's
        """Always refused: TensorZero keeps its figures in a database of its own."""
        raise TrafficRefused("TensorZero keeps its figures itself: see its /metrics, by variant")

    def windows(self, deployment_id: str, candidate: str, control: str) -> Sequence[Window]:  # noqa: ARG002
        """Always none: TensorZero does not tell what sessions came to. The warehouse knows their rewards."""
        return ()

    def _put(self, following: Following) -> None:
        text = rendered(self._function, following)
        if self._is_loaded and self._file.exists() and self._file.read_text() == text:
            return
        self._is_loaded = False
        write_durably(self._file, text.encode())
        if self._weights_in_file() != following.weights:
            raise TrafficUnavailable(f"{self._file} does not say what was written: let nobody else write it")
        try:
            self._reload()
        except PipelineError as problem:
            raise TrafficUnavailable(f"TensorZero did not take its new configuration: {problem}") from problem
        self._is_loaded = True

    def _weights_in_file(self) -> dict[str, float]:
        try:
            content = tomllib.loads(self._file.read_text())
            functions = content.get("functions", {})
            weights = functions.get(self._function, {}).get("experimentation", {}).get("candidate_variants", {})
        except FileNotFoundError:
            return {}
        except (OSError, tomllib.TOMLDecodeError) as error:
            raise TrafficUnavailable(f"{self._file} cannot be read ({type(error).__name__}): remove it") from error
        return {model_id: float(weight) for model_id, weight in weights.items()}


def rendered(function: str, following: Following) -> str:
    """The configuration: each model that may answer as a model and as a variant, and the weights after fences."""
    models = {model_id: model for model_id, model in following.models().items() if model.endpoint}
    parts = [_HEADER, *(_model(model) for model in models.values())]
    if following.weights:
        parts.append(_function(function, list(models), following.weights))
    return "\n".join(parts)


def _model(model: ServedModel) -> str:
    address, name = _address(model), _quoted(model.model_id)
    scheme = "https" if address.tls else "http"
    return (
        f"[models.{name}]\n"
        'routing = ["backend"]\n\n'
        f"[models.{name}.providers.backend]\n"
        'type = "openai"\n'
        f"api_base = {_quoted(f'{scheme}://{address.authority}{address.prefix}/v1/')}\n"
        f"model_name = {_quoted(model.upstream_name or model.model_id)}\n"
        'api_key_location = "none"\n'
    )


def _function(function: str, models: Sequence[str], weights: Mapping[str, float]) -> str:
    name = _quoted(function)
    variants = "".join(
        f'[functions.{name}.variants.{_quoted(model)}]\ntype = "chat_completion"\nmodel = {_quoted(model)}\n\n'
        for model in models
    )
    shares = ", ".join(f"{_quoted(model)} = {float(weight)!r}" for model, weight in weights.items())
    return (
        f'[functions.{name}]\ntype = "chat"\n\n{variants}'
        f'[functions.{name}.experimentation]\ntype = "static"\ncandidate_variants = {{ {shares} }}\n'
    )


def _address(model: ServedModel) -> Address:
    if not model.endpoint:
        raise TrafficRefused(f"{model.model_id} has no endpoint: serve its checkpoint somewhere TensorZero can reach")
    try:
        return Address.parse(model.endpoint)
    except EndpointInvalid as invalid:
        raise TrafficRefused(f"{model.model_id}: {invalid}") from None


def _quoted(text: str) -> str:
    """A basic string of TOML is a string of JSON."""
    return json.dumps(text)
