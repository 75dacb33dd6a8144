"""Random schedules in which everything that can go wrong with a deployment does, over the real controller, watchdog and
commands.

Controllers, watchdogs, an operator and gateways run as greenlets that give way before each effect; which of them goes
on is chance, and so is whether it dies there instead. NATS, the warehouse and gateways go away and come back, answers
are lost, the record is lost or set back. Then the faults stop, everybody looks some more, and what must hold is
checked.
"""

import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import partial

from greenlet import getcurrent, greenlet

from rl_pipeline.deployment import record
from rl_pipeline.deployment.audit import _columns, verify
from rl_pipeline.deployment.commands import Commands
from rl_pipeline.deployment.controller import Controller
from rl_pipeline.deployment.desk import Desk
from rl_pipeline.deployment.judging import Judgement, Limits, Mode
from rl_pipeline.deployment.state import DesiredState, Phase, Rollout
from rl_pipeline.deployment.watchdog import Watchdog
from rl_pipeline.deployment.windows import Window
from rl_pipeline.errors import PipelineError
from rl_pipeline_tests.deployment.hostile_orders import ORDERS, end_test
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

GATEWAYS = 3
STEPS = 600
LOOKS_AFTERWARDS = 40
ENOUGH = timedelta(seconds=30)
RAISING = ("deployed", "proposed", "approved", "promoted", "unfrozen")


class Died(BaseException):
    """The process is gone."""


@dataclass(frozen=True)
class Chances:
    """How likely each thing is at each step of a schedule."""

    death: float = 0.03
    lost_answer: float = 0.1
    outage: float = 0.008
    """That NATS, the warehouse or one of the gateways goes."""
    recovery: float = 0.1
    record_lost: float = 0.004
    record_set_back: float = 0.002
    release: float = 0.05
    order: float = 0.02


