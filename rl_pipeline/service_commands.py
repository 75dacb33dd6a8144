"""The commands of the HTTP service: serve it, and make keys for its callers."""

import sys
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated

import typer

from rl_pipeline.errors import PipelineError

if TYPE_CHECKING:
    from pathlib import Path

    from rl_pipeline.service.service import ServiceConfiguration
    from rl_pipeline.settings import Settings

# Whoever waits for an answer is told soon that a store is away; a busy server is not.
_PATIENCE_SECONDS = 5.0
_ANSWER_SECONDS = 20


def service(
    port: Annotated[int, typer.Option(min=0, max=65535, help="Where it listens; 0 for any free port.")] = 8100,
    host: Annotated[str, typer.Option(help="On which address; 0.0.0.0 for all.")] = "127.0.0.1",
) -> None:
    """Serve the HTTP API and answer agent.rl.training.status.request."""
    from rl_pipeline.json_logs import write_json_logs
    from rl_pipeline.opening import current_settings
    from rl_pipeline.service.running import run_service

    write_json_logs("service", sys.stderr)
    run_service(configured(current_settings(), host=host, port=port))


def service_key(
    name: Annotated[str, typer.Argument(help="Whose key it is: jobs and orders bear this name.")],
    scope: Annotated[list[str], typer.Option(help="What it may do; give it once for each.")],
    days: Annotated[int | None, typer.Option(min=1, help="So many days it counts; else for ever.")] = None,
) -> None:
    """Make a key, and say what to add to SERVICE_KEYS_FILE. The key itself is shown this once."""
    from rl_pipeline.service.keys import OWN_NAME, SCOPES, entry_of, new_key

    chosen = [each for each in SCOPES if each in scope]
    if len(chosen) < len(set(scope)):
        raise PipelineError(f"a scope is one of {', '.join(SCOPES)}: give each with --scope")
    if not name or len(name) > 128 or '"' in name or "\\" in name or not name.isprintable():
        raise PipelineError("a name is at most 128 letters without quotes: name the key after its holder")
    if name == OWN_NAME:
        raise PipelineError(f"{OWN_NAME} is the name of AGENTGYM_RL_API_KEY: name the key after its holder")
    key = new_key()
    typer.echo(key, err=True)
    expires = datetime.now(UTC) + timedelta(days=days) if days else None
    typer.echo(entry_of(key, name, chosen, expires), nl=False)


def configured(settings: "Settings", *, host: str, port: int) -> "ServiceConfiguration":
    """The service that settings describe. Raises `InvalidKeyFile`."""
    from importlib.metadata import version

    from rl_pipeline.opening import (
        edge_redactor,
        memory_configuration,
        model_objects,
        open_desk,
        open_raw_objects,
        open_stream,
        open_warehouse,
        redaction_policy,
    )
    from rl_pipeline.redaction.redactor import Redactor
    from rl_pipeline.service.keys import Keyring
    from rl_pipeline.service.service import ServiceConfiguration
    from rl_pipeline.stores.topology import STREAMS, TRAINING, TRAJECTORIES

    own = settings.agentgym_rl_api_key
    keys_file: Path | None = settings.service_keys_file
    return ServiceConfiguration(
        keyring=Keyring(own.get_secret_value() if own else None, keys_file),
        open_stream=lambda: open_stream(settings, patience_seconds=_PATIENCE_SECONDS),
        open_warehouse=lambda: open_warehouse(settings, answer_seconds=_ANSWER_SECONDS),
        open_desk=lambda: open_desk(settings, patience_seconds=_PATIENCE_SECONDS),
        open_models=lambda: model_objects(settings).open(),
        open_raw_objects=lambda: open_raw_objects(settings),
        edge_redactor=lambda: edge_redactor(settings),
        redactor=lambda: Redactor(redaction_policy(settings)),
        memory=memory_configuration(settings),
        reward_weights=settings.reward_weights,
        dagster_url=settings.dagster_url,
        gateways=settings.gateway_addresses,
        mlflow_uri=settings.mlflow_tracking_uri,
        trajectories=TRAJECTORIES.name,
        training=TRAINING.name,
        streams=[stream.name for stream in STREAMS],
        algorithm=settings.rl_algorithm,
        requests_per_second=settings.service_requests_per_second,
        version=version("rl-pipeline"),
        host=host,
        port=port,
        on_listening=lambda chosen: typer.echo(f"the service listens on http://{host}:{chosen}"),
    )
