"""What is read of a period: known rows give known figures, and what nobody stored is not known."""

from collections.abc import Iterator
from datetime import timedelta

import polars as pl
import pytest

from rl_pipeline.observability.reports.activity import read_arrivals
from rl_pipeline.observability.reports.figures import Figures, read_figures
from rl_pipeline.observability.reports.periods import Period
from rl_pipeline.stores.clickhouse import ClickHouseWarehouse
from rl_pipeline.training.jobs.rows import write_attempt, write_job
from rl_pipeline_tests.observability.reports.stored_period import (
    END,
    HOUR,
    START,
    store_audit,
    store_ledger,
    store_scored,
    store_sessions,
    store_validation,
)
from rl_pipeline_tests.training.job_tables import STREAM, emptied, migrated_database
from rl_pipeline_tests.training.job_values import a_job, an_attempt

PERIOD = Period(START, END)
BASE = Period(START - timedelta(days=20), START - timedelta(days=13))


@pytest.fixture(scope="module")
def tables(clickhouse_url: str) -> Iterator[ClickHouseWarehouse]:
    with migrated_database(clickhouse_url) as database:
        yield database


@pytest.fixture
def warehouse(tables: ClickHouseWarehouse) -> ClickHouseWarehouse:
    return emptied(tables)


def read(warehouse: ClickHouseWarehouse, base: Period | None = None) -> Figures:
    return read_figures(warehouse, STREAM, PERIOD, base)


def test_of_nothing_nothing_is_known_and_nothing_breaks(warehouse: ClickHouseWarehouse) -> None:
    figures = read(warehouse)
    assert (figures.arrivals.accepted, figures.rewards.estimate.mean, figures.rewards.deviation) == (0, None, None)
    assert (figures.standing, figures.performance, figures.jobs, figures.base) == (None, None, (), None)
    assert (figures.storage.stream_per_trajectory, figures.storage.tables_per_trajectory) == (None, None)
    assert figures.usage.cost_usd is None
    assert {outcome.verdict for outcome in figures.outcomes} == {"not known"}


def test_a_message_belongs_to_the_period_in_which_it_came_and_the_end_is_not_in_it(
    warehouse: ClickHouseWarehouse,
) -> None:
    just_before = timedelta(milliseconds=1)
    store_ledger(
        warehouse,
        ("accepted", 3, START),
        ("refused", 1, START + 5 * HOUR),
        ("accepted", 2, END - just_before),
        ("accepted", 4, END),
        ("accepted", 5, START - just_before),
        ("lost", 2, START + HOUR),
    )
    figures = read(warehouse)
    assert figures.arrivals.verdicts == {"accepted": 5, "lost": 2, "refused": 1}
    assert (figures.arrivals.series[0], figures.arrivals.series[23], sum(figures.arrivals.series)) == (3, 2, 5)
    assert figures.arrivals.refused_share == pytest.approx(1 / 6), "what was lost did not fail by itself"
    assert figures.arrivals_before == 5


def test_a_period_may_begin_within_a_second(warehouse: ClickHouseWarehouse) -> None:
    fraction = timedelta(milliseconds=900, microseconds=123)
    store_ledger(warehouse, ("accepted", 1, START + timedelta(seconds=1)), ("accepted", 1, END + HOUR / 7200))
    arrivals = read_arrivals(warehouse, STREAM, Period(START + fraction, END + fraction))
    assert (arrivals.accepted, arrivals.series[0], arrivals.series[23]) == (2, 1, 1)


def test_a_model_is_as_it_was_when_the_period_ended(warehouse: ClickHouseWarehouse) -> None:
    store_scored(warehouse, START - HOUR, [{"raw": 0.5}] * 200)
    store_scored(warehouse, START + HOUR, [{"raw": 0.6}] * 3, first=1000)
    store_scored(warehouse, END + HOUR, [{"raw": 0.1}] * 9, first=2000)
    performance = read(warehouse).performance
    assert performance is not None
    assert (performance.bake.count, performance.recent.count) == (200, 3)
    assert performance.recent.mean == pytest.approx(0.6)


