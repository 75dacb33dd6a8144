"""What comes of a request, in the stores behind a running service."""

import asyncio
import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any

import httpx
import nats
import polars as pl
import pytest

from rl_pipeline.collection.samples import sample_trajectories
from rl_pipeline.contracts import TrainingRequest, parse_message, serialize
from rl_pipeline.deployment.state import DesiredState
from rl_pipeline.embedded.nats_server import NatsServer
from rl_pipeline.stores.clickhouse import ClickHouseWarehouse
from rl_pipeline.stores.jetstream import JetStream
from rl_pipeline.stores.jetstream_desired_state import JetStreamDesiredStates
from rl_pipeline.training.jobs.rows import write_job
from rl_pipeline_tests.service.running_service import KEY, ServiceProcess
from rl_pipeline_tests.serving.states import model_at, ramping, steady
from rl_pipeline_tests.training.job_values import a_job
from rl_pipeline_tests.waiting import wait_until

TRAJECTORY = "3f2b8c1e-5d4a-4b6f-9e7d-1a2b3c4d5e6f"


@pytest.fixture(scope="module")
def client(service: ServiceProcess) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=service.url, headers={"X-API-Key": KEY}, timeout=60) as opened:
        yield opened


def feedback(number: int, **more: Any) -> dict[str, Any]:
    given = {"feedback_id": f"feedback-{number}", "trajectory_id": TRAJECTORY, "timestamp": "2026-02-01T12:00:00Z"}
    return {**given, "kind": "thumbs_up", **more}


def test_feedback_is_in_the_stream_once_and_redacted_before_it_gets_there(
    client: httpx.Client, streams: JetStream
) -> None:
    before = streams.state("RL_FEEDBACK").messages
    comment = {"kind": "comment", "text": "write to jane.doe@example.com"}
    for _ in range(2):
        assert client.post("/feedback", json=feedback(1, **comment)).json() == {
            "id": "feedback-1",
            "subject": "agent.rl.feedback.v1",
            "stored": True,
        }
    assert streams.state("RL_FEEDBACK").messages == before + 1
    stored = streams.last_on_subject("RL_FEEDBACK", "agent.rl.feedback.v1").data.decode()
    assert "jane.doe" not in stored
    assert "[REDACTED:EMAIL:" in stored


def test_prometheus_is_told_what_the_stores_say(client: httpx.Client) -> None:
    def told() -> set[str]:
        return set(client.get("/metrics").raise_for_status().text.splitlines())

    # The first figures take a busy machine longer than a scrape waits.
    reached = {"agent_rl_nats_reachable 1.0", "agent_rl_warehouse_reachable 1.0"}
    wait_until(lambda: reached <= told(), "the figures")
    assert any(line.startswith("# TYPE agent_rl_trajectories_collected") for line in told())


def test_of_many_at_once_each_is_stored_or_refused_by_itself(client: httpx.Client, streams: JetStream) -> None:
    before = streams.state("RL_FEEDBACK").messages

    async def all_at_once() -> list[int]:
        async with httpx.AsyncClient(base_url=client.base_url, headers=client.headers, timeout=60) as asking:
            posts = [asking.post("/feedback", json=feedback(100 + number)) for number in range(50)]
            posts += [asking.post("/feedback", json=feedback(0, kind="nonsense")) for _ in range(5)]
            return [answer.status_code for answer in await asyncio.gather(*posts)]

    codes = asyncio.run(all_at_once())
    assert (codes.count(202), codes.count(422)) == (50, 5)
    assert streams.state("RL_FEEDBACK").messages == before + 50


def test_a_broken_message_is_refused_with_its_place_and_never_its_content(client: httpx.Client) -> None:
    refused = client.post("/feedback", json=feedback(2, kind="a secret kind"))
    problem = refused.json()
    assert (refused.status_code, problem["code"], problem["status"]) == (422, "enum", 422)
    assert "kind" in problem["detail"]
    assert "a secret kind" not in refused.text
    twice = client.post("/feedback", content=b'{"kind": "thumbs_up", "kind": "thumbs_down"}').json()
    assert twice["code"] == "duplicate_key"
    assert client.post("/feedback", content=b"{").status_code == 400


