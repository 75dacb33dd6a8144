"""Chat messages with tool calls, as OpenAI has them: what several formats are made of."""

import json
from collections.abc import Callable, Sequence
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
    as_object,
    as_text,
    plain_text,
    without,
)

TextCall = Callable[[str], tuple[list[str], Call] | None]
"""Finds thoughts and a call in what an agent wrote, for agents that call tools in words."""

_OF_AN_ANSWER = ("role", "content", "tool_calls", "function_call", "reasoning_content")
_OF_OPENAI = {*_OF_AN_ANSWER, "name", "refusal", "tool_call_id", "weight"}
_THOUGHTS = ("reasoning_content", "reasoning")
"""Where servers put what a model thought; the first that is text is what is read."""
IN_WORDS = "in_words"
_IN_PARTS = "in_parts"
"""Of calls and results that are parts of a message's content, as Anthropic's are: the message has them already."""


def exchanges_of_messages(
    messages: Any, *, failed: Callable[[str], bool] | None = None, text_call: TextCall | None = None
) -> tuple[list[Exchange], list[JsonObject]]:
    """The exchanges of a conversation, and the messages after the last of them. Raises `NotOfFormat`."""
    exchanges: list[Exchange] = []
    shown: list[JsonObject] = []
    for number, message in enumerate(as_list(messages), start=1):
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise NotOfFormat(f"message {number} is no object with a role: mend it")
        if message["role"] == "assistant":
            exchanges.append(_answer(message, shown, text_call))
            shown = []
        elif shown or not exchanges or not _took(exchanges[-1], message, failed):
            shown.append(message)
            if exchanges:
                _take_parts(exchanges[-1], message)
    return exchanges, shown


def messages_of_exchanges(
    exchanges: Sequence[Exchange],
    after: Sequence[JsonObject] = (),
    *,
    is_chat: bool = True,
    in_words: bool = False,
    as_functions: bool = False,
) -> list[JsonObject]:
    """The conversation that exchanges tell.

    Unless they were read from chat messages (`is_chat`), only the fields that OpenAI's messages have are written. With
    `in_words`, calls that the agent made in words are not written beside them; with `as_functions`, all calls are those
    of functions, however they were written.
    """
    messages: list[JsonObject] = []
    for number, exchange in enumerate(exchanges, start=1):
        messages += exchange.shown
        answer: JsonObject = {"role": "assistant", "content": exchange.text}
        is_told = in_words and any(call.rest.get(IN_WORDS) for call in exchange.calls)
        is_told = is_told or (not as_functions and any(call.rest.get(_IN_PARTS) for call in exchange.calls))
        if exchange.calls and not is_told:
            answer |= _calls_written(exchange.calls, number, is_chat=is_chat and not as_functions)
        if exchange.thoughts and not is_told:
            answer["reasoning_content"] = "\n".join(exchange.thoughts)
        messages.append(answer | (exchange.rest if is_chat else without(exchange.rest, _THOUGHTS)))
        results = []
        for place, call in enumerate(exchange.calls):
            returned = exchange.returned[place] if place < len(exchange.returned) else None
            if returned is not None and (as_functions or not returned.rest.get(_IN_PARTS)):
                told: JsonObject = {"role": "tool", "content": returned.content}
                has_none = "tool_call_ids" in returned.rest or (is_chat and returned.rest.get("has_no_id"))
                if not (is_told or call.rest.get("is_legacy") or has_none):
                    told["tool_call_id"] = call.id or f"call_{number}_{place + 1}"
                rest = without(returned.rest, ("has_no_id", _IN_PARTS))
                results.append((place, told | (rest if is_told else _of_a_tool(rest))))
        messages += in_order(results)
        loose = exchange.returned[len(exchange.calls) :]
        messages += [{"role": "user", "content": item.content, **item.rest} for item in loose if item and item.content]
    messages = [unmarked(told) for told in (*messages, *after)]
    return messages if is_chat else [{name: told[name] for name in told if name in _OF_OPENAI} for told in messages]


def _of_a_tool(rest: JsonObject) -> JsonObject:
    """Further fields of what a tool returned; only a tool's roles are its own."""
    return without(rest, ["role"]) if rest.get("role") not in (None, "tool", "function") else rest


def arguments_written(call: Call) -> str:
    """A call's arguments as the text that the model wrote."""
    told = call.rest.get("arguments_text")
    if isinstance(told, str):
        return told
    arguments = call.rest.get("arguments") if call.arguments is None else call.arguments
    return compact({} if arguments is None else arguments)


