"""The stretches of time that reports are about, in UTC."""

from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from typing import Any

REPORT_HOUR = time(8, tzinfo=UTC)
"""A day's summary covers the 24 hours before it, a week's report the seven days."""


@dataclass(frozen=True, slots=True)
class Period:
    """From its start to before its end."""

    start: datetime
    end: datetime

    @property
    def length(self) -> timedelta:
        """How long it is."""
        return self.end - self.start

    @property
    def before(self) -> "Period":
        """As long, and just before it."""
        return Period(self.start - self.length, self.start)

    def parameters(self) -> dict[str, Any]:
        """For queries: `start` and `end`. ClickHouse's parameters take UTC without saying so."""
        return {"start": self.start.replace(tzinfo=None), "end": self.end.replace(tzinfo=None)}

    def __str__(self) -> str:
        return f"{self.start:%Y-%m-%d %H:%M} to {self.end:%Y-%m-%d %H:%M} UTC"


def period_up_to(day: date, days: int, now: datetime) -> Period:
    """The days that end at 08:00 of `day`; where that is still to come, those that end now."""
    end = min(datetime.combine(day, REPORT_HOUR), now)
    return Period(end - timedelta(days=days), end)


def parsed_period(text: str) -> Period:
    """`2026-01-01/2026-01-28`, both days included. Raises `ValueError`."""
    first, last = (date.fromisoformat(part.strip()) for part in text.split("/"))
    if last < first:
        raise ValueError("the last day comes before the first")
    midnight = time(tzinfo=UTC)
    return Period(datetime.combine(first, midnight), datetime.combine(last + timedelta(days=1), midnight))
