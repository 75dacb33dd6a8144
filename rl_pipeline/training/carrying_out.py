"""An attempt from its first to its last word: train, deliver, and say in its row how it ended, whatever happens."""

import logging
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from rl_pipeline.contracts.training_status import FailureCode
from rl_pipeline.curation.datasets import DatasetDamaged, StoredDataset, fetch_dataset, newest_dataset
from rl_pipeline.curation.manifest import ManifestUnreadable
from rl_pipeline.errors import PipelineError
from rl_pipeline.stores.lease import KeptLease, LeaseLost
from rl_pipeline.stores.objects import CorruptObject, ObjectMissing, Objects, ObjectsUnavailable
from rl_pipeline.stores.stream import StreamUnavailable
from rl_pipeline.stores.tracker import Tracker
from rl_pipeline.stores.warehouse import Warehouse, WarehouseUnavailable
from rl_pipeline.training.attempting import (
    FinishedTraining,
    TrainingFailed,
    TrainingStopped,
    final_plan,
    finished_before,
    lay_out,
    run_program,
)
from rl_pipeline.training.checkpoints.manifest import CheckpointCorrupt
from rl_pipeline.training.checkpoints.model_card import CardDataset
from rl_pipeline.training.checkpoints.releasing import ReleasedCheckpoint
from rl_pipeline.training.checkpoints.signing import SigningKey
from rl_pipeline.training.checkpoints.storage import CheckpointStorageFailed
from rl_pipeline.training.delivering import (
    NobodySigns,
    Registration,
    describe,
    has_stored,
    make_room,
    record,
    register,
    result_of,
    store,
    withdraw,
)
from rl_pipeline.training.jobs.attempts import GiveUp, after_failure, outcome_of_stop
from rl_pipeline.training.jobs.job import Attempt, Job
from rl_pipeline.training.jobs.rows import (
    JobCancelled,
    attempts_of,
    check_wanted,
    end_attempt,
    job_of,
    keep_plan,
    quarantine,
)
from rl_pipeline.training.launching.failures import Failure
from rl_pipeline.training.leftovers import remove_what_was_delivered
from rl_pipeline.training.plans.base_models import BaseModels, HubUnreachable, is_signed
from rl_pipeline.training.plans.deepspeed_config import memory_estimate
from rl_pipeline.training.plans.machine import inspect_machine
from rl_pipeline.training.plans.model_size import size_of_model
from rl_pipeline.training.plans.plan import TrainingPlan
from rl_pipeline.training.plans.planning import DatasetFacts, plan_of, with_memory
from rl_pipeline.training.plans.presets import preset_of
from rl_pipeline.training.program.listeners import LogLines
from rl_pipeline.training.program.reporting import FIGURES
from rl_pipeline.training.site import TrainingSite

# Of smaller models the estimator's own import takes more time and memory than what it would tell.
_WORTH_AN_ESTIMATE = 100_000_000
# What passes by itself: the next attempt finds it gone, fetches once more what was damaged, or trains it again. While
# somebody is erased from a dataset, it is not what its row says, and files that it had are missing.
_PASSING = (
    ObjectsUnavailable,
    ObjectMissing,
    CorruptObject,
    ManifestUnreadable,
    DatasetDamaged,
    StreamUnavailable,
    WarehouseUnavailable,
    HubUnreachable,
    CheckpointStorageFailed,
    CheckpointCorrupt,
    LeaseLost,
    OSError,
)

_log = logging.getLogger(__name__)


class NothingToTrain(PipelineError):
    """A job whose request was never completed with what is to be trained."""


@dataclass(frozen=True)
class AttemptRun:
    """An attempt that has begun, and what it is carried out with."""

    job: Job
    attempts: tuple[Attempt, ...]
    site: TrainingSite
    tables: Warehouse
    base_models: BaseModels
    datasets: Objects
    models: Objects
    tracker: Tracker
    signing_key: SigningKey | None
    lease: KeptLease
    environment: Mapping[str, str]
    """Of the training program."""
    tell: Callable[[str], None]
    """Lines for the run's log."""
    hear: Callable[[Mapping[str, Any]], None] = lambda _: None
    """Every line of the program's progress, for whoever follows it."""

    @property
    def attempt(self) -> Attempt:
        """The one that runs."""
        return self.attempts[-1]


@dataclass(frozen=True)
class CompletedAttempt:
    """A checkpoint, and all that people want to know of it."""

    plan: TrainingPlan
    result: Mapping[str, Any]
    released: ReleasedCheckpoint
    registration: Registration
    dataset_id: str
    curves: bytes
    attempts: tuple[Attempt, ...]
    shadow: bool


