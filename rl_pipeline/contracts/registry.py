"""Which message travels on which subject, and the way in and out: `parse_message` and `serialize`.

`TOPICS` holds the five subjects of the specification and no more; subjects that this project adds are in
`EXTENSION_TOPICS`. Both are read and written in the same way.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, TypeVar

from pydantic import ValidationError
from pydantic_core import ErrorDetails, PydanticSerializationError

from rl_pipeline.contracts.alert import Alert
from rl_pipeline.contracts.claim_check import TrajectoryReference
from rl_pipeline.contracts.envelope import Envelope
from rl_pipeline.contracts.errors import ContractError, PathPart, UnknownSubject, json_path, json_type
from rl_pipeline.contracts.feedback import Feedback
from rl_pipeline.contracts.fields import ClosedObject, contract_field_names
from rl_pipeline.contracts.model_deployed import ModelDeployed
from rl_pipeline.contracts.report import Report
from rl_pipeline.contracts.reward import Reward
from rl_pipeline.contracts.serving_outcome import ServingOutcome
from rl_pipeline.contracts.strict_json import DEFAULT_LIMITS, ParseLimits, find_offence, parse_strict_json
from rl_pipeline.contracts.training_cancel import TrainingCancel
from rl_pipeline.contracts.training_request import TrainingRequest
from rl_pipeline.contracts.training_status import TrainingStatus
from rl_pipeline.contracts.trajectory import Trajectory

Message = (
    Trajectory
    | TrajectoryReference
    | Reward
    | TrainingRequest
    | TrainingStatus
    | ModelDeployed
    | Feedback
    | TrainingCancel
    | ServingOutcome
    | Report
    | Alert
)

_Model = TypeVar("_Model", bound=ClosedObject)

CONTRACT_NAMES = contract_field_names()
"""Keys that an error's path may show; every other key is content."""

# Pydantic's error types in the words of JSON Schema. Errors of our own validators keep their names.
_LIMITS = {
    "extra_forbidden": "unknown_field",
    "finite_number": "not_finite",
    "greater_than": "exclusive_minimum",
    "greater_than_equal": "minimum",
    "less_than_equal": "maximum",
    "literal_error": "enum",
    "string_pattern_mismatch": "pattern",
    "string_too_long": "max_length",
    "string_too_short": "min_length",
    "too_short": "min_items",
}
_TYPES = {
    "bool_type": "true or false",
    "dict_type": "an object",
    "float_type": "a number",
    "int_type": "an integer",
    "list_type": "an array",
    "model_type": "an object",
    "string_type": "a string",
}


@dataclass(frozen=True)
class Topic:
    """A subject and the contract of what travels on it."""

    subject: str
    schema_file: str
    description: str
    message: type[ClosedObject]


def _by_subject(*topics: Topic) -> Mapping[str, Topic]:
    return MappingProxyType({topic.subject: topic for topic in topics})


TOPICS = _by_subject(
    Topic("agent.rl.trajectory.v1", "trajectory.v1.schema.json", "Multi-turn interaction sequences", Trajectory),
    Topic("agent.rl.reward.v1", "reward.v1.schema.json", "Computed reward signals", Reward),
    Topic("agent.rl.training.request.v1", "training.request.v1.schema.json", "Training job requests", TrainingRequest),
    Topic("agent.rl.training.status.v1", "training.status.v1.schema.json", "Training progress updates", TrainingStatus),
    Topic(
        "agent.rl.model.deployed.v1", "model.deployed.v1.schema.json", "Model deployment notifications", ModelDeployed
    ),
)
EXTENSION_TOPICS = _by_subject(
    Topic("agent.rl.feedback.v1", "feedback.v1.schema.json", "What users thought of a trajectory", Feedback),
    Topic("agent.rl.training.cancel.v1", "training.cancel.v1.schema.json", "Ends of training jobs", TrainingCancel),
    Topic(
        "agent.rl.serving.outcome.v1", "serving.outcome.v1.schema.json", "What came of served sessions", ServingOutcome
    ),
    Topic("agent.rl.report.v1", "report.v1.schema.json", "Reports for superiors", Report),
    Topic("agent.rl.alert.v1", "alert.v1.schema.json", "What somebody has to know now", Alert),
)
ALL_TOPICS: Mapping[str, Topic] = MappingProxyType({**TOPICS, **EXTENSION_TOPICS})


