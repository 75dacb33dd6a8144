"""Every algorithm in the embedded stack; trainings that are cancelled, and trainings that give way."""

from collections.abc import Callable, Iterator
from math import sqrt
from pathlib import Path

import pytest

from rl_pipeline_tests.end_to_end.running_stack import run_command
from rl_pipeline_tests.end_to_end.training_stack import TrainingStack, trained, training_stack
from rl_pipeline_tests.waiting import wait_until

pytestmark = [pytest.mark.soak, pytest.mark.cplusplus]

# In so many episodes a success that rises by six points, as by DPO, is four standard errors of the difference away
# from one that does not.
MEASURED_EPISODES = 2000


@pytest.fixture(scope="module")
def training(tmp_path_factory: pytest.TempPathFactory, small_model: Path) -> Iterator[TrainingStack]:
    with training_stack(tmp_path_factory.mktemp("home"), small_model) as training:
        training.await_rewards()
        yield training


def cancel_by_command(training: TrainingStack, job: str) -> None:
    cancelled = run_command(training.stack.home, "cancel", job, "--reason", "a test")
    assert cancelled.returncode == 0, cancelled.stderr


def cancel_in_the_ui(training: TrainingStack, job: str) -> None:
    """What the button "Terminate" of the run's page sends."""
    run = training.attempts(job)[-1]["run_id"]
    terminate = (
        f'mutation {{ terminateRun(runId: "{run}", terminatePolicy: SAFE_TERMINATE) '
        "{ __typename ... on TerminateRunFailure { message } } }"
    )
    assert training.stack.graphql(terminate) == {"terminateRun": {"__typename": "TerminateRunSuccess"}}


@pytest.mark.timeout(600)
@pytest.mark.parametrize("cancel", [cancel_by_command, cancel_in_the_ui])
def test_a_cancelled_training_leaves_no_process_and_no_place_taken(
    training: TrainingStack, cancel: Callable[[TrainingStack, str], None]
) -> None:
    job = training.ask("--algorithm", "rloo", "--shadow")
    training.await_step(job)
    assert training.processes(job)
    cancel(training, job)
    training.await_end(job, "cancelled")
    wait_until(lambda: not training.processes(job), "the end of its processes")
    assert [status.status for status in training.statuses(job)][-1] == "cancelled"
    assert training.query("SELECT id FROM model_checkpoints FINAL WHERE job_id = {job:String}", job=job) == []


@pytest.mark.timeout(900)
def test_an_urgent_job_makes_a_running_one_give_way_which_then_goes_on(training: TrainingStack) -> None:
    low = training.ask("--algorithm", "rloo", "--priority", "low")
    training.await_step(low)
    urgent = training.ask("--algorithm", "sft", "--priority", "urgent")
    training.await_end(urgent, "completed")
    training.await_end(low, "completed")
    first, second = training.attempts(low)
    assert (first["outcome"], second["outcome"], second["starts_from"]) == ("preempted", "completed", "checkpoint")
    assert first["ended_at"] <= training.attempts(urgent)[0]["started_at"] <= second["started_at"]
    steps = [line["step"] for line in training.progress(low) if line.get("step")]
    assert steps == sorted(steps), "it went on where it had stopped"


@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    ("algorithm", "stage"),
    [("sft", 2), ("dpo", 2), ("rloo", 2), ("grpo", 2), ("ppo", 2), ("reinforce", 2), ("sft", 3), ("dpo", 3)],
)
def test_each_algorithm_improves_its_own_measure(
    training: TrainingStack, algorithm: str, stage: int, record_property: Callable[[str, object], None]
) -> None:
    job = training.request(algorithm, stage, MEASURED_EPISODES)
    result = trained(training, job, seconds=1500)
    base, final = (result[when]["success_sampled"] for when in ("base", "final"))
    noise = standard_error(base, final, MEASURED_EPISODES)
    said = f"{base:.3f} to {final:.3f} in {MEASURED_EPISODES} episodes, {(final - base) / noise:.1f} standard errors"
    record_property(f"held-out success by {algorithm} under ZeRO-{stage}", said)
    assert training.plan(job).evaluation.episodes == MEASURED_EPISODES
    assert result["zero_stage"] == stage
    assert result["measure"] == "success"
    assert result["improvement"] == pytest.approx(final - base)
    assert result["improvement"] > 2 * noise


def standard_error(base: float, final: float, episodes: int) -> float:
    """Of the difference of two shares of successes, or more than that: it is taken as if each episode was at a task
    drawn anew, and both shares are of the same tasks."""
    return sqrt((base * (1 - base) + final * (1 - final)) / episodes)
