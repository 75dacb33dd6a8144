"""The facts that rewards are made of, measured once in each stored trajectory.

`SIGNALS` is the schema of the frame and of the table `trajectory_signals`. Nothing here is a judgement: what a fact is
worth is for the terms to say. Whatever an open object of a document holds, a signal is null, empty or 0, and no error.
Should measuring fail all the same, that document alone is measured as empty, but for its turns and agents; it is logged
and counted, and the others are measured as ever.

**Corrections shown** are different messages of the user, after the first turn, that ask for rework in words which
rarely mean anything else (`_REWORK`). Only what the user was observed to say counts, never the agent's own words.
**Votes**: one is right when it says `correct: true`, or was cast for the agent that gave the final response.
"""

import logging
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import orjson
import polars as pl
import pyarrow as pa

from rl_pipeline.rewards.code import Snippet, find_code
from rl_pipeline.rewards.document import (
    JsonObject,
    Turn,
    as_count,
    as_list,
    as_number,
    as_object,
    as_text,
    final_response,
    texts_of,
    turns_of,
)
from rl_pipeline.rewards.formulas import answer_depth, answer_similarity, answer_structure
from rl_pipeline.rewards.linting import CodeChecker, Verdict, critical_findings, gate, lint_score
from rl_pipeline.rewards.steps import calls_made, count_calls, credits_of, steps_of
from rl_pipeline.rewards.tests_found import NO_TESTS_RAN, find_tests

_log = logging.getLogger(__name__)

_IDENTITY: dict[str, pl.DataType] = {
    "trajectory_id": pl.String(),
    "stream": pl.String(),
    "sequence": pl.UInt64(),
    "stream_time": pl.Datetime("ms", "UTC"),
    "ingest_revision": pl.UInt32(),
    "is_late": pl.Boolean(),
    "session_id": pl.String(),
    "agent_id": pl.String(),
    "framework": pl.String(),
    "model": pl.String(),
    "model_version": pl.String(),
    "task_id": pl.String(),
    "task_type": pl.String(),
    "domain": pl.String(),
    "user": pl.String(),
    "status": pl.String(),
    "seconds": pl.Float64(),
    "tokens": pl.UInt64(),
}
_MEASURED: dict[str, pl.DataType] = {
    "completion": pl.Float64(),
    "subtasks": pl.UInt32(),
    "subtasks_done": pl.Float64(),
    "turns": pl.UInt32(),
    "calls": pl.UInt32(),
    "distinct_calls": pl.UInt32(),
    "failed_calls": pl.UInt32(),
    "redundant_calls": pl.UInt32(),
    "empty_results": pl.UInt32(),
    "code_snippets": pl.UInt32(),
    "code_unparsable": pl.UInt32(),
    "lint_score": pl.Float64(),
    "lint_from": pl.String(),
    "tests_passed": pl.UInt32(),
    "tests_total": pl.UInt32(),
    "tests_from": pl.String(),
    "tests_doubt": pl.String(),
    "security_critical": pl.UInt32(),
    "feedback_kinds": pl.List(pl.String()),
    "feedback_ratings": pl.List(pl.UInt8()),
    "feedback_users": pl.List(pl.String()),
    "corrections_shown": pl.UInt32(),
    "answer_structure": pl.Float64(),
    "answer_depth": pl.Float64(),
    "answer_similarity": pl.Float64(),
    "rounds": pl.UInt32(),
    "consensus": pl.Boolean(),
    "votes": pl.UInt32(),
    "votes_right": pl.UInt32(),
    "restarts": pl.UInt32(),
    "agents": pl.List(pl.String()),
    "credit_shares": pl.List(pl.Float64()),
    "sole_shares": pl.List(pl.Float64()),
    "turn_agents": pl.List(pl.String()),
    "turn_potentials": pl.List(pl.Float64()),
}
SIGNALS: dict[str, pl.DataType] = _IDENTITY | _MEASURED
_ARROW_ITEMS = {pl.String(): pa.large_string(), pl.Float64(): pa.float64(), pl.UInt8(): pa.uint8()}

