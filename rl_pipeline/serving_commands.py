"""The commands that serve: the gateway, and the watchdog beside it."""

import asyncio
import logging
import signal
import sys
import threading
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rl_pipeline.errors import PipelineError

if TYPE_CHECKING:
    from rl_pipeline.deployment.state import DesiredState
    from rl_pipeline.deployment.watchdog import Look
    from rl_pipeline.serving.configuration import Nats
    from rl_pipeline.settings import Settings
    from rl_pipeline.stores.jetstream import JetStream

_log = logging.getLogger(__name__)

# What serves or guards must not wait for a store that is away.
_SHORT_PATIENCE_SECONDS = 2.0


def gateway(
    port: Annotated[int, typer.Option(min=0, max=65535, help="Where it listens; 0 for any free port.")] = 3000,
    host: Annotated[str, typer.Option(help="On which address; 0.0.0.0 for all.")] = "127.0.0.1",
    data: Annotated[Path | None, typer.Option(help="Its own directory; else gateway in the home.")] = None,
    name: Annotated[str, typer.Option(help="By which outcomes and the audit know it.")] = "gateway",
) -> None:
    """Serve models: OpenAI's chat completions, split as the desired state says, and the admin API."""
    import uvloop

    from rl_pipeline.json_logs import write_json_logs
    from rl_pipeline.opening import base_models, current_settings, model_objects, session_keys
    from rl_pipeline.serving.configuration import GatewayConfiguration
    from rl_pipeline.serving.fetching import ModelFetcher
    from rl_pipeline.serving.running import run_gateway

    settings = current_settings()
    token = settings.tensorzero_admin_token
    if token is None:
        raise PipelineError("the gateway's admin API needs a token: set TENSORZERO_ADMIN_TOKEN")
    keys = session_keys(settings)
    if not keys:
        raise PipelineError("the gateway stores sessions under a key: set GATEWAY_SESSION_KEY to v1:<32 characters>")
    write_json_logs(name, sys.stderr)
    directory = data or settings.rl_pipeline_home.absolute() / "gateway"
    configuration = GatewayConfiguration(
        data_directory=directory,
        admin_token=token.get_secret_value(),
        session_key=keys[0],
        fetch=ModelFetcher(base_models(settings), model_objects(settings).open, directory / "models").fetch,
        open_nats=lambda: _open_nats(settings),
        change_traffic=lambda model_id, percent: asyncio.to_thread(_change_traffic, settings, name, model_id, percent),
        name=name,
        host=host,
        port=port,
        session_idle_seconds=settings.gateway_session_idle_seconds,
        on_listening=lambda chosen: typer.echo(f"the gateway listens on http://{host}:{chosen}"),
    )
    uvloop.run(run_gateway(configuration))


def watchdog(
    data: Annotated[Path | None, typer.Option(help="Its own directory; else watchdog in the home.")] = None,
    interval: Annotated[float, typer.Option(min=0.1, help="Seconds between two looks.")] = 2.0,
) -> None:
    """Take bad candidates out by what the gateways themselves saw, with everything but them dead."""
    from rl_pipeline.deployment.judging import judge
    from rl_pipeline.deployment.watchdog import FileMemory, Watchdog
    from rl_pipeline.json_logs import write_json_logs
    from rl_pipeline.opening import current_settings, open_traffic, rollout_limits
    from rl_pipeline.stores.connecting_states import ConnectingStates
    from rl_pipeline.stores.jetstream_desired_state import JetStreamDesiredStates

    settings = current_settings()
    directory = data or settings.rl_pipeline_home.absolute() / "watchdog"
    directory.mkdir(parents=True, exist_ok=True)
    write_json_logs("watchdog", sys.stderr)
    dog = Watchdog(
        open_traffic(settings),
        ConnectingStates(lambda: JetStreamDesiredStates(_connected(settings))),
        FileMemory(directory / "memory.json"),
        judge,
        rollout_limits(settings),
    )
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    said = ""
    while not stop.is_set():
        look = dog.look(datetime.now(UTC))
        told = _told(look)
        if told != said:
            _log.info("%s", told, extra=_ids(look))
        said = told
        (directory / "last-look").touch()
        stop.wait(interval)


def _told(look: "Look") -> str:
    """One line for the log; the same while nothing changes."""
    state = look.state
    place = f"generation {state.generation}, {state.phase}" if state else "nothing is deployed"
    taken = [
        f"{model} fenced at {', '.join(fencing.confirmed) or 'no gateway'}" for model, fencing in look.fencings.items()
    ]
    recorded = [f"generation {each.generation} recorded: {each.change.reason}" for each in look.recorded]
    return "; ".join([place, *taken, *recorded, *look.pending])


def _ids(look: "Look") -> dict[str, str | int]:
    """What a look is about."""
    state = look.state
    if state is None:
        return {}
    rollout = {"deployment_id": state.rollout.deployment_id} if state.rollout else {}
    return {"generation": state.generation, "model_id": state.change.model_id, **rollout}


def _connected(settings: "Settings") -> "JetStream":
    from rl_pipeline.opening import open_stream

    return open_stream(settings, patience_seconds=_SHORT_PATIENCE_SECONDS)


def _open_nats(settings: "Settings") -> "Nats":
    from rl_pipeline.serving.configuration import Nats
    from rl_pipeline.stores.jetstream_desired_state import JetStreamDesiredStates

    stream = _connected(settings)
    return Nats(stream, JetStreamDesiredStates(stream), stream.close)


def _change_traffic(settings: "Settings", by: str, model_id: str, percentage: float) -> "DesiredState":
    from rl_pipeline.deployment.commands import Commands
    from rl_pipeline.opening import open_desk

    with open_desk(settings, patience_seconds=_SHORT_PATIENCE_SECONDS) as desk:
        return Commands(desk, by, datetime.now(UTC)).set_traffic(model_id, percentage, "PUT /admin/traffic")
