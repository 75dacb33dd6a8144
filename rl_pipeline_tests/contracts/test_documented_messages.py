"""Every message that the specification shows or describes, accepted or refused as its resolutions say."""

from typing import Any

import pytest

from rl_pipeline.contracts import (
    ContractError,
    Feedback,
    ModelDeployed,
    Reward,
    TrainingRequest,
    Trajectory,
    parse_message,
    wrap_parts,
)
from rl_pipeline_tests.contracts.documents import replaced, without
from rl_pipeline_tests.contracts.reading import (
    CANCEL,
    DEPLOYED,
    EXAMPLES,
    FEEDBACK,
    REQUEST,
    REWARD,
    STATUS,
    TRAJECTORY,
    read,
    refusal,
)

QUICK_REFERENCE_REQUEST = """{
  "training_job_id": "uuid",
  "timestamp": "2025-12-08T13:00:00Z",
  "requester": "rl-trainer-subordinate",
  "trigger_reason": "threshold_reached",
  "training_config": { ... }
}"""

MANUAL_REQUEST = """{
  "training_job_id": "manual-$(uuidgen)",
  "timestamp": "$(date -u +%Y-%m-%dT%H:%M:%SZ)",
  "requester": "admin-manual",
  "trigger_reason": "manual",
  "training_config": {
    "algorithm": "ppo",
    "base_model": "qwen2.5-32b-instruct",
    "dataset": {
      "source": "nats_stream",
      "stream_name": "RL_TRAJECTORIES",
      "sample_size": 5000
    },
    "hyperparameters": {
      "learning_rate": 1e-5,
      "batch_size": 32,
      "epochs": 3
    }
  }
}
"""


def test_the_placeholder_of_the_quick_reference_is_no_json() -> None:
    with pytest.raises(ContractError) as caught:
        parse_message(REQUEST, QUICK_REFERENCE_REQUEST.encode())

    assert (caught.value.limit, caught.value.path) == ("not_json", "training_config")


def test_a_request_that_leaves_everything_to_the_pipeline_gets_the_specified_defaults() -> None:
    request = parse_message(REQUEST, QUICK_REFERENCE_REQUEST.replace("{ ... }", "{}").encode())
    assert isinstance(request, TrainingRequest)
    config = request.training_config

    assert (config.algorithm, config.base_model) == (None, None)
    assert (config.dataset.filter.min_reward, config.dataset.filter.max_trajectory_length) == (0.5, 50)
    assert (config.dataset.filter.last_days, config.dataset.filter.domain_shares) == (30, None)
    assert config.hyperparameters.model_dump() == {
        "learning_rate": 1e-5,
        "batch_size": 32,
        "epochs": 3,
        "clip_epsilon": 0.2,
        "gamma": 0.99,
        "gae_lambda": 0.95,
    }
    assert (config.compute.gpu_count, config.compute.gpu_type, config.compute.mixed_precision) == (2, "a100", "bf16")
    assert (config.checkpointing.save_interval, config.checkpointing.max_checkpoints) == (1000, 5)
    assert request.evaluation.holdout_size == 0.1
    assert request.evaluation.benchmark_tasks == [
        "code_generation",
        "data_analysis",
        "research_synthesis",
        "tool_usage",
    ]
    assert request.priority == "normal"


@pytest.mark.parametrize(
    "uuidgen", ["5b0c6d1e-7f8a-4b9c-8d0e-1f2a3b4c5d6e", "5B0C6D1E-7F8A-4B9C-8D0E-1F2A3B4C5D6E"], ids=["linux", "macos"]
)
def test_the_manual_request_of_the_quick_reference_is_accepted(uuidgen: str) -> None:
    text = MANUAL_REQUEST.replace("$(uuidgen)", uuidgen)
    text = text.replace("$(date -u +%Y-%m-%dT%H:%M:%SZ)", "2025-12-08T13:00:00Z")

    request = parse_message(REQUEST, text.encode())

    assert isinstance(request, TrainingRequest)
    assert request.training_job_id == f"manual-{uuidgen}"
    assert request.training_config.dataset.sample_size == 5000
    assert request.training_config.hyperparameters.learning_rate == 1e-5
    assert request.training_config.hyperparameters.gae_lambda == 0.95


@pytest.mark.parametrize("job", ["../../etc", "a/b", "", "-rf", ".", "a b", "a" * 129, "job\n", "ключ", "%2e%2e"])
@pytest.mark.parametrize("subject", [REQUEST, STATUS, CANCEL, DEPLOYED])
def test_a_job_id_that_could_not_name_a_directory_is_refused(subject: str, job: str) -> None:
    assert refusal(subject, {**EXAMPLES[subject], "training_job_id": job}) == ("pattern", "training_job_id", "string")


