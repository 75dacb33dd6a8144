"""What gateways told of a user's sessions goes with the user, and what others' sessions came to stays."""

import json
from datetime import UTC, datetime, timedelta

import pytest

from rl_pipeline.contracts import ServingOutcome, serialize
from rl_pipeline.deployment.outcomes import drain_outcomes
from rl_pipeline.redaction.redactor import Redactor
from rl_pipeline.redaction.session_names import stored_name
from rl_pipeline_tests.ingestion.erasing import ERIN, FAYE, SESSION_KEY, Erasing
from rl_pipeline_tests.ingestion.ingesting import POLICY, document
from rl_pipeline_tests.waiting import wait_until

BEGAN = datetime.now(UTC) - timedelta(minutes=5)


class Killed(BaseException):
    """Stands for kill -9: nothing handles it."""


def tell(erasing: Erasing, *sessions: str, began: datetime = BEGAN) -> None:
    """Have a gateway tell of the sessions, and store what it told."""
    for session in sessions:
        outcome = ServingOutcome(
            session_id=stored_name(SESSION_KEY, session),
            model_id="new",
            generation=2,
            gateway="gateway-1",
            started_at=began,
            ended_at=began,
            requests=1,
            failed_requests=0,
            failed=False,
        )
        erasing.stream.publish("agent.rl.serving.outcome.v1", serialize(outcome), f"{session}/{began.timestamp()}")
    consumer = "CONSUMER.INFO.RL_SERVING.serving_outcomes"
    wait_until(lambda: erasing.stream.request(consumer)["num_pending"] >= len(sessions))
    drain_outcomes(erasing.stream, erasing.warehouse, redactor=lambda: Redactor(POLICY), now=datetime.now(UTC))


def in_table(erasing: Erasing) -> set[str]:
    return set(erasing.warehouse.query("SELECT session_id FROM serving_outcomes FINAL")["session_id"])


def in_stream(erasing: Erasing) -> set[str]:
    return {json.loads(data)["session_id"] for data in erasing.messages("RL_SERVING").values()}


def stored(*sessions: str) -> set[str]:
    return {stored_name(SESSION_KEY, session) for session in sessions}


def test_sessions_that_are_the_user_or_of_their_trajectories_and_ratings_are_erased(erasing: Erasing) -> None:
    ingested, waiting, of_faye = (document(seed, user_id=user) for seed, user in ((1, ERIN), (2, ERIN), (3, FAYE)))
    for made, session in ((ingested, "chat-1"), (waiting, "chat-2"), (of_faye, "chat-3")):
        made["session_id"] = session
    erasing.ingesting.publish(ingested, of_faye)
    erasing.drain()
    erasing.ingesting.publish(waiting)
    rating = {"feedback_id": "f", "trajectory_id": document()["trajectory_id"], "kind": "thumbs_up"}
    rating |= {"timestamp": "2026-01-01T00:00:00Z", "user_id": ERIN, "session_id": "chat-4"}
    erasing.stream.publish("agent.rl.feedback.v1", json.dumps(rating).encode(), "f")
    tell(erasing, ERIN, FAYE, "chat-1", "chat-2", "chat-3", "chat-4")
    assert erasing.erase().outcomes == 4
    assert in_table(erasing) == in_stream(erasing) == stored(FAYE, "chat-3")


def test_what_is_told_later_of_a_session_that_was_open_is_not_stored(erasing: Erasing) -> None:
    erasing.erase()
    tell(erasing, ERIN, FAYE)
    assert in_table(erasing) == stored(FAYE)
    tell(erasing, ERIN, began=datetime.now(UTC) + timedelta(minutes=1))
    assert in_table(erasing) == stored(ERIN, FAYE), "the user came again, and did not opt out"
    erasing.erase(opt_out=True)
    assert in_table(erasing) == stored(FAYE)
    tell(erasing, ERIN, began=datetime.now(UTC) + timedelta(days=1))
    assert in_table(erasing) == stored(FAYE)


@pytest.mark.parametrize("point", ["after_message", "after_ledger_of_archive", "after_outcomes", "after_rows"])
def test_an_erasure_that_is_killed_forgets_no_session(erasing: Erasing, point: str) -> None:
    def die(reached: str) -> None:
        if reached == point:
            raise Killed

    made = document(1, user_id=ERIN) | {"session_id": "chat-1"}
    erasing.ingesting.publish(document(2, user_id=FAYE))
    erasing.drain()
    erasing.archive_now()
    erasing.ingesting.publish(made)
    tell(erasing, "chat-1", FAYE)
    with pytest.raises(Killed):
        erasing.erase(reached=die)
    erasing.erase()
    assert in_table(erasing) == in_stream(erasing) == stored(FAYE)


def test_a_session_that_is_only_in_the_archive_by_now_is_found(erasing: Erasing) -> None:
    erasing.ingesting.publish(document(1, user_id=ERIN) | {"session_id": "chat-1"})
    erasing.drain()
    erasing.archive_now()
    for table in ("trajectories", "trajectory_signals"):
        erasing.warehouse.execute(f"TRUNCATE TABLE {table}")
    erasing.stream.erase("RL_TRAJECTORIES", 1)
    tell(erasing, "chat-1", "chat-2")
    erasing.erase()
    assert in_table(erasing) == in_stream(erasing) == stored("chat-2")
