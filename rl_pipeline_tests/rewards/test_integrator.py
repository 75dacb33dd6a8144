"""A finished task becomes a reward for each agent, and is stored once."""

import asyncio
import math
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import pytest

from rl_pipeline.rewards.formulas import Usual
from rl_pipeline.rewards.integrator import (
    InvalidTaskResult,
    RewardSignal,
    RewardSignalIntegrator,
    measure_steps,
)

NOW = datetime(2025, 12, 8, 12, 6, tzinfo=UTC)
WEIGHTS = {"task_completion": 0.40, "efficiency": 0.20, "code_quality": 0.15, "user_feedback": 0.25}


class KeptSignals:
    """The port in memory: a row for each id."""

    def __init__(self) -> None:
        self.rows: dict[str, RewardSignal] = {}

    async def store(self, signals: Sequence[RewardSignal]) -> None:
        self.rows |= {signal.id: signal for signal in signals}


def call(agent: str, tool: str, output: str | None, *, success: bool = True) -> dict[str, Any]:
    action = {"type": "tool_call", "tool_name": tool, "tool_args": {"q": 1}}
    return {"agent_id": agent, "action": action, "result": {"success": success, "output": output}}


def response(agent: str) -> dict[str, Any]:
    return {"agent_id": agent, "action": {"type": "response"}, "result": {"success": True, "output": "Done."}}


TEAM = [
    call("researcher", "search", "3 pages"),
    call("developer", "run", None, success=False),
    call("developer", "search", "3 pages"),
    call("developer", "test", "12 passed"),
    response("main"),
]
"""Three steps: the search, which two agents achieved, the tests and the response. One of three calls failed."""

RESULT: dict[str, Any] = {
    "task_type": "implement_function",
    "output": "Done.",
    "agents": ["main", "researcher", "developer"],
    "steps": TEAM,
    "metadata": {"task_status": "success", "linter_results": {"score": 9.0}},
}


def process(
    result: dict[str, Any], weights: dict[str, float] = WEIGHTS, **options: Any
) -> tuple[list[RewardSignal], KeptSignals]:
    kept = KeptSignals()
    integrator = RewardSignalIntegrator(kept, weights, lambda: NOW, **options)
    return asyncio.run(integrator.process_task_completion("task-81", result)), kept


def raw_of(result: dict[str, Any], weights: dict[str, float] = WEIGHTS, **options: Any) -> float:
    return process(result, weights, **options)[0][0].raw_reward


def test_a_finished_task_is_scored_shaped_divided_and_stored_for_each_agent() -> None:
    """Raw: (0.40 · (1 - 0.1/3) + 0.15 · 0.9 + 0.25 · 0.5) / 0.80. Efficiency has nothing to compare with. Credit: the
    search is shared by two, the tests and the response are one's own. Shaping: 1/4
    for the first step, 1/12 for the second."""
    raw = (0.40 * (1 - 0.1 / 3) + 0.15 * 0.9 + 0.25 * 0.5) / 0.80
    signals, kept = process(RESULT)
    assert list(kept.rows.values()) == signals
    by_agent = {signal.agent_id: signal for signal in signals}
    assert list(by_agent) == RESULT["agents"]
    credit = {agent: signal.credit_assigned for agent, signal in by_agent.items()}
    assert credit == pytest.approx({"main": raw / 3, "researcher": raw / 6, "developer": raw / 2})
    shaped = {agent: signal.shaped_reward for agent, signal in by_agent.items()}
    assert shaped == pytest.approx({"main": raw - 1 / 3, "researcher": 1 / 4, "developer": 1 / 12})
    main = by_agent["main"]
    assert (main.task_id, main.raw_reward, main.created_at) == ("task-81", pytest.approx(raw), NOW)
    assert main.metadata["task_type"] == "implement_function"
    assert main.metadata["scores"] == pytest.approx(
        {"task_completion": 1 - 0.1 / 3, "code_quality": 0.9, "user_feedback": 0.5}
    )
    assert by_agent["developer"].metadata["turn_rewards"] == pytest.approx([0.0, 0.0, 1 / 12])


