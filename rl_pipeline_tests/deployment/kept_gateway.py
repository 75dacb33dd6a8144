"""A gateway that is a file: it outlives every process, and several may use it at once."""

import fcntl
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from rl_pipeline.deployment.state import DesiredState, ServedModel
from rl_pipeline.deployment.traffic import ModelMetrics, Standing, TrafficRefused
from rl_pipeline.deployment.windows import Window
from rl_pipeline_tests.deployment.simulated_stores import SimulatedGateway


class KeptGateway:
    """The port of the traffic over the file."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def register(self, _model: ServedModel) -> None:
        """It can serve anything."""

    def apply(self, state: DesiredState) -> None:
        with self._open() as gateway:
            gateway.follow(state)

    def fence(self, model_id: str, reason: str) -> Sequence[str]:
        with self._open() as gateway:
            if not gateway.fence(model_id, reason):
                raise TrafficRefused(f"{model_id} is in service")
        return [gateway.name]

    def standings(self) -> Sequence[Standing]:
        with self._open() as gateway:
            generation = gateway.state.generation if gateway.state else 0
            return [Standing(gateway.name, generation, gateway.weights, gateway.fenced)]

    def metrics(self, _model_id: str) -> ModelMetrics:
        raise TrafficRefused("nobody asks for metrics here")

    def windows(self, _deployment_id: str, _candidate: str, _control: str) -> Sequence[Window]:
        return ()

    @contextmanager
    def _open(self) -> Iterator[SimulatedGateway]:
        """The gateway, kept as it is left; whoever is killed leaves it as it was."""
        with self._path.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            gateway = self._load()
            yield gateway
            assert not gateway.violations, gateway.violations
            content = {
                "state": gateway.state.encoded().decode() if gateway.state else None,
                "in_service": gateway.in_service,
                "fenced": gateway.fenced,
            }
            beside = self._path.with_suffix(".new")
            beside.write_text(json.dumps(content))
            beside.replace(self._path)

    def _load(self) -> SimulatedGateway:
        gateway = SimulatedGateway("kept")
        if self._path.exists():
            content = json.loads(self._path.read_text())
            gateway.state = DesiredState.decoded(content["state"].encode()) if content["state"] else None
            gateway.in_service, gateway.fenced = content["in_service"], content["fenced"]
        return gateway
