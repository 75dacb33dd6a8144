"""What agents remember of tasks that they did: the port to it, and a memory that lives as long as its process."""

import re
import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class MDPTransition:
    """One task, as a step of a Markov decision process: its single turns are those of the recorded trajectory."""

    state: str
    """What the agent was shown when it began."""
    action: Sequence[str]
    """What it answered, turn by turn."""
    reward: float
    next_state: str
    """What it was shown at last."""
    agent_id: str
    task_id: str
    done: bool = True


class MemoryManager(Protocol):
    """Where agents keep what happened to them, and look it up; all agents share it.

    Both methods may take their time: they are called in threads, from several at once.
    """

    def retrieve_relevant(self, state: str) -> Sequence[MDPTransition]:
        """What may help in this state, the most relevant first; nothing if nothing does."""
        ...

    def store_episodic(self, transition: MDPTransition) -> None:
        """Remember it."""
        ...


class InProcessMemory:
    """Remembers the last `capacity` tasks and recalls the `k` whose beginnings share most words with the state, the
    newest first among equals."""

    def __init__(self, capacity: int = 1000, k: int = 3) -> None:
        self._k = k
        self._lock = threading.Lock()
        self._episodes: deque[tuple[frozenset[str], MDPTransition]] = deque(maxlen=capacity)

    def retrieve_relevant(self, state: str) -> list[MDPTransition]:
        """See `MemoryManager`."""
        sought = _words(state)
        with self._lock:
            newest_first = list(reversed(self._episodes))
        alike = [(len(sought & words) / len(sought | words), one) for words, one in newest_first if sought & words]
        return [one for _, one in sorted(alike, key=lambda found: -found[0])[: self._k]]

    def store_episodic(self, transition: MDPTransition) -> None:
        """See `MemoryManager`."""
        with self._lock:
            self._episodes.append((_words(transition.state), transition))


def _words(text: str) -> frozenset[str]:
    return frozenset(re.findall(r"\w+", text.lower()))