def test_the_error_of_a_mean_counts_sessions_and_not_the_trajectories_in_them(warehouse: ClickHouseWarehouse) -> None:
    alone = [{"session": f"s{number}", "raw": 0.2 if number < 2 else 0.8} for number in range(4)]
    store_scored(warehouse, START, alone)
    apart = read(warehouse).rewards
    store_scored(warehouse, START, [row for row in alone for _ in range(10)])
    together = read(warehouse).rewards
    assert (apart.estimate.mean, together.estimate.mean) == (pytest.approx(0.5), pytest.approx(0.5))
    assert (apart.estimate.count, together.estimate.count) == (4, 40)
    assert apart.estimate.error == pytest.approx(0.3464 / 2, abs=1e-3), "as for four independent values"
    assert together.estimate.error == pytest.approx(apart.estimate.error)


def test_rewards_are_told_by_model_and_by_the_hour(warehouse: ClickHouseWarehouse) -> None:
    store_scored(warehouse, START + 2 * HOUR, [{"raw": 0.4, "model": "a"}, {"raw": 0.6, "model": "b"}])
    rewards = read(warehouse).rewards
    assert {model.model_version: model.estimate.mean for model in rewards.models} == {"a": 0.4, "b": 0.6}
    assert rewards.series[2] == pytest.approx(0.5)
    assert rewards.series[:2] == (None, None)


def test_trajectories_that_files_brought_are_no_experience_of_the_model(warehouse: ClickHouseWarehouse) -> None:
    store_scored(warehouse, START, [{"raw": 0.1, "status": "failure"}, {"raw": 0.9, "status": "success"}])
    warehouse.insert("imported_trajectories", pl.DataFrame([{"job_id": "job", "trajectory_id": "trajectory-1"}]))
    figures = read(warehouse)
    assert figures.rewards.estimate.mean == pytest.approx(0.9)
    assert figures.outcomes[0].change.now.count == 1


def test_outcomes_are_compared_with_the_base_period(warehouse: ClickHouseWarehouse) -> None:
    before = [
        {"status": "success" if number % 2 else "failure", "turns": 10, "lint": 0.5, "session": f"b{number}"}
        for number in range(100)
    ]
    now = [
        {"status": "success" if number % 5 else "failure", "turns": 8, "lint": 0.5, "session": f"n{number}"}
        for number in range(100)
    ]
    now[0] |= {"kinds": ["thumbs_up", "stars"], "ratings": [0, 3], "users": ["u1", "u2"]}
    before[0] |= {"kinds": ["thumbs_down", "thumbs_up", "correction"], "ratings": [0, 0, 0], "users": ["u1", "u2", ""]}
    store_scored(warehouse, BASE.start + HOUR, before)
    store_scored(warehouse, START + HOUR, now, first=1000)
    outcomes = {outcome.goal.name: outcome for outcome in read(warehouse, BASE).outcomes}
    completion = outcomes["completion"].change
    assert (completion.base.mean, completion.now.mean) == (0.5, 0.8)
    assert completion.relative == pytest.approx(0.6)
    assert completion.relative_interval == pytest.approx((0.248, 0.952), abs=1e-3)
    assert outcomes["completion"].verdict == "reached"
    assert (outcomes["turns"].change.relative, outcomes["turns"].verdict) == (pytest.approx(-0.2), "reached")
    assert (outcomes["linter"].change.relative, outcomes["linter"].verdict) == (0.0, "not reached")
    said = outcomes["satisfaction"].change
    assert (said.base.mean, said.now.mean) == (0.5, 0.75), "a correction is no opinion that was said outright"
    assert (outcomes["tickets"].verdict, outcomes["tickets"].note) == (
        "not known",
        "no source of support tickets is connected",
    )


def test_the_first_week_is_the_base_and_is_not_compared_with_itself(warehouse: ClickHouseWarehouse) -> None:
    store_scored(warehouse, START + HOUR, [{"status": "success"}] * 2)
    figures = read(warehouse)
    assert figures.base == Period(START.replace(hour=0), START.replace(hour=0) + timedelta(days=7))
    completion = figures.outcomes[0]
    assert (completion.verdict, completion.note) == ("not known", "the base period is not over")


def test_nothing_is_compared_with_a_base_that_comes_later(warehouse: ClickHouseWarehouse) -> None:
    later = Period(END + HOUR, END + 2 * HOUR)
    store_scored(warehouse, START + HOUR, [{"status": "success"}] * 2)
    store_scored(warehouse, later.start, [{"status": "failure"}] * 2, first=1000)
    completion = read(warehouse, later).outcomes[0]
    assert (completion.verdict, completion.note) == ("not known", "the base period is not over")


