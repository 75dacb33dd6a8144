"""The general suites that ship: that their own right answers are right, and wrong ones are not."""

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from rl_pipeline.validation.suite import BENCHMARKS, SAFETY, Item, Suite
from rl_pipeline.validation.suites.general_language import DIRECTORY, Floors, general_suites
from rl_pipeline.validation.validating import Budget

SUITES = {suite.name: suite for suite in general_suites()}


def scored(suite: Suite, answer: Callable[[Item], str]) -> list[float]:
    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(lambda item: suite.scorer(item, answer(item)), suite.items))


def right_call(item: Item) -> str:
    calls = []
    for call in item.expected["calls"]:
        [(name, allowed)] = call.items()
        arguments = {argument: values[0] for argument, values in allowed.items() if values[0] != ""}
        calls.append({"name": name, "arguments": arguments})
    return json.dumps(calls)


def test_all_nine_are_there_with_twenty_items_at_least() -> None:
    assert set(SUITES) == {*BENCHMARKS, *SAFETY}
    for suite in SUITES.values():
        assert len(suite.items) >= suite.minimum >= 20
        assert len({item.id for item in suite.items}) == len(suite.items)
        assert all(message["content"].strip() for item in suite.items for message in item.messages)


def test_the_programs_that_come_with_the_tasks_pass_and_empty_ones_fail() -> None:
    suite = SUITES["code_generation"]
    assert set(scored(suite, lambda item: item.expected["canonical_solution"])) == {1.0}
    assert sum(scored(suite, lambda _: "    return None\n")) == 0


@pytest.mark.parametrize(
    ("name", "right"),
    [
        ("data_analysis", lambda item: f"Let me see: 3.\nAnswer: {str(item.expected['answer']).split('|')[0]}"),
        ("research_synthesis", lambda item: item.expected["reference"]),
        ("tool_usage", right_call),
    ],
)
def test_right_answers_score_and_ignorance_does_not(name: str, right: Callable[[Item], str]) -> None:
    assert set(scored(SUITES[name], right)) == {1.0}
    ignorant = scored(SUITES[name], lambda _: "I do not know.")
    assert sum(ignorant) <= 0.2 * len(ignorant)


def test_a_refusal_is_right_for_harm_and_wrong_for_look_alikes() -> None:
    for name, score in (("refusal", 1.0), ("jailbreak", 1.0), ("non_refusal", 0.0)):
        assert set(scored(SUITES[name], lambda _: "I'm sorry, but I can't help with that.")) == {score}
        assert set(scored(SUITES[name], lambda _: "Take a bag and go there by bus.")) == {1.0 - score}


def test_what_has_a_floor_of_safety_can_be_asked_almost_to_the_whole_budget() -> None:
    for name in ("refusal", "non_refusal", "toxicity", "jailbreak"):
        assert len(SUITES[name].items) * SUITES[name].attempts >= 0.95 * Budget().looks[-1]


def test_files_take_the_place_of_those_that_ship(tmp_path: Path) -> None:
    own = tmp_path / "data_analysis.jsonl"
    own.write_text((DIRECTORY / "data_analysis.jsonl").read_text().splitlines()[0])
    suites = {suite.name: suite for suite in general_suites({"data_analysis": own}, floors=Floors(benchmark=0.7))}
    assert len(suites["data_analysis"].items) == 1
    assert suites["data_analysis"].floor == 0.7


def test_xstest_takes_the_place_of_both_kinds_of_requests(test_data: Path) -> None:
    path = test_data / "safety" / "xstest_prompts.csv"
    suites = {suite.name: suite for suite in general_suites({"refusal": path, "non_refusal": path})}
    assert (len(suites["refusal"].items), len(suites["non_refusal"].items)) == (200, 250)
    assert len(suites["jailbreak"].items) == 200 * 8
