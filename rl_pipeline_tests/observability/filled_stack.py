"""Real servers on which something of everything has happened, brought about by the pipeline's own code.

Trajectories were published, ingested by Dagster's assets and scored, some refused; users have said something; jobs were
asked for, and their attempts ended, only without the hours of training in between; models were validated, released,
served by a gateway of their own, compared, and one was rolled back.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, get_args

import dagster as dg

from rl_pipeline.assets.redacted_trajectories import raw_and_redacted_trajectories
from rl_pipeline.assets.trajectory_rewards import trajectory_rewards
from rl_pipeline.assets.trajectory_stream import trajectory_stream
from rl_pipeline.contracts import Feedback, TrainingStatus, serialize
from rl_pipeline.contracts.trajectory import Domain
from rl_pipeline.observability.metrics import PipelineCollector
from rl_pipeline.stores.disk import DiskObjects
from rl_pipeline.stores.jetstream import JetStream
from rl_pipeline.stores.stream import OutgoingMessage
from rl_pipeline.stores.topology import TRAINING, TRAJECTORIES, bootstrap
from rl_pipeline.stores.warehouse import Warehouse
from rl_pipeline.training.jobs.rows import begin_attempt, end_attempt
from rl_pipeline_tests.deployment.release_place import FIRST, ReleasePlace, opened_place
from rl_pipeline_tests.deployment.validated import a_report, store_validated
from rl_pipeline_tests.fixtures.nats import remove_all_streams
from rl_pipeline_tests.ingestion.ingesting import documents
from rl_pipeline_tests.serving.stub_backend import answer, answer_500
from rl_pipeline_tests.training.job_tables import migrated_database
from rl_pipeline_tests.training.stored_training import TrainingPlace
from rl_pipeline_tests.waiting import wait_until

STREAMS = ("RL_TRAJECTORIES", "RL_REWARDS", "RL_TRAINING", "RL_MODELS", "RL_FEEDBACK", "RL_SERVING", "RL_DLQ")
CANDIDATE = "agent-zero-rl-v2"
_RESULT = {
    "steps": 100,
    "epochs": 2.0,
    "seconds": 50.0,
    "samples": 400,
    "curves": {"loss": [[10, 2.0], [20, 1.0], [50, 0.52], [100, 0.5]]},
    "resource_usage": {"cpu_hours": 0.03, "cost_usd": 0.25, "peak_memory_gb": 1.5},
}


@dataclass
class FilledStack:
    """What happens on it is up to the test."""

    place: ReleasePlace
    training: TrainingPlace
    published: int = 0

    @property
    def tables(self) -> Warehouse:
        return self.place.tables

    def publish(self, count: int, *, model: str = FIRST, **more: Any) -> None:
        """Publish trajectories of a model."""
        made = documents(count, seed=self.published + 1)
        for each in made:
            each["metadata"] |= {"model_version": model, "framework": "agent-zero", **more}
        self.publish_raw(*(json.dumps(each).encode() for each in made))

    def publish_raw(self, *contents: bytes) -> None:
        """Publish whatever it is."""
        first = self.published + 1
        self.published += len(contents)
        self.place.messages.publish_many(
            OutgoingMessage("agent.rl.trajectory.v1", content, f"message-{number}")
            for number, content in enumerate(contents, start=first)
        )

    def ingest(self) -> None:
        """What Dagster's sensors start: ingest the day, and score it."""
        day = datetime.now(UTC).date().isoformat()
        for assets in ([trajectory_stream, raw_and_redacted_trajectories], [trajectory_rewards]):
            assert dg.materialize(assets, partition_key=day, resources=self.place.resources()).success

    def praise(self, kind: str) -> None:
        """A user says something of the newest trajectory."""
        found = self.tables.query("SELECT trajectory_id FROM trajectories FINAL ORDER BY sequence DESC LIMIT 1")
        said = Feedback(
            feedback_id=f"said-{kind}", trajectory_id=found["trajectory_id"][0], timestamp=datetime.now(UTC), kind=kind
        )
        self.place.messages.publish("agent.rl.feedback.v1", serialize(said), said.feedback_id)

    def train(self, job_id: str, *, fails: bool = False) -> None:
        """A job from its request to its end."""
        self.training.ask(job_id, domains=get_args(Domain))
        wait_until(lambda: any(each.job_id == job_id for each in self.training.look().starts), job_id)
        attempt = self.training.attempts(job_id)[-1]
        if not fails:
            self.training.curated(attempt)
        _, attempts = begin_attempt(self.tables, job_id, f"run-{attempt.number}", attempt.tags, _now())
        outcome: Any = "failed" if fails else "completed"
        code: Any = "UNKNOWN" if fails else None
        end_attempt(
            self.tables,
            attempts[-1],
            outcome,
            _now(),
            failure_code=code,
            message="a test",
            result={} if fails else _RESULT,
        )
        self.training.look()
        assert self.training.job(job_id).state == outcome

    def serve(self, sessions: int, *, failing: int = 0, disliked: int = 0) -> None:
        """So many sessions at the gateway, of which some fail, and others that are rated badly; the warehouse knows."""
        before = self._outcomes()
        self.place.new.behaviour = answer_500
        self.place.old.behaviour = answer_500
        self.place.ask_many(failing)
        self.place.new.behaviour = self.place.old.behaviour = answer
        self.place.ask_many(sessions - failing)
        for _ in range(disliked):
            wait_until(self._dislike, "a rating, before its session has ended")
        wait_until(lambda: self.place.look() and self._outcomes() >= before + sessions + disliked, "the outcomes")

    def validate(self, job_id: str, *, passes: bool = True) -> None:
        """What validation leaves of a checkpoint."""
        scores = {"code_generation": (0.8, 0.7), "research_quality": (0.7, 0.65)}
        report = a_report(scores, outcome="PASS" if passes else "FAIL")
        store_validated(self.place.tables, DiskObjects(self.place.directory / "reports"), job_id, report)

    def report_progress(self, job_id: str, loss: float) -> None:
        """What the program of a training says while it runs."""
        status = TrainingStatus.model_validate(
            {
                "training_job_id": job_id,
                "timestamp": _now(),
                "status": "running",
                "progress": {"percent_complete": 40.0},
                "metrics": {
                    "current": {"loss": loss, "reward_mean": 0.6, "kl_divergence": 0.01, "policy_entropy": 1.2}
                },
            }
        )
        self.place.messages.publish("agent.rl.training.status.v1", serialize(status), f"{job_id}-{loss}")

    def collector(
        self, open_stream: Callable[[], Any] | None = None, patience_seconds: float = 1.0
    ) -> PipelineCollector:
        """As the service makes it; every scrape asks for new figures."""
        return PipelineCollector(
            open_warehouse=lambda: self.tables,
            open_stream=open_stream or (lambda: self.place.messages),
            trajectory_stream=TRAJECTORIES.name,
            training_stream=TRAINING.name,
            streams=STREAMS,
            fresh_seconds=0.0,
            patience_seconds=patience_seconds,
        )

    def _dislike(self) -> bool:
        ((session, _),) = self.place.sessions(1, lambda _: "who are you?")
        rated = self.place.gateway.call("POST", "/v1/feedback", {"session_id": session, "feedback": "negative"})
        return bool(rated.status == 200)

    def _outcomes(self) -> int:
        return int(self.tables.query("SELECT count() AS count FROM serving_outcomes FINAL")["count"][0])