_ANSWER_CHARACTERS = 50_000
_MESSAGE_CHARACTERS = 4_000
_REWORK = re.compile(
    r"\b(?:(?:that|this|it)(?:['\u2019]s| is| was)(?: still)? (?:wrong|incorrect|not right|not correct|broken)"
    r"|not what i (?:asked|wanted|meant|said)|(?:do|does|did)(?: not|n['\u2019]t) (?:actually )?work"
    r"|still (?:fails|failing|broken|wrong|incorrect|not working|does not|doesn['\u2019]t)"
    r"|(?:try|do (?:it|that|this)) (?:once )?again|(?:please |you (?:need|have) to )(?:redo|correct|revise|rework)\b"
    r"|you (?:forgot|missed|misunderstood|made (?:a|an) (?:mistake|error)|got (?:it|that|this) wrong)"
    r"|(?:fix|undo|revert|redo) (?:that|this|it|your)\b)",
    re.IGNORECASE,
)


def signals_of(rows: pl.DataFrame, checker: CodeChecker | None, unmeasured: Counter[str] | None = None) -> pl.DataFrame:
    """The signals of rows of the table `trajectories`, in their order. Without a checker code is parsed, not linted.

    Columns keep what ingest made of them; the rest is read from `document`. New code of all rows is linted together.
    Documents whose measuring failed are counted in `unmeasured`, by the class of the error.
    """
    documents = zip(rows["trajectory_id"], map(_read, rows["document"]), strict=True)
    measured = _measure_all(documents, checker, Counter() if unmeasured is None else unmeasured)
    frame = pl.DataFrame([_column(name, kind, [each[name] for each in measured]) for name, kind in _MEASURED.items()])
    duration = pl.col("ended_at").cast(pl.Datetime("ms", "UTC")) - pl.col("started_at").cast(pl.Datetime("ms", "UTC"))
    identity = rows.with_columns(
        ingest_revision=pl.col("revision"),
        is_late=pl.lit(False),
        status=pl.col("task_status"),
        seconds=duration.dt.total_milliseconds() / 1000.0,
        tokens=pl.col("total_tokens"),
    ).select(pl.col(name).cast(kind) for name, kind in _IDENTITY.items())
    return pl.concat([identity, frame], how="horizontal")


