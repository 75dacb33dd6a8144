"""Texts that sum sources up: which of the points that must be made are made, and which that must not be are made.

Only the first words count, as many as the item allows: who copies the sources has said all, and summed up nothing.
"""

import re
from pathlib import Path

from pydantic import Field

from rl_pipeline.validation.item_files import InvalidItems, Line, read_json_lines
from rl_pipeline.validation.suite import Item


class ClaimsLine(Line):
    """One question about sources. A claim is a regular expression, found whatever the case."""

    id: str
    prompt: str
    required: list[str]
    forbidden: list[str] = Field(default_factory=list)
    most_words: int = 120
    family: str | None = None
    reference: str | None = None
    """An answer that makes every point."""


def load_claims(path: Path) -> list[Item]:
    """The questions of a file."""
    items = []
    for line in read_json_lines(path, ClaimsLine):
        for claim in (*line.required, *line.forbidden):
            try:
                re.compile(claim)
            except re.error as error:
                raise InvalidItems(f"{path} item {line.id!r}: {claim!r} is no regular expression: {error}") from None
        if not line.required:
            raise InvalidItems(f"{path} item {line.id!r}: something should be required")
        question = f"{line.prompt}\n\nAnswer in at most {line.most_words} words."
        items.append(Item(line.id, line.family or line.id, ({"role": "user", "content": question},), line.model_dump()))
    return items


def coverage(item: Item, answer: str) -> float:
    """The share of the required points that are made, less the share of the forbidden ones, and not below 0."""
    text = " ".join(answer.split()[: item.expected["most_words"]])
    required, forbidden = item.expected["required"], item.expected["forbidden"]
    made = sum(_found(claim, text) for claim in required) / len(required)
    wrong = sum(_found(claim, text) for claim in forbidden) / len(forbidden) if forbidden else 0.0
    return max(0.0, made - wrong)


def _found(claim: str, text: str) -> bool:
    return re.search(claim, text, re.IGNORECASE) is not None
