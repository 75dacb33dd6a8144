"""The streams and consumers as they are created, and what happens when others exist already."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from rl_pipeline.embedded.nats_server import NatsServer
from rl_pipeline.stores.jetstream import JetStream
from rl_pipeline.stores.topology import (
    ADVISORIES,
    BUCKETS,
    DEPLOYMENT,
    LEASES,
    STREAMS,
    BucketSpec,
    TopologyConflict,
    bootstrap,
)
from rl_pipeline_tests.fixtures.nats import cluster_url, monitoring, remove_all_streams
from rl_pipeline_tests.waiting import wait_until

DAY = 24 * 3600 * 10**9


@pytest.fixture
def empty_server(nats_server: NatsServer) -> Iterator[JetStream]:
    with JetStream.connect(nats_server.url) as jetstream:
        remove_all_streams(jetstream)
        yield jetstream


def configuration(jetstream: JetStream, stream: str) -> dict[str, Any]:
    found: dict[str, Any] = jetstream.request(f"STREAM.INFO.{stream}")["config"]
    return found


SPECIFIED = [
    ("RL_TRAJECTORIES", ["agent.rl.trajectory.v1"], 30, 1_000_000),
    ("RL_REWARDS", ["agent.rl.reward.v1"], 30, 500_000),
    (
        "RL_TRAINING",
        ["agent.rl.training.request.v1", "agent.rl.training.status.v1", "agent.rl.training.cancel.v1"],
        7,
        10_000,
    ),
    ("RL_MODELS", ["agent.rl.model.>"], 90, -1),
    ("RL_FEEDBACK", ["agent.rl.feedback.v1"], 30, 1_000_000),
    ("RL_SERVING", ["agent.rl.serving.outcome.v1"], 7, -1),
    ("RL_REPORTS", ["agent.rl.report.v1", "agent.rl.alert.v1"], 90, -1),
    ("RL_DLQ", ["agent.rl.dlq.>"], 30, 1_000_000),
    ("RL_ADVISORIES", ["$JS.EVENT.ADVISORY.CONSUMER.MAX_DELIVERIES.*.*"], 30, 100_000),
]


@pytest.mark.parametrize(("name", "subjects", "days", "messages"), SPECIFIED, ids=[row[0] for row in SPECIFIED])
def test_a_stream_has_the_limits_of_its_specification(
    stream: JetStream, name: str, subjects: list[str], days: int, messages: int
) -> None:
    found = configuration(stream, name)
    assert (found["subjects"], found["max_age"], found["max_msgs"]) == (subjects, days * DAY, messages)
    assert (found["retention"], found["storage"], found["discard"]) == ("limits", "file", "old")
    assert (found["num_replicas"], found["allow_direct"], found["max_msg_size"]) == (1, True, 2**20)
    assert found["max_bytes"] > 0
    assert found["duplicate_window"] == 3600 * 10**9


def test_every_stream_is_specified_above() -> None:
    assert [spec.name for spec in STREAMS] == [row[0] for row in SPECIFIED]


def test_the_embedded_server_may_store_all_that_the_streams_may_hold(nats_server: NatsServer) -> None:
    most = sum(spec.max_bytes for spec in (*STREAMS, *BUCKETS))
    assert most < monitoring(nats_server, "jsz")["config"]["max_storage"]


@pytest.mark.parametrize(
    ("stream_name", "consumer", "most"),
    [
        ("RL_TRAINING", "training_requests", -1),
        ("RL_TRAINING", "training_cancellations", -1),
        ("RL_SERVING", "serving_outcomes", 10),
    ],
)
def test_a_durable_consumer_comes_again_in_steps_and_gives_up_late_or_never(
    stream: JetStream, stream_name: str, consumer: str, most: int
) -> None:
    found = stream.request(f"CONSUMER.INFO.{stream_name}.{consumer}")["config"]
    assert (found["durable_name"], found["ack_policy"], found["deliver_policy"]) == (consumer, "explicit", "all")
    assert "deliver_subject" not in found
    assert (found["max_deliver"], found["backoff"][0], found["backoff"][-1]) == (most, 30 * 10**9, 1800 * 10**9)


@pytest.mark.parametrize(("bucket", "values"), [(LEASES, 1), (DEPLOYMENT, 64)], ids=["leases", "deployment"])
def test_a_bucket_keeps_its_values_of_each_key_that_nobody_can_delete_and_that_may_end(
    stream: JetStream, bucket: BucketSpec, values: int
) -> None:
    found = configuration(stream, bucket.name)
    assert (found["name"], found["subjects"]) == (f"KV_{bucket.bucket}", [f"$KV.{bucket.bucket}.>"])
    assert (found["max_msgs_per_subject"], found["deny_delete"], found["allow_msg_ttl"]) == (values, True, True)


def test_a_second_bootstrap_changes_nothing_and_loses_nothing(empty_server: JetStream) -> None:
    first = bootstrap(empty_server)
    empty_server.publish("agent.rl.trajectory.v1", b"kept", "id-1")
    before = {spec.name: configuration(empty_server, spec.name) for spec in STREAMS}
    second = bootstrap(empty_server)
    assert len(first.created) == len(STREAMS) + len(BUCKETS) + 3
    assert (second.created, second.drift, second.notes) == ((), (), ())
    assert {spec.name: configuration(empty_server, spec.name) for spec in STREAMS} == before
    assert empty_server.get("RL_TRAJECTORIES", 1).data == b"kept"


def test_what_is_missing_is_created_beside_what_exists(stream: JetStream) -> None:
    stream.publish("agent.rl.trajectory.v1", b"kept", "id-1")
    stream.request("STREAM.DELETE.RL_DLQ")
    stream.request("CONSUMER.DELETE.RL_SERVING.serving_outcomes")
    assert bootstrap(stream).created == ("RL_SERVING.serving_outcomes", "RL_DLQ")
    assert stream.state("RL_TRAJECTORIES").messages == 1


def test_a_consumer_that_is_no_longer_specified_is_left_alone(stream: JetStream) -> None:
    # Earlier versions took feedback from a consumer.
    former = {"stream_name": "RL_FEEDBACK", "config": {"durable_name": "feedback", "ack_policy": "explicit"}}
    stream.request("CONSUMER.DURABLE.CREATE.RL_FEEDBACK.feedback", former)
    report = bootstrap(stream)
    assert (report.created, report.drift, report.notes) == ((), (), ())
    assert stream.request("CONSUMER.NAMES.RL_FEEDBACK")["consumers"] == ["feedback"]


def test_drift_is_reported_and_left_alone(empty_server: JetStream) -> None:
    literal = {"name": "RL_TRAJECTORIES", "subjects": ["agent.rl.trajectory.v1"], "max_age": 7 * DAY, "max_msgs": 5}
    empty_server.request("STREAM.CREATE.RL_TRAJECTORIES", literal)
    empty_server.publish("agent.rl.trajectory.v1", b"kept", "id-1")
    consumer = {"stream_name": "RL_SERVING", "config": {"durable_name": "serving_outcomes", "ack_policy": "explicit"}}
    serving = {"name": "RL_SERVING", "subjects": ["agent.rl.serving.outcome.v1"]}
    empty_server.request("STREAM.CREATE.RL_SERVING", serving)
    empty_server.request("CONSUMER.DURABLE.CREATE.RL_SERVING.serving_outcomes", consumer)
    # As earlier versions made it: a request was lost after ten deliveries.
    former = {"durable_name": "training_requests", "ack_policy": "explicit", "max_deliver": 10}
    training = {"name": "RL_TRAINING", "subjects": ["agent.rl.training.request.v1"]}
    empty_server.request("STREAM.CREATE.RL_TRAINING", training)
    empty_server.request(
        "CONSUMER.DURABLE.CREATE.RL_TRAINING.training_requests", {"stream_name": "RL_TRAINING", "config": former}
    )
    before = configuration(empty_server, "RL_TRAJECTORIES")
    report = bootstrap(empty_server)
    drift = {(drifted.where, drifted.setting): (drifted.expected, drifted.found) for drifted in report.drift}
    assert drift["RL_TRAJECTORIES", "max_age"] == ("30 days, 0:00:00", "7 days, 0:00:00")
    assert drift["RL_TRAJECTORIES", "max_msgs"] == ("1000000", "5")
    assert drift["RL_TRAJECTORIES", "max_bytes"] == ("100000000000", "unlimited")
    assert drift["RL_TRAJECTORIES", "allow_direct"] == ("True", "False")
    assert drift["RL_SERVING.serving_outcomes", "max_deliver"] == ("10", "unlimited")
    assert drift["RL_TRAINING.training_requests", "max_deliver"] == ("unlimited", "10")
    assert ("RL_TRAJECTORIES", "subjects") not in drift
    assert str(report.drift[0]).startswith("RL_TRAJECTORIES: max_age is 7 days")
    assert "RL_TRAJECTORIES" not in report.created
    assert configuration(empty_server, "RL_TRAJECTORIES") == before
    assert empty_server.state("RL_TRAJECTORIES").messages == 1


def test_a_training_stream_with_a_wildcard_is_accepted_and_its_consequence_reported(empty_server: JetStream) -> None:
    wide = {"name": "RL_TRAINING", "subjects": ["agent.rl.training.>"]}
    empty_server.request("STREAM.CREATE.RL_TRAINING", wide)
    report = bootstrap(empty_server)
    (note,) = report.notes
    assert "RL_TRAINING takes agent.rl.training.>" in note
    assert "agent.rl.training.status.request with a PubAck" in note
    assert not [drifted for drifted in report.drift if drifted.setting == "subjects"]
    assert configuration(empty_server, "RL_TRAINING")["subjects"] == ["agent.rl.training.>"]
    # The consequence is real, and the specified subjects avoid it.
    assert empty_server.publish("agent.rl.training.status.request", b"{}", "query").sequence == 1


def test_the_status_query_stays_free_of_the_training_stream(stream: JetStream) -> None:
    assert stream.request("STREAM.NAMES", {"subject": "agent.rl.training.status.request"})["streams"] is None


@pytest.mark.parametrize("foreign", ["agent.rl.trajectory.v1", "agent.rl.model.deployed.v1", "agent.>"])
def test_a_subject_that_another_stream_takes_is_refused_before_anything_is_created(
    empty_server: JetStream, foreign: str
) -> None:
    empty_server.request("STREAM.CREATE.FOREIGN", {"name": "FOREIGN", "subjects": [foreign]})
    with pytest.raises(TopologyConflict, match=r"the stream FOREIGN takes agent\.rl\..*bootstrap again"):
        bootstrap(empty_server)
    assert empty_server.request("STREAM.NAMES")["streams"] == ["FOREIGN"]


def test_more_replicas_than_servers_says_what_to_set(empty_server: JetStream) -> None:
    with pytest.raises(TopologyConflict, match="NATS_REPLICAS"):
        bootstrap(empty_server, replicas=3)


def test_a_cluster_keeps_every_stream_three_times(nats_cluster: list[NatsServer]) -> None:
    with JetStream.connect(cluster_url(nats_cluster)) as jetstream:
        remove_all_streams(jetstream)
        bootstrap(jetstream, replicas=3)
        assert {configuration(jetstream, spec.name)["num_replicas"] for spec in (*STREAMS, *BUCKETS)} == {3}
        assert bootstrap(jetstream, replicas=3).drift == ()
        assert {drifted.setting for drifted in bootstrap(jetstream, replicas=1).drift} == {"num_replicas"}


def test_a_message_that_a_consumer_gave_up_on_is_not_lost_silently(stream: JetStream) -> None:
    hasty = {"durable_name": "hasty", "ack_policy": "explicit", "max_deliver": 2}
    stream.request("CONSUMER.DURABLE.CREATE.RL_FEEDBACK.hasty", {"stream_name": "RL_FEEDBACK", "config": hasty})
    stream.publish("agent.rl.feedback.v1", b"poison", "id-1")
    for attempt in (1, 2):
        (delivery,) = stream.fetch("RL_FEEDBACK", "hasty", 1, 10)
        assert delivery.attempt == attempt
        delivery.nak()
    # JetStream notices at the next request that the limit is reached.
    assert stream.fetch("RL_FEEDBACK", "hasty", 1, 0.1) == []
    wait_until(lambda: stream.state(ADVISORIES.name).messages == 1)
    advisory = json.loads(stream.get(ADVISORIES.name, 1).data)
    assert (advisory["stream"], advisory["consumer"], advisory["stream_seq"]) == ("RL_FEEDBACK", "hasty", 1)
    assert stream.get("RL_FEEDBACK", advisory["stream_seq"]).data == b"poison"
