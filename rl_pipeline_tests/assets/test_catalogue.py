"""What everybody finds in the catalogue, of every asset: whose it is, of what kind, what it means, and its columns."""

import dagster as dg
import pytest

from rl_pipeline.definitions import build_definitions
from rl_pipeline.stores.clickhouse import ClickHouseWarehouse
from rl_pipeline.stores.table_columns import kept_columns, read_columns

DEFINITIONS = build_definitions()
GRAPH = DEFINITIONS.resolve_asset_graph()
SPECS = {spec.key.to_user_string(): spec for spec in DEFINITIONS.resolve_all_asset_specs()}
FRESH = {"raw_trajectories", "redacted_trajectories", "trajectory_rewards", "daily_summaries", "weekly_reports"}


@pytest.mark.parametrize("name", sorted(SPECS))
def test_an_asset_says_whose_it_is_of_what_kind_what_it_means_and_which_columns_it_has(name: str) -> None:
    spec = SPECS[name]
    assert spec.owners
    assert spec.kinds
    assert spec.group_name
    assert len(spec.description or "") > 80
    columns = spec.metadata["dagster/column_schema"]
    assert isinstance(columns, dg.TableSchema)
    assert columns.columns
    assert [column.name for column in columns.columns if not column.type] == []


def test_what_should_be_fresh_has_a_policy_and_nothing_else_has() -> None:
    assert {name for name, spec in SPECS.items() if spec.freshness_policy} == FRESH


def test_every_check_job_sensor_and_schedule_says_what_it_is_for() -> None:
    checks = [key for key in GRAPH.asset_check_keys if not GRAPH.get(key).description]
    assert checks == []
    repository = DEFINITIONS.get_repository_def()
    jobs = [job.name for job in repository.get_all_jobs() if job.name != "__ASSET_JOB" and not job.description]
    sensors = [sensor.name for sensor in repository.sensor_defs if not sensor.description]
    schedules = [schedule.name for schedule in repository.schedule_defs if not schedule.description]
    assert (jobs, sensors, schedules) == ([], [], [])


def test_the_columns_of_the_catalogue_are_those_of_the_tables(warehouse: ClickHouseWarehouse) -> None:
    assert kept_columns() == read_columns(warehouse), "run `rl-pipeline warehouse columns` against a migrated warehouse"
