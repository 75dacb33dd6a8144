"""The terms over a batch: the same as the formulas row by row, whatever the batch, with evidence for people."""

import random
from collections.abc import Callable
from typing import Any

import polars as pl
import pytest

from rl_pipeline.rewards import formulas
from rl_pipeline.rewards.term import NEUTRAL, TermOptions, score_of, terms_named
from rl_pipeline_tests.rewards.frames import term_batch

Row = dict[str, Any]

OPTIONS = [TermOptions(), TermOptions(stars="centred", error_weight=0.0, token_penalty_cap=-0.25)]


def scored(name: str, *rows: Row, options: TermOptions = OPTIONS[0]) -> pl.DataFrame:
    (term,) = terms_named([name])
    return score_of(term, term_batch(*rows), options)


def evidence(name: str, row: Row) -> str:
    return str(scored(name, row)["evidence"][0])


def _outcome(row: Row, options: TermOptions) -> float | None:
    names = ("subtasks", "subtasks_done", "failed_calls", "distinct_calls")
    facts = {name: row[name] for name in names}
    return formulas.outcome(row["status"], row["completion"], **facts, error_weight=options.error_weight)


def _efficiency(row: Row, options: TermOptions) -> float | None:
    usual = formulas.Usual(**{name: row[f"usual_{name}"] for name in formulas.Usual._fields})
    facts = {name: row[name] for name in ("status", "calls", "redundant_calls")}
    return formulas.run_efficiency(row["turns"], row["seconds"], row["tokens"], usual, **facts)


def _code_quality(row: Row, options: TermOptions) -> float | None:
    lint = formulas.lint_of_snippets(row["lint_score"], row["code_snippets"], row["code_unparsable"])
    known = row["tests_total"] and row["tests_passed"] is not None
    proven = known and (not row["tests_doubt"] or row["tests_passed"] < row["tests_total"])
    pass_rate = row["tests_passed"] / row["tests_total"] if proven else None
    critical = row["security_critical"]
    published = "published" in (row["lint_from"], row["tests_from"])
    published |= row["code_snippets"] == 0 and critical is not None
    proves_something = row["domain"] != "research" and (row["status"] not in formulas.NOT_DONE or proven)
    if not (published or proves_something):
        return None
    has_code = row["code_snippets"] > 0 or not (lint is pass_rate is critical is None)
    return formulas.code_quality(lint, pass_rate, critical, has_code=has_code)


def _user_feedback(row: Row, options: TermOptions) -> float | None:
    return formulas.user_feedback(
        row["feedback_kinds"],
        row["feedback_ratings"],
        row["feedback_users"],
        abandoned=row["status"] == "abandoned",
        corrections_shown=row["corrections_shown"],
        stars=options.stars,
    )


def _tool_execution(row: Row, options: TermOptions) -> float | None:
    return formulas.tool_execution(
        row["distinct_calls"], row["failed_calls"], row["empty_results"], row["redundant_calls"]
    )


def _answer_quality(row: Row, options: TermOptions) -> float | None:
    return formulas.answer_quality(row["answer_structure"], row["answer_depth"], row["answer_similarity"])


def _coordination(row: Row, options: TermOptions) -> float | None:
    quality = _answer_quality(row, options)
    if row["rounds"] is None or row["consensus"] is None or quality is None:
        return None
    return formulas.coordination(
        row["rounds"],
        quality,
        row["tokens"],
        consensus=row["consensus"],
        token_penalty_cap=options.token_penalty_cap,
    )


def _voting(row: Row, options: TermOptions) -> float | None:
    return formulas.voting(row["votes"], row["votes_right"])


FORMULAS: dict[str, Callable[[Row, TermOptions], float | None]] = {
    "answer_quality": _answer_quality,
    "code_quality": _code_quality,
    "coordination": _coordination,
    "efficiency": _efficiency,
    "task_completion": _outcome,
    "tool_execution": _tool_execution,
    "user_feedback": _user_feedback,
    "voting": _voting,
}


def random_rows(count: int, seed: int) -> list[Row]:
    chance = random.Random(seed)
    return [_random_row(chance) for _ in range(count)]


