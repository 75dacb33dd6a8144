"""From one finished task to a reward for each agent that took part in it, at once and without a batch.

For programs that report a task when it ends instead of publishing its trajectory. The raw reward comes from the same
formulas as the batch terms, without normalisation: there is no window to compare with. As there, a value of another
type or out of its range is read as absent.
"""

import hashlib
import json
import math
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Protocol

from rl_pipeline.errors import PipelineError
from rl_pipeline.rewards import formulas
from rl_pipeline.rewards.credit import assign_credit, coverage_game
from rl_pipeline.rewards.document import (
    LARGEST_COUNT,
    JsonObject,
    as_count,
    as_list,
    as_number,
    as_object,
    as_text,
    turns_of,
)
from rl_pipeline.rewards.shaping import shaped_rewards
from rl_pipeline.rewards.steps import Calls, calls_made, count_calls, credits_of, steps_of

TERMS = ("task_completion", "efficiency", "code_quality", "user_feedback", "answer_quality")
"""What a report of a finished task can be scored by; each score lies between 0 and 1."""

_MOST_STARS = 5
_SIGNAL_IDS = uuid.uuid5(uuid.NAMESPACE_URL, "rl-pipeline/reward-signal")


class InvalidTaskResult(PipelineError):
    """A finished task was reported in a way that gives no reward."""


@dataclass(frozen=True, slots=True)
class RewardSignal:
    """What one agent earned by one finished task: a row of the reward history."""

    id: str
    """The same report of the same task has the same id, so that storing it twice keeps it once."""
    task_id: str
    agent_id: str
    raw_reward: float
    """What the task was worth, to all of them together."""
    shaped_reward: float
    """The shaped rewards of the agent's own steps; undiscounted, those of all agents add up to the raw reward."""
    credit_assigned: float
    """The agent's Shapley share of the raw reward."""
    metadata: Mapping[str, Any]
    created_at: datetime


class RewardSignals(Protocol):
    """Where reward signals are kept."""

    async def store(self, signals: Sequence[RewardSignal]) -> None:
        """Keep the signals of one task, all or none of them; a signal whose id is known already is kept once."""


