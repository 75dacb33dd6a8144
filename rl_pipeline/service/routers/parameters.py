"""What stands in paths and queries."""

import re
from datetime import UTC, datetime, timedelta
from typing import Annotated

from fastapi import Path, Query

from rl_pipeline.contracts.fields import IDENTIFIER_PATTERN
from rl_pipeline.errors import PipelineError

_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}
_SINCE = r"^(\d{1,5}[smhdw]|\d{4}-\d{2}-\d{2}(T\d{2}:\d{2}(:\d{2})?Z)?)$"

JobId = Annotated[str, Path(pattern=IDENTIFIER_PATTERN, description="The job's id.", examples=["manual-5b0c6d1e"])]
TrajectoryId = Annotated[str, Path(pattern=IDENTIFIER_PATTERN, description="The trajectory's id.")]
Limit = Annotated[int, Query(ge=1, le=500, description="At most so many.")]
Since = Annotated[
    str | None,
    Query(pattern=_SINCE, description="How long ago, as 30m, 12h, 7d or 2w, or a UTC date or time.", examples=["7d"]),
]


class NoSuchDate(PipelineError):
    """A date that looks like one, and is in no calendar."""


def moment(text: str | None, now: datetime) -> datetime | None:
    """The time that a `Since` names. Raises `NoSuchDate`."""
    if text is None:
        return None
    if found := re.fullmatch(r"(\d{1,5})([smhdw])", text):
        return max(now - timedelta(**{_UNITS[found[2]]: int(found[1])}), _BEGINNING)
    try:
        named = datetime.fromisoformat(text.replace("Z", "+00:00"))
    except ValueError:
        raise NoSuchDate(f"no calendar has {text}: give a date that there is, or how long ago, as 7d") from None
    return max(named if named.tzinfo else named.replace(tzinfo=UTC), _BEGINNING)


_BEGINNING = datetime(1970, 1, 1, tzinfo=UTC)