@dataclass
class HostileSchedule:
    """One of them; `run` gives what was violated."""

    seed: int
    chances: Chances = field(default_factory=Chances)
    now: datetime = NOW
    happened: Counter[str] = field(default_factory=Counter)
    found: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.chance = random.Random(self.seed)
        if self.seed % 2:
            # In every other schedule the record is never lost: then no generation may be missing at all.
            self.chances = replace(self.chances, record_lost=0, record_set_back=0)
        self.scheduler = getcurrent()
        self.world = World(self._give_way, lambda: self._happens(self.chances.lost_answer, "lost answers"))
        self.audit = SimulatedAudit(self.world)
        self.states = SimulatedStates(self.world, self._check_that_it_may_be_recorded)
        self.releases = SimulatedReleases(self.audit)
        self.gateways = [SimulatedGateway(f"gateway-{number}") for number in range(GATEWAYS)]
        self.traffic = SimulatedTraffic(self.world, self.gateways)
        self.desk = Desk(self.states, self.traffic, self.audit, self.audit.announce)
        self.memories = [SimulatedMemory(self.world) for _ in range(2)]
        self.orders: list[Callable[[Commands], object]] = []
        self.shows_after: dict[Mode, timedelta] = {
            "full": timedelta(seconds=self.chance.randrange(400)),
            "watchdog": timedelta(seconds=self.chance.randrange(400)),
        }
        self.fails_nearly_always = self.chance.random() < 0.5
        self.shows_in_the_bake = self.chance.random() < 0.5
        self.bad_weather = {minute for minute in range(30) if self.chance.random() < 0.7}
        self.is_over = True
        self.begin()
        self.is_over = False

    def begin(self) -> None:
        """One model serves in place of another, which can be taken back, before anything goes wrong."""
        commands = Commands(self.desk, by="operator", now=NOW)
        commands.create(a_model("older"), "the first")
        commands.start_ab_test(a_model("old"), 0.5, "the second", deployment_id="deployment-of-old", bake_seconds=0)
        for _ in range(2):
            commands.promote("it is better", model_id="old")
        self.states.recorded.clear()

    def actors(self) -> dict[str, Callable[[], object]]:
        """What each of them does again and again, each time as a new process would."""
        return {
            **{f"controller {number}": self._control for number in range(2)},
            **{f"watchdog {number}": partial(self._watch, number) for number in range(2)},
            **{gateway.name: partial(self._follow, gateway) for gateway in self.gateways},
            "operator": self._operate,
            "validation": self._validate,
        }

    def run(self) -> list[str]:
        """Let everything happen, then only looks; what does not hold."""
        actors = self.actors()
        running = {name: self._begun(does) for name, does in actors.items()}
        for _ in range(STEPS):
            self.now += timedelta(seconds=self.chance.randrange(6))
            self._befall()
            name = self.chance.choice(list(running))
            actor = running[name]
            if actor and self._happens(self.chances.death, "deaths"):
                actor.throw(Died)
            else:
                actor.switch()
            if actor.dead:
                running[name] = self._begun(actors[name])
        for actor in filter(None, running.values()):
            actor.throw(Died)
        self._calm_down(actors)
        return self.violations()

    def windows(self, _rollout: Rollout, _now: datetime) -> Sequence[Window]:
        """Nothing: the judge of this world looks at the model itself. The warehouse has to answer all the same."""
        self.audit._reach()
        return ()

    def judge(
        self, rollout: Rollout, phase: Phase, _windows: Sequence[Window], now: datetime, *, mode: Mode, limits: Limits
    ) -> Judgement:
        """As evidence comes: a bad model shows after some time, and for good; before, it may advance like any other.
        With all of the traffic it may be no more than suspected, and in bad weather a good one is suspected too."""
        is_bad = rollout.candidate.startswith("bad")
        is_shown = is_bad and now - rollout.started_at > self.shows_after[mode]
        evidence = {"candidate": rollout.candidate, "bake": {"fails_nearly_always": self.fails_nearly_always}}
        if is_shown and (phase != "baking" or self.shows_in_the_bake):
            return Judgement("roll_back", "high_error_rate", f"it exceeds {limits.error_rate}", evidence)
        is_suspected = is_shown or (not self.is_over and (now - NOW) // timedelta(minutes=1) in self.bad_weather)
        if phase == "baking" and is_suspected:
            return Judgement("recheck", "high_error_rate", "it or the weather", evidence)
        if mode == "full" and now - rollout.step_since > ENOUGH and not (is_bad and phase == "baking"):
            return Judgement("advance", "time_and_samples", "nothing against it")
        return Judgement("hold", "waiting", "it waits")

    def violations(self) -> list[str]:
        """What does not hold in the end."""
        current = record.read(self.states)
        if current is None:
            return ["the record is gone"]
        state = current.state
        found = [*self.found, *(violation for gateway in self.gateways for violation in gateway.violations)]
        found += [f"it ends {state.phase}"] if state.phase != "steady" else []
        for gateway in self.gateways:
            if gateway.weights != state.weights:
                found.append(f"{gateway.name} routes {gateway.weights}, recorded is {state.weights}")
            if gateway.state is None or gateway.state.generation != state.generation:
                found.append(f"{gateway.name} follows another generation than {state.generation}")
            found += [f"{gateway.name} serves {model}" for model in gateway.weights if model.startswith("bad")]
        if any(memory.memory.withdrawals for memory in self.memories):
            found.append("a watchdog still has something to record")
        return [*found, *self._violations_of_the_audit(current)]

    def _violations_of_the_audit(self, current: record.Recorded) -> list[str]:
        found = []
        verification = verify([_columns(row) for row in self.audit.rows.values()], current)
        if verification.first_break:
            found.append(verification.first_break)
        if verification.generations + len(verification.lost) != current.state.generation:
            found.append(f"{verification} is not all of {current.state.generation} generations")
        announced = {state.generation for state in self.audit.messages.values()}
        unannounced = [each.row.state.generation for each in self.audit.unannounced()]
        marked = [row.state.generation for row in self.audit.rows.values() if row.hash in self.audit.marked]
        found += [f"generation {each} was not announced" for each in {*unannounced, *marked} - announced]
        if self.happened["records lost"] + self.happened["records set back"] == 0:
            found += [f"{verification} although no record was lost"] if verification.lost or verification.aside else []
            found += raised_again(self.states.recorded)
        return found

    def _check_that_it_may_be_recorded(self, state: DesiredState) -> None:
        """Nothing is raised before the row of what was before is there, or on what another model was measured by."""
        if state.change.event in RAISING and state.previous_hash not in self.audit.rows:
            self.found.append(f"generation {state.generation} is {state.change.event} before its predecessor has a row")
        measured_against = state.change.evidence.get("measured_against")
        if state.rollout and measured_against and measured_against != state.rollout.control:
            self.found.append(f"{state.rollout.candidate} starts on a verdict against {measured_against}")

    def _begun(self, does: Callable[[], object]) -> greenlet:
        def body() -> None:
            try:
                does()
            except Died:
                pass
            except PipelineError:
                self.happened["failed looks"] += 1

        return greenlet(body, self.scheduler)

    def _give_way(self) -> None:
        if getcurrent() is not self.scheduler:
            self.scheduler.switch()

    def _happens(self, chance: float, what: str) -> bool:
        happens = not self.is_over and self.chance.random() < chance
        self.happened[what] += happens
        return happens

    def _befall(self) -> None:
        """What happens to the world until the next step."""
        chances, world = self.chances, self.world
        if self._happens(chances.outage if world.nats_is_up else chances.recovery, "NATS goes or returns"):
            world.nats_is_up = not world.nats_is_up
        if self._happens(chances.outage if world.warehouse_is_up else chances.recovery, "warehouse goes or returns"):
            world.warehouse_is_up = not world.warehouse_is_up
        for gateway in self.gateways:
            if self._happens(chances.outage if gateway.is_up else chances.recovery, "gateway goes or returns"):
                gateway.is_up = not gateway.is_up
                gateway.outages += 1
        if self._happens(chances.record_lost, "records lost"):
            self.states.values = []
        if len(self.states.values) > 1 and self._happens(chances.record_set_back, "records set back"):
            self.states.values = self.states.values[: self.chance.randrange(1, len(self.states.values))]
        if len(self.releases.releases) < 3 and self._happens(chances.release, "releases"):
            number, quality = len(self.releases.releases) + 1, self.chance.choice(("good", "bad"))
            asks = self.chance.random() < 0.2
            serving = DesiredState.decoded(self.states.values[-1].data).serving if self.states.values else "old"
            self.releases.releases[number] = a_release(
                number, f"{quality}-{number}", needs_approval=asks, measured_against=serving
            )
        if self._happens(chances.order, "orders"):
            self.orders.append(self.chance.choice(ORDERS))

    def _control(self) -> None:
        present = self._present()
        tick = Controller(self.desk, self.releases, self.windows, self.judge).tick(self.now)
        self._check_that_it_is_out(tick.judgement, present)

    def _watch(self, number: int) -> None:
        present = self._present()
        look = Watchdog(self.traffic, self.states, self.memories[number], self.judge).look(self.now)
        self._check_that_it_is_out(look.judgement, present)
        if look.judgement and look.judgement.verdict == "recheck" and look.fencings:
            self.happened["fenced because the control could not be brought back"] += 1
            self._check_that_it_is_out(replace(look.judgement, verdict="roll_back"), present)

    def _present(self) -> list[tuple[SimulatedGateway, int]]:
        return [(gateway, gateway.outages) for gateway in self.gateways if gateway.is_up]

    def _check_that_it_is_out(self, judgement: Judgement | None, present: list[tuple[SimulatedGateway, int]]) -> None:
        """Whoever decides to roll back leaves no gateway with the candidate that was there all the time."""
        if judgement is None or judgement.verdict != "roll_back":
            return
        model = judgement.evidence["candidate"]
        for gateway, outages in present:
            if (
                gateway.outages == outages
                and gateway.state
                and gateway.state.serving != model
                and model in gateway.weights
            ):
                self.found.append(f"{gateway.name} serves {model} although somebody took it out")

    def _operate(self) -> None:
        if self.orders:
            self.orders.pop(0)(Commands(self.desk, by="operator", now=self.now))
        self.world.point()

    def _validate(self) -> None:
        """What was measured against another model than the one in service is validated again, which takes its time."""
        current = record.read(self.states)
        for number, release in list(self.releases.releases.items()):
            if current and release.plan.measured_against != current.state.serving:
                plan = release.plan.model_copy(update={"measured_against": current.state.serving})
                self.audit._reach()
                newest = self.releases.releases[number]
                if newest.state == "waiting":
                    again = newest.renewed(plan, newest.validation, self.now, needs_approval=newest.needs_approval)
                    self.releases.releases[number] = again
                    self.happened["releases validated again"] += 1
        self.world.point()

    def _follow(self, gateway: SimulatedGateway) -> None:
        """A gateway reads the record, and may follow what it has read much later."""
        self.world.point()
        found = record.read(self.states) if gateway.is_up else None
        self.world.point()
        if found and gateway.is_up:
            gateway.follow(found.state)

    def _calm_down(self, actors: dict[str, Callable[[], object]]) -> None:
        """The faults are over, and everybody takes some more looks."""
        self.is_over = True
        self.world.nats_is_up = self.world.warehouse_is_up = True
        for gateway in self.gateways:
            gateway.is_up = True
        self.orders = [lambda commands: commands.unfreeze("it is over")]
        for look in range(LOOKS_AFTERWARDS):
            self.now += timedelta(seconds=60)
            if look % 5 == 0:
                self.orders += [lambda commands: commands.approve("it is over"), end_test]
            for does in actors.values():
                try:
                    does()
                except PipelineError:
                    self.happened["failed looks"] += 1


def raised_again(recorded: Sequence[DesiredState]) -> list[str]:
    """Models that a later state gives traffic to although an earlier one has rolled them back."""
    out: set[str] = set()
    found = []
    for state in recorded:
        found += [model for model in out if state.weights.get(model, 0.0) > 0]
        out |= {state.change.model_id} if state.change.event == "rolled_back" else set()
    return [f"{model} was raised again" for model in found]
