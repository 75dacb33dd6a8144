"""How well several agents worked together: rounds, agreement, the answer, and the tokens it took."""

import polars as pl

from rl_pipeline.rewards.formulas import ROUND_PENALTY_CAP
from rl_pipeline.rewards.term import Source, TermOptions
from rl_pipeline.rewards.terms.answer_quality import quality


class Coordination:
    """`formulas.coordination` over a batch; the quality is that of the final answer.

    The range: the worst answer (0) after 13 rounds or more, without agreement and with the tokens' full penalty is
    -0.5 - 1 - 1 = -2.5; the best (1) by agreement in two rounds is 2 + 1 + 0.5 = 3.5.
    """

    name = "coordination"
    low = -2.5
    high = 3.5
    source: Source = "automated"
    version = 1

    def score(self, batch: pl.DataFrame, options: TermOptions) -> pl.DataFrame:
        """Null where rounds, agreement or the final answer are unknown."""
        rounds, tokens = pl.col("rounds").cast(pl.Float64), pl.col("tokens").cast(pl.Float64).fill_null(0.0)
        consensus = pl.col("consensus")
        rounds_penalty = (-0.1 * (rounds - 3.0).clip(lower_bound=0.0)).clip(lower_bound=ROUND_PENALTY_CAP)
        token_penalty = (-0.001 * (tokens - 10_000.0).clip(lower_bound=0.0)).clip(lower_bound=options.token_penalty_cap)
        agreement = pl.when(consensus).then(1.0).otherwise(-0.5)
        bonus = pl.when(consensus & (rounds <= 2) & (quality() > 0.7)).then(0.5).otherwise(0.0)
        known = rounds.is_not_null() & consensus.is_not_null() & quality().is_not_null()
        score = 2.0 * quality() + agreement + bonus + rounds_penalty + token_penalty
        evidence = pl.format(
            "{} rounds, {}, answer {}, {} tokens, {} restarts",
            "rounds",
            pl.when(consensus).then(pl.lit("agreement")).otherwise(pl.lit("no agreement")),
            quality().round(2),
            pl.col("tokens").cast(pl.String).fill_null("unknown"),
            pl.col("restarts").cast(pl.String).fill_null("unknown"),
        )
        return batch.select(
            score=pl.when(known).then(score),
            evidence=pl.when(known).then(evidence).otherwise(pl.lit("coordination is not known")),
        )
