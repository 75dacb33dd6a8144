"""What leaves an agent is already redacted."""

import json
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import Any

import pytest

from rl_pipeline.collection import outgoing_message, publish_trajectory
from rl_pipeline.collection.samples import sample_trajectories
from rl_pipeline.contracts import Feedback, Trajectory, serialize, validate_trajectory
from rl_pipeline.redaction.policy import RedactionKey, RedactionPolicy
from rl_pipeline.redaction.redactor import Redactor, SensitiveKey
from rl_pipeline.stores.disk import DiskObjects
from rl_pipeline.stores.jetstream import JetStream

SECRET = "ghp_q1W2e3R4t5Y6u7I8o9P0a1S2d3F4g5H6j7K8"


@pytest.fixture(scope="module")
def redactor() -> Redactor:
    return Redactor(RedactionPolicy(RedactionKey.parse("edge:a-key-for-tests-that-protects-nothing")))


def trajectory(content: Any, **task_context: Any) -> Trajectory:
    (made,) = sample_trajectories(1, now=datetime(2026, 1, 1, tzinfo=UTC), randomness=Random(5))
    tree = json.loads(serialize(made))
    tree["turns"][0]["observation"]["content"] = content
    tree["task_context"] |= task_context
    return validate_trajectory(tree)


def test_a_secret_does_not_reach_the_stream_nor_the_store_of_large_payloads(
    stream: JetStream, redactor: Redactor, tmp_path: Path
) -> None:
    objects = DiskObjects(tmp_path)
    for content in (f"push with {SECRET}", f"push with {SECRET} " + "and so on " * 60_000):
        publish_trajectory(stream, trajectory(content), lambda: objects, redactor)
    [(message,)] = stream.read("RL_TRAJECTORIES", 1, 1, 1)
    [stored] = objects.list()
    for data in (message.data, objects.get(stored.key)):
        assert SECRET.encode() not in data
        assert b"[REDACTED:API_KEY:" in data


def test_the_users_id_stays_so_that_opting_out_and_erasure_find_it(redactor: Redactor) -> None:
    sent = json.loads(outgoing_message(trajectory("hello", user_id="ada@analytical.org"), redactor=redactor).data)
    assert sent["task_context"]["user_id"] == "ada@analytical.org"
    named_elsewhere = json.loads(serialize(trajectory("hello")))
    named_elsewhere["metadata"] |= {"user_id": "ada@analytical.org", "note": "by ada@analytical.org"}
    sent = json.loads(outgoing_message(validate_trajectory(named_elsewhere), redactor=redactor).data)
    assert sent["metadata"]["user_id"] == "ada@analytical.org"
    assert "ada@" not in sent["metadata"]["note"]


def test_the_ids_of_those_who_rated_or_spoke_stay_too(redactor: Redactor) -> None:
    named = json.loads(serialize(trajectory("hello")))
    named["metadata"] |= {"feedback": [{"kind": "thumbs_up", "user_id": "bob@analytical.org", "text": "bob@other.org"}]}
    named["turns"][0]["observation"]["user_id"] = "eve@analytical.org"
    sent = json.loads(outgoing_message(validate_trajectory(named), redactor=redactor).data)
    [opinion] = sent["metadata"]["feedback"]
    assert (opinion["user_id"], "bob@" in opinion["text"]) == ("bob@analytical.org", False)
    assert sent["turns"][0]["observation"]["user_id"] == "eve@analytical.org"


def test_what_people_write_as_feedback_is_redacted_too(redactor: Redactor) -> None:
    feedback = Feedback.model_validate(
        {
            "feedback_id": "feedback-1",
            "trajectory_id": "3f2b8c1e-5d4a-4b6f-9e7d-1a2b3c4d5e6f",
            "user_id": "user-19",
            "timestamp": "2026-01-01T12:00:00Z",
            "kind": "comment",
            "text": "Write to ada@analytical.org instead.",
        }
    )
    sent = outgoing_message(feedback, redactor=redactor)
    assert b"ada@" not in sent.data
    assert sent.message_id == "feedback-1"


def test_a_secret_as_the_name_of_a_field_is_refused_before_it_is_sent(redactor: Redactor) -> None:
    with pytest.raises(SensitiveKey) as refused:
        outgoing_message(trajectory({SECRET: "used"}), redactor=redactor)
    assert SECRET not in str(refused.value)
