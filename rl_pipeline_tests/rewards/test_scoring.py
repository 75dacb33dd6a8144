"""Rewards do not depend on when or in which batches they were computed, and say what the specification says."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

import numpy as np
import polars as pl
import pytest

from rl_pipeline.rewards.configuration import DEFAULT_WEIGHTS, RewardConfiguration
from rl_pipeline.rewards.scoring import History, HistoryTooShort, RepeatedSequence, reward_id, score
from rl_pipeline.rewards.term import NEUTRAL, TermError
from rl_pipeline_tests.rewards.simulation import Column, bits, signals_with, simulated_signals

NAMES = sorted(DEFAULT_WEIGHTS)
COLUMNS = tuple(Column(name) for name in NAMES)


def configured(method: str = "z-score", **weights: float) -> RewardConfiguration:
    """Terms of the usual names that read columns; or one such term for each weight given."""
    terms = tuple(Column(name) for name in weights) or COLUMNS
    return RewardConfiguration(weights or DEFAULT_WEIGHTS, method, own_terms=terms)  # type: ignore[arg-type]


def with_the_unusual(signals: pl.DataFrame) -> pl.DataFrame:
    """Some of the trajectories were late, and some have later revisions, with other facts."""
    late = (pl.col("sequence") % 17 == 0).alias("is_late")
    marked = signals.with_columns(late, revision=late.cast(pl.Int32))
    restated = marked.filter(pl.col("sequence") % 7 == 0)
    changed = restated.with_columns(pl.col("revision") + 1, turns=pl.col("turns") + 3, status=pl.lit("failed"))
    return pl.concat([marked, changed]).sort("sequence", "revision")


def in_batches(batches: Iterable[pl.DataFrame], configuration: RewardConfiguration) -> pl.DataFrame:
    """What a pipeline stores that scores one batch after the other."""
    history, stored = History.empty(), []
    for batch in batches:
        scored = score(batch, history, configuration)
        history = history.extended(batch, scored, configuration)
        stored.append(scored)
    return pl.concat(stored)


def by_watermark(signals: pl.DataFrame, seed: int, arrivals: int = 20) -> Iterator[pl.DataFrame]:
    """Messages arrive in a random order; after each arrival, what is now complete from the first on is scored."""
    count = int(signals["sequence"].max())  # type: ignore[arg-type]
    order = np.random.default_rng(seed).permutation(np.arange(1, count + 1))
    arrived = np.zeros(count + 2, bool)
    done = 0
    for some in np.array_split(order, arrivals):
        arrived[some] = True
        watermark = int(np.argmin(arrived[1:]))
        if watermark > done:
            yield signals.filter(pl.col("sequence").is_between(done + 1, watermark)).sample(
                fraction=1, shuffle=True, seed=seed
            )
        done = watermark


def as_stored(scored: pl.DataFrame, signals: pl.DataFrame, before: int, window: int) -> History:
    """The history that a process loads which knows nothing but the tables."""
    scores = scored.filter((pl.col("revision") == 0) & (pl.col("sequence") < before))
    last = scores.select("task_type", "sequence", "terms", "units").sort("sequence").explode("terms", "units")
    needed = last.group_by("task_type", "terms", maintain_order=True).tail(window)
    rows = needed.group_by("task_type", "sequence").agg("terms", "units").sample(fraction=1, shuffle=True, seed=1)
    first = (
        signals.filter((pl.col("revision") == 0) & (pl.col("sequence") < before))
        .sort("sequence")
        .group_by("task_type", maintain_order=True)
        .head(200)
        .select("task_type", "sequence", "turns", "seconds", "tokens")
    )
    return History.stored(rows, first, before)


@pytest.mark.soak
@pytest.mark.parametrize("method", ["z-score", "min-max"])
def test_every_way_of_computing_gives_the_same_bits(
    method: str, soak_count: Callable[[int, int], int], record_property: Callable[[str, object], None]
) -> None:
    count, shuffles = soak_count(6_000, 20_000), soak_count(2, 20)
    configuration = RewardConfiguration(method=method)  # type: ignore[arg-type]
    signals = with_the_unusual(simulated_signals(count, seed=4))
    at_once = score(signals, History.empty(), configuration)
    expected = bits(at_once)

    for seed in range(shuffles):
        shuffled = in_batches(by_watermark(signals, seed), configuration)
        assert bits(shuffled.sort("sequence", "revision")) == expected

    days = signals.with_columns(day=pl.col("stream_time").dt.date()).partition_by("day", include_key=False)
    assert bits(in_batches(days, configuration)) == expected

    cuts = [count // 7, count // 2, count - 1]
    for cut in cuts:
        stored = at_once.filter(pl.col("sequence") < cut)
        history = as_stored(at_once, signals, cut, configuration.window)
        resumed = score(signals.filter(pl.col("sequence") >= cut), history, configuration)
        assert bits(pl.concat([stored, resumed])) == expected
    record_property("trajectories", count)
    record_property("shuffled arrivals", shuffles)
    record_property("days", len(days))
    record_property("resumed", len(cuts))


def test_the_bits_tell_floats_apart() -> None:
    one = pl.DataFrame({"value": [1.0], "list": [[0.0]]})
    assert bits(one) == bits(one.clone())
    assert bits(one) != bits(one.with_columns(value=pl.lit(float(np.nextafter(1.0, 2.0)))))
    assert bits(one) != bits(one.with_columns(list=pl.Series([[-0.0]])))


def test_scoring_the_same_rows_again_changes_nothing() -> None:
    """A run that was killed after storing its rows scores them with a history that has them."""
    configuration = RewardConfiguration()
    signals = simulated_signals(2_000, seed=5)
    once = score(signals, History.empty(), configuration)
    again = score(signals, History.stored(once, signals), configuration)
    assert bits(again) == bits(once)


def test_what_was_late_and_later_revisions_never_change_the_rewards_of_others() -> None:
    configuration = RewardConfiguration()
    signals = simulated_signals(2_000, seed=6)
    first = signals.with_columns(is_late=pl.col("sequence") % 17 == 0)
    alone = score(first.filter(~pl.col("is_late")), History.empty(), configuration)
    together = score(with_the_unusual(signals), History.empty(), configuration)
    of_others = together.filter((pl.col("revision") == 0) & (pl.col("sequence") % 17 != 0))
    assert bits(of_others) == bits(alone)


@pytest.mark.parametrize(("revision", "is_late", "counts"), [(0, False, 9), (1, False, 8), (0, True, 8), (1, True, 8)])
def test_only_a_first_revision_that_was_not_late_is_history(revision: int, is_late: bool, counts: int) -> None:
    fifth = pl.col("sequence") == 5
    signals = signals_with(10, novelty=[0.5] * 10).with_columns(
        pl.when(fifth).then(revision).otherwise("revision").alias("revision"), is_late=fifth & is_late
    )
    assert score(signals, History.empty(), configured(novelty=1))["counts"].to_list()[-1] == [counts]


def test_a_later_revision_is_compared_with_what_the_first_was_compared_with() -> None:
    signals = signals_with(60, novelty=np.linspace(0, 1, 60))
    again = signals.filter(pl.col("sequence") == 50).with_columns(revision=1)
    scored = score(pl.concat([signals, again]), History.empty(), configured(novelty=1))
    first, second = scored.filter(pl.col("sequence") == 50).rows(named=True)
    assert first["counts"] == second["counts"] == [49]
    assert {**first, "revision": 1, "reward_id": second["reward_id"]} == second
    assert second["reward_id"] == reward_id("trajectory-50", scored["configuration"][0], 1) != first["reward_id"]


def test_a_history_does_not_score_what_came_before_it() -> None:
    signals = signals_with(50, novelty=[0.5] * 50)
    configuration = configured(novelty=1)
    history = History.empty().extended(signals, score(signals, History.empty(), configuration), configuration)
    with pytest.raises(HistoryTooShort, match="sequence 50 cannot be scored with a history that begins at 51"):
        score(signals.tail(1), history, configuration)


def test_two_trajectories_cannot_have_one_sequence() -> None:
    with pytest.raises(RepeatedSequence):
        score(signals_with(2, sequence=[7, 7], novelty=[0.1, 0.2]), History.empty(), configured(novelty=1))


def example(history: int = 0) -> pl.DataFrame:
    """The specification's scenario: 1.0, 0.85, 0.90 and 0.5, after so many earlier trajectories."""
    earlier = {
        "task_completion": [1.0, 0.0, 0.0, 0.0, 0.0],
        "efficiency": [0.35, 0.65],
        "code_quality": [0.61, 0.81],
        "user_feedback": [0.5],
    }
    last = {"task_completion": 1.0, "efficiency": 0.85, "code_quality": 0.90, "user_feedback": 0.5}
    columns = {name: [*np.resize(earlier[name], history).tolist(), last[name]] for name in NAMES}
    return signals_with(history + 1, **columns)


