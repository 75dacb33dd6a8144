"""Calls of tools, by name and arguments."""

import json
from pathlib import Path
from typing import Any

import pytest

from rl_pipeline.validation.item_files import InvalidItems
from rl_pipeline.validation.scorers.tool_calls import load_tool_calls, right_calls
from rl_pipeline.validation.suite import Item

WEATHER = {"weather": {"city": ["Oslo"], "unit": ["celsius", ""]}}
TWO = Item("q", "q", expected={"calls": [WEATHER, {"alarm": {"time": ["07:00"], "days": [["Mon", "Wed"]]}}]})


def called(name: str, **arguments: Any) -> dict[str, Any]:
    return {"name": name, "arguments": arguments}


OSLO, ALARM = called("weather", city="oslo"), called("alarm", time="07:00", days=["Mon", "Wed"])


@pytest.mark.parametrize(
    ("calls", "score"),
    [
        pytest.param([OSLO, ALARM], 1.0, id="both"),
        pytest.param([ALARM, OSLO], 1.0, id="in any order"),
        pytest.param([OSLO], 0.5, id="one is missing"),
        pytest.param([OSLO, ALARM, OSLO], 2 / 3, id="one too many"),
        pytest.param([called("weather", city="Rome"), ALARM], 0.5, id="another value"),
        pytest.param([called("weather", city="Oslo", unit="kelvin"), ALARM], 0.5, id="a value that is not allowed"),
        pytest.param([called("weather", city="Oslo", day=1), ALARM], 0.5, id="an unknown argument"),
        pytest.param([called("forecast", city="Oslo"), ALARM], 0.5, id="another function"),
        pytest.param([called("weather"), ALARM], 0.5, id="an argument is missing"),
        pytest.param([], 0.0, id="none"),
    ],
)
def test_calls_score_by_what_is_right(calls: list[dict[str, Any]], score: float) -> None:
    assert right_calls(TWO, json.dumps(calls)) == pytest.approx(score)
    assert right_calls(TWO, f"Sure {{see}}:\n```json\n{json.dumps(calls, indent=1)}\n```") == pytest.approx(score)


def test_numbers_are_numbers_and_truths_are_truths() -> None:
    item = Item("q", "q", expected={"calls": [{"f": {"n": [2], "on": [True], "deep": [{"a": [1, 2]}]}}]})
    assert right_calls(item, json.dumps(called("f", n=2.0, on=True, deep={"a": 2}))) == 1.0
    assert right_calls(item, json.dumps(called("f", n=2.0, on=1, deep={"a": 2}))) == 0.0
    assert right_calls(item, json.dumps(called("f", n="2", on=True, deep={"a": 2}))) == 0.0
    assert right_calls(item, json.dumps(called("f", n=2, on=True, deep={"a": 3}))) == 0.0


@pytest.mark.parametrize(
    ("answer", "score"), [("[]", 1.0), ("There is no function for that.", 1.0), (json.dumps([OSLO]), 0.0)]
)
def test_where_nothing_fits_nothing_is_called(answer: str, score: float) -> None:
    assert right_calls(Item("q", "q", expected={"calls": []}), answer) == score


@pytest.mark.parametrize("opening", ["[", '{"name":', '[{"a":'])
def test_an_answer_that_is_nested_too_deeply_calls_nothing(opening: str) -> None:
    assert right_calls(TWO, opening * 100_000) == 0.0


def test_a_number_beyond_all_floats_is_a_wrong_one() -> None:
    item = Item("q", "q", expected={"calls": [{"f": {"n": [2]}}]})
    assert right_calls(item, json.dumps(called("f", n=10**400))) == 0.0


def test_the_two_files_of_the_leaderboard_are_read_together(tmp_path: Path) -> None:
    questions, answers = tmp_path / "questions.json", tmp_path / "answers.json"
    question = {
        "id": "simple_0",
        "question": [[{"role": "user", "content": "Oslo?"}]],
        "function": [{"name": "weather"}],
    }
    questions.write_text(json.dumps(question))
    answers.write_text(json.dumps({"id": "simple_0", "ground_truth": [WEATHER]}))
    [item] = load_tool_calls(questions, answers)
    assert '{"name": "weather"}' in item.messages[0]["content"]
    assert right_calls(item, json.dumps(OSLO)) == 1.0
    with pytest.raises(InvalidItems, match="the calls that are right"):
        load_tool_calls(questions)