@contextmanager
def stack(nats_url: str, clickhouse_url: str, directory: Path) -> Iterator[FilledStack]:
    """A stack on which one model serves and nothing else has happened."""
    with migrated_database(clickhouse_url) as tables, JetStream.connect(nats_url) as messages:
        remove_all_streams(messages)
        bootstrap(messages)
        with opened_place(nats_url, messages, tables, clickhouse_url, directory) as place:
            yield FilledStack(place, TrainingPlace(messages, tables, nats_url, directory / "training"))


def fill(filled: FilledStack, kinds: Sequence[str] = ("thumbs_up", "correction")) -> None:
    """Something of everything."""
    filled.publish(30)
    filled.publish_raw(b"no JSON")
    filled.ingest()
    for kind in kinds:
        filled.praise(kind)
    filled.train("job-1")
    filled.train("job-2")
    filled.train("job-3", fails=True)
    filled.validate("job-1")
    filled.validate("job-2")
    filled.validate("job-4", passes=False)
    filled.place.let_in("job-1")
    filled.place.commands().roll_back("a test")
    wait_until(filled.place.follows, "the rollback at the gateway")
    filled.place.let_in("job-2")
    filled.serve(40, failing=4, disliked=6)
    filled.publish(10, model=CANDIDATE)
    filled.ingest()
    filled.report_progress("job-5", loss=0.75)


def _now() -> datetime:
    # The table has milliseconds.
    return datetime.now(UTC) + timedelta(milliseconds=1)
