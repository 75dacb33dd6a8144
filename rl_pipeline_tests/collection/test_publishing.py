"""What leaves an agent: only what keeps its contract, each once, and with nothing installed but an agent's needs."""

import json
import math
import subprocess
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from hashlib import sha256
from importlib import metadata
from pathlib import Path
from random import Random
from typing import Any

import pytest
from packaging.requirements import Requirement

from rl_pipeline.collection import outgoing_message, publish_nats, publish_trajectory, subscribe_nats
from rl_pipeline.collection.publishing import CLAIM_CHECK_ABOVE_BYTES
from rl_pipeline.collection.samples import sample_trajectories
from rl_pipeline.contracts import (
    ALL_TOPICS,
    CLAIMED_LIMITS,
    ContractError,
    Trajectory,
    TrajectoryReference,
    UnknownSubject,
    parse_message,
    read_claimed_trajectory,
    serialize,
    validate_trajectory,
)
from rl_pipeline.embedded.nats_server import NatsServer
from rl_pipeline.stores.disk import DiskObjects
from rl_pipeline.stores.jetstream import JetStream
from rl_pipeline.stores.stream import PublishRefused

TRAJECTORY = "agent.rl.trajectory.v1"


def trajectory(size: int = 1, seed: int = 1) -> Trajectory:
    """A trajectory whose first observation has this many characters."""
    (made,) = sample_trajectories(1, now=datetime(2025, 12, 8, 12, tzinfo=UTC), randomness=Random(seed))
    tree = json.loads(serialize(made))
    tree["turns"][0]["observation"]["content"] = "x" * size
    return validate_trajectory(tree, limits=CLAIMED_LIMITS)


def example(subject: str) -> dict[str, Any]:
    examples: list[dict[str, Any]] = ALL_TOPICS[subject].message.model_json_schema()["examples"]
    return examples[0]


def stream_of(stream: JetStream, subject: str) -> str:
    return str(stream.request("STREAM.NAMES", {"subject": subject})["streams"][0])


def test_a_trajectory_published_twice_is_stored_once_under_its_id(stream: JetStream) -> None:
    sent = trajectory()
    assert not publish_trajectory(stream, sent).duplicate
    assert publish_trajectory(stream, sent).duplicate
    stored = stream.get("RL_TRAJECTORIES", 1)
    assert stored.message_id == sent.trajectory_id
    assert parse_message(stored.subject, stored.data) == sent


@pytest.mark.parametrize("subject", ALL_TOPICS)
def test_every_kind_of_message_is_published_on_its_subject_and_stored_once(stream: JetStream, subject: str) -> None:
    payload = example(subject)
    assert not publish_nats(stream, subject, payload).duplicate
    assert publish_nats(stream, subject, json.dumps(payload)).duplicate
    assert publish_nats(stream, subject, parse_message(subject, json.dumps(payload).encode())).duplicate
    stored = stream.get(stream_of(stream, subject), 1)
    assert parse_message(subject, stored.data) == parse_message(subject, json.dumps(payload).encode())


@pytest.mark.parametrize(
    ("subject", "change"),
    [
        ("agent.rl.training.status.v1", {"timestamp": "2031-01-01T00:00:00Z"}),
        ("agent.rl.model.deployed.v1", {"timestamp": "2031-01-01T00:00:00Z"}),
    ],
)
def test_two_events_of_one_job_or_deployment_are_two_messages(
    stream: JetStream, subject: str, change: Mapping[str, Any]
) -> None:
    payload = example(subject)
    publish_nats(stream, subject, payload)
    assert not publish_nats(stream, subject, {**payload, **change}).duplicate