@dataclass(frozen=True)
class RewardSignalIntegrator:
    """Scores finished tasks and stores what each agent earned.

    `weights` by the names in `TERMS`; `usual` is what tasks of a type usually take, which efficiency compares with.
    """

    signals: RewardSignals
    weights: Mapping[str, float]
    clock: Callable[[], datetime]
    usual: Mapping[str, formulas.Usual] = field(default_factory=dict)
    gamma: float = 1.0

    def __post_init__(self) -> None:
        if unknown := sorted(set(self.weights) - set(TERMS)):
            raise InvalidTaskResult(f"No finished task is scored by {', '.join(unknown)}: use {', '.join(TERMS)}.")

    async def process_task_completion(self, task_id: str, result: Mapping[str, Any]) -> list[RewardSignal]:
        """Score the task, shape the score by its steps, divide it among its agents, and store a signal for each.

        `result` has `task_type`, `output`, `agents` (ids) and `metadata` (of a trajectory, with `task_status`,
        `completion_percentage` and `subtasks` of its task), and may have `expected`, the output that was wanted, and
        `steps`, the turns as in a trajectory. Raises `InvalidTaskResult`.
        """
        _require_parts(task_id, result)
        taken = measure_steps(result.get("steps") or [], result["agents"])
        scores = self._scores(result, taken)
        weight = math.fsum(self.weights[name] for name in scores)
        if not weight:
            raise InvalidTaskResult(f"Nothing in the result of task {task_id} can be scored: add a task_status to it.")
        raw = math.fsum(self.weights[name] * score for name, score in scores.items()) / weight
        signals = self._signals(task_id, result, taken, scores, raw)
        await self.signals.store(signals)
        return signals

    def _scores(self, result: Mapping[str, Any], taken: "TakenSteps") -> dict[str, float]:
        """The score of every term that has a weight and applies."""
        usual = self.usual.get(result["task_type"], formulas.Usual())
        everything = {
            "task_completion": _task_completion(result, taken),
            "efficiency": _efficiency(result["metadata"], taken, usual),
            "code_quality": _code_quality(result["metadata"]),
            "user_feedback": _user_feedback(result["metadata"]),
            "answer_quality": _answer_quality(result),
        }
        applying = {name: score for name, score in everything.items() if score is not None and self.weights.get(name)}
        return {name: min(1.0, max(0.0, score)) for name, score in applying.items()}

    def _signals(
        self, task_id: str, result: Mapping[str, Any], taken: "TakenSteps", scores: Mapping[str, float], raw: float
    ) -> list[RewardSignal]:
        agents: Sequence[str] = result["agents"]
        earned = assign_credit(agents, coverage_game(raw, agents, taken.achievers, taken.turn_agents)).credits
        turn_rewards = shaped_rewards(taken.turn_potentials, raw, self.gamma)
        now = self.clock()
        report = _fingerprint(result)
        # Whose task it was: the store replaces it, and erases by it.
        user = as_text(as_object(result["metadata"]).get("user_id"))
        known = {"user_id": user} if user else {}
        signals = []
        for agent in agents:
            own = [reward for actor, reward in zip(taken.turn_agents, turn_rewards, strict=True) if actor == agent]
            signals.append(
                RewardSignal(
                    id=str(uuid.uuid5(_SIGNAL_IDS, f"{task_id}|{agent}|{report}")),
                    task_id=task_id,
                    agent_id=agent,
                    raw_reward=raw,
                    shaped_reward=math.fsum(own) if turn_rewards else earned[agent],
                    credit_assigned=earned[agent],
                    metadata={"task_type": result["task_type"], "scores": dict(scores), "turn_rewards": own, **known},
                    created_at=now,
                )
            )
        return signals


@dataclass(frozen=True, slots=True)
class TakenSteps:
    """What is known of the turns that a task took, as `steps.py` measures them in a trajectory."""

    calls: Calls
    achievers: list[list[str]]
    """For each step that was achieved, by whom."""
    turn_agents: list[str]
    turn_potentials: list[float]


def _require_parts(task_id: str, result: Mapping[str, Any]) -> None:
    """Raises `InvalidTaskResult` where a part without which there is no reward is missing or not what it should be."""
    agents = result.get("agents")
    named = isinstance(agents, list | tuple) and all(isinstance(agent, str) and agent for agent in agents)
    usable = {
        "task_type": isinstance(result.get("task_type"), str),
        "output": "output" in result,
        "agents": bool(agents) and named,
        "metadata": isinstance(result.get("metadata"), dict),
    }
    wanted = {"task_type": "a text", "output": "what came out", "agents": "a list of ids", "metadata": "an object"}
    for name, is_usable in usable.items():
        if not is_usable:
            raise InvalidTaskResult(f"The result of task {task_id} has no {name} of use: add {wanted[name]}.")
    if len(set(result["agents"])) < len(result["agents"]):
        raise InvalidTaskResult(f"The result of task {task_id} names an agent twice: name every agent once.")
    if not isinstance(result.get("steps") or [], list | tuple):
        raise InvalidTaskResult(f"The steps of task {task_id} are no list: add them as turns of a trajectory.")


def measure_steps(reported: Sequence[Mapping[str, Any]], agents: Sequence[str]) -> TakenSteps:
    """Measure the turns of a report.

    A turn that names no agent is that of the only one. Raises `InvalidTaskResult` where it is of none of `agents`.
    """
    turns = turns_of({"turns": list(reported), "agent_id": agents[0] if len(agents) == 1 else ""})
    for number, turn in enumerate(turns, start=1):
        if turn.agent not in agents:
            raise InvalidTaskResult(f"Step {number} is of none of the agents: add its agent_id to the result's agents.")
    made = calls_made(turns)
    achieved = steps_of(turns, made)
    credit = credits_of(turns, achieved)
    achievers = [step.agents for step in achieved]
    return TakenSteps(count_calls(made), achievers, credit.turn_agents, credit.turn_potentials)


