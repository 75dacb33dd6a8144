"""A trajectory's document as scoring reads it: turns with fields of known types, whatever an open object holds.

Documents are valid when they get here, so they are not validated again: what is missing or of another type is read as
absent. What the fields mean for a reward belongs elsewhere.
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

JsonObject = dict[str, Any]

LARGEST_COUNT = 2**32 - 1
"""What the columns of counts can hold; a larger one is cut to it."""


class Turn(NamedTuple):
    """One turn, flat."""

    agent: str
    observed: str
    """Where the observation came from: user_message, tool_result, subordinate_response or system_message."""
    observation: Any
    action: str
    """tool_call, subordinate_call, response or memory_update."""
    tool: str
    arguments: JsonObject
    response: str
    succeeded: bool
    output: Any
    error: str

    @property
    def is_call(self) -> bool:
        """Whether something was asked of a tool or of another agent."""
        return self.action in {"tool_call", "subordinate_call"}

    @property
    def answer(self) -> str:
        """What a response said."""
        return self.response or as_text(self.output)


def turns_of(trajectory: JsonObject) -> list[Turn]:
    """The turns in order; one without an agent of its own is the trajectory's agent's."""
    agent = as_text(trajectory.get("agent_id"))
    return [_turn(as_object(turn), agent) for turn in as_list(trajectory.get("turns"))]


def _turn(turn: JsonObject, agent: str) -> Turn:
    observation, action = as_object(turn.get("observation")), as_object(turn.get("action"))
    result = as_object(turn.get("result"))
    return Turn(
        agent=as_text(turn.get("agent_id")) or agent,
        observed=as_text(observation.get("type")),
        observation=observation.get("content"),
        action=as_text(action.get("type")),
        tool=as_text(action.get("tool_name")),
        arguments=as_object(action.get("tool_args")),
        response=as_text(action.get("raw_response")),
        succeeded=result.get("success") is True,
        output=result.get("output"),
        error=as_text(result.get("error")),
    )


def final_response(turns: Sequence[Turn]) -> Turn | None:
    """The last response of the trajectory."""
    return next((turn for turn in reversed(turns) if turn.action == "response"), None)


def as_object(value: Any) -> JsonObject:
    """The object, or an empty one."""
    return value if isinstance(value, dict) else {}


def as_list(value: Any) -> list[Any]:
    """The list, or an empty one."""
    return value if isinstance(value, list) else []


def as_text(value: Any) -> str:
    """The text, or an empty one."""
    return value if isinstance(value, str) else ""


def as_count(value: Any) -> int | None:
    """The whole number from 0, cut to what a column holds; None for anything else."""
    is_count = isinstance(value, int) and not isinstance(value, bool) and value >= 0
    return min(value, LARGEST_COUNT) if is_count else None


def as_number(value: Any, low: float, high: float) -> float | None:
    """The number if it lies between `low` and `high`; None for anything else."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if is_number and low <= value <= high else None


def texts_of(value: Any) -> Iterator[str]:
    """Every text in a JSON value in order, keys aside; depth costs no stack."""
    if isinstance(value, str):
        yield value
        return
    waiting = [value]
    while waiting:
        item = waiting.pop()
        if isinstance(item, str):
            yield item
        elif isinstance(item, dict):
            waiting.extend(reversed(item.values()))
        elif isinstance(item, list):
            waiting.extend(reversed(item))