def test_the_scenario_of_the_specification_is_worth_083() -> None:
    """0.40·1.0 + 0.20·0.85 + 0.15·0.90 + 0.25·0.5 = 0.40 + 0.17 + 0.135 + 0.125 = 0.83, and not 0.87."""
    reward = score(example(), History.empty(), configured("none")).row(0, named=True)
    assert reward["total"] == reward["raw_total"] == 0.83
    assert reward["normalised"] == reward["scores"] == [0.90, 0.85, 1.0, 0.5]
    assert not reward["cold_start"], "nothing was compared with a history"


def test_only_a_history_can_make_it_087() -> None:
    """After 1,000 trajectories that mostly failed, with the normalised scores n = clip((z + 2)/4):

    task completion: a fifth succeeded, mean 0.2, deviation 0.4: z = 0.8/0.4 = 2, n = 1
    efficiency: half 0.35 and half 0.65, mean 0.5, deviation 0.15: z = 0.35/0.15 = 2.3, n = 1
    code quality: half 0.61 and half 0.81, mean 0.71, deviation 0.1: z = 0.19/0.1 = 1.9, n = 0.975
    user feedback: always 0.5, so 0.5 is at the mean: n = 0.5

    0.40·1 + 0.20·1 + 0.15·0.975 + 0.25·0.5 = 0.87125. The raw total remains 0.83.
    """
    reward = score(example(history=1_000), History.empty(), configured()).row(-1, named=True)
    assert reward["total"] == pytest.approx(0.87, abs=0.01)
    assert reward["total"] == pytest.approx(0.87125, abs=1e-5)
    assert reward["raw_total"] == 0.83
    assert reward["counts"] == [1_000] * 4
    assert reward["means"] == pytest.approx([0.71, 0.5, 0.2, 0.5], abs=1e-6)
    assert reward["stds"] == pytest.approx([0.1, 0.15, 0.4, 0.0], abs=1e-6)


