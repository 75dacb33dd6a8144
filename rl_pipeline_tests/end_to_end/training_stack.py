"""A running stack that trains the small model, and what tests ask of it."""

import json
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil

from rl_pipeline.collection.publishing import outgoing_message
from rl_pipeline.contracts import TrainingRequest, TrainingStatus, parse_message
from rl_pipeline.embedded.record import settings_of_running_stack
from rl_pipeline.opening import open_stream, open_warehouse
from rl_pipeline.settings import Settings
from rl_pipeline.training.plans.plan import TrainingPlan
from rl_pipeline.training.small_model.experience import crafting_experience
from rl_pipeline_tests.end_to_end.running_stack import RunningStack, run_command
from rl_pipeline_tests.waiting import wait_until

TASKS, ATTEMPTS = 240, 4
EPISODES = TASKS * ATTEMPTS
STATUS_SUBJECT = "agent.rl.training.status.v1"


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
        made = crafting_experience(model, tasks=TASKS, attempts=ATTEMPTS, seed=1, start=datetime.now(UTC))
        with open_stream(self.settings) as stream:
            stream.publish_many(outgoing_message(one) for one in made)

    def await_rewards(self) -> None:
        """All that was published has its rewards."""
        scored = "SELECT count() AS n FROM trajectory_rewards"
        wait_until(lambda: self.query(scored)[0]["n"] >= EPISODES, "rewards", seconds=200)

    def ask(self, *arguments: str) -> str:
        """Ask for a training; the id of its job."""
        asked = run_command(self.stack.home, "train", *arguments)
        assert asked.returncode == 0, asked.stderr
        return asked.stdout.split()[-1]

    def request(self, algorithm: str, stage: int, episodes: int) -> str:
        """Ask by a message of one's own for a training that is measured in so many episodes; the id of the job."""
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
            "evaluation": {"episodes": episodes},
        }
        message = outgoing_message(TrainingRequest.model_validate(asked))
        with open_stream(self.settings) as stream:
            stream.publish(message.subject, message.data, message.message_id)
        return message.message_id

    def state(self, job: str) -> str:
        found = self.query("SELECT state FROM training_jobs FINAL WHERE job_id = {job:String}", job=job)
        return str(found[0]["state"]) if found else ""

    def await_end(self, job: str, expected: str, seconds: float = 400) -> None:
        def ended() -> str | None:
            state = self.state(job)
            return state if state in ("completed", "failed", "cancelled") else None

        assert wait_until(ended, f"the end of {job}", seconds) == expected, self.attempts(job)

    def attempts(self, job: str) -> list[dict[str, Any]]:
        return self.query("SELECT * FROM training_attempts FINAL WHERE job_id = {job:String} ORDER BY attempt", job=job)

    def plan(self, job: str) -> TrainingPlan:
        return TrainingPlan.model_validate_json(self.attempts(job)[-1]["plan"])

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
        return [json.loads(line) for file in files for line in file.read_text().split("\n")[:-1]]

    def await_step(self, job: str) -> None:
        wait_until(lambda: any(line.get("step") for line in self.progress(job)), f"a step of {job}", seconds=300)


@contextmanager
def training_stack(home: Path, model: Path) -> Iterator[TrainingStack]:
    """A stack that trains `model` in two processes under DeepSpeed, every time anew, and has the model's experience."""
    stack = RunningStack(home, RL_BASE_MODEL=str(model), RL_TRAIN_FROM="base", TRAINING_PROCESSES="2")
    try:
        stack.wait_for_line("The UI is at")
        training = TrainingStack(stack)
        training.publish_episodes(model)
        yield training
    finally:
        stack.end()


def trained(training: TrainingStack, job: str, seconds: float = 400) -> dict[str, Any]:
    """The result of a job that must complete in time, really under DeepSpeed and in two processes."""
    training.await_end(job, "completed", seconds)
    result = training.result(job)
    assert (result["engine"], result["processes"]) == ("DeepSpeedEngine", 2)
    return result
