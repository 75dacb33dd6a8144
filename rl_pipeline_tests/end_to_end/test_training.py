"""Training in the embedded stack, as its user meets it: it starts by itself, it can be watched, it can be stopped."""

import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import Any

import psutil
import pytest

from rl_pipeline.collection.publishing import outgoing_message
from rl_pipeline.contracts import TrainingRequest, TrainingStatus, Trajectory, parse_message
from rl_pipeline.embedded.record import settings_of_running_stack
from rl_pipeline.environments.crafting import CraftingWorld
from rl_pipeline.environments.recording import Recorder
from rl_pipeline.opening import open_stream, open_warehouse
from rl_pipeline.settings import Settings
from rl_pipeline.stores.object_addresses import open_objects
from rl_pipeline.training.releasing import download_checkpoint
from rl_pipeline.training.signing import PublicKeys
from rl_pipeline_tests.end_to_end.running_stack import RunningStack, run_command
from rl_pipeline_tests.waiting import wait_until

TASKS, ATTEMPTS = 80, 4
THRESHOLD = TASKS * ATTEMPTS
# A training takes half a minute: here one that no other test has, under `make soak` all of them.
CASES = [("sft", 3)]
if os.environ.get("RL_PIPELINE_SOAK"):
    CASES += [("sft", 2), ("grpo", 2), ("ppo", 2), ("reinforce", 2), ("dpo", 3)]
STATUS_SUBJECT = "agent.rl.training.status.v1"


def episodes_of(directory: Path, seed: int) -> list[Trajectory]:
    """Attempts of a model at crafting, several at each task."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from rl_pipeline.training.program.generation import play_with_model

    world = CraftingWorld()
    tasks = [task for task in world.tasks(TASKS, seed=seed, tiers=(1, 2)) for _ in range(ATTEMPTS)]
    model, tokenizer = AutoModelForCausalLM.from_pretrained(directory), AutoTokenizer.from_pretrained(directory)
    played = play_with_model(world, tasks, model, tokenizer, generator=torch.Generator().manual_seed(seed))
    recorder = Recorder(world, "crafting-agent", "embedded-small", "embedded-small-base", 1.0)
    return recorder.record([one.episode for one in played], start=datetime.now(UTC), randomness=Random(seed))


class TrainingStack:
    """A running stack, and what is asked of it here."""

    def __init__(self, stack: RunningStack) -> None:
        self.stack = stack
        self.settings = settings_of_running_stack(Settings(rl_pipeline_home=stack.home), stack.record)

    def query(self, sql: str, **parameters: Any) -> list[dict[str, Any]]:
        with closing(open_warehouse(self.settings)) as tables:
            return tables.query(sql, parameters).to_dicts()

    def publish_episodes(self, model: Path) -> None:
        """What the model does at tasks that it half knows: the experience that it learns from."""
        made = episodes_of(model, seed=1)
        with open_stream(self.settings) as stream:
            stream.publish_many(outgoing_message(one) for one in made)

    def ask(self, *arguments: str) -> str:
        """Ask for a training; the id of its job."""
        asked = run_command(self.stack.home, "train", *arguments)
        assert asked.returncode == 0, asked.stderr
        return asked.stdout.split()[-1]

    def request(self, algorithm: str, stage: int) -> str:
        """Ask by a message of one's own; the id of the job."""
        asked = {
            "training_job_id": f"{algorithm}-under-zero-{stage}",
            "timestamp": datetime.now(UTC),
            "requester": "tests",
            "trigger_reason": "manual",
            "training_config": {
                "algorithm": algorithm,
                "dataset": {"source": "nats_stream", "stream_name": "RL_TRAJECTORIES"},
                "compute": {"zero_stage": stage},
            },
        }
        message = outgoing_message(TrainingRequest.model_validate(asked))
        with open_stream(self.settings) as stream:
            stream.publish(message.subject, message.data, message.message_id)
        return message.message_id

    def state(self, job: str) -> str:
        found = self.query("SELECT state FROM training_jobs FINAL WHERE job_id = {job:String}", job=job)
        return str(found[0]["state"]) if found else ""

    def await_end(self, job: str, expected: str) -> None:
        def ended() -> str | None:
            state = self.state(job)
            return state if state in ("completed", "failed", "cancelled") else None

        assert wait_until(ended, f"the end of {job}", seconds=400) == expected, self.attempts(job)

    def attempts(self, job: str) -> list[dict[str, Any]]:
        return self.query("SELECT * FROM training_attempts FINAL WHERE job_id = {job:String} ORDER BY attempt", job=job)

    def result(self, job: str) -> dict[str, Any]:
        result: dict[str, Any] = json.loads(self.attempts(job)[-1]["result"])
        return result

    def statuses(self, job: str) -> list[TrainingStatus]:
        with open_stream(self.settings) as stream:
            last = stream.state("RL_TRAINING").last_sequence
            stored = [message for batch in stream.read("RL_TRAINING", 1, last, 500) for message in batch]
        found = [parse_message(one.subject, one.data) for one in stored if one.subject == STATUS_SUBJECT]
        return [one for one in found if isinstance(one, TrainingStatus) and one.training_job_id == job]

    def processes(self, job: str) -> list[psutil.Process]:
        """The processes of a job's program, whoever their parents are."""
        found = []
        for process in psutil.process_iter(["cmdline", "status"]):
            words = process.info["cmdline"] or []
            if any(job in word for word in words) and process.info["status"] != psutil.STATUS_ZOMBIE:
                found.append(process)
        return found

    def progress(self, job: str) -> list[dict[str, Any]]:
        files = sorted((self.stack.home / "training" / job).glob("attempt-*/progress.jsonl"))
        return [json.loads(line) for file in files for line in file.read_text().splitlines()]

    def await_step(self, job: str) -> None:
        wait_until(lambda: any(line.get("step") for line in self.progress(job)), f"a step of {job}", seconds=300)


