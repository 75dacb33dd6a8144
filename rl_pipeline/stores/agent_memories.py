"""The port to what agents remember as it is looked up: the memories with what every look changes.

What a memory says is immutable and lies in the warehouse; this is its copy for looking up, with the columns that the
learning architecture gives the table `agent_memories`. It can be made anew from the warehouse, all but the counts.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal, Protocol, get_args

from rl_pipeline.errors import PipelineError

MemoryType = Literal["episodic", "semantic", "procedural"]
MEMORY_TYPES: tuple[MemoryType, ...] = get_args(MemoryType)

Removal = Literal["forgotten", "erased", "replaced"]
"""Why a memory went. What was forgotten or erased does not come back; what was replaced may."""

DIMENSIONS = 768
"""Of a stored embedding, as the architecture has it. A shorter one is filled with zeros, which no cosine notices."""

NOBODY = ""
"""The agent of a memory that belongs to all of them."""


class MemoriesUnavailable(PipelineError):
    """The store of memories does not answer; nothing was changed."""


@dataclass(frozen=True, slots=True)
class AgentMemory:
    """One memory, and how often it was looked up."""

    id: str
    """A UUID."""
    agent_id: str
    memory_type: MemoryType
    content: Mapping[str, Any]
    created_at: datetime
    """When it happened, or what it was made of ended."""
    searched: tuple[str, ...]
    """The turns in which words are looked for, in order."""
    task_type: str = ""
    domain: str = ""
    importance: float = 0.5
    embedding: tuple[float, ...] | None = field(default=None, repr=False)
    access_count: int = 0
    last_accessed: datetime | None = None


@dataclass(frozen=True, slots=True)
class MemoryChanges:
    """What came and went since a number of changes."""

    memories: Sequence[AgentMemory]
    removed: Sequence[str]
    has_erased: bool
    """Whether some of those that went were erased."""
    last: int
    """The number to ask with next."""
    complete: bool
    """Whether that was all there is."""


@dataclass(frozen=True, slots=True)
class Standing:
    """By what a memory is kept or forgotten."""

    id: str
    importance: float
    access_count: int
    last_accessed: datetime | None
    created_at: datetime


class AgentMemories(Protocol):
    """The table. Safe from several threads, and from several processes at once.

    Every method raises `MemoriesUnavailable` where the store does not answer. What changes does so whole or not at all,
    and is seen by every later call of every process.
    """

    def put(self, memories: Sequence[AgentMemory], replacing: Iterable[str] = ()) -> int:
        """Add memories, and return how many are new or say something else than before; those that they replace go.

        One that is there takes the new content, and keeps its counts, its importance and, where none is given for other
        words, its embedding. Of those that were forgotten
        or erased none comes back, and none is counted.
        """

    def get(self, ids: Sequence[str]) -> list[AgentMemory]:
        """Those that there are, in the order asked for."""

    def count(self) -> int:
        """How many there are."""

    def changes(self, since: int, limit: int) -> MemoryChanges:
        """What came, changed what it says, or went after the change of that number, at most about so many memories.
        From 0: everything."""

    def touch(self, looks: Mapping[str, int], at: datetime) -> None:
        """Add to the counts of those that were looked up, so often each, and last at that time."""

    def weigh(self, importances: Mapping[str, float]) -> None:
        """Set how important memories are."""

    def remove(self, ids: Iterable[str], why: Removal) -> int:
        """Remove memories for good, out of the files too where they were erased; return how many there were.

        Ids that are unknown are remembered as gone too, so that what is about to be added is not.
        """

    def of(self, memory_type: MemoryType, task_type: str) -> list[str]:
        """The ids of all memories of a type and a type of task, in order."""

    def agents_over(self, budget: int) -> list[str]:
        """The agents that have more memories than that, in order; `NOBODY` among them."""

    def standings(self, agent_id: str) -> list[Standing]:
        """By what each memory of an agent is kept, in the order of their ids."""

    def close(self) -> None:
        """Release the connections. Closing twice is allowed; any other call after it is not."""
