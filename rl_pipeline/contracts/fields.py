"""The kinds of value that the messages are made of: ids, timestamps, numbers, and the two shapes of object.

Rules that hold for one message only belong to that message's module.
"""

import re
from datetime import UTC, datetime
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema
from pydantic_core import PydanticCustomError

IDENTIFIER_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._:-]{0,127}$"
UUID_PATTERN = r"^[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}$"
# A host by name or IPv4 address, then path and query: what every validator's `format: uri` agrees on.
URI_PATTERN = (
    r"^[A-Za-z][A-Za-z0-9+.-]*://[A-Za-z0-9._-]+(:[0-9]{1,5})?"
    r"(/([A-Za-z0-9._~:@!$&'()*+,;=-]|%[0-9A-Fa-f]{2})*)*(\?([A-Za-z0-9._~:@!$&'()*+,;=/?-]|%[0-9A-Fa-f]{2})*)?$"
)
# The years that every store of the pipeline can hold; a publisher's zero time (year 1) is refused rather than clamped.
TIMESTAMP_PATTERN = (
    r"^(19[7-9][0-9]|2[01][0-9]{2})-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])"
    r"[Tt]([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\.[0-9]{1,9})?([Zz]|[+-]([01][0-9]|2[0-3]):[0-5][0-9])$"
)
LARGEST_EXACT_INTEGER = 2**53 - 1

_TIMESTAMP = re.compile(TIMESTAMP_PATTERN)


def _read_timestamp(value: object) -> object:
    try:
        moment = _parse_timestamp(value).astimezone(UTC)
    except (ValueError, OverflowError):  # a day that its month does not have, an hour before year 1
        raise _bad_timestamp() from None
    if not 1970 <= moment.year <= 2199:
        raise _bad_timestamp()
    return moment


def _parse_timestamp(value: object) -> datetime:
    if isinstance(value, datetime) and value.tzinfo is not None:
        return value
    if isinstance(value, str) and _TIMESTAMP.fullmatch(value):
        return datetime.fromisoformat(value.upper())
    raise _bad_timestamp()


def _bad_timestamp() -> PydanticCustomError:
    return PydanticCustomError("timestamp", "should be an RFC 3339 timestamp with a zone, from 1970 to 2199")


def check_order(start: datetime | None, end: datetime | None) -> None:
    """Refuse a span of time that ends before it starts."""
    if start is not None and end is not None and end < start:
        raise PydanticCustomError("end_before_start", "should not be before the start")


def whole_number(value: object) -> object:
    """`32.0` is an integer to JSON Schema, so it is one here."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _whole_numbers(value: object) -> object:
    return [whole_number(item) for item in value] if isinstance(value, list) and float in map(type, value) else value


def is_absent(value: object) -> bool:
    """Fields without a value are left out of the message, so that readers that know no null accept it."""
    return value is None


def optional(description: str, **constraints: Any) -> Any:
    """A field that may be left out; null is read as left out."""
    return Field(default=None, exclude_if=is_absent, description=description, **constraints)


Name = Annotated[str, Field(min_length=1, max_length=512)]
Identifier = Annotated[str, Field(pattern=IDENTIFIER_PATTERN)]
Uuid = Annotated[str, Field(pattern=UUID_PATTERN, json_schema_extra={"format": "uuid"}), AfterValidator(str.lower)]
Uri = Annotated[str, Field(pattern=URI_PATTERN, json_schema_extra={"format": "uri"})]
Timestamp = Annotated[
    datetime,
    BeforeValidator(_read_timestamp),
    WithJsonSchema({"type": "string", "format": "date-time", "pattern": TIMESTAMP_PATTERN}),
]
Count = Annotated[int, Field(ge=0, le=LARGEST_EXACT_INTEGER), BeforeValidator(whole_number)]
PositiveInteger = Annotated[int, Field(ge=1, le=LARGEST_EXACT_INTEGER), BeforeValidator(whole_number)]
TokenIds = Annotated[
    list[Annotated[int, Field(ge=0, le=LARGEST_EXACT_INTEGER)]], Field(fail_fast=True), BeforeValidator(_whole_numbers)
]
Number = float
NonNegativeNumber = Annotated[float, Field(ge=0)]
Share = Annotated[float, Field(ge=0, le=1)]
Percentage = Annotated[float, Field(ge=0, le=100)]
JsonObject = dict[str, Any]


class ContractModel(BaseModel):
    """What all parts of a message share: exact types, no NaN, no change after reading, no values in error texts."""

    model_config = ConfigDict(
        strict=True,
        frozen=True,
        allow_inf_nan=False,
        hide_input_in_errors=True,
        ser_json_inf_nan="constants",  # a NaN in an open object must be refused by `serialize`, not become null
    )


class OpenObject(ContractModel):
    """A part of a message that may carry more fields than the contract names; they are kept as they are."""

    model_config = ConfigDict(extra="allow")


class ClosedObject(ContractModel):
    """The top level of a message: only the fields of the contract."""

    model_config = ConfigDict(extra="forbid")


def contract_field_names() -> frozenset[str]:
    """Every field name of every contract model that has been defined: the keys that an error's path may show."""
    names: set[str] = set()
    waiting: list[type[ContractModel]] = [ContractModel]
    while waiting:
        model = waiting.pop()
        names.update(model.model_fields)
        waiting.extend(model.__subclasses__())
    return frozenset(names)
