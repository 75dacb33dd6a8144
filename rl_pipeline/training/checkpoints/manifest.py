"""`manifest.json`: what a checkpoint is and which files it has. Reading and writing it is all that belongs here.

It is the same for the states that a training resumes from and for the model that it delivers. There is one way to write
a given manifest, and it carries a digest of itself: whatever else is read is refused.
"""

import hashlib
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, ValidationError

from rl_pipeline.errors import PipelineError

MANIFEST = "manifest.json"
SIGNATURE = "manifest.sig.json"
"""Added by `signing.py`; it vouches for the manifest and so cannot be named in it."""


class CheckpointCorrupt(PipelineError):
    """A checkpoint is not what its manifest says, or has none; `problem` names what is wrong."""

    def __init__(self, place: Path | str, problem: str) -> None:
        super().__init__(f"The checkpoint {place} must not be used ({problem}): use an older one, or save it again.")
        self.problem = problem


class InvalidCheckpoint(PipelineError):
    """What was to become a checkpoint cannot be one; it is a fault of the program that wrote it."""


class CheckpointFile(BaseModel):
    """What a manifest says of one file."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    size: Annotated[int, Field(ge=0)]
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class CheckpointMeta(BaseModel):
    """What a checkpoint is. Whatever else its writer wants to find again is kept beside these."""

    model_config = ConfigDict(frozen=True, extra="allow", allow_inf_nan=False)

    job_id: Annotated[str, Field(min_length=1)]
    step: Annotated[int, Field(ge=0)]
    created: AwareDatetime
    metrics: dict[str, float | None] = {}
    """A figure that is not finite is None."""


class Manifest(BaseModel):
    """`manifest.json`: what the checkpoint is, and each of its files by its path relative to the directory."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    format: Literal[1]
    meta: CheckpointMeta
    files: Annotated[dict[str, CheckpointFile], Field(min_length=1)]
    digest: str
    """sha256 of the manifest itself without this field, so that no flipped bit of it goes unseen."""


def parse_manifest(data: bytes, place: Path | str) -> Manifest:
    """Read the bytes of a manifest; `place` is only named in the `CheckpointCorrupt` for one that is not intact."""
    try:
        content = json.loads(data)
        digest = content.pop("digest")
        intact = _written(content) == data
        manifest = Manifest.model_validate({**content, "digest": digest})
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        raise CheckpointCorrupt(place, f"{MANIFEST} cannot be read") from None
    if not intact:
        raise CheckpointCorrupt(place, f"{MANIFEST} was changed")
    for name in manifest.files:
        if not is_safe_name(name):
            raise CheckpointCorrupt(place, f"{MANIFEST} names the file {name!r}, which may lie elsewhere")
    return manifest


def is_safe_name(name: str) -> bool:
    """Whether a manifest may name this file: a relative path that stays below the directory, written in one way."""
    return (
        name not in (MANIFEST, SIGNATURE)
        and all(part not in ("", ".", "..") for part in name.split("/"))
        and name.isprintable()
        and "\\" not in name
    )


def write_manifest(meta: Mapping[str, Any], files: Mapping[str, CheckpointFile]) -> bytes:
    """The bytes of a manifest. Raises `InvalidCheckpoint` for a `meta` that is not a `CheckpointMeta`."""
    try:
        metrics = {name: _finite(value) for name, value in dict(meta.get("metrics", {})).items()}
        described = CheckpointMeta.model_validate({**meta, "metrics": metrics}).model_dump(mode="json")
        entries = {name: entry.model_dump() for name, entry in files.items()}
        return _written({"format": 1, "meta": described, "files": entries})
    except (ValueError, TypeError) as error:
        wrong = {str(each["loc"][0]) for each in error.errors()} if isinstance(error, ValidationError) else {"values"}
        raise InvalidCheckpoint(
            f"A checkpoint's meta needs other {', '.join(sorted(wrong))}: give job_id, step, created with its zone,"
            " numbers as metrics, and else what JSON holds."
        ) from None


def _finite(value: Any) -> float | None:
    return float(value) if value is not None and math.isfinite(value) else None


def _written(content: Mapping[str, Any]) -> bytes:
    """The one way to write a manifest, with its digest: any other bytes are not intact."""

    def as_json(value: Mapping[str, Any]) -> bytes:
        return json.dumps(value, indent=1, sort_keys=True, allow_nan=False).encode() + b"\n"

    return as_json({**content, "digest": hashlib.sha256(as_json(content)).hexdigest()})
