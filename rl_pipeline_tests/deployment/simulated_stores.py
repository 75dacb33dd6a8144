"""Stores and gateways that are played: each call is a point at which others may act first, the caller may die, the
answer may be lost, or nobody may be there. What they promise is what the ports promise.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from rl_pipeline.deployment.audit import ANNOUNCED_EVENTS, AuditRow, Unannounced
from rl_pipeline.deployment.releases import Release, may_come_again, sorted_out
from rl_pipeline.deployment.state import DesiredState, ServedModel
from rl_pipeline.deployment.traffic import IN_SERVICE, ModelMetrics, Standing, TrafficRefused, TrafficUnavailable
from rl_pipeline.deployment.watchdog import Memory
from rl_pipeline.deployment.windows import Window
from rl_pipeline.stores.desired_state import StoredState
from rl_pipeline.stores.stream import StreamUnavailable
from rl_pipeline.stores.warehouse import WarehouseUnavailable

HISTORY = 64


@dataclass
class World:
    """What the played stores share: whether they are there, and what happens at each of their points."""

    point: Callable[[], None] = lambda: None
    """Before an effect."""
    is_answer_lost: Callable[[], bool] = lambda: False
    """After an effect."""
    nats_is_up: bool = True
    warehouse_is_up: bool = True


@dataclass
class SimulatedStates:
    """The desired state. Losing it forgets all values; revisions grow all the same, as the bucket's do."""

    world: World
    check: Callable[[DesiredState], None] = lambda _: None
    """Sees every state that is swapped in."""
    values: list[StoredState] = field(default_factory=list)
    revision: int = 0
    recorded: list[DesiredState] = field(default_factory=list)
    """All that was ever swapped in."""

    def read(self) -> StoredState | None:
        self._reach()
        return self.values[-1] if self.values else None

    def swap(self, data: bytes, expected_revision: int) -> int | None:
        self._reach()
        if (self.values[-1].revision if self.values else 0) != expected_revision:
            return None
        self.revision += 1
        self.values = [*self.values[1 - HISTORY :], StoredState(data, self.revision)]
        self.recorded.append(DesiredState.decoded(data))
        self.check(self.recorded[-1])
        if self.world.is_answer_lost():
            raise StreamUnavailable("the answer was lost")
        return self.revision

    def history(self) -> Sequence[StoredState]:
        self._reach()
        return list(self.values)

    def _reach(self) -> None:
        self.world.point()
        if not self.world.nats_is_up:
            raise StreamUnavailable("NATS is away")


@dataclass
class SimulatedAudit:
    """The table of the audit, and what was announced of it."""

    world: World
    rows: dict[str, AuditRow] = field(default_factory=dict)
    marked: set[str] = field(default_factory=set)
    messages: dict[str, DesiredState] = field(default_factory=dict)
    """By message id."""

    def recent(self, limit: int) -> Sequence[AuditRow]:
        self._reach()
        newest_first = sorted(
            self.rows.values(), key=lambda row: (-row.state.generation, -row.state.change.at.timestamp())
        )
        return newest_first[:limit]

    def known(self, hashes: Sequence[str]) -> set[str]:
        self._reach()
        return {each for each in hashes if each in self.rows}

    def add(self, rows: Sequence[AuditRow]) -> None:
        self._reach()
        self.rows |= {row.hash: row for row in rows}
        if self.world.is_answer_lost():
            raise WarehouseUnavailable("the answer was lost")

    def unannounced(self) -> Sequence[Unannounced]:
        self._reach()
        due = [
            row
            for row in self.rows.values()
            if row.hash not in self.marked and row.state.change.event in ANNOUNCED_EVENTS
        ]
        due.sort(key=lambda row: row.state.generation)
        return [Unannounced(row, self.rows.get(row.state.previous_hash)) for row in due]

    def mark_announced(self, row: AuditRow, _at: datetime) -> None:
        self._reach()
        self.marked.add(row.hash)

    def announce(self, due: Unannounced) -> None:
        self.world.point()
        if not self.world.nats_is_up:
            raise StreamUnavailable("NATS is away")
        change = due.row.state.change
        self.messages[f"{change.deployment_id}/{due.row.state.generation}"] = due.row.state

    def _reach(self) -> None:
        self.world.point()
        if not self.world.warehouse_is_up:
            raise WarehouseUnavailable("the warehouse is away")