def read_call(function: JsonObject) -> Call:
    """A call from its name and arguments, which are JSON text, or an object with some servers."""
    written = function.get("arguments")
    arguments = written
    if isinstance(written, str):
        try:
            arguments = json.loads(written)
        except (ValueError, RecursionError):
            arguments = None
    call = Call(as_text(function.get("name")), arguments if isinstance(arguments, dict) else None)
    if isinstance(written, str):
        call.rest |= (
            {} if call.arguments is not None and compact(call.arguments) == written else {"arguments_text": written}
        )
    elif call.arguments is not None:
        call.rest["arguments_are_object"] = True
    else:
        call.rest |= {"arguments": written} if "arguments" in function else {"has_no_arguments": True}
    return call


def compact(value: Any) -> str:
    """A value as JSON, as models write it."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _answer(message: JsonObject, shown: list[JsonObject], text_call: TextCall | None) -> Exchange:
    content = message.get("content")
    calls = _calls(message)
    named = next((name for name in _THOUGHTS if isinstance(message.get(name), str)), None)
    exchange = Exchange(
        shown=shown,
        text=content if isinstance(content, str) else plain_text(content) if content else None,
        thoughts=[message[named]] if named else _thinking(content),
        calls=calls,
        rest=_further_fields(message, calls, named),
    )
    if message.get("weight") == 0:
        exchange.turn["is_copied_context"] = True  # OpenAI's way to say: do not learn this answer
    if not exchange.calls and exchange.text and text_call and (found := text_call(exchange.text)):
        thoughts, call = found
        call.rest[IN_WORDS] = True
        exchange.thoughts, exchange.calls = [*exchange.thoughts, *thoughts], [call]
        exchange.rest |= {named: message[named]} if named else {}  # thoughts in words are not written beside the words
    exchange.returned = [None] * len(exchange.calls)
    return exchange


def _further_fields(message: JsonObject, calls: list[Call], thoughts: str | None) -> JsonObject:
    """What of an answer is in neither its text, its calls nor its thoughts, and how the original says what it has
    not: by a null, an empty list, or not at all."""
    rest = without(message, _OF_AN_ANSWER)
    content, is_legacy = message.get("content"), any(call.rest.get("is_legacy") for call in calls)
    if isinstance(content, list | dict) or (content is None and not calls and "content" in message):
        rest["content"] = content
    if "tool_calls" in message and (not message["tool_calls"] or not calls):
        rest["tool_calls"] = message["tool_calls"]
    rest |= {"function_call": message["function_call"]} if "function_call" in message and not is_legacy else {}
    left_out = [] if "content" in message else ["content"]
    if thoughts != "reasoning_content":
        # What is read from elsewhere is written there again, and not here as well.
        told = "reasoning_content" in message
        rest |= {"reasoning_content": message["reasoning_content"]} if told else {}
        left_out += [] if told or not (thoughts or _thinking(content)) else ["reasoning_content"]
    return rest | ({LEFT_OUT: left_out} if left_out else {})


def _thinking(content: Any) -> list[str]:
    """What a model thought, where that is a part of its answer."""
    parts = [as_object(part) for part in as_list(content)]
    return [part["thinking"] for part in parts if part.get("type") == "thinking" and as_text(part.get("thinking"))]


def _calls(message: JsonObject) -> list[Call]:
    calls = []
    for written in map(as_object, as_list(message.get("tool_calls"))):
        call = _called(written)
        call.id = as_name(written.get("id"))
        left_out = [name for name in ("id", "type") if name not in written]
        call.rest |= {"left_out": left_out} if left_out else {}
        if "id" in written and (call.id is None or written["id"] != call.id):
            call.rest["fields"] = {**as_object(call.rest.get("fields")), "id": written["id"]}
        calls.append(call)
    for part in map(as_object, as_list(message.get("content")) if not calls else ()):
        if part.get("type") == "tool_use":
            told = as_object(part.get("input"))
            calls.append(Call(as_text(part.get("name")), told, as_name(part.get("id")), {_IN_PARTS: True}))
    if not calls and isinstance(message.get("function_call"), dict):
        calls = [read_call(message["function_call"])]
        calls[0].rest["is_legacy"] = True
        more = without(message["function_call"], ("name", "arguments"))
        calls[0].rest |= {"fields": {"function": more}} if more else {}
    return calls


def _called(written: JsonObject) -> Call:
    """A call as OpenAI writes it, of a function or of a custom tool, or with its name and arguments beside its id."""
    if "function" not in written and isinstance(written.get("name"), str):
        named = "args" if "args" in written else "arguments"
        call = read_call({"name": written["name"], **({"arguments": written[named]} if named in written else {})})
        call.rest |= {"is_flat": named, "fields": without(written, ("id", "name", named))}
        return call
    custom = written.get("custom") if "function" not in written else None
    kind = "custom" if isinstance(custom, dict) else "function"
    more = without(written, ("id", kind) if written.get("type") != kind else ("id", kind, "type"))
    if isinstance(custom, dict):
        call = Call(as_text(custom.get("name")), {"input": custom.get("input")}, rest={"is_custom": True})
        function = without(custom, ("name", "input"))
    else:
        call = read_call(as_object(written.get("function")))
        function = without(as_object(written.get("function")), ("name", "arguments"))
    more |= {"function": function} if function else {}
    call.rest |= {"fields": more} if more else {}
    return call


def _calls_written(calls: Sequence[Call], number: int, *, is_chat: bool) -> JsonObject:
    if calls[0].rest.get("is_legacy"):
        return {"function_call": _function_written(calls[0], is_chat=is_chat)}
    written = []
    for place, call in enumerate(calls, start=1):
        rest = call.rest if is_chat else {}
        told: JsonObject = {"id": call.id or f"call_{number}_{place}"}
        function, fields = _function_written(call, is_chat=is_chat), as_object(rest.get("fields"))
        if named := as_text(rest.get("is_flat")):
            told |= fields | {named if name == "arguments" else name: value for name, value in function.items()}
        else:
            kind = "custom" if rest.get("is_custom") else "function"
            told |= {"type": kind, **without(fields, ["function"]), kind: function}
        written.append(without(told, as_list(rest.get("left_out"))))
    return {"tool_calls": written}


def _function_written(call: Call, *, is_chat: bool) -> JsonObject:
    """A call's name and arguments; of calls that were read from chat messages, as they were."""
    if not is_chat:
        return {"name": call.name, "arguments": arguments_written(call)}
    function: JsonObject = {"name": call.name, "arguments": arguments_written(call)}
    if call.rest.get("is_custom"):
        function = {"name": call.name, **as_object(call.arguments)}
    elif call.rest.get("has_no_arguments"):
        del function["arguments"]
    elif "arguments" in call.rest or call.rest.get("arguments_are_object"):
        function["arguments"] = call.rest.get("arguments", call.arguments)
    return function | as_object(as_object(call.rest.get("fields")).get("function"))


