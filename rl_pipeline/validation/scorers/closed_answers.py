"""Questions with one right answer: a number, a word or a letter."""

import math
import re
from pathlib import Path
from typing import Literal

from rl_pipeline.validation.item_files import InvalidItems, Line, read_json_lines
from rl_pipeline.validation.suite import Item, UnusableAnswer

_NUMBER = re.compile(r"[-+]?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?(?:[eE][-+]?\d+)?")
_MARKED = re.compile(r"(?:final )?answer(?: is)?\s*[:=]?\s*(.+)", re.IGNORECASE)
_CHOICE = re.compile(r"\b([A-H])\b")
_HOW_TO_ANSWER = {
    "number": "End with a line `Answer: ` and the number alone.",
    "exact": "End with a line `Answer: ` and nothing but the answer.",
    "choice": "End with a line `Answer: ` and the letter alone.",
}


class ClosedLine(Line):
    """One question."""

    id: str
    prompt: str
    kind: Literal["number", "exact", "choice"]
    answer: str | float | int
    """Several words that are right are divided by `|`."""
    tolerance: float = 0.0
    """Of a number: how far off it may be, absolute."""
    family: str | None = None


def load_closed(path: Path) -> list[Item]:
    """The questions of a file."""
    items = []
    for line in read_json_lines(path, ClosedLine):
        if (line.kind == "number") != isinstance(line.answer, int | float):
            raise InvalidItems(f"{path} item {line.id!r}: the answer should be a number where its kind is, else text")
        question = f"{line.prompt}\n\n{_HOW_TO_ANSWER[line.kind]}"
        message = {"role": "user", "content": question}
        items.append(Item(line.id, line.family or line.id, (message,), line.model_dump()))  # type: ignore[arg-type]
    return items


def is_right(item: Item, answer: str) -> float:
    """1 for the right answer, else 0."""
    said, right, kind = _final(answer), item.expected["answer"], item.expected["kind"]
    if kind == "number":
        return float(_same_number(said, answer, float(right), float(item.expected["tolerance"])))
    if kind == "choice":
        letters = _CHOICE.findall(said.upper()) or _CHOICE.findall(answer)
        return float(bool(letters) and letters[-1] == right)
    if kind == "exact":
        return float(_plain(said) in {_plain(word) for word in str(right).split("|")})
    raise UnusableAnswer(f"item {item.id!r} is of an unknown kind {kind!r}")


def last_number(text: str) -> float | None:
    """The last number in `text`, if there is one."""
    found = _NUMBER.findall(text)
    return float(found[-1].replace(",", "")) if found else None


def _final(answer: str) -> str:
    """What the answer itself calls the answer, else its last line."""
    lines = [line.strip(" *`#.") for line in answer.strip().splitlines() if line.strip(" *`#.")]
    marked = [found.group(1) for line in lines if (found := _MARKED.search(line))]
    return (marked or lines or [""])[-1].strip(" *`.$")


def _same_number(said: str, answer: str, right: float, tolerance: float) -> bool:
    found = last_number(said)
    found = last_number(answer) if found is None else found
    return found is not None and math.isclose(found, right, rel_tol=1e-9, abs_tol=tolerance + 1e-9)


def _plain(text: str) -> str:
    return " ".join(re.sub(r"[^\w\s.-]", " ", text.casefold()).split())
