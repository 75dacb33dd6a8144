"""The limits of the contract one by one: required fields, words, numbers, times."""

from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from rl_pipeline.contracts import TrainingStatus
from rl_pipeline.contracts.training_status import EvaluationResults
from rl_pipeline_tests.contracts.documents import replaced, without
from rl_pipeline_tests.contracts.reading import (
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

REQUIRED = [
    (TRAJECTORY, place)
    for place in [
        ("trajectory_id",),
        ("session_id",),
        ("agent_id",),
        ("start_timestamp",),
        ("end_timestamp",),
        ("turns",),
        ("task_context",),
        ("metadata",),
        ("metadata", "model"),
        ("turns", 0, "turn_id"),
        ("turns", 0, "timestamp"),
        ("turns", 0, "observation"),
        ("turns", 0, "observation", "type"),
        ("turns", 0, "observation", "content"),
        ("turns", 0, "action"),
        ("turns", 0, "action", "type"),
        ("turns", 0, "result"),
        ("turns", 0, "result", "success"),
    ]
] + [
    (subject, (name,))
    for subject, names in {
        REWARD: "reward_id trajectory_id session_id timestamp reward_components total_reward reward_type metadata",
        REQUEST: "training_job_id timestamp requester trigger_reason training_config",
        STATUS: "training_job_id timestamp status",
        DEPLOYED: "deployment_id training_job_id timestamp model_info deployment_config validation_results",
        FEEDBACK: "feedback_id trajectory_id timestamp kind",
    }.items()
    for name in names.split()
]


@pytest.mark.parametrize(("subject", "place"), REQUIRED)
def test_a_required_field_is_required(subject: str, place: tuple[str | int, ...]) -> None:
    limit, path, value_type = refusal(subject, without(EXAMPLES[subject], place))

    assert (limit, value_type) == ("missing", "absent")
    assert path.endswith(str(place[-1]))


ENUMS: list[tuple[str, tuple[str | int, ...], list[Any]]] = [
    (TRAJECTORY, ("subordinate_profile",), ["researcher", "developer", "hacker", "rl-trainer", None]),
    (
        TRAJECTORY,
        ("turns", 0, "observation", "type"),
        ["user_message", "tool_result", "subordinate_response", "system_message"],
    ),
    (TRAJECTORY, ("turns", 0, "action", "type"), ["tool_call", "subordinate_call", "response", "memory_update"]),
    (
        TRAJECTORY,
        ("task_context", "domain"),
        ["coding", "research", "data_analysis", "general", "debugging", "writing"],
    ),
    (REWARD, ("reward_type",), ["dense", "sparse"]),
    (REWARD, ("metadata", "evaluation_method"), ["automated", "human", "hybrid", "model-based"]),
    (
        REWARD,
        ("reward_components", "efficiency", "source"),
        ["automated", "human", "linter", "test_results", "benchmark"],
    ),
    (REWARD, ("normalization", "method"), ["z-score", "min-max", "none"]),
    (REQUEST, ("trigger_reason",), ["scheduled", "threshold_reached", "manual", "performance_degradation"]),
    (REQUEST, ("training_config", "algorithm"), ["ppo", "dpo", "rloo", "grpo", "reinforce"]),
    (REQUEST, ("training_config", "dataset", "source"), ["nats_stream", "clickhouse", "s3", "local"]),
    (REQUEST, ("priority",), ["low", "normal", "high", "urgent"]),
    (STATUS, ("status",), ["queued", "running", "completed", "failed", "cancelled"]),
    (DEPLOYED, ("deployment_config", "serving_platform"), ["tensorzero", "vllm", "tgi", "ollama"]),
    (DEPLOYED, ("deployment_config", "rollout_strategy"), ["canary", "blue_green", "immediate"]),
    (DEPLOYED, ("metadata", "approval_status"), ["automated", "manual_approved", "emergency_override"]),
    (DEPLOYED, ("metadata", "event"), ["deployed", "ramped", "promoted"]),
]


@pytest.mark.parametrize(("subject", "place", "words"), ENUMS)
def test_an_enumeration_has_the_words_of_the_contract_and_no_others(
    subject: str, place: tuple[str | int, ...], words: list[Any]
) -> None:
    for word in words:
        assert read(subject, replaced(EXAMPLES[subject], place, word))
    for other in ("other", "", str(words[0]).upper()):
        assert refusal(subject, replaced(EXAMPLES[subject], place, other))[0] == "enum"


@pytest.mark.parametrize("word", ["fp32", "fp16", "bf16"])
def test_a_request_names_its_precision_in_the_words_of_the_contract(word: str) -> None:
    place = ("training_config", "compute")
    assert read(REQUEST, replaced(EXAMPLES[REQUEST], place, {"mixed_precision": word}))
    assert refusal(REQUEST, replaced(EXAMPLES[REQUEST], place, {"mixed_precision": word.upper()}))[0] == "enum"


@pytest.mark.parametrize("word", ["reward", "task_completion", "efficiency", "loss", "kl_divergence"])
def test_a_request_names_its_metrics_in_the_words_of_the_contract(word: str) -> None:
    assert read(REQUEST, replaced(EXAMPLES[REQUEST], ("evaluation",), {"metrics": [word]}))
    assert refusal(REQUEST, replaced(EXAMPLES[REQUEST], ("evaluation",), {"metrics": [word.upper()]}))[0] == "enum"


WRONG: list[tuple[str, tuple[str | int, ...], Any, tuple[str, str]]] = [
    (TRAJECTORY, ("trajectory_id",), "not-a-uuid", ("pattern", "string")),
    (TRAJECTORY, ("turns",), [], ("min_items", "array")),
    (TRAJECTORY, ("turns", 0, "turn_id"), 0, ("minimum", "integer")),
    (TRAJECTORY, ("turns", 0, "turn_id"), True, ("type", "boolean")),
    (TRAJECTORY, ("turns", 0, "turn_id"), "1", ("type", "string")),
    (TRAJECTORY, ("turns", 0, "turn_id"), 1.5, ("type", "number")),
    (TRAJECTORY, ("turns", 0, "result", "success"), 1, ("type", "integer")),
    (TRAJECTORY, ("turns", 0, "result", "success"), "true", ("type", "string")),
    (TRAJECTORY, ("turns", 0, "result", "execution_time_ms"), -1, ("minimum", "integer")),
    (TRAJECTORY, ("turns", 0, "thought_process"), "one thought", ("type", "string")),
    (TRAJECTORY, ("turns", 0, "action", "tool_args"), [], ("type", "array")),
    (TRAJECTORY, ("metadata", "temperature"), 2.1, ("maximum", "number")),
    (TRAJECTORY, ("metadata", "temperature"), True, ("type", "boolean")),
    (TRAJECTORY, ("metadata", "temperature"), "0.7", ("type", "string")),
    (TRAJECTORY, ("metadata", "total_tokens"), -1, ("minimum", "integer")),
    (TRAJECTORY, ("metadata", "total_tokens"), 2**53, ("maximum", "integer")),
    (TRAJECTORY, ("metadata", "total_cost_usd"), -0.1, ("minimum", "number")),
    (TRAJECTORY, ("task_context", "complexity_score"), 1.1, ("maximum", "number")),
    (TRAJECTORY, ("end_timestamp",), "2025-12-08T11:59:59Z", ("end_before_start", "string")),
    (TRAJECTORY, ("end_timestamp",), "2025-12-08T12:05:30", ("timestamp", "string")),
    (TRAJECTORY, ("start_timestamp",), 1765195200, ("timestamp", "integer")),
    (TRAJECTORY, ("metadata", "test_results", "passed"), 13, ("passed_exceeds_total", "integer")),
    (TRAJECTORY, ("metadata", "opt_out"), "yes", ("type", "string")),
    (REWARD, ("total_reward",), "0.83", ("type", "string")),
    (REWARD, ("total_reward",), True, ("type", "boolean")),
    (REWARD, ("metadata", "confidence"), 1.01, ("maximum", "number")),
    (REWARD, ("reward_components", "efficiency", "weight"), -0.1, ("minimum", "number")),
    (REWARD, ("reward_components", "efficiency"), 0.5, ("type", "number")),
    (REQUEST, ("training_config", "hyperparameters", "learning_rate"), 0, ("exclusive_minimum", "integer")),
    (REQUEST, ("training_config", "hyperparameters", "learning_rate"), "1e-5", ("type", "string")),
    (REQUEST, ("training_config", "hyperparameters", "batch_size"), 0, ("minimum", "integer")),
    (REQUEST, ("training_config", "dataset", "sample_size"), True, ("type", "boolean")),
    (REQUEST, ("training_config",), None, ("type", "null")),
    (STATUS, ("progress", "percent_complete"), 100.1, ("maximum", "number")),
    (DEPLOYED, ("deployment_config", "traffic_percentage"), 101, ("maximum", "integer")),
    (DEPLOYED, ("deployment_config", "endpoint"), "no url", ("pattern", "string")),
    (DEPLOYED, ("deployment_config", "ramp_schedule", 1, "percentage"), -1, ("minimum", "integer")),
    (DEPLOYED, ("validation_results", "benchmark_passed"), None, ("type", "null")),
    (DEPLOYED, ("model_info", "model_id"), "../v2", ("pattern", "string")),
]


@pytest.mark.parametrize(("subject", "place", "value", "expected"), WRONG)
def test_a_wrong_value_is_refused_with_its_limit_place_and_type(
    subject: str, place: tuple[str | int, ...], value: Any, expected: tuple[str, str]
) -> None:
    limit, path, value_type = refusal(subject, replaced(EXAMPLES[subject], place, value))
    where = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in place).removeprefix(".")

    assert (limit, value_type) == expected
    assert path == where


