"""Programs that a model wrote."""

import json
from pathlib import Path

import pytest

from rl_pipeline.validation.item_files import InvalidItems
from rl_pipeline.validation.sandbox import running
from rl_pipeline.validation.sandbox.running import Limits, SandboxUnavailable
from rl_pipeline.validation.scorers.programs import load_programs, passes_tests
from rl_pipeline.validation.suite import Item

PROMPT = 'import math\n\ndef half(x: float) -> float:\n    """Half of x."""\n'
ITEM = Item(
    "half",
    "half",
    expected={
        "prompt": PROMPT,
        "entry_point": "half",
        "test": "def check(candidate):\n    assert candidate(math.floor(5.0)) == 2.5",
    },
)


@pytest.mark.parametrize(
    ("answer", "score"),
    [
        pytest.param("```python\ndef half(x):\n    return x / 2\n```", 1.0, id="a block of code"),
        pytest.param("Here you are:\n```\ndef half(x):\n    return x / 2\n```\nBye.", 1.0, id="with words around"),
        pytest.param("def half(x):\n    return x / 2", 1.0, id="code alone"),
        pytest.param("    return x / 2\n", 1.0, id="the body alone"),
        pytest.param("```python\ndef half(x):\n    return x / 2\n", 1.0, id="a block that was cut off"),
        pytest.param("```python\ndef half(x):\n    return x\n```", 0.0, id="wrong"),
        pytest.param("I cannot.", 0.0, id="words"),
        pytest.param("", 0.0, id="nothing"),
        pytest.param("def half(x):\n    return x / 2\nimport sys; sys.exit()", 0.0, id="leaves early"),
    ],
)
def test_a_program_scores_by_its_test(answer: str, score: float) -> None:
    assert passes_tests()(ITEM, answer) == score


def test_a_sandbox_that_is_missing_is_no_score(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "_PATHS", ("/nowhere",))
    with pytest.raises(SandboxUnavailable):
        passes_tests(Limits())(ITEM, "")


def test_files_shaped_as_those_of_humaneval_are_read(tmp_path: Path) -> None:
    line = {"task_id": "HumanEval/0", **ITEM.expected, "canonical_solution": "    return x / 2\n"}
    path = tmp_path / "items.jsonl"
    path.write_text(json.dumps(line))
    [item] = load_programs(path)
    assert item.id == "HumanEval/0"
    assert PROMPT in item.messages[0]["content"]
    assert passes_tests()(item, item.expected["canonical_solution"]) == 1.0
    path.write_text(json.dumps({**line, "entry_point": None}))
    with pytest.raises(InvalidItems, match="line 1: entry_point"):
        load_programs(path)
