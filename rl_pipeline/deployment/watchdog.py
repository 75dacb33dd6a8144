"""The watchdog: takes a bad candidate out with everything but the gateways dead.

It needs their answers only: what sessions came to, and how they route. The record is read and written when its store
answers; until then the last state that was seen, and what was taken out and is not recorded yet, are kept in a file. It
judges by the same function as the controller, on errors and feedback alone, and lets nothing advance.
"""

import contextlib
import json
import logging
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Protocol

from rl_pipeline.deployment import phases, record
from rl_pipeline.deployment.controller import Judge
from rl_pipeline.deployment.judging import Judgement, Limits
from rl_pipeline.deployment.phases import Cause
from rl_pipeline.deployment.state import DesiredState
from rl_pipeline.deployment.traffic import Standing, TrafficController
from rl_pipeline.deployment.withdrawing import (
    Fencing,
    Withdrawal,
    fence,
    fenced_models,
    record_withdrawal,
    with_traffic,
)
from rl_pipeline.errors import PipelineError
from rl_pipeline.stores.desired_state import DesiredStates

_log = logging.getLogger(__name__)

_JUDGED = ("ramping", "testing", "baking")


@dataclass(frozen=True, slots=True)
class Memory:
    """What a watchdog has to know when it starts with the record away."""

    state: DesiredState | None = None
    """The newest that it has seen."""
    withdrawals: Mapping[str, Withdrawal] = field(default_factory=dict)
    """What is to be out, by model, until the record says so."""


class Keeping(Protocol):
    """Where a watchdog's memory is kept."""

    def load(self) -> Memory:
        """What was saved last; nothing where nothing was."""

    def save(self, memory: Memory) -> None:
        """Keep it, whole or not at all."""


@dataclass(slots=True)
class Look:
    """What one look found and did."""

    state: DesiredState | None = None
    judgement: Judgement | None = None
    fencings: dict[str, Fencing] = field(default_factory=dict)
    """By model: which gateways have confirmed that it gets nothing."""
    recorded: list[DesiredState] = field(default_factory=list)
    pending: list[str] = field(default_factory=list)
    """What could not be done now and is tried again at the next look; for people."""


