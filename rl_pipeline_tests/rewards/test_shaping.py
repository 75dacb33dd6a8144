"""Shaping must not change what is worth doing; the bonuses that do are here as controls."""

import math
from collections.abc import Callable

import numpy as np
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from rl_pipeline.rewards.shaping import InvalidPotentials, potentials, shaped_reward_lists, shaped_rewards

Floats = NDArray[np.float64]
GAMMA = 0.95
STATES, ACTIONS = 10, 4  # the last state is terminal


def shaping_terms(phi: Floats, gamma: float) -> Floats:
    """F(s, s') as the middle turn of a trajectory through s and s': what the product itself computes."""
    return np.array([[shaped_rewards([s, after, 0.0], 0.0, gamma)[1] for after in phi] for s in phi])


def random_mdp(chance: np.random.Generator, *, pays_every_turn: bool) -> tuple[Floats, Floats, Floats]:
    """Transitions [s, a, s'] and rewards [s, a, s'] of an episodic MDP, and a potential that is 0 at its end."""
    transitions = chance.dirichlet(np.full(STATES, 0.5), size=(STATES, ACTIONS))
    rewards = chance.uniform(0, 1, (STATES, ACTIONS, 1)) * np.ones(STATES)
    if not pays_every_turn:
        rewards[:, :, :-1] = 0.0
    transitions[-1] = np.eye(STATES)[-1]
    rewards[-1] = 0.0
    phi = np.append(chance.uniform(0, 1, STATES - 1), 0.0)
    return transitions, rewards, phi


def action_values(transitions: Floats, rewards: Floats) -> Floats:
    """Q* by value iteration, to the end of double precision."""
    expected = np.einsum("sat,sat->sa", transitions, rewards)
    q = np.zeros((STATES, ACTIONS))
    while True:
        following = expected + GAMMA * transitions @ q.max(axis=1)
        if np.abs(following - q).max() < 1e-13:
            return following
        q = following


def best_actions(q: Floats) -> list[int]:
    return [int(action) for action in q[:-1].argmax(axis=1)]


@pytest.mark.soak
@pytest.mark.parametrize(
    ("pays_every_turn", "least_changed"),
    [pytest.param(False, 0.5, id="the outcome pays"), pytest.param(True, 0.1, id="every turn pays")],
)
def test_the_optimal_policy_stays_and_a_progress_bonus_or_clamping_changes_it(
    pays_every_turn: bool,
    least_changed: float,
    soak_count: Callable[[int, int], int],
    record_property: Callable[[str, object], None],
) -> None:
    """The two controls show that the MDPs could tell: paying for progress without charging for its loss, and clamping
    the shaped reward to [0, 1].

    Where only the outcome pays, as in a trajectory, both change the policy in nearly all MDPs. Where every turn pays,
    its rewards outweigh the bonus in more than half of them, and the controls can only show that some change.
    """
    count = soak_count(20, 200)
    chance = np.random.default_rng(4)
    kept = changed_by_bonus = changed_by_clamping = 0
    for _ in range(count):
        transitions, rewards, phi = random_mdp(chance, pays_every_turn=pays_every_turn)
        terms = shaping_terms(phi, GAMMA)[:, None, :]
        original = action_values(transitions, rewards)
        shaped = action_values(transitions, rewards + terms)
        np.testing.assert_allclose(shaped, original - phi[:, None], atol=1e-10)
        kept += best_actions(shaped) == best_actions(original)
        bonus = np.maximum(0.0, phi[None, :] - phi[:, None])[:, None, :]
        changed_by_bonus += best_actions(action_values(transitions, rewards + bonus)) != best_actions(original)
        clamped = action_values(transitions, np.clip(rewards + terms, 0.0, 1.0))
        changed_by_clamping += best_actions(clamped) != best_actions(original)
    record_property("MDPs", count)
    record_property("kept by shaping", kept)
    record_property("changed by a plain bonus", changed_by_bonus)
    record_property("changed by clamping", changed_by_clamping)
    assert kept == count
    assert changed_by_bonus > least_changed * count
    assert changed_by_clamping > least_changed * count


def test_a_trajectory_is_shaped_as_computed_by_hand() -> None:
    """Two calls that succeed, one repeated in vain, and the response: four turns, three steps."""
    phi = potentials([1, 1, 0, 1])
    assert phi == pytest.approx([1 / 4, 1 / 3, 1 / 3, 0.0])
    assert shaped_rewards(phi, 0.9) == pytest.approx([1 / 4, 1 / 12, 0.0, 0.9 - 1 / 3])
    assert shaped_rewards([0.2, 0.5, 0.0], 1.0, 0.9) == pytest.approx([0.18, 0.25, 0.5])


