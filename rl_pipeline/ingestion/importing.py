"""Trajectories from files, published to the stream: redacted before, then redacted, judged and scored like all others.

A file has one JSON object per line, or is one JSON object when it ends in `.json`; either may be compressed (`.gz`).
What breaks the contract cannot be redacted as such, and is not published: a dead letter says where it stands in which
file, and why it was refused; it is mended there, and imported again by another job. What is no JSON object at all is no
trajectory somebody tried to write, and fails the import before anything of its file is published. Of users who were
erased nothing is published that ended before: an older file must not bring them back.
"""

import gzip
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import sha256
from itertools import islice
from pathlib import Path

from rl_pipeline.collection.publishing import OpenObjects, outgoing_message
from rl_pipeline.contracts import CLAIMED_LIMITS, ContractError, Trajectory, parse_message
from rl_pipeline.errors import PipelineError
from rl_pipeline.ingestion.dead_letters import publish_dead_letters
from rl_pipeline.ingestion.excerpts import excerpt_of
from rl_pipeline.ingestion.judging import Erasures, Judgement, Refusal, is_erased, sensitive_key, user_placeholders
from rl_pipeline.ingestion.ownership import Named, named_anywhere, users_of
from rl_pipeline.ingestion.tombstones import read_erasures
from rl_pipeline.redaction.policy import RedactionKey, RedactionPolicy
from rl_pipeline.redaction.redactor import Redactor, SensitiveKey
from rl_pipeline.stores.objects import Objects
from rl_pipeline.stores.stream import OutgoingMessage, Stream
from rl_pipeline.stores.warehouse import Warehouse

SUBJECT = "agent.rl.trajectory.v1"
IMPORTS = "IMPORTS"
"""What stands for the stream in the letters of documents that an import has refused."""
# A document is refused once, by whatever rules.
_REVISION = 0
_BATCH = 500
_SUFFIXES = (".json", ".jsonl", ".ndjson")
# Of what breaks the contract nobody knows when it ended.
_EARLIEST = datetime(1, 1, 1, tzinfo=UTC)


class ImportFailed(PipelineError):
    """The files cannot be imported; nothing of the file that is named was published."""


@dataclass(frozen=True)
class ImportReport:
    """What came of an import."""

    files: int
    published: int
    repeated: int
    """Messages that the stream had already."""
    erased: int
    """Trajectories that were left out because their users were erased."""
    refused: int
    """Documents that break the contract, each with a dead letter unless its user has opted out."""
    last_sequence: int
    """Once everything up to here is ingested, so are the files."""


def import_trajectories(
    files: Iterable[tuple[str, bytes]],
    messages: Stream,
    tables: Warehouse,
    *,
    job_id: str,
    raw_objects: OpenObjects,
    policy: RedactionPolicy,
    previous_keys: Sequence[RedactionKey],
    now: datetime,
) -> ImportReport:
    """Publish the trajectories of the files, and remember which they are. Again, it changes nothing.

    Raises `ImportFailed` when there is none, or when a file is not what this module's text says.
    """
    count = published = repeated = erased = refused = last = 0
    edge = _Edge(job_id, Redactor(policy), (policy.key, *previous_keys), raw_objects, now)
    for name, content in files:
        count += 1
        documents = iter(_documents(name, content))
        while some := list(islice(documents, _BATCH)):
            erasures = read_erasures(tables)
            fates = [edge.fate(one, erasures) for one in some]
            batch = [fate for fate in fates if isinstance(fate, OutgoingMessage)]
            letters = [fate for fate in fates if isinstance(fate, Judgement)]
            publish_dead_letters(messages, IMPORTS, letters, revision=_REVISION, now=now)
            refused += len(letters)
            erased += len(some) - len(batch) - len(letters)
            if not batch:
                continue
            # Known before they are in the stream: a job never has fewer than it has published.
            _remember(tables, job_id, [message.message_id for message in batch])
            stored = messages.publish_many(batch)
            published += len(stored)
            repeated += sum(each.duplicate for each in stored)
            last = max(last, *(each.sequence for each in stored))
    if not published:
        left_out = [f"{erased} of users who were erased"] if erased else []
        left_out += [f"{refused} that break the contract (`dead-letters list --stream imports`)"] if refused else []
        but = f" but {' and '.join(left_out)}" if left_out else ""
        raise ImportFailed(
            f"there is no trajectory in {count} files{but}: name JSON lines files ({', '.join(_SUFFIXES)})"
        )
    return ImportReport(count, published - repeated, repeated, erased, refused, last)


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


