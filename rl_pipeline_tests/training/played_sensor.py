"""The sensor of requests on the real stream, warehouse and leases, with Dagster's runs as a test tells them."""

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from rl_pipeline.collection.publishing import outgoing_message
from rl_pipeline.contracts import TrainingCancel
from rl_pipeline.redaction.policy import RedactionKey, RedactionPolicy
from rl_pipeline.redaction.redactor import Redactor
from rl_pipeline.stores.clickhouse import ClickHouseWarehouse
from rl_pipeline.stores.jetstream import JetStream
from rl_pipeline.stores.jetstream_lease import JetStreamLeases
from rl_pipeline.stores.topology import TRAJECTORIES
from rl_pipeline.training.jobs.advancing import ImportRuns, Tick, advance
from rl_pipeline.training.jobs.job import Attempt
from rl_pipeline.training.jobs.reconciling import RunState
from rl_pipeline.training.jobs.requests import Defaults, StartingPoint
from rl_pipeline.training.jobs.rows import attempts_of, begin_attempt, find_job, keep_plan
from rl_pipeline.training.jobs.silence import Silence
from rl_pipeline_tests.fixtures.ingest import REDACTION_KEY
from rl_pipeline_tests.training.job_tables import wait_for_pending
from rl_pipeline_tests.training.job_values import MINUTE, NOW, a_plan, a_request


def keys(attempts: list[Attempt]) -> list[str]:
    return [attempt.key for attempt in attempts]


@dataclass
class Sensor:
    """See the module."""

    messages: JetStream
    warehouse: ClickHouseWarehouse
    now: datetime = NOW
    runs: dict[str, RunState] = field(default_factory=dict)
    imports: ImportRuns = field(default_factory=ImportRuns)
    unfinished_imports: dict[str, RunState] = field(default_factory=dict)
    silence: Silence = field(default_factory=Silence)
    rolled_back: set[str] = field(default_factory=set)
    start: Callable[[], StartingPoint] = lambda: StartingPoint("in-service", "v7")
    waiting: Counter[str] = field(default_factory=Counter)
    """Messages that were published since the last look, by the consumer that hands them out."""

    @property
    def leases(self) -> JetStreamLeases:
        return JetStreamLeases(self.messages)

    def look(self, sensor: str = "sensor") -> Tick:
        self.now += MINUTE
        for consumer, count in self.waiting.items():
            wait_for_pending(self.messages, consumer, count)
        self.waiting.clear()
        tick = advance(
            *(self.messages, self.warehouse, self.leases),
            run_state=lambda attempt: self.runs.get(attempt.key, "missing"),
            import_runs=lambda _: self.imports,
            unfinished_imports=self.unfinished_imports,
            silence=self.silence,
            defaults=Defaults("dpo", self.start),
            redactor=lambda: Redactor(RedactionPolicy(RedactionKey("v1", REDACTION_KEY.encode()))),
            trajectories=TRAJECTORIES.name,
            sensor=sensor,
            now=self.now,
            rolled_back=lambda: self.rolled_back,
        )
        self.silence = tick.silence
        return tick

    def stay_silent(self, time: timedelta) -> None:
        """As if what was not heard of at the last look had not been heard of for so much longer."""
        longer = {key: since - time for key, since in self.silence.since.items()}
        self.silence = Silence(looked_at=self.silence.looked_at, since=longer)

    def ask(self, job_id: str, **fields: Any) -> None:
        message = outgoing_message(a_request(job_id, **fields))
        self.messages.publish(message.subject, message.data, message.message_id)
        self.waiting["training_requests"] += 1

    def cancel(self, job_id: str) -> None:
        asked = {"training_job_id": job_id, "timestamp": self.now, "requester": "ada"}
        message = outgoing_message(TrainingCancel.model_validate(asked))
        self.messages.publish(message.subject, message.data, message.message_id)
        self.waiting["training_cancellations"] += 1

    def begin(self, job_id: str) -> Attempt:
        """Its run starts, as an asset would."""
        [*_, newest] = attempts_of(self.warehouse, [job_id])[job_id]
        attempt = begin_attempt(self.warehouse, job_id, "run", newest.tags, self.now)[1][-1]
        self.runs[attempt.key] = "started"
        return keep_plan(self.warehouse, attempt, a_plan())

    def state(self, job_id: str) -> str:
        job = find_job(self.warehouse, job_id)
        return job.state if job else "unknown"

    def said(self, job_id: str) -> list[str]:
        last = self.messages.state("RL_TRAINING").last_sequence
        stored = [message for batch in self.messages.read("RL_TRAINING", 1, last, 100) for message in batch]
        told = [json.loads(one.data) for one in stored if one.subject == "agent.rl.training.status.v1"]
        return [one["status"] for one in told if one["training_job_id"] == job_id]
