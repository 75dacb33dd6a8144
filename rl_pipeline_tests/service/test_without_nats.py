"""NATS is dead: what is asked for is kept, the caller is told, and once NATS is back it starts once."""

import json
import signal
from collections.abc import Iterator
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from rl_pipeline.contracts import parse_message
from rl_pipeline.embedded.nats_server import NatsServer, running_nats_server
from rl_pipeline.stores.clickhouse import ClickHouseWarehouse
from rl_pipeline.stores.jetstream import JetStream
from rl_pipeline.stores.jetstream_lease import JetStreamLeases
from rl_pipeline.stores.topology import TRAJECTORIES, bootstrap
from rl_pipeline.training.jobs.advancing import ImportRuns, Tick, advance
from rl_pipeline.training.jobs.requests import Defaults, StartingPoint
from rl_pipeline.training.jobs.rows import find_job, write_attempt, write_job
from rl_pipeline.training.jobs.silence import Silence
from rl_pipeline_tests.service.running_service import ServiceProcess, Shell
from rl_pipeline_tests.training.job_values import a_job, an_attempt
from rl_pipeline_tests.waiting import wait_until

pytestmark = pytest.mark.curl

START = "curl -X POST http://agentgym-rl:8100/training/start -d @training_config.json"
STATUS = "curl http://agentgym-rl:8100/training/kept-1/status"
CANCEL = "curl -X POST http://agentgym-rl:8100/training/{job}/cancel"
FEEDBACK = "curl -X POST http://agentgym-rl:8100/feedback -d @feedback.json"
ASKED = {"training_job_id": "kept-1", "training_config": {"algorithm": "sft", "dataset": {"source": "clickhouse"}}}


ENDED_RUNS: list[dict[str, Any]] = []


class _Dagster(BaseHTTPRequestHandler):
    """As much of Dagster's GraphQL as ends a run; what it is asked is kept."""

    def do_POST(self) -> None:
        ENDED_RUNS.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        body = json.dumps({"data": {"terminateRun": {"__typename": "TerminateRunSuccess"}}}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def dagster() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Dagster)
    ENDED_RUNS.clear()
    Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


@pytest.fixture
def own_server(tmp_path: Path) -> Iterator[NatsServer]:
    with running_nats_server(tmp_path / "nats") as server:
        yield server


def look(stream: JetStream, tables: ClickHouseWarehouse) -> Tick:
    """One look of the sensor of requests, at a Dagster that has no runs."""
    return advance(
        stream,
        tables,
        JetStreamLeases(stream),
        run_state=lambda _: "missing",
        import_runs=lambda _: ImportRuns(),
        unfinished_imports={},
        silence=Silence(),
        defaults=Defaults("ppo", lambda: StartingPoint("small")),
        redactor=lambda: pytest.fail("nothing is refused here"),
        trajectories=TRAJECTORIES.name,
        sensor="tests",
        now=datetime.now(UTC),
    )


def test_a_training_asked_for_while_nats_is_dead_starts_once_when_it_is_back(
    tmp_path: Path, own_server: NatsServer, clickhouse_url: str, warehouse: ClickHouseWarehouse, dagster: str
) -> None:
    with JetStream.connect(own_server.url) as stream:
        bootstrap(stream)
    stores = {
        "NATS_URL": own_server.url,
        "CLICKHOUSE_URL": clickhouse_url,
        "CLICKHOUSE_DATABASE": warehouse.database,
        "DAGSTER_URL": dagster,
    }
    with ServiceProcess(tmp_path / "service", stores) as service:
        shell = Shell(service, tmp_path / "shell")
        wait_until(
            lambda: shell.run("curl http://agentgym-rl:8100/health").json["components"]["nats"]["status"] == "ok"
        )
        own_server.kill()

        (shell.home / "training_config.json").write_text(json.dumps(ASKED))
        told = shell.run(START)
        assert (told.status, told.json["fell_back"], told.json["sent_by"]) == (202, True, "outbox")
        assert "starts when NATS is back" in told.json["message"]
        status = shell.run(STATUS).json
        assert (status["status"], status["state"]) == ("queued", "kept")

        health = shell.run("curl http://agentgym-rl:8100/health")
        assert (health.status, health.json["status"], health.json["components"]["nats"]["status"]) == (
            200,
            "degraded",
            "away",
        )

        # What cannot be kept for later is refused, and nothing is lost: whoever has it, has it still.
        feedback = {"feedback_id": "f-1", "trajectory_id": "3f2b8c1e-5d4a-4b6f-9e7d-1a2b3c4d5e6f", "kind": "thumbs_up"}
        (shell.home / "feedback.json").write_text(json.dumps(feedback | {"timestamp": "2026-02-01T12:00:00Z"}))
        refused = shell.run(FEEDBACK)
        assert (refused.status, refused.json["code"]) == (503, "nats_unavailable")

        # A job that trains is stopped through Dagster at once.
        write_job(warehouse, a_job("running-1", "running"))
        write_attempt(warehouse, an_attempt(job_id="running-1", begun=True))
        stopped = shell.run(CANCEL.format(job="running-1"))
        assert (stopped.status, stopped.json["fell_back"], stopped.json["run_stopped"]) == (202, True, True)
        assert ENDED_RUNS[-1]["variables"] == {"run": "run-1"}

        # The service dies too: what it said is in the warehouse.
        service.end(signal.SIGKILL)
        service.start()
        assert shell.run(STATUS).json["state"] == "kept"

        own_server.start()
        with JetStream.connect(own_server.url) as stream:

            def taken_in() -> bool:
                look(stream, warehouse)
                return find_job(warehouse, "kept-1") is not None

            wait_until(taken_in, "the job")
            requests = [
                parse_message(one.subject, one.data)
                for batch in stream.read("RL_TRAINING", 1, 100, 100)
                for one in batch
                if one.subject == "agent.rl.training.request.v1"
            ]
            assert len(requests) == 1
            # Asked for once more over NATS, it starts nothing.
            again = wait_until(lambda: (told := shell.run(START)).json["sent_by"] == "nats" and told)
            assert again.json["repeated"] is True
            look(stream, warehouse)
            look(stream, warehouse)
            jobs = warehouse.query("SELECT job_id FROM training_jobs FINAL WHERE job_id = 'kept-1'")
            assert jobs.height == 1
            cancelled = find_job(warehouse, "running-1")
            assert cancelled is not None
            assert cancelled.state in ("cancelling", "cancelled")
