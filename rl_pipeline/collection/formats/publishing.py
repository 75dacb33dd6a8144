"""Imported trajectories on their way to the stream, redacted as everything that leaves an agent, some at a time."""

from collections.abc import Iterable
from dataclasses import dataclass

from rl_pipeline.collection.formats.importing import Imported, Importer
from rl_pipeline.collection.publishing import OpenObjects, outgoing_message
from rl_pipeline.contracts import ContractError
from rl_pipeline.redaction.redactor import Redactor, SensitiveKey
from rl_pipeline.stores.stream import OutgoingMessage, PublishRefused, Stream

_BATCH, _BATCH_BYTES = 200, 16 * 1024 * 1024


@dataclass
class PublishedImports:
    """What came of publishing."""

    stored: int = 0
    repeated: int = 0
    """Those that the stream had already."""


def publish_imports(
    found: Iterable[Imported],
    importer: Importer,
    stream: Stream,
    open_objects: OpenObjects,
    redactor: Redactor | None,
) -> PublishedImports:
    """Publish what an importer finds; what cannot leave is refused there, and holds up nothing else."""
    came = PublishedImports()
    batch: list[OutgoingMessage] = []
    size = 0
    for imported in found:
        message = _outgoing(imported, importer, open_objects, redactor)
        if message is None:
            continue
        batch.append(message)
        size += len(message.data)
        if len(batch) >= _BATCH or size >= _BATCH_BYTES:
            _send(batch, stream, came)
            batch, size = [], 0
    _send(batch, stream, came)
    return came


def _outgoing(
    imported: Imported, importer: Importer, open_objects: OpenObjects, redactor: Redactor | None
) -> OutgoingMessage | None:
    try:
        return outgoing_message(imported.trajectory, open_objects, redactor)
    except ContractError as error:
        importer.refuse(imported.refusal(error.limit, str(error)))
    except SensitiveKey as error:
        importer.refuse(imported.refusal("sensitive_key", str(error)))
    except PublishRefused as error:
        importer.refuse(imported.refusal("max_bytes", str(error)))
    importer.report.read[imported.format_name] -= 1
    return None


def _send(batch: list[OutgoingMessage], stream: Stream, came: PublishedImports) -> None:
    if not batch:
        return
    for published in stream.publish_many(batch):
        came.repeated += published.duplicate
        came.stored += not published.duplicate
