"""Whether agents voted for what won."""

import polars as pl

from rl_pipeline.rewards.term import Source, TermOptions


class Voting:
    """`formulas.voting` over a batch."""

    name = "voting"
    low = -0.5
    high = 1.0
    source: Source = "automated"
    version = 1

    def score(self, batch: pl.DataFrame, options: TermOptions) -> pl.DataFrame:  # noqa: ARG002 - a term's signature
        """Null where no one voted, or what won is not known."""
        votes = pl.col("votes").cast(pl.Float64)
        right = pl.min_horizontal(pl.col("votes_right").cast(pl.Float64), votes)
        known = (pl.col("votes") > 0) & pl.col("votes_right").is_not_null()
        return batch.select(
            score=pl.when(known).then((right * 1.0 + (votes - right) * -0.5) / votes),
            evidence=pl.when(known)
            .then(pl.format("{} of {} votes for what won", "votes_right", "votes"))
            .otherwise(pl.lit("no votes")),
        )
