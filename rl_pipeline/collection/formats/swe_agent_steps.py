"""The steps of SWE-agent's runs as exchanges, and back."""

from collections.abc import Iterator
from typing import Any

from rl_pipeline.collection.formats.chat import read_call
from rl_pipeline.collection.formats.commands import written_command
from rl_pipeline.collection.formats.exchanges import Call, Exchange, Returned
from rl_pipeline.collection.formats.format import NotOfFormat
from rl_pipeline.collection.formats.values import (
    JsonObject,
    as_cost,
    as_count,
    as_list,
    as_name,
    as_object,
    as_text,
    without,
)

_OF_A_STEP = ("action", "observation", "response", "thought", "execution_time", "query")


def split_history(history: list[Any]) -> tuple[list[Any], list[Any]]:
    """The prompts before the agent's first answer, and the rest; demonstrations are prompts."""
    for place, message in enumerate(history):
        told = as_object(message)
        if told.get("role") == "assistant" and not told.get("is_demo"):
            return history[:place], history[place:]
    return list(history), []


def calls_of(history: list[Any]) -> Iterator[tuple[str, Call]]:
    """The commands of the agent's answers with the function calls that made them."""
    for message in map(as_object, history):
        calls = as_list(message.get("tool_calls"))
        if message.get("role") == "assistant" and len(calls) == 1:
            call = read_call(as_object(as_object(calls[0]).get("function")))
            call.id = as_name(as_object(calls[0]).get("id"))
            yield as_text(message.get("action")), call


def exchanges_of_steps(steps: list[Any], calls: Iterator[tuple[str, Call]]) -> Iterator[Exchange]:
    """The exchanges that steps tell, with the calls that made their commands. Raises `NotOfFormat`."""
    waiting = list(calls)
    query: list[Any] = []
    for number, step in enumerate(steps, start=1):
        if not isinstance(step, dict):
            raise NotOfFormat(f"step {number} of `trajectory` is no object: mend it")
        command, seconds = step.get("action"), as_cost(step.get("execution_time"))
        made: list[Call] = []
        if isinstance(command, str) and command.strip():
            made = [Call("bash", {"command": command})]
            found = next((place for place, (written, _) in enumerate(waiting) if written == command), None)
            if found is not None:
                made = [waiting[found][1]]
                made[0].rest["command"] = command
                del waiting[: found + 1]
        turn: JsonObject = {"step": without(step, _OF_A_STEP)}
        if not made:
            turn["step"]["action"] = command
        if "execution_time" in step:
            turn["step"]["execution_time"] = step["execution_time"]
        turn["step"] |= {name: None for name in ("observation", "response", "thought") if step.get(name, "") is None}
        left_out = [name for name in ("action", "observation", "response") if name not in step]
        turn["step"] |= {"left_out": left_out} if left_out else {}
        if isinstance(step.get("query"), list):
            same = _common(query, step["query"])
            turn["step"]["query"] = {"same": same, "then": step["query"][same:]}
            query = step["query"]
        elif "query" in step:
            turn["step"]["query"] = step["query"]
        thought = step.get("thought")
        yield Exchange(
            text=as_text(step.get("response")) or None,
            thoughts=[thought] if isinstance(thought, str) else [],
            calls=made,
            returned=[Returned(step.get("observation"), milliseconds=None if seconds is None else seconds * 1000)],
            turn=turn,
        )


def steps_of(exchanges: list[Exchange], *, is_own: bool) -> Iterator[JsonObject]:
    """The steps that exchanges of at most one call tell; `is_own` where they were read from steps."""
    query: list[Any] = []
    for exchange in exchanges:
        told = as_object(exchange.turn.get("step")) if is_own else {}
        returned = exchange.returned[0] if exchange.returned else None
        step = {
            "action": _action(exchange, is_own=is_own),
            "observation": "" if returned is None or returned.content is None else returned.content,
            "response": exchange.text or "",
            **({"thought": "\n".join(exchange.thoughts)} if exchange.thoughts or not is_own else {}),
            **({"execution_time": (returned.milliseconds or 0.0) / 1000} if returned and not is_own else {}),
            **without(told, ["left_out"]),
        }
        if isinstance(told.get("query"), dict):
            query = [*query[: as_count(told["query"].get("same")) or 0], *as_list(told["query"].get("then"))]
            step["query"] = query
        yield without(step, as_list(told.get("left_out")))


def _action(exchange: Exchange, *, is_own: bool) -> Any:
    call = exchange.calls[0] if exchange.calls else None
    if call is None:
        return ""
    if not is_own:
        return written_command(call)
    return call.rest.get("command", as_object(call.arguments).get("command", ""))


def _common(before: list[Any], now: list[Any]) -> int:
    same = 0
    for one, other in zip(before, now, strict=False):
        if one != other:
            break
        same += 1
    return same
