"""What foreign formats have in common: an agent is shown something, writes, calls tools, and is told what came back.

An exchange is one answer of the model with all of its calls. The contract's turn has one action, so an exchange of
several calls is as many turns; those after the first are marked `is_parallel`, and each observes what the call before
it returned. What a format says beyond the contract stands in the open objects, so that it can be written out again:

- `shown_before` of a turn: messages before the one that is its observation, such as the system's prompt;
- `shown_after` of the last turn: messages that nobody answered;
- `message` of an observation, an action and a result, and `call` of an action: further fields of the original;
- `more` of a result: what was returned to none of the calls.

Two marks among the further fields tell how to write them again, and are not written themselves: `LEFT_OUT` names fields
that the original did not have at all, `COME_AS` says as the how-manieth a result came, where calls were answered out of
their order.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from rl_pipeline.collection.formats.values import JsonObject, as_list, as_object, as_text, filled, plain_text, without
from rl_pipeline.contracts.trajectory import wrap_parts

_TYPES = {
    "system": "system_message",
    "developer": "system_message",
    "tool": "tool_result",
    "function": "tool_result",
}
_ROLES = {"system_message": "system", "tool_result": "tool", "subordinate_response": "tool"}
_OF_A_TURN = {"turn_id", "observation", "action", "result", "thought_process", "shown_before", "shown_after"}
_OF_EVERY_CALL = ("timestamp", "agent_id", "is_copied_context")
LEFT_OUT = "rl_pipeline_left_out"
COME_AS = "rl_pipeline_come_as"
_NOTHING_SHOWN: JsonObject = {"type": "system_message", "content": "", "is_empty": True}


@dataclass
class Call:
    """One call of a tool."""

    name: str
    arguments: JsonObject | None
    id: str | None = None
    rest: JsonObject = field(default_factory=dict)
    is_delegation: bool = False
    """Whether another agent was called."""


@dataclass
class Returned:
    """What came back, from a call or without one."""

    content: Any = None
    failed: bool = False
    milliseconds: float | None = None
    rest: JsonObject = field(default_factory=dict)


@dataclass
class Exchange:
    """One answer of the model, and what it led to."""

    shown: list[JsonObject] = field(default_factory=list)
    """Messages with a role, but for what the last exchange's calls returned."""
    text: str | None = None
    thoughts: list[str] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    returned: list[Returned | None] = field(default_factory=list)
    """One for each call, or one for an answer without calls; further ones belong to no call."""
    rest: JsonObject = field(default_factory=dict)
    """Further fields of the answer."""
    turn: JsonObject = field(default_factory=dict)
    """Further fields of the (first) turn: `timestamp`, `sampling`, `agent_id` and others."""


def turns_of(exchanges: Sequence[Exchange], after: Sequence[JsonObject] = ()) -> list[JsonObject]:
    """The turns, numbered, of exchanges in order and of the messages that nobody answered."""
    turns: list[JsonObject] = []
    last: Returned | None = None
    for exchange in exchanges:
        for place, call in enumerate(exchange.calls or [None]):
            turn: JsonObject = {"turn_id": len(turns) + 1}
            action: JsonObject = _called(call) if call else {"type": "response", "raw_response": exchange.text or ""}
            if place:
                action["is_parallel"] = True
                turn |= {name: exchange.turn[name] for name in _OF_EVERY_CALL if name in exchange.turn}
                turn["observation"] = {"type": "tool_result", "content": _content(last)}
            else:
                turn |= exchange.turn
                turn |= _shown(exchange.shown, last)
                action |= filled({"raw_response": exchange.text, "message": exchange.rest or None})
                turn |= {"thought_process": exchange.thoughts} if exchange.thoughts else {}
            last = exchange.returned[place] if place < len(exchange.returned) else None
            turns.append(turn | {"action": action, "result": _result(last)})
        more = [item for item in exchange.returned[max(1, len(exchange.calls)) :] if item]
        if more:
            turns[-1]["result"]["more"] = [{"content": item.content, **item.rest} for item in more]
    if after and turns:
        turns[-1]["shown_after"] = list(after)
    return turns


def exchanges_of(turns: Sequence[JsonObject]) -> tuple[list[Exchange], list[JsonObject]]:
    """The exchanges that turns tell, whoever recorded them, and the messages that nobody answered."""
    exchanges: list[Exchange] = []
    for turn in turns:
        action, observation = as_object(turn.get("action")), as_object(turn.get("observation"))
        if not (action.get("is_parallel") and exchanges):
            exchange = Exchange(
                text=action.get("raw_response"),
                thoughts=[text for text in as_list(turn.get("thought_process")) if isinstance(text, str)],
                rest=as_object(action.get("message")),
                turn=without(turn, _OF_A_TURN),
            )
            exchange.shown = [*as_list(turn.get("shown_before")), *_message(observation, exchanges)]
            exchanges.append(exchange)
        exchange = exchanges[-1]
        if action.get("type") != "response":
            exchange.calls.append(_call(action))
        result = as_object(turn.get("result"))
        exchange.returned.append(_returned(result))
        exchange.returned += [
            Returned(more.get("content"), rest=without(more, ["content"]))
            for more in map(as_object, as_list(result.get("more")))
        ]
    after = as_list(turns[-1].get("shown_after")) if turns else []
    return exchanges, after


