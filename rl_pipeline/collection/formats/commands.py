"""Calls in words, for formats whose steps have one command each.

A call is its command where that is all it was given, otherwise its name with its arguments. A command alone does not
tell which tool it was for, nor whether it was one: the field `rl_pipeline` has the tool of every step (`tools`).
"""

from collections.abc import Sequence
from typing import Any

from rl_pipeline.collection.formats.chat import arguments_written, read_call
from rl_pipeline.collection.formats.exchanges import Call, Exchange
from rl_pipeline.collection.formats.format import CARRIED
from rl_pipeline.collection.formats.values import JsonObject, as_list, as_object


def one_call_each(exchanges: Sequence[Exchange]) -> list[Exchange]:
    """The exchanges, with one of its own for every further call of an answer."""
    apart = []
    for exchange in exchanges:
        for place, call in enumerate(exchange.calls or [None]):
            one = (
                Exchange() if place else Exchange(exchange.shown, exchange.text, exchange.thoughts, turn=exchange.turn)
            )
            one.calls = [call] if call else []
            one.returned = exchange.returned[place : place + 1]
            apart.append(one)
    return apart


def tools_of(exchanges: Sequence[Exchange]) -> JsonObject:
    """Which tool each of these called, as the field `rl_pipeline` carries it; none for an answer without a call."""
    return {"tools": [exchange.calls[0].name if exchange.calls else None for exchange in exchanges]}


def carried_tools(record: JsonObject) -> list[Any]:
    """What `tools_of` told when a record was written from elsewhere."""
    return as_list(as_object(record.get(CARRIED)).get("tools"))


def written_command(call: Call) -> str:
    """A call in words."""
    arguments = as_object(call.arguments)
    command = arguments.get("command")
    is_all = isinstance(command, str) and len(arguments) == 1 and not command.startswith(f"{call.name} ")
    return str(command) if is_all else f"{call.name} {arguments_written(call)}"


def read_command(tool: Any, command: str) -> list[Call]:
    """The call of a tool that was written so; none where there was no tool."""
    if not isinstance(tool, str):
        return []
    if command.startswith(f"{tool} "):
        return [read_call({"name": tool, "arguments": command.removeprefix(f"{tool} ")})]
    return [Call(tool, {"command": command})]
