"""Whether it took less than usual: turns, time and tokens against the task type's baseline, less redundant calls."""

from math import expm1

import numpy as np
import polars as pl

from rl_pipeline.rewards.formulas import NOT_DONE
from rl_pipeline.rewards.normalization import Floats
from rl_pipeline.rewards.term import Source, TermOptions

_TOLD = (
    *("status", "turns", "usual_turns", "seconds", "usual_log_seconds", "tokens", "usual_log_tokens"),
    *("redundant_calls", "calls"),
)
_NO_HISTORY = "no history of the task type yet; "


class Efficiency:
    """`formulas.run_efficiency` over a batch, which has the columns of the baseline."""

    name = "efficiency"
    low = 0.0
    high = 1.0
    source: Source = "automated"
    version = 1

    def score(self, batch: pl.DataFrame, options: TermOptions) -> pl.DataFrame:  # noqa: ARG002 - a term's signature
        """Null while there is no baseline for the task type; 0 where the task failed or was abandoned."""
        # In numpy: for one trajectory, asking Polars takes longer than everything else.
        turns, calls, redundant = (
            batch[name].to_numpy().astype(float) for name in ("turns", "calls", "redundant_calls")
        )
        seconds, tokens = (batch[name].cast(pl.Float64).to_numpy() for name in ("seconds", "tokens"))
        with np.errstate(divide="ignore", invalid="ignore"):
            parts = [
                _part(batch, turns, "usual_turns"),
                _part(batch, np.log1p(np.where(seconds > 0, seconds, np.nan)), "usual_log_seconds"),
                _part(batch, np.log1p(np.where(tokens > 0, tokens, np.nan)), "usual_log_tokens"),
            ]
            count = sum((~np.isnan(part)).astype(float) for part in parts)
            mean = sum(np.nan_to_num(part, nan=0.0) for part in parts) / np.where(count > 0, count, np.nan)
            useful = np.where(calls > 0, 1.0 - np.minimum(redundant / calls, 1.0), 1.0)
        undone = np.isin(batch["status"].to_numpy(), NOT_DONE)
        score = np.where(undone & ~np.isnan(mean), 0.0, mean * useful)
        evidence = map(_evidence, *(batch[name].to_list() for name in _TOLD))
        return pl.DataFrame(
            [pl.Series("score", score, nan_to_null=True), pl.Series("evidence", evidence, dtype=pl.String)]
        )


def _part(batch: pl.DataFrame, value: Floats, usual: str) -> Floats:
    """The efficiency of one part, NaN where it has no value or no baseline."""
    mean, std = batch[usual].to_numpy(), batch[f"{usual}_std"].to_numpy()
    z = np.clip((mean - value) / std, -2.0, 2.0)
    without_spread = np.where(value == mean, 0.5, (value < mean).astype(float))
    part = np.where(std == 0.0, without_spread, (z + 2.0) / 4.0)
    return np.where(np.isnan(value) | np.isnan(mean), np.nan, part)


def _evidence(  # noqa: PLR0917  # one for each column
    status: str,
    turns: int,
    usual_turns: float | None,
    seconds: float,
    usual_log_seconds: float | None,
    tokens: int | None,
    usual_log_tokens: float | None,
    redundant: int,
    calls: int,
) -> str:
    undone = "the task was not done; " if status in NOT_DONE else ""
    took = f"{turns} turns where {round(usual_turns, 1)} are usual; " if usual_turns is not None else _NO_HISTORY
    time = tokens_used = ""
    if seconds > 0 and usual_log_seconds is not None:
        time = f"{round(seconds, 1)} s where {round(expm1(usual_log_seconds), 1)} s are usual; "
    if tokens and usual_log_tokens is not None:
        tokens_used = f"{tokens} tokens where {expm1(usual_log_tokens):.0f} are usual; "
    return f"{undone}{took}{time}{tokens_used}{redundant} of {calls} calls redundant"
