"""The port to what splits the traffic: our gateway, TensorZero, or a single backend.

A controller decides; whoever is behind this port obeys. Adapters are in `rl_pipeline.serving.traffic`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from rl_pipeline.deployment.state import DesiredState, ServedModel
from rl_pipeline.deployment.windows import Window
from rl_pipeline.errors import PipelineError

IN_SERVICE = "current"
"""In place of a model's id, where figures are asked for: the model in service, whichever that is."""


class TrafficUnavailable(PipelineError):
    """What splits the traffic does not answer. Asking again is safe."""


class TrafficRefused(PipelineError):
    """It answered, and refused: the text says why and what to do."""


@dataclass(frozen=True, slots=True)
class Standing:
    """How one gateway routes right now."""

    gateway: str
    """Its address or name."""
    generation: int
    """Of the state that it follows; 0 for none yet."""
    weights: Mapping[str, float]
    """After its fences."""
    fenced: Mapping[str, str]
    """Models that it gives nothing to, whatever the state says, and why."""
    not_ready: Sequence[str] = ()
    """Models that cannot answer yet: until they can, their share is with the model in service."""


@dataclass(frozen=True, slots=True)
class ModelMetrics:
    """What one model has done at the gateways since they started."""

    model_id: str
    requests: int
    errors: int
    """Requests that failed for the caller."""
    sessions: int
    failed_sessions: int
    negative_feedback: int
    latency_ms_p50: float | None
    latency_ms_p99: float | None
    traffic_percentage: float


class TrafficController(Protocol):
    """Routing, as the controller and the watchdog see it. May stand for several gateways at once.

    Every method raises `TrafficUnavailable` when none of them answers and `TrafficRefused` for what none can do.
    """

    def register(self, model: ServedModel) -> None:
        """Make the model known, so that it can be given traffic. May be repeated."""

    def apply(self, state: DesiredState) -> None:
        """Route as the state says. A state that is older than the one that is followed changes nothing."""

    def fence(self, model_id: str, reason: str) -> Sequence[str]:
        """Give the model nothing from now on, whatever the state says; what it had goes to the model in service.

        It is durable and holds at once, for running sessions too; it can only lower a candidate: refused for the model
        in service. It ends only where a later state has the model in service and has rolled back the one that was: a
        gateway that was late then has nobody else. The gateways that confirmed are returned; those that did not answer
        are missing.
        """

    def standings(self) -> Sequence[Standing]:
        """How each gateway that answers routes."""

    def metrics(self, model_id: str) -> ModelMetrics:
        """Figures of a model, or of the one `IN_SERVICE`, over all gateways; `TrafficRefused` for an unknown one."""

    def windows(self, deployment_id: str, candidate: str, control: str) -> Sequence[Window]:
        """The sessions' outcomes of the two models as the gateways themselves remember them, oldest first, without
        rewards; only closed windows, which never change."""
