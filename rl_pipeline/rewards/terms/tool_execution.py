"""Whether the calls of tools worked and were of use."""

import polars as pl

from rl_pipeline.rewards.term import Source, TermOptions


class ToolExecution:
    """`formulas.tool_execution` over a batch."""

    name = "tool_execution"
    low = -1.0
    high = 1.0
    source: Source = "automated"
    version = 1

    def score(self, batch: pl.DataFrame, options: TermOptions) -> pl.DataFrame:  # noqa: ARG002 - a term's signature
        """Null where nothing was called."""
        distinct, failed, empty, redundant = (
            pl.col(name).cast(pl.Float64)
            for name in ("distinct_calls", "failed_calls", "empty_results", "redundant_calls")
        )
        worth = (distinct - failed - empty - failed - 0.5 * empty) / (distinct + redundant)
        evidence = pl.format(
            "{} different calls: {} failed, {} without a result, {} repeats of what was known",
            "distinct_calls",
            "failed_calls",
            "empty_results",
            "redundant_calls",
        )
        called = pl.col("distinct_calls") > 0
        return batch.select(
            score=pl.when(called).then(worth.clip(-1.0, 1.0)),
            evidence=pl.when(called).then(evidence).otherwise(pl.lit("no calls")),
        )