@dataclass
class SimulatedReleases:
    """Releases that were made, of which the audit knows which were started."""

    audit: SimulatedAudit
    releases: dict[int, Release] = field(default_factory=dict)

    def sort_out(self, state: DesiredState, now: datetime) -> Release | None:
        self.audit._reach()
        changes = [row.state.change for row in self.audit.rows.values()]
        interrupted = {change.evidence.get("interrupted") for change in changes}
        self.releases |= {
            number: release.again(now)
            for number, release in self.releases.items()
            if release.deployment_id in interrupted and may_come_again(release, state)
        }
        waiting = [release for release in self.releases.values() if release.state == "waiting"]
        started = {change.deployment_id or "" for change in changes}
        marked = [release.number for release in self.releases.values() if release.state == "started"]
        following, ended = sorted_out(waiting, started, max(marked, default=0), now)
        self.releases |= {release.number: release for release in ended}
        return following

    def refuse(self, release: Release, explanation: str, now: datetime) -> None:
        self.audit._reach()
        self.releases[release.number] = release.ended("refused", explanation, now)


@dataclass
class SimulatedGateway:
    """A gateway that keeps its state and its fences over restarts, as `TrafficController` promises.

    If the model that a state has in service is fenced here, the one before it stays in service, unless the state has
    rolled that back.
    """

    name: str
    is_up: bool = True
    outages: int = 0
    state: DesiredState | None = None
    in_service: str = ""
    fenced: dict[str, str] = field(default_factory=dict)
    violations: list[str] = field(default_factory=list)

    @property
    def weights(self) -> dict[str, float]:
        if self.state is None:
            return {}
        weights: dict[str, float] = {}
        for model, weight in self.state.weights.items():
            taker = self.in_service if model in self.fenced else model
            weights[taker] = weights.get(taker, 0.0) + weight
        return {model: weight for model, weight in weights.items() if weight > 0}

    def follow(self, state: DesiredState) -> None:
        if self.state is not None and state.generation <= self.state.generation:
            return
        self.state = state
        if self.in_service in state.retired:
            self.fenced.pop(state.serving, None)
        if state.serving not in self.fenced or not self.in_service:
            self.in_service = state.serving
        self._watch()

    def fence(self, model_id: str, reason: str) -> bool:
        if self.in_service == model_id:
            return False
        self.fenced.setdefault(model_id, reason)
        self._watch()
        return True

    def _watch(self) -> None:
        if raised := self.weights.keys() & self.fenced.keys():
            self.violations.append(f"{self.name} serves {sorted(raised)}, which it has fenced")


@dataclass
class SimulatedTraffic:
    """The port over some gateways; each answers for itself, and the caller may die between two of them."""

    world: World
    gateways: list[SimulatedGateway]
    windows_of: Callable[[str], Sequence[Window]] = lambda _: ()

    def register(self, _model: ServedModel) -> None:
        self._reachable()

    def apply(self, state: DesiredState) -> None:
        for gateway in self._reachable():
            gateway.follow(state)
            self.world.point()

    def fence(self, model_id: str, reason: str) -> Sequence[str]:
        confirmed, refused = [], False
        for gateway in self.gateways:
            self.world.point()
            if gateway.is_up:
                is_fenced = gateway.fence(model_id, reason)
                if not self.world.is_answer_lost():
                    confirmed += [gateway.name] if is_fenced else []
                    refused = refused or not is_fenced
        if not confirmed:
            raise TrafficRefused(f"{model_id} is in service") if refused else TrafficUnavailable("no gateway answers")
        return confirmed

    def standings(self) -> Sequence[Standing]:
        found = []
        for gateway in self._reachable():
            generation = gateway.state.generation if gateway.state else 0
            found.append(Standing(gateway.name, generation, gateway.weights, dict(gateway.fenced)))
            self.world.point()
        return found

    def metrics(self, model_id: str) -> ModelMetrics:
        if model_id != IN_SERVICE:
            raise TrafficRefused("nobody asks for metrics here but who is in service")
        return ModelMetrics(self._reachable()[0].in_service, 0, 0, 0, 0, 0, None, None, 100.0)

    def windows(self, deployment_id: str, _candidate: str, _control: str) -> Sequence[Window]:
        self._reachable()
        return self.windows_of(deployment_id)

    def _reachable(self) -> list[SimulatedGateway]:
        self.world.point()
        found = [gateway for gateway in self.gateways if gateway.is_up]
        if not found:
            raise TrafficUnavailable("no gateway answers")
        return found


@dataclass
class SimulatedMemory:
    """A watchdog's file."""

    world: World
    memory: Memory = field(default_factory=Memory)

    def load(self) -> Memory:
        return self.memory

    def save(self, memory: Memory) -> None:
        self.world.point()
        self.memory = memory
