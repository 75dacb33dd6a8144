import json
import pickle
from typing import Any

import pytest

from rl_pipeline.contracts import (
    ALL_TOPICS,
    EXTENSION_TOPICS,
    TOPICS,
    ContractError,
    Feedback,
    ParseLimits,
    Trajectory,
    TrajectoryReference,
    UnknownSubject,
    parse_message,
    read_claimed_trajectory,
    serialize,
    subject_of,
    validate_trajectory,
)
from rl_pipeline_tests.contracts.documents import examples, replaced

SUBJECT = "agent.rl.trajectory.v1"
EXAMPLE = dict(examples())[SUBJECT]
WHOLE = next(example for subject, example in examples() if subject == SUBJECT and "turns" in example)


def encoded(tree: Any) -> bytes:
    return json.dumps(tree).encode()


def refusal(subject: str, tree: Any) -> ContractError:
    with pytest.raises(ContractError) as caught:
        parse_message(subject, encoded(tree))
    return caught.value


def test_exactly_the_five_subjects_of_the_specification_are_topics() -> None:
    assert list(TOPICS) == [
        "agent.rl.trajectory.v1",
        "agent.rl.reward.v1",
        "agent.rl.training.request.v1",
        "agent.rl.training.status.v1",
        "agent.rl.model.deployed.v1",
    ]
    assert list(EXTENSION_TOPICS) == [
        "agent.rl.feedback.v1",
        "agent.rl.training.cancel.v1",
        "agent.rl.serving.outcome.v1",
        "agent.rl.report.v1",
        "agent.rl.alert.v1",
    ]


@pytest.mark.parametrize("subject", ["agent.rl.trajectory.v2", "agent.rl.training.status.request", "", ">"])
def test_an_unknown_subject_is_refused_with_the_known_ones(subject: str) -> None:
    with pytest.raises(UnknownSubject) as caught:
        parse_message(subject, b"{}")

    assert all(known in str(caught.value) for known in ALL_TOPICS)
    assert isinstance(caught.value, ContractError)
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


@pytest.mark.parametrize(("subject", "example"), examples())
def test_a_message_reads_the_same_bare_and_in_an_envelope(subject: str, example: dict[str, Any]) -> None:
    envelope = {"id": "1", "topic": subject, "ts": "2025-12-08T12:00:00Z", "version": "v1", "source": "a0"}

    bare = parse_message(subject, encoded(example))

    assert parse_message(subject, encoded({**envelope, "payload": example})) == bare
    assert subject_of(bare) == subject


def test_an_envelope_on_another_subject_is_refused() -> None:
    envelope = {
        "id": "1",
        "topic": "agent.rl.reward.v1",
        "ts": "now",
        "version": "v1",
        "source": "a0",
        "payload": WHOLE,
    }

    assert (refusal(SUBJECT, envelope).limit, refusal(SUBJECT, envelope).path) == ("topic_mismatch", "topic")


def test_errors_inside_an_envelope_are_located_from_its_top() -> None:
    envelope = {"id": "1", "topic": SUBJECT, "ts": "now", "version": "v1", "source": "a0"}

    assert refusal(SUBJECT, {**envelope, "payload": replaced(WHOLE, ("turns", 0, "turn_id"), 0)}).path == (
        "payload.turns[0].turn_id"
    )
    assert refusal(SUBJECT, {**envelope, "payload": [WHOLE]}).path == "payload"
    assert refusal(SUBJECT, {"payload": WHOLE}).limit == "missing"
    assert refusal(SUBJECT, {**envelope, "payload": WHOLE, "further": 1}).limit == "unknown_field"


@pytest.mark.parametrize("tree", [[], "text", 1, None, True, {}])
@pytest.mark.parametrize("subject", ALL_TOPICS)
def test_json_that_is_no_message_is_refused(subject: str, tree: Any) -> None:
    assert refusal(subject, tree).limit in ("type", "missing")


def test_of_several_errors_the_first_is_named_and_the_others_counted() -> None:
    broken = replaced(replaced(WHOLE, ("agent_id",), 5), ("metadata", "model"), None)

    error = refusal(SUBJECT, broken)

    assert (error.limit, error.path, error.value_type, error.more) == ("type", "agent_id", "integer", 1)
    assert "1 more errors" in str(error)


def test_hundreds_of_thousands_of_bad_turns_give_one_error() -> None:
    error = refusal(SUBJECT, {**WHOLE, "turns": [1] * 300_000})

    assert (error.path, error.more) == ("turns[0]", 0)


def test_a_message_emits_compact_utf8() -> None:
    feedback = Feedback.model_validate(
        {
            "feedback_id": "f",
            "trajectory_id": WHOLE["trajectory_id"].upper(),
            "timestamp": "2025-12-08T12:07:00.5+01:00",
            "kind": "comment",
            "text": "schön",
        }
    )

    emitted = serialize(feedback).decode()

    assert '"text":"schön"' in emitted
    assert ": " not in emitted
    assert f'"trajectory_id":"{WHOLE["trajectory_id"]}"' in emitted
    assert '"timestamp":"2025-12-08T11:07:00.500000Z"' in emitted


