"""The commands around models in service: how things stand, and what a person can order."""

import getpass
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer

from rl_pipeline.errors import PipelineError

if TYPE_CHECKING:
    from rl_pipeline.deployment.commands import Commands
    from rl_pipeline.deployment.state import DesiredState, Phase, Rollout
    from rl_pipeline.deployment.windows import Window
    from rl_pipeline.settings import Settings
    from rl_pipeline.stores.warehouse import Warehouse

deployment = typer.Typer(
    invoke_without_command=True, help="The model in service and the one on its way: how they stand, and orders."
)
Reason = Annotated[str, typer.Option(help="Why, for the audit.")]


@deployment.callback()
def show(context: typer.Context) -> None:
    """Say who serves what share, where the rollout stands, and what its evidence says."""
    from rl_pipeline.deployment import record
    from rl_pipeline.opening import current_settings, open_stream, open_traffic
    from rl_pipeline.stores.jetstream_desired_state import JetStreamDesiredStates

    if context.invoked_subcommand is not None:
        return
    settings = current_settings()
    with open_stream(settings) as stream:
        recorded = record.read(JetStreamDesiredStates(stream))
    if recorded is None:
        raise PipelineError("nothing is deployed yet: start the stack, or name a model with `deployment create`")
    state = recorded.state
    typer.echo(described(state))
    if state.rollout and state.phase != "awaiting_approval":
        typer.echo(_judged(settings, state.rollout, state.phase))
    for standing in open_traffic(settings).standings():
        weights = ", ".join(f"{model} {weight:.0%}" for model, weight in sorted(standing.weights.items()))
        fenced = "".join(f"; {model} is fenced: {reason}" for model, reason in standing.fenced.items())
        typer.echo(f"{standing.gateway} follows generation {standing.generation}: {weights}{fenced}")


@deployment.command()
def create(
    model: Annotated[str, typer.Argument(help="The model's id; what gateways serve from the start.")],
    endpoint: Annotated[str | None, typer.Option(help="An OpenAI-compatible server that has it.")] = None,
    checkpoint: Annotated[str | None, typer.Option(help="Its directory or address, else RL_BASE_MODEL's.")] = None,
) -> None:
    """Name the first model in service."""
    from rl_pipeline.deployment.state import ServedModel

    with _commands() as commands:
        served = ServedModel(model_id=model, base_model=model, checkpoint_path=checkpoint, endpoint=endpoint)
        typer.echo(described(commands.create(served, "the first model in service")))


@deployment.command()
def approve(reason: Reason = "approved by a person") -> None:
    """Let the candidate in that waits for it."""
    with _commands() as commands:
        typer.echo(described(commands.approve(reason)))


@deployment.command()
def abort(reason: Reason = "a person does not want it") -> None:
    """Send the candidate away that waits for an approval."""
    with _commands() as commands:
        typer.echo(described(commands.abort(reason)))


@deployment.command()
def promote(
    model: Annotated[str, typer.Argument(help="The candidate's id.")],
    reason: Reason = "promoted by a person",
) -> None:
    """Give the candidate all of the traffic, or end its bake, whatever the evidence says."""
    with _commands() as commands:
        typer.echo(described(commands.promote(reason, model_id=model)))


@deployment.command("roll-back")
def roll_back(
    model: Annotated[str | None, typer.Argument(help="The model, where it is not the candidate.")] = None,
    reason: Reason = "taken back by a person",
) -> None:
    """Take the candidate out at once, or the model in service if it is named. It is never raised again.

    The gateways are told first; NATS and ClickHouse may be away, and the record of it is then written later.
    """
    from rl_pipeline.deployment.desk import RecordPending

    with _commands() as commands:
        try:
            typer.echo(described(commands.roll_back(reason, model_id=model)))
        except RecordPending as pending:
            if not pending.is_fenced:
                raise
            typer.echo(str(pending))


@deployment.command()
def freeze(reason: Reason = "frozen by a person") -> None:
    """Let nothing advance; rollbacks go on."""
    with _commands() as commands:
        typer.echo(described(commands.freeze(reason)))


@deployment.command()
def unfreeze(reason: Reason = "released by a person") -> None:
    """Let rollouts advance again."""
    with _commands() as commands:
        typer.echo(described(commands.unfreeze(reason)))


@deployment.command("ab-test")
def ab_test(
    job: Annotated[str, typer.Argument(help="The training job whose model is compared with the one in service.")],
    share: Annotated[float, typer.Option(min=0.01, max=0.99, help="Its share of the sessions.")] = 0.5,
    reason: Reason = "an A/B test",
) -> None:
    """Hold a fixed split between a validated model and the one in service, until somebody ends it."""
    from rl_pipeline.deployment.releases import Releases
    from rl_pipeline.deployment.strategy import ramp
    from rl_pipeline.opening import current_settings, open_warehouse, rollout_terms

    settings = current_settings()
    terms = rollout_terms(settings)
    if not terms.splits:
        raise PipelineError("a single backend cannot split traffic: an A/B test needs a gateway (TRAFFIC_CONTROLLER)")
    with closing(open_warehouse(settings)) as tables:
        release = Releases(tables).of_job(job)
    if release is None:
        raise PipelineError(f"the job {job} has no validated model: see validation_reports in the UI")
    if release.state == "refused":
        raise PipelineError(f"{release.model.model_id} was refused ({release.explanation}): test another model")
    with _commands() as commands:
        state = commands.start_ab_test(
            release.model,
            share,
            reason,
            deployment_id=release.deployment_id,
            bake_seconds=settings.canary_bake_hours * 3600,
            recheck=ramp("canary", terms.initial_traffic, terms.ramp_hours, terms.step_samples)[-1],
            validation=release.validation,
        )
    typer.echo(described(state))


