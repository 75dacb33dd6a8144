"""The commands around ingested data: drain the stream, look into what was refused, archive, restore, erase."""

import json
from contextlib import closing
from dataclasses import asdict
from datetime import UTC, datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rl_pipeline.errors import PipelineError

if TYPE_CHECKING:
    import polars as pl

    from rl_pipeline.ingestion.dead_letters import DeadLetter
    from rl_pipeline.ingestion.reports import DrainReport
    from rl_pipeline.settings import Settings
    from rl_pipeline.stores.jetstream import JetStream
    from rl_pipeline.stores.warehouse import Warehouse

dead_letters = typer.Typer(no_args_is_help=True, help="What was refused, why, and trying it again.")
archive = typer.Typer(no_args_is_help=True, help="The redacted trajectories as Parquet, by day.")

_NO_LIMIT = 2**62


class Source(StrEnum):
    """Where something can be refused: the streams, and the files that are imported."""

    TRAJECTORIES = "trajectories"
    FEEDBACK = "feedback"
    TRAINING = "training"
    IMPORTS = "imports"


_WITHOUT_LEDGER = (Source.TRAINING, Source.IMPORTS)
# Of feedback nothing but its digest is kept. The id of what was asked of training is its job's, if it names one; that
# of a document from a file names the job, the file and the line.
_MORE_OF_A_REFUSAL = {
    Source.TRAJECTORIES: "{size:>8} bytes  {message_id}",
    Source.FEEDBACK: "",
    Source.TRAINING: "{size:>8} bytes  {subject}  {message_id}",
    Source.IMPORTS: "{size:>8} bytes  {message_id}",
}

OfStream = Annotated[Source, typer.Option("--stream", help="Of which messages.")]
Reason = Annotated[str | None, typer.Option(help="Only those refused for this reason, such as max_depth.")]
First = Annotated[int | None, typer.Option(min=1, help="From this stream sequence on.")]
Last = Annotated[int | None, typer.Option(min=1, help="Up to this stream sequence.")]
Day = Annotated[datetime, typer.Argument(formats=["%Y-%m-%d"], help="A UTC day, as 2026-01-31.")]
LastDay = Annotated[datetime | None, typer.Argument(formats=["%Y-%m-%d"], help="The last of several days.")]


def ingest() -> None:
    """Drain the stream into the warehouse, up to what it holds now; the Dagster sensor does the same by itself."""
    from rl_pipeline.ingestion.draining import drain
    from rl_pipeline.ingestion.ledger import ledger_watermark
    from rl_pipeline.ingestion.planning import next_range
    from rl_pipeline.opening import current_settings, open_stream, open_warehouse, raw_objects
    from rl_pipeline.stores.topology import TRAJECTORIES

    settings = current_settings()
    rules = _rules(settings)
    with open_stream(settings) as messages, closing(open_warehouse(settings)) as tables:
        head = messages.state(TRAJECTORIES.name).last_sequence
        while (watermark := ledger_watermark(tables, TRAJECTORIES.name)) < head:
            planned = next_range(messages, TRAJECTORIES.name, ingested_up_to=watermark, now=datetime.now(UTC))
            if planned is None:
                break
            report = drain(
                *(messages, tables),
                stream=TRAJECTORIES.name,
                first=planned.first,
                last=planned.last,
                workers=settings.ingest_processes,
                open_raw_objects=raw_objects(settings).open,
                **rules,
            )
            typer.echo(f"{planned.day}  {planned.first}-{planned.last}  {_told(report)}")
    typer.echo(f"ingested up to sequence {head}")


