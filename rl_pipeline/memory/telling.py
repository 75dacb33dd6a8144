"""What agents and people have remembered by hand: redacted, and kept where the lineage's memories are.

Many tell at once, and the warehouse likes few large inserts: whoever comes while one is under way is in the next. What
is told is in the warehouse first, and then in the store: whoever dies in between has it carried over later.
"""

import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from datetime import datetime, timedelta
from queue import SimpleQueue
from typing import Any
from uuid import UUID, uuid4, uuid5

from rl_pipeline.errors import PipelineError
from rl_pipeline.memory.embedding import Embed, unembedded
from rl_pipeline.memory.episodes import MEMORY_IDS
from rl_pipeline.memory.rows import RETENTION, Told, insert_rows, memory_of, row_of_told
from rl_pipeline.redaction.named_users import redacted_with_users
from rl_pipeline.redaction.redactor import Redactor
from rl_pipeline.rewards.document import as_text, texts_of
from rl_pipeline.stores.agent_memories import AgentMemories, AgentMemory, MemoryType
from rl_pipeline.stores.warehouse import Warehouse

_MOST_AT_ONCE = 500
_MOST_TURNS, _MOST_TEXT = 64, 2000


class UserErased(PipelineError):
    """What is told is of a user who was erased, or opted out."""


class NothingToRemember(PipelineError):
    """What is told says nothing."""


@dataclass(frozen=True, slots=True)
class Telling:
    """What shall be remembered, as it came."""

    agent_id: str
    memory_type: MemoryType
    content: Mapping[str, Any]
    importance: float | None = None
    key: str | None = None
    """The same key of the same agent is the same memory."""


class MemoryTeller:
    """Keeps what is told. Threads may share it; `close` ends it."""

    def __init__(
        self,
        open_warehouse: Callable[[], Warehouse],
        memories: AgentMemories,
        redactor: Callable[[], Redactor],
        clock: Callable[[], datetime],
        *,
        retention: timedelta = RETENTION,
        embed: Embed = unembedded,
    ) -> None:
        self._open_warehouse = open_warehouse
        self._memories = memories
        self._redactor = redactor
        self._clock = clock
        self._retention = retention
        self._embed = embed
        self._waiting: SimpleQueue[tuple[Told, list[str], Future[AgentMemory]] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="memories", daemon=True)
        self._thread.start()

    def tell(self, telling: Telling) -> AgentMemory:
        """Remember it, and return the memory when it is kept.

        Raises `NothingToRemember`, `UserErased`, `SensitiveKey`, `WarehouseUnavailable` and `MemoriesUnavailable`.
        """
        told, users = self._told(telling)
        kept: Future[AgentMemory] = Future()
        self._waiting.put((told, users, kept))
        return kept.result()

    def close(self) -> None:
        """Keep what waits, and end."""
        self._waiting.put(None)
        self._thread.join()

    def _told(self, telling: Telling) -> tuple[Told, list[str]]:
        redacted, users = redacted_with_users(self._redactor(), {"agent_id": telling.agent_id}, dict(telling.content))
        content = redacted.tree["metadata"]
        searched = [" ".join(text.split())[:_MOST_TEXT] for text in texts_of(_without_names(content))]
        searched = [text for text in searched if text][:_MOST_TURNS]
        if not searched:
            raise NothingToRemember("the content has no text to find it by: say in words what shall be remembered")
        agent = redacted.tree["agent_id"]
        memory_id = uuid5(MEMORY_IDS, f"told {agent} {telling.key}") if telling.key else uuid4()
        return Told(
            id=str(UUID(int=memory_id.int)),
            agent_id=agent,
            memory_type=telling.memory_type,
            content=content,
            searched=tuple(searched),
            at=self._clock(),
            task_type=as_text(content.get("task_type")),
            domain=as_text(content.get("domain")),
            user=users[0] if users else "",
            importance=0.5 if telling.importance is None else telling.importance,
        ), users

    def _work(self) -> None:
        while (first := self._waiting.get()) is not None:
            batch, is_over = [first], False
            while not self._waiting.empty() and len(batch) < _MOST_AT_ONCE:
                if (following := self._waiting.get()) is None:
                    is_over = True
                    break
                batch.append(following)
            try:
                self._keep(batch)
            except BaseException as error:  # noqa: BLE001 - whoever waits is told, whatever it is
                for _, _, kept in batch:
                    if not kept.done():
                        kept.set_exception(error)
            if is_over:
                return

    def _keep(self, batch: Sequence[tuple[Told, list[str], "Future[AgentMemory]"]]) -> None:
        warehouse = self._open_warehouse()
        erased = _erased(warehouse, sorted({user for _, users, _ in batch for user in users}))
        staying = []
        for told, users, kept in batch:
            if any(told.at <= erased[user] for user in users if user in erased):
                kept.set_exception(UserErased("nothing is kept of this user: leave them out"))
            else:
                staying.append((told, kept))
        rows = [row_of_told(told, self._retention) for told, _ in staying]
        insert_rows(warehouse, rows)
        made = self._embed([memory_of(row) for row in rows])
        self._memories.put(made)
        for memory, (_, kept) in zip(made, staying, strict=True):
            kept.set_result(memory)


def _without_names(content: Any) -> Any:
    """Without what names, and describes nothing."""
    return {name: value for name, value in content.items() if name not in ("task_type", "domain", "user", "user_id")}


def _erased(warehouse: Warehouse, users: Sequence[str]) -> dict[str, datetime]:
    if not users:
        return {}
    found = warehouse.query(
        "SELECT user, max(covers_until) AS until FROM erasures WHERE user IN {users:Array(String)} GROUP BY user",
        {"users": list(users)},
    )
    return dict(found.iter_rows())