def first_request(turns: Sequence[JsonObject]) -> str | None:
    """What the user asked first, in words."""
    for turn in turns:
        for message in (*as_list(turn.get("shown_before")), *_message(as_object(turn["observation"]), [])):
            if message.get("role") == "user" and plain_text(message.get("content")).strip():
                return plain_text(message["content"])
    return None


def unmarked(message: JsonObject) -> JsonObject:
    """A message or step as it is written: without the marks, and without what the original had not."""
    return without(message, (LEFT_OUT, COME_AS, *as_list(message.get(LEFT_OUT))))


def in_order(returned: Sequence[tuple[int, JsonObject]]) -> list[JsonObject]:
    """Results with their places among the calls, in the order in which they came."""
    return [told for _, told in sorted(returned, key=lambda one: one[1].get(COME_AS, one[0]))]


def unwrapped(content: Any) -> Any:
    """Content as it was before the contract wrapped it."""
    return content["parts"] if isinstance(content, dict) and content.keys() == {"parts"} else content


def _shown(shown: Sequence[JsonObject], last: Returned | None) -> JsonObject:
    if not shown:
        told = {"type": "tool_result", "content": _content(last)} if last else dict(_NOTHING_SHOWN)
        return {"observation": told}
    *before, message = shown
    role = as_text(message.get("role"))
    rest = without(message, ("role", "content"))
    if role != _ROLES.get(_TYPES.get(role, "user_message"), "user"):
        rest["role"] = role
    if message.get("content") is None:
        rest |= {"content": None} if "content" in message else {LEFT_OUT: ["content"]}
    elif isinstance(message["content"], int | float):
        rest["content"] = message["content"]
    observation: JsonObject = {
        "type": _TYPES.get(role, "user_message"),
        "content": wrap_parts(message["content"]) if message.get("content") is not None else "",
    }
    observation |= {"message": rest} if rest else {}
    return {"observation": observation} | ({"shown_before": before} if before else {})


def _message(observation: JsonObject, exchanges: Sequence[Exchange]) -> list[JsonObject]:
    """The message that was observed; none where it only repeats what the last call returned."""
    content = unwrapped(observation.get("content"))
    kind = as_text(observation.get("type"))
    last = exchanges[-1] if exchanges else None
    if observation.get("is_empty") is True:
        return []
    if kind in ("tool_result", "subordinate_response") and last and "message" not in observation:
        place = max(1, len(last.calls)) - 1
        returned = last.returned[place]
        if returned and _content(returned) == wrap_parts(content):
            return []
        if last.calls and (returned is None or returned.content is None):
            last.returned[place] = Returned(content, *((returned.failed, returned.milliseconds) if returned else ()))
            return []
    return [{"role": _ROLES.get(kind, "user"), "content": content, **as_object(observation.get("message"))}]


def _called(call: Call) -> JsonObject:
    return filled(
        {
            "type": "subordinate_call" if call.is_delegation else "tool_call",
            "tool_name": call.name,
            "tool_args": call.arguments,
            "tool_call_id": call.id,
            "call": call.rest or None,
        }
    )


def _call(action: JsonObject) -> Call:
    kind = as_text(action.get("type"))
    arguments = action.get("tool_args")
    return Call(
        name=action["tool_name"] if isinstance(action.get("tool_name"), str) else kind,
        arguments=arguments if isinstance(arguments, dict) else None,
        id=action.get("tool_call_id"),
        rest=as_object(action.get("call")),
        is_delegation=kind == "subordinate_call",
    )


def _content(returned: Returned | None) -> str | JsonObject:
    return "" if returned is None or returned.content is None else wrap_parts(returned.content)


def _result(returned: Returned | None) -> JsonObject:
    if returned is None:
        return {"success": True}
    is_told_as_error = returned.failed and isinstance(returned.content, str)
    return filled(
        {
            "success": not returned.failed,
            "output": None if is_told_as_error or returned.content is None else wrap_parts(returned.content),
            "error": returned.content if is_told_as_error else None,
            "execution_time_ms": returned.milliseconds,
            "message": returned.rest or None,
        }
    )


def _returned(result: JsonObject) -> Returned | None:
    output, error = result.get("output"), result.get("error")
    content = unwrapped(error if output is None else output)
    rest, failed = as_object(result.get("message")), result.get("success") is False
    if content is None and not rest and not failed and result.get("execution_time_ms") is None:
        return None
    return Returned(content, failed, result.get("execution_time_ms"), rest)
