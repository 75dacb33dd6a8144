"""The trainer's tools, called as its profile writes them."""

import json
from pathlib import Path

import pytest

from rl_pipeline.contracts import ContractError, TrainingRequest
from rl_pipeline.embedded.nats_server import NatsServer
from rl_pipeline.stores.jetstream import JetStream
from rl_pipeline.trainer_tools import (
    UnknownPattern,
    publish_nats,
    redact_sensitive_info,
    subscribe_nats,
    validate_trajectory,
)

[REQUEST] = TrainingRequest.model_json_schema()["examples"][:1]


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, nats_server: NatsServer, stream: JetStream) -> None:
    monkeypatch.setenv("NATS_URL", nats_server.url)
    monkeypatch.setenv("RL_PIPELINE_HOME", str(tmp_path))


def test_a_published_request_is_in_the_stream(stream: JetStream) -> None:
    published = publish_nats(subject="agent.rl.training.request.v1", payload=REQUEST, schema_validate=True)
    stored = stream.get("RL_TRAINING", published.sequence)
    assert json.loads(stored.data)["training_job_id"] == REQUEST["training_job_id"]


def test_a_payload_that_breaks_its_contract_does_not_leave(stream: JetStream) -> None:
    with pytest.raises(ContractError):
        publish_nats(subject="agent.rl.training.request.v1", payload={**REQUEST, "trigger_reason": "boredom"})
    assert stream.state("RL_TRAINING").messages == 0


@pytest.mark.parametrize("queue_group", ["rl-trainers", "rl-workers"])
def test_a_subscriber_of_either_group_hears_what_is_published(queue_group: str) -> None:
    with subscribe_nats(subject="agent.rl.training.request.v1", queue_group=queue_group) as heard:
        publish_nats(subject="agent.rl.training.request.v1", payload=REQUEST)
        message = heard.next(wait_seconds=30)
    assert message is not None
    assert json.loads(message.data)["training_job_id"] == REQUEST["training_job_id"]


def test_a_trajectory_is_validated_by_the_name_of_its_schema() -> None:
    with pytest.raises(ContractError):
        validate_trajectory({"turns": []}, schema="trajectory.v1.schema.json")


def test_sensitive_info_is_redacted_by_the_patterns_that_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REDACTION_KEY", "v1:a-key-for-tests-that-protects-nothing")
    token = "ghp_q1W2e3R4t5Y6u7I8o9P0a1S2d3F4g5H6j7K8"
    data = {"note": f"{token} and ada@analytical.org, +1 415 555 2671", "password": "correct-horse-7"}
    default = redact_sensitive_info(data)
    assert token not in default["note"]
    assert "ada@" not in default["note"]
    assert "+1 415 555 2671" in default["note"]
    assert default["password"].startswith("[REDACTED:PASSWORD:")
    assert "ada@" in redact_sensitive_info(data, patterns=["api_key"])["note"]
    assert "+1 415" not in redact_sensitive_info(data, patterns=["phone"])["note"]
    assert data["password"] == "correct-horse-7", "the given data is as it was"


def test_an_unknown_pattern_is_told_with_those_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REDACTION_KEY", "v1:a-key-for-tests-that-protects-nothing")
    with pytest.raises(UnknownPattern, match="no pattern 'shoe_size': use address, api_key"):
        redact_sensitive_info({}, patterns=["shoe_size"])
