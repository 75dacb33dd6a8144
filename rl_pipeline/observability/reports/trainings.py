"""The trainings that ended in a period: how, after how long, and at what cost."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from rl_pipeline.observability.reports.activity import IN_PERIOD
from rl_pipeline.observability.reports.periods import Period
from rl_pipeline.stores.warehouse import Warehouse
from rl_pipeline.training.jobs.job import Attempt
from rl_pipeline.training.jobs.rows import attempts_of


@dataclass(frozen=True, slots=True)
class Usage:
    """What attempts took. Hours are measured; a cost is measured hours times the prices that are set."""

    gpu_hours: float = 0.0
    cpu_hours: float = 0.0
    cost_usd: float | None = None
    """None where no attempt has told its cost."""
    untold: int = 0
    """Attempts that ended before they could tell their cost: their hours count, their cost does not."""


@dataclass(frozen=True, slots=True)
class EndedJob:
    """A job that came to its end."""

    job_id: str
    state: str
    explanation: str
    trigger_reason: str
    ended_at: datetime
    failure_code: str
    """Of its last attempt; empty where that did not fail."""
    hours: float
    """From the first attempt's start to the last one's end, pauses left out."""
    usage: Usage


def read_ended_jobs(warehouse: Warehouse, period: Period) -> list[EndedJob]:
    """Those that ended in the period, in order."""
    rows = warehouse.query(
        f"""
        SELECT job_id, state, explanation, trigger_reason, changed_at FROM training_jobs FINAL
        WHERE state IN ('completed', 'failed', 'cancelled') AND {IN_PERIOD.format(column="changed_at")}
        ORDER BY changed_at, job_id
        """,  # noqa: S608  # all of it is ours
        period.parameters(),
    ).to_dicts()
    attempts = attempts_of(warehouse, [row["job_id"] for row in rows]) if rows else {}
    return [_ended(row, attempts.get(row["job_id"], [])) for row in rows]


def usage_of(attempts: Sequence[Attempt]) -> Usage:
    """What the attempts took together."""
    gpu = cpu = 0.0
    costs: list[float] = []
    untold = 0
    for attempt in attempts:
        told = (json.loads(attempt.result).get("resource_usage") or {}) if attempt.result else {}
        if "cost_usd" in told:
            costs.append(float(told["cost_usd"]))
            gpu += float(told.get("gpu_hours", 0.0))
            cpu += float(told.get("cpu_hours", 0.0))
        elif attempt.started_at and attempt.ended_at:
            untold += 1
            distribution = _distribution(attempt)
            hours = distribution.get("processes", 1) * hours_of([attempt])
            if distribution.get("device") == "cuda":
                gpu += hours
            else:
                cpu += hours
    return Usage(gpu, cpu, sum(costs) if costs else None, untold)


def usage_together(usages: Sequence[Usage]) -> Usage:
    """The sum."""
    costs = [usage.cost_usd for usage in usages if usage.cost_usd is not None]
    return Usage(
        sum(usage.gpu_hours for usage in usages),
        sum(usage.cpu_hours for usage in usages),
        sum(costs) if costs else None,
        sum(usage.untold for usage in usages),
    )


def hours_of(attempts: Sequence[Attempt]) -> float:
    """For how long they ran, together."""
    spans = ((one.ended_at - one.started_at) for one in attempts if one.ended_at and one.started_at)
    return sum(span.total_seconds() for span in spans) / 3600


def _distribution(attempt: Attempt) -> Mapping[str, Any]:
    found: Mapping[str, Any] = json.loads(attempt.plan).get("distribution") or {} if attempt.plan else {}
    return found


def _ended(row: Mapping[str, Any], attempts: Sequence[Attempt]) -> EndedJob:
    failed = bool(attempts) and attempts[-1].outcome == "failed"
    return EndedJob(
        row["job_id"],
        row["state"],
        row["explanation"],
        row["trigger_reason"],
        row["changed_at"],
        (attempts[-1].failure_code or "UNKNOWN") if failed else "",
        hours_of(attempts),
        usage_of(attempts),
    )
