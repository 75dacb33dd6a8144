"""What trainings leave on the machine that they ran on, and when it goes."""

import shutil
from datetime import datetime, timedelta

from rl_pipeline.curation.scratch import sweep
from rl_pipeline.stores.warehouse import Warehouse
from rl_pipeline.training.site import TrainingSite
from rl_pipeline.training.work_directory import WorkDirectory

DAYS_TO_LOOK_AT_IT = 7


def remove_what_was_delivered(work: WorkDirectory) -> None:
    """The model is in the object store and the dataset is too: what stays of the job is what it said of itself.

    What cannot be removed now goes with the rest.
    """
    work.base.unlink(missing_ok=True)
    for directory in (work.checkpoints, work.reward_model, work.final, work.dataset):
        shutil.rmtree(directory, ignore_errors=True)


def remove_work_directories(warehouse: Warehouse, site: TrainingSite, now: datetime) -> tuple[str, ...]:
    """Remove the directories of jobs that ended more than a week ago; the ids of these jobs.

    What was left by curations that were killed goes as well.
    """
    sweep(site.work)
    there = [path.name for path in site.work.iterdir() if path.is_dir()] if site.work.is_dir() else []
    ended = warehouse.query(
        """
        SELECT job_id FROM training_jobs FINAL
        WHERE job_id IN {there:Array(String)} AND state IN ('completed', 'failed', 'cancelled')
            AND changed_at < {before:DateTime64(3, 'UTC')}
            AND job_id NOT IN (SELECT job_id FROM training_attempts FINAL WHERE outcome = '')
        ORDER BY job_id
        """,
        {"there": there, "before": now - timedelta(days=DAYS_TO_LOOK_AT_IT)},
    )["job_id"].to_list()
    for job_id in ended:
        shutil.rmtree(site.work / job_id, ignore_errors=True)
    return tuple(ended)
