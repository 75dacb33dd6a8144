"""What happened, as a memory: a trajectory that is redacted and rewarded, in the words in which it is looked for."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple
from uuid import UUID, uuid5

from rl_pipeline.rewards.document import Turn, as_object, as_text, texts_of, turns_of

MEMORY_IDS = UUID("6d1f3a52-8b0e-4c7a-9f43-5e2d90c4b7a1")
MOST_TURNS = 64
"""Of a longer trajectory the first and last halves of these are kept."""
_MOST_TEXT = 600


class Step(NamedTuple):
    """One action, in a line, and whether it did anything."""

    action: str
    succeeded: bool


@dataclass(frozen=True, slots=True)
class Episode:
    """One trajectory as it is remembered."""

    id: str
    trajectory_id: str
    stream: str
    sequence: int
    at: datetime
    agent_id: str
    user: str
    """The placeholder of the user, by which it is erased; empty where none was given."""
    task_type: str
    domain: str
    goal: str
    status: str
    reward: float
    steps: tuple[Step, ...]
    outcome: str
    """What was said or shown last."""
    searched: tuple[str, ...]

    @property
    def succeeded(self) -> bool:
        """Whether the task was done, as far as its agent knew, else as its reward says."""
        return self.status == "success" if self.status else self.reward >= 0.5

    @property
    def importance(self) -> float:
        """From 0 to 1: what went very well or very badly is worth more than what went as always."""
        return round(0.3 + 0.7 * abs(2 * min(1.0, max(0.0, self.reward)) - 1), 4)

    def content(self) -> dict[str, Any]:
        """What the memory says."""
        return {
            "trajectory_id": self.trajectory_id,
            "goal": self.goal,
            "status": self.status or ("success" if self.succeeded else "failed"),
            "reward": round(self.reward, 6),
            "actions": [step.action for step in self.steps],
            "failed_actions": [place for place, step in enumerate(self.steps) if not step.succeeded],
            "outcome": self.outcome,
        }


def episode_id(trajectory_id: str) -> str:
    """The id of a trajectory's memory."""
    return str(uuid5(MEMORY_IDS, f"episodic {trajectory_id}"))


def episode_of(row: Mapping[str, Any]) -> Episode:
    """The episode of a stored trajectory with its reward: a row of `stored_episodes`."""
    document = as_object(json.loads(row["document"]))
    turns = turns_of(document)
    if len(turns) > MOST_TURNS:
        turns = [*turns[: MOST_TURNS // 2], *turns[-MOST_TURNS // 2 :]]
    steps = [Step(_action(turn), turn.succeeded) for turn in turns]
    goal = _cut(_goal(document, turns))
    seen = [_cut(_shown(turn.observation)) for turn in turns]
    searched = [f"{shown} {step.action}".strip() for shown, step in zip(seen, steps, strict=True)]
    outcome = _cut(_outcome(turns))
    # What is said when all is done is no part of the doing.
    if turns[-1].action == "response" and any(turn.is_call for turn in turns):
        steps.pop()
    if goal and goal not in searched[0]:
        searched[0] = f"{goal} {searched[0]}"
    return Episode(
        id=episode_id(row["trajectory_id"]),
        trajectory_id=row["trajectory_id"],
        stream=row["stream"],
        sequence=row["sequence"],
        at=row["stream_time"],
        agent_id=row["agent_id"],
        user=row["user"],
        task_type=row["task_type"],
        domain=row["domain"],
        goal=goal,
        status=row["task_status"],
        reward=row["raw_total"],
        steps=tuple(steps),
        outcome=outcome,
        searched=tuple(searched if outcome in searched[-1] else [*searched, outcome]),
    )


def _goal(document: Mapping[str, Any], turns: Sequence[Turn]) -> str:
    told = as_text(as_object(document.get("task_context")).get("instructions"))
    return told or next((_shown(turn.observation) for turn in turns if turn.observed == "user_message"), "")


def _outcome(turns: Sequence[Turn]) -> str:
    last = turns[-1]
    return last.answer if last.action == "response" else _shown(last.output) or last.error


def _action(turn: Turn) -> str:
    if not turn.is_call:
        return _cut(turn.answer)
    # An agent whose tool takes one text said that text.
    arguments = turn.arguments
    if len(arguments) == 1 and isinstance(next(iter(arguments.values())), str):
        return _cut(f"{turn.tool}: {next(iter(arguments.values()))}")
    return _cut(f"{turn.tool}: {json.dumps(arguments, sort_keys=True, ensure_ascii=False)}" if arguments else turn.tool)


def _shown(value: Any) -> str:
    return " ".join(texts_of(value)) if value is not None else ""


def _cut(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= _MOST_TEXT else text[: _MOST_TEXT - 1] + "…"
