"""What was asked while NATS was away, kept in the real warehouse and published to the real stream."""

import json
from datetime import timedelta

import pytest

from rl_pipeline.collection.publishing import outgoing_message
from rl_pipeline.contracts import TrainingCancel
from rl_pipeline.stores.clickhouse import ClickHouseWarehouse
from rl_pipeline.stores.jetstream import JetStream
from rl_pipeline.stores.stream import Published, StreamUnavailable
from rl_pipeline.training.jobs import outbox
from rl_pipeline_tests.training.job_values import NOW, a_request


class DiesAfterPublishing:
    """A sensor's stream: what it is given is stored, and then it is killed."""

    def __init__(self, stream: JetStream) -> None:
        self._stream = stream

    def publish(self, *message: object) -> Published:
        self._stream.publish(*message)  # type: ignore[arg-type]
        raise StreamUnavailable("killed: start it again")


def subjects(stream: JetStream) -> list[tuple[str, str]]:
    last = stream.state("RL_TRAINING").last_sequence
    found = [message for batch in stream.read("RL_TRAINING", 1, last, 100) for message in batch]
    return [(one.subject.split(".")[3], json.loads(one.data)["training_job_id"]) for one in found]


def test_what_is_kept_is_published_once_and_in_its_order(warehouse: ClickHouseWarehouse, stream: JetStream) -> None:
    request = outgoing_message(a_request("job-b"))
    cancel = outgoing_message(TrainingCancel(training_job_id="job-b", timestamp=NOW, requester="tests"))
    for _ in range(2):
        outbox.keep(warehouse, request, "job-b", NOW)
    outbox.keep(warehouse, cancel, "job-b", NOW + timedelta(seconds=1))
    outbox.keep(warehouse, outgoing_message(a_request("job-a")), "job-a", NOW + timedelta(seconds=2))
    assert outbox.kept_requests(warehouse, ["job-a", "job-b", "nobodys"]) == {
        job: a_request(job) for job in ("job-a", "job-b")
    }

    with pytest.raises(StreamUnavailable):
        outbox.publish_kept(DiesAfterPublishing(stream), warehouse, NOW)  # type: ignore[arg-type]
    assert len(outbox.publish_kept(stream, warehouse, NOW)) == 3
    assert subjects(stream) == [("request", "job-b"), ("cancel", "job-b"), ("request", "job-a")]
    assert outbox.publish_kept(stream, warehouse, NOW) == []
    assert outbox.kept_requests(warehouse, ["job-a", "job-b"]) == {}
    # Kept once more by somebody who was slow, it stays published.
    outbox.keep(warehouse, request, "job-b", NOW)
    assert outbox.publish_kept(stream, warehouse, NOW) == []
