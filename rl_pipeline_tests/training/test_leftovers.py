"""What trainings leave behind, and when it goes."""

from datetime import timedelta
from pathlib import Path

from rl_pipeline.curation.scratch import SCRATCH
from rl_pipeline.stores.clickhouse import ClickHouseWarehouse
from rl_pipeline.training.jobs.job import State
from rl_pipeline.training.jobs.rows import write_attempt, write_job
from rl_pipeline.training.leftovers import remove_what_was_delivered, remove_work_directories
from rl_pipeline.training.site import TrainingSite
from rl_pipeline_tests.training.job_values import NOW, a_job, an_attempt

WEEK = timedelta(days=7)


def left(site: TrainingSite, warehouse: ClickHouseWarehouse, job_id: str, state: State) -> Path:
    work = site.directory(job_id, 1)
    for directory in (work.checkpoints, work.final, work.dataset, work.attempt_directory):
        directory.mkdir(parents=True)
        (directory / "file").write_text("content")
    write_job(warehouse, a_job(job_id, state))
    return work.root


def test_directories_of_jobs_that_ended_a_week_ago_go_and_no_others(
    tmp_path: Path, warehouse: ClickHouseWarehouse
) -> None:
    site = TrainingSite(work=tmp_path, models=tmp_path / ".models")
    site.operators.mkdir()
    left(site, warehouse, "done", "completed")
    left(site, warehouse, "broken", "failed")
    left(site, warehouse, "unwanted", "cancelled")
    running, stopping = left(site, warehouse, "running", "running"), left(site, warehouse, "stopping", "cancelled")
    write_attempt(warehouse, an_attempt(job_id="stopping", begun=True))
    assert remove_work_directories(warehouse, site, NOW + WEEK) == ()
    assert remove_work_directories(warehouse, site, NOW + 2 * WEEK) == ("broken", "done", "unwanted")
    assert set(tmp_path.iterdir()) == {running, stopping, site.operators}


def test_what_curations_left_that_were_killed_goes_the_next_night(
    tmp_path: Path, warehouse: ClickHouseWarehouse
) -> None:
    left_there = tmp_path / SCRATCH / "tmp1"
    left_there.mkdir(parents=True)
    left_there.with_suffix(".lock").touch()
    assert remove_work_directories(warehouse, TrainingSite(work=tmp_path, models=tmp_path / ".models"), NOW) == ()
    assert list((tmp_path / SCRATCH).iterdir()) == []


def test_of_what_was_delivered_only_the_account_of_it_stays(tmp_path: Path, warehouse: ClickHouseWarehouse) -> None:
    site = TrainingSite(work=tmp_path, models=tmp_path / ".models")
    left(site, warehouse, "job", "completed")
    work = site.directory("job", 1)
    work.base.symlink_to(tmp_path)
    remove_what_was_delivered(work)
    assert [path.name for path in work.root.iterdir()] == ["attempt-1"]
    assert tmp_path.exists(), "a base model is shared"
