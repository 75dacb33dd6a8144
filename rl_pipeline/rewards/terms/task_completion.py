"""Whether the task was done: its status, held against the subtasks and the calls that failed."""

import numpy as np
import polars as pl

from rl_pipeline.rewards.term import Source, TermOptions


class TaskCompletion:
    """`formulas.outcome` over a batch."""

    name = "task_completion"
    low = 0.0
    high = 1.0
    source: Source = "automated"
    version = 1

    def score(self, batch: pl.DataFrame, options: TermOptions) -> pl.DataFrame:
        """Null where neither a status nor subtasks say how it ended."""
        told = ("status", "completion", "subtasks", "subtasks_done", "failed_calls", "distinct_calls")
        evidence = map(_evidence, *(batch[name].to_list() for name in told))
        return pl.DataFrame([_score(batch, options.error_weight), pl.Series("evidence", evidence, pl.String)])


def _score(batch: pl.DataFrame, error_weight: float) -> pl.Series:
    # In numpy: for one trajectory, asking Polars takes longer than everything else.
    status = batch["status"].to_numpy()
    subtasks, subtasks_done, distinct, failed, completion = (
        batch[name].cast(pl.Float64).to_numpy()
        for name in ("subtasks", "subtasks_done", "distinct_calls", "failed_calls", "completion")
    )
    with np.errstate(divide="ignore", invalid="ignore"):
        done = np.where(subtasks > 0, np.minimum(subtasks_done / subtasks, 1.0), np.nan)
        failed_share = np.where(distinct > 0, np.minimum(failed / distinct, 1.0), 0.0)
    success = np.where(done < 1.0, 0.5 + 0.5 * done, 1.0) - error_weight * failed_share
    known = np.where(np.isnan(completion), np.nan_to_num(done, nan=0.0), completion)
    score = np.select(
        [status == "success", status == "partial", status == ""], [success, 0.5 + 0.5 * known, done], default=0.0
    )
    return pl.Series("score", score, nan_to_null=True)


def _evidence(  # noqa: PLR0917  # one for each column
    status: str, completion: float | None, subtasks: int, subtasks_done: float, failed: int, distinct: int
) -> str:
    reported = f"; {completion * 100:.0f}% reported" if status == "partial" and completion is not None else ""
    parts = f"; {round(subtasks_done, 1)} of {subtasks} subtasks done" if subtasks else ""
    calls = f"; {failed} of {distinct} calls failed" if distinct else ""
    return f"{status or 'no status'}{reported}{parts}{calls}"
