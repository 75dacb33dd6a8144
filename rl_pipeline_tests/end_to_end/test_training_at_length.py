"""Every algorithm in the embedded stack; trainings that are cancelled, and trainings that give way."""

from collections.abc import Callable

import pytest

from rl_pipeline_tests.end_to_end.running_stack import run_command
from rl_pipeline_tests.end_to_end.training_stack import TrainingStack, trained
from rl_pipeline_tests.waiting import wait_until

pytestmark = [pytest.mark.soak, pytest.mark.cplusplus]


@pytest.mark.timeout(600)
def test_preferences_are_learnt_from_the_same_trajectories(training: TrainingStack) -> None:
    result = trained(training, training.ask("--algorithm", "dpo"))
    assert result["final"]["preference_accuracy"] > result["base"]["preference_accuracy"]


@pytest.mark.timeout(600)
def test_a_cancelled_training_leaves_no_process_and_no_place_taken(training: TrainingStack) -> None:
    job = training.ask("--algorithm", "rloo", "--shadow")
    training.await_step(job)
    assert training.processes(job)
    cancelled = run_command(training.stack.home, "cancel", job, "--reason", "a test")
    assert cancelled.returncode == 0, cancelled.stderr
    training.await_end(job, "cancelled")
    wait_until(lambda: not training.processes(job), "the end of its processes")
    assert "cancelled" in [status.status for status in training.statuses(job)]
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
    ("algorithm", "stage"), [("sft", 2), ("grpo", 2), ("ppo", 2), ("reinforce", 2), ("sft", 3), ("dpo", 3)]
)
def test_each_algorithm_improves_its_own_measure(
    training: TrainingStack, algorithm: str, stage: int, record_property: Callable[[str, object], None]
) -> None:
    result = trained(training, training.request(algorithm, stage))
    record_property(f"{algorithm} under ZeRO-{stage}, {result['measure']}", f"{result['base']} to {result['final']}")
    assert result["zero_stage"] == stage
    measure = "preference_accuracy" if algorithm == "dpo" else "success_sampled"
    assert result["final"][measure] > result["base"][measure]