@deployment.command("ab-report")
def ab_report(
    model: Annotated[
        str | None, typer.Argument(help="The model that was tested, where it is not the last one.")
    ] = None,
) -> None:
    """What an A/B test has found, while it goes on and afterwards."""
    from rl_pipeline.deployment.ab_tests import last_test, report_text
    from rl_pipeline.opening import current_settings, open_warehouse

    settings = current_settings()
    with closing(open_warehouse(settings)) as tables:
        rollout = last_test(tables, model)
        if rollout is None:
            raise PipelineError(f"there was no A/B test{f' of {model}' if model else ''}: start one with `ab-test`")
        typer.echo(report_text(rollout, _windows(settings, tables, rollout, datetime.now(UTC))))


@deployment.command("verify-audit")
def verify_audit() -> None:
    """Walk the chain of all changes; exit code 1 and the first break where it is broken."""
    from rl_pipeline.deployment import audit, record
    from rl_pipeline.opening import current_settings, open_stream, open_warehouse
    from rl_pipeline.stores.jetstream_desired_state import JetStreamDesiredStates

    settings = current_settings()
    with open_stream(settings) as stream, closing(open_warehouse(settings)) as tables:
        verification = audit.verify_audit(tables, record.read(JetStreamDesiredStates(stream)))
    typer.echo(str(verification))
    if not verification.holds:
        raise typer.Exit(1)


def explain(
    name: Annotated[str, typer.Argument(help="A served answer's id, a session, a trajectory or a model.")],
) -> None:
    """From an answer to its model, checkpoint, dataset, trajectories, rewards and rules."""
    from rl_pipeline.deployment import lineage
    from rl_pipeline.opening import current_settings, open_warehouse, session_keys

    settings = current_settings()
    with closing(open_warehouse(settings)) as tables:
        typer.echo(lineage.explain(tables, name, session_keys=session_keys(settings)).text())


def described(state: "DesiredState") -> str:
    """A state in a few lines for people."""
    weights = ", ".join(f"{model} {weight:.0%}" for model, weight in sorted(state.weights.items()))
    lines = [f"generation {state.generation}, {state.phase}: {weights}"]
    if state.frozen:
        lines.append(f"frozen: {state.frozen}")
    if state.rollout:
        rollout = state.rollout
        lines.append(
            f"{rollout.candidate} against {rollout.control} by {rollout.strategy}, step {rollout.step + 1} of "
            f"{len(rollout.steps)} since {rollout.step_since:%Y-%m-%d %H:%M:%S} UTC"
        )
    change = state.change
    when = f"{change.at:%Y-%m-%d %H:%M:%S} UTC"
    lines.append(f"last change: {change.event} {change.model_id} by {change.by}, {when}: {change.reason}")
    return "\n".join(lines)


def _judged(settings: "Settings", rollout: "Rollout", phase: "Phase") -> str:
    """What the evidence says at this moment, and when the candidate can have all of the traffic."""
    from rl_pipeline.deployment.ab_tests import report_text
    from rl_pipeline.deployment.judging import judge
    from rl_pipeline.opening import open_warehouse, rollout_limits
    from rl_pipeline.stores.warehouse import WarehouseError, WarehouseUnavailable

    now = datetime.now(UTC)
    try:
        with closing(open_warehouse(settings)) as tables:
            windows = _windows(settings, tables, rollout, now)
    except (WarehouseUnavailable, WarehouseError) as trouble:
        return f"its evidence cannot be read now: {trouble}"
    judgement = judge(rollout, phase, windows, now, mode="full", limits=rollout_limits(settings))
    finish = judgement.evidence["expected_finish"]
    expected = f"; expected to finish at {datetime.fromisoformat(finish):%Y-%m-%d %H:%M} UTC" if finish else ""
    report = f"\n{report_text(rollout, windows)}" if phase == "testing" else ""
    return f"{judgement.verdict.replace('_', ' ')}: {judgement.explanation}{expected}{report}"


def _windows(settings: "Settings", tables: "Warehouse", rollout: "Rollout", now: datetime) -> "list[Window]":
    from rl_pipeline.deployment.outcomes import windows_of
    from rl_pipeline.opening import rollout_clock, session_keys

    return windows_of(tables, rollout, now, clock=rollout_clock(settings), session_keys=session_keys(settings))


@contextmanager
def _commands() -> "Iterator[Commands]":
    from rl_pipeline.deployment.commands import Commands
    from rl_pipeline.opening import current_settings, open_desk

    with open_desk(current_settings()) as desk:
        yield Commands(desk, f"{getpass.getuser()} by command", datetime.now(UTC))