@pytest.fixture(scope="module")
def training(tmp_path_factory: pytest.TempPathFactory, small_model: Path) -> Iterator[TrainingStack]:
    """A stack on which the threshold starts RLOO on the small model, in two processes under DeepSpeed."""
    stack = RunningStack(
        tmp_path_factory.mktemp("home"),
        RL_BASE_MODEL=str(small_model),
        RL_TRAINING_THRESHOLD=str(THRESHOLD),
        RL_ALGORITHM="rloo",
        TRAINING_PROCESSES="2",
    )
    try:
        stack.wait_for_line("The UI is at")
        training = TrainingStack(stack)
        training.publish_episodes(small_model)
        yield training
    finally:
        stack.end()


def trained(training: TrainingStack, job: str) -> dict[str, Any]:
    """The result of a job that must complete, really under DeepSpeed and in two processes."""
    training.await_end(job, "completed")
    result = training.result(job)
    assert (result["engine"], result["processes"]) == ("DeepSpeedEngine", 2)
    return result


@pytest.mark.cplusplus
@pytest.mark.timeout(900)
def test_enough_new_trajectories_start_a_training_that_ends_in_a_better_signed_checkpoint(
    training: TrainingStack, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    scored = "SELECT count() AS n FROM trajectory_rewards"
    wait_until(lambda: training.query(scored)[0]["n"] >= THRESHOLD, "rewards", seconds=200)
    crossed = time.time()
    jobs = "SELECT job_id FROM training_jobs FINAL WHERE trigger_reason = 'threshold_reached'"
    [job] = [row["job_id"] for row in wait_until(lambda: training.query(jobs), "a job of the threshold")]
    training.await_step(job)
    record_property("seconds from the threshold to the first step", round(time.time() - crossed))
    result = trained(training, job)
    assert (result["measure"], result["zero_stage"]) == ("success", 2)
    assert result["improvement"] > 0
    said = [status.status for status in training.statuses(job)]
    assert (said[0], said[-1]) == ("queued", "completed")
    assert "running" in said
    url = training.statuses(job)[-1].artifacts.final_checkpoint
    above, prefix = url.split(job)
    keys = PublicKeys.parse(training.settings.checkpoint_public_keys or "")
    manifest = download_checkpoint(open_objects(above), f"{job}{prefix}", tmp_path / "checkpoint", keys)
    assert {"model.safetensors", "MODEL_CARD.md", "curves.png", "training_plan.json"} <= manifest.files.keys()
    [row] = training.query("SELECT * FROM model_checkpoints FINAL WHERE job_id = {job:String}", job=job)
    assert (row["checkpoint_path"], row["is_best"], row["shadow"]) == (url, True, False)


@pytest.mark.cplusplus
@pytest.mark.timeout(600)
def test_preferences_are_learnt_from_the_same_trajectories(training: TrainingStack) -> None:
    result = trained(training, training.ask("--algorithm", "dpo"))
    assert result["final"]["preference_accuracy"] > result["base"]["preference_accuracy"]


@pytest.mark.cplusplus
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


@pytest.mark.cplusplus
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


@pytest.mark.soak
@pytest.mark.cplusplus
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(("algorithm", "stage"), CASES)
def test_each_algorithm_improves_its_own_measure(
    training: TrainingStack, algorithm: str, stage: int, record_property: Callable[[str, object], None]
) -> None:
    result = trained(training, training.request(algorithm, stage))
    record_property(f"{algorithm} under ZeRO-{stage}, {result['measure']}", f"{result['base']} to {result['final']}")
    assert result["zero_stage"] == stage
    measure = "preference_accuracy" if algorithm == "dpo" else "success_sampled"
    assert result["final"][measure] > result["base"][measure]