def test_without_steps_or_with_one_turn_all_of_it_comes_at_the_end() -> None:
    assert shaped_rewards(potentials([0, 0, 0]), 0.3) == [0.0, 0.0, 0.3]
    assert shaped_rewards(potentials([1]), 0.7) == [0.7]
    assert shaped_rewards(potentials([]), 0.7) == []


def test_a_potential_knows_nothing_of_what_follows() -> None:
    """Two runs with the same first turn: the padded, worse one must not have the better return from there on."""
    answered_at_once, padded = potentials([1, 1]), potentials([1, 1, 1])
    assert answered_at_once[0] == padded[0]
    assert sum(shaped_rewards(answered_at_once, 0.60)[1:]) > sum(shaped_rewards(padded, 0.55)[1:])


turn_counts = st.lists(st.integers(0, 3), min_size=1, max_size=40)


@given(turn_counts, st.floats(-1, 4))
def test_the_turns_add_up_to_the_total(new_steps: list[int], total: float) -> None:
    assert math.fsum(shaped_rewards(potentials(new_steps), total)) == pytest.approx(total, abs=1e-12)


@given(turn_counts, st.floats(-1, 4), st.floats(0.5, 1))
def test_the_discounted_return_is_that_of_the_total_alone(new_steps: list[int], total: float, gamma: float) -> None:
    shaped = shaped_rewards(potentials(new_steps), total, gamma)
    discounted = math.fsum(gamma**turn * reward for turn, reward in enumerate(shaped))
    assert discounted == pytest.approx(gamma ** (len(shaped) - 1) * total, abs=1e-12)


@given(turn_counts)
def test_potentials_rise_with_the_steps_to_at_most_a_half_and_end_at_zero(new_steps: list[int]) -> None:
    phi = potentials(new_steps)
    assert phi[:-1] == sorted(phi[:-1])
    assert all(0.0 <= value <= 0.5 for value in phi)
    assert phi[-1] == 0.0


@pytest.mark.parametrize("gamma", [1.0, 0.97])
def test_the_column_has_the_bits_of_the_rows(gamma: float) -> None:
    chance = np.random.default_rng(1)
    lists = [potentials(chance.integers(0, 3, turns).tolist()) for turns in chance.integers(0, 9, 500)]
    frame = pl.DataFrame({"turn_potentials": lists, "raw_total": chance.uniform(0, 1, 500)})
    chunks = pl.concat([frame, frame.reverse()], rechunk=False)
    for part in (frame, frame.slice(123, 200), frame.head(0), chunks, chunks.slice(123, 600)):
        shaped = shaped_reward_lists(part["turn_potentials"], part["raw_total"], gamma)
        assert shaped.dtype == pl.List(pl.Float64)
        assert shaped.to_list() == [shaped_rewards(phi, total, gamma) for phi, total in part.iter_rows()]


def test_without_a_total_there_is_nothing_to_shape() -> None:
    lists = pl.Series("phi", [[0.25, 0.0], None, [0.25, 0.0]], dtype=pl.List(pl.Float64))
    shaped = shaped_reward_lists(lists, pl.Series([None, 1.0, 1], dtype=pl.Float64))
    assert shaped.to_list() == [None, None, [0.25, 0.75]]
    assert shaped_reward_lists(lists.slice(1), pl.Series([1, 1])).to_list() == [None, [0.25, 0.75]]


def test_what_lies_under_a_null_list_reaches_no_other_row() -> None:
    values, mask = pa.array([0.25, 0.0, 0.1, 0.3, 0.25, 0.0]), pa.array([False, True, False])
    hidden = pa.LargeListArray.from_arrays(pa.array([0, 2, 4, 6]), values, mask=mask)
    shaped = shaped_reward_lists(pl.Series(hidden), pl.Series([1.0, 1.0, 1.0]))
    assert shaped.to_list() == [[0.25, 0.75], None, [0.25, 0.75]]


def test_a_potential_that_does_not_end_at_zero_is_refused() -> None:
    with pytest.raises(InvalidPotentials):
        shaped_rewards([0.1, 0.5], 1.0)
    with pytest.raises(InvalidPotentials):
        shaped_reward_lists(pl.Series([[0.1, 0.0], [0.1, 0.5]]), pl.Series([1.0, 1.0]))