@pytest.mark.parametrize(
    ("payload", "limit"),
    [
        (b"not json", "json"),
        ({"trajectory_id": "no uuid"}, ""),
        ({**example(TRAJECTORY), "unknown": 1}, "unknown_field"),
        ({"value": math.nan}, ""),
        ({"value": object()}, "not_json_value"),
        ("lone \ud800 surrogate", "not_json_value"),
    ],
    ids=["text", "no-uuid", "unknown-field", "nan", "object", "surrogate"],
)
def test_what_breaks_its_contract_never_leaves(stream: JetStream, payload: Any, limit: str) -> None:
    with pytest.raises(ContractError) as refusal:
        publish_nats(stream, TRAJECTORY, payload)
    assert limit in refusal.value.limit
    assert stream.state("RL_TRAJECTORIES").messages == 0


def test_an_unknown_subject_is_refused_with_the_known_ones(stream: JetStream) -> None:
    with pytest.raises(UnknownSubject, match=TRAJECTORY):
        publish_nats(stream, "agent.rl.unknown.v1", {})


def test_without_validation_any_strict_json_is_published_once(stream: JetStream) -> None:
    assert not publish_nats(stream, "agent.rl.dlq.test", {"free": "form"}, schema_validate=False).duplicate
    assert publish_nats(stream, "agent.rl.dlq.test", {"free": "form"}, schema_validate=False).duplicate
    with pytest.raises(ContractError):
        publish_nats(stream, "agent.rl.dlq.test", {"value": math.inf}, schema_validate=False)


def test_a_trajectory_above_the_threshold_is_refused_without_an_object_store(stream: JetStream) -> None:
    sent = trajectory(CLAIM_CHECK_ABOVE_BYTES)
    with pytest.raises(PublishRefused, match=f"{sent.trajectory_id}.*524288.*claim check: pass an object store"):
        publish_trajectory(stream, sent)
    assert stream.state("RL_TRAJECTORIES").messages == 0


@pytest.mark.parametrize("size", [CLAIM_CHECK_ABOVE_BYTES, 3 * 2**20])
def test_a_trajectory_above_the_threshold_travels_by_claim_check(stream: JetStream, tmp_path: Path, size: int) -> None:
    objects = DiskObjects(tmp_path)
    sent = trajectory(size)
    publish_trajectory(stream, sent, lambda: objects)
    assert publish_nats(stream, TRAJECTORY, sent, open_objects=lambda: objects).duplicate
    stored = stream.get("RL_TRAJECTORIES", 1)
    assert stored.message_id == sent.trajectory_id
    assert len(stored.data) < 2000
    reference = parse_message(TRAJECTORY, stored.data)
    assert isinstance(reference, TrajectoryReference)
    content = objects.get(reference.claim_check.key)
    assert reference.claim_check.sha256 == sha256(content).hexdigest()
    assert read_claimed_trajectory(reference, content) == sent


def test_the_threshold_is_the_size_of_the_whole_message(tmp_path: Path) -> None:
    objects = DiskObjects(tmp_path)
    rest = len(serialize(trajectory(1))) - 1
    at_the_threshold = outgoing_message(trajectory(CLAIM_CHECK_ABOVE_BYTES - rest), lambda: objects)
    assert len(at_the_threshold.data) == CLAIM_CHECK_ABOVE_BYTES
    assert len(outgoing_message(trajectory(CLAIM_CHECK_ABOVE_BYTES - rest + 1), lambda: objects).data) < 2000


def test_another_trajectory_under_the_same_id_does_not_replace_what_was_claimed(tmp_path: Path) -> None:
    objects = DiskObjects(tmp_path)
    keys = set()
    for size in (CLAIM_CHECK_ABOVE_BYTES, CLAIM_CHECK_ABOVE_BYTES + 1):
        reference = parse_message(TRAJECTORY, outgoing_message(trajectory(size), lambda: objects).data)
        assert isinstance(reference, TrajectoryReference)
        keys.add(reference.claim_check.key)
        assert reference.claim_check.key.startswith(f"2025-12-08/{reference.trajectory_id}-")
    assert len(keys) == 2


