"""How good the code is: linter, tests and security findings, as far as they prove something."""

from math import isnan

import numpy as np
import polars as pl

from rl_pipeline.rewards.formulas import NOT_DONE
from rl_pipeline.rewards.normalization import Flags, Floats
from rl_pipeline.rewards.term import NEUTRAL, Source, TermOptions

_TOLD = ("code_snippets", "code_unparsable", "tests_passed", "tests_total", "tests_doubt", "security_critical")
_OTHER_DOMAINS = ("general", "research", "writing")


class CodeQuality:
    """`formulas.code_quality` over a batch. Doubtful tests count only against it, snippets that do not parse as 0."""

    name = "code_quality"
    low = 0.0
    high = 1.0
    source: Source = "linter"
    version = 1

    def score(self, batch: pl.DataFrame, options: TermOptions) -> pl.DataFrame:  # noqa: ARG002 - a term's signature
        """Null where there is no code: no snippet, and no finding that someone published.

        Null too where a few clean lines would be a gain for nothing: where the task's domain asks for no code, and
        where the task was not done and no tests say how far it came. What was published counts in any case.
        """
        judged = _is_judged(batch)
        lint, tests, security = _lint(batch), _pass_rate(batch), _security(batch)
        parts = [lint * 0.1, tests, security]
        count = sum((~np.isnan(part)).astype(float) for part in parts)
        with np.errstate(divide="ignore", invalid="ignore"):
            known = sum(np.nan_to_num(part, nan=0.0) for part in parts) / count
        nothing_known = np.where(batch["code_snippets"].to_numpy() > 0, 0.5, np.nan)
        score = np.clip(np.where(count > 0, known, nothing_known), 0.0, 1.0)
        found = (column.tolist() for column in (judged, lint, tests, security))
        evidence = map(_evidence, *found, *(batch[name].to_list() for name in _TOLD))
        return pl.DataFrame(
            [
                pl.Series("score", np.where(judged, score, np.nan), nan_to_null=True),
                pl.Series("evidence", evidence, dtype=pl.String),
            ]
        )


# In numpy from here on: for one trajectory, asking Polars takes longer than everything else.


def _numbers(batch: pl.DataFrame, *names: str) -> list[Floats]:
    return [batch[name].cast(pl.Float64).to_numpy() for name in names]


def _is_judged(batch: pl.DataFrame) -> Flags:
    lint_from, tests_from, domain, status = (
        batch[name].to_numpy() for name in ("lint_from", "tests_from", "domain", "status")
    )
    published = (lint_from == "published") | (tests_from == "published")
    snippets, critical = _numbers(batch, "code_snippets", "security_critical")
    security_alone = (snippets == 0) & ~np.isnan(critical)
    asked_for = ~np.isin(domain, _OTHER_DOMAINS)
    done = ~np.isin(status, NOT_DONE)
    judged: Flags = published | security_alone | (asked_for & (done | ~np.isnan(_pass_rate(batch))))
    return judged


def _lint(batch: pl.DataFrame) -> Floats:
    snippets, unparsable, lint = _numbers(batch, "code_snippets", "code_unparsable", "lint_score")
    with np.errstate(divide="ignore", invalid="ignore"):
        share = 1.0 - np.minimum(unparsable / snippets, 1.0)
    return np.where((unparsable > 0) & (snippets > 0), np.nan_to_num(lint, nan=5.0) * share, lint)


def _pass_rate(batch: pl.DataFrame) -> Floats:
    """Doubtful tests count where they failed: a doubt must not make up for failures."""
    passed, total = _numbers(batch, "tests_passed", "tests_total")
    proven = ((batch["tests_doubt"].to_numpy() == "") | (passed < total)) & (total > 0)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(proven, np.minimum(passed / total, 1.0), np.nan)


def _security(batch: pl.DataFrame) -> Floats:
    [critical] = _numbers(batch, "security_critical")
    return np.maximum(1.0 - 0.5 * critical, 0.0)


def _evidence(  # noqa: PLR0917  # one for each column
    judged: bool,
    lint: float,
    tests: float,
    security: float,
    snippets: int,
    unparsable: int,
    passed: int,
    total: int,
    doubt: str,
    critical: int,
) -> str:
    if not judged:
        return "clean code would prove nothing here"
    known = [not isnan(part) for part in (lint, tests, security)]
    if not any(known):
        code = f"{NEUTRAL}nothing is known of {snippets} snippets" if snippets else "no code"
    else:
        code = f"{snippets} snippets" if snippets else "findings without the code"
    broken = f"; {unparsable} of them do not parse" if unparsable else ""
    style = f"; lint {round(lint, 1)} of 10" if known[0] else ""
    tested = f"; {passed} of {total} tests passed" if known[1] else ""
    doubted = f"; {doubt}" if doubt else ""
    secure = f"; {critical} critical security findings" if known[2] else ""
    return f"{code}{broken}{style}{tested}{doubted}{secure}"
