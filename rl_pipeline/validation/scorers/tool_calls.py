"""Calls of tools, compared by name and arguments. Items are shaped as those of Berkeley's leaderboard (BFCL).

The tools are described in the prompt and the calls are expected as JSON, so that every server can be asked.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rl_pipeline.environments.playing import Message
from rl_pipeline.validation.item_files import InvalidItems, Line, read_json_lines
from rl_pipeline.validation.suite import Item

_INSTRUCTIONS = (
    "You can call these functions:\n{functions}\n\nAnswer with the calls that the request needs, as a JSON list of "
    '{{"name": …, "arguments": {{…}}}}, and with nothing else. If no function fits, answer with [].'
)
Calls = list[dict[str, dict[str, list[Any]]]]


class QuestionLine(Line):
    """A question, and the functions on offer."""

    id: str
    question: list[list[dict[str, str]]]
    function: list[dict[str, Any]] | dict[str, Any]
    ground_truth: Calls | None = None
    """Of each call, by the name of the function, the values that each argument may have; "" says it may be left out."""


class GroundTruthLine(Line):
    """The calls that are right, where they are in a file of their own."""

    id: str
    ground_truth: Calls


def load_tool_calls(path: Path, ground_truth: Path | None = None) -> list[Item]:
    """The items of a file, or of the leaderboard's two files."""
    apart = (
        {line.id: line.ground_truth for line in read_json_lines(ground_truth, GroundTruthLine)} if ground_truth else {}
    )
    items = []
    for line in read_json_lines(path, QuestionLine):
        calls = apart.get(line.id, line.ground_truth)
        if calls is None or not line.question:
            raise InvalidItems(f"{path} item {line.id!r}: there should be a question and the calls that are right")
        functions = line.function if isinstance(line.function, list) else [line.function]
        told = "\n".join(json.dumps(function) for function in functions)
        system: Message = {"role": "system", "content": _INSTRUCTIONS.format(functions=told)}
        spoken = tuple(_message(path, line.id, message) for message in line.question[0])
        items.append(Item(line.id, line.id, (system, *spoken), {"calls": calls}))
    return items


def right_calls(item: Item, answer: str) -> float:
    """How many of the calls are right, as a share of those that should be made or, if that is more, were made."""
    expected: Calls = list(item.expected["calls"])
    made = list(_calls_in(answer))
    right = 0
    for call in made:
        fitting = next((wanted for wanted in expected if _fits(call, wanted)), None)
        if fitting is not None:
            expected.remove(fitting)
            right += 1
    needed = max(len(item.expected["calls"]), len(made))
    return right / needed if needed else 1.0


def _message(path: Path, item: str, message: Mapping[str, str]) -> Message:
    if message.get("role") not in ("system", "user", "assistant") or "content" not in message:
        raise InvalidItems(f"{path} item {item!r}: a message should have a role and content")
    return {"role": message["role"], "content": message["content"]}  # type: ignore[typeddict-item]


def _calls_in(answer: str) -> Iterator[Mapping[str, Any]]:
    """The calls in the first JSON of the answer that holds any."""
    decoder = json.JSONDecoder()
    for start in re.finditer(r"[\[{]", answer):
        try:
            found, _ = decoder.raw_decode(answer, start.start())
        except ValueError:
            continue
        except RecursionError:
            return  # no call is nested like that, and what follows would be tried as deeply, bracket by bracket
        calls = found if isinstance(found, list) else [found]
        if all(isinstance(call, dict) and isinstance(call.get("name"), str) for call in calls):
            yield from calls
            return


def _fits(call: Mapping[str, Any], wanted: Mapping[str, Mapping[str, Sequence[Any]]]) -> bool:
    [(name, allowed)] = wanted.items()
    given = call.get("arguments", call.get("parameters", {}))
    if call["name"] != name or not isinstance(given, dict) or not given.keys() <= allowed.keys():
        return False
    return all(
        any(_same(given[argument], value) for value in values) if argument in given else "" in values
        for argument, values in allowed.items()
    )


def _same(given: Any, wanted: Any) -> bool:
    if isinstance(given, bool) or isinstance(wanted, bool):
        return given is wanted
    if isinstance(given, int | float) and isinstance(wanted, int | float):
        return given == wanted
    if isinstance(given, str) and isinstance(wanted, str):
        return re.sub(r"[\W_]", "", given).casefold() == re.sub(r"[\W_]", "", wanted).casefold()
    if isinstance(given, list) and isinstance(wanted, list):
        return len(given) == len(wanted) and all(map(_same, given, wanted))
    if isinstance(given, dict) and isinstance(wanted, dict):
        # Inside objects the leaderboard lists the values that are allowed, too.
        return given.keys() == wanted.keys() and all(
            any(_same(given[key], value) for value in wanted[key])
            if isinstance(wanted[key], list) and not isinstance(given[key], list)
            else _same(given[key], wanted[key])
            for key in given
        )
    return given is None and wanted is None