def _task_completion(result: Mapping[str, Any], taken: TakenSteps) -> float | None:
    """How far the task was done, by its status or subtasks, else by how much of the expected output there is."""
    metadata = result["metadata"]
    percentage = as_number(metadata.get("completion_percentage"), 0, 100)
    subtasks = [as_object(subtask).get("status") for subtask in as_list(metadata.get("subtasks"))]
    score = formulas.outcome(
        as_text(metadata.get("task_status")),
        None if percentage is None else percentage / 100,
        subtasks=len(subtasks),
        subtasks_done=subtasks.count("success") + 0.5 * subtasks.count("partial"),
        failed_calls=taken.calls.failed_calls,
        distinct_calls=taken.calls.distinct_calls,
    )
    if score is None and (similarity := _similarity(result)) is not None:
        return similarity / 0.3
    return score


def _efficiency(metadata: JsonObject, taken: TakenSteps, usual: formulas.Usual) -> float | None:
    if not taken.turn_agents:
        return None
    seconds = as_number(metadata.get("seconds"), 0, LARGEST_COUNT) or 0.0
    calls, redundant = taken.calls.calls, taken.calls.redundant_calls
    return formulas.run_efficiency(
        *(len(taken.turn_agents), seconds, as_count(metadata.get("total_tokens")), usual),
        status=as_text(metadata.get("task_status")),
        calls=calls,
        redundant_calls=redundant,
    )


def _code_quality(metadata: JsonObject) -> float | None:
    """What was reported of the code; where nothing was, nobody says that there is code."""
    lint = as_number(as_object(metadata.get("linter_results")).get("score"), 0, 10)
    critical = as_count(as_object(metadata.get("security_results")).get("critical_issues"))
    tests = as_object(metadata.get("test_results"))
    passed, total = as_count(tests.get("passed")), as_count(tests.get("total"))
    pass_rate = min(1.0, passed / total) if passed is not None and total else None
    return formulas.code_quality(lint, pass_rate, critical, has_code=(lint, pass_rate, critical) != (None, None, None))


def _user_feedback(metadata: JsonObject) -> float:
    given = [as_object(opinion) for opinion in as_list(metadata.get("feedback"))]
    ratings = [as_count(opinion.get("rating")) or 0 for opinion in given]
    return formulas.user_feedback(
        [as_text(opinion.get("kind")) for opinion in given],
        [rating if rating <= _MOST_STARS else 0 for rating in ratings],
        [as_text(opinion.get("user_id")) for opinion in given],
        abandoned=metadata.get("task_status") == "abandoned",
    )


def _answer_quality(result: Mapping[str, Any]) -> float | None:
    if not isinstance(output := result["output"], str):
        return None
    structure, depth = formulas.answer_structure(output), formulas.answer_depth(output)
    return formulas.answer_quality(structure, depth, _similarity(result))


def _similarity(result: Mapping[str, Any]) -> float | None:
    """0..0.3, or None without an expected output. What is not text is compared as JSON."""
    output, expected = result["output"], result.get("expected")
    if expected is None:
        return None
    if isinstance(output, str) and isinstance(expected, str):
        return formulas.answer_similarity(output, expected)
    return 0.3 if _fingerprint(output) == _fingerprint(expected) else 0.0


def _fingerprint(value: object) -> str:
    """Equal for equal JSON, whatever the order of its keys."""
    try:
        text = json.dumps(value, sort_keys=True, separators=(",", ":"), default=str)
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidTaskResult("The result of the task is no JSON: leave out what nests too deep.") from error
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
