"""Credit against games whose answers are published, and against the axioms that leave only one answer."""

import itertools
import math
import random
from collections.abc import Callable, Collection, Sequence
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rl_pipeline.rewards.credit import (
    Coalition,
    CoalitionValue,
    CoverageGame,
    InvalidGame,
    assign_credit,
    coverage_game,
    difference_rewards,
    sampled_shapley,
    shapley,
)

AGENTS = ["researcher", "developer", "hacker", "reviewer", "writer"]


def weighted_majority(quota: int, weights: dict[str, int]) -> CoalitionValue:
    return lambda coalition: float(sum(weights[player] for player in coalition) >= quota)


def airport(costs: dict[str, float]) -> CoalitionValue:
    """The runway must be long enough for the largest aircraft of the coalition."""
    return lambda coalition: max((costs[player] for player in coalition), default=0.0)


def random_game(players: list[str], seed: int) -> CoalitionValue:
    chance = random.Random(seed)
    worths = {
        frozenset(coalition): chance.uniform(-1, 1) if coalition else 0.0
        for size in range(len(players) + 1)
        for coalition in itertools.combinations(players, size)
    }
    return lambda coalition: worths[coalition]


def by_definition(players: list[str], value: CoalitionValue) -> dict[str, Fraction]:
    """The mean contribution over all orders, in exact fractions: slow, and obviously right."""
    added = dict.fromkeys(players, Fraction(0))
    for order in itertools.permutations(players):
        for place, player in enumerate(order):
            before = frozenset(order[:place])
            added[player] += Fraction(value(before | {player})) - Fraction(value(before))
    return {player: total / math.factorial(len(players)) for player, total in added.items()}


def test_the_glove_game_pays_the_scarce_glove() -> None:
    """One left glove and two right ones, a pair is worth 1: (2/3, 1/6, 1/6)."""

    def pairs(coalition: Coalition) -> float:
        return float(min(len(coalition & {"left"}), len(coalition & {"right", "other right"})))

    earned = shapley(["left", "right", "other right"], pairs)
    assert earned == pytest.approx({"left": 2 / 3, "right": 1 / 6, "other right": 1 / 6}, abs=1e-15)


def test_the_airport_game_charges_each_aircraft_its_part_of_the_runway() -> None:
    """Costs 8, 11, 13, 18 give 2, 3, 4, 9: each further piece is shared by those who need it."""
    costs = {"A": 8.0, "B": 11.0, "C": 13.0, "D": 18.0}
    assert shapley(list(costs), airport(costs)) == pytest.approx({"A": 2, "B": 3, "C": 4, "D": 9}, abs=1e-12)


@pytest.mark.parametrize(
    ("quota", "weights", "expected"),
    [
        pytest.param(2, {"a": 1, "b": 1, "c": 1}, {"a": "1/3", "b": "1/3", "c": "1/3"}, id="simple majority of three"),
        pytest.param(51, {"a": 50, "b": 49, "c": 1}, {"a": "2/3", "b": "1/6", "c": "1/6"}, id="a vote is not a weight"),
        pytest.param(
            6,
            {"a": 4, "b": 3, "c": 2, "d": 1},
            {"a": "5/12", "b": "1/4", "c": "1/4", "d": "1/12"},
            id="6 of 4, 3, 2, 1",
        ),
    ],
)
def test_majority_games_have_the_power_index_of_shapley_and_shubik(
    quota: int, weights: dict[str, int], expected: dict[str, str]
) -> None:
    power = shapley(list(weights), weighted_majority(quota, weights))
    assert power == pytest.approx({player: float(Fraction(share)) for player, share in expected.items()}, abs=1e-15)


def test_the_security_council_of_1954_has_the_published_power() -> None:
    """Five vetoes and six others, seven votes pass: 76/385 for each veto and 1/462 for each other."""
    vetoes = frozenset(f"permanent {number}" for number in range(5))
    others = [f"elected {number}" for number in range(6)]
    power = shapley([*vetoes, *others], lambda coalition: float(vetoes <= coalition and len(coalition) >= 7))
    assert power == pytest.approx(dict.fromkeys(vetoes, 76 / 385) | dict.fromkeys(others, 1 / 462), abs=1e-14)