def test_a_job_has_its_hours_and_its_cost_as_its_attempts_told_them(warehouse: ClickHouseWarehouse) -> None:
    ended = START + 3 * HOUR
    write_job(warehouse, a_job(state="completed", now=ended))
    usage = '{"resource_usage": {"gpu_hours": 8.0, "cost_usd": 16.0}}'
    plan = '{"distribution": {"device": "cuda", "processes": 2}}'
    first, second = an_attempt(1, begun=True), an_attempt(2, begun=True)
    assert first.started_at is not None
    write_attempt(warehouse, first.with_plan(plan).ended("failed", first.started_at + HOUR / 2, failure_code="OOM"))
    write_attempt(warehouse, second.ended("completed", first.started_at + HOUR, result=usage))
    [job] = read(warehouse).jobs
    assert (job.state, job.failure_code, job.hours) == ("completed", "", pytest.approx(1.5))
    assert job.usage.gpu_hours == pytest.approx(8.0 + 2 * 0.5), (
        "an attempt that failed took its GPUs' time all the same"
    )
    assert (job.usage.cost_usd, job.usage.untold) == (16.0, 1)


def test_the_model_in_service_is_that_of_the_periods_end_and_since_when_it_is(warehouse: ClickHouseWarehouse) -> None:
    store_audit(
        warehouse,
        {"at": START - 9 * HOUR, "serving": "old", "event": "created"},
        {"at": START + HOUR, "serving": "new", "event": "promoted"},
        {"at": START + 2 * HOUR, "serving": "new", "event": "frozen", "frozen": "a holiday"},
        {"at": END + HOUR, "serving": "newer", "event": "promoted"},
    )
    figures = read(warehouse)
    assert figures.standing is not None
    assert (figures.standing.serving, figures.standing.since) == ("new", START + HOUR)
    assert figures.standing.frozen == "a holiday"
    assert [change.event for change in figures.changes] == ["promoted", "frozen"]


def test_validations_sessions_and_post_mortems_are_those_of_the_period(warehouse: ClickHouseWarehouse) -> None:
    store_validation(warehouse, "job-1", "refuse", START, "a suite failed")
    store_validation(warehouse, "job-2", "deploy", END)
    store_sessions(warehouse, "new", START + HOUR, good=3, failed=1)
    held = {"deployment_id": "d", "model_id": "new", "report": '{"recommendation": "Look."}', "held_at": START}
    warehouse.insert("post_mortems", pl.DataFrame([held]))
    figures = read(warehouse)
    assert [(one.job_id, one.reasons) for one in figures.validations] == [("job-1", ("a suite failed",))]
    [sessions] = figures.sessions
    assert (sessions.sessions, sessions.failed, sessions.error_rate, sessions.negative) == (4, 1, 0.25, 1)
    assert [(one.model_id, one.recommendation) for one in figures.post_mortems] == [("new", "Look.")]


def test_bytes_of_a_trajectory_are_measured_in_the_stream_and_on_the_disk(warehouse: ClickHouseWarehouse) -> None:
    store_ledger(warehouse, ("accepted", 50, START))
    store_scored(warehouse, START, [{}] * 50)
    rows = pl.DataFrame({"sequence": range(1, 51)}).with_columns(
        trajectory_id=pl.format("trajectory-{}", "sequence"),
        stream=pl.lit(STREAM),
        stream_time=pl.lit(START),
        document=pl.lit("{}"),
        held=pl.lit(True),
    )
    warehouse.insert("trajectories", rows)
    scores = rows.select("sequence", "trajectory_id", "stream").with_columns(scores_hash=pl.lit("s"))
    warehouse.insert("reward_scores", scores)
    seen = {"stream": STREAM, "observed_at": START + HOUR, "messages": 50, "bytes": 500_000}
    warehouse.insert("stream_observations", pl.DataFrame([seen, {**seen, "observed_at": END, "bytes": 1}]))
    storage = read(warehouse).storage
    assert storage.stream_per_trajectory == 10_000
    assert storage.gigabytes_a_month(storage.stream_per_trajectory) == pytest.approx(50 * 30 * 10_000 / 1e9)
    sizes = {table.name: (table.bytes, table.trajectories) for table in storage.tables}
    assert all(size > 0 and count == 50 for size, count in sizes.values()), sizes
    assert storage.tables_per_trajectory == pytest.approx(sum(size for size, _ in sizes.values()) / 50)