def test_only_the_top_level_is_closed() -> None:
    for subject, example in EXAMPLES.items():
        assert refusal(subject, {**example, "further": 1})[:2] == ("unknown_field", "*")
    for place in [("metadata",), ("task_context",), ("turns", 0), ("turns", 0, "action"), ("turns", 0, "observation")]:
        assert read(TRAJECTORY, replaced(EXAMPLES[TRAJECTORY], (*place, "further"), {"any": [1]}))


def test_times_are_kept_in_utc() -> None:
    trajectory = read(TRAJECTORY, {**EXAMPLES[TRAJECTORY], "end_timestamp": "2025-12-08T14:05:30.25+02:00"})

    assert trajectory.end_timestamp.isoformat() == "2025-12-08T12:05:30.250000+00:00"


def test_a_message_made_in_code_has_zoned_times_and_finite_numbers() -> None:
    moment = datetime(2025, 12, 8, 13, tzinfo=timezone(timedelta(hours=1)))

    made = TrainingStatus(training_job_id="job-1", timestamp=moment, status="running")

    assert made.timestamp == moment
    assert made.timestamp.utcoffset() == timedelta(0)
    with pytest.raises(ValueError, match="zone"):
        TrainingStatus(training_job_id="job-1", timestamp=moment.replace(tzinfo=None), status="running")
    with pytest.raises(ValueError, match="finite"):
        EvaluationResults(holdout_reward=float("nan"))


def test_a_message_cannot_be_changed_once_it_is_read() -> None:
    with pytest.raises(ValueError, match="frozen"):
        read(TRAJECTORY, EXAMPLES[TRAJECTORY]).turns[0].turn_id = 5
