"""Simulated users speak as the rule says."""

from collections import Counter
from random import Random

import pytest

from rl_pipeline.agents import OpinionRule


@pytest.mark.parametrize(("success", "usual"), [(True, "thumbs_up"), (False, "thumbs_down")])
def test_a_quarter_of_the_users_speaks_and_one_of_twenty_is_wrong(success: bool, usual: str) -> None:
    randomness = Random(0)
    said = Counter(OpinionRule().opinion(success, randomness) for _ in range(40_000))
    spoken = said.total() - said[None]
    assert spoken / said.total() == pytest.approx(0.25, abs=0.01)
    assert said[usual] / spoken == pytest.approx(0.95, abs=0.01)


def test_the_same_luck_gives_the_same_opinions() -> None:
    first, second = ([OpinionRule().opinion(True, luck) for _ in range(50)] for luck in (Random(3), Random(3)))
    assert first == second