@dead_letters.command("list")
def list_refused(
    reason: Reason = None,
    first: First = None,
    last: Last = None,
    limit: Annotated[int, typer.Option(min=1, help="At most so many, the newest first.")] = 100,
    source: OfStream = Source.TRAJECTORIES,
) -> None:
    """The messages that are refused now, by their stream sequence."""
    from rl_pipeline.opening import current_settings, open_stream, open_warehouse

    settings = current_settings()
    narrowed: dict[str, Any] = {"reason": reason, "first": first, "last": last}
    if source in _WITHOUT_LEDGER:
        with open_stream(settings) as messages:
            letters = _letters(messages, _stream_of(source), **narrowed)[:limit]
        found = [asdict(letter) | {"stream_time": datetime.fromisoformat(letter.stream_time)} for letter in letters]
    else:
        with closing(open_warehouse(settings)) as tables:
            found = _refused(tables, source, limit=limit, **narrowed).to_dicts()
    for row in found:
        when = row["stream_time"].isoformat(timespec="seconds")
        more = _MORE_OF_A_REFUSAL[source].format_map(row)
        typer.echo(f"{row['sequence']:<10} {when}  {row['reason']:<24} {more}".rstrip())
    typer.echo(f"{len(found)} refused{f', at most {limit} shown' if len(found) == limit else ''}", err=True)


@dead_letters.command()
def show(
    sequence: Annotated[int, typer.Argument(min=1, help="The stream sequence.")],
    source: OfStream = Source.TRAJECTORIES,
) -> None:
    """One dead letter: where it came from, why it was refused, and its beginning, redacted."""
    from rl_pipeline.ingestion.dead_letters import show_dead_letter
    from rl_pipeline.opening import current_settings, open_stream

    with open_stream(current_settings()) as messages:
        letter = show_dead_letter(messages, _stream_of(source), sequence)
    typer.echo(json.dumps(asdict(letter), indent=2, ensure_ascii=False))


@dead_letters.command()
def replay(
    reason: Reason = None, first: First = None, last: Last = None, source: OfStream = Source.TRAJECTORIES
) -> None:
    """Judge refused messages again from the stream; what is accepted now is stored, once."""
    from rl_pipeline.ingestion import draining, feedback
    from rl_pipeline.opening import current_settings, open_stream, open_warehouse, raw_objects

    if source is Source.TRAINING:
        raise PipelineError(
            "a refused request or cancellation of training is not replayed, for by now nobody may want it: see with "
            "`rl-pipeline dead-letters show SEQUENCE --stream training` what was wrong, and send it again: "
            "`rl-pipeline train`, which asks under a new id, or `rl-pipeline cancel JOB`"
        )
    if source is Source.IMPORTS:
        raise PipelineError(
            "what an import has refused stands in its file alone: see with `rl-pipeline dead-letters list --stream "
            "imports` in which line, mend it, and ask for another job that imports the file"
        )
    settings = current_settings()
    rules = _rules(settings)
    with open_stream(settings) as messages, closing(open_warehouse(settings)) as tables:
        refused = _refused(tables, source, reason=reason, first=first, last=last, limit=_NO_LIMIT)["sequence"]
        rules |= {"stream": _stream_of(source), "sequences": refused.to_list()}
        if source is Source.FEEDBACK:
            replayed = feedback.replay_feedback(messages, tables, **rules)
        else:
            replayed = draining.replay(messages, tables, open_raw_objects=raw_objects(settings).open, **rules)
    typer.echo(_told(replayed.report))
    if replayed.gone:
        raise PipelineError(
            f"{len(replayed.gone)} messages have left the stream and cannot be judged again, "
            f"the first is {replayed.gone[0]}; their dead letters stay for 30 days"
        )


@archive.command()
def write() -> None:
    """Write the days that have changed since they were archived, and remove what has outlived its time."""
    from rl_pipeline.ingestion.archive import archive_days, prune_archive, prune_raw
    from rl_pipeline.opening import archive_objects, current_settings, open_raw_objects, open_warehouse

    settings, now = current_settings(), datetime.now(UTC)
    objects = archive_objects(settings).open()
    with closing(open_warehouse(settings)) as tables:
        report = archive_days(tables, objects, now)
    for day, rows in report.written.items():
        typer.echo(f"{day}  {rows:,} trajectories written")
    expired = prune_archive(objects, now) + prune_raw(open_raw_objects(settings), now)
    typer.echo(f"{len(report.unchanged)} days unchanged, {expired} expired objects removed")


