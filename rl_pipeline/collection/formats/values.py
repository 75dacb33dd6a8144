"""Values of foreign files as the contract takes them: whatever is of another kind than expected is read as absent."""

import math
import re
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

JsonObject = dict[str, Any]

_LONGEST_NAME = 512
_LARGEST_COUNT = 2**53 - 1
_TIME_OF_DAY = re.compile(r"[T ]\d{1,2}:\d\d")


def as_object(value: Any) -> JsonObject:
    """The object, or an empty one."""
    return value if isinstance(value, dict) else {}


def as_list(value: Any) -> list[Any]:
    """The list, or an empty one."""
    return value if isinstance(value, list) else []


def as_text(value: Any) -> str:
    """The text, or an empty one."""
    return value if isinstance(value, str) else ""


def as_name(value: Any) -> str | None:
    """What can be an id or a name; numbers are written out, and what is too long is cut."""
    if isinstance(value, bool) or not isinstance(value, str | int):
        return None
    return str(value)[:_LONGEST_NAME] or None


def as_count(value: Any) -> int | None:
    """A number of things."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    is_count = isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _LARGEST_COUNT
    return value if is_count else None


def as_number(value: Any) -> float | None:
    """A finite number; true and false are one and nought, as rewards are."""
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None


def as_cost(value: Any) -> float | None:
    """A number that is not negative."""
    number = as_number(value)
    return number if number is not None and number >= 0 else None


def as_moment(value: Any) -> datetime | None:
    """A time from ISO 8601 text or from a number of seconds, milliseconds, microseconds or nanoseconds since 1970.

    A time without a zone is taken as UTC.
    """
    moment: datetime | None = None
    try:
        if isinstance(value, str) and _TIME_OF_DAY.search(value):
            moment = datetime.fromisoformat(value.strip())
        elif isinstance(value, int | float) and not isinstance(value, bool) and value > 0:
            seconds = float(value)
            while seconds > 1e11:
                seconds /= 1000
            moment = datetime.fromtimestamp(seconds, UTC)
    except (ValueError, OverflowError, OSError):
        return None
    if moment is None:
        return None
    moment = moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment
    return moment if 1970 < moment.year < 2199 else None


def token_ids(value: Any) -> list[int] | None:
    """The ids, if they are some."""
    ids = [as_count(item) for item in as_list(value)]
    return [item for item in ids if item is not None] if ids and None not in ids else None


def numbers(value: Any) -> list[float] | None:
    """The numbers, if they are all finite ones."""
    found = [as_number(item) for item in as_list(value)]
    return [item for item in found if item is not None] if found and None not in found else None


def filled(fields: JsonObject) -> JsonObject:
    """The fields that have a value."""
    return {name: value for name, value in fields.items() if value is not None}


def without(value: JsonObject, names: Iterable[str]) -> JsonObject:
    """The object without some of its fields."""
    left_out = set(names)
    return {name: item for name, item in value.items() if name not in left_out}


def plain_text(content: Any) -> str:
    """What a message says in words; of parts, those that are text."""
    if isinstance(content, str):
        return content
    parts = (as_text(part.get("text")) if isinstance(part, dict) else as_text(part) for part in as_list(content))
    return "\n".join(part for part in parts if part)
