"""OTLP's JSON: attributes are lists of keys with typed values, times are nanoseconds as text."""

from datetime import UTC, datetime, timedelta
from typing import Any

from rl_pipeline.collection.formats.values import JsonObject, as_list, as_object, as_text

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_LARGEST_EXACT = 2**53 - 1
_BYTES = "bytesValue"


def plain_attributes(listed: Any) -> JsonObject:
    """Attributes by their keys."""
    told = (as_object(item) for item in as_list(listed))
    return {item["key"]: plain_value(item.get("value")) for item in told if isinstance(item.get("key"), str)}


def listed_attributes(attributes: JsonObject) -> list[JsonObject]:
    """Attributes as OTLP has them."""
    return [{"key": key, "value": any_value(value)} for key, value in attributes.items()]


def plain_value(value: Any) -> Any:
    """A typed value as JSON has it; bytes stay as they are."""
    told = as_object(value)
    for kind, item in told.items():
        match kind:
            case "stringValue" | "boolValue" | "doubleValue":
                return item
            case "intValue":
                return _integer(item)
            case "arrayValue":
                return [plain_value(one) for one in as_list(as_object(item).get("values"))]
            case "kvlistValue":
                return plain_attributes(as_object(item).get("values"))
            case "bytesValue":
                return {_BYTES: item}
            case _:
                continue
    return None


def any_value(value: Any) -> JsonObject:
    """A value with its type."""
    for kind, name in ((bool, "boolValue"), (float, "doubleValue"), (str, "stringValue")):
        if isinstance(value, kind):
            return {name: value}
    if isinstance(value, int):
        return {"intValue": str(value)}
    if isinstance(value, list):
        return {"arrayValue": {"values": [any_value(one) for one in value]}}
    if isinstance(value, dict):
        return value if value.keys() == {_BYTES} else {"kvlistValue": {"values": listed_attributes(value)}}
    return {}


def nanoseconds(value: Any) -> int | None:
    """A time or a number of nanoseconds, which is text in JSON."""
    told = _integer(value)
    return int(told) if isinstance(told, int | str) and str(told).isdigit() and int(told) > 0 else None


def written_nanoseconds(moment: datetime) -> str:
    """A time as OTLP has it."""
    return str((moment - _EPOCH) // timedelta(microseconds=1) * 1000)


def _integer(value: Any) -> Any:
    """A whole number; one that JSON's readers cannot hold exactly stays text."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value if abs(value) <= _LARGEST_EXACT else str(value)
    text = as_text(value)
    digits = text.removeprefix("-")
    is_exact = digits.isascii() and digits.isdigit() and len(digits) < 17 and abs(int(text)) <= _LARGEST_EXACT
    return int(text) if is_exact else value
