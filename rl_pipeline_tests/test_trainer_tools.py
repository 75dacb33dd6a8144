"""The trainer's tools, called as its profile writes them."""

import json
import shutil
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from rl_pipeline.contracts import ContractError, ModelDeployed, TrainingRequest
from rl_pipeline.deployment.admission import NotAdmitted
from rl_pipeline.deployment.announcing import DEPLOYED_BY, DEPLOYED_SUBJECT
from rl_pipeline.deployment.releases import Releases
from rl_pipeline.embedded.nats_server import NatsServer
from rl_pipeline.serving.fetching import ModelElsewhere
from rl_pipeline.stores.clickhouse import ClickHouseWarehouse
from rl_pipeline.stores.disk import DiskObjects
from rl_pipeline.stores.jetstream import JetStream
from rl_pipeline.stores.objects import InvalidKey
from rl_pipeline.trainer_tools import (
    UnknownPattern,
    deploy_to_tensorzero,
    download_checkpoint,
    publish_nats,
    redact_sensitive_info,
    run_benchmarks,
    subscribe_nats,
    validate_trajectory,
)
from rl_pipeline.training.checkpoints.releasing import CheckpointNotReleased, release
from rl_pipeline.training.checkpoints.signing import SignatureRejected, new_signing_key
from rl_pipeline.training.checkpoints.storage import saving
from rl_pipeline.training.plans.plan import TrainingPlan
from rl_pipeline.validation.storing import NothingToValidate, NotValidated
from rl_pipeline.validation.suite import UnknownSuite
from rl_pipeline_tests.training.job_tables import migrated_database
from rl_pipeline_tests.validation.stored_reports import a_report, store_a_report, store_checkpoint

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


def test_the_trainer_does_not_hear_its_own_announcements() -> None:
    announced = ModelDeployed.model_json_schema()["examples"][0]
    with subscribe_nats(subject=DEPLOYED_SUBJECT) as heard:
        for number, publisher in enumerate((DEPLOYED_BY, "another-pipeline")):
            metadata = {**announced["metadata"], "deployed_by": publisher}
            publish_nats(DEPLOYED_SUBJECT, {**announced, "deployment_id": f"deployment-{number}", "metadata": metadata})
        message = heard.next(wait_seconds=30)
    assert message is not None
    assert json.loads(message.data)["metadata"]["deployed_by"] == "another-pipeline"


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


@pytest.fixture
def released(tmp_path: Path, small_model: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The address of a checkpoint of the small model, signed by whom this deployment trusts."""
    key, plan = new_signing_key(), TrainingPlan(job_id="job", algorithm="rloo", base_model=str(small_model))
    with saving(tmp_path / "final", {"job_id": "job", "step": 1, "created": datetime.now(UTC)}) as staging:
        for file in small_model.iterdir():
            if file.name != "recipe.json":  # as training leaves it
                shutil.copy(file, staging)
        (staging / "training_plan.json").write_text(plan.model_dump_json())
    monkeypatch.setenv("MODEL_STORAGE_PATH", str(tmp_path / "store"))
    monkeypatch.setenv("CHECKPOINT_PUBLIC_KEYS", key.public_text())
    return release(tmp_path / "final", DiskObjects(tmp_path / "store"), "job/final", key).url


def test_a_checkpoint_is_downloaded_whole_and_signed_or_not_at_all(
    released: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = str(tmp_path / "checkpoints")
    fetched = Path(download_checkpoint(released, local_path=place))
    assert fetched == tmp_path / "checkpoints" / "job" / "final"
    assert (fetched / "model.safetensors").read_bytes() == (tmp_path / "final" / "model.safetensors").read_bytes()
    assert download_checkpoint(f"{released}/", local_path=place) == str(fetched)
    with pytest.raises(CheckpointNotReleased):
        download_checkpoint(released.replace("/job/", "/other/"), local_path=place)
    with pytest.raises(ModelElsewhere, match="MODEL_STORAGE_PATH"):
        download_checkpoint("s3://elsewhere/job/final", local_path=place)
    with pytest.raises(InvalidKey):
        download_checkpoint(released.replace("/job/", "/../../"), local_path=place)
    monkeypatch.setenv("CHECKPOINT_PUBLIC_KEYS", new_signing_key().public_text())
    with pytest.raises(SignatureRejected):
        download_checkpoint(released, local_path=str(tmp_path / "untrusted"))
    assert not (tmp_path / "untrusted" / "job" / "final").exists()


def test_benchmarks_are_run_on_a_downloaded_checkpoint(released: str, tmp_path: Path) -> None:
    model = download_checkpoint(released, local_path=str(tmp_path / "checkpoints"))
    [(name, found)] = run_benchmarks(model, tasks=["tools"]).items()
    assert (name, found["items"]) == ("tool_usage", 200)
    assert 0 <= found["interval"][0] < found["score"] < found["interval"][1] <= 1
    assert found["score"] > 0.3, "the suites are those of the world that it knows"
    with pytest.raises(UnknownSuite, match="no benchmark 'poetry'"):
        run_benchmarks(model, tasks=["poetry"])


@pytest.fixture
def tables(clickhouse_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[ClickHouseWarehouse]:
    with migrated_database(clickhouse_url) as tables:
        monkeypatch.setenv("CLICKHOUSE_URL", clickhouse_url)
        monkeypatch.setenv("CLICKHOUSE_DATABASE", tables.database)
        yield tables


def test_a_validated_checkpoint_is_deployed_and_no_other(tables: ClickHouseWarehouse, tmp_path: Path) -> None:
    with pytest.raises(NothingToValidate):
        deploy_to_tensorzero("agent-zero-rl-v2.3", "s3://models/unknown")
    path = store_checkpoint(tables, "job")
    with pytest.raises(NotValidated):
        deploy_to_tensorzero("agent-zero-rl-v2.3", path)
    store_a_report(tables, tmp_path, "job", a_report("refuse"))
    with pytest.raises(NotAdmitted, match="the model in service stays"):
        deploy_to_tensorzero("agent-zero-rl-v2.3", path)
    store_a_report(tables, tmp_path, "job", a_report(), datetime.now(UTC))
    with pytest.raises(NotAdmitted, match="bolder"):
        deploy_to_tensorzero("agent-zero-rl-v2.3", path, rollout_strategy="immediate")
    told = deploy_to_tensorzero(model_id="agent-zero-rl-v2.3", checkpoint_path=f"{path}/", rollout_strategy="canary")
    assert (told["model_id"], told["rollout_strategy"], told["state"]) == ("agent-zero-rl-v2.3", "canary", "waiting")
    assert told["traffic_percentages"] == [10, 25, 50]
    waiting = Releases(tables).of_job("job")
    assert waiting is not None
    assert (waiting.model.model_id, waiting.deployment_id) == ("agent-zero-rl-v2.3", told["deployment_id"])
    assert deploy_to_tensorzero("another name", path) == told, "it is the same release"
