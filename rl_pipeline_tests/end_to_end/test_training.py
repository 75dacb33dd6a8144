"""The loop in the embedded stack, as its user meets it: a training starts by itself and ends in a checkpoint, which is
validated and rolled out; what is bad is taken back."""

import time
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

import pytest

from rl_pipeline.deployment import releases as model_releases
from rl_pipeline.deployment.state import RampStep
from rl_pipeline.opening import open_stream, open_warehouse
from rl_pipeline.stores.jetstream_lease import JetStreamLeases
from rl_pipeline.stores.object_addresses import open_objects
from rl_pipeline.training.checkpoints.releasing import download_checkpoint
from rl_pipeline.training.checkpoints.signing import PublicKeys
from rl_pipeline_tests.end_to_end.released_models import FAST_ROLLOUTS, Releases, failing_backend
from rl_pipeline_tests.end_to_end.running_stack import run_command
from rl_pipeline_tests.end_to_end.training_stack import EPISODES, TrainingStack, trained, training_stack
from rl_pipeline_tests.waiting import wait_until


@pytest.fixture(scope="module")
def training(tmp_path_factory: pytest.TempPathFactory, small_model: Path) -> Iterator[TrainingStack]:
    settings = {"RL_TRAINING_THRESHOLD": str(EPISODES), "RL_ALGORITHM": "rloo", **FAST_ROLLOUTS}
    with training_stack(tmp_path_factory.mktemp("home"), small_model, **settings) as training:
        yield training


@pytest.mark.cplusplus
@pytest.mark.timeout(900)
def test_enough_new_trajectories_start_a_training_that_ends_in_a_better_signed_checkpoint(
    training: TrainingStack, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    training.await_rewards()
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


@pytest.mark.cplusplus
@pytest.mark.timeout(900)
def test_the_checkpoint_is_validated_and_comes_into_service_step_by_step(training: TrainingStack) -> None:
    released = Releases(training)
    reports = wait_until(
        lambda: training.query("SELECT * FROM validation_reports FINAL"), "a validation report", seconds=400
    )
    assert [row["decision"] for row in reports] in (["deploy"], ["ask_a_person"]), reports[0]["reasons"]
    wait_until(lambda: released.state().rollout, "a rollout", seconds=100)
    if released.state().phase == "awaiting_approval":
        assert run_command(training.stack.home, "deployment", "approve").returncode == 0
    first = "small-model"
    assert released.state().serving == first

    def has_arrived() -> bool:
        released.ask_many(10)
        return released.state().serving == "agent-zero-rl-v1"

    wait_until(has_arrived, "its promotion", seconds=400)
    assert released.ask_many(20) == {"agent-zero-rl-v1": 20}
    wait_until(lambda: ("promoted", "agent-zero-rl-v1") in released.events(), "its announcement", seconds=60)
    assert released.events()[0] == ("deployed", "agent-zero-rl-v1")
    verified = run_command(training.stack.home, "deployment", "verify-audit")
    assert verified.returncode == 0, verified.stdout
    explained = run_command(training.stack.home, "explain", released.ask()["id"])
    [job] = [row["job_id"] for row in reports]
    assert explained.returncode == 0, explained.stderr
    assert job in explained.stdout
    assert f"{job}.r1" in explained.stdout, "the dataset"


@pytest.mark.cplusplus
@pytest.mark.timeout(600)
def test_a_model_that_fails_is_taken_back_and_never_raised_again(training: TrainingStack) -> None:
    released = Releases(training)
    serving = released.state().serving
    plan = model_releases.RolloutPlan(
        strategy="canary",
        steps=(RampStep(share=0.5, min_seconds=3600, min_samples=1000),),
        bake_seconds=0,
        explanation="a test",
        measured_against=serving,
    )
    with failing_backend() as endpoint:
        with open_stream(training.settings) as stream, closing(open_warehouse(training.settings)) as tables:
            bad = model_releases.Releases(tables).release(
                JetStreamLeases(stream),
                training_job_id="sabotage",
                base_model="none",
                checkpoint_path=None,
                manifest_sha256=None,
                plan=plan,
                validation={"benchmark_passed": True, "safety_checks_passed": True, "performance_regression": False},
                needs_approval=False,
                shadow=False,
                now=datetime.now(UTC),
                endpoint=endpoint,
            )
        wait_until(lambda: released.state().rollout, "its rollout", seconds=100)

        def is_out() -> bool:
            released.ask_many(10)
            return bad.model.model_id in released.state().retired

        wait_until(is_out, "its rollback", seconds=200)
    assert released.ask_many(20) == {serving: 20}
    wait_until(lambda: ("rolled_back", bad.model.model_id) in released.events(), "its announcement", seconds=60)
    found = "SELECT reason, evidence FROM deployment_audit FINAL WHERE event = 'rolled_back'"
    assert [row["reason"] for row in training.query(found)] == ["high_error_rate"]
    refused = run_command(training.stack.home, "deployment", "promote", bad.model.model_id)
    assert refused.returncode == 1
    assert run_command(training.stack.home, "deployment", "verify-audit").returncode == 0
