"""A deployment with played stores, in which a test decides what is there and how candidates are judged."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from rl_pipeline.deployment import record
from rl_pipeline.deployment.commands import Commands
from rl_pipeline.deployment.controller import Controller, Tick
from rl_pipeline.deployment.desk import Desk
from rl_pipeline.deployment.judging import Judgement, Limits, Mode, Verdict
from rl_pipeline.deployment.state import DesiredState, Phase, Rollout
from rl_pipeline.deployment.watchdog import Keeping, Look, Watchdog
from rl_pipeline.deployment.windows import Window
from rl_pipeline_tests.deployment.simulated_stores import (
    SimulatedAudit,
    SimulatedGateway,
    SimulatedMemory,
    SimulatedReleases,
    SimulatedStates,
    SimulatedTraffic,
    World,
)
from rl_pipeline_tests.deployment.states import NOW, a_model, a_release

MINUTE = timedelta(minutes=1)


@dataclass
class PlayedPlace:
    """One model serves, and nothing else happens unless the test says so."""

    gateways: int = 2
    world: World = field(default_factory=World)
    now: datetime = NOW
    verdict: Verdict = "hold"
    reason: str = "waiting"
    fails_nearly_always: bool = False
    judged: list[tuple[str, Phase, Mode]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.audit = SimulatedAudit(self.world)
        self.states = SimulatedStates(self.world)
        self.releases = SimulatedReleases(self.audit)
        self.nodes = [SimulatedGateway(f"gateway-{number}") for number in range(self.gateways)]
        self.traffic = SimulatedTraffic(self.world, self.nodes)
        self.desk = Desk(self.states, self.traffic, self.audit, self.audit.announce)
        self.memory = SimulatedMemory(self.world)
        self.commands().create(a_model("old"), "the first")

    def commands(self, by: str = "somebody") -> Commands:
        return Commands(self.desk, by, self.now)

    def tick(self) -> Tick:
        self.now += MINUTE
        return Controller(self.desk, self.releases, self.windows, self.judge).tick(self.now)

    def look(self, keeping: Keeping | None = None) -> Look:
        self.now += MINUTE
        return Watchdog(self.traffic, self.states, keeping or self.memory, self.judge).look(self.now)

    def release(self, number: int, model_id: str, *, needs_approval: bool = False) -> None:
        """A model that was validated against the one in service."""
        self.releases.releases[number] = a_release(
            number, model_id, needs_approval=needs_approval, measured_against=self.state.serving
        )

    def rolling_out(self, model_id: str = "new") -> DesiredState:
        """A rollout that has begun and that every gateway follows."""
        self.release(len(self.releases.releases) + 1, model_id)
        tick = self.tick()
        assert tick.state is not None
        assert tick.state.phase == "ramping"
        self.follow()
        return tick.state

    def follow(self) -> None:
        """Every gateway that is there reads the record."""
        for node in self.nodes:
            if node.is_up:
                node.follow(self.state)

    @property
    def state(self) -> DesiredState:
        found = record.read(self.states)
        assert found is not None
        return found.state

    def routed(self) -> list[dict[str, float]]:
        return [node.weights for node in self.nodes]

    def windows(self, _rollout: Rollout, _now: datetime) -> Sequence[Window]:
        self.audit._reach()
        return ()

    def judge(
        self, rollout: Rollout, phase: Phase, _windows: Sequence[Window], _now: datetime, *, mode: Mode, limits: Limits
    ) -> Judgement:
        self.judged.append((rollout.candidate, phase, mode))
        bake = {"fails_nearly_always": self.fails_nearly_always}
        evidence = {"errors": 8, "limit": limits.error_rate, "bake": bake}
        return Judgement(self.verdict, self.reason, f"because of {self.reason}", evidence)
