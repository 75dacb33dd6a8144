"""The commands around other people's formats: bring their trajectories in, take ours out."""

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rl_pipeline.errors import PipelineError

if TYPE_CHECKING:
    from rl_pipeline.collection.formats.importing import Imported, Importer
    from rl_pipeline.collection.formats.publishing import PublishedImports
    from rl_pipeline.collection.formats.refusals import Refusal

_SHOWN = 5

Paths = Annotated[list[Path], typer.Argument(help="Files and directories; a refused.jsonl is tried again.")]
FormatName = Annotated[
    str | None, typer.Option("--format", help="The format; else it is recognised, record by record.")
]
Refused = Annotated[
    Path | None, typer.Option(help="Where refused records are kept; else refused.jsonl beside the first path.")
]
FromDay = Annotated[datetime, typer.Option("--day", formats=["%Y-%m-%d"], help="A UTC day, as 2026-01-31.")]
ToDay = Annotated[datetime | None, typer.Option("--to", formats=["%Y-%m-%d"], help="The last of several days.")]


def import_files(
    paths: Paths,
    format_name: FormatName = None,
    *,
    model: Annotated[str | None, typer.Option(help="The model, where the files do not name it.")] = None,
    refused: Refused = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only report: publish and write nothing.")] = False,
) -> None:
    """Publish the trajectories of files in other formats: atif, openai-messages, swe-agent, intercode, tau-bench,
    fireact, massgen-traces, lightning-spans, otlp.

    Each leaves redacted, as with `publish`. A record that is refused is kept with its reason, and holds up no other.
    """
    from rl_pipeline.collection.formats import Importer, RefusalFile, format_named
    from rl_pipeline.collection.formats.publishing import PublishedImports
    from rl_pipeline.collection.formats.refusals import FILE_NAME
    from rl_pipeline.collection.formats.sources import source_files

    wanted = format_named(format_name) if format_name else None
    size = sum(source.size for source in source_files(paths))
    shown: list[str] = []

    def note(refusal: "Refusal") -> None:
        if len(shown) < _SHOWN:
            shown.append(f"{refusal.place}: {refusal.detail}")
        if not dry_run:
            kept.add(refusal)

    kept = RefusalFile(refused or paths[0].absolute().parent / FILE_NAME)
    with typer.progressbar(length=size, label="reading", file=sys.stderr) as bar:
        importer = Importer(wanted=wanted, model=model, refuse=note, progress=bar.update)
        found = importer.trajectories(paths)
        came = PublishedImports(stored=sum(1 for _ in found)) if dry_run else _publish(found, importer)
    _tell(importer, shown)
    if kept.path:
        typer.echo(f"the refused records are in {kept.path}: mend them, and import that file")
    if not importer.report.read.total():
        raise PipelineError("nothing was imported: see above, or docs/collection-formats.md for what each format holds")
    if dry_run:
        typer.echo(f"would publish {came.stored} trajectories")
    else:
        typer.echo(f"published {came.stored} trajectories; {came.repeated} were there already")


def export(  # noqa: PLR0917  # Typer reads its options from here
    out: Annotated[Path, typer.Argument(help="A new file, or a new directory where a format has one file for each.")],
    format_name: Annotated[str, typer.Option("--format", help="The format to write.")],
    day: FromDay,
    last_day: ToDay = None,
    agent: Annotated[str, typer.Option(help="Only of this agent.")] = "",
    model: Annotated[str, typer.Option(help="Only of this model or model version.")] = "",
    task: Annotated[str, typer.Option(help="Only of this task or task type.")] = "",
    domain: Annotated[str, typer.Option(help="Only of this domain.")] = "",
    status: Annotated[str, typer.Option(help="Only those that ended so: success, partial, failed, abandoned.")] = "",
    framework: Annotated[str, typer.Option(help="Only those that this framework recorded.")] = "",
    limit: Annotated[int | None, typer.Option(min=1, help="At most so many.")] = None,
) -> None:
    """Write the redacted trajectories of days, by when they were published, in another format."""
    from rl_pipeline.collection.formats import export_trajectories, format_named
    from rl_pipeline.ingestion.stored_documents import Choice, stored_documents
    from rl_pipeline.opening import current_settings, open_warehouse

    into = format_named(format_name)
    choice = Choice(agent=agent, model=model, task=task, domain=domain, status=status, framework=framework)
    with closing(open_warehouse(current_settings())) as tables:
        documents = stored_documents(tables, day.date(), (last_day or day).date(), choice, limit)
        written = export_trajectories(documents, into, out)
    if not written:
        raise PipelineError(f"no trajectory is as asked, and {out} is empty: name other days or fewer conditions")
    typer.echo(f"wrote {written} trajectories to {out}")


def otlp_receiver(
    port: Annotated[int, typer.Option(min=0, max=65535, help="Where it listens; 0 for any free port.")] = 4318,
    data: Annotated[Path | None, typer.Option(help="Its own directory; else otlp in the home.")] = None,
    settle: Annotated[float, typer.Option(min=0.0, help="Seconds without a span once a trace's root has come.")] = 5.0,
    idle: Annotated[float, typer.Option(min=0.0, help="Seconds without a span where no root comes.")] = 300.0,
) -> None:
    """Take spans by OTLP's HTTP (JSON or protobuf, POST /v1/traces), and publish their traces as trajectories."""
    from rl_pipeline.collection import Outbox
    from rl_pipeline.collection.otlp import OtlpReceiver, ReceiverLimits, serving
    from rl_pipeline.opening import current_settings, edge_policy, open_raw_objects

    settings = current_settings()
    password = settings.nats_password
    directory = data or settings.rl_pipeline_home.absolute() / "otlp"
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    outbox = Outbox(
        directory / "outbox",
        settings.nats_url,
        user=settings.nats_user,
        password=password.get_secret_value() if password else None,
        credentials_file=settings.nats_credentials_file,
        redaction=edge_policy(settings),
        open_objects=lambda: open_raw_objects(settings),
    )
    with (
        closing(outbox),
        closing(OtlpReceiver(outbox, directory, ReceiverLimits(settle_seconds=settle, idle_seconds=idle))) as receiver,
        serving(receiver, port) as chosen,
    ):
        typer.echo(f"spans are taken on http://127.0.0.1:{chosen}/v1/traces")
        stop.wait()
    typer.echo(f"sent {outbox.counts.sent} trajectories")


def _publish(found: "Iterator[Imported]", importer: "Importer") -> "PublishedImports":
    from rl_pipeline.collection.formats.publishing import publish_imports
    from rl_pipeline.opening import current_settings, edge_redactor, open_raw_objects, open_stream

    settings = current_settings()
    redactor = edge_redactor(settings)
    with open_stream(settings) as stream:
        return publish_imports(found, importer, stream, lambda: open_raw_objects(settings), redactor)


def _tell(importer: "Importer", shown: list[str]) -> None:
    """What was read and what was not, by format and by reason."""
    report = importer.report
    read = ", ".join(f"{count} {name}" for name, count in sorted(report.read.items()) if count) or "none"
    typer.echo(f"{report.files} files, trajectories: {read}")
    if report.mended:
        typer.echo(f"in {report.mended} records, halves of characters or numbers that are none were replaced")
    if report.passed_over:
        first = ", ".join(report.passed_over[:_SHOWN])
        typer.echo(f"{len(report.passed_over)} files of no known format were passed over, such as {first}")
    if report.refused:
        reasons = ", ".join(f"{count} {reason}" for reason, count in report.refused.most_common())
        typer.echo(f"refused: {reasons}")
        for line in shown:
            typer.echo(f"  {line}")
