"""What follows for a job from its attempts and from its run, case by case."""

from datetime import timedelta
from typing import Any, get_args

import pytest

from rl_pipeline.training.jobs.job import Attempt, Job, Phase, State
from rl_pipeline.training.jobs.reconciling import UNFINISHED, Reconciled, RunState, Step, cancel, reconcile
from rl_pipeline.training.jobs.statuses import Announcement
from rl_pipeline_tests.training.job_values import MINUTE, NOW, a_failure, a_job, a_plan, an_attempt

LATER = NOW + 5 * MINUTE
RUNS: tuple[RunState, ...] = get_args(RunState)


def looked_at(job: Job, *attempts: Attempt, run: RunState = "missing", is_held: bool = False) -> Reconciled:
    return reconcile(job, attempts, run, is_held=is_held, now=LATER)


def told(steps: tuple[Step, ...]) -> list[Any]:
    """The steps in short, in their order: statuses, states, and attempts with their outcomes."""
    return [
        step.status.status
        if isinstance(step, Announcement)
        else f"job {step.state}"
        if isinstance(step, Job)
        else f"attempt {step.number} {step.outcome or 'planned'}"
        for step in steps
    ]


def attempt_in(steps: tuple[Step, ...], number: int) -> Attempt:
    [found] = [step for step in steps if isinstance(step, Attempt) and step.number == number]
    return found


@pytest.mark.parametrize("state", ["accepted", "importing", "waiting"])
@pytest.mark.parametrize("run", RUNS)
def test_a_job_that_was_never_ready_has_nothing_to_conclude(state: State, run: RunState) -> None:
    assert looked_at(a_job(state=state), run=run) == Reconciled()


def test_a_job_that_becomes_ready_gets_its_first_attempt_once() -> None:
    job = a_job(state="ready")
    first = looked_at(job)
    assert told(first.steps) == ["attempt 1 planned"]
    assert attempt_in(first.steps, 1) == Attempt("job-1", 1, "dataset", not_before=job.accepted_at)
    assert looked_at(job, attempt_in(first.steps, 1)) == Reconciled()


def test_a_run_that_is_under_way_is_left_alone() -> None:
    for attempt in (an_attempt(), an_attempt(begun=True)):
        for run in UNFINISHED:
            assert looked_at(a_job(state="running"), attempt, run=run) == Reconciled()


def test_a_run_that_was_never_made_is_asked_for_again() -> None:
    attempt = an_attempt()
    assert looked_at(a_job(state="running"), attempt) == Reconciled(start=attempt)


def test_a_completed_attempt_completes_its_job_and_the_status_comes_before_the_row() -> None:
    done = an_attempt(begun=True).ended("completed", LATER)
    for run in RUNS:
        assert told(looked_at(a_job(state="running"), done, run=run).steps) == ["completed", "job completed"]


def test_what_completed_before_it_could_give_way_has_completed() -> None:
    done = an_attempt(begun=True).ended("completed", LATER)
    assert told(looked_at(a_job(state="preempting"), done).steps) == ["completed", "job completed"]


def test_a_failed_attempt_is_followed_by_the_next_which_is_planned_last() -> None:
    steps = looked_at(a_job(state="running"), a_failure("OOM", plan=a_plan())).steps
    assert told(steps) == ["queued", "job ready", "attempt 2 planned"]
    [queued] = [step for step in steps if isinstance(step, Announcement)]
    assert queued.message_id == "status/job-1/queued/2"
    assert queued.status.error is not None
    assert (queued.status.error.code, queued.status.error.message) == ("OOM", "it broke")
    following = attempt_in(steps, 2)
    assert (following.changes, following.starts_from) == ('{"halvings":1}', "checkpoint")


def test_a_failure_that_is_not_tried_again_fails_the_job_with_the_whole_traceback() -> None:
    steps = looked_at(a_job(state="running"), a_failure("UNKNOWN")).steps
    assert told(steps) == ["failed", "job failed"]
    [failed] = [step for step in steps if isinstance(step, Announcement)]
    assert failed.status.error is not None
    assert (failed.status.error.code, failed.status.error.traceback) == ("UNKNOWN", "…")
    assert "a person has to look" in str(failed.status.error.message)


