"""The commands that connect agents: the plugin for Agent Zero, and the recording proxy for everything else."""

import asyncio
import contextlib
import logging
import signal
from pathlib import Path
from typing import Annotated

import typer

agent_zero = typer.Typer(no_args_is_help=True, help="Agent Zero: recording, ratings, the rl-trainer profile.")


@agent_zero.command("install")
def install_plugin(
    directory: Annotated[Path, typer.Argument(help="Agent Zero's directory, with its agent.py.")],
    *,
    nats_url: Annotated[str | None, typer.Option(help="Where trajectories go, as Agent Zero sees it.")] = None,
    gateway_url: Annotated[str | None, typer.Option(help="The gateway that says which model is in service.")] = None,
    trajectory_storage_path: Annotated[
        str | None, typer.Option(help="The pipeline's store, for trajectories of more than 512 KB.")
    ] = None,
) -> None:
    """Put the plugin into an Agent Zero 1.x, or extensions into a 0.9.x, or bring them up to date; settings stay."""
    from rl_pipeline.collection.agent_zero.installing import install

    given = {
        "nats_url": nats_url,
        "gateway_url": gateway_url,
        "trajectory_storage_path": trajectory_storage_path,
    }
    plugin = install(directory, {name: value for name, value in given.items() if value is not None})
    typer.echo(f"it is in {plugin}: restart Agent Zero")


def record_proxy(
    upstream: Annotated[str, typer.Argument(help="The model's address, as http://127.0.0.1:8000 or https://…/v1.")],
    port: Annotated[int, typer.Option(min=0, max=65535, help="Where it listens; 0 for any free port.")] = 8090,
    host: Annotated[str, typer.Option(help="On which address; 0.0.0.0 for all.")] = "127.0.0.1",
    *,
    agent_id: Annotated[str, typer.Option(help="Whose trajectories these are.")] = "recorded-agent",
    idle_seconds: Annotated[float, typer.Option(min=1, help="After so long a silence a session is over.")] = 300.0,
    outbox: Annotated[Path | None, typer.Option(help="Where trajectories wait; else record-proxy in the home.")] = None,
) -> None:
    """Stand between an agent and its model, speak OpenAI's API, and record what passes."""
    from rl_pipeline.collection import Outbox
    from rl_pipeline.collection.proxy.recorder import ProxyRecorder
    from rl_pipeline.collection.proxy.server import RecordingProxy, run_proxy
    from rl_pipeline.errors import PipelineError
    from rl_pipeline.opening import current_settings, edge_policy, open_raw_objects

    if not upstream.startswith(("http://", "https://")):
        raise PipelineError("the upstream's address must begin with http:// or https://")
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    settings = current_settings()
    box = Outbox(
        outbox or settings.rl_pipeline_home.absolute() / "record-proxy",
        settings.nats_url,
        user=settings.nats_user,
        password=settings.nats_password.get_secret_value() if settings.nats_password else None,
        credentials_file=settings.nats_credentials_file,
        redaction=edge_policy(settings),
        open_objects=lambda: open_raw_objects(settings),
    )
    recorder = ProxyRecorder(box, agent_id, idle_seconds)

    async def serve() -> None:
        stop = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, stop.set)

        def tell(chosen: int) -> None:
            typer.echo(f"the proxy listens on http://{host}:{chosen}/v1")

        await run_proxy(RecordingProxy(upstream, recorder), host, port, until=stop.wait(), on_listening=tell)

    with contextlib.closing(box), contextlib.closing(recorder):
        asyncio.run(serve())