@pytest.mark.parametrize("seed", range(5))
def test_enumeration_is_the_mean_over_all_orders(seed: int) -> None:
    game = random_game(AGENTS, seed)
    expected = {player: float(share) for player, share in by_definition(AGENTS, game).items()}
    assert shapley(AGENTS, game) == pytest.approx(expected, abs=1e-14)


@given(st.integers(0, 10_000), st.integers(0, 6))
def test_everything_is_shared_out(seed: int, count: int) -> None:
    players = [f"agent-{number}" for number in range(count)]
    game = random_game(players, seed)
    assert math.fsum(shapley(players, game).values()) == pytest.approx(game(frozenset(players)), abs=1e-12)


@given(st.integers(0, 10_000), st.randoms(use_true_random=False))
def test_equal_players_get_equal_bits_in_any_order(seed: int, chance: random.Random) -> None:
    by_size = [0.0, *(random.Random(seed).uniform(-1, 1) for _ in AGENTS)]
    order = chance.sample(AGENTS, len(AGENTS))
    assert len(set(shapley(order, lambda coalition: by_size[len(coalition)]).values())) == 1


@given(st.integers(0, 10_000))
def test_who_adds_nothing_gets_nothing(seed: int) -> None:
    game = random_game(AGENTS, seed)
    earned = shapley([*AGENTS, "bystander"], lambda coalition: game(coalition - {"bystander"}))
    assert earned.pop("bystander") == 0.0
    assert earned == pytest.approx(shapley(AGENTS, game), abs=1e-14)


@given(st.integers(0, 10_000), st.integers(0, 10_000))
def test_the_credit_of_two_games_is_the_sum_of_their_credits(one: int, other: int) -> None:
    first, second = random_game(AGENTS, one), random_game(AGENTS, other)
    both = shapley(AGENTS, lambda coalition: first(coalition) + second(coalition))
    parts = (shapley(AGENTS, first), shapley(AGENTS, second))
    assert both == pytest.approx({agent: parts[0][agent] + parts[1][agent] for agent in AGENTS}, abs=1e-13)


def coverage_shares(
    agents: Sequence[str], steps: Sequence[Collection[str]], turn_agents: Sequence[str] = ()
) -> list[float]:
    return coverage_game(1.0, agents, steps, turn_agents).shares(agents)


@given(
    st.lists(st.sets(st.sampled_from([*AGENTS, "stranger"]), max_size=4), max_size=12),
    st.lists(st.sampled_from(AGENTS), max_size=8),
    st.floats(-1, 3, allow_nan=False),
)
def test_the_closed_form_of_the_coverage_game_is_its_shapley_value(
    steps: list[set[str]], turn_agents: list[str], worth: float
) -> None:
    game = coverage_game(worth, AGENTS, steps, turn_agents)
    assigned = assign_credit(AGENTS, game)
    assert assigned.method == "closed form"
    assert assigned.credits == pytest.approx(shapley(AGENTS, game), abs=1e-12)
    shares = coverage_shares(AGENTS, steps, turn_agents)
    assert math.fsum(shares) == pytest.approx(1.0, abs=1e-12)
    assert list(assigned.credits.values()) == pytest.approx([worth * share for share in shares], abs=1e-15)
    lost = difference_rewards(AGENTS, coverage_game(1.0, AGENTS, steps, turn_agents))
    assert game.sole_shares(AGENTS) == pytest.approx(list(lost.values()), abs=1e-12)


def test_a_step_that_two_agents_achieved_is_shared_and_a_failed_agent_gets_nothing() -> None:
    steps = [{"researcher"}, {"researcher", "developer"}, {"developer"}, {"developer"}]
    assert coverage_shares(["researcher", "developer", "hacker"], steps) == [0.375, 0.625, 0.0]


def test_where_nothing_succeeded_turns_count_and_without_turns_everyone_does() -> None:
    assert coverage_shares(["a", "b"], [], ["a", "a", "b", "a"]) == [0.75, 0.25]
    assert coverage_shares(["a", "b"], []) == [0.5, 0.5]
    assert coverage_shares([], [], []) == []


def test_steps_of_strangers_count_for_nobody() -> None:
    assert coverage_shares(["a", "b"], [{"stranger"}, {"a", "stranger"}, {"b"}]) == [0.5, 0.5]