def test_the_reward_of_the_first_scenario_is_accepted_with_its_true_sum() -> None:
    reward = read(REWARD, EXAMPLES[REWARD])

    assert isinstance(reward, Reward)
    components = reward.reward_components.by_name()
    assert {name: component.score for name, component in components.items()} == {
        "task_completion": 1.0,
        "efficiency": 0.85,
        "code_quality": 0.9,
        "user_feedback": 0.5,
    }
    weighted = sum(component.score * component.weight for component in components.values())
    assert reward.total_reward == pytest.approx(weighted)


def test_a_reward_may_have_components_of_its_own() -> None:
    voting = {"score": -0.5, "weight": 0.1, "source": "automated"}

    reward = read(REWARD, replaced(EXAMPLES[REWARD], ("reward_components", "voting"), voting))

    assert reward.reward_components.by_name()["voting"].score == -0.5
    assert refusal(REWARD, replaced(EXAMPLES[REWARD], ("reward_components", "voting"), {**voting, "weight": 2})) == (
        "maximum",
        "reward_components.*.weight",
        "integer",
    )


def test_the_training_request_of_the_second_scenario_is_accepted() -> None:
    shares = {"coding": 0.4, "research": 0.3, "general": 0.3}
    request = {
        "training_job_id": "47",
        "timestamp": "2025-12-08T02:00:00Z",
        "requester": "rl-trainer-subordinate",
        "trigger_reason": "threshold_reached",
        "training_config": {
            "algorithm": "ppo",
            "dataset": {
                "source": "clickhouse",
                "sample_size": 10_000,
                "filter": {"min_reward": 0.5, "last_days": 30, "domain_shares": shares},
            },
            "hyperparameters": {"learning_rate": 1e-5, "batch_size": 32, "epochs": 3},
            "compute": {"gpu_count": 2, "gpu_type": "a100"},
        },
    }

    assert read(REQUEST, request).training_config.dataset.filter.domain_shares == shares


def test_the_deployment_of_the_third_scenario_is_accepted() -> None:
    deployed = read(DEPLOYED, EXAMPLES[DEPLOYED])

    assert isinstance(deployed, ModelDeployed)
    assert deployed.metadata.event == "deployed"
    assert deployed.model_info.model_id == "agent-zero-rl-v2.4"
    assert [step.percentage for step in deployed.deployment_config.ramp_schedule or []] == [10, 25, 50, 100]


def test_the_rollback_of_the_fourth_scenario_says_why_in_its_metadata() -> None:
    incident = {
        "event": "rolled_back",
        "reason": "high_error_rate",
        "previous_model": "agent-zero-rl-v2.3",
        "error_rate": 0.08,
        "checks": 3,
    }

    deployed = read(DEPLOYED, {**EXAMPLES[DEPLOYED], "metadata": incident})

    assert (deployed.metadata.event, deployed.metadata.reason) == ("rolled_back", "high_error_rate")
    assert deployed.metadata.model_extra == {"error_rate": 0.08, "checks": 3}


def test_a_rollback_without_its_reason_or_with_the_event_at_the_top_is_refused() -> None:
    without_reason = {**EXAMPLES[DEPLOYED], "metadata": {"event": "rolled_back"}}

    assert refusal(DEPLOYED, without_reason)[:2] == ("reason_of_rollback", "metadata")
    assert refusal(DEPLOYED, {**EXAMPLES[DEPLOYED], "event": "rolled_back"})[:2] == ("unknown_field", "event")


def test_a_deployment_without_an_event_is_a_deployment() -> None:
    assert read(DEPLOYED, without(EXAMPLES[DEPLOYED], ("metadata",))).metadata.event == "deployed"


def test_an_observation_has_no_array_unless_it_is_wrapped() -> None:
    place = ("turns", 0, "observation", "content")
    parts = [{"type": "text", "text": "3 passed"}, {"type": "image", "id": 7}]

    assert refusal(TRAJECTORY, replaced(EXAMPLES[TRAJECTORY], place, parts)) == (
        "type",
        "turns[0].observation.content",
        "array",
    )
    wrapped = read(TRAJECTORY, replaced(EXAMPLES[TRAJECTORY], place, wrap_parts(parts)))
    assert wrapped.turns[0].observation.content == {"parts": parts}


@pytest.mark.parametrize(
    ("content", "wrapped"),
    [("text", "text"), ({"a": 1}, {"a": 1}), ([1], {"parts": [1]}), (5, {"parts": [5]}), (None, {"parts": [None]})],
)
def test_content_is_wrapped_only_where_it_must_be(content: Any, wrapped: Any) -> None:
    assert wrap_parts(content) == wrapped


