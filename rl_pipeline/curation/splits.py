"""Which tasks a policy is trained on, and on which it is measured: never the same ones, under whatever name.

What says the same stays together, as a family: attempts of one group, at a task of one id, or at one setup of a world;
what opens in the same words, unless two setups of a world tell it apart; what opens with a long request that is the
same but for its numbers; and whoever asked and wrote the same, or wrote nearly the same after nearly the same request.
Requests are not tied for being alike otherwise: many a framework opens every task with the same page of instructions.

A family's lot depends on the seed and on the first of its requests alone, so a request is mostly on the same side in
all datasets of one share. It is not always: another dataset may have brought other tasks into its family, have another
share, or be so small that one family is held out whatever its lot. What one job measures on, another may have trained
on; compare two policies on tasks that neither has seen.
"""

from collections.abc import Iterable
from hashlib import blake2b

import polars as pl

from rl_pipeline.curation.likeness import near_pairs

TRAIN, HOLDOUT = "train", "holdout"


def split(rows: pl.DataFrame, share: float, seed: int) -> pl.DataFrame:
    """The rows with their `split`. About `share` of the families are held out.

    Beside the candidates' columns the rows have `opening_words` and `words`: hashes of what opens a conversation, in a
    long one but for its numbers, and of that and all that was written. There is a holdout and something to train on
    wherever two families can be kept apart and the share is neither 0 nor 1.
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
    """By what each task's lot is drawn: the setup of its world, or what is asked."""
    setup, request = ("setup " + pl.col("setup").cast(pl.String), "request " + pl.col("opening_words").cast(pl.String))
    name = pl.when(pl.col("setup") != 0).then(setup).otherwise(request)
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
    numbered = rows.with_row_index("place")
    # Whoever has no setup is not told apart from anybody who opens in the same words.
    has_some_without = (pl.col("setup") == 0).any().over("opening_words")
    apart = pl.when(has_some_without).then(0).otherwise("setup")
    keys = numbered.select("place", "called", "setup", "words", "opening_words", apart=apart)
    for same in (
        (keys.filter(pl.col("called") != 0), ["called"]),
        (keys.filter(pl.col("setup") != 0), ["setup"]),
        (keys, ["words"]),
        (keys, ["opening_words", "apart"]),
    ):
        yield from same[0].select("place", pl.col("place").first().over(same[1]).alias("first")).iter_rows()
    yield from near_pairs(rows)