def test_a_job_that_is_ready_after_a_failure_only_lacks_its_next_attempt() -> None:
    failure = a_failure("INFRA", plan=a_plan())
    whole = looked_at(a_job(state="running"), failure).steps
    rest = looked_at(a_job(state="ready"), failure).steps
    assert rest == (attempt_in(whole, 2),), "the same that would have been planned at once"


@pytest.mark.parametrize("code", ["UNKNOWN", "OOM"])
def test_a_job_that_is_ready_is_tried_again_even_if_it_would_no_longer_be_decided_so(code: str) -> None:
    steps = looked_at(a_job(state="ready"), a_failure(code)).steps
    assert told(steps) == ["attempt 2 planned"]


def test_a_run_that_vanished_counts_as_trouble_with_the_surroundings() -> None:
    steps = looked_at(a_job(state="running"), an_attempt(plan=a_plan())).steps
    assert told(steps) == ["attempt 1 failed", "queued", "job ready", "attempt 2 planned"]
    closed = attempt_in(steps, 1)
    assert (closed.failure_code, closed.message, closed.phase) == ("INFRA", "its run has vanished", Phase.CLOSED)
    assert attempt_in(steps, 2).not_before == LATER + timedelta(seconds=600)


@pytest.mark.parametrize("begun", [False, True])
def test_a_run_that_failed_without_a_word_counts_as_trouble_with_the_surroundings(begun: bool) -> None:
    steps = looked_at(a_job(state="running"), an_attempt(begun=begun), run="failed").steps
    assert told(steps) == ["attempt 1 failed", "queued", "job ready", "attempt 2 planned"]
    assert attempt_in(steps, 1).failure_code == "INFRA"


def test_a_run_that_succeeded_without_a_result_is_for_a_person() -> None:
    steps = looked_at(a_job(state="running"), an_attempt(begun=True), run="succeeded").steps
    assert told(steps) == ["attempt 1 failed", "failed", "job failed"]


@pytest.mark.parametrize("state", ["running", "preempting", "cancelling", "cancelled"])
@pytest.mark.parametrize("run", [run for run in RUNS if run not in UNFINISHED])
def test_nothing_is_concluded_while_the_program_still_holds_its_lease(state: State, run: RunState) -> None:
    assert looked_at(a_job(state=state), an_attempt(begun=True), run=run, is_held=True) == Reconciled()


def test_an_end_is_not_concluded_from_while_the_run_that_told_it_is_at_work() -> None:
    for attempt in (an_attempt(begun=True).ended("completed", LATER), a_failure("OOM")):
        assert looked_at(a_job(state="running"), attempt, run="started", is_held=True) == Reconciled()
        assert looked_at(a_job(state="running"), attempt, run="failed", is_held=True).steps, "it is over"


def test_a_run_that_somebody_cancelled_in_dagster_cancels_its_job() -> None:
    for attempt in (an_attempt(), an_attempt(begun=True)):
        steps = looked_at(a_job(state="running"), attempt, run="canceled").steps
        assert told(steps) == ["attempt 1 cancelled", "cancelled", "job cancelled"]
    by_itself = an_attempt(begun=True).ended("cancelled", LATER, message="stopped in the UI")
    assert told(looked_at(a_job(state="running"), by_itself).steps) == ["cancelled", "job cancelled"]


def test_a_job_that_gives_way_is_stopped_until_its_run_is_over_and_then_waits_for_its_turn() -> None:
    job, attempt = a_job(state="preempting"), an_attempt(plan=a_plan())
    for unfinished in UNFINISHED:
        assert looked_at(job, attempt, run=unfinished) == Reconciled(stop=attempt)
    saved = attempt.ended("preempted", LATER)
    for steps in (looked_at(job, saved).steps, looked_at(job, attempt, run="canceled").steps[1:]):
        assert told(steps) == ["queued", "job ready", "attempt 2 planned"]
        following = attempt_in(steps, 2)
        assert (following.starts_from, following.changes, following.not_before) == ("checkpoint", "{}", LATER)


