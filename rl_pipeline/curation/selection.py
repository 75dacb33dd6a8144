"""Which of the candidates become part of a dataset: the best in turn, within the quotas of domains and all caps.

A cap is a share of what is chosen, not of what was asked for: with 4,000 from one source and 1,000 from another, a cap
of half leaves 1,000 of each. Where there are fewer sources or users than the share takes, each may have an equal part
of what there is; and one beside which the others have next to nothing may have everything.

Every function here is pure, gives the same for the same rows in whatever order they come, and accounts for every row:
it is kept, or left out for one reason.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import polars as pl

from rl_pipeline.curation.balance import cap_of, cap_within, quotas_of
from rl_pipeline.curation.policy import Criteria, CurationPolicy

CAPPED = ("source_cap", "user_cap")
"""Why something is left out that there may be room for."""


@dataclass(frozen=True)
class Caps:
    """The most that one source and one user may have, in trajectories. Nobody in particular (user 0) has no cap."""

    source: int
    user: int


@dataclass(frozen=True)
class Selection:
    """What was chosen, and why the rest was not."""

    kept: pl.DataFrame
    """Rows of the candidates, in order of id."""
    left_out: Counter[str]
    quotas: Mapping[str, int]
    caps: Caps
    lost_to_caps: int
    """How many more could have been kept without caps: not those whose places others took."""


class Room:
    """What may still be taken. A unit (a row, or the rows of a pair) is taken whole or not at all."""

    def __init__(self, rows: pl.DataFrame, quotas: Mapping[str, int], caps: Caps) -> None:
        # Series, since lists of all the candidates would take more memory than the candidates.
        self._domain = rows["domain"].cast(pl.String)
        self._source = rows["source"].cast(pl.String)
        self._user = rows["user"]
        self._caps = caps
        self._left = dict(quotas)
        self._total = sum(quotas.values())
        self._of_source: Counter[str] = Counter()
        self._of_user: Counter[int] = Counter()
        self.taken: set[int] = set()

    @property
    def is_full(self) -> bool:
        """Whether nothing at all may be taken any more."""
        return len(self.taken) >= self._total

    def lost(self, places: Iterable[int]) -> int:
        """How many rows, of these that a cap keeps out, there is still room for."""
        by_domain = Counter(self._domain[place] for place in places if place not in self.taken)
        return sum(min(count, self._left.get(domain, 0)) for domain, count in by_domain.items())

    def take(self, *places: int) -> str:
        """Take the rows at these places; why that cannot be, else nothing. What was taken before costs nothing."""
        new = [place for place in places if place not in self.taken]
        # Mostly a domain is full, which is seen at once.
        if any(not self._left.get(self._domain[place]) for place in new):
            return "beyond_sample"
        wanted = Counter(self._domain[place] for place in new)
        if any(count > self._left.get(domain, 0) for domain, count in wanted.items()):
            return "beyond_sample"
        if _exceeds(self._of_source, [self._source[place] for place in new], self._caps.source):
            return "source_cap"
        if _exceeds(self._of_user, [self._user[place] for place in new if self._user[place]], self._caps.user):
            return "user_cap"
        for place in new:
            self._left[self._domain[place]] -= 1
            self._of_source[self._source[place]] += 1
            self._of_user[self._user[place]] += 1
        self.taken.update(new)
        return ""


def quotas_for(candidates: pl.DataFrame, criteria: Criteria) -> dict[str, int]:
    """The quotas of the domains. Without shares, the domains that were asked for or are there count."""
    present = candidates["domain"].cast(pl.String).unique().to_list()
    return quotas_of(criteria.sample_size, criteria.shares, criteria.domains or present)


def within_caps(
    candidates: pl.DataFrame, criteria: Criteria, policy: CurationPolicy, select: Callable[[Caps], Selection]
) -> Selection:
    """What `select` chooses under caps that hold for what it has chosen: they are lowered until they do."""
    of_sources, of_users, of_nobody = _held(candidates)
    size = criteria.sample_size
    source_cap, source_share = cap_of(of_sources, 0, size, criteria.source_share or policy.source_share)
    user_cap, user_share = cap_of(of_users, of_nobody, size, criteria.user_share or policy.user_share)
    caps = Caps(source_cap, user_cap)
    while True:
        chosen = select(caps)
        of_sources, of_users, of_nobody = _held(chosen.kept)
        possible = Caps(cap_within(of_sources, 0, source_share), cap_within(of_users, of_nobody, user_share))
        if max(of_sources, default=0) <= possible.source and max(of_users, default=0) <= possible.user:
            return chosen
        caps = Caps(min(caps.source, possible.source), min(caps.user, possible.user))


def select_demonstrations(candidates: pl.DataFrame, criteria: Criteria, policy: CurationPolicy) -> Selection:
    """The best of each task, then the second best, and so on: by reward, then the newest."""
    best = candidates.select("task", "reward", "at", "draw", "trajectory_id", place=pl.int_range(pl.len())).sort(
        "reward", "at", "draw", "trajectory_id", descending=[True, True, False, False]
    )
    in_turn = best.select("place", rank=pl.int_range(pl.len()).over("task")).sort("rank", maintain_order=True)
    return select_rows(candidates, in_turn["place"], criteria, policy)


def select_rows(candidates: pl.DataFrame, in_turn: pl.Series, criteria: Criteria, policy: CurationPolicy) -> Selection:
    """Take rows in turn, by their places, as long as there is room."""
    quotas = quotas_for(candidates, criteria)

    def select(caps: Caps) -> Selection:
        room = Room(candidates, quotas, caps)
        left_out: Counter[str] = Counter()
        capped: list[int] = []
        for number, place in enumerate(in_turn):
            if room.is_full:
                left_out["beyond_sample"] += len(in_turn) - number
                break
            if reason := room.take(place):
                left_out[reason] += 1
                if reason in CAPPED:
                    capped.append(place)
        kept = candidates[sorted(room.taken)].sort("trajectory_id")
        return Selection(kept, left_out, quotas, caps, room.lost(capped))

    return within_caps(candidates, criteria, policy, select)


def _held(rows: pl.DataFrame) -> tuple[list[int], list[int], int]:
    """How many rows each source has, each user, and nobody in particular."""
    of_users = rows.filter(pl.col("user") != 0)["user"].value_counts()["count"].to_list()
    return rows["source"].value_counts()["count"].to_list(), of_users, rows.height - sum(of_users)


def _exceeds(held: Mapping[Any, int], more: list[Any], most: int) -> bool:
    return any(held[holder] + count > most for holder, count in Counter(more).items())
