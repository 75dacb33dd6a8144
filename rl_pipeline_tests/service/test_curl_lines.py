"""The specification's lines for `:8100`, letter by letter but for the quotes (C-31), against a running service."""

import asyncio
import json
from datetime import UTC, datetime, timedelta
from typing import Any

import nats
import pytest

from rl_pipeline.contracts import TrainingStatus, serialize
from rl_pipeline.embedded.nats_server import NatsServer
from rl_pipeline.stores.clickhouse import ClickHouseWarehouse
from rl_pipeline.stores.jetstream import JetStream
from rl_pipeline.training.jobs.rows import write_attempt, write_job
from rl_pipeline_tests.end_to_end.specified_lines import DEPLOYED_SINCE as DEPLOYED
from rl_pipeline_tests.end_to_end.specified_lines import HEALTH, HISTORY, MODELS, START, STATUS, WEEK
from rl_pipeline_tests.service.running_service import Shell
from rl_pipeline_tests.training.job_tables import emptied
from rl_pipeline_tests.training.job_values import a_job, an_attempt
from rl_pipeline_tests.waiting import wait_until

pytestmark = pytest.mark.curl

QUERY = "agent.rl.training.status.request"


@pytest.fixture(autouse=True)
def nothing_before(tables: ClickHouseWarehouse) -> None:
    emptied(tables)


def test_the_health_tells_of_each_component_and_what_to_do(shell: Shell) -> None:
    def told() -> dict[str, Any] | None:
        answer = shell.run(HEALTH)
        well = {name for name, each in answer.json["components"].items() if each["status"] == "ok"}
        return dict(answer.json) if (answer.status, well) == (200, {"nats", "warehouse", "objects"}) else None

    health = wait_until(told, "an answer of all that is there")
    assert health["status"] == "degraded"
    components = health["components"]
    assert components["nats"]["latency_ms"] > 0
    for name in ("dagster", "gateway", "mlflow"):
        assert components[name]["status"] == "away"
        assert components[name]["next_step"]


def test_a_training_is_asked_for_by_its_configuration_alone(shell: Shell, streams: JetStream) -> None:
    config = {"algorithm": "dpo", "dataset": {"source": "clickhouse", "sample_size": 5000}}
    (shell.home / "training_config.json").write_text(json.dumps(config))
    told = shell.run(START)
    assert told.status == 202
    assert told.json["message"] == "Initiating RL training job #1 with 5K samples"
    assert (told.json["sent_by"], told.json["fell_back"], told.json["repeated"]) == ("nats", False, False)
    job_id = told.json["job_id"]
    sent = json.loads(streams.last_on_subject("RL_TRAINING", "agent.rl.training.request.v1").data)
    assert (sent["training_job_id"], sent["training_config"], sent["requester"]) == (job_id, config, "admin")

    # It can be looked at before any sensor has taken it in.
    status = shell.run(STATUS.format(job_id=job_id))
    assert (status.status, status.json["status"], status.json["state"]) == (200, "queued", "asked")


def test_the_same_request_twice_asks_once_and_another_under_its_id_is_refused(shell: Shell, streams: JetStream) -> None:
    asked = {"training_job_id": "asked-twice", "training_config": {"algorithm": "sft"}}
    (shell.home / "training_config.json").write_text(json.dumps(asked))
    assert shell.run(START).json["repeated"] is False
    last = streams.state("RL_TRAINING").last_sequence
    assert shell.run(START).json["repeated"] is True
    assert streams.state("RL_TRAINING").last_sequence == last
    (shell.home / "training_config.json").write_text(json.dumps(asked | {"training_config": {"algorithm": "dpo"}}))
    other = shell.run(START)
    assert (other.status, other.json["code"]) == (409, "job_id_taken")