def _random_row(chance: random.Random) -> Row:
    def perhaps(value: Any, null: Any = None) -> Any:
        return value if chance.random() < 0.7 else null

    def within(most: int) -> int:
        return chance.randint(0, most)

    subtasks, snippets, tests, votes = within(4), within(4), within(5), within(5)
    distinct = perhaps(within(6), 0)
    failed, redundant = within(distinct), within(4) if distinct else 0
    kinds = chance.choices(
        ["thumbs_up", "thumbs_down", "stars", "correction", "abandoned", "comment"], k=perhaps(within(5), 0)
    )
    usual = {
        f"usual_{what}{part}": perhaps(value)
        for what, mean in (("turns", 6.0), ("log_seconds", 4.0), ("log_tokens", 8.0))
        for part, value in (("", mean), ("_std", chance.choice([0.0, 0.3, 1.5])))
    }
    return {
        "status": chance.choice(["", "success", "partial", "failed", "abandoned"]),
        "completion": perhaps(chance.random()),
        "subtasks": subtasks,
        "subtasks_done": within(2 * subtasks) / 2,
        "turns": within(12),
        "calls": distinct + redundant,
        "distinct_calls": distinct,
        "failed_calls": failed,
        "empty_results": within(distinct - failed),
        "redundant_calls": redundant,
        "seconds": perhaps(chance.uniform(0, 500), 0.0),
        "tokens": perhaps(within(40_000)),
        "code_snippets": snippets,
        "code_unparsable": within(snippets),
        "domain": chance.choice(["", "coding", "research"]),
        "lint_score": perhaps(chance.uniform(0, 10)),
        "lint_from": chance.choice(["", "published", "ruff"]),
        "tests_from": chance.choice(["", "published", "found"]),
        "tests_passed": perhaps(within(tests)),
        "tests_total": perhaps(tests),
        "tests_doubt": chance.choice(["", "", "tests assert nothing"]),
        "security_critical": perhaps(within(3)),
        "feedback_kinds": kinds,
        "feedback_ratings": [chance.randint(1, 5) if kind == "stars" else 0 for kind in kinds],
        "feedback_users": [chance.choice(["", "ada", "bob"]) for _ in kinds],
        "corrections_shown": perhaps(0, 2),
        "answer_structure": perhaps(chance.uniform(0, 0.3)),
        "answer_depth": perhaps(chance.uniform(0, 0.4)),
        "answer_similarity": perhaps(chance.uniform(0, 0.3)),
        "rounds": perhaps(chance.choice([0, 1, 2, 3, 4, 20])),
        "consensus": perhaps(chance.random() < 0.5),
        "votes": perhaps(votes),
        "votes_right": perhaps(within(votes)),
        "restarts": perhaps(within(3)),
        **usual,
    }


@pytest.mark.parametrize("options", OPTIONS, ids=["default", "other"])
@pytest.mark.parametrize("name", FORMULAS)
def test_a_term_gives_each_row_what_its_formula_gives(name: str, options: TermOptions) -> None:
    rows = random_rows(2_000, seed=4)
    expected = [FORMULAS[name](row, options) for row in rows]
    got = scored(name, *rows, options=options)["score"].to_list()
    wrong = [
        (row, want, have)
        for row, want, have in zip(rows, expected, got, strict=True)
        if (want is None) != (have is None) or (want is not None and have != pytest.approx(want, abs=1e-12))
    ]
    assert not wrong, wrong[0]
    assert len({value for value in got if value is not None}) > 5


@pytest.mark.parametrize("name", FORMULAS)
def test_a_row_has_the_same_bits_whatever_batch_it_is_in(name: str) -> None:
    (term,) = terms_named([name])
    batch = term_batch(*random_rows(120, seed=5))
    whole = score_of(term, batch, TermOptions())
    for size in (1, 7, 119):
        parts = [score_of(term, batch.slice(start, size), TermOptions()) for start in range(0, 120, size)]
        assert pl.concat(parts).equals(whole)
    backwards = score_of(term, batch.reverse(), TermOptions())
    assert backwards.reverse().equals(whole)


@pytest.mark.parametrize("name", FORMULAS)
def test_every_row_has_evidence_in_one_short_sentence(name: str) -> None:
    texts = scored(name, *random_rows(500, seed=6))["evidence"]
    assert texts.null_count() == 0
    assert texts.str.len_chars().is_between(3, 160).all()
    assert not texts.str.contains("null|NaN|\n").any()


@pytest.mark.parametrize("name", FORMULAS)
def test_no_trajectories_have_no_scores(name: str) -> None:
    assert scored(name).height == 0


