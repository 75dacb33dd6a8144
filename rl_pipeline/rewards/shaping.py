"""Rewards turn by turn: potential-based shaping of a trajectory's total.

r_t = gamma·Φ(after turn t) - Φ(before turn t) + [t is the last turn]·total, with Φ = 0 before the first turn and after
the last. Undiscounted, the turns add up to the total, whatever Φ is. Where Φ is a function of the state, such a shaping
leaves the optimal policy as it is (Ng, Harada and Russell 1999); a plain bonus for progress does not, and neither does
clamping r_t, so r_t is never clipped.
"""

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rl_pipeline.errors import PipelineError

if TYPE_CHECKING:
    import polars as pl

    from rl_pipeline.rewards.normalization import Floats

MOST_POTENTIAL = 0.5
"""What the potential tends to: progress is worth up to half of a perfect outcome on the way, and nothing at the end."""


class InvalidPotentials(PipelineError):
    """Potentials that would change what the trajectory is worth."""

    def __init__(self) -> None:
        super().__init__("The potential after the last turn is not 0: take potentials from rewards.shaping.potentials.")


def potentials(new_steps: Sequence[int]) -> list[float]:
    """Φ after each turn: 0.5·n/(n + 1) when n steps are done, and 0 after the last turn.

    `new_steps` counts for each turn the steps that it was the first to achieve, so that repeating one adds nothing.
    Only what lies behind counts: a share of all steps would know how the trajectory goes on, and pay for padding it.
    """
    done = itertools.accumulate(new_steps[:-1])
    return [*(MOST_POTENTIAL * steps / (steps + 1) for steps in done), 0.0] if new_steps else []


def shaped_rewards(turn_potentials: Sequence[float], total: float, gamma: float = 1.0) -> list[float]:
    """The reward of each turn, from the potentials after the turns and the trajectory's total."""
    if not turn_potentials:
        return []
    if turn_potentials[-1] != 0.0:
        raise InvalidPotentials
    before = [0.0, *turn_potentials[:-1]]
    shaped = [gamma * after - earlier for after, earlier in zip(turn_potentials, before, strict=True)]
    shaped[-1] += total
    return shaped


def shaped_reward_lists(turn_potentials: "pl.Series", totals: "pl.Series", gamma: float = 1.0) -> "pl.Series":
    """`shaped_rewards` of every row, with the same bits: a column of lists of potentials and one of totals.

    A row without a total, or without a list, has no shaped rewards: null. The lists are worked on as one array, which
    takes a fraction of what list expressions do.
    """
    import numpy as np
    import polars as pl
    import pyarrow as pa

    lists = turn_potentials.rechunk().to_arrow()
    offsets = lists.offsets.to_numpy()
    after = lists.values.slice(offsets[0], offsets[-1] - offsets[0]).to_numpy()
    offsets = offsets - offsets[0]
    filled = offsets[1:] > offsets[:-1]
    if turn_potentials.null_count():
        filled &= turn_potentials.is_not_null().to_numpy()
    last = offsets[1:][filled] - 1
    if after[last].any():
        raise InvalidPotentials
    before = np.concatenate([np.zeros(1), after])[: len(after)]
    before[offsets[:-1][filled]] = 0.0
    shaped = gamma * after - before
    shaped[last] += totals.cast(pl.Float64).to_numpy()[filled]
    some_absent = turn_potentials.null_count() or totals.null_count()
    absent = (turn_potentials.is_null() | totals.is_null()).to_arrow() if some_absent else None
    column = pa.LargeListArray.from_arrays(pa.array(offsets), pa.array(shaped), mask=absent)
    return pl.Series(turn_potentials.name, column)


def scaled_lists(lists: "pl.Series", factors: "Floats") -> "pl.Series":
    """Every list times the factor of its row; a row without a list has none."""
    import numpy as np
    import polars as pl
    import pyarrow as pa

    found = lists.rechunk().to_arrow()
    offsets = found.offsets.to_numpy()
    values = found.values.slice(offsets[0], offsets[-1] - offsets[0]).to_numpy()
    offsets = offsets - offsets[0]
    scaled = values * np.repeat(factors, np.diff(offsets))
    absent = lists.is_null().to_arrow() if lists.null_count() else None
    return pl.Series(lists.name, pa.LargeListArray.from_arrays(pa.array(offsets), pa.array(scaled), mask=absent))