def carry_out_attempt(run: AttemptRun, *, is_canceling: Callable[[], bool]) -> CompletedAttempt:
    """Train and deliver; see `ending_in_its_row` for what it raises.

    What an earlier attempt has trained and could not deliver is delivered as it is.
    """
    try:
        with ending_in_its_row(run.tables, run.attempt, is_canceling):
            return _completed(run, is_canceling)
    except BaseException:
        _withdraw_if_given_up(run)
        _end_for_people(run)
        raise


@contextmanager
def ending_in_its_row(tables: Warehouse, attempt: Attempt, is_canceling: Callable[[], bool]) -> Iterator[None]:
    """Whatever breaks the block, the attempt's row says so when it is left.

    Raises `TrainingFailed` or `TrainingStopped`; an interrupt goes on its way.
    """
    try:
        yield
    except TrainingFailed as failed:
        _end_failed(tables, attempt, failed.failure)
        raise
    except TrainingStopped as stopped:
        # Nobody but a lost lease asks the program itself to stop.
        _end_failed(tables, attempt, Failure("INFRA", str(stopped)))
        raise
    except JobCancelled as cancelled:
        end_attempt(tables, attempt, "cancelled", datetime.now(UTC), message=str(cancelled))
        raise TrainingStopped(str(cancelled)) from cancelled
    except Exception as broken:
        known = isinstance(broken, PipelineError)
        code: FailureCode = "INFRA" if isinstance(broken, _PASSING) else "UNKNOWN"
        message = str(broken) if known else f"{type(broken).__name__}: {broken}"
        failure = Failure(code, message, traceback.format_exc())
        _end_failed(tables, attempt, failure)
        raise TrainingFailed(failure) from broken
    except BaseException:
        state = job_of(tables, attempt.job_id).state
        outcome, code_of_stop = outcome_of_stop(state, run_is_canceling=is_canceling())
        message = "the run was interrupted"
        end_attempt(tables, attempt, outcome, datetime.now(UTC), failure_code=code_of_stop, message=message)
        raise


def _withdraw_if_given_up(run: AttemptRun) -> None:
    """Of a job that has failed for good nothing stays released. What cannot be withdrawn now is withdrawn at night."""
    job = run.job
    try:
        attempts = attempts_of(run.tables, [job.job_id])[job.job_id]
        has_failed = bool(attempts) and attempts[-1].outcome == "failed"
        if has_failed and isinstance(after_failure(attempts), GiveUp) and has_stored(run.models, job):
            run.lease.confirm()
            withdraw(run.tables, run.models, run.tracker, job, datetime.now(UTC))
    except (PipelineError, OSError) as unanswered:
        _log.warning("a checkpoint of %s may be left until the night: %s", job.job_id, unanswered)


def _end_for_people(run: AttemptRun) -> None:
    """Let the attempt's run in the tracker end as its row does: a program that was killed has not said so itself."""
    job_id, number = run.job.job_id, run.attempt.number
    try:
        rows = attempts_of(run.tables, [job_id])[job_id]
        outcome = next((row.outcome for row in rows if row.number == number), None)
        run.tracker.end_run(job_id, number, outcome or "failed")
    except PipelineError as unanswered:
        _log.warning("the tracker may show attempt %d of %s as running: %s", number, job_id, unanswered)


def _completed(run: AttemptRun, is_canceling: Callable[[], bool]) -> CompletedAttempt:
    finished = finished_before(run.site, run.attempts)
    is_new = finished is None
    if finished is None:
        finished, dataset = _train(run)
    else:
        dataset = newest_dataset(run.tables, run.job.job_id)
        keep_plan(run.tables, run.attempt, finished.plan)
    run.tell(f"trained {finished.result['steps']} steps in {finished.result['seconds']:.0f} s; storing the checkpoint")
    # From here on others see what was made: not for a job that was cancelled, nor if another run is at it.
    run.lease.confirm()
    check_wanted(run.tables, run.job.job_id)
    curves = describe(finished, _card(dataset), _lineage(run.job, finished, dataset))
    with _withdrawn_if_cancelled(run, is_canceling):
        if is_new:
            make_room(run.tables, run.models, run.job)
        released = store(finished, run.job, run.models, run.signing_key)
        record(run.tables, finished, run.job, dataset.dataset_id, released)
        registration = register(run.tracker, finished, run.job, dataset.dataset_id, released)
    result = result_of(finished, released, run.site, dataset.trajectories)
    ended = end_attempt(run.tables, run.attempt, "completed", datetime.now(UTC), result=result)
    remove_what_was_delivered(finished.work)
    return CompletedAttempt(
        plan=finished.plan,
        result=result,
        released=released,
        registration=registration,
        dataset_id=dataset.dataset_id,
        curves=curves,
        attempts=(*run.attempts[:-1], ended),
        shadow=run.job.shadow,
    )


