"""What a gateway is told when it starts."""

import sys
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from rl_pipeline.deployment.state import DesiredState, ServedModel
from rl_pipeline.errors import PipelineError
from rl_pipeline.redaction.policy import RedactionKey
from rl_pipeline.stores.desired_state import DesiredStates
from rl_pipeline.stores.stream import Stream

LOOPBACK = "127.0.0.1"


class GatewayMisconfigured(PipelineError):
    """A gateway cannot start like this."""


@dataclass(frozen=True)
class Nats:
    """An open connection: where the outcomes go, and where the desired state comes from."""

    stream: Stream
    states: DesiredStates
    close: Callable[[], None]


ChangeTraffic = Callable[[str, float], Awaitable[DesiredState]]
"""Gives the model of this id that many percent of the traffic, by compare-and-swap of the desired state, and returns
the new state.

Raises `StreamUnavailable` when NATS is away, and another `PipelineError` for what may not be done.
"""


@dataclass(frozen=True)
class GatewayConfiguration:
    """Where it listens, who may administer it, what it may lean on, and how patient it is."""

    data_directory: Path
    """Keeps its state, fences and unpublished outcomes. One gateway at a time."""
    admin_token: str
    session_key: RedactionKey
    """What sessions are stored under: gateways that share it agree on the names of sessions."""
    fetch: Callable[[ServedModel], Path]
    """The directory with the model's files, downloaded and verified; runs in a thread. Raises `PipelineError`."""
    model_server: Sequence[str] = (sys.executable, "-m", "rl_pipeline.serving.model_server")
    """The program that serves a directory; called as `model_server.py` is, and expected to behave like it."""
    open_nats: Callable[[], Nats] | None = None
    """Called from threads, once for each that needs a connection; raises `StreamUnavailable` while NATS is away."""
    change_traffic: ChangeTraffic | None = None
    name: str = "gateway"
    host: str = LOOPBACK
    port: int = 3000
    """0: any free one."""
    session_idle_seconds: float = 60.0
    """After so long without a request a session is over."""
    connect_seconds: float = 2.0
    silence_seconds: float = 120.0
    """How long a backend may say nothing: before its answer, and within it."""
    patient_seconds: float = 5.0
    """Who heard nothing for so long, and for twice as long as the model in service ever takes, and then hung up, was
    failed by the model. Callers give up long before `silence_seconds`: a model that hangs would else look healthy. Who
    changes their mind does so sooner."""
    request_seconds: float = 600.0
    """How long an answer may take from beginning to end."""
    largest_body_bytes: int = 8 * 2**20
    drain_seconds: float = 10.0
    """How long running requests may go on when the gateway is stopped."""
    on_listening: Callable[[int], None] = lambda _: None
    """Called with the port once requests are taken."""

    def __post_init__(self) -> None:
        if len(self.admin_token) < 16:
            raise GatewayMisconfigured("the gateway needs an admin token of at least 16 characters: set one")