def test_the_first_of_a_task_type_are_marked_as_a_cold_start() -> None:
    scored = score(signals_with(40, novelty=np.linspace(0, 1, 40)), History.empty(), configured(novelty=1))
    assert scored["cold_start"].to_list() == [True] * 30 + [False] * 10
    assert scored["total"][:30].to_list() == [0.5] * 30
    assert scored["total"][30] == pytest.approx(((30 - 14.5) / np.arange(30).std() + 2) / 4, abs=1e-5)
    assert scored["raw_total"].to_list() == pytest.approx(np.linspace(0, 1, 40).tolist(), abs=1e-12)


def test_task_types_have_histories_of_their_own() -> None:
    types = ["easy"] * 40 + ["hard"]
    scored = score(signals_with(41, task_type=types, novelty=[0.9] * 41), History.empty(), configured(novelty=1))
    assert scored["counts"].to_list()[-2:] == [[39], [0]]


def test_a_term_that_does_not_apply_leaves_its_weight_to_the_others() -> None:
    """0.40·1.0 + 0.20·0.5 + 0.25·0.0 over 0.85, as there is no code to judge."""
    signals = signals_with(1, task_completion=[1.0], efficiency=[0.5], code_quality=[None], user_feedback=[0.0])
    reward = score(signals, History.empty(), configured()).row(0, named=True)
    assert reward["raw_total"] == pytest.approx(0.5 / 0.85, abs=1e-12)
    assert reward["terms"] == ["efficiency", "task_completion", "user_feedback"]
    assert reward["weights"] == pytest.approx([0.20 / 0.85, 0.40 / 0.85, 0.25 / 0.85], abs=1e-15)
    assert len(reward["evidences"]) == len(reward["units"]) == len(reward["counts"]) == 3


def test_where_no_term_applies_the_reward_is_neutral_and_nobody_is_sure_of_it() -> None:
    reward = score(signals_with(1, novelty=[None]), History.empty(), configured(novelty=1)).row(0, named=True)
    assert (reward["raw_total"], reward["total"], reward["confidence"], reward["terms"]) == (0.5, 0.5, 0.0, [])


def test_terms_of_any_range_are_put_on_one_scale() -> None:
    term = Column("coordination", low=-2.9, high=3.5)
    configuration = RewardConfiguration({"coordination": 1}, "none", own_terms=(term,))
    scored = score(signals_with(3, coordination=[-2.9, 0.3, 3.5]), History.empty(), configuration)
    assert scored["raw_total"].to_list() == pytest.approx([0.0, 0.5, 1.0], abs=1e-15)
    assert scored["scores"].explode().to_list() == [-2.9, 0.3, 3.5]
    with pytest.raises(TermError, match="outside its range"):
        score(signals_with(1, coordination=[3.6]), History.empty(), configuration)


@pytest.mark.parametrize(("low", "high", "scores"), [(-1.7e308, 1.7e308, [1e308, -1e308]), (0.5, 0.5, [0.5, 0.5])])
def test_a_range_that_scores_have_no_place_in_is_an_error(low: float, high: float, scores: list[float]) -> None:
    configuration = RewardConfiguration({"wide": 1}, own_terms=(Column("wide", low, high),))
    with pytest.raises(TermError, match="'wide' have no place in its range"):
        score(signals_with(2, wide=scores), History.empty(), configuration)


