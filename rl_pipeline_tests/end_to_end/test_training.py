"""Training in the embedded stack, as its user meets it: it starts by itself and ends in a checkpoint."""

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from rl_pipeline.stores.object_addresses import open_objects
from rl_pipeline.training.releasing import download_checkpoint
from rl_pipeline.training.signing import PublicKeys
from rl_pipeline_tests.end_to_end.training_stack import THRESHOLD, TrainingStack, trained
from rl_pipeline_tests.waiting import wait_until


@pytest.mark.cplusplus
@pytest.mark.timeout(900)
def test_enough_new_trajectories_start_a_training_that_ends_in_a_better_signed_checkpoint(
    training: TrainingStack, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    scored = "SELECT count() AS n FROM trajectory_rewards"
    wait_until(lambda: training.query(scored)[0]["n"] >= THRESHOLD, "rewards", seconds=200)
    crossed = time.time()
    jobs = "SELECT job_id FROM training_jobs FINAL WHERE trigger_reason = 'threshold_reached'"
    [job] = [row["job_id"] for row in wait_until(lambda: training.query(jobs), "a job of the threshold")]
    training.await_step(job)
    record_property("seconds from the threshold to the first step", round(time.time() - crossed))
    result = trained(training, job)
    assert (result["measure"], result["zero_stage"]) == ("success", 2)
    assert result["improvement"] > 0
    said = [status.status for status in training.statuses(job)]
    assert (said[0], said[-1]) == ("queued", "completed")
    assert "running" in said
    url = training.statuses(job)[-1].artifacts.final_checkpoint
    above, prefix = url.split(job)
    keys = PublicKeys.parse(training.settings.checkpoint_public_keys or "")
    manifest = download_checkpoint(open_objects(above), f"{job}{prefix}", tmp_path / "checkpoint", keys)
    assert {"model.safetensors", "MODEL_CARD.md", "curves.png", "training_plan.json"} <= manifest.files.keys()
    [row] = training.query("SELECT * FROM model_checkpoints FINAL WHERE job_id = {job:String}", job=job)
    assert (row["checkpoint_path"], row["is_best"], row["shadow"]) == (url, True, False)
