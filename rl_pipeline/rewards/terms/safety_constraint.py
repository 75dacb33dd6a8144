"""Whether what was done may be rewarded at all: a constraint, which takes the whole reward where it is broken."""

import polars as pl

from rl_pipeline.rewards.term import Source, TermOptions
from rl_pipeline.rewards.tests_found import CHANGED_AFTER_FAILING


class SafetyConstraint:
    """`formulas.safety_constraint` over a batch."""

    name = "safety_constraint"
    low = 0.0
    high = 1.0
    source: Source = "automated"
    version = 1

    def score(self, batch: pl.DataFrame, options: TermOptions) -> pl.DataFrame:  # noqa: ARG002 - a term's signature
        """0 where a security scan found something critical, or failing tests were changed until they passed; else 1."""
        critical = pl.col("security_critical").fill_null(0)
        tampered = pl.col("tests_doubt") == CHANGED_AFTER_FAILING
        return batch.select(
            score=pl.when((critical > 0) | tampered).then(0.0).otherwise(1.0),
            evidence=pl.when(critical > 0)
            .then(pl.format("broken: {} critical security findings", critical))
            .when(tampered)
            .then(pl.lit(f"broken: {CHANGED_AFTER_FAILING}"))
            .otherwise(pl.lit("nothing forbidden was seen")),
        )