@dataclass(frozen=True)
class _Document:
    """What ought to be a trajectory, and where it stands, in words that can be told."""

    file: str
    line: int
    content: bytes


def _documents(name: str, content: bytes) -> list[_Document]:
    try:
        text = gzip.decompress(content) if name.endswith(".gz") else content
    except (OSError, EOFError):
        raise ImportFailed(f"{name} cannot be decompressed: write it again") from None
    whole = name.removesuffix(".gz").endswith(".json")
    name = name.encode("utf-8", "replace").decode()  # a file's name may be any bytes
    lines = enumerate([text] if whole else text.splitlines(), start=1)
    documents = [_Document(name, number, line) for number, line in lines if line.strip()]
    for document in documents:
        try:
            is_object = isinstance(json.loads(document.content), dict)
        except (ValueError, RecursionError):
            is_object = False
        if not is_object:
            raise ImportFailed(f"{name}, line {document.line}: is no JSON object; one trajectory per line is expected")
    return documents


@dataclass(frozen=True)
class _Edge:
    """How a document becomes a message, or a dead letter."""

    job_id: str
    redactor: Redactor
    keys: Sequence[RedactionKey]
    raw_objects: OpenObjects
    now: datetime

    def fate(self, document: _Document, erasures: Erasures) -> OutgoingMessage | Judgement | None:
        """The message, or why there is none; nothing of a user who was erased after it ended."""
        try:
            trajectory = parse_message(SUBJECT, document.content, CLAIMED_LIMITS)
            ended = trajectory.end_timestamp if isinstance(trajectory, Trajectory) else _EARLIEST
            if self._is_erased(users_of(trajectory.model_dump(mode="json")), ended, erasures):
                return None
            return outgoing_message(trajectory, self.raw_objects, self.redactor)
        except (ContractError, SensitiveKey) as broken:
            named = named_anywhere(document.content)
            if self._is_erased(named.users, _EARLIEST, erasures):
                return None
            error = broken if isinstance(broken, ContractError) else sensitive_key()
            return self._refused(document, error, named)

    def _refused(self, document: _Document, error: ContractError, named: Named) -> Judgement:
        place = f"{self.job_id} {self.redactor.redact_text(document.file).text}:{document.line}"
        refusal = None
        if not named.opted_out:
            # Erasure finds letters by their messages, and these have none: nothing is shown that is somebody's.
            excerpt = "" if named.users else excerpt_of(document.content, self.redactor, {})
            refusal = Refusal(SUBJECT, error.path, error.advice, excerpt)
        return Judgement(
            # A number that is the same whenever the same import comes to the same document.
            sequence=int(sha256(place.encode() + b" " + document.content).hexdigest()[:15], 16),
            stream_time=self.now,
            size=len(document.content),
            sha256=sha256(document.content).hexdigest(),
            verdict="refused",
            reason=error.limit,
            message_id=place,
            refusal=refusal,
        )

    def _is_erased(self, users: Sequence[str], ended: datetime, erasures: Erasures) -> bool:
        return is_erased([name for user in users for name in user_placeholders(user, self.keys)], ended, erasures)


def _remember(tables: Warehouse, job_id: str, ids: list[str]) -> None:
    import polars as pl

    tables.insert("imported_trajectories", pl.DataFrame({"trajectory_id": ids}).with_columns(job_id=pl.lit(job_id)))
