"""Rollouts on the real stores, with a gateway in a file that outlives every process. Models of even numbers are bad."""

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rl_pipeline.contracts import parse_message
from rl_pipeline.deployment import record
from rl_pipeline.deployment.announcing import DEPLOYED_SUBJECT, announcer
from rl_pipeline.deployment.audit import ANNOUNCED_EVENTS, WarehouseAudit, verify_audit
from rl_pipeline.deployment.commands import Commands
from rl_pipeline.deployment.controller import Controller
from rl_pipeline.deployment.desk import Desk
from rl_pipeline.deployment.outcomes import windows_of
from rl_pipeline.deployment.releases import Releases, RolloutPlan
from rl_pipeline.stores.clickhouse import ClickHouseWarehouse
from rl_pipeline.stores.jetstream import JetStream
from rl_pipeline.stores.jetstream_desired_state import JetStreamDesiredStates
from rl_pipeline.stores.jetstream_lease import JetStreamLeases
from rl_pipeline_tests.deployment.controller_process import PLACE, judge
from rl_pipeline_tests.deployment.kept_gateway import KeptGateway
from rl_pipeline_tests.deployment.states import NOW, RAMP, VALIDATION, a_model

PLAN = RolloutPlan(strategy="canary", steps=RAMP, bake_seconds=60, explanation="it is better")


class KeptPlace:
    """A deployment on the real stores, with a gateway in a file."""

    def __init__(
        self, stream: JetStream, warehouse: ClickHouseWarehouse, url: str, clickhouse: str, path: Path
    ) -> None:
        self.stream, self.warehouse = stream, warehouse
        self.gateway = KeptGateway(path)
        self.states = JetStreamDesiredStates(stream)
        self.options = ["--nats", url, "--clickhouse", clickhouse, "--database", warehouse.database]
        self.options += ["--gateway", str(path)]
        self.desk = Desk(self.states, self.gateway, WarehouseAudit(warehouse), announcer(stream, PLACE))
        Commands(self.desk, "operator", NOW).create(a_model("base"), "the first")

    def release(self) -> None:
        """One more model; every second one is bad."""
        number = len(Releases(self.warehouse).newest(1000)) + 1
        released: dict[str, Any] = {"checkpoint_path": None, "manifest_sha256": None, "base_model": "small"}
        current = record.read(self.states)
        plan = PLAN.model_copy(update={"measured_against": current.state.serving if current else ""})
        released |= {"plan": plan, "validation": VALIDATION, "needs_approval": False, "shadow": False, "now": NOW}
        Releases(self.warehouse).release(JetStreamLeases(self.stream), training_job_id=f"job-{number}", **released)

    def controller(self) -> Controller:
        """In this process."""
        return Controller(
            self.desk,
            Releases(self.warehouse),
            lambda *asked: windows_of(self.warehouse, *asked, session_keys=()),
            judge,
        )

    @contextlib.contextmanager
    def controller_process(self, wait_at: str | None = None) -> "Iterator[subprocess.Popen[str]]":
        command = [sys.executable, "-m", "rl_pipeline_tests.deployment.controller_process", *self.options]
        command += ["--wait-at", wait_at] if wait_at else []
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            try:
                assert line_of(process) == "READY"
                yield process
            finally:
                process.kill()

    def check(self) -> int:
        """What must hold when nothing is left to do; how many generations there were."""
        current = record.read(self.states)
        assert current is not None
        state = current.state
        assert state.phase == "steady"
        released = Releases(self.warehouse).newest(1000)
        assert {release.state for release in released} <= {"started", "superseded"}
        rolled_out = [release.number for release in released if release.state == "started"]
        bad = [f"agent-zero-rl-v{number}" for number in rolled_out if number % 2 == 0]
        assert set(state.retired) == set(bad)
        (standing,) = self.gateway.standings()
        assert (standing.generation, standing.weights) == (state.generation, state.weights)
        verified = verify_audit(self.warehouse, current)
        assert (verified.first_break, verified.generations, verified.aside) == (None, state.generation, ())
        rows = self.warehouse.query("SELECT generation, event, announced_at FROM deployment_audit FINAL").to_dicts()
        due = [row["generation"] for row in rows if row["event"] in ANNOUNCED_EVENTS]
        assert all(row["announced_at"] for row in rows if row["generation"] in due)
        assert sorted(self.announced()) == sorted(due), "announced once each"
        return state.generation

    def announced(self) -> list[int]:
        """The generations of the messages that the stream holds."""
        last = self.stream.state("RL_MODELS").last_sequence
        found = [message for batch in self.stream.read("RL_MODELS", 1, last, 500) for message in batch]
        parsed: list[Any] = [parse_message(DEPLOYED_SUBJECT, message.data) for message in found]
        return [message.metadata.model_extra["generation"] for message in parsed]


def line_of(process: "subprocess.Popen[str]") -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()
