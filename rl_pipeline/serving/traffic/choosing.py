"""Which adapter obeys the controller in this deployment: our gateways, TensorZero, or a backend that is asked directly.

The last two have no interface to be told by: they are told by a file below `directory`, and by a command that brings a
change of it into service.
"""

import shlex
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from rl_pipeline.deployment.announcing import ServingPlace
from rl_pipeline.deployment.state import ServedModel
from rl_pipeline.deployment.traffic import TrafficController
from rl_pipeline.errors import PipelineError
from rl_pipeline.serving.traffic.direct import DirectBackend
from rl_pipeline.serving.traffic.gateways import Gateways
from rl_pipeline.serving.traffic.tensorzero import TensorZero

Kind = Literal["gateways", "tensorzero", "direct"]

_PATIENCE_SECONDS = 120.0


class CommandFailed(PipelineError):
    """The command that brings a change into service did not."""


@dataclass(frozen=True)
class TrafficChoice:
    """What was chosen, and what each kind needs."""

    kind: Kind
    addresses: Sequence[str]
    """Of the gateways, or of TensorZero."""
    token: str = field(repr=False)
    """Of the gateways' admin API."""
    directory: Path
    """Where TensorZero's configuration or the name of the served model is written."""
    command: str | None = None
    """A program with its arguments; TensorZero's file, or the id of the model to serve, follows as the last one."""
    endpoint: str | None = None
    """The backend that is asked directly."""

    @property
    def splits(self) -> bool:
        """Whether two models can share the traffic."""
        return self.kind != "direct"

    def open(self) -> TrafficController:
        """The adapter; what it steers is reached when it is asked."""
        if self.kind == "gateways":
            return Gateways(self.addresses, self.token)
        if self.kind == "tensorzero":
            file = self.directory / "tensorzero.toml"
            return TensorZero(file, lambda: self._run(str(file)))
        return DirectBackend(self.directory / "serving.json", self._switch)

    def place(self) -> ServingPlace:
        """Where agents find the models, as announcements have it."""
        if self.kind == "direct" and self.endpoint is not None:
            return ServingPlace("vllm", f"{self.endpoint.rstrip('/')}/v1/chat/completions")
        path = "openai/v1/chat/completions" if self.kind == "tensorzero" else "v1/chat/completions"
        return ServingPlace("tensorzero", f"{self.addresses[0]}/{path}")

    def _switch(self, model: ServedModel) -> None:
        if self.command:
            self._run(model.upstream_name or model.model_id)

    def _run(self, argument: str) -> None:
        command = [*shlex.split(self.command or ""), argument]
        try:
            ended = subprocess.run(  # noqa: S603 - whoever runs the deployment has written it
                command, capture_output=True, text=True, check=False, timeout=_PATIENCE_SECONDS
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise CommandFailed(f"{command[0]} did not run to its end ({type(error).__name__}): see to it") from error
        if ended.returncode != 0:
            said = (ended.stderr.strip() or ended.stdout.strip() or "it said nothing").splitlines()[-1]
            raise CommandFailed(f"{command[0]} ended with {ended.returncode}: {said[:300]}")