def parse_message(subject: str, data: bytes, limits: ParseLimits = DEFAULT_LIMITS) -> Message:
    """The message that `data` holds, bare or in an envelope whose topic is `subject`.

    Raises `UnknownSubject` for a subject without a contract and `ContractError` for everything wrong with the data;
    neither shows or carries any of its content.
    """
    topic = _topic(subject)
    tree = parse_strict_json(data, limits, CONTRACT_NAMES)
    prefix: tuple[PathPart, ...] = ()
    if isinstance(tree, dict) and "payload" in tree:  # no contract has a field of this name
        envelope = validated(Envelope, tree)
        if envelope.topic != subject:
            raise ContractError("topic_mismatch", "topic", "string", f"send it on its topic, or write topic {subject}")
        tree, prefix = envelope.payload, ("payload",)
    model = topic.message
    if model is Trajectory and isinstance(tree, dict) and "claim_check" in tree:
        model = TrajectoryReference
    return validated(model, tree, prefix)  # type: ignore[return-value]  # every topic's model is a Message


def serialize(message: Message) -> bytes:
    """The message as compact UTF-8 JSON that `parse_message` reads back as an equal message.

    A message made in code can hold what JSON cannot (NaN, lone surrogates, bottomless objects): `ContractError`. Only
    the size is left to the publisher, who may send a claim check instead.
    """
    # What a request leaves out is decided by whoever trains: written out, a default would look like a wish.
    only_what_was_said = isinstance(message, TrainingRequest)
    try:
        data = message.model_dump_json(exclude_unset=only_what_was_said).encode()
    except (PydanticSerializationError, UnicodeEncodeError):
        data = b""
    if not data:
        raise find_offence(message.model_dump(), DEFAULT_LIMITS, CONTRACT_NAMES) or ContractError(
            "not_json_value", "$", "object", "put only JSON values into a message"
        )
    parse_strict_json(data, ParseLimits(max_bytes=len(data)), CONTRACT_NAMES)
    return data


def subject_of(message: Message) -> str:
    """The subject on which `message` travels."""
    model = Trajectory if isinstance(message, TrajectoryReference) else type(message)
    return next(topic.subject for topic in ALL_TOPICS.values() if topic.message is model)


def validated(model: type[_Model], tree: Any, prefix: tuple[PathPart, ...] = ()) -> _Model:
    """`tree` as a `model`, or a `ContractError` for the first of its errors; `prefix` says where the tree was found."""
    try:
        return model.model_validate(tree)
    except ValidationError as error:
        count = error.error_count()
        errors = error.errors(include_url=False, include_context=False, include_input=False)
    # Raised out here, because the original holds the message and would stay reachable as the error's context.
    raise _translate(tree, errors, count, prefix)


def _translate(tree: Any, errors: list[ErrorDetails], count: int, prefix: tuple[PathPart, ...]) -> ContractError:
    first = errors[0]
    parts, found = _locate(tree, first)
    # The branches of a union each say what they would have taken, at the same place.
    branches = [error for error in errors[:4] if _locate(tree, error)[0] == parts]
    rule = " or ".join(_rule(error) for error in branches)
    limit = _LIMITS.get(first["type"]) or ("type" if first["type"] in _TYPES else first["type"])
    return ContractError(limit, json_path((*prefix, *parts), CONTRACT_NAMES), found, rule, count - len(branches))


def _topic(subject: str) -> Topic:
    topic = ALL_TOPICS.get(subject)
    if topic is None:
        raise UnknownSubject(subject, tuple(ALL_TOPICS))
    return topic


def _rule(error: ErrorDetails) -> str:
    """What pydantic would have accepted. Its texts hold limits and allowed words, never the input."""
    if error["type"] in _TYPES:
        return f"send {_TYPES[error['type']]}"
    return error["msg"].replace("Input should", "it should").replace("Extra inputs are not permitted", "leave it out")


def _locate(tree: Any, error: ErrorDetails) -> tuple[list[PathPart], str]:
    """The part of pydantic's location that is a path in the message (the rest names branches of unions), and the type
    of what is there."""
    parts: list[PathPart] = []
    for part in error["loc"]:
        is_key = isinstance(tree, dict) and part in tree
        is_index = isinstance(tree, list) and isinstance(part, int) and part < len(tree)
        if is_key or is_index:
            parts.append(part)
            tree = tree[part]
    if error["type"] == "missing":
        return [*parts, error["loc"][-1]], "absent"
    return parts, json_type(tree)
