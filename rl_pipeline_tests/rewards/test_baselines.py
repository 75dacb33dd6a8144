"""The standard of a task type: the first of it, frozen, and the same whatever the batches."""

from itertools import pairwise
from random import Random
from statistics import fmean, pstdev

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rl_pipeline.rewards.baselines import BASELINE_COLUMNS, Standard, baseline_columns, measured_parts

SEEN = pl.DataFrame(
    {
        "turns": np.random.default_rng(1).integers(1, 20, 300),
        "seconds": np.random.default_rng(2).lognormal(3, 1, 300),
        "tokens": [n * 10 if n % 2 else None for n in range(300)],
    }
)
SEQUENCES = np.arange(1, 301)


def usual(standard: Standard, sequences: list[int], least: int = 30) -> pl.DataFrame:
    rows = {"type": np.arange(len(sequences))}
    return pl.DataFrame(baseline_columns(np.array(sequences, np.int64), rows, {"type": standard}, least))


def standard_of(size: int, *batches: slice) -> Standard:
    standard, parts = Standard.empty(), measured_parts(SEEN)
    for batch in batches:
        standard = standard.joined_by(SEQUENCES[batch], {name: of[batch] for name, of in parts.items()}, size)
    return standard


def test_a_trajectory_is_compared_with_those_before_it() -> None:
    found = usual(standard_of(200, slice(None)), [101]).row(0, named=True)
    turns, logs = SEEN["turns"][:100].to_list(), SEEN["seconds"][:100].log1p().to_list()
    tokens = [n for n in SEEN["tokens"][:100].cast(pl.Float64).log1p() if n is not None]
    assert found["usual_turns"] == fmean(turns)
    assert found["usual_turns_std"] == pytest.approx(pstdev(turns), rel=1e-12)
    assert found["usual_log_seconds"] == pytest.approx(fmean(logs), abs=1e-6)
    assert found["usual_log_seconds_std"] == pytest.approx(pstdev(logs), abs=1e-6)
    assert found["usual_log_tokens"] == pytest.approx(fmean(tokens), abs=1e-6)
    assert found["usual_log_tokens_std"] == pytest.approx(pstdev(tokens), abs=1e-6)


def test_the_standard_is_frozen_after_its_first_trajectories() -> None:
    standard = standard_of(200, slice(None))
    at_201, at_202, much_later = usual(standard, [201, 202, 10_000]).rows()
    assert at_201 == at_202 == much_later
    assert usual(standard, [200]).row(0) != at_201


def test_there_is_no_standard_before_enough_was_seen_of_each_part() -> None:
    found = usual(standard_of(200, slice(None)), [30, 31, 60, 61])
    assert found["usual_turns"].is_null().to_list() == [True, False, False, False]
    assert found["usual_log_tokens"].is_null().to_list() == [True, True, True, False], "every other one has tokens"


def test_a_type_that_was_never_seen_has_no_standard() -> None:
    found = usual(Standard.empty(), [7], least=1)
    assert found.columns == list(BASELINE_COLUMNS)
    assert found.row(0) == (None,) * 6


def test_the_largest_values_do_not_overflow() -> None:
    largest = {"turns": [0, 2**32 - 1] * 500, "seconds": [0.0, 1e300] * 500, "tokens": [0, 2**64 - 1] * 500}
    signals = pl.DataFrame(largest, schema={"turns": pl.UInt32, "seconds": pl.Float64, "tokens": pl.UInt64})
    standard = Standard.empty().joined_by(np.arange(1_000), measured_parts(signals), 1_000)
    found = usual(standard, [1_000]).row(0, named=True)
    assert found["usual_turns"] == found["usual_turns_std"] == 2**25
    assert found["usual_log_seconds"] == found["usual_log_seconds_std"] == 30.0
    assert found["usual_log_tokens_std"] == pytest.approx(np.log(2.0**64) / 2, abs=1e-6)


@given(st.lists(st.integers(0, 300), max_size=5), st.randoms(use_true_random=False))
def test_any_batches_in_any_order_give_the_same_standard(cuts: list[int], random: Random) -> None:
    batches = [slice(*pair) for pair in pairwise(sorted({0, *cuts, 300}))]
    random.shuffle(batches)
    one, many = standard_of(200, slice(None)), standard_of(200, *batches)
    assert one.sequences.tolist() == many.sequences.tolist()
    positions = [1, 31, 150, 200, 201, 300]
    assert usual(one, positions).equals(usual(many, positions))
