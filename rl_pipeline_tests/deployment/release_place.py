"""Releases on the real thing: NATS, ClickHouse, a gateway process, Dagster's sensor on an instance, and the commands.

Models are stub backends behind the gateway. A test takes the sensor's looks itself, unless it starts what looks.
"""

import os
import subprocess
import sysconfig
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import uuid4

import dagster as dg

from rl_pipeline.automation.rollout_under_way import rollout_under_way
from rl_pipeline.contracts import ModelDeployed, parse_message
from rl_pipeline.deployment import record
from rl_pipeline.deployment.announcing import ServingPlace, announcer
from rl_pipeline.deployment.audit import WarehouseAudit
from rl_pipeline.deployment.commands import Commands
from rl_pipeline.deployment.desk import Desk
from rl_pipeline.deployment.releases import Release, Releases, RolloutPlan
from rl_pipeline.deployment.state import DesiredState, Phase, RampStep, ServedModel
from rl_pipeline.deployment.watchdog import FileMemory
from rl_pipeline.resources.deployment import DeploymentResource
from rl_pipeline.serving.traffic.gateways import Gateways
from rl_pipeline.settings import Settings
from rl_pipeline.stores.clickhouse import ClickHouseWarehouse
from rl_pipeline.stores.jetstream import JetStream
from rl_pipeline.stores.jetstream_desired_state import JetStreamDesiredStates
from rl_pipeline.stores.jetstream_lease import JetStreamLeases
from rl_pipeline_tests.deployment.states import VALIDATION
from rl_pipeline_tests.serving.running_gateway import SESSION_KEY, TOKEN, GatewayProcess, Reply
from rl_pipeline_tests.serving.stub_backend import StubBackend, stub_backends
from rl_pipeline_tests.training.stored_training import TrainingPlace
from rl_pipeline_tests.waiting import wait_until

COMMAND = Path(sysconfig.get_path("scripts")) / "rl-pipeline"
FIRST = "the-first-model"
IDLE = {"session_idle_seconds": 0.5, "drain_seconds": 1.0}
HALF = (RampStep(share=0.5, min_seconds=3600, min_samples=1000),)
"""A split that nothing but evidence ends."""


