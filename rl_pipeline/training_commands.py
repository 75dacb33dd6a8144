"""The commands around training jobs: ask for one, end one, see how they stand."""

from contextlib import closing
from datetime import UTC, datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any
from uuid import uuid4

import typer

from rl_pipeline.errors import PipelineError

if TYPE_CHECKING:
    from rl_pipeline.contracts import TrainingRequest

_REQUESTER = "admin-manual"


class Algorithm(StrEnum):
    """What can be trained with."""

    PPO = "ppo"
    DPO = "dpo"
    RLOO = "rloo"
    GRPO = "grpo"
    REINFORCE = "reinforce"
    SFT = "sft"


class Priority(StrEnum):
    """The order among waiting jobs."""

    LOW = "low"
    NORMAL = "normal"
    HIGH = "high"
    URGENT = "urgent"


class Source(StrEnum):
    """Where trajectories come from."""

    CLICKHOUSE = "clickhouse"
    NATS_STREAM = "nats_stream"
    S3 = "s3"
    LOCAL = "local"


def train(  # noqa: PLR0917  # Typer reads its options from here
    sentence: Annotated[
        str | None, typer.Argument(help="In words: 'Trigger training job with 10K samples from last 30 days'.")
    ] = None,
    algorithm: Annotated[Algorithm | None, typer.Option(help="Else RL_ALGORITHM.")] = None,
    base_model: Annotated[str | None, typer.Option(help="Else by RL_TRAIN_FROM.")] = None,
    samples: Annotated[int | None, typer.Option(min=1, help="Trajectories to use; else 10,000.")] = None,
    days: Annotated[int | None, typer.Option(min=1, help="Days to look back; else 30.")] = None,
    min_reward: Annotated[float | None, typer.Option(help="The least raw reward to imitate; else 0.5.")] = None,
    domains: Annotated[str | None, typer.Option(help="Shares, as coding=0.4,research=0.3,general=0.3.")] = None,
    source: Annotated[Source, typer.Option(help="Where the trajectories are.")] = Source.CLICKHOUSE,
    path: Annotated[str | None, typer.Option(help="Where to read from s3 or a local directory.")] = None,
    learning_rate: Annotated[float | None, typer.Option(help="Else 1e-5.")] = None,
    batch_size: Annotated[int | None, typer.Option(min=1, help="Trajectories per step; else 32.")] = None,
    epochs: Annotated[int | None, typer.Option(min=1, help="Passes over the dataset; else 3.")] = None,
    priority: Annotated[Priority | None, typer.Option(help="The order among waiting jobs; else high.")] = None,
    shadow: Annotated[bool, typer.Option("--shadow", help="Train and validate, and never deploy.")] = False,
    job: Annotated[str | None, typer.Option(help="The job's id; else manual- and a new UUID.")] = None,
    notes: Annotated[str | None, typer.Option(help="For people.")] = None,
) -> None:
    """Ask for a training job; it starts by itself when it is its turn."""
    from rl_pipeline.contracts import TrainingRequest
    from rl_pipeline.contracts.registry import validated
    from rl_pipeline.training.jobs.requests import PRIORITIES
    from rl_pipeline.training.spoken import spoken_request

    asked = {
        "training_config": {
            "algorithm": algorithm,
            "base_model": base_model,
            "dataset": {
                "source": source,
                "path": path,
                "sample_size": samples,
                "filter": {"last_days": days, "min_reward": min_reward, "domain_shares": _shares(domains)},
            },
            "hyperparameters": {"learning_rate": learning_rate, "batch_size": batch_size, "epochs": epochs},
        },
        "metadata": {"shadow": shadow or None, "notes": notes},
    }
    options = _without_none(asked)
    job_id, now = job or f"manual-{uuid4()}", datetime.now(UTC)
    if sentence is not None:
        if options != {"training_config": {"dataset": {"source": "clickhouse"}}} or priority is not None:
            raise PipelineError("say it in words or with options, not both")
        request = spoken_request(sentence, job_id=job_id, requester=_REQUESTER, now=now)
    else:
        if source in (Source.S3, Source.LOCAL) and path is None:
            raise PipelineError(f"say with --path where the files are that {source} has")
        order = PRIORITIES["manual"] if priority is None else str(priority)
        manual = {"requester": _REQUESTER, "trigger_reason": "manual", "priority": order}
        request = validated(TrainingRequest, {"training_job_id": job_id, "timestamp": now, **manual, **options})
    typer.echo(publish_request(request))


