"""The thread that puts what is recorded on the disk: checked, redacted, one trajectory to a file.

The agent only hands over; whatever the disk or the redaction takes, it takes here.
"""

import contextlib
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from rl_pipeline.collection.outbox.counts import Counting
from rl_pipeline.collection.outbox.journal import Journal
from rl_pipeline.collection.outbox.redaction import OutboxRedaction, Secrets
from rl_pipeline.collection.outbox.room import OutboxLimits, Room
from rl_pipeline.contracts import ContractError, Trajectory
from rl_pipeline.contracts.registry import validated
from rl_pipeline.redaction.redactor import SensitiveKey

Part = Literal["begin", "turn", "end"]

_ANY_TURN = {
    "turn_id": 1,
    "timestamp": "2026-01-01T00:00:00Z",
    "observation": {"type": "system_message", "content": ""},
    "action": {"type": "response"},
    "result": {"success": True},
}


class NoRoom(Exception):
    """A limit of the outbox; the text says which."""


@dataclass(frozen=True, slots=True)
class _Order:
    trajectory_id: str
    part: Part | None
    """None: forget the trajectory."""
    content: dict[str, Any]
    done: "Future[None]"


@dataclass(frozen=True, slots=True)
class _Recording:
    """A trajectory that is being written, and the secrets that were found in it so far."""

    journal: Journal
    begin: dict[str, Any]
    secrets: Secrets


class Writer:
    """Takes the parts of any number of trajectories; `on_finished` is called with the file of each whole one."""

    def __init__(
        self,
        directory: Path,
        limits: OutboxLimits,
        redaction: OutboxRedaction,
        counting: Counting,
        on_finished: Callable[[Path], None],
    ) -> None:
        self._directory = directory
        self._limits = limits
        self._redaction = redaction
        self._counting = counting
        self._on_finished = on_finished
        self._room = Room(directory, limits)
        self._open: dict[str, _Recording] = {}
        self._orders: queue.SimpleQueue[_Order | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="recorder writes", daemon=True)
        self._thread.start()

    def write(self, trajectory_id: str, part: Part, content: dict[str, Any]) -> "Future[None]":
        """Have a part written; the future ends when that is done, or given up.

        When too much waits already, the whole trajectory is given up: half of one would teach something wrong.
        """
        if part != "end" and self._orders.qsize() >= self._limits.max_waiting:
            self._counting.add("dropped", "more is recorded than the disk can keep up with")
            return self.forget(trajectory_id)
        return self._put(_Order(trajectory_id, part, content, Future()))

    def forget(self, trajectory_id: str) -> "Future[None]":
        """Have everything of a trajectory removed; what comes later of it is ignored."""
        return self._put(_Order(trajectory_id, None, {}, Future()))

    def wait_until_written(self, seconds: float) -> None:
        """Wait for what was handed over so far."""
        with contextlib.suppress(TimeoutError):
            self.forget("").result(seconds)

    def stop(self, seconds: float) -> None:
        """Write what waits, and end."""
        self._orders.put(None)
        self._thread.join(seconds)

    def leave_to_parent(self) -> None:
        """In a fork: let go of the files, so that their locks end with the process that records."""
        for recording in self._open.values():
            recording.journal.let_go()

    def _put(self, order: _Order) -> "Future[None]":
        self._orders.put(order)
        return order.done

    def _run(self) -> None:
        try:
            self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._redaction.redactor()
        except Exception as error:  # noqa: BLE001 - every order tries again, and fails by itself
            self._counting.failed("opening the outbox", error)
        while (order := self._orders.get()) is not None:
            try:
                self._obey(order)
            except NoRoom as error:
                self._give_up(order, "dropped", f"{error}: a trajectory is dropped")
            except OSError as error:
                self._give_up(
                    order, "dropped", f"the outbox cannot be written ({error.strerror}): a trajectory is dropped"
                )
            except (ContractError, SensitiveKey) as error:
                self._give_up(order, "refused", f"a trajectory is not recorded: {error}")
            except Exception as error:  # noqa: BLE001 - the next trajectory must be written all the same
                self._counting.failed("writing", error)
                self._give_up(order, "dropped", "a trajectory could not be written")
            finally:
                with contextlib.suppress(InvalidStateError):  # whoever waited gave it up
                    order.done.set_result(None)

    def _obey(self, order: _Order) -> None:
        if order.part == "begin":
            self._begin(order)
            return
        recording = self._open.get(order.trajectory_id)
        if recording is None:
            return
        if order.part is None:
            del self._open[order.trajectory_id]
            recording.journal.discard()
            return
        journal, begin = recording.journal, recording.begin
        content = self._redacted(recording, order.part, order.content)
        if order.part == "turn":
            _check(begin | {"end_timestamp": begin["start_timestamp"], "turns": [_ANY_TURN | content]})
            if lack := self._room.lacks_for_more():
                raise NoRoom(lack)
        else:
            _check(begin | content | {"turns": [_ANY_TURN]})
        journal.append(order.part, content)
        if journal.size > self._limits.max_trajectory_bytes:
            raise NoRoom(f"more than the {self._limits.max_trajectory_bytes} bytes of one trajectory")
        if order.part == "end":
            self._end(order.trajectory_id, journal)

    def _begin(self, order: _Order) -> None:
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        secrets = Secrets()
        begin = self._redaction.part("begin", order.content, secrets)
        _check(begin | {"end_timestamp": begin["start_timestamp"], "turns": [_ANY_TURN]})
        if lack := self._room.lacks_for_new():
            raise NoRoom(lack)
        journal = Journal(self._directory, order.trajectory_id)
        self._open[order.trajectory_id] = _Recording(journal, begin, secrets)
        journal.append("begin", begin)
        journal.append("redacted_by", {"revision": self._redaction.redactor().revision})

    def _redacted(self, recording: _Recording, part: Part, content: dict[str, Any]) -> dict[str, Any]:
        """The part without secrets; what it gives away of earlier parts is taken out of these."""
        memory = recording.secrets.memory
        known_before = memory.looked_for
        clean = self._redaction.part(part, content, recording.secrets)
        if memory.looked_for > known_before:
            again = recording.secrets.from_the_beginning()
            recording.journal.rewrite(lambda part, content: self._redaction.part(part, content, again))
        return clean

    def _end(self, trajectory_id: str, journal: Journal) -> None:
        if not journal.turns:
            self._open.pop(trajectory_id)
            journal.discard()
            self._counting.add("empty")
            return
        journal.close()
        self._open.pop(trajectory_id)
        self._counting.add("finished")
        self._on_finished(journal.path)

    def _give_up(self, order: _Order, kind: str, reason: str) -> None:
        recording = self._open.pop(order.trajectory_id, None)
        if recording is not None:
            recording.journal.discard()
        self._counting.add(kind, reason)


def _check(tree: dict[str, Any]) -> None:
    """Refuse early, with the place, what the stream would refuse late."""
    validated(Trajectory, tree)