@dataclass
class ReleasePlace:
    """One model serves, and what else happens is up to the test."""

    nats_url: str
    messages: JetStream
    tables: ClickHouseWarehouse
    clickhouse_url: str
    gateway: GatewayProcess
    directory: Path
    instance: dg.DagsterInstance
    old: StubBackend
    """Serves the first model."""
    new: StubBackend
    """Serves whatever is released."""
    deployment: dict[str, Any] = field(default_factory=dict)
    """Fields of the `DeploymentResource` that are not as usual."""
    cursor: str | None = None
    """Of the sensor, as Dagster keeps it."""

    def resources(self) -> dict[str, Any]:
        """As Dagster has them."""
        place = TrainingPlace(self.messages, self.tables, self.nats_url, self.directory)
        fields = {
            "gateways": [self.gateway.url],
            "admin_token": TOKEN,
            "session_key": SESSION_KEY,
            "session_idle_seconds": IDLE["session_idle_seconds"],
            # There is one clock, and the stream is near.
            "settling_seconds": 1.0,
            "traffic_directory": str(self.directory / "traffic"),
            "work_directory": str(self.directory / "validation"),
            **self.deployment,
        }
        return {**place.resources(self.clickhouse_url), "deployment": DeploymentResource(**fields)}

    def environment(self, **variables: str) -> dict[str, str]:
        """Of a user's command."""
        ours = {each.upper() for each in Settings.model_fields}
        return {
            **{name: value for name, value in os.environ.items() if name not in ours},
            "RL_PIPELINE_HOME": str(self.directory / "home"),
            "NATS_URL": self.nats_url,
            "CLICKHOUSE_URL": self.clickhouse_url,
            "CLICKHOUSE_DATABASE": self.tables.database,
            "TENSORZERO_BASE_URL": self.gateway.url,
            "TENSORZERO_ADMIN_TOKEN": TOKEN,
            "GATEWAY_SESSION_KEY": SESSION_KEY,
            "GATEWAY_SESSION_IDLE_SECONDS": str(IDLE["session_idle_seconds"]),
            **variables,
        }

    def commands(self, now: datetime | None = None) -> Commands:
        """The orders of a person, given now or at another moment."""
        desk = Desk(
            JetStreamDesiredStates(self.messages),
            Gateways([self.gateway.url], TOKEN),
            WarehouseAudit(self.tables),
            announcer(self.messages, ServingPlace("tensorzero", f"{self.gateway.url}/v1/chat/completions")),
        )
        return Commands(desk, "operator", now or datetime.now(UTC))

    def serve_first(self) -> None:
        """Name the first model in service."""
        model = ServedModel(model_id=FIRST, base_model="small", endpoint=self.old.endpoint)
        self.commands().create(model, "the first model in service")

    def release(
        self, job: str, steps: Sequence[RampStep] = HALF, *, bake_seconds: float = 0, needs_approval: bool = False
    ) -> Release:
        """A validated model that waits for its rollout."""
        plan = RolloutPlan(
            strategy="canary",
            steps=tuple(steps),
            bake_seconds=bake_seconds,
            explanation="a test",
            measured_against=self.state().serving,
        )
        return Releases(self.tables).release(
            JetStreamLeases(self.messages),
            training_job_id=job,
            base_model="small",
            checkpoint_path=None,
            manifest_sha256=None,
            plan=plan,
            validation=VALIDATION,
            needs_approval=needs_approval,
            shadow=False,
            now=datetime.now(UTC),
            endpoint=self.new.endpoint,
        )

    def let_in(self, job: str = "job-1", steps: Sequence[RampStep] = HALF, *, bake_seconds: float = 0) -> Release:
        """A release whose rollout has begun, with the gateway following it."""
        release = self.release(job, steps, bake_seconds=bake_seconds)
        self.look()
        wait_until(self.follows, "the rollout at the gateway")
        return release

    def look(self) -> dg.SensorResult:
        """What Dagster's daemon does with the sensor: evaluate it, and keep its events and its cursor."""
        context = dg.build_sensor_context(instance=self.instance, resources=self.resources(), cursor=self.cursor)
        result = rollout_under_way(context)
        assert isinstance(result, dg.SensorResult)
        self.cursor = result.cursor
        for event in result.asset_events:
            self.instance.report_runless_asset_event(event)
        return result

    def state(self) -> DesiredState:
        found = record.read(JetStreamDesiredStates(self.messages))
        assert found is not None
        return found.state

    def follows(self) -> bool:
        """Whether the gateway has the recorded state and every model of it ready."""
        standing = self.gateway.standing()
        return standing["generation"] == self.state().generation and not standing["not_ready"]

    def ask_many(self, count: int, content: Callable[[int], str] = lambda _: "who are you?") -> Counter[str]:
        """How often each model answered, over sessions of their own."""
        return Counter(reply.model for _, reply in self.sessions(count, content))

    def sessions(self, count: int, content: Callable[[int], str]) -> list[tuple[str, Reply]]:
        """The answer to one question in each of so many new sessions, by its session."""

        def ask(number: int) -> tuple[str, Reply]:
            session = uuid4().hex
            return session, self.gateway.chat(session, messages=[{"role": "user", "content": content(number)}])

        with ThreadPoolExecutor(8) as pool:
            return list(pool.map(ask, range(count)))

    def announced(self) -> list[ModelDeployed]:
        """What the stream was told, in order."""
        last = self.messages.state("RL_MODELS").last_sequence
        stored = [message for batch in self.messages.read("RL_MODELS", 1, last, 100) for message in batch]
        said = [parse_message(one.subject, one.data) for one in stored]
        return [one for one in said if isinstance(one, ModelDeployed)]

    def has_watched(self, model_id: str, phase: Phase | None = None) -> bool:
        """Whether the watchdog has kept a state with this model, in this phase if one is named."""
        kept = FileMemory(self.directory / "watchdog" / "memory.json").load()
        return kept.state is not None and model_id in kept.state.models and phase in (None, kept.state.phase)

    @contextmanager
    def watchdog(self) -> "Iterator[subprocess.Popen[bytes]]":
        """`rl-pipeline watchdog`."""
        data = self.directory / "watchdog"
        data.mkdir(parents=True, exist_ok=True)
        command = [str(COMMAND), "watchdog", "--data", str(data), "--interval", "0.5"]
        with (data / "log").open("ab") as log:
            process = subprocess.Popen(command, env=self.environment(), stdout=log, stderr=log)
        try:
            yield process
        finally:
            process.kill()
            process.wait()


@contextmanager
def opened_place(
    nats_url: str,
    messages: JetStream,
    tables: ClickHouseWarehouse,
    clickhouse_url: str,
    directory: Path,
    *,
    empty: bool = False,
) -> Iterator[ReleasePlace]:
    """A place in which the first model serves, unless it is to be empty."""
    with (
        stub_backends(FIRST, "candidate") as (old, new),
        GatewayProcess(directory / "gateway", {"nats_url": nats_url, **IDLE}) as gateway,
        dg.DagsterInstance.ephemeral() as instance,
    ):
        place = ReleasePlace(nats_url, messages, tables, clickhouse_url, gateway, directory, instance, old, new)
        if not empty:
            place.serve_first()
            wait_until(place.follows, "the first model at the gateway")
        yield place