@archive.command()
def restore(first: Day, last: LastDay = None) -> None:
    """Bring archived days back into the warehouse, for another 30 days."""
    from rl_pipeline.ingestion.archive import restore_days
    from rl_pipeline.opening import (
        archive_objects,
        current_settings,
        open_warehouse,
        previous_keys,
        redaction_policy,
    )

    settings = current_settings()
    objects = archive_objects(settings).open()
    keys = redaction_policy(settings).key, *previous_keys(settings)
    with closing(open_warehouse(settings)) as tables:
        report = restore_days(tables, objects, first.date(), (last or first).date(), keys=keys, now=datetime.now(UTC))
    for day, rows in report.restored.items():
        typer.echo(f"{day}  {rows:,} trajectories restored")
    if report.erased:
        typer.echo(f"{report.erased:,} were not: their users were erased")
    if report.outdated:
        typer.echo(f"{report.outdated:,} were not: newer rules have judged them since")


def erase(
    user: Annotated[str, typer.Option(help="The user's id, as agents publish it in task_context.user_id.")],
    opt_out: Annotated[bool, typer.Option(help="Also never store anything of this user again.")] = False,
) -> None:
    """Remove a user's data everywhere, for good; needs the NATS admin account. Says which models learnt from it."""
    from rl_pipeline.curation.forgetting import datasets_with_erased, forget_erased
    from rl_pipeline.ingestion.erasure import erase_user
    from rl_pipeline.opening import (
        archive_objects,
        current_settings,
        dataset_objects,
        every_redaction_key,
        memory_store,
        open_raw_objects,
        open_stream,
        open_warehouse,
        session_keys,
        training_directory,
    )
    from rl_pipeline.stores.opened_memories import open_memories
    from rl_pipeline.stores.topology import FEEDBACK, SERVING, TRAJECTORIES

    settings = current_settings()
    with (
        open_stream(settings) as messages,
        closing(open_warehouse(settings)) as tables,
        closing(open_memories(memory_store(settings))) as memories,
    ):
        report = erase_user(
            user,
            messages=messages,
            warehouse=tables,
            raw_objects=open_raw_objects(settings),
            archive_objects=archive_objects(settings).open(),
            memories=memories,
            keys=every_redaction_key(settings),
            session_keys=session_keys(settings),
            trajectory_stream=TRAJECTORIES.name,
            feedback_stream=FEEDBACK.name,
            serving_stream=SERVING.name,
            now=datetime.now(UTC),
            opt_out=opt_out,
        )
        # Also what an erasure before this one has left, if it was broken off.
        datasets = sorted({*report.datasets, *datasets_with_erased(tables)})
        _tell_what_learnt(tables, datasets)
        forget_erased(tables, dataset_objects(settings).open(), datetime.now(UTC), copies=training_directory(settings))
    typer.echo(
        f"erased {report.trajectories} trajectories, {report.archived} archived rows, {report.messages} messages, "
        f"{report.claims} large payloads, {report.dead_letters} dead letters, {report.feedback} feedback messages, "
        f"{report.outcomes} outcomes of sessions and {report.memories} memories"
    )
    if report.orphans:
        typer.echo(f"{report.orphans} repetitions by other users are ingested with what comes next")
    for dataset in datasets:
        typer.echo(f"dataset {dataset} was made with this user's data, and has none of it any more")
    if report.unreadable_claims:
        raise PipelineError(
            f"{len(report.unreadable_claims)} messages refer to payloads that could not be read, the first is "
            f"{report.unreadable_claims[0]}: repair the object store and run this again"
        )


