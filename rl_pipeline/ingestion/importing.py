"""Trajectories from files, published to the stream: redacted, judged and scored there like all others.

A file has one JSON object per line, or is one JSON object when it ends in `.json`; either may be compressed (`.gz`).
What breaks the contract is published too, so that the ingest refuses it and keeps it as a dead letter with its reason;
what is no JSON object at all is no trajectory somebody tried to write, and fails the import before anything is
published.
"""

import gzip
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from hashlib import sha256
from itertools import islice
from pathlib import Path

from rl_pipeline.collection.publishing import CLAIM_CHECK_ABOVE_BYTES, OpenObjects, outgoing_message
from rl_pipeline.contracts import CLAIMED_LIMITS, ContractError, parse_message
from rl_pipeline.errors import PipelineError
from rl_pipeline.stores.objects import Objects
from rl_pipeline.stores.stream import OutgoingMessage, Stream
from rl_pipeline.stores.warehouse import Warehouse

SUBJECT = "agent.rl.trajectory.v1"
_BATCH = 500
_SUFFIXES = (".json", ".jsonl", ".ndjson")


class ImportFailed(PipelineError):
    """The files cannot be imported; nothing of the file that is named was published."""


@dataclass(frozen=True)
class ImportReport:
    """What came of an import."""

    files: int
    published: int
    repeated: int
    """Messages that the stream had already."""
    last_sequence: int
    """Once everything up to here is ingested, so are the files."""


def import_trajectories(
    files: Iterable[tuple[str, bytes]], messages: Stream, tables: Warehouse, *, job_id: str, raw_objects: OpenObjects
) -> ImportReport:
    """Publish the trajectories of the files, and remember which they are. Again, it changes nothing.

    Raises `ImportFailed` when there is none, or when a file is not what this module's text says.
    """
    count = published = repeated = last = 0
    for name, content in files:
        count += 1
        outgoing = (_outgoing(document, raw_objects) for document in _documents(name, content))
        while batch := list(islice(outgoing, _BATCH)):
            # Known before they are in the stream: a job never has fewer than it has published.
            _remember(tables, job_id, [message.message_id for message in batch])
            stored = messages.publish_many(batch)
            published += len(stored)
            repeated += sum(each.duplicate for each in stored)
            last = max(last, *(each.sequence for each in stored))
    if not published:
        raise ImportFailed(f"there is no trajectory in {count} files: name JSON lines files ({', '.join(_SUFFIXES)})")
    return ImportReport(count, published - repeated, repeated, last)


def files_below(directory: Path, path: str) -> Iterator[tuple[str, bytes]]:
    """The file, or the files of the directory, at `path` below `directory`. Raises `ImportFailed` for any other place.

    A request comes from far away: it must not read what else is on this machine.
    """
    root = directory.resolve()
    try:
        place = (root / path).resolve()
        is_there = place.is_relative_to(root) and place.exists()
    except (OSError, ValueError):  # a name that no file can have
        is_there = False
    if not is_there:
        raise ImportFailed(f"there is no {path[:200]!r} in the directory of imports: put the files there")
    for file in sorted(place.rglob("*")) if place.is_dir() else [place]:
        if _is_wanted(file.name) and file.is_file() and file.resolve().is_relative_to(root):
            yield str(file.relative_to(root)), file.read_bytes()


def files_in_store(objects: Objects) -> Iterator[tuple[str, bytes]]:
    """The files of an object store."""
    for stored in objects.list():
        if _is_wanted(stored.key):
            yield stored.key, objects.get(stored.key)


def _is_wanted(name: str) -> bool:
    return name.removesuffix(".gz").endswith(_SUFFIXES)


def _documents(name: str, content: bytes) -> list[bytes]:
    try:
        text = gzip.decompress(content) if name.endswith(".gz") else content
    except (OSError, EOFError):
        raise ImportFailed(f"{name} cannot be decompressed: write it again") from None
    whole = name.removesuffix(".gz").endswith(".json")
    documents = [text] if whole else [line for line in text.splitlines() if line.strip()]
    for number, document in enumerate(documents, start=1):
        try:
            is_object = isinstance(json.loads(document), dict)
        except (ValueError, RecursionError):
            is_object = False
        if not is_object:
            raise ImportFailed(f"{name}, document {number}: is no JSON object; one trajectory per line is expected")
    return documents


def _outgoing(document: bytes, raw_objects: OpenObjects) -> OutgoingMessage:
    try:
        return outgoing_message(parse_message(SUBJECT, document, CLAIMED_LIMITS), raw_objects)
    except ContractError as broken:
        if len(document) > CLAIM_CHECK_ABOVE_BYTES:
            raise ImportFailed(f"a document of {len(document)} bytes breaks the contract: {broken}") from None
        return OutgoingMessage(SUBJECT, document, f"sha256:{sha256(document).hexdigest()}")


def _remember(tables: Warehouse, job_id: str, ids: list[str]) -> None:
    import polars as pl

    tables.insert("imported_trajectories", pl.DataFrame({"trajectory_id": ids}).with_columns(job_id=pl.lit(job_id)))