def signals_of_one(
    trajectory: JsonObject, checker: CodeChecker | None = None, columns: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """The signals of one document as a row. `columns` has what only the stream and ingest know, by signal's name."""
    [measured] = _measure_all([(as_text(trajectory.get("trajectory_id")), trajectory)], checker, Counter())
    task, metadata = as_object(trajectory.get("task_context")), as_object(trajectory.get("metadata"))
    domain = as_text(task.get("domain")) or "general"
    start, end = (_moment(trajectory.get(name)) for name in ("start_timestamp", "end_timestamp"))
    identity = {
        "trajectory_id": as_text(trajectory.get("trajectory_id")),
        "stream": "",
        "sequence": 0,
        "stream_time": end,
        "ingest_revision": 0,
        "is_late": False,
        "session_id": as_text(trajectory.get("session_id")),
        "agent_id": as_text(trajectory.get("agent_id")),
        "framework": as_text(metadata.get("framework")),
        "model": as_text(metadata.get("model")),
        "model_version": as_text(metadata.get("model_version")),
        "task_id": as_text(task.get("task_id")),
        "task_type": as_text(task.get("task_type")) or domain,
        "domain": domain,
        "user": as_text(task.get("user_id")),
        "status": as_text(task.get("task_status")),
        "seconds": max(0.0, (end - start).total_seconds()),
        "tokens": as_count(metadata.get("total_tokens")),
    }
    row = identity | measured | dict(columns or {})
    return {name: row[name] for name in SIGNALS}


def _measure_all(
    trajectories: Iterable[tuple[str, JsonObject]], checker: CodeChecker | None, unmeasured: Counter[str]
) -> list[dict[str, Any]]:
    """The measured signals of each trajectory. Only its code is kept in mind, so that many documents fit."""
    measured, code, names = list[dict[str, Any]](), list[list[Snippet]](), list[str]()
    for name, trajectory in trajectories:
        turns = turns_of(trajectory)
        try:
            snippets = find_code(turns)
            row = _measure(trajectory, turns, snippets)
        except Exception as error:  # noqa: BLE001 - one document must not stop the scoring of all others
            snippets, row = [], _unmeasured(turns)
            _count_failure(name, error, unmeasured)
        names.append(name)
        code.append(snippets)
        measured.append(row)
    for name, row, verdicts in zip(names, measured, _verdicts(code, checker), strict=True):
        if isinstance(verdicts, Exception):
            _count_failure(name, verdicts, unmeasured)
        _add_verdicts(row, [] if isinstance(verdicts, Exception) else verdicts)
    return measured


def _unmeasured(turns: Sequence[Turn]) -> dict[str, Any]:
    """What is left to say of a document that cannot be measured."""
    return _measure({}, [], []) | {"turns": len(turns)} | credits_of(turns, [])._asdict()


def _count_failure(name: str, error: Exception, unmeasured: Counter[str]) -> None:
    """The error's text may quote the document, so only its class is told."""
    unmeasured[type(error).__name__] += 1
    _log.warning("trajectory %.100r was not measured: %s", name, type(error).__name__)


def _verdicts(code: Sequence[list[Snippet]], checker: CodeChecker | None) -> list[list[Verdict] | Exception]:
    """The verdicts on the code of each trajectory, asked for together; where that fails, one by one.

    An `OSError` is raised: a full disk is no fault of a document, and tomorrow the same code can be judged.
    """

    def judge(snippets: Sequence[Snippet]) -> list[Verdict]:
        return checker.check(snippets) if checker else [gate(snippet) for snippet in snippets]

    def judge_alone(snippets: Sequence[Snippet]) -> list[Verdict] | Exception:
        try:
            return judge(snippets)
        except OSError:
            raise
        except Exception as error:  # noqa: BLE001 - see _measure_all
            return error

    together = judge_alone([snippet for snippets in code for snippet in snippets])
    if isinstance(together, Exception):
        return [judge_alone(snippets) for snippets in code]
    each = iter(together)
    return [[next(each) for _ in snippets] for snippets in code]


def _column(name: str, kind: pl.DataType, values: list[Any]) -> pl.Series:
    """A column of Python values; lists go by way of Arrow, which takes a tenth of the time."""
    if not isinstance(kind, pl.List):
        return pl.Series(name, values, kind)
    items = next(arrow for inner, arrow in _ARROW_ITEMS.items() if inner == kind.inner)
    return pl.Series(name, pa.array(values, pa.large_list(items)))


def _measure(trajectory: JsonObject, turns: Sequence[Turn], snippets: Sequence[Snippet]) -> dict[str, Any]:
    task, metadata = as_object(trajectory.get("task_context")), as_object(trajectory.get("metadata"))
    final = final_response(turns)
    made = calls_made(turns)
    percentage = as_number(task.get("completion_percentage"), 0, 100)
    ended = [as_object(subtask).get("status") for subtask in as_list(task.get("subtasks"))]
    return {
        "completion": None if percentage is None else percentage / 100,
        "subtasks": len(ended),
        "subtasks_done": ended.count("success") + 0.5 * ended.count("partial"),
        "turns": len(turns),
        "corrections_shown": _corrections(turns),
        "lint_score": as_number(as_object(metadata.get("linter_results")).get("score"), 0, 10),
        "security_critical": as_count(as_object(metadata.get("security_results")).get("critical_issues")),
        **count_calls(made)._asdict(),
        **_tests(metadata, turns, snippets),
        **_feedback(metadata),
        **_answer(final, _reference(task, metadata)),
        **_coordination(as_object(metadata.get("coordination")), final),
        **credits_of(turns, steps_of(turns, made))._asdict(),
    }


def _add_verdicts(row: dict[str, Any], verdicts: Sequence[Verdict]) -> None:
    """Add what is known about the code; what was published stands."""
    row["code_snippets"] = len(verdicts)
    row["code_unparsable"] = sum(not verdict.parses for verdict in verdicts)
    row["lint_from"] = "published"
    if row["lint_score"] is None:
        row["lint_score"] = lint_score(verdicts)
        row["lint_from"] = "" if row["lint_score"] is None else "ruff"
    if row["security_critical"] is None:
        row["security_critical"] = critical_findings(verdicts)


def _tests(metadata: JsonObject, turns: Sequence[Turn], snippets: Sequence[Snippet]) -> dict[str, Any]:
    """What tests said, published if it was: then the publisher ran them, and only an empty run is doubted."""
    published = as_object(metadata.get("test_results"))
    passed, total = as_count(published.get("passed")), as_count(published.get("total"))
    if passed is not None and total is not None:
        doubt = "" if total else NO_TESTS_RAN
        return {"tests_passed": passed, "tests_total": total, "tests_from": "published", "tests_doubt": doubt}
    found = find_tests(turns, snippets)
    if found.last is None:
        return {"tests_passed": None, "tests_total": None, "tests_from": "", "tests_doubt": ""}
    return {
        "tests_passed": found.last.passed,
        "tests_total": found.last.total,
        "tests_from": "found",
        "tests_doubt": found.doubt,
    }


def _feedback(metadata: JsonObject) -> dict[str, Any]:
    given = [signal for signal in map(as_object, as_list(metadata.get("feedback"))) if as_text(signal.get("kind"))]
    ratings = [as_count(signal.get("rating")) or 0 for signal in given]
    return {
        "feedback_kinds": [signal["kind"] for signal in given],
        "feedback_ratings": [rating if rating <= 5 else 0 for rating in ratings],
        "feedback_users": [as_text(signal.get("user_id")) for signal in given],
    }


def _corrections(turns: Sequence[Turn]) -> int:
    """Messages that ask for rework; a message shown again in a later turn is the same one."""
    messages = [_message(turn.observation) if turn.observed == "user_message" else "" for turn in turns]
    return sum(_REWORK.search(message) is not None for message in set(messages[1:]) - set(messages[:1]))


def _message(content: Any) -> str:
    return (content if isinstance(content, str) else " ".join(texts_of(content)))[:_MESSAGE_CHARACTERS]


def _answer(final: Turn | None, reference: str) -> dict[str, Any]:
    if final is None:
        return {"answer_structure": None, "answer_depth": None, "answer_similarity": None}
    text = final.answer[:_ANSWER_CHARACTERS]
    return {
        "answer_structure": answer_structure(text),
        "answer_depth": answer_depth(text),
        "answer_similarity": answer_similarity(text, reference) if reference else None,
    }


def _reference(task: JsonObject, metadata: JsonObject) -> str:
    texts = (as_text(part.get(key)) for part in (task, metadata) for key in ("reference_answer", "expected_output"))
    return next((text[:_ANSWER_CHARACTERS] for text in texts if text.strip()), "")


def _coordination(coordination: JsonObject, final: Turn | None) -> dict[str, Any]:
    winner = final.agent if final else None
    cast = coordination.get("votes")
    votes = [vote for vote in map(as_object, as_list(cast)) if {"correct", "vote_for"} & vote.keys()]
    right = sum(
        vote["correct"] is True if "correct" in vote else bool(winner) and vote["vote_for"] == winner for vote in votes
    )
    consensus = coordination.get("consensus")
    return {
        "rounds": as_count(coordination.get("rounds")),
        "consensus": consensus if isinstance(consensus, bool) else None,
        "votes": len(votes) if isinstance(cast, list) else None,
        "votes_right": right if isinstance(cast, list) else None,
        "restarts": as_count(coordination.get("restarts")),
    }


def _read(document: str) -> JsonObject:
    """The document as ingest stored it; one that cannot be read tells nothing."""
    try:
        return as_object(orjson.loads(document))
    except orjson.JSONDecodeError:
        return {}


def _moment(text: Any) -> datetime:
    try:
        moment = datetime.fromisoformat(as_text(text).upper())
    except ValueError:
        moment = datetime.fromtimestamp(0, UTC)
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)
