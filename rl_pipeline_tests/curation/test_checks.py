"""What must hold of a dataset is seen when it does not."""

import polars as pl

from rl_pipeline.curation.checks import leakage, missing_domains, residual_secrets
from rl_pipeline_tests.curation.frames import candidates

COPIES = {"written": 900, "asked": 500, "likeness": 77, "kernel": 4, "opening_likeness": 99}


def dealt(*rows: dict[str, object]) -> pl.DataFrame:
    """The rows on alternate sides."""
    frame = candidates(*rows)
    sides = pl.Series(["train", "holdout"] * frame.height, dtype=pl.String)[: frame.height]
    return frame.with_columns(split=sides)


def test_each_way_to_leak_is_counted() -> None:
    assert leakage(dealt({"task": "a"}, {"task": "a"}, {"task": "b"})).tasks == 1
    assert leakage(dealt({"opening": 1, "asked": 500}, {"opening": 1, "asked": 500})).openings == 1
    assert leakage(dealt(COPIES, COPIES)).near_copies == 1
    assert leakage(dealt({}, {}, {})).total == 0


def test_a_greeting_that_is_on_both_sides_is_no_leak() -> None:
    assert leakage(dealt({"opening": 1, "asked": 5}, {"opening": 1, "asked": 5})).total == 0


def test_domains_that_should_be_there_and_are_not_are_named() -> None:
    assert missing_domains({"coding": 4, "general": 3, "writing": 0}, {"coding": 1}) == ("general",)


def test_sensitive_values_that_are_left_are_counted_by_kind() -> None:
    text = '[{"role":"user","content":"write to jane.doe@northwind.com now, and to jim@northwind.com "}]'
    assert residual_secrets([text, text]) == {"EMAIL": 4}
    assert residual_secrets([text], allowed={"jim@northwind.com"}) == {"EMAIL": 1}
    assert residual_secrets([text], tolerated={"EMAIL"}) == {}
    assert residual_secrets(['[{"content":"[REDACTED:EMAIL:0123456789ab]"}]']) == {}