@dataclass(frozen=True, slots=True)
class Watchdog:
    """See the module. `look` is the body of its loop; it never waits."""

    traffic: TrafficController
    states: DesiredStates
    keeping: Keeping
    judge: Judge
    limits: Limits = field(default_factory=Limits)
    name: str = "rollout-watchdog"

    def look(self, now: datetime) -> Look:
        """Look once. Whatever the record and the gateways raise is in the result: a guard does not fall over."""
        look = Look()
        kept = self.keeping.load()
        standings = self._standings(look)
        memory = self._seen(kept, standings, look)
        memory = self._judged(memory, standings, look, now)
        self._fence(memory, standings, look, now)
        if memory != kept:
            self._save(memory, look)
        recorded = self._recorded(memory, standings, look)
        if recorded != memory:
            self._save(recorded, look)
        look.state = recorded.state
        return look

    def _seen(self, kept: Memory, standings: list[Standing], look: Look) -> Memory:
        """The memory with the state that is recorded; with the one that was while that is away, lost or an old copy."""
        try:
            found = record.read(self.states)
        except PipelineError as trouble:
            look.pending.append(f"the record does not answer: {trouble}")
            return kept
        if found is None or (kept.state is not None and _is_old_copy(found.state, kept.state, standings)):
            return kept
        return replace(kept, state=found.state)

    def _standings(self, look: Look) -> list[Standing]:
        try:
            return list(self.traffic.standings())
        except PipelineError as trouble:
            look.pending.append(str(trouble))
            return []

    def _judged(self, memory: Memory, standings: list[Standing], look: Look, now: datetime) -> Memory:
        """The memory with the candidate among what is to be out, if it is bad, or fenced anywhere."""
        state = memory.state
        if state is None or state.rollout is None or state.phase not in _JUDGED:
            return memory
        rollout = state.rollout
        if rollout.candidate in memory.withdrawals:
            return memory
        reason = fenced_models(standings).get(rollout.candidate)
        evidence: dict[str, object] = {"found": "fenced at a gateway"}
        if reason is None:
            try:
                windows = self.traffic.windows(rollout.deployment_id, rollout.candidate, rollout.control)
            except PipelineError as trouble:
                look.pending.append(str(trouble))
                return memory
            judgement = look.judgement = self.judge(
                rollout, state.phase, windows, now, mode="watchdog", limits=self.limits
            )
            if judgement.verdict == "recheck":
                rechecked = self._rechecked(state, judgement, look, now)
                if rechecked is not None or not judgement.evidence["bake"]["fails_nearly_always"]:
                    return replace(memory, state=rechecked or state)
            elif judgement.verdict != "roll_back":
                return memory
            reason, evidence = judgement.reason, {**judgement.evidence, "explanation": judgement.explanation}
        withdrawal = Withdrawal(rollout.candidate, reason, self.name, now, evidence)
        return replace(memory, withdrawals={**memory.withdrawals, rollout.candidate: withdrawal})

    def _rechecked(self, state: DesiredState, judgement: Judgement, look: Look, now: datetime) -> DesiredState | None:
        """The state in which the control serves beside the candidate again, recorded and followed; the present one
        where somebody else was faster, and none while the record does not answer or is an old copy: nobody follows what
        would be made of that."""
        found: list[int] = []

        def decided(current: record.Recorded) -> DesiredState | None:
            found.append(current.state.generation)
            is_the_same = current.state.generation == state.generation and current.state.phase == "baking"
            evidence = {**judgement.evidence, "explanation": judgement.explanation}
            return (
                phases.recheck(current.state, Cause(judgement.reason, self.name, now, evidence))
                if is_the_same
                else None
            )

        try:
            changed = record.change(self.states, decided)
        except PipelineError as trouble:
            look.pending.append(f"the control cannot be brought back to judge the candidate by: {trouble}")
            return None
        if changed is None and found[-1] < state.generation:
            look.pending.append(
                "the control cannot be brought back to judge the candidate by: the record is at generation "
                f"{found[-1]}, and {state.generation} was seen"
            )
            return None
        if changed is None:
            return state
        look.recorded.append(changed.state)
        try:
            self.traffic.apply(changed.state)
        except PipelineError as trouble:
            look.pending.append(str(trouble))
        return changed.state

    def _fence(self, memory: Memory, standings: list[Standing], look: Look, now: datetime) -> None:
        """Fence what is to be out, wherever it is not: a gateway may have been away, or cut off from the record."""
        out = dict(memory.withdrawals)
        for model in memory.state.retired if memory.state else ():
            if with_traffic(standings, model):
                out.setdefault(model, Withdrawal(model, "it was rolled back", self.name, now))
        for model, withdrawal in out.items():
            if not standings or with_traffic(standings, model) or model not in fenced_models(standings):
                fencing = look.fencings[model] = fence(self.traffic, withdrawal)
                if fencing.trouble:
                    look.pending.append(fencing.trouble)

    def _recorded(self, memory: Memory, standings: list[Standing], look: Look) -> Memory:
        """The memory without what is in the record by now."""
        left = dict(memory.withdrawals)
        state = memory.state
        for model, withdrawal in memory.withdrawals.items():
            try:
                changed = record_withdrawal(self.states, withdrawal, fenced=self._is_held(model, standings, look))
                if changed is not None:
                    look.recorded.append(changed.state)
                    state = changed.state
            except PipelineError as trouble:
                look.pending.append(f"{model} is not recorded as rolled back yet: {trouble}")
            else:
                del left[model]
        return Memory(state, left)

    def _is_held(self, model: str, standings: list[Standing], look: Look) -> bool:
        """Whether any gateway holds the fence. Where the model is in service by now, none may."""
        fencing = look.fencings.get(model)
        return bool(fencing.confirmed) if fencing else model in fenced_models(standings)

    def _save(self, memory: Memory, look: Look) -> None:
        try:
            self.keeping.save(memory)
        except OSError as error:
            # A full disk keeps nobody from taking a bad model out.
            look.pending.append(f"the watchdog's memory cannot be written ({error}): make room")


def _is_old_copy(found: DesiredState, remembered: DesiredState, standings: list[Standing]) -> bool:
    """Whether the record was set back. One that was created anew has lower generations too, but it is younger, and no
    gateway is ahead of it."""
    is_younger = found.change.at > remembered.change.at
    is_ahead = any(standing.generation > found.generation for standing in standings)
    return found.generation < remembered.generation and (is_ahead or not is_younger)


class FileMemory:
    """A watchdog's memory in a file that is replaced as a whole."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def load(self) -> Memory:
        """See `Keeping.load`. A file that cannot be read counts as none: the record and the gateways know the rest."""
        try:
            content = json.loads(self._path.read_bytes())
            withdrawals = {
                model: Withdrawal(**each | {"at": datetime.fromisoformat(each["at"])})
                for model, each in content["withdrawals"].items()
            }
            state = DesiredState.decoded(content["state"].encode()) if content["state"] else None
        except FileNotFoundError:
            return Memory()
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            _log.warning("the watchdog's memory in %s cannot be read (%s): it starts anew", self._path, error)
            return Memory()
        return Memory(state, withdrawals)

    def save(self, memory: Memory) -> None:
        """See `Keeping.save`."""
        withdrawals = {model: asdict(each) | {"at": each.at.isoformat()} for model, each in memory.withdrawals.items()}
        content = {"state": memory.state.encoded().decode() if memory.state else None, "withdrawals": withdrawals}
        self._path.parent.mkdir(parents=True, exist_ok=True)
        beside = self._path.with_name(f"{self._path.name}.{os.getpid()}")
        try:
            with beside.open("w") as file:
                json.dump(content, file)
                file.flush()
                os.fsync(file.fileno())
            beside.replace(self._path)
        finally:
            with contextlib.suppress(FileNotFoundError):
                beside.unlink()