def test_the_inputs_of_the_rewards_have_their_places_in_a_trajectory() -> None:
    task = {
        "task_type": "implement_function",
        "task_status": "partial",
        "completion_percentage": 60,
        "subtasks": [{"subtask_id": "a", "status": "failed"}],
        "group_id": "g",
        "user_id": "u",
        "opt_out": False,
        "invented_elsewhere": {"kept": [1, None]},
    }
    metadata = {
        "model": "m",
        "model_version": "v2.3",
        "linter_results": {"score": 8.5},
        "test_results": {"total": 4, "passed": 3},
        "security_results": {"critical_issues": 1},
        "feedback": [{"kind": "stars", "rating": 4}, {"kind": "abandoned"}],
        "parent_trajectory_id": EXAMPLES[TRAJECTORY]["trajectory_id"],
        "opt_out": True,
    }
    turn = {**EXAMPLES[TRAJECTORY]["turns"][0], "agent_id": "subordinate-researcher-1"}
    turn["sampling"] = {"completion_token_ids": [1, 2], "logprobs": [-0.5, -1], "temperature": 1}

    trajectory = read(TRAJECTORY, {**EXAMPLES[TRAJECTORY], "turns": [turn], "task_context": task, "metadata": metadata})

    assert isinstance(trajectory, Trajectory)
    assert trajectory.task_context.completion_percentage == 60
    assert trajectory.task_context.model_extra == {"invented_elsewhere": {"kept": [1, None]}}
    assert trajectory.metadata.test_results is not None
    assert trajectory.metadata.test_results.passed == 3
    assert trajectory.turns[0].agent_id == "subordinate-researcher-1"
    assert trajectory.turns[0].sampling is not None
    assert trajectory.turns[0].sampling.model_extra == {"temperature": 1}
    assert trajectory.opted_out is True


def test_feedback_names_its_trajectory_and_has_the_value_of_its_kind() -> None:
    given = {
        "feedback_id": "f-1",
        "trajectory_id": EXAMPLES[TRAJECTORY]["trajectory_id"],
        "timestamp": "2025-12-08T12:07:00Z",
    }

    for kind in ("thumbs_up", "thumbs_down", "correction", "abandoned"):
        assert isinstance(read(FEEDBACK, {**given, "kind": kind}), Feedback)
    assert read(FEEDBACK, {**given, "kind": "stars", "rating": 5}).rating == 5
    assert read(FEEDBACK, {**given, "kind": "comment", "text": "too slow"}).text == "too slow"
    assert refusal(FEEDBACK, {**given, "kind": "stars"})[0] == "rating_of_stars"
    assert refusal(FEEDBACK, {**given, "kind": "thumbs_up", "rating": 5})[0] == "rating_of_stars"
    assert refusal(FEEDBACK, {**given, "kind": "stars", "rating": 6})[:2] == ("maximum", "rating")
    assert refusal(FEEDBACK, {**given, "kind": "stars", "rating": 0})[:2] == ("minimum", "rating")
    assert refusal(FEEDBACK, {**given, "kind": "comment"})[0] == "text_of_comment"
    assert refusal(FEEDBACK, {**given, "kind": "shrug"})[:2] == ("enum", "kind")
    assert refusal(FEEDBACK, without({**given, "kind": "abandoned"}, ("trajectory_id",)))[0] == "missing"


@pytest.mark.parametrize("code", ["OOM", "CONVERGENCE", "DATA", "INFRA", "TIMEOUT", "UNKNOWN"])
def test_a_failed_job_says_with_which_code(code: str) -> None:
    failed = {**EXAMPLES[STATUS], "status": "failed", "error": {"code": code, "message": "m", "traceback": "t"}}

    assert read(STATUS, failed).error.code == code
    assert refusal(STATUS, replaced(failed, ("error", "code"), "BUSY"))[:2] == ("enum", "error.code")


def test_a_status_carries_progress_metrics_results_artifacts_and_usage() -> None:
    status = {
        **EXAMPLES[STATUS],
        "status": "completed",
        "evaluation_results": {"holdout_reward": 0.83, "benchmark_scores": {"code_generation": 0.88}},
        "artifacts": {
            "final_checkpoint": "s3://c",
            "tensorboard_logs": "s3://l",
            "training_curves": "s3://p",
            "model_card": "s3://m",
        },
        "resource_usage": {
            "gpu_hours": 8,
            "cost_usd": 50.0,
            "peak_memory_gb": 78.4,
            "total_training_time_seconds": 3600,
        },
    }

    read_back = read(STATUS, status)

    assert read_back.progress.percent_complete == 66.67
    assert read_back.metrics.current.kl_divergence == 0.015
    assert read_back.metrics.best.step == 3000
    assert read_back.artifacts.model_card == "s3://m"
    assert read_back.resource_usage.gpu_hours == 8