def test_credits_and_undiscounted_shaped_rewards_add_up_to_the_raw_one() -> None:
    for result in (RESULT, RESULT | {"steps": []}, RESULT | {"steps": [call("developer", "run", None, success=False)]}):
        signals, _ = process(result)
        for earned in ([s.credit_assigned for s in signals], [s.shaped_reward for s in signals]):
            assert math.fsum(earned) == pytest.approx(signals[0].raw_reward, abs=1e-12)


def test_discounting_reaches_the_shaped_rewards() -> None:
    signals, _ = process(RESULT, gamma=0.9)
    assert signals[1].shaped_reward == pytest.approx(0.9 / 4)
    assert math.fsum(s.credit_assigned for s in signals) == pytest.approx(signals[0].raw_reward)


def test_the_same_report_twice_is_one_row_for_each_agent_and_another_attempt_is_another() -> None:
    kept = KeptSignals()
    integrator = RewardSignalIntegrator(kept, WEIGHTS, lambda: NOW)
    for result in (RESULT, dict(reversed(RESULT.items()))):
        asyncio.run(integrator.process_task_completion("task-81", result))
    assert len(kept.rows) == 3
    asyncio.run(integrator.process_task_completion("task-81", RESULT | {"output": "Done, at the second attempt."}))
    assert len(kept.rows) == 6
    asyncio.run(integrator.process_task_completion("task-82", RESULT))
    assert len(kept.rows) == 9


def test_the_usual_of_the_task_type_is_what_efficiency_compares_with() -> None:
    only = {"efficiency": 1.0}
    usual = {"implement_function": Usual(turns=6.0, turns_std=1.0), "other": Usual(turns=4.0, turns_std=1.0)}
    assert raw_of(RESULT, only, usual=usual) == pytest.approx(0.75 * (1 - 1 / 4))
    assert raw_of(RESULT | {"task_type": "other"}, only, usual=usual) == pytest.approx(0.25 * (1 - 1 / 4))


def test_without_a_status_the_expected_output_says_how_far_the_task_was_done() -> None:
    only = {"task_completion": 1.0}
    asked = {"task_type": "sum", "agents": ["main"], "metadata": {}}
    assert raw_of(asked | {"output": "the sum is 42", "expected": "the sum is 42"}, only) == pytest.approx(1.0)
    assert raw_of(asked | {"output": "no idea", "expected": "the sum is 42"}, only) == 0.0
    assert 0 < raw_of(asked | {"output": "the sum is 41", "expected": "the sum is 42"}, only) < 1
    assert raw_of(asked | {"output": {"b": 1, "a": 2}, "expected": {"a": 2, "b": 1}}, only) == 1.0
    known = asked | {"output": "no idea", "expected": "42", "metadata": {"task_status": "success"}}
    assert raw_of(known, only) == 1.0


def test_subtasks_and_percentage_give_credit_for_parts() -> None:
    only = {"task_completion": 1.0}
    parts = {"subtasks": [{"status": "success"}, {"status": "partial"}, {"status": "failed"}]}
    asked = RESULT | {"steps": []}
    assert raw_of(asked | {"metadata": parts}, only) == pytest.approx(0.5)
    assert raw_of(asked | {"metadata": {"task_status": "partial", "completion_percentage": 60}}, only) == 0.8


def test_feedback_code_and_answer_are_scored_by_the_formulas() -> None:
    stars = {"feedback": [{"kind": "stars", "rating": 4}]}
    assert raw_of(RESULT | {"metadata": stars}, {"user_feedback": 1.0}) == pytest.approx(0.8)
    assert raw_of(RESULT | {"metadata": {"task_status": "abandoned"}}, {"user_feedback": 1.0}) == 0.0
    code = {"test_results": {"passed": 3, "total": 4}, "security_results": {"critical_issues": 1}}
    assert raw_of(RESULT | {"metadata": code}, {"code_quality": 1.0}) == pytest.approx((0.75 + 0.5) / 2)
    assert 0 < raw_of(RESULT | {"expected": "Done."}, {"answer_quality": 1.0}) < 1