def test_the_more_a_coalition_covers_the_more_it_is_worth() -> None:
    game = CoverageGame(0.8, (frozenset({"a"}), frozenset({"a", "b"}), frozenset({"c"}), frozenset({"c"})))
    values = {names: game(frozenset(names)) for names in ("", "a", "b", "ab", "c", "abc")}
    assert values == pytest.approx({"": 0.0, "a": 0.4, "b": 0.2, "ab": 0.4, "c": 0.4, "abc": 0.8})


@pytest.mark.soak
def test_sampled_credit_is_within_its_error_of_the_exact_one(
    soak_count: Callable[[int, int], int], record_property: Callable[[str, object], None]
) -> None:
    """Of the estimates, 95.45 % lie within two standard errors and 99.99 % within four."""
    games = soak_count(20, 200)
    players = [f"agent-{number}" for number in range(8)]
    distances = []
    for seed in range(games):
        game = random_game(players, seed)
        exact, sampled = shapley(players, game), sampled_shapley(players, game, 400, seed)
        assert math.fsum(sampled.credits.values()) == pytest.approx(game(frozenset(players)), abs=1e-12)
        distances += [abs(sampled.credits[p] - exact[p]) / sampled.standard_errors[p] for p in players]
    record_property("games", games)
    within = sum(distance <= 2 for distance in distances) / len(distances)
    assert 0.88 <= within <= 0.99
    assert max(distances) < 5


def test_sampling_repeats_its_bits_for_the_same_seed_whatever_the_order_of_the_agents() -> None:
    game = random_game(AGENTS, 1)
    first = sampled_shapley(AGENTS, game, 50, seed=7)
    assert sampled_shapley(AGENTS[::-1], game, 50, seed=7) == first
    assert sampled_shapley(AGENTS, game, 50, seed=8).credits != first.credits


def test_up_to_twelve_agents_are_enumerated_and_more_are_sampled() -> None:
    twelve = {f"aircraft-{number}": float(number) for number in range(1, 13)}
    assert assign_credit(list(twelve), airport(twelve)).method == "enumeration"
    thirteen = twelve | {"aircraft-13": 13.0}
    assigned = assign_credit(list(thirteen), airport(thirteen))
    assert assigned.method == "sampling"
    for place, aircraft in enumerate(thirteen):  # the k-th piece of the runway is shared by the 13 - k that need it
        share = math.fsum(1 / (13 - piece) for piece in range(place + 1))
        assert abs(assigned.credits[aircraft] - share) <= 4 * assigned.standard_errors[aircraft]
    with pytest.raises(InvalidGame, match="sampled_shapley"):
        shapley(list(thirteen), airport(thirteen))


def test_difference_rewards_charge_the_one_who_overcrowds_the_bar() -> None:
    """El Farol (Wolpert and Tumer): a night is worth x·exp(-x/6) to all. The seventh guest makes it worse for the team,
    though the team's own reward, which all share, is still high."""

    def night(guests: Coalition) -> float:
        return len(guests) * math.exp(-len(guests) / 6)

    def last_guest(count: int) -> float:
        return difference_rewards([f"guest-{number}" for number in range(count)], night)["guest-0"]

    assert last_guest(5) == pytest.approx(5 * math.exp(-5 / 6) - 4 * math.exp(-4 / 6))
    assert last_guest(5) > 0 > last_guest(7)
    assert night(frozenset(map(str, range(7)))) > 2


def test_difference_rewards_credit_a_shared_step_to_neither() -> None:
    game = coverage_game(1.0, ["a", "b"], [{"a"}, {"a", "b"}])
    assigned = assign_credit(["a", "b"], game, method="difference")
    assert (assigned.method, assigned.credits) == ("difference", {"a": 0.5, "b": 0.0})


@pytest.mark.parametrize(
    "ask",
    [
        lambda: shapley(["a", "a"], lambda _: 0.0),
        lambda: sampled_shapley(["a", "a"], lambda _: 0.0, 10, 0),
        lambda: difference_rewards(["a", "a"], lambda _: 0.0),
        lambda: coverage_shares(["a", "a"], []),
    ],
)
def test_an_agent_cannot_play_twice(ask: Callable[[], object]) -> None:
    with pytest.raises(InvalidGame, match="once"):
        ask()


def test_one_order_has_no_error_to_report() -> None:
    with pytest.raises(InvalidGame, match="permutations"):
        sampled_shapley(["a", "b"], lambda _: 0.0, 1, 0)
