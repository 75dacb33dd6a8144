"""`rl-pipeline`: the commands for people. Each reads the settings, opens the stores, and makes one call.

Imports live in the commands: a command pays for what it needs, and Ctrl-C during them is an ordinary end.
"""

import logging
import sys
from collections.abc import Sequence
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from random import SystemRandom
from typing import TYPE_CHECKING, Annotated

import typer

from rl_pipeline.collection_commands import agent_zero, record_proxy
from rl_pipeline.deployment_commands import deployment, explain
from rl_pipeline.errors import PipelineError
from rl_pipeline.format_commands import export, import_files, otlp_receiver
from rl_pipeline.ingestion_commands import archive, dead_letters, erase, ingest
from rl_pipeline.reward_commands import probe_rewards, rescore
from rl_pipeline.service_commands import service, service_key
from rl_pipeline.serving_commands import gateway, watchdog
from rl_pipeline.settings_commands import settings
from rl_pipeline.trace_commands import show
from rl_pipeline.training_commands import cancel, jobs, train

if TYPE_CHECKING:
    from rl_pipeline.settings import Settings

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="The closed loop that makes LLM agents better from their own experience.",
)
contracts = typer.Typer(no_args_is_help=True, help="The message contracts and their JSON Schemas.")
streams = typer.Typer(no_args_is_help=True, help="The JetStream streams and consumers.")
warehouse = typer.Typer(no_args_is_help=True, help="The ClickHouse tables.")
app.add_typer(contracts, name="contracts")
app.add_typer(streams, name="streams")
app.add_typer(warehouse, name="warehouse")
app.add_typer(agent_zero, name="agent-zero")
app.command("record-proxy")(record_proxy)
app.command("import")(import_files)
app.command()(export)
app.command("otlp-receiver")(otlp_receiver)
app.command()(ingest)
app.add_typer(dead_letters, name="dead-letters")
app.add_typer(archive, name="archive")
app.command()(erase)
app.command()(rescore)
app.command("probe-rewards")(probe_rewards)
app.command()(train)
app.command()(cancel)
app.command()(jobs)
app.command()(gateway)
app.command()(watchdog)
app.command()(service)
app.command("service-key")(service_key)
app.add_typer(deployment, name="deployment")
app.command()(explain)
app.command()(show)
app.command()(settings)


def main() -> None:
    """Run a command; a failure that a person can act on is one line on standard error."""
    # What it logs it also raises, and then it is said in our words.
    logging.getLogger("clickhouse_connect").setLevel(logging.CRITICAL)
    try:
        app()
    except PipelineError as refused:
        typer.echo(f"rl-pipeline: {refused}", err=True)
        sys.exit(1)
    except OSError as refused:
        if refused.filename is None:
            raise
        typer.echo(f"rl-pipeline: {refused.filename}: {refused.strerror}", err=True)
        sys.exit(1)
    except ModuleNotFoundError as absent:
        typer.echo(
            f"rl-pipeline: this command needs more than an agent does ({absent.name}): "
            "pip install 'rl-pipeline[pipeline]'",
            err=True,
        )
        sys.exit(1)


@app.command()
def up() -> None:
    """Start NATS, ClickHouse and Dagster on this machine; Ctrl-C stops them."""
    from rl_pipeline.embedded.stack import running_stack
    from rl_pipeline.settings import load_settings

    with running_stack(load_settings(), report=typer.echo, prepare_stores=_prepare_stores) as stack:
        if not stack.supervisor.stop_requested.is_set():
            typer.echo(f"\nThe UI is at {stack.addresses.ui}. Try: rl-pipeline publish --sample 10")
        stack.supervisor.watch()


@app.command()
def status() -> None:
    """Say of each component of the embedded stack whether it runs; exit code 1 when one does not."""
    from rl_pipeline.embedded.home import processes_of
    from rl_pipeline.embedded.record import find_running_stack
    from rl_pipeline.settings import load_settings

    settings = load_settings()
    record = find_running_stack(settings.rl_pipeline_home)
    if record is None:
        raise PipelineError(f"no stack runs in {settings.rl_pipeline_home.resolve()}: start one with `rl-pipeline up`")
    components = processes_of(record)
    for name, process in components.items():
        typer.echo(f"{name:<12} {'running' if process else 'down':<8} {record.urls.get(name, '')}".rstrip())
    if not all(components.values()):
        raise typer.Exit(1)


