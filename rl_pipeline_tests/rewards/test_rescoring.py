"""The plan of a re-score says who enters and leaves, how rewards move, and by which term."""

import polars as pl
import pytest

from rl_pipeline.rewards.configuration import RewardConfiguration
from rl_pipeline.rewards.normalization import ONE
from rl_pipeline.rewards.rescoring import RescorePlan, plan_rescore
from rl_pipeline.rewards.scoring import History, score
from rl_pipeline_tests.rewards.simulation import simulated_signals

NEW_WEIGHTS = {"task_completion": 0.30, "efficiency": 0.40, "code_quality": 0.05, "user_feedback": 0.25}
Part = tuple[str, float, float]


def rewards(**trajectories: list[Part]) -> pl.DataFrame:
    """Rewards of trajectories by id, of terms with their unit scores and weights."""
    return pl.DataFrame(
        [
            {
                "trajectory_id": name,
                "task_type": name[0],
                "revision": 0,
                "raw_total": sum(unit * weight for _, unit, weight in parts),
                "terms": [term for term, _, _ in parts],
                "units": [round(unit * ONE) for _, unit, _ in parts],
                "weights": [weight for _, _, weight in parts],
            }
            for name, parts in trajectories.items()
        ]
    )


BEFORE = rewards(
    a1=[("outcome", 1.0, 0.5), ("style", 0.2, 0.5)],  # 0.60
    a2=[("outcome", 0.0, 0.5), ("style", 0.9, 0.5)],  # 0.45
    b1=[("outcome", 0.5, 0.5), ("style", 0.5, 0.5)],  # 0.50
    b2=[("outcome", 0.7, 1.0)],  # 0.70
    gone=[("outcome", 1.0, 1.0)],
)
AFTER = rewards(
    a1=[("outcome", 1.0, 0.2), ("style", 0.2, 0.8)],  # 0.36
    a2=[("outcome", 0.0, 0.2), ("style", 0.9, 0.8)],  # 0.72
    b1=[("outcome", 0.5, 0.2), ("style", 0.5, 0.8)],  # 0.50
    b2=[("outcome", 0.7, 1.0)],  # 0.70
    new=[("outcome", 1.0, 1.0)],
    newer=[("outcome", 1.0, 1.0)],
)


@pytest.fixture(scope="module")
def plan() -> RescorePlan:
    return plan_rescore(BEFORE, AFTER)


def test_who_enters_and_who_leaves(plan: RescorePlan) -> None:
    assert (plan.entering, plan.leaving) == (("a2",), ("a1",))
    assert (plan.chosen_before, plan.chosen_after) == (3, 3)
    assert plan_rescore(BEFORE, AFTER, min_reward=0.71).entering == ("a2",)
    assert plan_rescore(BEFORE, AFTER, min_reward=0.71).leaving == ()


def test_how_rewards_move(plan: RescorePlan) -> None:
    """Changes -0.24, 0.27, 0 and 0; ranks 3, 1, 2, 4 and 1, 4, 2, 3: 1 - 6·(4 + 9 + 0 + 1) / (4·15) = -0.4."""
    assert (plan.compared, plan.only_before, plan.only_after) == (4, 1, 2)
    assert (plan.unchanged, plan.moved, plan.moved_share) == (2, 2, 0.5)
    assert [plan.mean_before, plan.mean_after] == pytest.approx([0.5625, 0.57])
    assert plan.quantiles[0.5] == pytest.approx(0.0)
    assert plan.quantiles[0.95] == pytest.approx(0.27 * 0.85)
    assert plan.rank_correlation == pytest.approx(-0.4)


def test_task_types_are_told_apart(plan: RescorePlan) -> None:
    first, second = plan.task_types
    assert (first.task_type, first.count, first.entering, first.leaving) == ("a", 2, 1, 1)
    assert [first.mean_before, first.mean_after] == pytest.approx([0.525, 0.54])
    assert (second.task_type, second.entering) == ("b", 0)
    assert second.mean_after == pytest.approx(0.6)


def test_the_largest_movers_are_named_with_the_term_that_moved_them(plan: RescorePlan) -> None:
    """a2: outcome 0.2·(0 - 0.45) - 0.5·(0 - 0.45) = 0.135, style 0.8·0.45 - 0.5·0.45 = 0.135; a1: likewise -0.12."""
    assert [mover.trajectory_id for mover in plan.movers] == ["a2", "a1"]
    assert [mover.share for mover in plan.movers] == pytest.approx([0.135, -0.12], abs=1e-5)


def test_a_poor_term_that_loses_its_weight_is_what_raised_the_reward() -> None:
    before = rewards(x=[("feedback", 0.0, 0.25), ("outcome", 0.9, 0.75)])
    (mover,) = plan_rescore(before, rewards(x=[("outcome", 0.9, 1.0)])).movers
    assert mover.term == "feedback"
    assert mover.after - mover.before == pytest.approx(0.225)


def test_a_small_move_is_no_move_and_the_bound_belongs_to_it() -> None:
    before = rewards(x=[("outcome", 0.50, 1.0)], y=[("outcome", 0.50, 1.0)])
    plan = plan_rescore(before, rewards(x=[("outcome", 0.55, 1.0)], y=[("outcome", 0.56, 1.0)]))
    assert (plan.moved, plan.unchanged, plan.rank_correlation) == (1, 0, None)


def test_the_newest_revision_of_a_trajectory_counts() -> None:
    later = BEFORE.with_columns(revision=pl.lit(1, pl.Int64), raw_total=pl.col("raw_total") / 10)
    plan = plan_rescore(pl.concat([later, BEFORE]), AFTER)
    assert plan.compared == 4
    assert plan.chosen_before == 0


def test_the_same_configuration_changes_nothing() -> None:
    scored = score(simulated_signals(400, seed=3), History.empty(), RewardConfiguration())
    plan = plan_rescore(scored, scored)
    assert (plan.unchanged, plan.moved, plan.entering, plan.leaving, plan.movers) == (400, 0, (), (), ())
    assert plan.rank_correlation == pytest.approx(1.0)


def test_other_weights_for_scored_trajectories_add_up() -> None:
    signals = simulated_signals(2_000, seed=3)
    before, after = (
        score(signals, History.empty(), configuration)
        for configuration in (RewardConfiguration(), RewardConfiguration(NEW_WEIGHTS))
    )
    plan = plan_rescore(before, after)
    assert plan.chosen_after - plan.chosen_before == len(plan.entering) - len(plan.leaving)
    assert sum(each.count for each in plan.task_types) == plan.compared == 2_000
    assert len(plan.movers) == 10
    assert all(mover.share * (mover.after - mover.before) > 0 for mover in plan.movers)


def test_the_table_is_for_people(plan: RescorePlan) -> None:
    table = plan.table()
    assert "4 compared, 2 unchanged, 2 (50.0%) moved by more than 0.05" in table
    assert "3 -> 3 with a raw total of at least 0.5: 1 enter, 1 leave" in table
    assert "not compared      1 stored only, 2 proposed only" in table
    assert max(map(len, table.splitlines())) <= 120


def test_nothing_to_compare_is_said() -> None:
    nothing = plan_rescore(BEFORE.clear(), AFTER)
    assert (nothing.compared, nothing.mean_before, nothing.moved_share, nothing.quantiles) == (0, None, 0.0, {})
    assert nothing.table().startswith("Nothing to compare")
