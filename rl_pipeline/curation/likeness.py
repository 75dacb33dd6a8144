"""Which trajectories are copies of each other: to keep one of each, and to keep all of them on one side of a split.

Two trajectories are **copies** if they open with the same and their agents did exactly the same, whatever their task is
called: mostly each execution has an id of its own. Two tasks of a world are two, though they may open with the same.
Whether actions that are short are alike is not guessed: agents with few words act alike without repeating themselves.

They are **near copies** if both are long, used the same tools in the same order, what was written differs in at most 3
of the 32 bits of its simhash, and they share the task, the opening, or one action beside an opening that is as near.

Whoever ends differently is no copy to be dropped: the outcome is the status and the reward, in twentieths.
"""

from collections.abc import Iterator

import numpy as np
import polars as pl

from rl_pipeline.curation.candidates import LONG_OPENING, LONG_TEXT

NEAR_BITS = 3

_COPY = ["opening", "setup", "actions"]
_OUTCOME = ["status", "outcome"]
# Near copies are looked for among those that share one of these, and the tools.
_MEETINGS = ("task", "opening", "kernel")
_ROUNDS = 16


def without_copies(candidates: pl.DataFrame) -> pl.DataFrame:
    """The first of each set of copies with the same outcome, with `copies`: for how many it stands, itself included.

    First is what the stream stored first. The order of the rows does not matter, and they come back in order of id.
    """
    # Narrow, since copies of all the columns of all the candidates would take much memory.
    order = candidates.select(pl.arg_sort_by("at", "trajectory_id")).to_series()
    rows = candidates.select(
        *("opening", "setup", "actions", "kernel", "tools", "status", "written", "likeness"),
        *("asked", "opening_likeness"),
        pl.col("task").hash(),
        place=pl.int_range(pl.len(), dtype=pl.UInt32),
        outcome=(pl.col("reward") * 20).round().cast(pl.Int32),
        copies=pl.lit(1, pl.UInt32),
    )[order].with_columns(turn=pl.int_range(pl.len(), dtype=pl.UInt32))
    rows = _merged(rows, [*_COPY, *_OUTCOME])
    settled = [rows.filter(pl.col("written") < LONG_TEXT)]
    rows = rows.filter(pl.col("written") >= LONG_TEXT)
    for meeting in _MEETINGS:
        rows = _without_near(rows, meeting)
    kept = pl.concat([*settled, rows]).select("place", "copies")
    kept = kept[candidates["trajectory_id"].gather(kept["place"]).arg_sort()]
    return candidates[kept["place"]].with_columns(kept["copies"], pl.col("trajectory_id").set_sorted())


def _merged(rows: pl.DataFrame, key: list[str]) -> pl.DataFrame:
    """The first row of each key, with the copies of all of them."""
    return rows.with_columns(pl.col("copies").sum().over(key)).unique(key, keep="first", maintain_order=True)


def _without_near(rows: pl.DataFrame, meeting: str) -> pl.DataFrame:
    """Let the first of each block stand for its near copies, then the first of what is left, and so on.

    A block is what could be near. Where so many of one block have nothing to do with each other that the rounds do not
    reach the last, some near copies stay: that costs a place in the dataset, and no more.
    """
    block = [meeting, "tools", *_OUTCOME]
    settled: list[pl.DataFrame] = []
    for _ in range(_ROUNDS):
        crowded = pl.len().over(block) > 1
        settled.append(rows.filter(~crowded))
        rows = rows.filter(crowded)
        if rows.is_empty():
            break
        rows = rows.with_columns(is_first=pl.col("turn") == pl.col("turn").first().over(block))
        rows = rows.with_columns(is_near=_near_the_first(meeting, block))
        taken = pl.col("copies").filter("is_near").sum().over(block).cast(pl.UInt32)
        rows = rows.with_columns(copies=pl.when("is_first").then(taken).otherwise("copies"))
        settled.append(rows.filter("is_first").drop("is_first", "is_near"))
        rows = rows.filter(~pl.col("is_near")).drop("is_first", "is_near")
    return pl.concat([*settled, rows]).sort("turn")


def _near_the_first(meeting: str, block: list[str]) -> pl.Expr:
    near = _distance("likeness", pl.col("likeness").first().over(block)) <= NEAR_BITS
    if meeting != "kernel":
        return near
    return near & _opens_alike(pl.col("opening_likeness").first().over(block), pl.col("opening").first().over(block))


def _opens_alike(likeness: pl.Expr, opening: pl.Expr) -> pl.Expr:
    is_long = pl.col("asked") >= LONG_OPENING
    return (pl.col("opening") == opening) | (
        is_long & (likeness != 0) & (_distance("opening_likeness", likeness) <= NEAR_BITS)
    )


def _distance(column: str, other: pl.Expr) -> pl.Expr:
    """Bits in which two simhashes differ."""
    return (pl.col(column) ^ other).bitwise_count_ones()


def near_pairs(rows: pl.DataFrame) -> list[tuple[int, int]]:
    """The places of every two rows that are near copies of each other and not attempts at one task.

    However they end: what is asked here is whether one tells of the other. For the rows of a dataset, not for all that
    it was chosen from.
    """
    long = rows.with_row_index("place").filter(pl.col("written") >= LONG_TEXT)
    found: set[tuple[int, int]] = set()
    for meeting in ("opening", "kernel"):
        crowded = long.filter(pl.len().over(meeting, "tools") > 1)
        for _, block in crowded.group_by(meeting, "tools", maintain_order=True):
            found.update(_near_in_block(block))
    return sorted(found)


def _near_in_block(block: pl.DataFrame) -> Iterator[tuple[int, int]]:
    places, tasks = block["place"].to_numpy(), block["task"].rank("dense").to_numpy()
    likeness, opening = block["likeness"].to_numpy(), block["opening"].to_numpy()
    openings_likeness, asked = block["opening_likeness"].to_numpy(), block["asked"].to_numpy()
    for one in range(len(places) - 1):
        others = slice(one + 1, None)
        near = np.bitwise_count(likeness[others] ^ likeness[one]) <= NEAR_BITS
        opens_near = np.bitwise_count(openings_likeness[others] ^ openings_likeness[one]) <= NEAR_BITS
        is_long = (asked[others] >= LONG_OPENING) & (asked[one] >= LONG_OPENING)
        alike = (opening[others] == opening[one]) | (is_long & opens_near)
        for other in np.flatnonzero(near & alike & (tasks[others] != tasks[one])) + one + 1:
            yield int(places[one]), int(places[other])
