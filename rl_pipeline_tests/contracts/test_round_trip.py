"""Whatever a model emits, its schema accepts, and it reads back equal."""

import json

import jsonschema_rs
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rl_pipeline.contracts import (
    ALL_TOPICS,
    Message,
    TrainingStatus,
    TrajectoryReference,
    parse_message,
    serialize,
    subject_of,
)
from rl_pipeline_tests.contracts.documents import schema_of
from rl_pipeline_tests.contracts.strategies import trees

MESSAGES = [*(topic.message for topic in ALL_TOPICS.values()), TrajectoryReference]
VALIDATORS = {subject: jsonschema_rs.validator_for(schema_of(subject), validate_formats=True) for subject in ALL_TOPICS}


@pytest.mark.parametrize("model", MESSAGES, ids=lambda model: model.__name__)
@settings(max_examples=120, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_what_a_message_emits_its_schema_accepts_and_reads_back_equal(
    model: type[Message], data: st.DataObject
) -> None:
    drawn = data.draw(trees(model))
    message = model.model_validate(drawn)
    subject = subject_of(message)

    emitted = serialize(message)

    VALIDATORS[subject].validate(json.loads(emitted))
    assert parse_message(subject, emitted) == message
    assert serialize(parse_message(subject, emitted)) == emitted


@pytest.mark.parametrize("model", MESSAGES, ids=lambda model: model.__name__)
@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_what_a_model_accepts_its_schema_accepts(model: type[Message], data: st.DataObject) -> None:
    drawn = data.draw(trees(model))
    subject = subject_of(model.model_validate(drawn))

    VALIDATORS[subject].validate(drawn)


def test_an_emitted_message_has_no_nulls_that_the_publisher_did_not_write() -> None:
    status = TrainingStatus.model_validate(
        {
            "training_job_id": "job-1",
            "timestamp": "2025-12-08T13:15:00+02:00",
            "status": "running",
            "error": None,
            "metadata": {"training_platform": None, "their_own": None},
        }
    )

    assert json.loads(serialize(status)) == {
        "training_job_id": "job-1",
        "timestamp": "2025-12-08T11:15:00Z",
        "status": "running",
        "metadata": {"their_own": None},
    }
