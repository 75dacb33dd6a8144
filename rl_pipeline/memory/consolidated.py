"""What consolidation makes: a memory of several, which says what it was made of."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal
from uuid import uuid5

from rl_pipeline.memory.episodes import MEMORY_IDS
from rl_pipeline.memory.words import words_of

MOST_SOURCES = 64
"""So many are named in what it says; all are kept beside it."""


@dataclass(frozen=True, slots=True)
class Consolidated:
    """A fact, or a procedure."""

    id: str
    memory_type: Literal["semantic", "procedural"]
    task_type: str
    domain: str
    content: Mapping[str, Any]
    searched: tuple[str, ...]
    importance: float
    at: datetime
    """When the last of what it was made of happened."""
    sources: tuple[str, ...]
    """The ids of the memories it was made of, in order."""


def consolidated_id(memory_type: str, task_type: str, *said: str) -> str:
    """The id of what is consolidated: what says the same has it again the next day, and keeps its counts."""
    words = " / ".join(" ".join(words_of(text)) for text in said)
    return str(uuid5(MEMORY_IDS, f"{memory_type} {task_type} {words}"))
