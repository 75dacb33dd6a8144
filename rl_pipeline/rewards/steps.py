"""What was called and achieved in a trajectory, by whom and when.

A **call** is a tool call or a call of a subordinate; two are the same when kind, name and arguments are equal. A
**step** is a call that succeeded, counted once, or the final response if it succeeded. A step belongs to the agents
that achieved it: the first to succeed, and those who made the same call with the same result. A repetition that brought
another result earns nothing: what others changed in between is their step. How steps become credit and potentials is
defined in `credit` and `shaping`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import orjson

from rl_pipeline.rewards.credit import coverage_game
from rl_pipeline.rewards.document import Turn
from rl_pipeline.rewards.shaping import potentials

CallKey = tuple[str, str, bytes]


class Calls(NamedTuple):
    """How a trajectory used its tools and subordinates."""

    calls: int
    distinct_calls: int
    failed_calls: int
    """Distinct calls that never succeeded."""
    redundant_calls: int
    """Calls that repeat one which had succeeded, with the result it had the last time it did."""
    empty_results: int
    """Distinct calls that succeeded and never returned anything."""


class Credits(NamedTuple):
    """Who took part, with which share of the credit, and how far the work had come after each turn."""

    agents: list[str]
    credit_shares: list[float]
    sole_shares: list[float]
    turn_agents: list[str]
    turn_potentials: list[float]


class MadeCall(NamedTuple):
    """One call: where it was made (from 0), what was called, and what came of it."""

    place: int
    key: CallKey
    result: bytes | None
    """None: it failed."""
    turn: Turn


@dataclass(slots=True)
class _Call:
    """One distinct call over all the times it was made."""

    last_result: bytes | None = None
    """Of the last time it succeeded."""
    repeated: int = 0
    """Times that it brought what it had brought the last time."""
    returned_something: bool = False


@dataclass(frozen=True, slots=True)
class Step:
    """Something achieved: the turn (from 0) that was first, its result, and the agents it belongs to."""

    turn: int
    result: bytes
    agents: list[str]


def calls_made(turns: Sequence[Turn]) -> list[MadeCall]:
    """Every call of the turns in order."""
    return [
        MadeCall(place, _key(turn), _identity(turn.output) if turn.succeeded else None, turn)
        for place, turn in enumerate(turns)
        if turn.is_call
    ]


def count_calls(made: Sequence[MadeCall]) -> Calls:
    """The calls, told apart and judged by what came of them."""
    calls: dict[CallKey, _Call] = {}
    for one in made:
        call = calls.setdefault(one.key, _Call())
        if one.result is not None:
            call.repeated += one.result == call.last_result
            call.last_result = one.result
            call.returned_something |= not _is_nothing(one.turn.output)
    succeeded = [call for call in calls.values() if call.last_result is not None]
    return Calls(
        calls=len(made),
        distinct_calls=len(calls),
        failed_calls=len(calls) - len(succeeded),
        redundant_calls=sum(call.repeated for call in succeeded),
        empty_results=sum(not call.returned_something for call in succeeded),
    )


def steps_of(turns: Sequence[Turn], made: Sequence[MadeCall]) -> list[Step]:
    """The steps in the order in which they were first achieved."""
    steps: dict[CallKey, Step] = {}
    credited: set[tuple[int, str]] = set()
    for call in made:
        if call.result is None:
            continue
        step = steps.setdefault(call.key, Step(call.place, call.result, []))
        if step.result == call.result and (step.turn, call.turn.agent) not in credited:
            credited.add((step.turn, call.turn.agent))
            step.agents.append(call.turn.agent)
    responses = [place for place, turn in enumerate(turns) if turn.action == "response"]
    final = [Step(place, b"", [turns[place].agent]) for place in responses[-1:] if turns[place].succeeded]
    return sorted([*steps.values(), *final], key=lambda step: step.turn)


def credits_of(turns: Sequence[Turn], steps: Sequence[Step]) -> Credits:
    """The agents in order of their first turn, their shares of the steps, and the potentials of the turns."""
    turn_agents = [turn.agent for turn in turns]
    agents = list(dict.fromkeys(turn_agents))
    new_steps = [0] * len(turns)
    for step in steps:
        new_steps[step.turn] += 1
    game = coverage_game(1.0, agents, [step.agents for step in steps], turn_agents)
    return Credits(agents, game.shares(agents), game.sole_shares(agents), turn_agents, potentials(new_steps))


def _key(turn: Turn) -> CallKey:
    return turn.action, turn.tool, _identity(turn.arguments)


def _identity(value: Any) -> bytes:
    """Equal for equal JSON values, whatever the order of their keys."""
    try:
        return orjson.dumps(value, option=orjson.OPT_SORT_KEYS)
    except orjson.JSONEncodeError:  # deeper than any document that ingest lets through
        return b"beyond comparison"


def _is_nothing(value: Any) -> bool:
    """Whether a result is empty; an object is if all its values are."""
    if isinstance(value, dict):
        return all(_is_blank(item) for item in value.values())
    return _is_blank(value)


def _is_blank(value: Any) -> bool:
    return value is None or value in ([], {}) or (isinstance(value, str) and not value.strip())
