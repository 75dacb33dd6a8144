"""What stands in paths and queries."""

import re
from datetime import UTC, datetime, timedelta
from typing import Annotated

from fastapi import Path, Query

from rl_pipeline.contracts.fields import IDENTIFIER_PATTERN

_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}
_SINCE = r"^(\d{1,5}[smhdw]|\d{4}-\d{2}-\d{2}(T\d{2}:\d{2}(:\d{2})?Z)?)$"

JobId = Annotated[str, Path(pattern=IDENTIFIER_PATTERN, description="The job's id.", examples=["manual-5b0c6d1e"])]
TrajectoryId = Annotated[str, Path(pattern=IDENTIFIER_PATTERN, description="The trajectory's id.")]
Limit = Annotated[int, Query(ge=1, le=500, description="At most so many.")]
Since = Annotated[
    str | None,
    Query(pattern=_SINCE, description="How long ago, as 30m, 12h, 7d or 2w, or a UTC date or time.", examples=["7d"]),
]


def moment(text: str | None, now: datetime) -> datetime | None:
    """The time that a `Since` names. A date that no calendar has is taken for the beginning of time."""
    if text is None:
        return None
    if found := re.fullmatch(r"(\d{1,5})([smhdw])", text):
        return max(now - timedelta(**{_UNITS[found[2]]: int(found[1])}), _BEGINNING)
    try:
        named = datetime.fromisoformat(text.replace("Z", "+00:00"))
    except ValueError:
        return _BEGINNING
    return max(named if named.tzinfo else named.replace(tzinfo=UTC), _BEGINNING)


_BEGINNING = datetime(1970, 1, 1, tzinfo=UTC)
