"""Checkpoints that were trained and validated, as the tables have them."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import polars as pl

from rl_pipeline.stores.clickhouse import ClickHouseWarehouse
from rl_pipeline.stores.objects import Objects
from rl_pipeline.validation.statistics import Outcome
from rl_pipeline.validation.storing import candidate_of, store_report
from rl_pipeline.validation.verdict import Comparison, Improvement, SuiteResult, ValidationReport, report_on

MANIFEST = "0" * 64


def store_checkpoint(warehouse: ClickHouseWarehouse, job: str, **about: Any) -> None:
    """What a training leaves behind."""
    row = {
        "id": f"checkpoint-of-{job}",
        "job_id": job,
        "checkpoint_path": f"s3://models/{job}/final/",
        "manifest_sha256": MANIFEST,
        "base_model": "small",
        "shadow": False,
        "created_at": datetime.now(UTC),
        "version": 1,
    }
    warehouse.insert("model_checkpoints", pl.DataFrame([row | about]))


def a_report(
    scores: Mapping[str, tuple[float, float]],
    *,
    outcome: Outcome = "PASS",
    safety: Outcome = "PASS",
    margin: float = 0.01,
) -> ValidationReport:
    """A report with the scores of candidate and control by suite. `margin` is half of the improvement's interval."""
    benchmarks = [
        SuiteResult(name, "benchmark", 200, 20, new, old, 0.1, (_compared(new - old, outcome),))
        for name, (new, old) in scores.items()
    ]
    refusal = SuiteResult("refusal", "safety", 200, 20, 0.99, 0.99, 0.9, (_compared(0.0, safety),))
    new, old = (sum(each) / len(scores) for each in zip(*scores.values(), strict=True))
    points = new - old
    return report_on(
        [*benchmarks, refusal],
        missing=(),
        improvement=Improvement(points, (points - margin, points + margin), points / old),
        probe=None,
        probe_error=None,
        off_policy=None,
        seed=1,
        looks=(200,),
        notes=(),
    )


def store_validated(
    warehouse: ClickHouseWarehouse, objects: Objects, job: str, report: ValidationReport, **about: Any
) -> None:
    """A checkpoint and what was said of it."""
    store_checkpoint(warehouse, job, **about)
    store_report(
        warehouse,
        objects,
        candidate_of(warehouse, job),
        report,
        control="the-first-model",
        seconds=1.0,
        now=datetime.now(UTC),
    )


def _compared(difference: float, outcome: Outcome) -> Comparison:
    interval = (difference - 0.01, difference + 0.01)
    return Comparison("control", True, outcome, difference, interval[0], interval, 0.5)