def test_a_reward_says_whose_turns_it_is_for_and_which_task() -> None:
    agents = [["main", "helper"], ["main"]]
    signals = signals_with(2, novelty=[0.1, 0.2], task_id=["task-1", ""], turn_agents=agents)
    scored = score(signals, History.empty(), configured(novelty=1))
    assert scored.select("task_id", "turn_agents").rows() == [("task-1", agents[0]), ("", agents[1])]


def test_confidence_is_half_evidence_and_half_history() -> None:
    """A neutral score lends none: 0.5·0.6 + 0.5·(500 of 1,000 values, in both windows)."""
    terms = (Column("known"), Column("unknown", evidence=f"{NEUTRAL}nobody said anything"))
    configuration = RewardConfiguration({"known": 0.6, "unknown": 0.4}, own_terms=terms)
    scored = score(signals_with(501, known=[0.5] * 501, unknown=[0.5] * 501), History.empty(), configuration)
    assert scored["confidence"][500] == pytest.approx(0.5 * 0.6 + 0.5 * 0.5, abs=1e-15)


def test_credit_and_the_rewards_of_turns_share_out_the_raw_total() -> None:
    scored = score(simulated_signals(500, seed=8), History.empty(), RewardConfiguration())
    assert scored["credits"].list.sum().to_list() == pytest.approx(scored["raw_total"].to_list(), abs=1e-12)
    assert scored["turn_rewards"].list.sum().to_list() == pytest.approx(scored["raw_total"].to_list(), abs=1e-12)


def test_everything_stays_within_its_bounds() -> None:
    scored = score(simulated_signals(3_000, seed=9), History.empty(), RewardConfiguration())
    for column in ("raw_total", "total", "confidence"):
        assert scored[column].is_between(0, 1).all()
    assert scored["normalised"].explode().is_between(0, 1).all()
    assert scored["weights"].list.sum().to_list() == pytest.approx([1.0] * 3_000, abs=1e-12)
    assert scored["reward_id"].n_unique() == 3_000


def test_an_empty_batch_has_the_columns_of_any_other() -> None:
    signals = simulated_signals(10, seed=10)
    some, none = (score(rows, History.empty(), RewardConfiguration()) for rows in (signals, signals.head(0)))
    assert none.is_empty()
    assert none.schema == some.schema


@pytest.mark.soak
def test_a_drop_of_success_shows_in_the_raw_mean_and_is_hidden_by_the_normalised_one(
    soak_count: Callable[[int, int], int], record_property: Callable[[str, object], None]
) -> None:
    """Success falls from 0.8 to 0.5 after 3,000 trajectories of one task type.

    The raw mean of the next 500 is lower by more than five standard errors. The normalised mean falls too, but after
    1,000 trajectories the window knows nothing better, and it is back where it was.
    """
    configuration = RewardConfiguration()
    seeds = soak_count(2, 20)
    for seed in range(seeds):
        good = simulated_signals(3_000, seed, success=0.8, task_types=1)
        worse = simulated_signals(3_000, seed + 1_000, success=0.5, task_types=1)
        both = pl.concat([good, worse]).with_columns(pl.int_range(1, pl.len() + 1).cast(pl.UInt64).alias("sequence"))
        scored = score(both, History.empty(), configuration)
        raw, normalised = scored["raw_total"].to_numpy(), scored["total"].to_numpy()
        before, after = raw[2_000:3_000], raw[3_000:3_500]
        error = np.sqrt(before.var() / len(before) + after.var() / len(after))
        assert before.mean() - after.mean() > 5 * error
        assert raw[4_000:].mean() == pytest.approx(after.mean(), abs=0.03), "the raw mean stays down"
        assert normalised[3_000:3_500].mean() < normalised[2_000:3_000].mean() - 0.04
        assert normalised[4_000:].mean() == pytest.approx(0.5, abs=0.02)
    record_property("simulated drops", seeds)


def test_credit_is_shared_or_what_the_team_would_lose_as_configured() -> None:
    batch = signals_with(
        1, status=["success"], agents=[["a", "b"]], credit_shares=[[0.75, 0.25]], sole_shares=[[0.5, 0.0]]
    )
    only_success = RewardConfiguration({"task_completion": 1.0})
    shared = score(batch, History.empty(), only_success)
    lost = score(batch, History.empty(), replace(only_success, credit="difference"))
    assert (shared["credits"][0].to_list(), lost["credits"][0].to_list()) == ([0.75, 0.25], [0.5, 0.0])
    assert shared["reward_id"][0] != lost["reward_id"][0]
