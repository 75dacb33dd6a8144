"""Records that were refused, kept so that they can be mended and tried again.

`refused.jsonl` has a line for each: where it stood, of which format it was, why it was refused, and the record itself
as it was read, before any redaction. Importing this file tries them again, with what was known of their origin.
Imports only add to it, and none what is listed already: what others have kept there is theirs to remove.
"""

import contextlib
import fcntl
import json
import os
import zlib
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import IO, Any

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


def refused_before(value: JsonObject, now: Origin) -> Refusal:
    """The refusal that a line of `refused.jsonl` tells."""
    source = as_object(value.get("source"))
    origin = Origin(
        file=as_name(source.get("file")) or now.file,
        modified=as_moment(source.get("modified")) or now.modified,
        place=as_text(source.get("place")),
        key=as_name(source.get("key")),
        model=now.model or as_name(value.get("model")),
        reward=as_number(source.get("reward")),
    )
    reason, detail = as_text(value.get("reason")) or "not_json", as_text(value.get("detail")) or "mend it"
    text = None if "record" in value else as_text(value["text"])
    return Refusal(origin, as_name(value.get("format")), reason, detail, value.get("record"), text)


class RefusalFile:
    """Adds refusals to a file, which may be added to by others at the same time."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._listed: set[bytes] = set()
        self._looked = 0
        self._is_ended = True
        self._count = 0

    @property
    def path(self) -> Path | None:
        """Where they are; nothing while there are none."""
        return self._path if self._count else None

    def add(self, refusal: Refusal) -> None:
        """Keep one, unless it is listed. Raises `RefusalsNotKept`."""
        line = refusal.line()
        try:
            self._path.touch(mode=0o600)
            with self._path.open("a+b") as file:
                fcntl.flock(file, fcntl.LOCK_EX)
                self._look(file)
                if _mark(line) not in self._listed:
                    file.write((b"" if self._is_ended else b"\n") + json.dumps(line).encode() + b"\n")
        except OSError as error:
            raise RefusalsNotKept(
                f"{self._path} cannot be written ({error.strerror}): say with --refused where refused records go"
            ) from None
        self._count += 1

    def _look(self, file: IO[bytes]) -> None:
        """Note what has been listed since the last look, and whether its last line is ended."""
        if os.fstat(file.fileno()).st_size < self._looked:  # somebody has begun another
            self._listed, self._looked, self._is_ended = set(), 0, True
        file.seek(self._looked)
        for line in file:
            self._is_ended = line.endswith(b"\n")
            with contextlib.suppress(ValueError, RecursionError):
                self._listed.add(_mark(as_object(json.loads(line))))
        self._looked = file.tell()


def _mark(line: JsonObject) -> bytes:
    """By what a refusal is known: the same record of the same place, for whatever reason it was refused."""
    source = as_object(line.get("source"))
    told = [source.get("file"), source.get("place"), source.get("key"), line.get("text"), line.get("record")]
    return sha256(json.dumps(told, sort_keys=True).encode()).digest()


def unreadable(origin: Origin, error: Exception) -> Refusal:
    """A file that cannot be read, or not to its end."""
    told = getattr(error, "strerror", None) or "it is broken off or damaged"
    return Refusal(origin, None, "unreadable", f"the file cannot be read ({told}): write it again", text="")
