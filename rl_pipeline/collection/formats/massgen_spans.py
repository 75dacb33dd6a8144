"""MassGen's spans as turns, and back."""

from collections.abc import Iterator, Sequence
from typing import Any
from uuid import NAMESPACE_OID, uuid5

from rl_pipeline.collection.formats.exchanges import unwrapped
from rl_pipeline.collection.formats.format import NotOfFormat
from rl_pipeline.collection.formats.values import (
    JsonObject,
    as_cost,
    as_list,
    as_moment,
    as_name,
    as_object,
    as_text,
    filled,
    plain_text,
    without,
)
from rl_pipeline.contracts.trajectory import wrap_parts

_NOTHING: JsonObject = {"type": "system_message", "content": "", "is_empty": True}
_OF_A_KIND = {
    "prompt": ("input", "output", "reasoning"),
    "tool": ("tool_name", "name", "arguments", "args", "result", "success", "error"),
    "content": ("content", "source"),
    "coordination": ("action_type", "action_data"),
}


def is_act(span: JsonObject) -> bool:
    """Whether a span is a turn."""
    return span.get("span_type") in _OF_A_KIND


def joins(prompt: JsonObject, call: JsonObject) -> bool:
    """Whether two spans in succession are one turn: a prompt that was answered by a call, without a word."""
    is_silent = prompt.get("span_type") == "prompt" and prompt.get("output") == "" and not prompt.get("reasoning")
    return is_silent and call.get("span_type") == "tool"


def turns_of_spans(spans: Sequence[Any]) -> list[JsonObject]:
    """The turns of a trace. Raises `NotOfFormat`."""
    turns: list[JsonObject] = []
    waiting: list[JsonObject] = []
    for number, span in enumerate(spans, start=1):
        if not isinstance(span, dict):
            raise NotOfFormat(f"span {number} is no object: mend it")
        kind = as_text(span.get("span_type"))
        if kind == "reward" and turns:
            turns[-1].setdefault("rewards", []).append(without(span, ["span_type"]))
        elif kind in _OF_A_KIND:
            turn = _turn(kind, span, waiting)
            if turns and joins(spans[number - 2], span):
                turn = _joined(turns.pop(), turn)
            turns.append({**turn, "turn_id": len(turns) + 1})
            waiting = []
        else:
            waiting.append(span)
    if waiting and turns:
        turns[-1]["spans_after"] = waiting
    return turns


def spans_of_turns(turns: Sequence[JsonObject], agent_id: str, model: str) -> list[JsonObject]:
    """The spans that turns tell, whoever recorded them."""
    spans: list[JsonObject] = []
    for turn in turns:
        told = list(_spans(turn, agent_id, model))
        if not isinstance(turn.get("span"), dict):
            moment = as_moment(turn.get("timestamp"))
            for span in told:
                span["span_id"] = str(uuid5(NAMESPACE_OID, f"{agent_id} {turn['timestamp']} {len(spans)}"))
                span["timestamp"] = moment.timestamp() if moment else 0.0
                spans.append(span)
            continue
        spans += told
    return spans


def _turn(kind: str, span: JsonObject, before: list[JsonObject]) -> JsonObject:
    thoughts = [span["reasoning"] for span in before if isinstance(span.get("reasoning"), str)]
    turn: JsonObject = {"observation": dict(_NOTHING), "result": {"success": True}}
    if span.get("timestamp"):
        turn["timestamp"] = span["timestamp"]
    match kind:
        case "prompt":
            shown, said = span.get("input"), span.get("output")
            turn["observation"] = {"type": "user_message", "content": wrap_parts("" if shown is None else shown)}
            turn["action"] = {"type": "response", "raw_response": said if isinstance(said, str) else plain_text(said)}
            if isinstance(span.get("reasoning"), str):
                thoughts.append(span["reasoning"])
            turn |= {"sampling": {"model_version": model}} if (model := as_name(span.get("model"))) else {}
        case "tool":
            arguments = span.get("arguments", span.get("args"))
            name = as_text(span.get("tool_name", span.get("name")))
            turn["action"] = filled(
                {
                    "type": "tool_call",
                    "tool_name": name,
                    "tool_args": arguments if isinstance(arguments, dict) else None,
                }
            )
            turn["result"] = _result(span)
        case "content":
            turn["action"] = {"type": "response", "raw_response": plain_text(span.get("content"))}
            turn |= filled({"agent_id": as_name(span.get("source"))})
        case _:
            data = span.get("action_data")
            turn["action"] = {"type": "tool_call", "tool_name": as_text(span.get("action_type"))}
            turn["action"] |= {"tool_args": data} if isinstance(data, dict) else {}
    rest = without(span, _OF_A_KIND[kind])
    for name, mapped in (("output", str), ("arguments", dict), ("content", str), ("action_data", dict)):
        if name in span and name not in rest and not isinstance(span[name], mapped):
            rest[name] = span[name]
    if kind == "content" and "source" in span and not isinstance(span["source"], str):
        rest["source"] = span["source"]
    if kind == "tool" and not isinstance(span.get("result"), str | dict | list):
        rest |= {"result": span["result"]} if "result" in span else {}
    turn |= {"thought_process": thoughts} if thoughts else {}
    turn |= {"spans_before": [_thought_out(one) for one in before]} if before else {}
    return turn | {"span": rest}