@app.command()
def demo(  # noqa: PLR0917 - typer passes them by name
    cycles: Annotated[int, typer.Option(min=1, help="How often the policy is trained and released.")] = 3,
    episodes: Annotated[int, typer.Option(min=100, help="New trajectories after which a training is due.")] = 480,
    seed: Annotated[int, typer.Option(min=0, max=2**32 - 1, help="Another one gives other tasks and other luck.")] = 0,
    sabotage: Annotated[bool, typer.Option(help="Release a sabotaged model at the end, and see it taken back.")] = True,
    stay: Annotated[bool, typer.Option(help="Leave the Dagster UI open at the end.")] = False,
    world: Annotated[
        str, typer.Option(help="In which agents play; an unknown one is answered with a list.")
    ] = "crafting",
) -> None:
    """Run the whole loop on embedded servers: a small model learns from its own experience, cycle by cycle."""
    from rl_pipeline.demo import DemoProfile, Telling, run_demo
    from rl_pipeline.settings import load_settings

    profile = DemoProfile(cycles=cycles, episodes=episodes, seed=seed, sabotage=sabotage, world=world)
    run_demo(load_settings(), profile, tell=Telling(sys.stdout), prepare_stores=_prepare_stores, stay=stay)


@app.command()
def publish(
    files: Annotated[list[Path] | None, typer.Argument(help="JSON or JSON-lines files; - is standard input.")] = None,
    subject: Annotated[str | None, typer.Option(help="The files' subject; else agent.rl.trajectory.v1.")] = None,
    sample: Annotated[int, typer.Option(min=0, help="Publish this many made-up trajectories.")] = 0,
) -> None:
    """Publish messages; all of them are checked first, and nothing is published when one is refused."""
    from rl_pipeline.collection.publishing import outgoing_message
    from rl_pipeline.collection.reading import read_messages
    from rl_pipeline.collection.samples import sample_trajectories
    from rl_pipeline.contracts import Message
    from rl_pipeline.opening import current_settings, edge_redactor, open_raw_objects, open_stream

    if bool(files) == bool(sample) or (sample and subject):
        raise PipelineError("name the files to publish, with their --subject if need be, or say --sample 10")
    messages: Sequence[Message]
    if sample:
        messages = list(sample_trajectories(sample, now=datetime.now(UTC), randomness=SystemRandom()))
    else:
        messages = read_messages(subject or "agent.rl.trajectory.v1", files or [])
    settings = current_settings()
    redactor = edge_redactor(settings)
    outgoing = [outgoing_message(message, lambda: open_raw_objects(settings), redactor) for message in messages]
    with open_stream(settings) as stream:
        stored = stream.publish_many(outgoing)
    duplicates = sum(published.duplicate for published in stored)
    typer.echo(
        f"published {len(stored) - duplicates} messages, the last with sequence "
        f"{max(published.sequence for published in stored)}; {duplicates} were there already"
    )


@contracts.command("check")
def contracts_check() -> None:
    """Fail when the JSON Schema files are not those that the models make."""
    from rl_pipeline.contracts.schemas import schema_drift

    drift = schema_drift()
    if drift:
        raise PipelineError(f"{', '.join(drift)} differ from the models: run `rl-pipeline contracts write`")
    typer.echo("the schema files are those that the models make")


@contracts.command("write")
def contracts_write() -> None:
    """Write the JSON Schema files and topics.json anew from the models."""
    from rl_pipeline.contracts.schemas import write_schemas

    write_schemas()


@streams.command("bootstrap")
def streams_bootstrap() -> None:
    """Create the streams and consumers that are missing, and report what differs; nothing is overwritten."""
    from rl_pipeline.opening import current_settings

    _bootstrap_streams(current_settings())


@warehouse.command("migrate")
def warehouse_migrate() -> None:
    """Bring the tables to this version."""
    from rl_pipeline.opening import current_settings

    _migrate_warehouse(current_settings())


@warehouse.command("columns")
def warehouse_columns() -> None:
    """Write down, for Dagster's catalogue, which columns the tables of this version have."""
    from rl_pipeline.opening import current_settings, open_warehouse
    from rl_pipeline.stores.table_columns import read_columns, write_columns

    with closing(open_warehouse(current_settings())) as tables:
        write_columns(read_columns(tables))


def _prepare_stores(settings: "Settings") -> None:
    """Streams and tables, before anything reads them."""
    from rl_pipeline.stores.stream import StreamDenied

    try:
        _bootstrap_streams(settings)
    except StreamDenied:
        # A service account works with what the admin made.
        typer.echo(
            "streams      not checked: only the admin may; `rl-pipeline streams bootstrap` with that account does"
        )
    _migrate_warehouse(settings)


def _bootstrap_streams(settings: "Settings") -> None:
    from rl_pipeline.opening import open_stream
    from rl_pipeline.stores.topology import bootstrap

    with open_stream(settings) as stream:
        report = bootstrap(stream, replicas=settings.nats_replicas)
    typer.echo(f"streams      {'created ' + ', '.join(report.created) if report.created else 'up to date'}")
    for finding in (*report.drift, *report.notes):
        typer.echo(f"streams      {finding}")


def _migrate_warehouse(settings: "Settings") -> None:
    from rl_pipeline.opening import open_warehouse
    from rl_pipeline.stores.migrate import migrate

    with closing(open_warehouse(settings)) as tables:
        applied = migrate(tables, cluster=settings.clickhouse_cluster)
    typer.echo(f"tables       {'created ' + ', '.join(applied) if applied else 'up to date'}")
