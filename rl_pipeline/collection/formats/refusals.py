"""Records that were refused, kept so that they can be mended and tried again.

`refused.jsonl` has a line for each: where it stood, of which format it was, why it was refused, and the record itself
as it was read, before any redaction. Importing this file tries them again, with what was known of their origin.
"""

import json
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from rl_pipeline.collection.formats.format import Origin
from rl_pipeline.collection.formats.values import JsonObject, as_moment, as_name, as_number, as_object, as_text, filled
from rl_pipeline.errors import PipelineError

FILE_NAME = "refused.jsonl"

UNREADABLE = (OSError, EOFError, zlib.error)
"""What a file can do to its reader, packed or not."""

_MARK = "refused_by"
_MARKED = "rl-pipeline import"


class RefusalsNotKept(PipelineError):
    """There is no place for the records that are refused."""


@dataclass(frozen=True)
class Refusal:
    """A record that was refused."""

    origin: Origin
    format_name: str | None
    reason: str
    """A short code: those of the contract, and `unknown_format`, `not_of_format`, `not_json`, `unreadable`."""
    detail: str
    """What to do, in words."""
    record: Any = None
    text: str | None = None
    """What could not be read as JSON."""

    @property
    def place(self) -> str:
        """Where it stands, for people."""
        return f"{self.origin.file}, {self.origin.place}" if self.origin.place else self.origin.file

    def line(self) -> JsonObject:
        """As it is kept."""
        origin = self.origin
        where: JsonObject = {"file": origin.file, "place": origin.place, "key": origin.key, "reward": origin.reward}
        where["modified"] = origin.modified.isoformat()
        told = {"source": filled(where), "format": self.format_name, "model": origin.model, "text": self.text}
        kept: JsonObject = {_MARK: _MARKED, "reason": self.reason, "detail": self.detail, **filled(told)}
        return kept if self.text is not None else kept | {"record": self.record}


def is_refusal(value: Any) -> bool:
    """Whether a value is a line of `refused.jsonl`."""
    return isinstance(value, dict) and value.get(_MARK) == _MARKED and ("record" in value or "text" in value)


def refused_before(value: JsonObject, now: Origin) -> tuple[Any, Origin, str | None]:
    """The record of a line of `refused.jsonl`, where it came from, and its format if that was known.

    Raises `ValueError` where it still is no JSON.
    """
    source = as_object(value.get("source"))
    origin = Origin(
        file=as_name(source.get("file")) or now.file,
        modified=as_moment(source.get("modified")) or now.modified,
        place=as_text(source.get("place")),
        key=as_name(source.get("key")),
        model=now.model or as_name(value.get("model")),
        reward=as_number(source.get("reward")),
    )
    record = value["record"] if "record" in value else json.loads(value["text"])
    return record, origin, as_name(value.get("format"))


class RefusalFile:
    """Keeps refusals in a file that replaces the one before when it is closed; without refusals it is not touched."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._new = path.with_name(f".{path.name}.new")
        self._count = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._count:
            self._new.replace(self._path)

    @property
    def path(self) -> Path | None:
        """Where they are; nothing while there are none."""
        return self._path if self._count else None

    def add(self, refusal: Refusal) -> None:
        """Keep one. Raises `RefusalsNotKept`."""
        line = json.dumps(refusal.line(), ensure_ascii=True) + "\n"
        try:
            if not self._count:
                self._new.unlink(missing_ok=True)
                self._new.touch(mode=0o600)
            with self._new.open("a", encoding="utf-8") as file:
                file.write(line)
        except OSError as error:
            raise RefusalsNotKept(
                f"{self._path} cannot be written ({error.strerror}): say with --refused where refused records go"
            ) from None
        self._count += 1


def unreadable(origin: Origin, error: Exception) -> Refusal:
    """A file that cannot be read, or not to its end."""
    told = getattr(error, "strerror", None) or "it is broken off or damaged"
    return Refusal(origin, None, "unreadable", f"the file cannot be read ({told}): write it again", text="")