def test_evidence_can_be_read_by_people() -> None:
    assert evidence("task_completion", {"status": "success", "distinct_calls": 4, "failed_calls": 1}) == (
        "success; 1 of 4 calls failed"
    )
    assert evidence("efficiency", {"turns": 5, "usual_turns": 6.0, "usual_turns_std": 0.714, "calls": 4}) == (
        "5 turns where 6.0 are usual; 0 of 4 calls redundant"
    )
    assert evidence("code_quality", {"code_snippets": 2, "lint_score": 9.0, "tests_passed": 3, "tests_total": 4}) == (
        "2 snippets; lint 9.0 of 10; 3 of 4 tests passed"
    )
    said = {"feedback_kinds": ["stars", "thumbs_up"], "feedback_ratings": [4, 0], "feedback_users": ["ada", "bob"]}
    assert evidence("user_feedback", said) == "2 opinions, the last: thumbs up"
    assert evidence("voting", {"votes": 3, "votes_right": 2}) == "2 of 3 votes for what won"


def test_a_score_that_stands_for_knowing_nothing_says_so() -> None:
    assert evidence("user_feedback", {}).startswith(NEUTRAL)
    assert evidence("code_quality", {"code_snippets": 1}).startswith(NEUTRAL)
    assert not evidence("user_feedback", {"corrections_shown": 1}).startswith(NEUTRAL)
    assert not evidence("code_quality", {"code_snippets": 1, "security_critical": 0}).startswith(NEUTRAL)


def test_a_term_does_not_apply_where_it_has_nothing_to_judge() -> None:
    applies = {name: scored(name, {})["score"][0] is not None for name in FORMULAS}
    assert [name for name, does in applies.items() if does] == ["user_feedback"]


def test_the_first_scenario_has_its_four_components() -> None:
    """1.0, 0.85, 0.90 and 0.5: see `test_formulas.py` for what 0.85 and 0.90 need."""
    row = {"status": "success", "turns": 5, "usual_turns": 6.0, "usual_turns_std": 0.714, "lint_score": 9.0}
    names = ("task_completion", "efficiency", "code_quality", "user_feedback")
    assert [scored(name, row)["score"][0] for name in names] == pytest.approx([1.0, 0.85, 0.90, 0.5], abs=5e-4)


@pytest.mark.parametrize("doubt", ["no tests ran", "tests were changed after they failed", "tests assert nothing"])
def test_tests_that_prove_nothing_do_not_raise_the_code(doubt: str) -> None:
    code = {"code_snippets": 1, "lint_score": 4.0}
    doubtful = scored("code_quality", code | {"tests_passed": 9, "tests_total": 9, "tests_doubt": doubt})
    assert doubtful["score"][0] == scored("code_quality", code)["score"][0] == 0.4
    assert doubt in doubtful["evidence"][0]


def test_a_doubt_does_not_make_up_for_tests_that_failed() -> None:
    failing = {"code_snippets": 1, "lint_score": 4.0, "tests_passed": 1, "tests_total": 5}
    doubtful = scored("code_quality", failing | {"tests_doubt": "tests were changed after they failed"})
    assert doubtful["score"][0] == scored("code_quality", failing)["score"][0] == pytest.approx(0.3)


def test_clean_code_is_no_gain_where_none_was_asked_for_or_the_task_was_not_done() -> None:
    clean = {"code_snippets": 1, "lint_score": 10.0, "lint_from": "ruff", "security_critical": 0}
    rows = [clean | {"domain": domain} for domain in ("research", "writing", "general")]
    rows += [clean | {"domain": "coding", "status": status} for status in ("failed", "abandoned")]
    assert scored("code_quality", *rows)["score"].to_list() == [None] * 5
    published = scored("code_quality", rows[0] | {"lint_from": "published"})
    tested = scored("code_quality", rows[3] | {"tests_passed": 1, "tests_total": 4})
    assert (published["score"][0], tested["score"][0]) == (1.0, 0.75)


def test_a_task_that_was_not_done_was_not_done_efficiently() -> None:
    quick = {"turns": 1, "usual_turns": 6.0, "usual_turns_std": 1.0}
    statuses = ("success", "partial", "", "failed", "abandoned")
    scores = scored("efficiency", *(quick | {"status": status} for status in statuses))["score"]
    assert scores.to_list() == [1.0, 1.0, 1.0, 0.0, 0.0]
    assert scored("efficiency", {"status": "failed", "turns": 1})["score"][0] is None


def test_repeated_calls_that_succeed_raise_nothing() -> None:
    usual = {"turns": 5, "usual_turns": 6.0, "usual_turns_std": 1.0}
    honest = {"calls": 4, "distinct_calls": 4, "failed_calls": 1, "status": "success", **usual}
    repeated = honest | {"calls": 9, "redundant_calls": 5}
    for name in ("task_completion", "efficiency", "tool_execution"):
        scores = scored(name, repeated, honest)["score"]
        assert scores[0] <= scores[1]
