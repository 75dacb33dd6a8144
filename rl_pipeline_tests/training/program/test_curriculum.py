"""Which prompts an iteration plays, by what is known of them."""

import json
from collections import Counter

import pytest

from rl_pipeline.training.program.curriculum import Curriculum

EASY, MIDDLING, HARD = range(3)
CHANCES = {EASY: 1.0, MIDDLING: 0.5, HARD: 0.0}
KINDS = [EASY, MIDDLING, HARD] * 20


def experienced(*, floor: float = 0.2, iterations: int = 12) -> Curriculum:
    """One that has seen its choices played, eight times each."""
    curriculum = Curriculum(KINDS, floor=floor)
    for iteration in range(iterations):
        chosen = curriculum.choose(6, iteration, seed=1)
        solved = [CHANCES[KINDS[prompt]] > attempt / 8 for prompt in chosen for attempt in range(8)]
        curriculum.learn([prompt for prompt in chosen for _ in range(8)], solved)
    return curriculum


def shares(curriculum: Curriculum) -> dict[int, float]:
    """How much of many choices falls on each kind."""
    chosen = Counter(KINDS[prompt] for seed in range(500) for prompt in curriculum.choose(6, 99, seed))
    return {kind: chosen[kind] / chosen.total() for kind in (EASY, MIDDLING, HARD)}


def test_all_prompts_are_alike_while_nothing_is_known() -> None:
    assert len(set(Curriculum(KINDS, floor=0.0).learnability())) == 1


def test_what_succeeds_now_and_then_is_played_most_and_the_rest_never_quite_given_up() -> None:
    found = shares(experienced())
    assert found[MIDDLING] > 0.6
    assert all(found[kind] > 0.2 / 3 for kind in (EASY, HARD))


def test_with_a_higher_floor_more_of_the_choice_falls_on_all_alike() -> None:
    assert shares(experienced(floor=0.9))[HARD] > shares(experienced(floor=0.1))[HARD] + 0.1


def test_what_is_known_of_a_kind_tells_of_its_prompts_that_were_not_played_yet() -> None:
    curriculum = Curriculum([EASY, MIDDLING, EASY, MIDDLING], floor=0.2)
    curriculum.learn([0] * 8 + [1] * 8, [1] * 8 + [1, 0] * 4)
    *_, easy, middling = curriculum.learnability()
    assert middling > 1.5 * easy


def test_attempts_of_its_own_outweigh_a_prompts_kind() -> None:
    curriculum = Curriculum([HARD] * 10, floor=0.2)
    curriculum.learn([prompt for prompt in range(9) for _ in range(8)], [0] * 72)
    curriculum.learn([9] * 8, [1, 0] * 4)
    others = curriculum.learnability()[:9]
    assert curriculum.learnability()[9] > 3 * max(others)


def test_what_a_policy_could_not_do_long_ago_is_worth_another_look() -> None:
    curriculum = Curriculum([EASY, HARD], floor=0.2)
    curriculum.learn([1] * 8, [0] * 8)
    before = curriculum.learnability()[1]
    for _ in range(20):
        curriculum.learn([0], [1])
    assert curriculum.learnability()[1] > 2 * before


def test_an_iteration_plays_different_prompts_and_repeats_them_only_where_there_are_too_few() -> None:
    curriculum = experienced(floor=0.0)
    assert all(len(set(curriculum.choose(20, iteration, seed=3))) == 20 for iteration in range(50))
    assert sorted(set(Curriculum([EASY, HARD], floor=0.5).choose(40, 0, seed=3))) == [0, 1]


@pytest.mark.parametrize("other", [(7, 6), (8, 5)])
def test_a_choice_depends_on_what_was_saved_the_iteration_and_the_seed_alone(other: tuple[int, int]) -> None:
    curriculum, resumed = experienced(), Curriculum(KINDS, floor=0.2)
    resumed.state = json.loads(json.dumps(curriculum.state))
    assert resumed.choose(6, 7, seed=5) == curriculum.choose(6, 7, seed=5)
    assert resumed.choose(6, other[0], seed=other[1]) != curriculum.choose(6, 7, seed=5)
    assert resumed.choose(6, 7, seed=5) != Curriculum(KINDS, floor=0.2).choose(6, 7, seed=5)
