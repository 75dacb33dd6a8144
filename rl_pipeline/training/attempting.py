"""One attempt at a job, from its dataset to a program that has ended: the directory, the base model, the plan, the run.

What becomes of the model that it leaves is `delivering.py`'s.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rl_pipeline.errors import PipelineError
from rl_pipeline.training.checkpoints.manifest import CheckpointCorrupt
from rl_pipeline.training.checkpoints.storage import verify
from rl_pipeline.training.jobs.attempts import apply_changes, changes_of
from rl_pipeline.training.jobs.job import Attempt, Job
from rl_pipeline.training.launching.exits import Exit, has_result
from rl_pipeline.training.launching.failures import Failure, classify
from rl_pipeline.training.launching.launch import LaunchOutcome, launch
from rl_pipeline.training.plans.plan import TrainingPlan
from rl_pipeline.training.site import TrainingSite
from rl_pipeline.training.work_directory import WorkDirectory

PROGRAM = "rl_pipeline.training_program"


class TrainingFailed(PipelineError):
    """The attempt has failed; `failure` says of which kind, and the table of retries what follows."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(f"{failure.code}: {failure.message}")
        self.failure = failure


class TrainingStopped(PipelineError):
    """The attempt was stopped on request; its state is saved if it had come to a step."""


@dataclass(frozen=True)
class FinishedTraining:
    """A program that came to its end: its plan, where it worked, and what it says it reached."""

    plan: TrainingPlan
    work: WorkDirectory
    result: Mapping[str, Any]


def final_plan(first: TrainingPlan, attempts: Sequence[Attempt]) -> TrainingPlan:
    """The plan of the last of the attempts: the job's plan with all that was changed since the first."""
    changed = apply_changes(first, changes_of(attempts))
    return changed.model_copy(update={"attempt": attempts[-1].number})


def finished_before(site: TrainingSite, attempts: Sequence[Attempt]) -> FinishedTraining | None:
    """What an attempt before the last one trained to the end on the same dataset, if its model is there and whole.

    To train it once more, be it from the last state, would make another model of it: with another manifest, which
    cannot take the place of one that was released meanwhile.
    """
    *earlier, last = attempts
    follows = last.starts_from == "checkpoint"
    while follows and earlier:
        attempt = earlier.pop()
        work = site.directory(attempt.job_id, attempt.number)
        if has_result(work.attempt_directory):
            return _finished(work) if _is_whole(work.final) else None
        follows = attempt.starts_from == "checkpoint"
    return None


def lay_out(site: TrainingSite, job: Job, attempt: Attempt, plan: TrainingPlan, base: Path) -> WorkDirectory:
    """The attempt's directory with its plan, and the base model where the program looks for it. May be repeated."""
    work = site.directory(job.job_id, attempt.number)
    work.attempt_directory.mkdir(parents=True, exist_ok=True)
    work.checkpoints.mkdir(exist_ok=True)
    if work.base.resolve() != base.resolve():
        work.base.unlink(missing_ok=True)
        work.base.symlink_to(base.resolve(), target_is_directory=True)
    work.plan_file.write_text(plan.model_dump_json(indent=2))
    return work


def run_program(
    plan: TrainingPlan,
    work: WorkDirectory,
    site: TrainingSite,
    *,
    environment: Mapping[str, str],
    stop_requested: Callable[[], bool],
    on_progress: Callable[[Mapping[str, Any]], None],
) -> FinishedTraining:
    """Run the training program to its end. Raises `TrainingFailed` and `TrainingStopped`.

    An interrupt is passed on after the program had time to save its state and every process of it has ended.
    """
    outcome = launch(
        plan.distribution,
        ["-m", PROGRAM, "--work", str(work.root), "--attempt", str(work.attempt)],
        work.attempt_directory,
        environment=environment,
        operators_cache=site.operators,
        stall_seconds=site.stall_seconds,
        on_progress=on_progress,
        stop_requested=stop_requested,
    )
    failure = classify(outcome)
    if failure is not None:
        raise TrainingFailed(failure)
    if _was_stopped(outcome):
        raise TrainingStopped("the training was asked to stop and has saved its state")
    return _finished(work)


def _finished(work: WorkDirectory) -> FinishedTraining:
    plan = TrainingPlan.model_validate_json(work.plan_file.read_bytes())
    return FinishedTraining(plan, work, json.loads(work.result_file.read_text()))


def _is_whole(model: Path) -> bool:
    try:
        verify(model)
    except CheckpointCorrupt:
        return False
    return True


def _was_stopped(outcome: LaunchOutcome) -> bool:
    """A program that came to its end while it was being asked to stop has not been stopped."""
    return not (outcome.exit_code == Exit.DONE and outcome.has_result)