def test_what_would_be_refused_is_refused_at_once(shell: Shell, streams: JetStream) -> None:
    before = streams.state("RL_TRAINING").last_sequence
    config = {"dataset": {"source": "nats_stream", "stream_name": "SOMEBODY_ELSES"}}
    (shell.home / "training_config.json").write_text(json.dumps(config))
    told = shell.run(START)
    assert (told.status, told.json["code"]) == (422, "unknown_stream")
    assert told.json["next_step"] == "name RL_TRAJECTORIES, or leave it out"
    assert streams.state("RL_TRAINING").last_sequence == before


def test_a_status_has_the_tables_and_what_the_training_tells(
    shell: Shell, streams: JetStream, tables: ClickHouseWarehouse
) -> None:
    job = a_job("told-of", "running")
    write_job(tables, job)
    write_attempt(tables, an_attempt(job_id="told-of", begun=True))
    progress = {"current_step": 5, "total_steps": 10, "percent_complete": 50.0}
    status = TrainingStatus.model_validate(
        {
            "training_job_id": "told-of",
            "timestamp": datetime.now(UTC),
            "status": "running",
            "progress": progress,
            "metrics": {"current": {"loss": 0.25, "reward_mean": 0.5, "kl_divergence": 0.01}},
            "resource_usage": {"gpu_hours": 1.5, "cost_usd": 3.0},
        }
    )
    streams.publish("agent.rl.training.status.v1", serialize(status), "status-1")

    def told() -> dict[str, object] | None:
        answer = shell.run(STATUS.format(job_id="told-of"))
        assert answer.status == 200
        return dict(answer.json) if "progress" in answer.json else None

    found = wait_until(told, "the progress")
    assert (found["status"], found["progress"]) == ("running", progress)
    assert found["metrics"]["current"]["loss"] == 0.25
    assert found["resource_usage"]["cost_usd"] == 3.0
    assert [attempt["run_id"] for attempt in found["attempts"]] == ["run-1"]


def test_jobs_are_listed_by_status_and_time(shell: Shell, tables: ClickHouseWarehouse) -> None:
    now = datetime.now(UTC)
    for number in range(12):
        write_job(tables, a_job(f"new-{number:02}", "completed", now=now - timedelta(minutes=number)))
    write_job(tables, a_job("old", "completed", now=now - timedelta(days=8)))
    write_job(tables, a_job("failed", "failed", now=now))
    ten = shell.run(HISTORY)
    assert (ten.status, [job["job_id"] for job in ten.json["jobs"]]) == (200, [f"new-{n:02}" for n in range(10)])
    week = shell.run(WEEK).json
    assert (week["count"], {job["status"] for job in week["jobs"]}) == (12, {"completed"})


def test_models_are_listed(shell: Shell) -> None:
    assert (shell.run(MODELS).status, shell.run(MODELS).json) == (200, {"models": [], "count": 0})
    assert shell.run(DEPLOYED).status == 200


def test_a_status_is_asked_for_over_nats_with_every_stream_there(
    shell: Shell, nats_server: NatsServer, tables: ClickHouseWarehouse
) -> None:
    """The first answer is the service's: no stream takes the subject (C-02)."""
    write_job(tables, a_job("over-nats", "completed"))

    async def asked(content: bytes) -> dict[str, object]:
        client = await nats.connect(nats_server.url)
        try:
            reply = await client.request(QUERY, content, timeout=30)
            return dict(json.loads(reply.data))
        finally:
            await client.close()

    def answered() -> dict[str, object] | None:
        try:
            return asyncio.run(asked(b'{"job_id": "over-nats"}'))
        except nats.errors.NoRespondersError:  # it connects to NATS beside listening
            return None

    answer = wait_until(answered, "an answer")
    assert (answer["job_id"], answer["status"]) == ("over-nats", "completed")
    assert shell.run(STATUS.format(job_id="over-nats")).json["state"] == answer["state"]
    assert asyncio.run(asked(b'{"job_id": "nobodys"}'))["code"] == "no_such_job"
    assert asyncio.run(asked(b"no json"))["code"] == "not_json"