def _take_parts(exchange: Exchange, message: JsonObject) -> None:
    """Note what calls returned that is a part of the message, which is shown whole."""
    for part in map(as_object, as_list(message.get("content"))):
        if part.get("type") == "tool_result":
            for place, call in enumerate(exchange.calls):
                if call.id == as_name(part.get("tool_use_id")) and exchange.returned[place] is None:
                    is_failure = part.get("is_error") is True
                    exchange.returned[place] = Returned(part.get("content"), is_failure, rest={_IN_PARTS: True})


def _took(exchange: Exchange, message: JsonObject, failed: Callable[[str], bool] | None) -> bool:
    """Whether the message tells what a call of the exchange returned; then it is noted there."""
    waiting = [place for place, returned in enumerate(exchange.returned) if returned is None]
    if not waiting:
        return False
    place = waiting[0]
    call = exchange.calls[place]
    if call.rest.get(IN_WORDS):
        if message["role"] != "user":
            return False
    elif message["role"] in ("tool", "function"):
        ids = [as_name(known) for known in (message.get("tool_call_id"), *as_list(message.get("tool_call_ids")))]
        # Some call it by `id`, which with others is the message's own.
        known_as = [*ids, as_name(message.get("id"))]
        named = [number for number in waiting if exchange.calls[number].id in known_as and exchange.calls[number].id]
        if any(isinstance(known, str) for known in ids) and not named:
            return False
        place = named[0] if named else place
        call = exchange.calls[place]
    else:
        return False
    rest = without(message, ("content",) if message["role"] != "tool" else ("role", "content"))
    if message["role"] == "tool" and not {"tool_call_id", "tool_call_ids"} & message.keys():
        rest["has_no_id"] = True
    elif call.id is not None and rest.get("tool_call_id") == call.id:
        rest.pop("tool_call_id", None)
    content = message.get("content")
    if content is None or isinstance(content, int | float):
        rest["content"] = content  # else it would be as if nothing had come back, or as a list of it
    rest |= {} if "content" in message else {LEFT_OUT: ["content"]}
    come = sum(returned is not None for returned in exchange.returned)
    rest |= {COME_AS: come} if come != place else {}
    is_error = True in (message.get("is_error"), message.get("error")) or message.get("status") == "error"
    is_failure = is_error or bool(failed and isinstance(content, str) and failed(content))
    exchange.returned[place] = Returned(content, is_failure, rest=rest)
    return True