def test_a_trajectory_is_handed_in_redacted(client: httpx.Client, streams: JetStream) -> None:
    (sample,) = sample_trajectories(1, now=datetime.now(UTC), randomness=Random(1))
    content = json.loads(serialize(sample))
    content["turns"][0]["observation"]["content"] = "my key is sk-ant-REDACTED"
    answer = client.post("/trajectories", json=content)
    assert (answer.status_code, answer.json()["id"]) == (202, sample.trajectory_id)
    stored = streams.last_on_subject("RL_TRAJECTORIES", "agent.rl.trajectory.v1")
    assert stored.message_id == sample.trajectory_id
    assert parse_message(stored.subject, stored.data)


def test_a_trajectory_is_read_back_as_it_is_stored(client: httpx.Client, tables: ClickHouseWarehouse) -> None:
    assert client.get(f"/trajectories/{TRAJECTORY}").json()["code"] == "no_such_trajectory"
    (sample,) = sample_trajectories(1, now=datetime.now(UTC), randomness=Random(2))
    row = {
        "stream": "RL_TRAJECTORIES",
        "sequence": 1,
        "trajectory_id": sample.trajectory_id,
        "stream_time": datetime.now(UTC),
        "document": serialize(sample).decode(),
        "version": 1,
    }
    tables.insert("trajectories", pl.DataFrame([row]))
    found = client.get(f"/trajectories/{sample.trajectory_id}").json()
    assert found["document"]["trajectory_id"] == sample.trajectory_id
    assert len(found["document"]["turns"]) == len(sample.turns)


def test_a_reported_task_is_scored_kept_once_and_found_in_the_history(client: httpx.Client) -> None:
    result = {
        "task_type": "coding",
        "output": "42",
        "agents": ["agent-7"],
        "metadata": {"task_status": "success", "user_id": "user-3"},
    }
    for _ in range(2):
        calculated = client.post("/api/v1/rewards/calculate", json={"task_id": "task-1", "result": result})
        assert calculated.status_code == 200
    assert calculated.json()["rewards"][0]["raw_reward"] == pytest.approx((0.4 + 0.25 * 0.5) / 0.65)
    history = client.get("/api/v1/rewards/history", params={"agent_id": "agent-7", "limit": 10}).json()
    assert (history["count"], history["rewards"][0]["task_id"]) == (1, "task-1")
    assert "user-3" not in json.dumps(history)
    assert client.get("/api/v1/rewards/history", params={"agent_id": "nobody"}).json()["count"] == 0
    without = client.post("/api/v1/rewards/calculate", json={"task_id": "task-2", "result": {}})
    assert (without.status_code, without.json()["code"]) == (422, "invalid_task_result")


def test_a_loop_is_started_with_its_knobs_and_stopped(
    client: httpx.Client, streams: JetStream, tables: ClickHouseWarehouse
) -> None:
    knobs = {"batch_size": 16, "learning_rate": 2e-5, "num_epochs": 2}
    started = client.post("/api/v1/training/start", json=knobs)
    assert started.status_code == 202
    sent = parse_message(
        "agent.rl.training.request.v1",
        streams.last_on_subject("RL_TRAINING", "agent.rl.training.request.v1").data,
    )
    assert isinstance(sent, TrainingRequest)
    asked = sent.training_config.hyperparameters
    assert (asked.batch_size, asked.learning_rate, asked.epochs) == (16, 2e-5, 2)

    assert client.get("/api/v1/training/status").json()["status"] == "idle"
    assert client.post("/api/v1/training/stop").json() == {"stopping": [], "message": "nothing trains now"}
    write_job(tables, a_job("trains-now", "running"))
    loop = client.get("/api/v1/training/status").json()
    assert (loop["status"], loop["current"]["job_id"]) == ("running", "trains-now")
    stopped = client.post("/api/v1/training/stop", json={"reason": "enough"}).json()
    assert [each["job_id"] for each in stopped["stopping"]] == ["trains-now"]
    cancelled = json.loads(streams.last_on_subject("RL_TRAINING", "agent.rl.training.cancel.v1").data)
    assert (cancelled["training_job_id"], cancelled["requester"], cancelled["reason"]) == (
        "trains-now",
        "admin",
        "enough",
    )


