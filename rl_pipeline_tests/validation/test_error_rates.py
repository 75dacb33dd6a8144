"""How often the real decision is wrong, on models that are simulated: coins whose chances are known."""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from random import Random

import pytest

from rl_pipeline.validation.suite import BENCHMARKS, SAFETY, AskOnce
from rl_pipeline.validation.suites.crafting_safety import crafting_safety
from rl_pipeline.validation.suites.general_language import general_suites
from rl_pipeline.validation.validating import Budget, validate
from rl_pipeline_tests.validation.scripted import Scripted, coin, coin_suite

SUITES = [coin_suite(name, families) for name, families in zip(BENCHMARKS, (12, 17, 40, 200), strict=True)]

SAFE = [coin_suite(name, families=200, kind="safety", scorer=lambda *_: 1.0, floor=0.9) for name in SAFETY]
"""Which any model passes: what counts here is the rest."""

FLOORS = {
    f"{who}: {suite.name}": replace(suite, ask=AskOnce(), scorer=lambda _, answer: float(answer))
    for who, suites in (("embedded", crafting_safety(seed=0)), ("general", general_suites()))
    for suite in suites
    if suite.kind == "safety" and suite.floor >= 0.95
}
"""The highest of the real floors, with as many items and attempts as there are."""

pytestmark = pytest.mark.soak


def decisions(comparisons: int, shift: float, looks: tuple[int, ...], suites: int = 4) -> Counter[str]:
    found: Counter[str] = Counter()
    for number in range(comparisons):
        report = validate(
            coin(shift, 2 * number + 1),
            coin(0.0, 2 * number + 2),
            SUITES[:suites],
            budget=Budget(looks),
            seed=number,
            required=[suite.name for suite in SUITES[:suites]],
        )
        found[report.decision] += 1
    return found


@pytest.mark.parametrize(
    ("looks", "suites"),
    [((200,), 1), ((800,), 1), ((200, 400, 800), 4)],
    ids=["200 items", "800 items", "three looks at four suites"],
)
def test_an_equal_model_is_seldom_refused(
    looks: tuple[int, ...],
    suites: int,
    soak_count: Callable[[int, int], int],
    record_property: Callable[[str, object], None],
) -> None:
    comparisons = soak_count(100, 1000)
    found = decisions(comparisons, 0.0, looks, suites)
    for decision in ("deploy", "ask_a_person", "refuse"):
        record_property(f"equal models, {looks[-1]} items, {suites} suites: {decision}", found[decision] / comparisons)
    assert found["refuse"] / comparisons < 0.05


@pytest.mark.parametrize("worse", [0.0, 0.05, 0.10], ids=["equal", "worse by 5 %", "worse by 10 %"])
def test_all_nine_suites_decide_as_their_error_rates_say(
    worse: float, soak_count: Callable[[int, int], int], record_property: Callable[[str, object], None]
) -> None:
    comparisons, found = soak_count(40, 1000), Counter[str]()
    for number in range(comparisons):
        candidate, control = coin(-worse, 2 * number + 1), coin(0.0, 2 * number + 2)
        found[validate(candidate, control, [*SUITES, *SAFE], seed=number).decision] += 1
    for decision in ("deploy", "ask_a_person", "refuse"):
        record_property(f"nine suites, worse by {worse:.0%}: {decision}", found[decision] / comparisons)
    if worse == 0.0:
        assert found["refuse"] / comparisons < (0.05 if comparisons >= 1000 else 0.10)
        assert found["deploy"] > 0
    else:
        assert found["deploy"] / comparisons < 0.02
    if worse > 0.05:
        assert found["refuse"] / comparisons > 0.5


def test_a_model_that_is_worse_by_a_seventh_is_hardly_ever_let_in(
    soak_count: Callable[[int, int], int], record_property: Callable[[str, object], None]
) -> None:
    comparisons = soak_count(50, 1000)
    found = decisions(comparisons, -0.15, (200, 400, 800))
    for decision in ("deploy", "ask_a_person", "refuse"):
        record_property(f"models worse by 0.15: {decision}", found[decision] / comparisons)
    assert found["deploy"] == 0
    assert found["refuse"] / comparisons > 0.95


def test_a_model_at_the_margin_seldom_passes_a_suite(
    soak_count: Callable[[int, int], int], record_property: Callable[[str, object], None]
) -> None:
    comparisons = soak_count(100, 1000)
    found = decisions(comparisons, -0.05, (200, 400, 800), suites=1)
    record_property("models worse by 0.05, one suite: deploy", found["deploy"] / comparisons)
    assert found["deploy"] / comparisons < (0.08 if comparisons >= 1000 else 0.12)


def slips(chance: float, number: int) -> Scripted:
    """Is unsafe by `chance`, whatever it is asked."""
    randomness = Random(number)
    return Scripted(lambda _, __: str(int(randomness.random() >= chance)))


@pytest.mark.parametrize("name", FLOORS)
@pytest.mark.parametrize("allowed", [0.25, 0.5, 1.0, 2.5])
def test_a_floor_lets_the_safe_in_and_nobody_who_is_below_it(
    name: str, allowed: float, soak_count: Callable[[int, int], int], record_property: Callable[[str, object], None]
) -> None:
    """`allowed` is how often the model is unsafe, as a multiple of what the floor allows."""
    comparisons, suite = soak_count(20, 1000), FLOORS[name]
    chance = allowed * (1 - suite.floor)
    found = Counter(
        validate(slips(chance, number), None, [suite], seed=number, required=[suite.name]).decision
        for number in range(comparisons)
    )
    for decision in ("deploy", "ask_a_person", "refuse"):
        record_property(f"{name}, {allowed:g} of what its floor allows: {decision}", found[decision] / comparisons)
    if allowed < 0.5:
        assert found["deploy"] / comparisons >= 0.9
    if allowed < 1.0:
        assert found["refuse"] == 0
    elif allowed == 1.0:
        assert found["deploy"] / comparisons < (0.08 if comparisons >= 1000 else 0.3)
    else:
        assert found["deploy"] == 0
