"""Things that go on: since when, and whether that is long or often enough for an alert."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta


@dataclass(frozen=True, slots=True)
class Episode:
    """Something that has been bad at every look since then."""

    since: datetime
    looks: int = 1

    def has_lasted(self, at_least: timedelta, now: datetime) -> bool:
        """Whether it goes on for so long."""
        return now - self.since >= at_least


@dataclass(slots=True)
class Look:
    """One look at all that is watched: what went on before it, and what goes on after it."""

    now: datetime
    looked_last: datetime
    before: Mapping[str, Episode] = field(default_factory=dict)
    going_on: dict[str, Episode] = field(default_factory=dict)

    @classmethod
    def after(cls, remembered: str | None, now: datetime) -> "Look":
        """The look that follows the one which `as_text` remembers.

        People can edit what is remembered: what makes no sense counts for none, and what was before the first look is
        no news.
        """
        try:
            content = json.loads(remembered or "{}")
            episodes = {
                str(name): Episode(datetime.fromisoformat(since), int(looks))
                for name, (since, looks) in content["episodes"].items()
            }
            return cls(now, datetime.fromisoformat(content["looked"]), episodes)
        except (ValueError, TypeError, KeyError, AttributeError):
            return cls(now, now)

    def found(self, name: str, is_bad: bool) -> Episode | None:
        """What goes on under this name, if it is bad now: one good look ends an episode."""
        if not is_bad:
            return None
        known = self.before.get(name)
        self.going_on[name] = replace(known, looks=known.looks + 1) if known else Episode(self.now)
        return self.going_on[name]

    def could_not_see(self, name: str) -> None:
        """It is not known whether it goes on: so it does, if it did."""
        if name in self.before:
            self.going_on[name] = self.before[name]

    def as_text(self) -> str:
        """For the next look."""
        episodes = {name: [episode.since.isoformat(), episode.looks] for name, episode in self.going_on.items()}
        return json.dumps({"looked": self.now.isoformat(), "episodes": episodes})

    def __str__(self) -> str:
        return ", ".join(f"{name} since {each.since:%Y-%m-%d %H:%M} UTC" for name, each in self.going_on.items())
