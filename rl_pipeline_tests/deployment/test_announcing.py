"""What the world is told of a deployment, and that it is told once."""

from datetime import timedelta

import pytest

from rl_pipeline.contracts import ModelDeployed, parse_message, serialize
from rl_pipeline.deployment import phases
from rl_pipeline.deployment.announcing import (
    DEPLOYED_SUBJECT,
    ServingPlace,
    announce_due,
    announcement_of,
    announcer,
    is_own,
)
from rl_pipeline.deployment.audit import ANNOUNCED_EVENTS, AuditRow
from rl_pipeline.deployment.phases import Cause
from rl_pipeline.deployment.state import DesiredState
from rl_pipeline.stores.jetstream import JetStream
from rl_pipeline.stores.stream import StreamUnavailable
from rl_pipeline_tests.deployment.simulated_stores import SimulatedAudit, World
from rl_pipeline_tests.deployment.states import NOW, RAMP, a_model, a_rollout, because, first_state, started

PLACE = ServingPlace("tensorzero", "http://gateway:3000/v1/chat/completions")


def told(state: DesiredState, before: DesiredState | None = None) -> ModelDeployed:
    rows = [AuditRow.of(each.encoded()) if each else None for each in (state, before)]
    assert rows[0] is not None
    return announcement_of(rows[0], rows[1], PLACE).message


def test_a_deployment_is_told_with_its_model_its_ramp_and_its_validation() -> None:
    message = told(started(), first_state())
    assert (message.deployment_id, message.training_job_id) == ("deployment-of-new", "job-of-new")
    assert (message.model_info.model_id, message.model_info.checkpoint_path) == ("new", "s3://models/new/")
    config = message.deployment_config
    assert (config.serving_platform, config.rollout_strategy, config.traffic_percentage) == ("tensorzero", "canary", 10)
    assert [(step.timestamp - NOW, step.percentage) for step in config.ramp_schedule or ()] == [
        (timedelta(), 10),
        (timedelta(minutes=1), 25),
        (timedelta(minutes=2), 50),
        (timedelta(minutes=3), 100),
    ]
    assert message.validation_results.benchmark_passed
    metadata = message.metadata
    assert (metadata.event, metadata.approval_status, metadata.previous_model) == ("deployed", "automated", "old")


def test_a_rollback_is_told_with_its_reason_its_evidence_and_who_serves_again() -> None:
    ramped = phases.advance(started(), because("time_and_samples"))
    state = phases.roll_back(ramped, Cause("high_error_rate", "rollout-watchdog", NOW, {"errors": 8}))
    message = told(state, ramped)
    metadata = message.metadata
    assert (metadata.event, metadata.reason, metadata.previous_model) == ("rolled_back", "high_error_rate", "old")
    assert (metadata.model_extra or {})["rollback_reason"] == "high_error_rate", "it is found by the word"
    assert (message.deployment_config.traffic_percentage, message.training_job_id) == (0, "job-of-new")
    extra = metadata.model_extra or {}
    assert (extra["evidence"], extra["changed_by"], extra["generation"]) == ({"errors": 8}, "rollout-watchdog", 4)
    assert message.validation_results.safety_checks_passed


def test_a_recheck_is_told_as_another_share_with_its_reason() -> None:
    baking = phases.promote(started(), because())
    message = told(phases.recheck(baking, because("high_error_rate")), baking)
    assert (message.metadata.event, message.metadata.reason) == ("ramped", "high_error_rate")
    assert message.deployment_config.traffic_percentage == 10
    assert "rechecked" in ANNOUNCED_EVENTS


def test_an_approval_is_told_as_a_deployment_that_a_person_let_in() -> None:
    proposed = phases.start(first_state(), a_model("new"), a_rollout(), because(), approved=False)
    state = phases.approve(proposed, Cause("fine", "ada", NOW, {"approval_status": "manual_approved"}))
    metadata = told(state, proposed).metadata
    assert (metadata.event, metadata.approval_status) == ("deployed", "manual_approved")