def _tell_what_learnt(tables: "Warehouse", datasets: "list[str]") -> None:
    """Say which checkpoints and which jobs the datasets have gone on to: before these are changed, for nobody can find
    out afterwards."""
    from rl_pipeline.ingestion.holding import checkpoints_of
    from rl_pipeline.training.jobs.rows import unfinished_jobs

    for checkpoint in checkpoints_of(tables, datasets):
        typer.echo(f"checkpoint {checkpoint} has learnt from this user's data: decide whether to keep it")
    of_jobs = {dataset.rpartition(".")[0] for dataset in datasets}
    for job in unfinished_jobs(tables):
        if job.job_id in of_jobs:
            typer.echo(
                f"job {job.job_id} ({job.state}) may have learnt from this user's data already, and loses its copy of "
                f"it: `rl-pipeline cancel {job.job_id}` and ask again, or its next attempt goes on without the data"
            )


def _stream_of(source: Source) -> str:
    from rl_pipeline.ingestion.importing import IMPORTS
    from rl_pipeline.stores.topology import FEEDBACK, TRAINING, TRAJECTORIES

    streams = {Source.TRAJECTORIES: TRAJECTORIES, Source.FEEDBACK: FEEDBACK, Source.TRAINING: TRAINING}
    return streams[source].name if source in streams else IMPORTS


def _refused(tables: "Warehouse", source: Source, **narrowed: Any) -> "pl.DataFrame":
    """What is refused now of a stream that has a ledger, the newest first."""
    from rl_pipeline.ingestion.dead_letters import Ledger, list_dead_letters

    ledger: Ledger = "trajectory_feedback" if source is Source.FEEDBACK else "trajectory_ledger"
    return list_dead_letters(tables, _stream_of(source), ledger=ledger, **narrowed)


def _letters(
    messages: "JetStream", stream: str, *, reason: str | None, first: int | None, last: int | None
) -> "list[DeadLetter]":
    """The letters of what is in no ledger, such as requests and cancellations, the newest first."""
    from rl_pipeline.ingestion.dead_letters import NoDeadLetter, show_dead_letter

    found = []
    for sequence in _sequences_with_letters(messages, stream):
        if not (first or 0) <= sequence <= (last or _NO_LIMIT):
            continue
        try:
            letter = show_dead_letter(messages, stream, sequence)
        except NoDeadLetter:
            # It aged out since JetStream told its subject.
            continue
        if reason in (None, letter.reason):
            found.append(letter)
    return sorted(found, key=lambda letter: (letter.stream_time, letter.sequence), reverse=True)


def _sequences_with_letters(messages: "JetStream", stream: str) -> set[int]:
    """By the subjects of the letters: reading all letters would take long where another stream has many."""
    from rl_pipeline.ingestion.dead_letters import DEAD_LETTER_STREAM, sequence_of_dead_letter

    def page(offset: int) -> dict[str, int]:
        wanted = {"subjects_filter": f"agent.rl.dlq.{stream}.>", "offset": offset}
        return messages.request(f"STREAM.INFO.{DEAD_LETTER_STREAM}", wanted)["state"].get("subjects") or {}

    subjects: list[str] = []
    while found := page(len(subjects)):
        subjects += found
    sequences = (sequence_of_dead_letter(stream, subject) for subject in subjects)
    return {sequence for sequence in sequences if sequence is not None}


def _rules(settings: "Settings") -> dict[str, Any]:
    """Under which rules messages are judged."""
    from rl_pipeline.opening import previous_keys, redaction_policy

    return {"policy": redaction_policy(settings), "previous_keys": previous_keys(settings)}


def _told(report: "DrainReport") -> str:
    counts = [f"{count:,} {verdict}" for verdict, count in sorted(report.verdicts.items()) if count]
    counts += [f"{report.lost:,} LOST to the stream's retention"] if report.lost else []
    kept = f", {report.kept:,} gone from the stream and KEPT as older rules made them" if report.kept else ""
    return f"{', '.join(counts) or 'nothing new'}, {report.unchanged:,} unchanged{kept}"
