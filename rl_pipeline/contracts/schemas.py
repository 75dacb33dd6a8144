"""The contracts as files for other languages: JSON Schema 2020-12 and the registry of topics, made from the models.

The files are checked in; `schema_drift` tells whether they still say what the models say.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import core_schema

from rl_pipeline.contracts.claim_check import TrajectoryReference
from rl_pipeline.contracts.fields import ClosedObject
from rl_pipeline.contracts.registry import ALL_TOPICS, EXTENSION_TOPICS, TOPICS, Topic
from rl_pipeline.contracts.trajectory import Trajectory, TrajectoryIdentity

CONTRACTS_DIRECTORY = Path(__file__).parent
_SCHEMAS = "schemas/agent-rl"
_TOPICS_FILE = "topics.json"


class _ReadableJsonSchema(GenerateJsonSchema):
    """Pydantic's generator without what only repeats the field's name or its being optional."""

    def field_title_should_be_set(self, schema: Any) -> bool:  # noqa: ARG002
        return False

    def default_schema(self, schema: core_schema.WithDefaultSchema) -> JsonSchemaValue:
        generated = super().default_schema(schema)
        if generated.get("default", ...) is None:
            del generated["default"]
        return generated


def write_schemas(directory: Path = CONTRACTS_DIRECTORY) -> list[str]:
    """Write every file below `directory` and remove schemas that no topic has; the names of what changed."""
    changed = schema_drift(directory)
    files = _files()
    for name in changed:
        path = directory / name
        if name in files:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(files[name], encoding="utf-8")
        else:
            path.unlink()
    return changed


def schema_drift(directory: Path = CONTRACTS_DIRECTORY) -> list[str]:
    """Names of the files below `directory` that are missing, differ from the models, or belong to no topic."""
    files = _files()
    present = {path.relative_to(directory).as_posix() for path in (directory / _SCHEMAS).glob("*")}
    differing = {name for name, text in files.items() if _read(directory / name) != text}
    return sorted(differing | (present - files.keys()))


def _files() -> dict[str, str]:
    files = {f"{_SCHEMAS}/{topic.schema_file}": _text(_schema(topic)) for topic in ALL_TOPICS.values()}
    files[_TOPICS_FILE] = _text({"v": 1, "topics": _register(TOPICS), "extensions": _register(EXTENSION_TOPICS)})
    return files


def _register(topics: Mapping[str, Topic]) -> dict[str, Any]:
    return {
        topic.subject: {"schema": f"{_SCHEMAS}/{topic.schema_file}", "description": topic.description}
        for topic in topics.values()
    }


def _schema(topic: Topic) -> dict[str, Any]:
    generated = _with_claim_check() if topic.message is Trajectory else _generate(topic.message)
    parts = generated.pop("$defs", None)
    return {
        "$schema": GenerateJsonSchema.schema_dialect,
        "$id": f"urn:rl-pipeline:agent-rl:{topic.schema_file.removesuffix('.schema.json')}",
        "title": generated.pop("title"),
        "description": generated.pop("description"),
        **generated,
        **({"$defs": parts} if parts else {}),
    }


def _with_claim_check() -> dict[str, Any]:
    """The trajectory's schema, in which a claim check may stand in place of the content."""
    whole, reference = _generate(Trajectory), _generate(TrajectoryReference)
    content = [name for name in Trajectory.model_fields if name not in TrajectoryIdentity.model_fields]
    shared = [name for name in whole["required"] if name in TrajectoryIdentity.model_fields]
    return {
        **whole,
        "properties": {**whole["properties"], "claim_check": reference["properties"]["claim_check"]},
        "required": shared,
        "oneOf": [
            {"description": "The whole trajectory.", "required": content, "properties": {"claim_check": False}},
            {
                "description": "A trajectory by reference: the whole one lies in the object store.",
                "required": ["claim_check"],
                "properties": dict.fromkeys(content, False),
            },
        ],
        "$defs": {**whole["$defs"], **reference["$defs"]},
        "examples": [*whole["examples"], *reference["examples"]],
    }


def _generate(model: type[ClosedObject]) -> dict[str, Any]:
    return model.model_json_schema(schema_generator=_ReadableJsonSchema)


def _read(path: Path) -> str | None:
    return path.read_text(encoding="utf-8", errors="replace") if path.is_file() else None


def _text(document: dict[str, Any]) -> str:
    return json.dumps(document, indent=2, ensure_ascii=False) + "\n"
