"""How good the final answer reads: structure, depth and likeness to a reference."""

import polars as pl

from rl_pipeline.rewards.term import Source, TermOptions


def quality() -> pl.Expr:
    """`formulas.answer_quality` as an expression; null where there is no final answer.

    Times 1 / 0.7: Polars divides a column by a constant as a product, but a single row as a quotient, and a row must
    have the same bits in every batch.
    """
    own = pl.col("answer_structure") + pl.col("answer_depth")
    similarity = pl.col("answer_similarity")
    return pl.when(similarity.is_null()).then(own * (1 / 0.7)).otherwise(own + similarity).clip(0.0, 1.0)


class AnswerQuality:
    """`formulas.answer_quality` over a batch."""

    name = "answer_quality"
    low = 0.0
    high = 1.0
    source: Source = "automated"
    version = 1

    def score(self, batch: pl.DataFrame, options: TermOptions) -> pl.DataFrame:  # noqa: ARG002 - a term's signature
        """Null where there is no final answer."""
        own = pl.format(
            "structure {} of 0.3, depth {} of 0.4",
            pl.col("answer_structure").round(2),
            pl.col("answer_depth").round(2),
        )
        likeness = pl.format(", likeness {} of 0.3", pl.col("answer_similarity").round(2))
        return batch.select(
            score=quality(),
            evidence=(own + likeness.fill_null(", no reference")).fill_null("no final answer"),
        )
