"""ATIF's steps as exchanges, and back."""

from collections.abc import Sequence
from typing import Any

from rl_pipeline.collection.formats.exchanges import (
    COME_AS,
    LEFT_OUT,
    Call,
    Exchange,
    Returned,
    in_order,
    unmarked,
)
from rl_pipeline.collection.formats.format import NotOfFormat
from rl_pipeline.collection.formats.values import (
    JsonObject,
    as_list,
    as_name,
    as_number,
    as_object,
    filled,
    numbers,
    plain_text,
    token_ids,
    without,
)

_OF_AN_ANSWER = ("step_id", "source", "message", "reasoning_content", "tool_calls", "observation", "metrics")
_OF_SAMPLING = {"prompt_token_ids": token_ids, "completion_token_ids": token_ids, "logprobs": numbers}


def exchanges_of_steps(steps: Sequence[Any]) -> tuple[list[Exchange], list[JsonObject]]:
    """The exchanges of the steps, and the steps after the last of them as messages. Raises `NotOfFormat`."""
    exchanges: list[Exchange] = []
    shown: list[JsonObject] = []
    for number, step in enumerate(steps, start=1):
        if not isinstance(step, dict) or not isinstance(step.get("source"), str):
            raise NotOfFormat(f"step {number} is no object with a source: mend it")
        kept = {} if step.get("step_id") in (None, number) else {"step_id": step["step_id"]}
        if step["source"] == "agent":
            exchange = _exchange(step, shown)
            exchange.rest |= kept
            exchanges.append(exchange)
            shown = []
        else:
            rest = without(step, ("step_id", "source", "message"))
            rest |= {} if "message" in step else {LEFT_OUT: ["message"]}
            shown.append({"role": step["source"], "content": step.get("message"), **rest, **kept})
    return exchanges, shown


def steps_of_exchanges(
    exchanges: Sequence[Exchange], after: Sequence[JsonObject] = (), *, is_own: bool
) -> list[JsonObject]:
    """The steps that exchanges tell, numbered.

    Unless they were read from ATIF (`is_own`), fields that it does not know go into `extra`, as it demands.
    """
    steps: list[JsonObject] = []
    for exchange in exchanges:
        for message in exchange.shown:
            steps.append({"step_id": len(steps) + 1, **_told(message, is_own=is_own)})
        steps.append(_step(exchange, len(steps) + 1, is_own=is_own))
    for message in after:
        steps.append({"step_id": len(steps) + 1, **_told(message, is_own=is_own)})
    return steps


def _exchange(step: JsonObject, shown: list[JsonObject]) -> Exchange:
    message, reasoning = step.get("message"), step.get("reasoning_content")
    metrics, observation = as_object(step.get("metrics")), as_object(step.get("observation"))
    calls = [_call(written) for written in map(as_object, as_list(step.get("tool_calls")))]
    returned, results = _returned(calls, as_list(observation.get("results")))
    rest = without(step, _OF_AN_ANSWER)
    if isinstance(message, list) or ("message" in step and message is None):
        rest["message"] = message
    rest |= {} if "message" in step else {LEFT_OUT: ["message"]}
    if "observation" in step and not results:
        rest["observation"] = step["observation"]
    if "tool_calls" in step and not calls:
        rest["tool_calls"] = step["tool_calls"]
    if "reasoning_content" in step and not isinstance(reasoning, str):
        rest["reasoning_content"] = reasoning
    read = {name: reader(metrics.get(name)) for name, reader in _OF_SAMPLING.items()}
    sampling = filled({"model_version": as_name(step.get("model_name")), **read})
    if "metrics" in step:
        told = without(metrics, [name for name, value in read.items() if value is not None])
        rest["metrics"] = told if isinstance(step["metrics"], dict) else step["metrics"]
    turn: JsonObject = {"sampling": sampling} if sampling else {}
    reward = as_number(metrics.get("reward", as_object(metrics.get("extra")).get("reward")))
    turn |= filled({"reward": reward})
    if step.get("timestamp") is not None:
        turn["timestamp"] = step["timestamp"]
    is_copied = any(place.get("is_copied_context") for place in (step, as_object(step.get("extra"))))
    if is_copied or step.get("llm_call_count") == 0:
        turn["is_copied_context"] = True
    return Exchange(
        shown=shown,
        text=message if isinstance(message, str) else plain_text(message),
        thoughts=[reasoning] if isinstance(reasoning, str) else [],
        calls=calls,
        returned=returned,
        rest=rest,
        turn=turn,
    )


def _call(written: JsonObject) -> Call:
    arguments = written.get("arguments")
    rest = without(written, ("tool_call_id", "function_name", "arguments"))
    if not isinstance(arguments, dict):
        rest["arguments"] = arguments
    return Call(
        name=as_name(written.get("function_name")) or "",
        arguments=arguments if isinstance(arguments, dict) else None,
        id=as_name(written.get("tool_call_id")),
        rest=rest,
    )