def _nested(depth: int) -> Any:
    value: Any = 0
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("value", "limit"),
    [
        (float("nan"), "not_finite"),
        ([float("-inf")], "not_finite"),
        ("\udce9", "lone_surrogate"),
        ({"\udce9": 1}, "lone_surrogate"),
        (_nested(64), "max_depth"),
        (_nested(50_000), "max_depth"),
        (10**308, "max_integer_digits"),
        (object(), "not_json_value"),
    ],
    ids=["nan", "infinity", "surrogate", "surrogate-key", "deep", "bottomless", "integer", "object"],
)
def test_a_message_made_in_code_that_no_reader_would_accept_is_not_emitted(value: Any, limit: str) -> None:
    tree = replaced(WHOLE, ("metadata", "further"), value)

    with pytest.raises(ContractError) as emitting:
        serialize(Trajectory.model_validate(tree))
    with pytest.raises(ContractError) as validating:
        validate_trajectory(tree)

    assert emitting.value.limit == validating.value.limit == limit
    assert emitting.value.__context__ is None


@pytest.mark.parametrize("form", [lambda tree: tree, json.dumps, encoded], ids=["object", "text", "bytes"])
def test_a_trajectory_is_validated_in_whatever_form_it_has(form: Any) -> None:
    assert validate_trajectory(form(WHOLE)) == parse_message(SUBJECT, encoded(WHOLE))
    assert validate_trajectory(form(WHOLE), schema="trajectory.v1.schema.json").opted_out is False
    with pytest.raises(ContractError, match=r"turns\[0\]\.action\.type breaks missing"):
        validate_trajectory(form(replaced(WHOLE, ("turns", 0, "action"), {})))


def test_an_unknown_schema_is_refused_with_the_known_one() -> None:
    with pytest.raises(ContractError, match=r"unknown_schema.*trajectory\.v1\.schema\.json"):
        validate_trajectory(WHOLE, schema="trajectory.v9.schema.json")


@pytest.mark.parametrize("place", ["task_context", "metadata"])
def test_a_user_opts_out_in_the_task_or_in_the_metadata(place: str) -> None:
    assert validate_trajectory(replaced(WHOLE, (place, "opt_out"), True)).opted_out is True


def large_trajectory() -> Trajectory:
    return validate_trajectory(
        replaced(WHOLE, ("turns", 0, "result", "output"), "x" * 2_000_000), limits=ParseLimits(max_bytes=4_000_000)
    )


def test_a_large_trajectory_travels_by_claim_check() -> None:
    trajectory = large_trajectory()
    stored = serialize(trajectory)
    with pytest.raises(ContractError, match="max_bytes"):
        parse_message(SUBJECT, stored)

    message = serialize(TrajectoryReference.of(trajectory, "2025-12-08/large.json", stored))
    reference = parse_message(SUBJECT, message)

    assert len(message) < 1_000
    assert isinstance(reference, TrajectoryReference)
    assert subject_of(reference) == SUBJECT
    assert read_claimed_trajectory(reference, stored) == trajectory


def test_a_claim_check_is_refused_for_other_bytes_and_for_another_trajectory() -> None:
    trajectory = large_trajectory()
    stored = serialize(trajectory)
    reference = TrajectoryReference.of(trajectory, "large.json", stored)
    other = serialize(trajectory.model_copy(update={"session_id": "another"}))

    with pytest.raises(ContractError, match="claim_check"):
        read_claimed_trajectory(reference, stored.replace(b"x", b"y", 1))
    with pytest.raises(ContractError, match="claim_check"):
        read_claimed_trajectory(reference, stored + b" ")
    with pytest.raises(ContractError, match="session_id breaks claim_check"):
        read_claimed_trajectory(TrajectoryReference.of(trajectory, "large.json", other), other)


@pytest.mark.parametrize(
    "key",
    ["../other", "/etc/passwd", "a//b", "a/../b", "s3://bucket/key", "", ".hidden", "a/", "a" * 129, "a b", "a\n"],
)
def test_a_claim_check_cannot_leave_its_prefix(key: str) -> None:
    reference = next(example for subject, example in examples() if subject == SUBJECT and "claim_check" in example)

    assert refusal(SUBJECT, replaced(reference, ("claim_check", "key"), key)).limit == "pattern"


def test_a_trajectory_has_its_content_or_a_claim_check_but_not_both() -> None:
    reference = next(example for subject, example in examples() if subject == SUBJECT and "claim_check" in example)

    error = refusal(SUBJECT, {**WHOLE, "claim_check": reference["claim_check"]})

    assert (error.limit, error.more) == ("unknown_field", 2)
    assert error.path in ("turns", "task_context", "metadata")
