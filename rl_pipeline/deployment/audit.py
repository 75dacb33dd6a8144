"""The audit of the desired state: row n belongs to generation n and is derived from that state alone.

Rows are written after the swap, each insert with all that were missing before it, so there is never a row without those
before it. A writer that dies leaves its row to whoever looks next: the store of the state remembers the last values.
Advancing waits until the rows of all that was before are there; a rollback never waits for the warehouse.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from hashlib import sha256
from typing import Any, Protocol

from pydantic import ValidationError

from rl_pipeline.deployment.record import Recorded, history
from rl_pipeline.deployment.state import DesiredState
from rl_pipeline.stores.desired_state import DesiredStates
from rl_pipeline.stores.warehouse import Warehouse

_OF_THE_ROW = {"announced_at", "version"}
"""The only columns that are not derived from the state."""

ANNOUNCED_EVENTS = ("deployed", "approved", "ramped", "rechecked", "promoted", "rolled_back")
"""Of which `agent.rl.model.deployed.v1` tells: an approval is when an approved candidate is deployed, and a recheck is
another share."""


@dataclass(frozen=True, slots=True)
class AuditRow:
    """A generation as it was stored."""

    state: DesiredState
    data: bytes
    hash: str

    @classmethod
    def of(cls, data: bytes) -> "AuditRow":
        """The row of a stored state."""
        return cls(DesiredState.decoded(data), data, sha256(data).hexdigest())


@dataclass(frozen=True, slots=True)
class Unannounced:
    """A row of which nobody was told yet, and the row before it, which knows the rollout that it ended."""

    row: AuditRow
    before: AuditRow | None


class AuditLog(Protocol):
    """Where the rows are. Every method raises what a `Warehouse` raises."""

    def recent(self, limit: int) -> Sequence[AuditRow]:
        """The rows of the highest generations, the highest first; within one generation, that of the later change."""

    def known(self, hashes: Sequence[str]) -> set[str]:
        """Those of the hashes that have a row."""

    def add(self, rows: Sequence[AuditRow]) -> None:
        """Write rows, all or none. Writing one again changes nothing."""

    def unannounced(self) -> Sequence[Unannounced]:
        """What is to be announced, in the order of the generations."""

    def mark_announced(self, row: AuditRow, at: datetime) -> None:
        """Remember that a row was announced."""


def newest_row(log: AuditLog) -> AuditRow | None:
    """The row of the highest generation."""
    return next(iter(log.recent(1)), None)


def catch_up(log: AuditLog, states: DesiredStates, current: Recorded) -> int:
    """Write the rows that are missing up to the current state; returns how many.

    If the record was lost since the state was read, its row is not written: those before it may be gone.
    """
    newest = newest_row(log)
    if newest is not None and newest.hash == current.hash:
        return 0
    held = {row.hash: row for row in (AuditRow.of(each.data) for each in history(states))}
    known = log.known(list(held))
    missing = [row for row in held.values() if row.hash not in known]
    log.add(missing)
    return len(missing)


@dataclass(frozen=True, slots=True)
class Verification:
    """What the chain of hashes says."""

    generations: int
    """Through which the chain goes."""
    first_break: str | None
    """Where it breaks first, and how; None when it holds."""
    lost: tuple[int, ...] = ()
    """Generations that went with their bucket before they had a row."""
    aside: tuple[int, ...] = ()
    """Generations of which another row is on the chain: theirs went with their bucket."""

    @property
    def holds(self) -> bool:
        """Whether it is whole."""
        return self.first_break is None

    def __str__(self) -> str:
        lost = f"; lost with the record: {', '.join(map(str, self.lost))}" if self.lost else ""
        aside = f"; aside: {', '.join(map(str, self.aside))}" if self.aside else ""
        return f"{self.first_break or 'the chain holds'}; {self.generations} generations{lost}{aside}"


def verify(rows: Iterable[Mapping[str, Any]], current: Recorded | None = None) -> Verification:
    """Walk the chain. `rows` has the table's columns; `current` is what is recorded, where the record answers."""
    intact: dict[str, AuditRow] = {}
    breaks: dict[int, str] = {}
    for row in rows:
        found = _intact(row)
        if isinstance(found, AuditRow):
            intact[found.hash] = found
        else:
            breaks.setdefault(int(row["generation"]), found)
    newest = max(intact.values(), key=_age, default=None)
    if current is not None:
        if current.hash not in intact:
            breaks.setdefault(current.state.generation, "it is recorded and has no row")
        elif newest is not None and newest.state.generation > current.state.generation:
            breaks.setdefault(newest.state.generation, f"the record is at generation {current.state.generation}")
        newest = intact.get(current.hash, newest)
    chain, lost = _chain(intact, newest, breaks)
    on_chain = {row.hash for row in chain}
    first = min(breaks, default=None)
    return Verification(
        len(chain),
        None if first is None else f"generation {first}: {breaks[first]}",
        tuple(lost),
        tuple(sorted(row.state.generation for row in intact.values() if row.hash not in on_chain)),
    )