def _returned(calls: list[Call], results: list[Any]) -> tuple[list[Returned | None], int]:
    """What each call returned, then what belongs to none; and how many results there were.

    Results that name no call belong to the calls in order where there are as many, and one for several calls to the
    last: terminals tell what they show when all of it was typed.
    """
    told = [as_object(result) for result in results]
    places = _places(calls, told)
    found: list[Returned | None] = [None] * max(1, len(calls))
    loose: list[Returned | None] = []
    for result, place in zip(told, places, strict=True):
        if place is None:
            told_of_none = without(result, ["content"]) | ({} if "content" in result else {LEFT_OUT: ["content"]})
            loose.append(Returned(result.get("content"), rest=told_of_none))
        else:
            found[place] = _result(result, calls[place] if calls else None)
    written = [len(calls) if place is None else place for place in places]
    if written != sorted(written):
        of_none = iter(loose)
        for come, place in enumerate(places):
            returned = next(of_none) if place is None else found[place]
            if returned is not None:
                returned.rest[COME_AS] = come
    return found + loose, len(results)


def _places(calls: list[Call], results: list[JsonObject]) -> list[int | None]:
    """To which call each result belongs; None for those that belong to none, or to one that has a result already."""
    nameless = [number for number, result in enumerate(results) if result.get("source_call_id") is None]
    places: list[int | None] = []
    for result in results:
        source = result.get("source_call_id")
        waits = [place for place, call in enumerate(calls) if call.id == as_name(source) and place not in places]
        places.append(waits[0] if source is not None and waits else None)
    if not calls:
        return [0 if number == 0 else None for number in range(len(results))]
    if len(nameless) == len(results) and len(results) in (1, len(calls)):
        return [len(calls) - 1] if len(results) == 1 else list(range(len(calls)))
    return places


def _result(result: JsonObject, call: Call | None) -> Returned:
    rest = without(result, ("source_call_id", "content"))
    is_failed = as_object(result.get("extra")).get("is_error") is True
    if call is None:
        rest |= filled({"source_call_id": result.get("source_call_id")})
    else:
        call.is_delegation = call.is_delegation or "subagent_trajectory_ref" in rest
        if result.get("source_call_id") is None:
            rest |= {"source_call_id": None} if "source_call_id" in result else {LEFT_OUT: ["source_call_id"]}
    if "content" in result and result["content"] is None:
        rest["content"] = None
    if result.get("content") is None and not rest:
        return Returned("", is_failed, rest={"content": None})
    return Returned(result.get("content"), is_failed, rest=rest)


def _step(exchange: Exchange, number: int, *, is_own: bool) -> JsonObject:
    rest, turn = exchange.rest if is_own else {}, exchange.turn
    sampling = as_object(turn.get("sampling"))
    step: JsonObject = {"step_id": number, "source": "agent", "message": exchange.text or ""}
    if exchange.thoughts:
        step["reasoning_content"] = "\n".join(exchange.thoughts)
    if exchange.calls:
        step["tool_calls"] = [
            {
                "tool_call_id": call.id or f"call_{number}_{place}",
                "function_name": call.name,
                "arguments": call.arguments or {},
                **(call.rest if is_own else {}),
            }
            for place, call in enumerate(exchange.calls, start=1)
        ]
    if results := _results(exchange, number, is_own=is_own):
        step["observation"] = {"results": results}
    drawn = without(sampling, ["model_version"])
    metrics = as_object(rest.get("metrics")) | {name: drawn[name] for name in _OF_SAMPLING if name in drawn}
    if metrics or "metrics" in rest:
        step["metrics"] = metrics or rest.get("metrics", {})
    if not is_own:
        step |= {"extra": extra} if (extra := unmarked(exchange.rest)) else {}
        step |= filled({"timestamp": turn.get("timestamp"), "model_name": sampling.get("model_version")})
        step |= {"is_copied_context": True} if turn.get("is_copied_context") else {}
    return unmarked(step | without(rest, ["metrics"]))


def _results(exchange: Exchange, number: int, *, is_own: bool) -> list[JsonObject]:
    results: list[tuple[int, JsonObject]] = []
    for place, returned in enumerate(exchange.returned):
        if returned is None:
            continue
        told: JsonObject = {}
        if place < len(exchange.calls):
            told["source_call_id"] = exchange.calls[place].id or f"call_{number}_{place + 1}"
        is_loose = place >= max(1, len(exchange.calls))
        if returned.content is not None or is_loose or not (is_own and returned.rest):
            told["content"] = returned.content
        if is_own:
            results.append((place, told | returned.rest))
            continue
        extra = unmarked(returned.rest) | ({"is_error": True} if returned.failed else {})
        results.append((place, told | ({"extra": extra} if extra else {})))
    return [unmarked(told) for told in in_order(results)]


def _told(message: JsonObject, *, is_own: bool) -> JsonObject:
    """A message as a step of a system or a user."""
    role = message.get("role")
    step: JsonObject = {"source": role if role in ("system", "user") else "user", "message": message.get("content")}
    rest = without(message, ("role", "content"))
    if is_own:
        return unmarked(step | rest)
    rest = unmarked(rest)
    extra = rest if step["source"] == role else {"role": role, **rest}
    return step | {"message": step["message"] or ""} | ({"extra": extra} if extra else {})
