import json
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest

from rl_pipeline.contracts import ALL_TOPICS, ContractError, parse_message, schema_drift, write_schemas
from rl_pipeline.contracts.fields import ContractModel
from rl_pipeline.contracts.schemas import CONTRACTS_DIRECTORY
from rl_pipeline_tests.contracts.documents import at, examples, places, replaced, schema_of, without

VALIDATORS = {subject: jsonschema_rs.validator_for(schema_of(subject), validate_formats=True) for subject in ALL_TOPICS}


def models(model: type[ContractModel] = ContractModel) -> list[type[ContractModel]]:
    """Every contract model that is part of a message, most general first."""
    own = [model] if model.model_fields else []
    return own + [found for child in model.__subclasses__() for found in models(child)]


MODELS = sorted(set(models()), key=lambda model: model.__name__)
CONCRETE = [model for model in MODELS if not model.__subclasses__()]


# Rules that span fields, which JSON Schema has no words for.
ACROSS_FIELDS = ("end_before_start", "passed_exceeds_total")


def refusal(subject: str, tree: Any) -> str | None:
    """The limit for which the model refuses a message, None if it accepts it."""
    try:
        parse_message(subject, json.dumps(tree).encode())
    except ContractError as error:
        return error.limit
    return None


def model_accepts(subject: str, tree: Any) -> bool:
    return refusal(subject, tree) is None


def they_agree(subject: str, tree: Any) -> bool:
    limit = refusal(subject, tree)
    return limit in ACROSS_FIELDS or (limit is None) == VALIDATORS[subject].is_valid(tree)


def test_the_checked_in_files_say_what_the_models_say() -> None:
    assert schema_drift() == []


def test_drift_is_found_in_files_that_are_edited_missing_or_left_over(tmp_path: Path) -> None:
    written = write_schemas(tmp_path)
    assert len(written) == 11
    assert schema_drift(tmp_path) == []
    schemas = tmp_path / "schemas" / "agent-rl"

    edited = schemas / "reward.v1.schema.json"
    edited.write_text(edited.read_text().replace('"maximum": 1', '"maximum": 2', 1))
    (schemas / "feedback.v1.schema.json").unlink()
    (schemas / "forgotten.v1.schema.json").write_text("{}")
    (tmp_path / "topics.json").write_text("{}")

    drifted = [
        "schemas/agent-rl/feedback.v1.schema.json",
        "schemas/agent-rl/forgotten.v1.schema.json",
        "schemas/agent-rl/reward.v1.schema.json",
        "topics.json",
    ]
    assert schema_drift(tmp_path) == drifted
    assert write_schemas(tmp_path) == drifted
    assert schema_drift(tmp_path) == []
    assert write_schemas(tmp_path) == []


def test_the_files_are_the_same_whenever_they_are_written(tmp_path: Path) -> None:
    write_schemas(tmp_path)

    for path in tmp_path.rglob("*.json"):
        assert path.read_bytes() == (CONTRACTS_DIRECTORY / path.relative_to(tmp_path)).read_bytes()


def test_the_topics_file_registers_five_topics_and_the_extension_apart() -> None:
    topics = json.loads((CONTRACTS_DIRECTORY / "topics.json").read_text())

    assert len(topics["topics"]) == 5
    assert list(topics["extensions"]) == [
        "agent.rl.feedback.v1",
        "agent.rl.training.cancel.v1",
        "agent.rl.serving.outcome.v1",
        "agent.rl.report.v1",
        "agent.rl.alert.v1",
    ]
    for entry in (*topics["topics"].values(), *topics["extensions"].values()):
        assert (CONTRACTS_DIRECTORY / entry["schema"]).is_file()
        assert entry["description"]


@pytest.mark.parametrize("subject", ALL_TOPICS)
def test_a_schema_is_valid_2020_12_and_says_what_it_is(subject: str) -> None:
    schema = schema_of(subject)

    jsonschema_rs.Draft202012Validator(schema)
    jsonschema_rs.meta.validate(schema)
    assert schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    assert schema["$id"].startswith("urn:rl-pipeline:agent-rl:")
    assert schema["title"]
    assert schema["description"]
    assert schema["examples"]
    assert schema["additionalProperties"] is False


def test_the_draft_4_mistake_of_the_first_contract_is_noticed() -> None:
    broken = schema_of("agent.rl.training.request.v1")
    rate = broken["$defs"]["Hyperparameters"]["properties"]["learning_rate"]
    assert rate["exclusiveMinimum"] == 0

    rate["exclusiveMinimum"] = True
    with pytest.raises(jsonschema_rs.ValidationError):
        jsonschema_rs.meta.validate(broken)


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.__name__)
def test_every_model_and_field_is_described(model: type[ContractModel]) -> None:
    assert model.__doc__
    assert [name for name, field in model.model_fields.items() if not field.description] == []


@pytest.mark.parametrize("model", CONCRETE, ids=lambda model: model.__name__)
def test_every_model_has_examples_that_it_accepts(model: type[ContractModel]) -> None:
    shown = model.model_json_schema()["examples"]
    assert shown
    for example in shown:
        model.model_validate(example)


@pytest.mark.parametrize(("subject", "example"), examples())
def test_every_example_is_accepted_by_its_schema(subject: str, example: dict[str, Any]) -> None:
    VALIDATORS[subject].validate(example)