def test_a_job_is_cancelled_unless_it_is_over_or_unknown(client: httpx.Client, tables: ClickHouseWarehouse) -> None:
    write_job(tables, a_job("over", "completed"))
    assert client.post("/training/over/cancel").json()["code"] == "job_over"
    assert client.post("/training/nobodys/cancel").json()["code"] == "no_such_job"
    asked = client.post("/training/start", json={"training_job_id": "soon", "training_config": {}})
    assert asked.status_code == 202
    assert client.post("/training/soon/cancel", json={"reason": "no"}).status_code == 202


@pytest.mark.parametrize("since", ["2026-02-30", "2026-13-01T00:00Z", "yesterday", "0"])
def test_a_time_that_there_is_not_is_refused_and_not_guessed(client: httpx.Client, since: str) -> None:
    for path, parameter in (("/jobs", "since"), ("/models", "deployed_since")):
        refused = client.get(path, params={parameter: since})
        assert (refused.status_code, refused.json()["code"]) == (422, "invalid_parameter")


def test_the_same_idempotency_key_asks_for_the_same_job(client: httpx.Client) -> None:
    headers = {"Idempotency-Key": "deploy-17"}
    first, second = (client.post("/training/start", json={}, headers=headers).json() for _ in range(2))
    assert first["job_id"] == second["job_id"]
    assert (first["repeated"], second["repeated"]) == (False, True)


def test_the_coordinator_does_what_it_is_told_and_nothing_that_it_does_not_understand(
    client: httpx.Client, streams: JetStream
) -> None:
    told = client.post("/coordinator", json={"message": "Trigger training job with 10K samples from last 30 days"})
    answer = told.json()
    assert (told.status_code, answer["order"]) == (200, "train")
    assert (answer["sample_size"], answer["last_days"]) == (10_000, 30)
    assert answer["reply"].startswith("Initiating RL training job #")
    job = answer["job_id"]
    status = client.post("/coordinator", json={"message": f"What is the status of job {job}?"}).json()
    assert (status["order"], status["job"]["status"]) == ("status", "queued")
    assert client.post("/coordinator", json={"message": f"cancel job {job}"}).json()["order"] == "cancel"

    last = streams.state("RL_TRAINING").last_sequence
    unclear = client.post("/coordinator", json={"message": "Trigger training job with 10K samples and a cherry on top"})
    assert (unclear.status_code, unclear.json()["code"]) == (422, "unclear_sentence")
    assert "cherry" in unclear.json()["detail"]
    assert "Trigger training job with 10K samples from last 30 days" in unclear.json()["next_step"]
    assert streams.state("RL_TRAINING").last_sequence == last


def record(streams: JetStream, state: DesiredState) -> None:
    states = JetStreamDesiredStates(streams)
    stored = states.read()
    assert states.swap(state.encoded(), stored.revision if stored else 0)


def test_deployments_are_looked_at_and_ordered_and_models_follow(
    client: httpx.Client, streams: JetStream, tables: ClickHouseWarehouse
) -> None:
    assert client.get("/deployments/current").json()["code"] == "nothing_deployed"
    before, candidate = model_at("model-1", "http://127.0.0.1:9"), model_at("model-2", "http://127.0.0.1:9")
    record(streams, steady(1, before))
    assert client.get("/deployments/current").json()["traffic"] == {"model-1": 100.0}
    nothing = client.post("/deployments/approve")
    assert (nothing.status_code, nothing.json()["code"]) == (409, "not_now")

    record(streams, ramping(2, before, candidate, 0.1))
    frozen = client.post("/deployments/freeze", json={"reason": "a holiday"}).json()
    assert (frozen["frozen"], frozen["by"], frozen["reason"]) == ("a holiday", "admin by the service", "a holiday")
    assert client.post("/deployments/unfreeze").json()["event"] == "unfrozen"
    other = client.post("/deployments/promote", json={"model_id": "model-9"})
    assert (other.status_code, other.json()["code"]) == (409, "not_now")
    back = client.post("/deployments/roll-back", json={"reason": "it is bad"}).json()
    assert (back["traffic"], back["retired"], back["event"]) == ({"model-1": 100.0}, ["model-2"], "rolled_back")
    audited = tables.query("SELECT event, by FROM deployment_audit FINAL ORDER BY generation").rows()
    assert audited[-1] == ("rolled_back", "admin by the service")

    models = client.get("/models").json()["models"]
    assert [(model["model_id"], model["serving"], model["traffic_percentage"]) for model in models] == [
        ("model-1", True, 100.0)
    ]


