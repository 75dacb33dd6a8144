"""The words by which texts are found: lower case, without endings that change nothing, and without the commonest."""

import re
from collections.abc import Sequence
from functools import lru_cache
from itertools import chain

_WORD = re.compile(r"[^\W_]+")
_COMMON = frozenset(
    _WORD.findall(
        "a about an and are as at be been but by can could did do does for from had has have he her him his how i if "
        "in into is it its just me my no not of on or our out s she so t than that the their them then there they this "
        "to up us was we were what when where which who will with would you your"
    )
)
_WINDOW = 3
"""Turns that are searched as one text: an answer is in the turn after the question, in other words."""


@lru_cache(maxsize=65536)
def stem(word: str) -> str:
    """The word without the endings of plurals and tenses."""
    if len(word) > 4 and word.endswith("ies"):
        return word[:-3] + "y"
    for ending in ("ing", "ed"):
        if len(word) > len(ending) + 3 and word.endswith(ending):
            shorter = word[: -len(ending)]
            doubled = shorter[-1] == shorter[-2] and shorter[-1] not in "lsz"
            return (shorter[:-1] if doubled else shorter).removesuffix("e")
    if len(word) > 3 and word.endswith("s") and not word.endswith(("ss", "us", "is")):
        word = word[:-1]
    return word.removesuffix("e") if len(word) > 4 else word


def words_of(text: str) -> list[str]:
    """The words of a text, in order. A text of common words alone keeps them."""
    found = _WORD.findall(text.lower())
    return [stem(word) for word in found if word not in _COMMON] or found


def windows_of(turns: Sequence[str]) -> list[list[str]]:
    """The words of every three turns in a row; of fewer turns, of all of them."""
    words = [words_of(turn) for turn in turns]
    return [list(chain(*words[first : first + _WINDOW])) for first in range(max(1, len(words) - _WINDOW + 1))]


def windows_around(turns: Sequence[str]) -> list[list[str]]:
    """For each turn, its words and those of the turn before and after it."""
    words = [words_of(turn) for turn in turns]
    return [list(chain(*words[max(0, place - 1) : place + _WINDOW - 1])) for place in range(len(words))]
