"""Whatever a document holds, it is measured, and one that cannot be stops no other."""

import logging
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rl_pipeline.rewards import signals
from rl_pipeline.rewards.code import Snippet
from rl_pipeline.rewards.document import Turn
from rl_pipeline.rewards.linting import CodeChecker, Verdict
from rl_pipeline.rewards.signals import SIGNALS, signals_of, signals_of_one
from rl_pipeline_tests.rewards.documents import call, document, says, stored, turn

PROGRAM = "def add(a, b):\n    return a + b\n"
NUMBERS = st.integers(-(2**60), 2**60) | st.floats(allow_nan=False, allow_infinity=False)
KEYS = st.sampled_from(["type", "kind", "correct", "vote_for", "score", "total", "passed", "rating"])
ANYTHING = st.recursive(
    st.none() | st.booleans() | NUMBERS | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=8,
)
FAILED_RUN = "==== 1 failed, 3 passed in 0.1s ===="
DEEP_SUM = "def test_x():\n    assert total == " + "+".join(["a"] * 1_500)
ODD_VALUES: list[Any] = [
    *(None, True, 0, -1, 7, 2**63, 1e300, -0.5, "", " ", "x", "50", "\0", "tests/test_a.py", "a.py", "python", "view"),
    *(
        FAILED_RUN,
        "5 passed in 1s",
        "Ran 3 tests in 1s\n\nOK",
        PROGRAM,
        DEEP_SUM,
        "cat > a.py <<E\nx\nE",
        "```py\nx\n```",
    ),
    *("success", "stars", "main", [], {}, [[]], [{}], {"a": None}, ["view"], ["tests/test_a.py"], [FAILED_RUN]),
    *([{"kind": ["stars"], "rating": "5"}], [{"vote_for": ["a"], "correct": []}], [{"status": ["success"]}]),
    *(
        [{"status": "partial"}, 3],
        {"score": "9"},
        {"score": [9]},
        {"total": 3, "passed": 5},
        {"total": "3", "passed": {}},
    ),
]
ODD: st.SearchStrategy[Any] = st.sampled_from(ODD_VALUES) | ANYTHING
ARGUMENTS = (
    *("path", "file_path", "filename", "file", "content", "contents", "file_text", "source", "code", "script", "input"),
    *("command", "cmd", "runtime", "language", "lang", "patch", "diff", "new_str", "old_str", "start_line", "replace"),
)
METADATA = (
    *("linter_results", "test_results", "security_results", "feedback", "expected_output", "reference_answer"),
    *("total_tokens", "framework", "model", "model_version"),
)
TASK = ("completion_percentage", "subtasks", "reference_answer", "expected_output", "task_status", "domain", "user_id")


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(data=st.data())
def test_no_value_under_an_open_key_keeps_a_document_from_being_measured(data: st.DataObject) -> None:
    def some(*names: str) -> dict[str, Any]:
        return data.draw(st.dictionaries(st.sampled_from(names), ODD, max_size=5))

    def one_call() -> dict[str, Any]:
        tool = data.draw(st.sampled_from(["editor", "write_file", "bash", "python"]) | ODD)
        made = turn(
            {"type": "tool_call", "tool_name": tool, "tool_args": some(*ARGUMENTS) or data.draw(ODD)},
            output=data.draw(ODD),
            error=data.draw(ODD),
            content=data.draw(ODD),
        )
        return made | {"agent_id": data.draw(ODD)}

    test_call = call("editor", {"path": "tests/test_a.py", "new_str": "x", "command": data.draw(ODD)})
    one = document(
        [one_call(), call("bash", output=FAILED_RUN), test_call, one_call(), says(data.draw(ODD)), data.draw(ODD)],
        some(*TASK) or data.draw(ODD),
        some(*METADATA) | {"coordination": some("rounds", "consensus", "votes", "restarts") or data.draw(ODD)},
    )
    unmeasured: Counter[str] = Counter()
    frame = signals_of(stored([one]), None, unmeasured)
    assert not unmeasured
    assert dict(frame.schema) == SIGNALS
    assert sum(frame["credit_shares"][0]) == pytest.approx(1.0, abs=1e-12)
    signals_of_one(one)


def test_results_that_nest_as_deep_as_a_reader_goes_are_measured() -> None:
    deep = "[" * 1_000 + "]" * 1_000
    called = f'{{"action":{{"type":"tool_call"}},"result":{{"success":true,"output":{deep}}}}}'
    shown = f'{{"observation":{{"type":"tool_result","content":{deep}}},"action":{{"type":"response"}}}}'
    unmeasured: Counter[str] = Counter()
    frame = signals_of(stored([f'{{"agent_id":"a","turns":[{called},{shown}]}}']), None, unmeasured)
    assert (frame["turns"].to_list(), frame["calls"].to_list()) == ([2], [1])
    assert not unmeasured


SECRET = "hunter2"


def test_a_document_that_cannot_be_measured_is_counted_and_stops_no_other(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    find_tests = signals.find_tests

    def fails_on_the_secret(turns: Sequence[Turn], snippets: Sequence[Snippet]) -> Any:
        if any(turn.response == SECRET for turn in turns):
            raise KeyError(SECRET)
        return find_tests(turns, snippets)

    monkeypatch.setattr(signals, "find_tests", fails_on_the_secret)
    good = document([call("python", {"code": PROGRAM}), says("Done.")])
    bad = document([call("python", {"code": PROGRAM}, agent="helper"), says(SECRET)], {"completion_percentage": 40})
    unmeasured: Counter[str] = Counter()
    with caplog.at_level(logging.WARNING):
        frame = signals_of(stored([good, bad, good]), None, unmeasured)
        assert signals_of_one(bad)["turns"] == 2
    assert unmeasured == {"KeyError": 1}
    assert "trajectory-2" in caplog.text
    assert "KeyError" in caplog.text
    assert SECRET not in caplog.text
    assert frame["code_snippets"].to_list() == [1, 0, 1]
    row = frame.row(1, named=True)
    assert (row["trajectory_id"], row["status"], row["turns"], row["seconds"]) == ("trajectory-2", "success", 2, 330.0)
    assert (row["agents"], row["credit_shares"], row["turn_potentials"]) == (["helper", "main"], [0.5, 0.5], [0.0, 0.0])
    assert (row["calls"], row["completion"], row["answer_depth"], row["tests_from"]) == (0, None, None, "")


class _BrokenChecker(CodeChecker):
    """Fails on code that asks for it, with the error that it is told."""

    def __init__(self, error: Exception) -> None:
        super().__init__()
        self.error = error

    def check(self, snippets: Sequence[Snippet]) -> list[Verdict]:
        if any("break" in snippet.text for snippet in snippets):
            raise self.error
        return super().check(snippets)


def test_code_that_breaks_the_checker_costs_no_other_document_its_verdict() -> None:
    documents = [document([call("python", {"code": code})]) for code in (PROGRAM, "break", PROGRAM)]
    unmeasured: Counter[str] = Counter()
    frame = signals_of(stored(documents), _BrokenChecker(RecursionError()), unmeasured)
    assert frame["lint_score"].to_list() == [10.0, None, 10.0]
    assert (frame["calls"].to_list(), unmeasured) == ([1, 1, 1], {"RecursionError": 1})
    with pytest.raises(OSError, match="disk"):
        signals_of(stored(documents), _BrokenChecker(OSError("disk full")))