def test_a_promotion_is_told_with_all_of_the_traffic() -> None:
    baking = phases.promote(started(), because())
    message = told(phases.promote(baking, because("bake over")), baking)
    assert (message.metadata.event, message.deployment_config.traffic_percentage) == ("promoted", 100)
    assert (message.metadata.previous_model, message.model_info.model_id) == ("old", "new")


def test_a_promoted_model_that_is_taken_back_is_told_under_the_deployment_that_brought_it() -> None:
    promoted = phases.promote(phases.promote(started(), because()), because())
    state = phases.take_back(promoted, a_model("old"), because("worse"), deployment_id="deployment-of-new")
    message = told(state, promoted)
    assert (message.deployment_id, message.model_info.model_id) == ("deployment-of-new", "new")
    assert (message.metadata.event, message.metadata.previous_model) == ("rolled_back", "old")


def test_a_model_that_none_of_ours_made_or_validated_says_so() -> None:
    foreign = a_model("new").model_copy(
        update={"training_job_id": None, "checkpoint_path": None, "endpoint": "http://vllm:8000/v1"}
    )
    rollout = a_rollout(strategy="ab_test", steps=RAMP[2:]).model_copy(update={"validation": {}})
    state = phases.start(first_state(), foreign, rollout, because(), approved=True)
    message = told(state, first_state())
    assert (message.training_job_id, message.model_info.checkpoint_path) == ("untrained", "http://vllm:8000/v1")
    assert (message.validation_results.benchmark_passed, message.deployment_config.rollout_strategy) == (
        False,
        "canary",
    )
    assert (message.metadata.model_extra or {})["strategy"] == "ab_test"


def test_a_publisher_knows_its_own_events() -> None:
    own = told(started(), first_state())
    assert is_own(DEPLOYED_SUBJECT, serialize(own))
    metadata = own.metadata.model_copy(update={"deployed_by": "somebody-else"})
    assert not is_own(DEPLOYED_SUBJECT, serialize(own.model_copy(update={"metadata": metadata})))
    assert not is_own(DEPLOYED_SUBJECT, b"{}")
    assert not is_own("agent.rl.reward.v1", serialize(own))


@pytest.fixture
def audit() -> SimulatedAudit:
    audit = SimulatedAudit(World())
    first, second = first_state(), started()
    third = phases.roll_back(second, because("high_error_rate"))
    audit.add([AuditRow.of(state.encoded()) for state in (first, second, third)])
    return audit


def messages_of(stream: JetStream) -> list[ModelDeployed]:
    last = stream.state("RL_MODELS").last_sequence
    found = [message.data for batch in stream.read("RL_MODELS", 1, last, 100) for message in batch]
    parsed = [parse_message(DEPLOYED_SUBJECT, data) for data in found]
    return [message for message in parsed if isinstance(message, ModelDeployed)]


def test_each_row_is_published_once_though_its_publisher_dies(stream: JetStream, audit: SimulatedAudit) -> None:
    announce = announcer(stream, PLACE)
    died = audit.unannounced()[0]
    announce(died)  # and was killed before it could remember that
    assert announce_due(audit, announce, NOW) == 2
    assert announce_due(audit, announce, NOW) == 0
    assert [message.metadata.event for message in messages_of(stream)] == ["deployed", "rolled_back"]
    assert stream.get("RL_MODELS", 1).message_id == "deployment-of-new/2"


def test_what_could_not_be_published_is_published_later(stream: JetStream, audit: SimulatedAudit) -> None:
    def away(_: object) -> None:
        raise StreamUnavailable("NATS is away")

    with pytest.raises(StreamUnavailable):
        announce_due(audit, away, NOW)
    assert len(audit.unannounced()) == 2
    announce_due(audit, announcer(stream, PLACE), NOW)
    assert len(messages_of(stream)) == 2
