"""What people thought: what they said, else what they showed, else neutral."""

from collections.abc import Sequence

import polars as pl

from rl_pipeline.rewards import formulas
from rl_pipeline.rewards.term import NEUTRAL, Source, Stars, TermOptions

_READ = ("feedback_kinds", "feedback_ratings", "feedback_users", "status", "corrections_shown")
_SAID = frozenset({"thumbs_up", "thumbs_down", "stars"})


class UserFeedback:
    """`formulas.user_feedback` over a batch, whose feedback columns hold all feedback in force for the revision."""

    name = "user_feedback"
    low = 0.0
    high = 1.0
    source: Source = "human"
    version = 1

    def score(self, batch: pl.DataFrame, options: TermOptions) -> pl.DataFrame:
        """Never null: without feedback the score is 0.5, and its evidence says that it is neutral."""
        # Row by row: most rows have no feedback at all, and lists in Polars cost one trajectory more than all the rest.
        judged = [_judge(options.stars, *row) for row in zip(*(batch[name].to_list() for name in _READ), strict=True)]
        scores, evidence = zip(*judged, strict=True) if judged else ((), ())
        return pl.DataFrame([pl.Series("score", scores, pl.Float64), pl.Series("evidence", evidence, pl.String)])


def _judge(  # noqa: PLR0917  # one for each column
    stars: Stars, kinds: Sequence[str], ratings: Sequence[int], users: Sequence[str], status: str, corrections: int
) -> tuple[float, str]:
    if not kinds and not corrections and status != "abandoned":
        return 0.5, f"{NEUTRAL}no feedback"
    abandoned = status == "abandoned"
    score = formulas.user_feedback(
        *(kinds, ratings, users), abandoned=abandoned, corrections_shown=corrections, stars=stars
    )
    said = [
        (user or place, f"{rating} of 5 stars" if kind == "stars" else kind.replace("_", " "))
        for place, (kind, rating, user) in enumerate(zip(kinds, ratings, users, strict=True))
        if kind in _SAID and (kind != "stars" or rating)
    ]
    if said:
        count = len(dict(said))
        return score, f"1 opinion: {said[-1][1]}" if count == 1 else f"{count} opinions, the last: {said[-1][1]}"
    if abandoned or "abandoned" in kinds:
        return score, "nothing said; the user gave up"
    if corrections or "correction" in kinds:
        return score, "nothing said; the user asked for rework"
    return score, f"{NEUTRAL}no feedback"