def _chain(
    rows: Mapping[str, AuditRow], newest: AuditRow | None, breaks: dict[int, str]
) -> tuple[list[AuditRow], list[int]]:
    """The rows from the newest back to the first, and the generations that a restoration found lost."""
    chain: list[AuditRow] = []
    lost: list[int] = []
    row = newest
    while row is not None:
        chain.append(row)
        state = row.state
        before = rows.get(state.previous_hash)
        if not state.previous_hash:
            break
        if before is None:
            breaks.setdefault(state.generation, "the state before it has no row, or was changed")
            break
        between = range(before.state.generation + 1, state.generation)
        if before.state.generation >= state.generation or (between and state.change.event != "restored"):
            breaks.setdefault(state.generation, f"it follows generation {before.state.generation}")
        lost.extend(between)
        row = before
    return chain, sorted(lost)


def _intact(row: Mapping[str, Any]) -> AuditRow | str:
    """The row, if its columns are those of its state; else what is wrong with it."""
    try:
        found = AuditRow.of(str(row["state"]).encode())
    except ValidationError:
        return "its state cannot be read"
    if found.hash != row["hash"]:
        return "its state was changed"
    derived = _columns(found)
    for name in derived:
        if name not in _OF_THE_ROW and row[name] != derived[name]:
            return f"its {name} is not that of its state"
    return found


class WarehouseAudit:
    """The log in `deployment_audit`."""

    def __init__(self, warehouse: Warehouse) -> None:
        self._warehouse = warehouse

    def recent(self, limit: int) -> Sequence[AuditRow]:
        """See `AuditLog.recent`."""
        return self._rows("true ORDER BY generation DESC, at DESC, hash LIMIT {limit:UInt32}", {"limit": limit})

    def known(self, hashes: Sequence[str]) -> set[str]:
        """See `AuditLog.known`."""
        found = self._warehouse.query(
            "SELECT DISTINCT hash FROM deployment_audit WHERE hash IN {hashes:Array(String)}", {"hashes": list(hashes)}
        )
        return set(found["hash"])

    def add(self, rows: Sequence[AuditRow]) -> None:
        """See `AuditLog.add`."""
        self._insert([_columns(row) for row in rows])

    def unannounced(self) -> Sequence[Unannounced]:
        """See `AuditLog.unannounced`."""
        rows = self._rows(
            "announced_at IS NULL AND event IN {events:Array(String)} ORDER BY generation, at, hash",
            {"events": list(ANNOUNCED_EVENTS)},
        )
        if not rows:
            return []
        hashes = [row.state.previous_hash for row in rows]
        before = {row.hash: row for row in self._rows("hash IN {hashes:Array(String)}", {"hashes": hashes})}
        return [Unannounced(row, before.get(row.state.previous_hash)) for row in rows]

    def after(self, generation: int) -> Sequence[AuditRow]:
        """The rows of all later generations, in their order."""
        return self._rows("generation > {told:UInt64} ORDER BY generation, at, hash", {"told": generation})

    def mark_announced(self, row: AuditRow, at: datetime) -> None:
        """See `AuditLog.mark_announced`."""
        self._insert([_columns(row) | {"announced_at": at, "version": 1}])

    def _rows(self, condition: str, parameters: Mapping[str, Any]) -> list[AuditRow]:
        found = self._warehouse.query(
            f"SELECT state FROM deployment_audit FINAL WHERE {condition}",  # noqa: S608  # written above
            parameters,
        )
        return [AuditRow.of(state.encode()) for state in found["state"]]

    def _insert(self, rows: Sequence[Mapping[str, Any]]) -> None:
        import polars as pl

        if rows:
            moments = {name: pl.Datetime("ms", "UTC") for name in ("at", "announced_at")}
            self._warehouse.insert("deployment_audit", pl.DataFrame(rows, schema_overrides=moments))


def verify_audit(warehouse: Warehouse, current: Recorded | None = None) -> Verification:
    """Walk the chain of all rows there are."""
    rows = warehouse.query("SELECT * FROM deployment_audit FINAL ORDER BY generation, at, hash")
    return verify(rows.iter_rows(named=True), current)


def _columns(row: AuditRow) -> dict[str, Any]:
    state, change = row.state, row.state.change
    return {
        "generation": state.generation,
        "hash": row.hash,
        "previous_hash": state.previous_hash,
        "state": row.data.decode(),
        "event": change.event,
        "phase": state.phase,
        "model_id": change.model_id,
        "deployment_id": change.deployment_id or "",
        "reason": change.reason,
        "by": change.by,
        # As the column has it, to the millisecond.
        "at": change.at.replace(microsecond=change.at.microsecond // 1000 * 1000),
        "evidence": json.dumps(change.evidence),
        "announced_at": None,
        "version": 0,
    }


def _age(row: AuditRow) -> tuple[int, datetime, str]:
    return row.state.generation, row.state.change.at, row.hash