@pytest.mark.parametrize(
    ("term", "odd"),
    [
        ("task_completion", {"completion_percentage": "60"}),
        ("task_completion", {"completion_percentage": 6_000}),
        ("task_completion", {"subtasks": "success"}),
        ("task_completion", {"subtasks": None}),
        ("efficiency", {"seconds": "9", "total_tokens": [9]}),
        ("efficiency", {"seconds": -1, "total_tokens": -1}),
        ("efficiency", {"seconds": 10**400, "total_tokens": True}),
        ("user_feedback", {"feedback": [{"kind": "stars", "rating": 50}]}),
        ("user_feedback", {"feedback": [{"kind": ["stars"], "rating": "5", "user_id": {}}, None, "thumbs_up"]}),
        ("user_feedback", {"feedback": 5}),
    ],
)
def test_what_is_of_another_type_or_out_of_range_is_read_as_absent(term: str, odd: dict[str, Any]) -> None:
    usual = {"implement_function": Usual(6.0, 1.0, 2.0, 1.0, 5.0, 1.0)}
    plain = {"task_status": "partial"}
    told, untold = (RESULT | {"metadata": metadata} for metadata in (plain | odd, plain))
    assert raw_of(told, {term: 1.0}, usual=usual) == raw_of(untold, {term: 1.0}, usual=usual)


@pytest.mark.parametrize(
    "odd",
    [
        {"linter_results": {"score": 90}},
        {"linter_results": [9], "security_results": "none", "test_results": {"total": "4"}},
        {"test_results": {"passed": "3", "total": 4}, "security_results": {"critical_issues": -4}},
        {"test_results": {"total": 4}, "linter_results": {"score": "9"}},
    ],
)
def test_findings_that_cannot_be_used_give_no_reward(odd: dict[str, Any]) -> None:
    with pytest.raises(InvalidTaskResult, match="Nothing"):
        process(RESULT | {"metadata": odd}, {"code_quality": 1.0})


def test_a_reward_is_never_above_1() -> None:
    passed = {"test_results": {"passed": 40, "total": 4}}
    assert raw_of(RESULT | {"metadata": passed}, {"code_quality": 1.0}) == 1.0


def test_the_only_agent_need_not_be_named() -> None:
    nameless = {"action": {"type": "response"}, "result": {"success": True}}
    assert measure_steps([nameless], ["a"]).turn_agents == ["a"]
    with pytest.raises(InvalidTaskResult, match="Step 1"):
        measure_steps([nameless], ["a", "b"])


@pytest.mark.parametrize(
    ("result", "complaint"),
    [
        pytest.param({key: RESULT[key] for key in RESULT if key != "task_type"}, "no task_type", id="no task type"),
        pytest.param(RESULT | {"agents": []}, "no agents", id="nobody took part"),
        pytest.param(RESULT | {"agents": ["main"]}, "Step 1", id="a step of a stranger"),
        pytest.param(RESULT | {"agents": "main"}, "no agents", id="agents as a text"),
        pytest.param(RESULT | {"agents": ["main", ["a"]]}, "no agents", id="an agent that is a list"),
        pytest.param(RESULT | {"agents": ["main", "main"], "steps": []}, "twice", id="an agent twice"),
        pytest.param(RESULT | {"task_type": ["a"]}, "no task_type", id="a task type that is a list"),
        pytest.param(RESULT | {"metadata": None}, "no metadata", id="no metadata"),
        pytest.param(RESULT | {"metadata": ["success"]}, "no metadata", id="metadata that is a list"),
        pytest.param(RESULT | {"steps": 7}, "steps", id="steps that are a number"),
        pytest.param(RESULT | {"output": {1: 2, "a": 3}}, "no JSON", id="an output that cannot be compared"),
    ],
)
def test_a_report_that_gives_no_reward_is_refused_and_nothing_is_stored(result: dict[str, Any], complaint: str) -> None:
    kept = KeptSignals()
    integrator = RewardSignalIntegrator(kept, WEIGHTS, lambda: NOW)
    with pytest.raises(InvalidTaskResult, match=complaint):
        asyncio.run(integrator.process_task_completion("task-81", result))
    assert not kept.rows


def test_a_result_that_no_weighted_term_applies_to_is_refused() -> None:
    with pytest.raises(InvalidTaskResult, match="task_status"):
        process(RESULT | {"metadata": {}}, {"code_quality": 1.0})


def test_a_weight_for_what_a_finished_task_cannot_be_scored_by_is_refused() -> None:
    with pytest.raises(InvalidTaskResult, match="coordination"):
        RewardSignalIntegrator(KeptSignals(), {"coordination": 1.0}, lambda: NOW)