def _joined(prompt: JsonObject, call: JsonObject) -> JsonObject:
    kept = ("observation", "sampling", "thought_process", "spans_before")
    return call | {name: prompt[name] for name in kept if name in prompt} | {"prompt_span": prompt["span"]}


def _thought_out(span: JsonObject) -> JsonObject:
    """A span before a turn; the text of a thought is in the turn's thoughts already."""
    return without(span, ["reasoning"]) if isinstance(span.get("reasoning"), str) else span


def _result(span: JsonObject) -> JsonObject:
    error, returned, seconds = span.get("error"), span.get("result"), as_cost(span.get("execution_time"))
    return filled(
        {
            "success": span.get("success") is not False and not error,
            "output": None if returned is None else wrap_parts(returned),
            "error": as_text(error) or None,
            "execution_time_ms": None if seconds is None else seconds * 1000,
            "said": {name: span[name] for name in ("success", "error") if name in span} or None,
        }
    )


def _spans(turn: JsonObject, agent_id: str, model: str) -> Iterator[JsonObject]:
    own, action, result = as_object(turn.get("span")), as_object(turn.get("action")), as_object(turn.get("result"))
    thoughts = as_list(turn.get("thought_process"))
    for before in as_list(turn.get("spans_before")):
        is_thought = before.get("span_type") == "reasoning" and "reasoning" not in before and thoughts
        yield before | ({"reasoning": thoughts[0]} if is_thought else {})
        thoughts = thoughts[1:] if is_thought else thoughts
    if not own:
        for thought in thoughts:
            yield {"span_type": "reasoning", "reasoning": thought, "source": agent_id}
        thoughts = []
    if isinstance(prompt := turn.get("prompt_span"), dict):
        shown = unwrapped(as_object(turn.get("observation")).get("content"))
        yield {"span_type": "prompt", "input": shown, "output": "", **prompt}
    yield _span(turn, action, result, thoughts, model) | own
    for reward in as_list(turn.get("rewards")):
        yield {"span_type": "reward", **reward}
    yield from as_list(turn.get("spans_after"))


def _span(turn: JsonObject, action: JsonObject, result: JsonObject, thoughts: list[Any], model: str) -> JsonObject:
    kind = as_object(turn.get("span")).get("span_type")
    observation, said = as_object(turn.get("observation")), action.get("raw_response") or ""
    is_shown = observation.get("is_empty") is not True
    if kind is None:
        is_call = action.get("type") != "response"
        kind = "tool" if is_call else "prompt" if is_shown else "content"
    match kind:
        case "prompt":
            shown = unwrapped(observation.get("content"))
            span = {"span_type": kind, "input": shown if turn.get("span") else plain_text(shown), "output": said}
            span |= {"reasoning": thoughts[0]} if thoughts else {}
            drawn = as_object(turn.get("sampling")).get("model_version")
            return span | ({} if turn.get("span") else {"model": drawn or model})
        case "tool":
            seconds = as_cost(result.get("execution_time_ms"))
            said_of_it = result.get("said") if turn.get("span") else {"success": result.get("success") is not False}
            span = {
                "span_type": kind,
                "tool_name": action.get("tool_name") or action.get("type"),
                **as_object(said_of_it),
            }
            span |= (
                {"arguments": action.get("tool_args") or {}} if "tool_args" in action or not turn.get("span") else {}
            )
            span |= {"result": unwrapped(result["output"])} if "output" in result else {}
            if not turn.get("span"):
                span |= filled({"error": result.get("error"), "execution_time": seconds and seconds / 1000})
            return span
        case "content":
            return {"span_type": kind, "content": said} | filled({"source": turn.get("agent_id")})
        case _:
            span = {"span_type": kind, "action_type": action.get("tool_name")}
            return span | ({"action_data": action["tool_args"]} if "tool_args" in action else {})
