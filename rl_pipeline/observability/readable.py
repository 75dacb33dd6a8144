"""Text of trajectories made fit to be looked at. It was written by strangers: none of it may act on who reads it."""

import json
import re
from datetime import datetime
from html import escape
from typing import Any

from rl_pipeline.redaction.placeholders import PLACEHOLDER

# What moves a terminal's cursor, or turns the direction of what follows, so that it reads otherwise than it is.
_UNSEEN = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]")


def plain(value: Any) -> str:
    """A value as text, in which every character can be seen."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, indent=2)
    return _UNSEEN.sub(lambda found: f"⟨U+{ord(found.group()):04X}⟩", text.replace("\r\n", "\n"))


def one_line(value: Any) -> str:
    """A value as a line of text: a name with a break in it begins no line of its own."""
    return " ".join(plain(value).split())


def html(value: Any) -> str:
    """A value as HTML that shows its text and does nothing; placeholders of redaction are marked."""
    marked, end = [], 0
    text = plain(value)
    for found in PLACEHOLDER.finditer(text):
        kind = found.group().split(":")[1]
        marked.append(escape(text[end : found.start()]))
        marked.append(f'<mark title="redacted: {escape(found.group())}">{escape(kind)}</mark>')
        end = found.end()
    return "".join([*marked, escape(text[end:])])


def moment(time: datetime | str | None) -> str:
    """A moment in UTC, to the second. What is no moment stays what it was: text like any other."""
    if isinstance(time, datetime):
        return f"{time:%Y-%m-%d %H:%M:%S}"
    return str(time or "")[:19].replace("T", " ")


def action_name(action: dict[str, Any]) -> str:
    """What an action is, in a few words."""
    kind = str(action.get("type", "")).replace("_", " ")
    return f"{kind}: {action['tool_name']}" if action.get("tool_name") else kind
