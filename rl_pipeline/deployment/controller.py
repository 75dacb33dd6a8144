"""The controller of rollouts: each tick repairs what others left undone, then advances one persisted phase at most.

It keeps nothing: all it knows it reads, so it may be killed anywhere and several may run at once. It reads the gateways
first, then the audit, and the record last: if the record is older than what was read before it, it was lost, and is
restored.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Protocol

from rl_pipeline.deployment import phases, record
from rl_pipeline.deployment.audit import catch_up, newest_row
from rl_pipeline.deployment.desk import Desk, RecordPending
from rl_pipeline.deployment.judging import Judgement, Limits, Mode
from rl_pipeline.deployment.phases import Cause, TransitionRefused
from rl_pipeline.deployment.record import Recorded
from rl_pipeline.deployment.releases import Release
from rl_pipeline.deployment.restoring import restoration
from rl_pipeline.deployment.state import DesiredState, Phase, Rollout
from rl_pipeline.deployment.traffic import Standing, TrafficRefused, TrafficUnavailable
from rl_pipeline.deployment.windows import Window
from rl_pipeline.deployment.withdrawing import Withdrawal, fenced_models
from rl_pipeline.stores.warehouse import WarehouseUnavailable

_FOUND = {"found": "fenced at a gateway"}


class Judge(Protocol):
    """`judging.judge`, or what stands in for it."""

    def __call__(
        self, rollout: Rollout, phase: Phase, windows: Sequence[Window], now: datetime, *, mode: Mode, limits: Limits
    ) -> Judgement:
        """What to do with a rollout."""


class WaitingReleases(Protocol):
    """The releases, as the controller sees them. Every method raises what a `Warehouse` raises."""

    def sort_out(self, state: DesiredState, now: datetime) -> Release | None:
        """Mark those that were started or overtaken, by the audit, and give the newest that still waits, or waits again
        because its rollout was interrupted."""

    def refuse(self, release: Release, explanation: str, now: datetime) -> None:
        """A release that can never be started."""


@dataclass(slots=True)
class Tick:
    """What one look found and did."""

    state: DesiredState | None = None
    """As the tick left it; None while nothing is deployed."""
    judgement: Judgement | None = None
    changes: list[DesiredState] = field(default_factory=list)
    """The generations that it made, in order."""
    pending: list[str] = field(default_factory=list)
    """What could not be done now and will be by a later look; for people."""

    @property
    def rolled_back(self) -> list[DesiredState]:
        """The generations that took a model out: people want to know why."""
        return [state for state in self.changes if state.change.event == "rolled_back"]


@dataclass(frozen=True, slots=True)
class Controller:
    """See the module. `windows` gives what the warehouse knows of a rollout up to a moment."""

    desk: Desk
    releases: WaitingReleases
    windows: Callable[[Rollout, datetime], Sequence[Window]]
    judge: Judge
    limits: Limits = field(default_factory=Limits)
    name: str = "rollout-controller"

    def tick(self, now: datetime) -> Tick:
        """Take one look. Raises what the store of the state raises; the next look goes on from there."""
        tick = Tick()
        standings = self._standings(tick)
        current = self._recorded(standings or (), tick, now)
        if current is None:
            return tick
        current = self._changed(current, standings, tick, now) or current
        tick.state = current.state
        if standings is None or any(each.generation < current.state.generation for each in standings):
            _note(tick, self.desk.push(current.state))
        _note(tick, self.desk.settle(current, now) or self._marked(current.state, now))
        return tick

    def _standings(self, tick: Tick) -> Sequence[Standing] | None:
        try:
            return self.desk.traffic.standings()
        except (TrafficUnavailable, TrafficRefused) as trouble:
            _note(tick, str(trouble))
            return None

    def _recorded(self, standings: Sequence[Standing], tick: Tick, now: datetime) -> Recorded | None:
        """The record as it is, once it is restored if it has to be; None while there is none."""
        try:
            newest = newest_row(self.desk.audit)
        except WarehouseUnavailable as unavailable:
            # Without the audit nobody knows what a lost record said. One that is there can be worked with.
            _note(tick, str(unavailable))
            return record.read(self.desk.states)
        current = record.read(self.desk.states)
        restored = restoration(current, newest, standings, by=self.name, now=now)
        if restored is None:
            return current
        changed = record.swap(self.desk.states, restored, current)
        if changed is None:
            return record.read(self.desk.states)
        tick.changes.append(changed.state)
        return changed

    def _changed(
        self, current: Recorded, standings: Sequence[Standing] | None, tick: Tick, now: datetime
    ) -> Recorded | None:
        """Record what somebody has fenced and did not come to record; only where there is nothing of it, move on."""
        state, fenced = current.state, fenced_models(standings or ())
        in_use = [*([state.rollout.candidate] if state.rollout else []), state.serving]
        found = [Withdrawal(model, fenced[model], self.name, now, _FOUND) for model in in_use if model in fenced]
        for withdrawal in found[:1]:
            return self._withdraw(withdrawal, tick)
        return self._moved(current, fenced if standings is not None else None, tick, now)

    def _withdraw(self, withdrawal: Withdrawal, tick: Tick) -> Recorded | None:
        try:
            changed = self.desk.fence_first(withdrawal)
        except RecordPending as pending:
            _note(tick, str(pending))
            return None
        if changed is not None:
            tick.changes.append(changed.state)
        return changed

    def _moved(self, current: Recorded, fenced: dict[str, str] | None, tick: Tick, now: datetime) -> Recorded | None:
        """One step of the rollout, or the start of one. `fenced` is None while no gateway answers: then nothing is
        raised, because nobody knows what is fenced."""
        state = current.state
        if state.rollout is None:
            may_start = fenced is not None and state.frozen is None
            return self._started(current, fenced or {}, tick, now) if may_start else None
        if state.phase == "awaiting_approval":
            return None
        judgement = tick.judgement = self._judgement(state.rollout, state.phase, now)
        evidence = {**judgement.evidence, "explanation": judgement.explanation}
        cause = Cause(judgement.reason, self.name, now, evidence)
        if judgement.verdict == "roll_back":
            return self._withdraw(Withdrawal(state.rollout.candidate, cause.reason, self.name, now, evidence), tick)
        if judgement.verdict == "recheck":
            return self._lowered(current, phases.recheck(state, cause, judgement.fails_since), tick)
        may_advance = fenced is not None and state.frozen is None
        if judgement.verdict == "advance" and may_advance and state.phase != "testing":
            advanced = phases.promote(state, cause) if state.phase == "baking" else phases.advance(state, cause)
            return self._recorded_first(current, advanced, tick)
        return None

    def _judgement(self, rollout: Rollout, phase: Phase, now: datetime) -> Judgement:
        """By all that the warehouse has; by what the gateways remember while it is away, which lets nothing advance."""
        try:
            windows = self.windows(rollout, now)
        except WarehouseUnavailable as unavailable:
            try:
                told = self.desk.traffic.windows(rollout.deployment_id, rollout.candidate, rollout.control)
            except (TrafficUnavailable, TrafficRefused):
                return Judgement("hold", "no_evidence", f"neither warehouse nor gateways answer: {unavailable}")
            judgement = self.judge(rollout, phase, told, now, mode="watchdog", limits=self.limits)
            text = f"{judgement.explanation}; by errors and ratings alone, without rewards: {unavailable}"
            return replace(judgement, explanation=text, evidence={**judgement.evidence, "rewards": "not read"})
        return self.judge(rollout, phase, windows, now, mode="full", limits=self.limits)

    def _started(self, current: Recorded, fenced: dict[str, str], tick: Tick, now: datetime) -> Recorded | None:
        """The state with the newest release that waits, if any does.

        The audit is made whole first: it alone tells which were started.
        """
        try:
            catch_up(self.desk.audit, self.desk.states, current)
            release = self.releases.sort_out(current.state, now)
            return self._let_in(release, current, fenced, tick, now) if release else None
        except (WarehouseUnavailable, TrafficUnavailable, TrafficRefused) as trouble:
            _note(tick, f"a release has to wait: {trouble}")
            return None

    def _marked(self, state: DesiredState, now: datetime) -> str:
        """Mark the release that is being rolled out, once the audit has it; why that was not possible, or nothing.

        A mark without a row would outlive a record that is lost, and nobody would start the release again.
        """
        try:
            if state.rollout is not None:
                self.releases.sort_out(state, now)
        except WarehouseUnavailable as unavailable:
            return f"which releases wait is marked later: {unavailable}"
        return ""

    def _let_in(
        self, release: Release, current: Recorded, fenced: dict[str, str], tick: Tick, now: datetime
    ) -> Recorded | None:
        model, state = release.model, current.state
        if model.model_id in fenced:
            self.releases.refuse(release, f"a gateway has fenced it: {fenced[model.model_id]}", now)
            return None
        measured_against = release.plan.measured_against
        if measured_against != state.serving:
            _note(
                tick,
                f"{model.model_id} was measured against {measured_against or 'nothing'}, and {state.serving} is in "
                f"service: it waits until `release_policy` has validated {release.training_job_id} again",
            )
            return None
        evidence = {"validation": release.validation, "measured_against": measured_against}
        cause = Cause(release.plan.explanation, self.name, now, evidence)
        rollout = release.rollout(control=state.serving, now=now)
        try:
            started = phases.start(state, model, rollout, cause, approved=not release.needs_approval)
        except TransitionRefused as refused:
            self.releases.refuse(release, str(refused), now)
            return None
        self.desk.traffic.register(model)
        return self._recorded_first(current, started, tick)

    def _lowered(self, current: Recorded, following: DesiredState, tick: Tick) -> Recorded | None:
        """What takes traffic from a candidate does not wait for the warehouse."""
        changed = record.swap(self.desk.states, record.after(current, following), current)
        if changed is None:
            _note(tick, "somebody else has changed the state meanwhile: the next look decides again")
        else:
            tick.changes.append(changed.state)
        return changed

    def _recorded_first(self, current: Recorded, following: DesiredState, tick: Tick) -> Recorded | None:
        try:
            changed = self.desk.record_first(current, following)
        except WarehouseUnavailable as unavailable:
            _note(tick, f"nothing advances before its audit is written: {unavailable}")
            return None
        if changed is None:
            _note(tick, "somebody else has changed the state meanwhile: the next look decides again")
        else:
            tick.changes.append(changed.state)
        return changed


def _note(tick: Tick, pending: str) -> None:
    if pending:
        tick.pending.append(pending)