@pytest.mark.parametrize("run", [run for run in RUNS if run not in UNFINISHED])
def test_a_job_that_gives_way_before_its_run_began_lost_nothing(run: RunState) -> None:
    steps = looked_at(a_job(state="preempting"), an_attempt(), run=run).steps
    assert told(steps) == ["attempt 1 preempted", "queued", "job ready", "attempt 2 planned"]
    assert attempt_in(steps, 2).starts_from == "dataset"


def test_a_failure_while_giving_way_is_treated_as_any_failure() -> None:
    steps = looked_at(a_job(state="preempting"), an_attempt(begun=True), run="failed").steps
    assert attempt_in(steps, 1).failure_code == "INFRA"


def test_a_cancelled_job_is_stopped_until_its_run_is_over_and_then_its_attempt_is_closed() -> None:
    job, attempt = a_job(state="cancelling"), an_attempt(begun=True)
    for unfinished in UNFINISHED:
        assert looked_at(job, attempt, run=unfinished) == Reconciled(stop=attempt)
    for run in ("missing", "canceled", "failed", "succeeded"):
        steps = looked_at(job, attempt, run=run).steps  # type: ignore[arg-type]
        assert told(steps) == ["attempt 1 cancelled", "cancelled", "job cancelled"]
    for outcome in ("failed", "preempted", "cancelled"):
        by_itself = attempt.ended(outcome, LATER)  # type: ignore[arg-type]
        assert told(looked_at(job, by_itself).steps) == ["cancelled", "job cancelled"]
    assert told(looked_at(job).steps) == ["cancelled", "job cancelled"]


def test_a_job_that_has_completed_before_its_cancellation_reached_it_has_completed() -> None:
    done = an_attempt(begun=True).ended("completed", LATER)
    assert told(looked_at(a_job(state="cancelling"), done).steps) == ["completed", "job completed"]


def test_the_planned_attempt_of_a_job_that_was_cancelled_is_closed() -> None:
    job = a_job(state="cancelled")
    assert told(looked_at(job, an_attempt()).steps) == ["attempt 1 cancelled"]
    assert looked_at(job, an_attempt().ended("cancelled", LATER)) == Reconciled()
    assert looked_at(job) == Reconciled()


def test_a_running_job_without_any_attempt_goes_back() -> None:
    assert told(looked_at(a_job(state="running")).steps) == ["job ready"]


@pytest.mark.parametrize("state", ["running", "preempting"])
def test_of_a_job_that_runs_it_is_said_that_it_is_cancelled_when_its_run_has_ended(state: State) -> None:
    steps = cancel(a_job(state=state), "ada", "wrong model", LATER)
    assert told(steps) == ["job cancelling"]
    assert isinstance(steps[0], Job)
    assert cancel(steps[0], "ada", "wrong model", LATER) == ()
    [*_, ended] = looked_at(steps[0], an_attempt(begun=True), run="canceled").steps
    assert isinstance(ended, Job)
    assert ended.explanation == "cancelled by ada: wrong model"


@pytest.mark.parametrize("state", ["accepted", "importing", "waiting", "ready"])
def test_a_job_that_waits_is_cancelled_at_once_and_the_row_comes_before_the_status(state: State) -> None:
    steps = cancel(a_job(state=state), "ada", "wrong model", LATER)
    assert told(steps) == ["job cancelled", "cancelled"]
    assert isinstance(steps[0], Job)
    assert steps[0].explanation == "cancelled by ada: wrong model"


@pytest.mark.parametrize("state", ["completed", "failed"])
def test_cancelling_what_has_ended_changes_nothing(state: State) -> None:
    assert cancel(a_job(state=state), "ada", None, LATER) == ()


def test_cancelling_again_says_again_what_was_said() -> None:
    job = a_job(state="ready")
    first, again = cancel(job, "ada", None, LATER), cancel(job.moved("cancelled", "by ada", LATER), "ada", None, LATER)
    assert told(again) == ["cancelled"]
    assert isinstance(first[1], Announcement)
    assert isinstance(again[0], Announcement)
    assert first[1].message_id == again[0].message_id
