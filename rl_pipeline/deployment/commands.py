"""What people can order: let a model in, hold everything, promote, take back, run an A/B test.

All of it goes the way of every other change; whoever was faster is read, and the order is given again on what is there
then. Who gave it, and with what authority, is recorded.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from rl_pipeline.deployment import phases, record
from rl_pipeline.deployment.audit import newest_row
from rl_pipeline.deployment.desk import REMEMBERED, Desk
from rl_pipeline.deployment.phases import Cause, TransitionRefused
from rl_pipeline.deployment.record import NothingDeployed, RecordBusy, Recorded, brought_by, former_models
from rl_pipeline.deployment.state import LONGEST_REASON, DesiredState, EvidenceRule, RampStep, Rollout, ServedModel
from rl_pipeline.deployment.strategy import ramp
from rl_pipeline.deployment.traffic import IN_SERVICE, TrafficRefused, TrafficUnavailable
from rl_pipeline.deployment.withdrawing import Withdrawal, fence, with_traffic
from rl_pipeline.errors import PipelineError
from rl_pipeline.stores.stream import StreamMissing, StreamUnavailable

ApprovalStatus = Literal["manual_approved", "emergency_override"]

_MOST_RACES = 20


class UnusableReason(PipelineError):
    """A reason that could not be recorded; nothing was done."""


@dataclass(frozen=True, slots=True)
class Commands:
    """The orders of one person, given at one moment.

    Every method gives the state that came of it, and raises `TransitionRefused` for what the state does not allow,
    `NothingDeployed` without one, `UnusableReason`, and what the stores raise.
    """

    desk: Desk
    by: str
    now: datetime

    def create(self, model: ServedModel, reason: str) -> DesiredState:
        """The first state: the model has all of the traffic. Refused where there is one."""
        cause = self._cause(reason, "manual_approved")
        standings = self.desk.traffic.standings()
        if newest_row(self.desk.audit) is not None or record.read(self.desk.states) is not None:
            raise TransitionRefused("something is deployed already: release a model in place of it")
        above = max((standing.generation for standing in standings), default=0)
        self.desk.traffic.register(model)
        changed = record.swap(self.desk.states, phases.create(model, cause, above_generation=above), None)
        if changed is None:
            raise TransitionRefused("something was deployed meanwhile: look at it with `rl-pipeline deployment`")
        return self._told(changed)

    def approve(self, reason: str) -> DesiredState:
        """Let in the candidate that waits for it."""
        return self._raise(lambda state: phases.approve(state, self._cause(reason, "manual_approved")))

    def abort(self, reason: str) -> DesiredState:
        """Send the candidate away that waits for an approval; it may come another time."""
        return self._lower(lambda state: phases.abort(state, self._cause(reason, "manual_approved")))

    def freeze(self, reason: str) -> DesiredState:
        """Let nothing advance; rollbacks go on."""
        return self._lower(lambda state: phases.freeze(state, self._cause(reason, "manual_approved")))

    def unfreeze(self, reason: str) -> DesiredState:
        """Let things advance again."""
        return self._raise(lambda state: phases.unfreeze(state, self._cause(reason, "manual_approved")))

    def promote(self, reason: str, *, model_id: str) -> DesiredState:
        """Give the candidate all of the traffic, or end its bake, whatever the evidence says so far."""

        def promoted(state: DesiredState) -> DesiredState:
            if state.rollout is None or state.rollout.candidate != model_id:
                raise TransitionRefused(f"{model_id} is not being rolled out: look at `rl-pipeline deployment`")
            return phases.promote(state, self._cause(reason, "emergency_override"))

        return self._raise(promoted)

    def roll_back(self, reason: str, *, model_id: str | None = None) -> DesiredState:
        """Take the candidate out, or `model_id` if it is the model in service already; a rollout against that one ends.

        Gateways that give the model anything are fenced before the record is asked. Raises `RecordPending` when the
        candidate is fenced and the record does not answer.
        """
        _check_reason(reason)
        model = model_id or self._candidate()
        if self._is_routed(model):
            changed = self.desk.fence_first(self._withdrawal(model, reason))
            if changed is not None:
                return self._told(changed)
        state = self._current().state
        if state.rollout is not None and model == state.rollout.candidate:
            return self._withdraw(model, reason)
        if model == state.serving:
            if state.phase == "baking" and state.rollout is not None:
                candidate = state.rollout.candidate
                raise TransitionRefused(f"{model} has no traffic while {candidate} bakes: promote {candidate} first")
            return self._take_back(model, None, reason)
        if model in state.retired:
            return state
        raise TransitionRefused(f"{model} is not being rolled out: look at `rl-pipeline deployment`")

    def set_traffic(self, model_id: str, percentage: float, reason: str) -> DesiredState:
        """`PUT /admin/traffic`: another share for the candidate; all for the model in service, or for the one that
        served before it, takes the other out."""
        if not 0 <= percentage <= 100:
            raise TransitionRefused(f"{percentage:g} is no percentage: give one from 0 to 100")
        state, share = self._current().state, percentage / 100
        cause = self._cause(reason, "emergency_override")
        compared = (state.rollout.candidate, state.rollout.control) if state.rollout else ()
        if state.rollout is None and model_id == state.serving and percentage == 100:
            return state
        if percentage == 100 and model_id not in compared:
            return self._take_back(state.serving, model_id, reason)
        wanted = phases.set_traffic(state, model_id, share, cause)
        if wanted.rollout is None and state.rollout is not None:
            return self._withdraw(state.rollout.candidate, reason)
        given = state.weights.get(state.rollout.candidate, 0.0) if state.rollout else 0.0
        is_more = state.rollout is not None and wanted.weights.get(state.rollout.candidate, 0.0) > given
        change = self._raise if is_more else self._lower
        return change(lambda newest: phases.set_traffic(newest, model_id, share, cause))

    def start_ab_test(
        self,
        model: ServedModel,
        share: float,
        reason: str,
        *,
        deployment_id: str,
        bake_seconds: float,
        rule: EvidenceRule = "evidence",
        recheck: RampStep = ramp("canary", 0.10, 4)[-1],  # noqa: B008 - it never changes
        validation: Mapping[str, Any] | None = None,
    ) -> DesiredState:
        """A rollout that keeps its split until somebody ends it. If its candidate is promoted and goes back from its
        bake to the split, that takes as long and as many sessions as `recheck`, the last step of a canary."""
        cause = self._cause(reason, "manual_approved")
        self.desk.traffic.register(model)

        def started(state: DesiredState) -> DesiredState:
            rollout = Rollout(
                deployment_id=deployment_id,
                candidate=model.model_id,
                control=state.serving,
                strategy="ab_test",
                rule=rule,
                steps=(recheck.model_copy(update={"share": share}),),
                started_at=self.now,
                step_since=self.now,
                bake_seconds=bake_seconds,
                validation=dict(validation or {}),
            )
            return phases.start(state, model, rollout, cause, approved=True)

        return self._raise(started)

    def _cause(self, reason: str, approval_status: ApprovalStatus) -> Cause:
        _check_reason(reason)
        return Cause(reason, self.by, self.now, {"approval_status": approval_status})

    def _current(self) -> Recorded:
        current = record.read(self.desk.states)
        if current is None:
            raise NothingDeployed("nothing is deployed, or the record was lost: look at `rl-pipeline deployment`")
        return current

    def _raise(self, decide: Callable[[DesiredState], DesiredState]) -> DesiredState:
        for _ in range(_MOST_RACES):
            current = self._current()
            changed = self.desk.record_first(current, decide(current.state))
            if changed is not None:
                return self._told(changed)
        raise RecordBusy("others change the desired state all the time: look who they are, and try again")

    def _lower(self, decide: Callable[[DesiredState], DesiredState]) -> DesiredState:
        """What lowers or holds does not wait for the warehouse."""
        changed = record.change(self.desk.states, lambda current: decide(current.state))
        return self._told(changed) if changed else self._current().state

    def _candidate(self) -> str:
        """The model that is being rolled out, by the record; by the gateways while that does not answer."""
        try:
            rollout = self._current().state.rollout
        except (StreamUnavailable, StreamMissing, NothingDeployed) as away:
            return self._routed_candidate(away)
        if rollout is None:
            raise TransitionRefused("nothing is being rolled out: look at `rl-pipeline deployment`")
        return rollout.candidate

    def _routed_candidate(self, away: PipelineError) -> str:
        """The model that gateways give traffic to though it is not the one in service.

        Gateways of different generations may take different models for that, so then a person has to name it.
        """
        try:
            standings = self.desk.traffic.standings()
            in_service = self.desk.traffic.metrics(IN_SERVICE).model_id
        except (TrafficUnavailable, TrafficRefused) as trouble:
            raise TransitionRefused(f"{away}; and who is the candidate is not known ({trouble}): name it") from trouble
        routed = {model for each in standings for model, weight in each.weights.items() if weight > 0} - {in_service}
        if len(routed) != 1 or len({each.generation for each in standings}) != 1:
            raise TransitionRefused(f"{away}; and the gateways do not tell who is the candidate: name it")
        return routed.pop()

    def _is_routed(self, model_id: str) -> bool:
        """Whether any gateway that answers gives the model anything."""
        try:
            return with_traffic(self.desk.traffic.standings(), model_id)
        except (TrafficUnavailable, TrafficRefused):
            return False

    def _withdraw(self, model_id: str, reason: str) -> DesiredState:
        changed = self.desk.fence_first(self._withdrawal(model_id, reason))
        return self._told(changed) if changed else self._current().state

    def _withdrawal(self, model_id: str, reason: str) -> Withdrawal:
        return Withdrawal(model_id, reason, self.by, self.now, {"approval_status": "manual_approved"})

    def _take_back(self, out: str, wanted: str | None, reason: str) -> DesiredState:
        """Have a model serve again in place of `out` that did before; the last one, where none is named.

        A record that was restored does not remember it: then the audit does, and has to answer.
        """

        def chosen(states: Sequence[DesiredState], state: DesiredState) -> list[ServedModel]:
            return [each for each in former_models(states, state) if wanted in (None, each.model_id)]

        def taken_back(current: Recorded) -> DesiredState:
            if current.state.serving != out:
                raise TransitionRefused(f"{out} is no longer in service: look at `rl-pipeline deployment`")
            states = [each.state for each in reversed(record.history(self.desk.states))]
            former = chosen(states, current.state)
            if not former:
                states += [row.state for row in self.desk.audit.recent(REMEMBERED)]
                former = chosen(states, current.state)
            if not former:
                nobody = (
                    f"{wanted} has not served before, or was rolled back" if wanted else "no model has served before"
                )
                raise TransitionRefused(f"{nobody}: release one in place of {out}")
            cause, deployment = self._cause(reason, "manual_approved"), brought_by(states, current.state)
            return phases.take_back(current.state, former[0], cause, deployment_id=deployment)

        changed = record.change(self.desk.states, taken_back)
        return self._told(changed, self._withdrawal(out, reason)) if changed else self._current().state

    def _told(self, changed: Recorded, out: Withdrawal | None = None) -> DesiredState:
        """What cannot be written or followed now is completed by the controller."""
        self.desk.push(changed.state)
        if out is not None:
            # Gateways could not fence it before. Should the record be lost before the audit has this, it is all that
            # is left of it.
            fence(self.desk.traffic, out)
        self.desk.settle(changed, self.now)
        return changed.state


def _check_reason(reason: str) -> None:
    """Before anything is fenced: what is done and cannot be recorded would be found by the next look, and nobody would
    know why. Raises `UnusableReason`."""
    is_text = all(not "\ud800" <= sign <= "\udfff" for sign in reason)
    if not reason.strip() or len(reason) > LONGEST_REASON or not is_text:
        raise UnusableReason(f"nothing was changed: give a reason of 1 to {LONGEST_REASON} characters of UTF-8")
