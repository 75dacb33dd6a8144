"""Where the desired state is changed, always in the same order, whoever asks: the controller or a person.

- What raises a candidate is recorded first: the audit's rows of all that was before, the swap, then the gateways, its
  own audit row and the announcement.
- What lowers one is fenced first; its record waits for nothing but the store of the state.

Whoever dies in between leaves something that the next look finds and completes.
"""

from dataclasses import dataclass
from datetime import datetime

from rl_pipeline.deployment import record
from rl_pipeline.deployment.announcing import Announce, announce_due
from rl_pipeline.deployment.audit import AuditLog, catch_up
from rl_pipeline.deployment.record import NothingDeployed, Recorded
from rl_pipeline.deployment.state import DesiredState
from rl_pipeline.deployment.traffic import TrafficController, TrafficRefused, TrafficUnavailable
from rl_pipeline.deployment.withdrawing import Withdrawal, fence, record_withdrawal
from rl_pipeline.errors import PipelineError
from rl_pipeline.stores.desired_state import DesiredStates
from rl_pipeline.stores.stream import StreamMissing, StreamUnavailable
from rl_pipeline.stores.warehouse import WarehouseUnavailable

REMEMBERED = 1000
"""Rows of the audit in which the model is looked for that served before. A rollout takes five of them or so, and many
may have failed since."""


class RecordPending(PipelineError):
    """A model is fenced, and the record of it has to wait: whoever looks next writes it."""

    def __init__(self, text: str, *, is_fenced: bool) -> None:
        super().__init__(text)
        self.is_fenced = is_fenced
        """Whether any gateway holds the fence."""


@dataclass(frozen=True, slots=True)
class Desk:
    """All that a change goes through."""

    states: DesiredStates
    traffic: TrafficController
    audit: AuditLog
    announce: Announce

    def record_first(self, current: Recorded, following: DesiredState) -> Recorded | None:
        """Change the state to one that raises a candidate, or that may; None when somebody else was faster.

        Raises `WarehouseUnavailable`, before anything is changed, while the audit cannot be brought up to the current
        state.
        """
        catch_up(self.audit, self.states, current)
        return record.swap(self.states, record.after(current, following), current)

    def fence_first(self, withdrawal: Withdrawal) -> Recorded | None:
        """Take a model out; None when the record has it out already.

        Raises `RecordPending` when the store of the state does not answer: the model is fenced where that was possible.
        """
        fencing = fence(self.traffic, withdrawal)
        try:
            return record_withdrawal(
                self.states, withdrawal, fenced=bool(fencing.confirmed), audited=self.audited_states
            )
        except (StreamUnavailable, StreamMissing, NothingDeployed) as away:
            held = f"fenced at {', '.join(fencing.confirmed)}" if fencing.confirmed else "fenced nowhere"
            text = f"{withdrawal.model_id} is {held}, and that is not recorded yet: {away}"
            raise RecordPending(text, is_fenced=bool(fencing.confirmed)) from away

    def audited_states(self) -> list[DesiredState]:
        """The last states that the audit has, newest first; none while it does not answer."""
        try:
            return [row.state for row in self.audit.recent(REMEMBERED)]
        except WarehouseUnavailable:
            return []

    def push(self, state: DesiredState) -> str:
        """Have a state followed by what does not watch the record; why that was not possible, or nothing."""
        try:
            self.traffic.apply(state)
        except (TrafficUnavailable, TrafficRefused) as trouble:
            return str(trouble)
        return ""

    def settle(self, current: Recorded, now: datetime) -> str:
        """Write the audit's rows and the announcements that are missing; what has to wait, or nothing."""
        try:
            catch_up(self.audit, self.states, current)
            announce_due(self.audit, self.announce, now)
        except (WarehouseUnavailable, StreamUnavailable) as away:
            return f"the audit or its announcements have to wait: {away}"
        return ""