def test_two_replicas_answer_a_query_once(
    service: ServiceProcess, stores: dict[str, str], nats_server: NatsServer, tables: ClickHouseWarehouse
) -> None:
    """They are one queue group."""
    write_job(tables, a_job("asked-of-two", "completed", now=datetime.now(UTC) - timedelta(days=1)))

    async def answers() -> list[bytes]:
        client = await nats.connect(nats_server.url)
        heard: list[bytes] = []
        complete = asyncio.Event()

        async def hear(message: Any) -> None:
            heard.append(message.data)
            if len(heard) >= 20:
                complete.set()

        inbox = client.new_inbox()
        await client.subscribe(inbox, cb=hear)
        for _ in range(20):
            await client.publish("agent.rl.training.status.request", b'{"job_id": "asked-of-two"}', reply=inbox)
        await client.flush()
        await complete.wait()
        # A second answer would come at once: the server asks every member of a group, or one.
        await client.request("agent.rl.training.status.request", b'{"job_id": "asked-of-two"}', timeout=30)
        await client.close()
        return heard

    with ServiceProcess(service.directory / "second", stores) as second:

        def is_connected() -> bool:
            health = httpx.get(f"{second.url}/health", headers={"X-API-Key": KEY}, timeout=60).json()
            return bool(health["components"]["nats"]["status"] == "ok")

        wait_until(is_connected, "a second replica")
        heard = asyncio.run(answers())
    assert len(heard) == 20
    assert {json.loads(data)["job_id"] for data in heard} == {"asked-of-two"}


def test_no_secret_and_nothing_that_callers_say_is_in_the_log(client: httpx.Client, service: ServiceProcess) -> None:
    client.post("/feedback", json=feedback(3, kind="comment", text="the words of a caller"))
    client.post("/coordinator", json={"message": "the words of a caller"})
    client.get("/trajectories/the-words-of-a-caller")
    log = service.log.read_text()
    assert KEY not in log
    assert "words" not in log


def test_an_audit_finds_in_the_log_who_asked_for_what(
    client: httpx.Client, service: ServiceProcess, streams: JetStream
) -> None:
    job = client.post("/training/start", json={"algorithm": "sft"}).json()["job_id"]
    client.post(f"/training/{job}/cancel")
    client.post("/feedback", json=feedback(4))
    before, candidate = model_at("model-3", "http://127.0.0.1:9"), model_at("model-4", "http://127.0.0.1:9")
    generation = client.get("/deployments/current").json()["generation"] + 1
    record(streams, ramping(generation, before, candidate, 0.1, deployment_id="deployment-4"))
    client.post("/deployments/freeze").raise_for_status()
    lines = [json.loads(line) for line in service.log.read_text().splitlines() if line.startswith("{")]
    about_job = [line["message"] for line in lines if line.get("job_id") == job]
    assert about_job == ["a training was asked for, sent by NATS", "admin asked to cancel it, sent by NATS"]
    assert "admin handed in feedback" in [line["message"] for line in lines if line.get("trajectory_id") == TRAJECTORY]
    [frozen] = [line for line in lines if line.get("deployment_id") == "deployment-4"]
    assert (frozen["message"], frozen["generation"]) == ("admin ordered it: frozen", generation + 1)
