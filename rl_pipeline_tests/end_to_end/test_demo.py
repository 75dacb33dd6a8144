"""`rl-pipeline demo`, one cycle and the sabotage, as its user runs it: a training starts by itself and ends in a better
checkpoint, which is validated and rolled out; what is bad is taken back."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rl_pipeline.demo import DemoProfile
from rl_pipeline.stores.object_addresses import open_objects
from rl_pipeline.training.checkpoints.releasing import download_checkpoint
from rl_pipeline.training.checkpoints.signing import PublicKeys
from rl_pipeline_tests.end_to_end.released_models import Releases
from rl_pipeline_tests.end_to_end.running_stack import RunningStack, run_command
from rl_pipeline_tests.end_to_end.training_stack import TrainingStack, trained

pytestmark = [pytest.mark.cplusplus, pytest.mark.timeout(1200)]
SCORED = "SELECT max(scored_at) AS at FROM trajectory_rewards WHERE sequence <= {through:UInt64}"


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory, small_model: Path) -> Iterator[TrainingStack]:
    arguments = ("demo", "--cycles", "1", "--stay")
    home = tmp_path_factory.mktemp("home")
    stack = RunningStack(home, arguments, RL_BASE_MODEL=str(small_model))
    try:
        stack.wait_for_line("Ctrl-C stops everything", seconds=900)
        [stack.home] = (home / "demo").glob("*/")  # each demo has one of its own
        yield TrainingStack(stack)
    finally:
        stack.end()


@pytest.fixture(scope="module")
def figures(demo: TrainingStack) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((demo.stack.home.parent / "figures.json").read_text())
    return found


@pytest.fixture(scope="module")
def job(figures: dict[str, Any]) -> str:
    return str(figures["cycles"][0]["promotion"]["job_id"])


def test_enough_new_trajectories_start_a_training_that_ends_in_a_better_signed_checkpoint(
    demo: TrainingStack, job: str, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    [row] = demo.query("SELECT trigger_reason, watermark FROM training_jobs FINAL WHERE job_id = {job:String}", job=job)
    assert row["trigger_reason"] == "threshold_reached"
    result = trained(demo, job)
    assert (result["measure"], result["zero_stage"]) == ("success", 2)
    assert result["improvement"] > 0
    said = demo.statuses(job)
    assert (said[0].status, said[-1].status) == ("queued", "completed")
    first_step = next(one.timestamp for one in said if one.progress and one.progress.current_step)
    crossed = demo.query(SCORED, through=row["watermark"])[0]["at"]
    record_property("seconds from the threshold to the first step", round((first_step - crossed).total_seconds()))
    url = said[-1].artifacts.final_checkpoint
    above, prefix = url.split(job)
    keys = PublicKeys.parse(demo.settings.checkpoint_public_keys or "")
    manifest = download_checkpoint(open_objects(above), f"{job}{prefix}", tmp_path / "checkpoint", keys)
    assert {"model.safetensors", "MODEL_CARD.md", "curves.png", "training_plan.json"} <= manifest.files.keys()
    [row] = demo.query("SELECT * FROM model_checkpoints FINAL WHERE job_id = {job:String}", job=job)
    assert (row["checkpoint_path"], row["is_best"], row["shadow"]) == (url, True, False)


def test_the_checkpoint_is_validated_and_comes_into_service_step_by_step(demo: TrainingStack, job: str) -> None:
    released = Releases(demo)
    [report] = demo.query("SELECT * FROM validation_reports FINAL WHERE job_id = {job:String}", job=job)
    assert report["decision"] in ("deploy", "ask_a_person"), report["reasons"]
    audit = demo.query(
        "SELECT event, state FROM deployment_audit FINAL WHERE model_id = 'agent-zero-rl-v1' ORDER BY at"
    )
    shares = [json.loads(row["state"])["weights"].get("agent-zero-rl-v1", 0.0) for row in audit]
    assert [share for share in shares if share][:3] == [0.25, 0.5, 1.0], "by the steps of a canary"
    assert released.events()[0] == ("deployed", "agent-zero-rl-v1")
    assert ("promoted", "agent-zero-rl-v1") in released.events()
    assert released.ask_many(20) == {"agent-zero-rl-v1": 20}
    explained = run_command(demo.stack.home, "explain", released.ask()["id"])
    assert explained.returncode == 0, explained.stderr
    assert f"{job}.r1" in explained.stdout, "from the answer to the dataset behind its model"


def test_the_model_in_service_is_better_than_the_base_on_what_nobody_learns_from(
    figures: dict[str, Any], record_property: Callable[[str, object], None]
) -> None:
    base, [cycle] = figures["base"], figures["cycles"]
    rates = [one["successes"] / one["attempts"] for one in (base, cycle["measured"])]
    assert rates[1] >= rates[0] + DemoProfile().least_gain
    record_property("turns that a solved task costs less", round(figures["time_saved"], 3))
    assert figures["time_saved"] > 0


def test_a_sabotaged_model_is_taken_back_and_never_raised_again(demo: TrainingStack, figures: dict[str, Any]) -> None:
    released, bad = Releases(demo), figures["taken_back"]["model"]
    assert bad in released.state().retired
    assert ("rolled_back", bad) in released.events()
    assert figures["taken_back"]["carried_by"] in ("feedback", "reward"), "it answers without an error"
    refused = run_command(demo.stack.home, "deployment", "promote", bad)
    assert refused.returncode == 1
    verified = run_command(demo.stack.home, "deployment", "verify-audit")
    assert verified.returncode == 0, verified.stdout


def test_the_report_shows_the_curve_the_rewards_and_the_rollouts(demo: TrainingStack) -> None:
    page = (demo.stack.home.parent / "report.html").read_text()
    for heading in ("What each model solves", "What its attempts earned", "Who served what share", "A sabotaged model"):
        assert heading in page
    assert page.count("<svg") == 3
    assert "http" not in page.replace("http-equiv", ""), "nothing comes from elsewhere"


def test_what_a_careless_agent_wrote_is_told_redacted(demo: TrainingStack) -> None:
    told = "\n".join(demo.stack.lines)
    assert "The warehouse has:" in told
    assert "[REDACTED:" in told
    assert "dead letter" in told
