"""Signals are facts of the document, whatever else is in it, and the same one by one as in a batch."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from rl_pipeline.contracts import Trajectory
from rl_pipeline.rewards.linting import CodeChecker
from rl_pipeline.rewards.signals import SIGNALS, signals_of, signals_of_one
from rl_pipeline_tests.rewards.documents import END, call, document, says, stored, user_says

PROGRAM = "def add(a, b):\n    return a + b\n"


@pytest.fixture(scope="module")
def checker() -> CodeChecker:
    return CodeChecker()


def measured(*turns: dict[str, Any], task: Any = None, metadata: Any = None) -> dict[str, Any]:
    return signals_of_one(document(turns, task, metadata))


def test_the_frame_has_the_schema_and_the_columns_of_ingest(checker: CodeChecker) -> None:
    frame = signals_of(stored([document([says("Done.")])] * 2), checker)
    assert dict(frame.schema) == SIGNALS
    assert frame["sequence"].to_list() == [1, 2]
    row = frame.row(0, named=True)
    assert (row["trajectory_id"], row["stream_time"], row["ingest_revision"]) == ("trajectory-1", END, 3)
    assert (row["status"], row["task_type"], row["user"]) == ("success", "implement_function", "[USER_1]")
    assert (row["seconds"], row["tokens"], row["is_late"]) == (330.0, 5000, False)


def test_no_rows_give_no_signals(checker: CodeChecker) -> None:
    empty = signals_of(stored([document([says("Done.")])]).clear(), checker)
    assert (dict(empty.schema), empty.height) == (SIGNALS, 0)


def test_one_trajectory_has_the_signals_that_it_has_in_a_batch(checker: CodeChecker) -> None:
    one = document(
        [call("python", {"code": PROGRAM}, output="1 passed in 0.1s", agent="helper"), says("# Done\n\nIt adds.")],
        {"task_type": "implement_function", "domain": "coding", "task_status": "success", "task_id": "task-81"},
        {"feedback": [{"kind": "stars", "rating": 4}], "coordination": {"rounds": 2}},
    )
    batch = signals_of(stored([document([says("x")]), one]), checker).row(1, named=True)
    alone = signals_of_one(one, checker)
    by_ingest = {
        "trajectory_id",
        "stream",
        "sequence",
        "ingest_revision",
        "framework",
        "model_version",
        "user",
        "tokens",
    }
    assert {name: batch[name] for name in SIGNALS if name not in by_ingest} == {
        name: alone[name] for name in SIGNALS if name not in by_ingest
    }
    assert signals_of_one(one, columns={"sequence": 9, "is_late": True})["sequence"] == 9


def test_completion_and_subtasks_are_counted() -> None:
    subtasks = [
        {"subtask_id": str(place), "status": status} for place, status in enumerate(["success", "partial", "failed"])
    ]
    row = measured(says("x"), task={"task_status": "partial", "completion_percentage": 40, "subtasks": subtasks})
    assert (row["status"], row["completion"], row["subtasks"], row["subtasks_done"]) == ("partial", 0.4, 3, 1.5)
    assert measured(says("x"))["completion"] is None


def test_code_is_linted_and_what_cannot_be_parsed_is_counted(checker: CodeChecker) -> None:
    code = [call("python", {"code": text}) for text in (PROGRAM, "def broken(:", "eval(text)")]
    row = signals_of_one(document(code), checker)
    assert (row["code_snippets"], row["code_unparsable"], row["security_critical"]) == (3, 1, 1)
    assert (row["lint_score"], row["lint_from"]) == (10.0, "ruff")


def test_without_a_checker_code_is_parsed_and_not_judged() -> None:
    row = measured(call("python", {"code": PROGRAM}), call("python", {"code": "def broken(:"}))
    assert (row["code_snippets"], row["code_unparsable"]) == (2, 1)
    assert (row["lint_score"], row["lint_from"], row["security_critical"]) == (None, "", None)


def test_published_verdicts_win(checker: CodeChecker) -> None:
    published = {
        "linter_results": {"tool": "pylint", "score": 9.0},
        "test_results": {"total": 12, "passed": 11},
        "security_results": {"critical_issues": 2},
    }
    turns = [call("python", {"code": "eval(x)"}), call("bash", {"command": "pytest"}, output="3 passed in 0.1s")]
    row = signals_of_one(document(turns, metadata=published), checker)
    assert (row["lint_score"], row["lint_from"], row["security_critical"]) == (9.0, "published", 2)
    assert (row["tests_passed"], row["tests_total"], row["tests_from"], row["tests_doubt"]) == (11, 12, "published", "")
    empty = measured(says("x"), metadata={"test_results": {"total": 0, "passed": 0}})
    assert empty["tests_doubt"] == "no tests ran"


def test_tests_are_found_where_none_were_published() -> None:
    row = measured(call("bash", {"command": "pytest"}, output="1 failed, 3 passed in 0.1s"))
    assert (row["tests_passed"], row["tests_total"], row["tests_from"]) == (3, 4, "found")
    assert measured(says("3 passed in 0.1s"))["tests_from"] == ""


def test_feedback_inside_the_document_is_listed() -> None:
    feedback = [
        {"kind": "stars", "rating": 4},
        {"kind": "comment", "text": "ok"},
        {"kind": "thumbs_up", "user_id": "u"},
    ]
    row = measured(says("x"), metadata={"feedback": feedback})
    assert row["feedback_kinds"] == ["stars", "comment", "thumbs_up"]
    assert (row["feedback_ratings"], row["feedback_users"]) == ([4, 0, 0], ["", "", "u"])


@pytest.mark.parametrize(
    "message",
    ["That's wrong, the list is not sorted.", "It still fails on Windows", "this is not what I asked for",
     "It doesn't work.", "Please redo the second part", "you forgot the tests",
     "Fix that, please", {"parts": [{"text": "Try again."}]}],
)  # fmt: skip
def test_a_user_who_asks_for_rework_shows_a_correction(message: Any) -> None:
    assert measured(user_says("Sort this list"), user_says(message))["corrections_shown"] == 1


def test_only_new_words_of_the_user_show_a_correction() -> None:
    bug = "It doesn't work: fix it."
    assert measured(user_says(bug), user_says(bug))["corrections_shown"] == 0, "the request itself, shown again"
    assert measured(user_says("x"), user_says(bug), user_says(bug))["corrections_shown"] == 1
    assert measured(user_says("x"), user_says("Thanks! Now translate it."))["corrections_shown"] == 0
    said_by_others = [
        says(bug),
        says(bug, observed="tool_result", content=bug),
        says("x", observed="system_message", content=bug),
    ]
    assert measured(user_says("x"), *said_by_others)["corrections_shown"] == 0


def test_the_answer_is_the_final_response() -> None:
    row = measured(
        says("# Old\n\nold"), says("The capital is Paris."), task={"reference_answer": "the capital is paris"}
    )
    assert row["answer_similarity"] == pytest.approx(0.3)
    assert 0 <= row["answer_structure"] <= 0.3
    assert 0 <= row["answer_depth"] <= 0.4
    assert measured(says("x"), metadata={"expected_output": "x"})["answer_similarity"] == pytest.approx(0.3)
    empty = measured(says(""))
    assert (empty["answer_structure"], empty["answer_depth"], empty["answer_similarity"]) == (0.0, 0.0, None)
    assert measured(call("x"))["answer_structure"] is None


def test_coordination_is_read_with_votes_for_the_agent_that_answered() -> None:
    votes = [
        {"agent_id": "a", "vote_for": "b"},
        {"agent_id": "b", "vote_for": "a"},
        {"agent_id": "c", "correct": True},
        {},
    ]
    coordination = {"rounds": 2, "consensus": True, "votes": votes, "restarts": 1}
    row = measured(says("x", agent="b"), metadata={"coordination": coordination})
    assert (row["rounds"], row["consensus"], row["votes"], row["votes_right"], row["restarts"]) == (2, True, 3, 2, 1)
    none = measured(says("x"))
    assert {none[name] for name in ("rounds", "consensus", "votes", "votes_right", "restarts")} == {None}
    unanswered = measured(call("x"), metadata={"coordination": {"votes": [{"agent_id": "a", "vote_for": None}]}})
    assert (unanswered["votes"], unanswered["votes_right"]) == (1, 0)


def test_huge_and_unreadable_documents_give_signals(checker: CodeChecker) -> None:
    huge = "x = 1\n" * 150_000
    deep: Any = "x"
    for _ in range(60):
        deep = {"parts": [deep]}
    code = [call("python", {"code": text}) for text in ("x = 1\0", huge, "(" * 60_000)]
    one = document(
        [*code, call("bash", {"command": huge, "deep": deep}, output=deep), says(huge, content=deep)],
        metadata={"test_results": {"total": 2**53 - 1, "passed": 2**53 - 1}, "coordination": {"rounds": 2**60}},
    )
    frame = signals_of(stored([one, "", "[]", "{not json", "{}"]), checker)
    assert frame["code_unparsable"].to_list() == [2, 0, 0, 0, 0]
    assert frame["tests_total"][0] == frame["rounds"][0] == 2**32 - 1
    assert frame["turns"].to_list() == [5, 0, 0, 0, 0]


def _airline_tasks(test_data: Path) -> Iterator[dict[str, Any]]:
    """The runs of tau-bench as documents: an assistant's message is a turn, the message before it the observation."""
    for run in json.loads((test_data / "trajectories/tau-bench/gpt-4o-airline-tasks-0-14.json").read_text()):
        messages = [*run["traj"], {"content": ""}]
        turns = []
        for before, message, after in zip(messages, messages[1:], messages[2:], strict=False):
            shown = {
                "observed": "user_message" if before["role"] == "user" else "tool_result",
                "content": before["content"] or "",
            }
            if message.get("tool_calls"):
                asked = message["tool_calls"][0]["function"]
                failed = (after["content"] or "").startswith("Error")
                turns.append(
                    call(
                        asked["name"],
                        json.loads(asked["arguments"]),
                        success=not failed,
                        output=after["content"],
                        **shown,
                    )
                )
            elif message.get("role") == "assistant":
                turns.append(says(message["content"], **shown))
        yield document(turns, {"task_status": "success" if run["reward"] else "failed"})


