"""Rollouts that wait for a person: since when, and why. Kept in the warehouse, for alerts and reports.

The controller judges anew at each look and remembers nothing, so whoever has it look notes what it found.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from typing import Any

from rl_pipeline.deployment.controller import Tick
from rl_pipeline.stores.warehouse import Warehouse

FOR_A_PERSON = frozenset(
    (
        "fails_only_alone",
        "worse_within_limits",
        "sample_ratio",
        "high_error_rate",
        "worse_than_before",
        "too_few_rewards",
    )
)
"""Reasons of a judgement that holds, which nothing but a person ends, or nobody knows when."""
STALLED = "stalled"
STALLED_AFTER = timedelta(days=1)
"""So long beyond its time a step may wait for sessions before somebody should see whether any come at all."""

_KNOWN = """
    SELECT * FROM rollout_holds FINAL
    WHERE ended_at IS NULL
        OR (deployment_id = {id:String} AND step = {step:UInt32} AND reason = {reason:String})
"""


@dataclass(frozen=True, slots=True)
class Hold:
    """One of them."""

    deployment_id: str
    step: int
    reason: str
    model_id: str
    explanation: str


def note_hold(warehouse: Warehouse, tick: Tick, now: datetime) -> Hold | None:
    """Keep whether the rollout waits for a person after this look; returns a hold that has begun with it.

    A look that had no evidence, or had to do without rewards, tells nothing new.
    """
    if tick.state is None or (tick.judgement is not None and tick.judgement.evidence.get("mode") != "full"):
        return None
    hold = hold_of(tick, now)
    wanted = (hold.deployment_id, hold.step, hold.reason) if hold else ("", 0, "")
    known = warehouse.query(_KNOWN, dict(zip(("id", "step", "reason"), wanted, strict=True)))
    rows = {(row["deployment_id"], row["step"], row["reason"]): row for row in known.iter_rows(named=True)}
    before = rows.pop(wanted, None)
    for row in rows.values():
        _write(warehouse, row | {"ended_at": now, "noted_at": now})
    if hold is None:
        return None
    if before is None:
        _write(warehouse, asdict(hold) | {"since": now, "ended_at": None, "noted_at": now})
        return hold
    if before["ended_at"] is not None:
        _write(warehouse, before | {"ended_at": None, "noted_at": now})
    return None


def hold_of(tick: Tick, now: datetime) -> Hold | None:
    """What the rollout waits for after this look, if it is a person."""
    judgement, rollout = tick.judgement, tick.state.rollout if tick.state else None
    if judgement is None or rollout is None or judgement.verdict != "hold":
        return None
    reason = judgement.reason
    if reason == "waiting" and now - rollout.step_since >= _time_of(judgement.evidence) + STALLED_AFTER:
        reason = STALLED
    elif reason not in FOR_A_PERSON:
        return None
    return Hold(rollout.deployment_id, rollout.step, reason, rollout.candidate, judgement.explanation)


def _time_of(evidence: Mapping[str, Any]) -> timedelta:
    """The least time of the step, in a judgement that waits."""
    return timedelta(seconds=evidence["step"]["min_seconds"])


def _write(warehouse: Warehouse, row: Mapping[str, Any]) -> None:
    import polars as pl

    moments = {name: pl.Datetime("ms", "UTC") for name in ("since", "ended_at", "noted_at")}
    warehouse.insert("rollout_holds", pl.DataFrame([row], schema_overrides={**moments, "step": pl.UInt32}))
