"""Checkpoints and reports in the real warehouse, as trainings and validations leave them."""

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import polars as pl

from rl_pipeline.stores.clickhouse import ClickHouseWarehouse
from rl_pipeline.stores.disk import DiskObjects
from rl_pipeline.validation.storing import candidate_of, store_report
from rl_pipeline.validation.verdict import Comparison, Decision, Improvement, SuiteResult, ValidationReport

NOW = datetime(2026, 3, 2, 12, 0, tzinfo=UTC)
MANIFEST = "ab" * 32


def a_report(decision: Decision = "deploy", *, points: float = 0.08) -> ValidationReport:
    """A report on a candidate that is so much better; what was decided need not follow from it."""
    compared = Comparison("control", True, "PASS", points, points - 0.03, (points - 0.04, points + 0.04), 0.01)
    return ValidationReport(
        decision=decision,
        reasons=("every suite passed",) if decision == "deploy" else (f"it was decided to {decision}",),
        benchmark_passed=decision == "deploy",
        safety_checks_passed=True,
        performance_regression=False,
        benchmark_scores={"tool_usage": 0.8},
        improvement=Improvement(points, (points - 0.04, points + 0.04), points / 0.7),
        suites=(SuiteResult("tool_usage", "benchmark", 200, 12, 0.8, 0.7, 0.15, (compared,)),),
        missing=(),
        seed=1,
        looks=(200,),
    )


def without_control(report: ValidationReport) -> ValidationReport:
    return replace(report, improvement=None)


def store_job(tables: ClickHouseWarehouse, job_id: str, state: str = "completed") -> None:
    """A training job that stands so."""
    row = {"job_id": job_id, "state": state, "version": 1, "requested_at": NOW, "accepted_at": NOW, "changed_at": NOW}
    tables.insert("training_jobs", pl.DataFrame([row]))


def store_checkpoint(tables: ClickHouseWarehouse, job_id: str, **more: Any) -> str:
    """A checkpoint of a training job; returns its address."""
    row = {
        "id": f"{job_id}/final",
        "job_id": job_id,
        "checkpoint_path": f"s3://models/rl-checkpoints/{job_id}/final",
        "manifest_sha256": MANIFEST,
        "base_model": "embedded-small",
        "shadow": False,
        "created_at": NOW,
        "version": 1,
    } | more
    tables.insert("model_checkpoints", pl.DataFrame([row], schema_overrides={"pruned_at": pl.Datetime("ms", "UTC")}))
    return str(row["checkpoint_path"])


def store_a_report(
    tables: ClickHouseWarehouse, directory: Path, job_id: str, report: ValidationReport, now: datetime = NOW
) -> str:
    """What validation said of the checkpoint that is stored; returns the report's address."""
    candidate = candidate_of(tables, job_id)
    return store_report(tables, DiskObjects(directory), candidate, report, control="old", seconds=12.5, now=now)