def cancel(
    job: Annotated[str, typer.Argument(help="The job's id.")],
    reason: Annotated[str | None, typer.Option(help="Why, for people.")] = None,
) -> None:
    """End a training job, wherever it stands; one that runs saves its state and stops at the end of its step."""
    from rl_pipeline.collection.publishing import outgoing_message
    from rl_pipeline.contracts import TrainingCancel
    from rl_pipeline.contracts.registry import validated
    from rl_pipeline.opening import current_settings, open_stream, open_warehouse
    from rl_pipeline.training.jobs.rows import find_job

    settings = current_settings()
    asked = {"training_job_id": job, "timestamp": datetime.now(UTC), "requester": _REQUESTER, "reason": reason}
    message = outgoing_message(validated(TrainingCancel, asked))
    with closing(open_warehouse(settings)) as tables:
        known = find_job(tables, job)
    if known is not None and known.is_final:
        raise PipelineError(f"the training job {job} is {known.state} already: there is nothing to cancel")
    with open_stream(settings) as stream:
        stream.publish(message.subject, message.data, message.message_id, message.headers)
    state = f"it is {known.state}" if known else "it is not known yet, the cancellation waits a minute for its request"
    typer.echo(f"asked to cancel {job}; {state}")


def jobs(
    job: Annotated[str | None, typer.Argument(help="A job's id, for its report and its attempts.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="At most so many, the newest first.")] = 20,
) -> None:
    """The training jobs and where each stands, or all that is known of one."""
    from rl_pipeline.observability.reports.training_job import complete_report
    from rl_pipeline.opening import current_settings, open_warehouse
    from rl_pipeline.training.jobs.rows import attempts_of, newest_jobs

    with closing(open_warehouse(current_settings())) as tables:
        if job is None:
            for found in newest_jobs(tables, limit):
                when = found.accepted_at.isoformat(timespec="seconds")
                shadow = "  shadow" if found.shadow else ""
                typer.echo(
                    f"{found.job_id:<44} {when}  {found.state:<10} {found.priority:<7} {found.trigger_reason:<24} "
                    f"{found.explanation}{shadow}".rstrip()
                )
            return
        report, attempts = complete_report(tables, job), attempts_of(tables, [job])[job]
    typer.echo(report.text())
    for attempt in attempts:
        ended = f"{attempt.outcome or 'open'} {attempt.failure_code or ''}".strip()
        changes = "" if attempt.changes == "{}" else f"  {attempt.changes}"
        typer.echo(
            f"attempt {attempt.number} from the {attempt.starts_from}: {ended}{changes}  {attempt.message}".rstrip()
        )


def publish_request(request: "TrainingRequest") -> str:
    """Publish a request; what a superior is told of it."""
    from rl_pipeline.collection.publishing import outgoing_message
    from rl_pipeline.opening import current_settings, open_stream, open_warehouse
    from rl_pipeline.stores.warehouse import WarehouseError, WarehouseUnavailable
    from rl_pipeline.training.jobs.reports import announcement, next_job_number

    settings = current_settings()
    message = outgoing_message(request)
    try:
        with closing(open_warehouse(settings)) as tables:
            name = f"#{next_job_number(tables)}"
    except (WarehouseUnavailable, WarehouseError):
        name = request.training_job_id  # the request is what counts, and a number is only for people
    with open_stream(settings) as stream:
        stream.publish(message.subject, message.data, message.message_id, message.headers)
    return f"{announcement(name, request.training_config.dataset.sample_size)}\n{request.training_job_id}"


def _shares(text: str | None) -> dict[str, float] | None:
    if text is None:
        return None
    try:
        return {name.strip(): float(share) for name, share in (pair.split("=") for pair in text.split(","))}
    except ValueError:
        raise PipelineError("write domains as coding=0.4,research=0.3,general=0.3") from None


def _without_none(tree: dict[str, Any]) -> dict[str, Any]:
    """The options that were given; what was left out takes the contract's defaults."""
    given = {
        name: _without_none(value) if isinstance(value, dict) else str(value) if isinstance(value, StrEnum) else value
        for name, value in tree.items()
        if value is not None
    }
    return {name: value for name, value in given.items() if value != {}}
