"""What a memory is worth."""

from datetime import timedelta

import pytest

from rl_pipeline.memory.forgetting import worth, worth_least
from rl_pipeline.stores.agent_memories import Standing
from rl_pipeline_tests.memory.remembered import START

HALF_LIFE = timedelta(days=30)


def standing(name: str, importance: float = 0.5, *, age: int = 0, looked: int | None = None) -> Standing:
    last = START - timedelta(days=looked) if looked is not None else None
    return Standing(name, importance, 0, last, START - timedelta(days=age))


def test_importance_decays_by_half_every_half_life_since_the_last_look() -> None:
    assert worth(standing("a", 0.8, age=60), START, HALF_LIFE) == pytest.approx(0.2)
    assert worth(standing("a", 0.8, age=60, looked=30), START, HALF_LIFE) == pytest.approx(0.4)
    assert worth(standing("a", 0.8, age=-5), START, HALF_LIFE) == 0.8, "clocks differ"


def test_the_least_go_first_of_equals_the_older() -> None:
    kept = [standing("new"), standing("old", age=30, looked=0), standing("faded", 0.9, age=300), standing("weak", 0.1)]
    assert worth_least(kept, 2, START, HALF_LIFE) == ["faded", "weak"]
    assert worth_least(kept, 3, START, HALF_LIFE)[2] == "old"
    assert worth_least(kept, -1, START, HALF_LIFE) == []