@pytest.mark.parametrize(("subject", "example"), examples())
def test_model_and_schema_agree_on_every_other_type_in_every_place(subject: str, example: dict[str, Any]) -> None:
    for place in places(example):
        for value in (None, True, 0, -1, 1.0, 1.5, 1e300, 10**30, "", "x", "x" * 600, [], [1], {}, {"x": 1}):
            assert they_agree(subject, replaced(example, place, value)), (place, value)


@pytest.mark.parametrize(("subject", "example"), examples())
def test_model_and_schema_agree_on_every_field_that_is_left_out_or_added(subject: str, example: dict[str, Any]) -> None:
    for place in places(example):
        if place and isinstance(place[-1], str):
            assert they_agree(subject, without(example, place)), place
        if isinstance(at(example, place), dict):
            assert they_agree(subject, replaced(example, (*place, "further"), 1)), place


@pytest.mark.parametrize(
    ("opinion", "accepted"),
    [
        ({"kind": "stars", "rating": 3}, True),
        ({"kind": "stars"}, False),
        ({"kind": "stars", "rating": None}, False),
        ({"kind": "thumbs_up", "rating": 3}, False),
        ({"kind": "thumbs_up", "rating": None}, True),
        ({"kind": "comment", "text": "too slow"}, True),
        ({"kind": "comment"}, False),
        ({"kind": "comment", "text": None}, False),
        ({"kind": "correction", "text": "the other file"}, True),
    ],
)
def test_model_and_schema_agree_on_what_each_kind_of_feedback_carries(opinion: dict[str, Any], accepted: bool) -> None:
    whole = {
        "feedback_id": "f",
        "trajectory_id": "3f2b8c1e-5d4a-4b6f-9e7d-1a2b3c4d5e6f",
        "timestamp": "2025-12-08T12:07:00Z",
        **opinion,
    }
    inside = replaced(examples()[0][1], ("metadata", "feedback"), [opinion])

    for subject, message in (("agent.rl.feedback.v1", whole), ("agent.rl.trajectory.v1", inside)):
        assert model_accepts(subject, message) is accepted
        assert VALIDATORS[subject].is_valid(message) is accepted


@pytest.mark.parametrize(
    ("metadata", "accepted"),
    [
        ({"event": "rolled_back", "reason": "high_error_rate"}, True),
        ({"event": "rolled_back"}, False),
        ({"event": "rolled_back", "reason": None}, False),
        ({"event": "ramped"}, True),
    ],
)
def test_model_and_schema_agree_that_a_rollback_says_why(metadata: dict[str, Any], accepted: bool) -> None:
    message = {**dict(examples())["agent.rl.model.deployed.v1"], "metadata": metadata}

    assert model_accepts("agent.rl.model.deployed.v1", message) is accepted
    assert VALIDATORS["agent.rl.model.deployed.v1"].is_valid(message) is accepted


@pytest.mark.parametrize(
    "moment",
    [
        "2025-12-08T12:00:00",
        "2025-12-08 12:00:00Z",
        "2025-12-08",
        "20251208T120000Z",
        "2025-13-08T12:00:00Z",
        "2025-02-30T12:00:00Z",
        "2025-12-08T24:00:00Z",
        "2025-12-08T12:00:60Z",
        "2025-12-08T12:00Z",
        "2025-12-08T12:00:00+0100",
        "2025-12-08T12:00:00+24:00",
        "0001-01-01T00:00:00Z",
        "9999-12-31T23:59:59Z",
        "2025-12-08T12:00:00Z\n",
        "٢٠٢٥-12-08T12:00:00Z",
        "now",
    ],
)
def test_model_and_schema_refuse_the_same_timestamps(moment: str) -> None:
    message = {**dict(examples())["agent.rl.training.request.v1"], "timestamp": moment}

    assert not model_accepts("agent.rl.training.request.v1", message)
    assert not VALIDATORS["agent.rl.training.request.v1"].is_valid(message)


@pytest.mark.parametrize(
    "moment",
    [
        "2025-12-08T12:00:00Z",
        "2025-12-08t12:00:00z",
        "2025-12-08T12:00:00.123456789Z",
        "2025-12-08T12:00:00-23:59",
        "2024-02-29T12:00:00+01:00",
        "1970-01-01T00:00:00Z",
        "2199-12-31T23:59:59.999999Z",
    ],
)
def test_model_and_schema_accept_the_same_timestamps(moment: str) -> None:
    message = {**dict(examples())["agent.rl.training.request.v1"], "timestamp": moment}

    assert model_accepts("agent.rl.training.request.v1", message)
    VALIDATORS["agent.rl.training.request.v1"].validate(message)


def test_a_schema_has_the_limits_that_the_contract_gives() -> None:
    trajectory = schema_of("agent.rl.trajectory.v1")
    temperature = trajectory["$defs"]["TrajectoryMetadata"]["properties"]["temperature"]["anyOf"][0]
    weight = schema_of("agent.rl.reward.v1")["$defs"]["RewardComponent"]["properties"]["weight"]

    assert trajectory["properties"]["turns"]["minItems"] == 1
    assert (temperature["minimum"], temperature["maximum"]) == (0, 2)
    assert (weight["minimum"], weight["maximum"]) == (0, 1)
    assert len(trajectory["oneOf"]) == 2
