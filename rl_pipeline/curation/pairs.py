"""Pairs of attempts at the same task that open alike, of which one earned more than the other by the same rules.

Attempts are ordered by reward, and the best is set against the worst, the second best against the second worst, and so
on: large margins, and everybody at most once. A further round sets each better one against the next worse neighbour, so
that a few attempts give more pairs and nobody is in more than `pairs_per_trajectory` of them.

Logs in which most requests were tried once give few such pairs. A model of the rewards then learns from conversations
of different requests of one type as well. That also teaches it which requests are easy: they are marked and counted.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import polars as pl

from rl_pipeline.curation.policy import Criteria, CurationPolicy
from rl_pipeline.curation.selection import CAPPED, Caps, Room, Selection, quotas_for, within_caps

PAIRS = pl.Schema({"task": pl.String(), "chosen_id": pl.String(), "rejected_id": pl.String(), "margin": pl.Float64()})

# What two configurations say of two attempts cannot be compared.
_GROUP = ("task", "opening", "configuration")
_TYPE = ("task_type", "configuration", "split")


def possible_pairs(rows: pl.DataFrame, margin: float, policy: CurationPolicy) -> pl.DataFrame:
    """The pairs as `PAIRS`, best first.

    Both sides did different things, the margin is reached, and no task has more than `pairs_per_task`.
    """
    rows = rows.sort("trajectory_id")
    return _named(_numbered_pairs(rows, margin, policy), rows)


def pairs_across_requests(rows: pl.DataFrame, margin: float, policy: CurationPolicy) -> pl.DataFrame:
    """Pairs of whole conversations of different tasks of one `task_type` on one side of the `split`, as `PAIRS`.

    One conversation of each task, by lot, in one pair: what is judged by a pair says nothing that others have taught.
    """
    rows = rows.sort("draw", "trajectory_id").unique("task", keep="first").sort("trajectory_id")
    return _named(_numbered_pairs(rows, margin, replace(policy, pairs_per_trajectory=1), _TYPE), rows)


def select_pairs(
    candidates: pl.DataFrame, criteria: Criteria, policy: CurationPolicy
) -> tuple[Selection, pl.DataFrame]:
    """The trajectories of the pairs that there is room for, and these pairs: one of each task, then a second one …"""
    rows = candidates.sort("trajectory_id")
    quotas = quotas_for(rows, criteria)
    pairs = _numbered_pairs(rows, criteria.pair_margin, policy)
    taken: list[int] = []

    def select(caps: Caps) -> Selection:
        room = Room(rows, quotas, caps)
        refused: dict[int, str] = {}
        taken.clear()
        for number, sides in enumerate(pairs.select("chosen", "rejected").iter_rows()):
            if room.is_full:
                rest = pairs[number:]
                refused |= dict.fromkeys({*rest["chosen"], *rest["rejected"]} - refused.keys(), "beyond_sample")
                break
            reason = room.take(*sides)
            if not reason:
                taken.append(number)
                continue
            for place in sides:
                refused.setdefault(place, reason)
        left_out = Counter(reason for place, reason in refused.items() if place not in room.taken)
        left_out["no_partner"] = rows.height - len(room.taken | refused.keys())
        lost = room.lost(place for place, reason in refused.items() if reason in CAPPED)
        return Selection(rows[sorted(room.taken)], left_out, quotas, caps, lost)

    return within_caps(rows, criteria, policy, select), _named(pairs[taken], rows)


def _numbered_pairs(
    rows: pl.DataFrame, margin: float, policy: CurationPolicy, group: Sequence[str] = _GROUP
) -> pl.DataFrame:
    """chosen, rejected (places of the rows) and margin."""
    sides = (
        rows.select(
            *sorted({"task", *group}), "reward", "actions", "at", number=pl.int_range(pl.len(), dtype=pl.UInt32)
        )
        .sort("reward", "at", "number", descending=[True, False, False])
        .with_columns(place=pl.int_range(pl.len()).over(group), size=pl.len().over(group).cast(pl.Int64))
    )
    worse = sides.select(*group, partner="place", rejected="number", lower="reward", other="actions")
    rounds = []
    for shift in range(policy.pairs_per_trajectory):
        better = sides.with_columns(partner=pl.col("size") - 1 - pl.col("place") - shift, shift=shift)
        rounds.append(better.filter(pl.col("place") < pl.col("partner")).join(worse, on=[*group, "partner"]))
    return (
        pl.concat(rounds)
        .rename({"number": "chosen"})
        .with_columns(margin=pl.col("reward") - pl.col("lower"))
        # 0.6 and 0.5 are 0.1 apart, whatever floats make of it.
        .filter((pl.col("margin") >= margin - 1e-9) & (pl.col("actions") != pl.col("other")))
        .sort("shift", "place", "margin", "chosen", "rejected", descending=[False, False, True, False, False])
        .with_columns(rank=pl.int_range(pl.len()).over("task"))
        .filter(pl.col("rank") < policy.pairs_per_task)
        .sort("rank", "margin", "chosen", "rejected", descending=[False, True, False, False])
        .select("chosen", "rejected", "margin")
    )


def _named(pairs: pl.DataFrame, rows: pl.DataFrame) -> pl.DataFrame:
    ids = rows["trajectory_id"]
    return pairs.select(
        rows["task"].gather(pairs["chosen"]).alias("task"),
        ids.gather(pairs["chosen"]).alias("chosen_id"),
        ids.gather(pairs["rejected"]).alias("rejected_id"),
        "margin",
    )