def test_real_conversations_with_tools_have_plausible_signals(test_data: Path, checker: CodeChecker) -> None:
    documents = list(_airline_tasks(test_data))
    Trajectory.model_validate_json(json.dumps(documents[0]))
    frame = signals_of(stored(documents), checker)
    assert frame.height == 60
    assert frame["code_snippets"].sum() == 0, "airline agents write no code"
    assert frame.select((pl.col("distinct_calls") <= pl.col("calls")).all()).item()
    assert frame["failed_calls"].sum() > 0
    assert frame["answer_depth"].is_not_null().all()
    assert frame["corrections_shown"].sum() <= 3, "these users state wishes; hardly one asks for rework"
    assert frame["turn_potentials"].list.last().abs().max() == 0.0


def test_real_python_of_agents_is_found_and_judged(test_data: Path, checker: CodeChecker) -> None:
    runs = json.loads((test_data / "trajectories/intercode/ic_python_multiturn_gpt-3.5_7_turns.json").read_text())
    actions = [run["turn_history"]["actions"] for run in runs.values()]
    documents = [document([call("python", {"code": action}) for action in taken]) for taken in actions]
    frame = signals_of(stored(documents), checker)
    assert (frame["code_snippets"] > 0).all()
    assert frame["lint_score"].mean() > 9.0
    assert 0.0 < (frame["code_unparsable"] > 0).mean() < 0.2, "some turns are prose, which the gate must see"
    assert checker.failures == 0