@pytest.mark.parametrize("group", ["rl-trainers", "rl-workers"])
def test_a_queue_group_hears_each_message_once(stream: JetStream, nats_server: NatsServer, group: str) -> None:
    with (
        JetStream.connect(nats_server.url) as other,
        subscribe_nats(stream, TRAJECTORY, group) as one,
        subscribe_nats(other, TRAJECTORY, group) as two,
        subscribe_nats(other, TRAJECTORY, "another-group") as apart,
    ):
        sent = [trajectory(seed=seed) for seed in range(20)]
        for each in sent:
            publish_trajectory(stream, each)
        expected = sorted(serialize(each) for each in sent)
        assert sorted(apart.next(10).data for _ in sent) == expected  # type: ignore[union-attr]
        heard: list[bytes] = []
        while len(heard) < len(sent):
            heard += [message.data for member in (one, two) if (message := member.next(0.01))]
        assert sorted(heard) == expected
        assert one.next(0.05) is two.next(0.05) is None


def test_the_trainers_are_the_usual_group_and_silence_is_nothing(stream: JetStream) -> None:
    with subscribe_nats(stream, "agent.rl.reward.v1") as subscription:
        assert subscription.next(0.05) is None
        stream.publish("agent.rl.reward.v1", b"reward", "id-1", {"Publisher": "me"})
        message = subscription.next(10)
    assert message is not None
    assert (message.subject, message.data) == ("agent.rl.reward.v1", b"reward")
    assert message.headers["Publisher"] == "me"
    stream.publish("agent.rl.reward.v1", b"later", "id-2")
    assert subscription.next(0.05) is None


AGENT = """
import importlib, sys

class OnlyWhatAnAgentHas:
    def find_spec(self, name, path=None, target=None):
        top = name.partition(".")[0]
        if top not in {allowed!r} and top not in sys.stdlib_module_names and not top.startswith("_sysconfigdata"):
            raise ModuleNotFoundError(f"an agent has no {{top}}", name=name)

sys.meta_path.insert(0, OnlyWhatAnAgentHas())
for absent in ("polars", "torch", "dagster"):
    try:
        importlib.import_module(absent)
    except ModuleNotFoundError:
        continue
    sys.exit(f"{{absent}} is there")

from rl_pipeline.collection import JetStream, publish_trajectory
from rl_pipeline.contracts import validate_trajectory

with JetStream.connect({url!r}) as stream:
    print(publish_trajectory(stream, validate_trajectory(sys.stdin.buffer.read())))
"""


def modules_of_a_plain_installation() -> set[str]:
    """The top-level modules of what `pip install rl-pipeline` brings, and of what that needs in turn."""
    wanted, distributions = ["rl-pipeline"], set[str]()
    while wanted:
        name = wanted.pop().lower().replace("_", "-")
        if name in distributions:
            continue
        distributions.add(name)
        for line in metadata.requires(name) or ():
            requirement = Requirement(line)
            if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
                wanted.append(requirement.name)
    modules = metadata.packages_distributions()
    provided = {
        module
        for module, providers in modules.items()
        if {provider.lower().replace("_", "-") for provider in providers} & distributions
    }
    return provided | {"rl_pipeline"}


def test_an_agent_publishes_with_nothing_but_the_base_dependencies(stream: JetStream, nats_server: NatsServer) -> None:
    allowed = modules_of_a_plain_installation()
    assert {"nats", "pydantic", "pydantic_settings", "typer"} <= allowed
    assert not {"polars", "torch", "dagster", "numpy", "orjson"} & allowed
    program = AGENT.format(allowed=allowed, url=nats_server.url)
    sent = trajectory()
    outcome = subprocess.run([sys.executable, "-c", program], input=serialize(sent), capture_output=True, check=False)
    assert outcome.returncode == 0, outcome.stderr.decode()
    assert stream.get("RL_TRAJECTORIES", 1).message_id == sent.trajectory_id