@contextmanager
def _withdrawn_if_cancelled(run: AttemptRun, is_canceling: Callable[[], bool]) -> Iterator[None]:
    """A delivery that breaks is ended by the next attempt; of a job that was cancelled nothing stays released."""
    try:
        yield
    except BaseException as broken:
        job = job_of(run.tables, run.job.job_id)
        # Who cancels the run in the UI has told Dagster alone: the job's row learns of it from this attempt's end.
        stopped = not isinstance(broken, Exception)
        if not job.is_wanted or (
            stopped and outcome_of_stop(job.state, run_is_canceling=is_canceling())[0] == "cancelled"
        ):
            withdraw(run.tables, run.models, run.tracker, run.job, datetime.now(UTC))
        raise


def _train(run: AttemptRun) -> tuple[FinishedTraining, StoredDataset]:
    """What was trained, and on what."""
    job, site = run.job, run.site
    asked = job.request.training_config
    if asked.algorithm is None or asked.base_model is None:
        raise NothingToTrain(f"the job {job.job_id} names no algorithm or no base model: ask for another")
    if run.signing_key is None:
        # It would be found out by `store`, after all the work.
        raise NobodySigns("no key signs checkpoints: put <key id>:<private key> into CHECKPOINT_SIGNING_KEY, ask again")
    base = run.base_models.find(asked.base_model, run.models)
    work = site.directory(job.job_id, run.attempt.number)
    # Not before: to find the model may take hours, and an erasure meanwhile changes the dataset.
    dataset = newest_dataset(run.tables, job.job_id)
    fetch_dataset(run.datasets, dataset, work.dataset)
    machine, size = inspect_machine(run.environment), size_of_model(base)
    first = plan_of(
        job.request,
        algorithm=asked.algorithm,
        base_model=asked.base_model,
        preset=preset_of(asked.base_model, size.parameters),
        machine=machine,
        site=site,
        dataset=_facts(dataset),
    )
    plan = final_plan(first, run.attempts)
    if plan.distribution.deepspeed and size.parameters >= _WORTH_AN_ESTIMATE:
        plan = with_memory(plan, memory_estimate(plan, size), machine)
    if asked.base_model.startswith("s3://") and not is_signed(base):
        plan = plan.model_copy(update={"notes": (*plan.notes, f"Nobody has signed the base model {asked.base_model}.")})
    keep_plan(run.tables, run.attempt, plan)
    lay_out(site, job, run.attempt, plan, base)
    for note in plan.notes:
        run.tell(note)
    finished = run_program(
        plan,
        work,
        site,
        environment=run.environment,
        stop_requested=run.lease.lost.is_set,
        on_progress=_followed(run, plan),
    )
    return finished, dataset


def _followed(run: AttemptRun, plan: TrainingPlan) -> Callable[[Mapping[str, Any]], None]:
    """What is done with a line of progress. A program on several nodes cannot reach the run's log by itself."""
    if plan.distribution.nodes == 1:
        return run.hear
    lines = LogLines(run.tell)

    def told(line: Mapping[str, Any]) -> None:
        run.hear(line)
        lines.hear(line, {name: line[name] for name in FIGURES if name in line})

    return told


def _facts(dataset: StoredDataset) -> DatasetFacts:
    train = dataset.trajectories - dataset.holdout
    return DatasetFacts(train, dataset.holdout, dataset.environment, dataset.manifest_url)


def _end_failed(tables: Warehouse, attempt: Attempt, failure: Failure) -> None:
    now = datetime.now(UTC)
    if failure.trajectory_ids:
        quarantine(tables, attempt.job_id, failure.trajectory_ids, failure.message, now)
    end_attempt(
        tables,
        attempt,
        "failed",
        now,
        failure_code=failure.code,
        message=failure.message,
        traceback=failure.traceback,
        result={"quarantined": len(failure.trajectory_ids)},
    )


def _card(dataset: StoredDataset) -> CardDataset:
    return CardDataset(
        dataset_id=dataset.dataset_id,
        manifest_hash=dataset.manifest_hash,
        url=dataset.manifest_url,
        trajectories=dataset.trajectories,
        holdout=dataset.holdout,
        domains=dataset.domains,
        selection=dataset.selection,
        rewards=dataset.rewards,
    )


def _lineage(job: Job, finished: FinishedTraining, dataset: StoredDataset) -> dict[str, str | None]:
    request = job.request
    return {
        "training job": job.job_id,
        "asked for by": request.requester,
        "because": request.trigger_reason,
        "dataset": dataset.dataset_id,
        "base model": request.training_config.base_model,
        "continues": request.metadata.previous_training_job,
        "attempt": str(finished.plan.attempt),
    }
