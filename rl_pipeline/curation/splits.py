"""Which tasks a policy is trained on, and on which it is measured: never the same ones, under whatever name.

The side of a task depends on the seed and on what is asked (on the task's name, where that is said in few words) and on
nothing else, so it is the same in every dataset: what one job measures on, no other job trained on. Tasks that say the
same, because they open with the same long request or were solved by near copies, stay together.
"""

from collections.abc import Iterable
from hashlib import blake2b

import polars as pl

from rl_pipeline.curation.candidates import LONG_OPENING
from rl_pipeline.curation.likeness import near_pairs

TRAIN, HOLDOUT = "train", "holdout"


def split(rows: pl.DataFrame, share: float, seed: int) -> pl.DataFrame:
    """The rows with their `split`. About `share` of the tasks are held out.

    There is a holdout and something to train on wherever two tasks can be kept apart and the share is neither 0 nor 1.
    """
    families = _families(rows)
    names = _names(rows)
    # Of the whole family's names the first one counts, not the lowest lot: large families would mostly be held out.
    lots = {family: lot_of(min(names[task] for task in tasks), seed) for family, tasks in families.items()}
    held_out = {family for family, lot in lots.items() if lot < share}
    by_lot = sorted(lots, key=lambda family: (lots[family], family))
    if share > 0 and not held_out and len(by_lot) > 1:
        held_out = {by_lot[0]}
    if share < 1 and by_lot and len(held_out) == len(by_lot):
        held_out.remove(by_lot[-1])
    tasks = [task for family in held_out for task in families[family]]
    is_held_out = pl.col("task").is_in(pl.Series(tasks, dtype=pl.String).implode())
    return rows.with_columns(split=pl.when(is_held_out).then(pl.lit(HOLDOUT)).otherwise(pl.lit(TRAIN)))


def lot_of(name: str, seed: int) -> float:
    """A number from 0 to below 1 that depends on the name and the seed alone."""
    digest = blake2b(f"{seed}\n{name}".encode(), digest_size=7).digest()
    return int.from_bytes(digest, "big") / 2**56


def _names(rows: pl.DataFrame) -> dict[str, str]:
    """By what each task's lot is drawn."""
    is_long = pl.col("asked") >= LONG_OPENING
    name = pl.when(is_long).then("request " + pl.col("opening").cast(pl.String)).otherwise("task " + pl.col("task"))
    return dict(rows.group_by("task").agg(name.min()).iter_rows())


def _families(rows: pl.DataFrame) -> dict[str, list[str]]:
    """Tasks that stay together, by the first of them."""
    tasks: list[str] = rows["task"].to_list()
    leader = {task: task for task in tasks}

    def head(task: str) -> str:
        while leader[task] != task:
            leader[task] = leader[leader[task]]
            task = leader[task]
        return task

    for one, other in _ties(rows):
        first, second = sorted((head(tasks[one]), head(tasks[other])))
        leader[second] = first
    families: dict[str, list[str]] = {}
    for task in sorted(leader):
        families.setdefault(head(task), []).append(task)
    return families


def _ties(rows: pl.DataFrame) -> Iterable[tuple[int, int]]:
    """The places of rows whose tasks say the same."""
    openings = rows.with_row_index("place").filter(pl.col("asked") >= LONG_OPENING)
    firsts = openings.select("place", first=pl.col("place").min().over("opening"))
    yield from firsts.iter_rows()
    yield from near_pairs(rows)
