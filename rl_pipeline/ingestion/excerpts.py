"""What may be shown of a message that was refused: its beginning, redacted as a whole before it is cut."""

import json
import re
from collections.abc import Mapping
from typing import Any

from pydantic_core import from_json

from rl_pipeline.contracts import DEFAULT_LIMITS
from rl_pipeline.redaction.literals import is_distinctive
from rl_pipeline.redaction.redactor import PLACEHOLDER, Redactor, SensitiveKey

EXCERPT_CHARACTERS = 2_000
_ESCAPE = re.compile(r"\\(?:u([0-9a-fA-F]{4})|([\"\\/bfnrt]))")
_MEANT = {'"': '"', "\\": "\\", "/": "/", "b": " ", "f": " ", "n": "\n", "r": "\n", "t": "\t"}
_NO_TEXT = re.compile("[\ud800-\udfff\ufffd\x00]")
# Nobody needs an excerpt of a list of users, and looking for thousands of them takes long.
_MOST_KNOWN = 50


def excerpt_of(data: bytes, redactor: Redactor, known: Mapping[str, str]) -> str:
    """The first 2,000 characters of a message, after every sensitive value in all of it was replaced.

    What can be read as JSON is redacted as such, so that a field's name protects its value; sensitive keys are replaced
    too. Anything else is redacted as one text, with JSON's escapes resolved so that none hides a value. `known` are
    further values with their kinds, as users' ids: none of them is shown, however short it is. Nothing is shown of what
    has too many of them, or is neither JSON nor UTF-8.
    """
    if len(known) > _MOST_KNOWN:
        return ""
    tree = lenient_tree(data, DEFAULT_LIMITS.max_bytes)
    if isinstance(tree, dict | list) and _depth_is_within(tree, DEFAULT_LIMITS.max_depth):
        shown = _redacted_tree(tree, redactor, known)
        if shown is not None:
            return without_known(json.dumps(shown, ensure_ascii=False), redactor, known)[:EXCERPT_CHARACTERS]
    if not json.detect_encoding(data).startswith("utf-8"):
        return ""
    # What is no text becomes a blank, so that it glues nothing to a value.
    text = without_known(_NO_TEXT.sub(" ", without_escapes(decoded(data))), redactor, known)
    # Again, because the redactor resolves escapes of escapes.
    return without_known(redactor.redact_text(text).text, redactor, known)[:EXCERPT_CHARACTERS]


def without_known(text: str, redactor: Redactor, known: Mapping[str, str]) -> str:
    """The text with placeholders for the known values: the distinctive ones anywhere, others where no word goes on."""
    written = {form: value for value in known for form in (value, json.dumps(value, ensure_ascii=False)[1:-1])}
    # Longer ones first: an id may begin with another.
    present = sorted((form for form in written if form in text), key=len, reverse=True)
    if not present:
        return text

    def replaced(found: re.Match[str]) -> str:
        value = written.get(found[0])
        return found[0] if value is None else redactor.placeholder(known[value], value)

    # Placeholders are passed over whole, because an id may look like a part of one.
    return re.sub("|".join((PLACEHOLDER.pattern, *map(_whole, present))), replaced, text)


def _whole(value: str) -> str:
    if is_distinctive(value.encode("utf-8", "replace")):
        return re.escape(value)
    before = r"(?<!\w)" if re.match(r"\w", value) else ""
    after = r"(?!\w)" if re.search(r"\w\Z", value) else ""
    return before + re.escape(value) + after


def lenient_tree(data: bytes, max_bytes: int) -> Any:
    """What the data means to a reader that forgives broken ends, NaN, repeated keys, half characters and encodings
    other than UTF-8, else None."""
    if len(data) > max_bytes:
        return None
    try:
        return from_json(data, allow_inf_nan=True, allow_partial="trailing-strings")
    except ValueError:
        pass
    try:
        return _whole_characters(json.loads(decoded(data), strict=False))
    except (ValueError, RecursionError):
        return None


def decoded(data: bytes) -> str:
    """The data as the text that its first bytes say it is, without a byte order mark."""
    return data.decode(json.detect_encoding(data), "replace")


def without_escapes(text: str) -> str:
    """The text with JSON's escapes resolved, once."""
    return _ESCAPE.sub(_unescaped, text)


def _redacted_tree(tree: Any, redactor: Redactor, known: Mapping[str, str]) -> Any | None:
    try:
        return redactor.redact(tree, known=known).tree
    except SensitiveKey:
        keys = sorted(_keys(tree))
    renamed = dict(zip(keys, redactor.redact(keys, known=known).tree, strict=True))
    try:
        return redactor.redact(_with_keys(tree, renamed), known=known).tree
    except SensitiveKey:
        return None


def _depth_is_within(tree: Any, most: int) -> bool:
    level = [tree]
    for _ in range(most):
        level = [
            child
            for value in level
            if isinstance(value, dict | list)
            for child in (value.values() if isinstance(value, dict) else value)
        ]
        if not level:
            return True
    return False


def _keys(tree: Any) -> set[str]:
    if isinstance(tree, dict):
        return set(tree).union(*map(_keys, tree.values()))
    return set().union(*map(_keys, tree)) if isinstance(tree, list) else set()


def _with_keys(tree: Any, renamed: Mapping[str, str]) -> Any:
    if isinstance(tree, dict):
        return {renamed[key]: _with_keys(value, renamed) for key, value in tree.items()}
    return [_with_keys(value, renamed) for value in tree] if isinstance(tree, list) else tree


def _whole_characters(tree: Any) -> Any:
    if isinstance(tree, str):
        return _NO_TEXT.sub(" ", tree)
    if isinstance(tree, dict):
        return {_whole_characters(key): _whole_characters(value) for key, value in tree.items()}
    if isinstance(tree, list):
        return [_whole_characters(value) for value in tree]
    return tree


def _unescaped(escape: re.Match[str]) -> str:
    return chr(int(escape[1], 16)) if escape[1] else _MEANT[escape[2]]
