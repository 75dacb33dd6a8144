"""Runs that are gone without Dagster knowing: which are given up, and which only wait, load or lost their server."""

from collections.abc import Iterator

import pytest

from rl_pipeline.stores.clickhouse import ClickHouseWarehouse
from rl_pipeline.stores.jetstream import JetStream
from rl_pipeline.training.jobs.advancing import TRAINING_LEASE, import_lease
from rl_pipeline.training.jobs.rows import attempts_of
from rl_pipeline.training.jobs.silence import PATIENCE, START_PATIENCE
from rl_pipeline_tests.training.job_tables import emptied, migrated_database
from rl_pipeline_tests.training.job_values import MINUTE
from rl_pipeline_tests.training.played_sensor import Sensor, keys

FILES = {"dataset": {"source": "local", "path": "files"}}


@pytest.fixture(scope="module")
def tables(clickhouse_url: str) -> Iterator[ClickHouseWarehouse]:
    with migrated_database(clickhouse_url) as database:
        yield database


@pytest.fixture
def sensor(stream: JetStream, tables: ClickHouseWarehouse) -> Sensor:
    return Sensor(stream, emptied(tables))


@pytest.mark.parametrize("cancelled", [False, True])
@pytest.mark.parametrize("begun", [True, False])
def test_a_run_that_dagster_takes_for_alive_is_lost_when_its_lease_stays_free(
    sensor: Sensor, begun: bool, cancelled: bool
) -> None:
    sensor.ask("job-1")
    sensor.look()
    if begun:
        sensor.begin("job-1")
    else:
        sensor.runs["job-1#1"] = "started"
    if cancelled:
        sensor.cancel("job-1")
    assert sensor.look().lost == []
    sensor.stay_silent((PATIENCE if begun else START_PATIENCE) - 2 * MINUTE)
    assert sensor.look().lost == []
    assert keys(sensor.look().lost) == ["job-1#1"]
    assert sensor.state("job-1") == ("cancelling" if cancelled else "running"), "until Dagster knows"
    sensor.runs["job-1#1"] = "failed"
    sensor.look()
    [first, *_] = attempts_of(sensor.warehouse, ["job-1"])["job-1"]
    ends = ("cancelled", "cancelled", None) if cancelled else ("ready", "failed", "INFRA")
    assert (sensor.state("job-1"), first.outcome, first.failure_code) == ends


def test_a_run_that_takes_its_lease_again_or_waits_for_its_place_is_not_lost(sensor: Sensor) -> None:
    sensor.ask("job-1")
    sensor.look()
    for run in ("queued", "started"):  # in the queue perhaps for days
        sensor.runs["job-1#1"] = run
        sensor.look()
        sensor.stay_silent(START_PATIENCE - 2 * MINUTE)
        assert sensor.look().lost == []
    attempt = sensor.begin("job-1")
    for _ in range(2):  # NATS is away, and comes again
        for _ in range(PATIENCE // MINUTE):
            assert sensor.look().lost == []
        lease = sensor.leases.acquire(TRAINING_LEASE, attempt.holder, 600)
        assert lease is not None
        assert sensor.look().lost == []
        sensor.leases.release(lease)


def test_time_in_which_nobody_looked_does_not_count_as_silence(sensor: Sensor) -> None:
    sensor.ask("job-1")
    sensor.look()
    sensor.begin("job-1")
    for _ in range(5):
        assert sensor.look().lost == []
        sensor.now += PATIENCE


@pytest.mark.parametrize("cancelled", [False, True])
def test_an_import_is_lost_when_its_lease_stays_free(sensor: Sensor, cancelled: bool) -> None:
    sensor.ask("job-1", training_config=FILES)
    sensor.look()
    sensor.unfinished_imports["job-1"] = "started"
    if cancelled:
        sensor.cancel("job-1")
    assert sensor.look().lost_imports == []
    sensor.stay_silent(START_PATIENCE - 2 * MINUTE)
    assert sensor.look().lost_imports == []
    tick = sensor.look()
    assert (tick.lost_imports, tick.lost) == (["job-1"], [])
    assert "nothing is heard of the import of job-1 any more: it is lost" in tick.told


def test_an_import_that_holds_its_lease_or_waits_for_its_place_is_not_lost(sensor: Sensor) -> None:
    sensor.ask("job-1", training_config=FILES)
    sensor.look()
    lease = sensor.leases.acquire(import_lease("job-1"), "run", 600)
    for run in ("started", "queued"):
        sensor.unfinished_imports["job-1"] = run
        sensor.look()
        sensor.stay_silent(START_PATIENCE)
        assert sensor.look().lost_imports == []
        assert lease is not None
        sensor.leases.release(lease)
