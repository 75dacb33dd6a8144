"""Embeddings as stores keep them: as many numbers as the architecture's column has, of four bytes each."""

import struct
from collections.abc import Sequence

from rl_pipeline.stores.agent_memories import DIMENSIONS


def padded(embedding: Sequence[float]) -> list[float]:
    """The embedding with zeros behind it."""
    return [*embedding, *([0.0] * (DIMENSIONS - len(embedding)))]


def embedding_bytes(embedding: Sequence[float]) -> bytes:
    """The padded embedding, little-endian."""
    return struct.pack(f"<{DIMENSIONS}f", *padded(embedding))


def embedding_floats(data: bytes) -> tuple[float, ...]:
    """What `embedding_bytes` was given, with the zeros."""
    return struct.unpack(f"<{DIMENSIONS}f", data)
