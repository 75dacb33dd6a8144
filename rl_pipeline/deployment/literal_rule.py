"""The plain rule: every five minutes the candidate's last five minutes against fixed limits.

It is what the specification says, word for word. Five minutes hold few sessions, so chance alone exceeds the limits:
most healthy models are rolled back by it (`benchmarks/canary.py` has the figures). It is kept as a rule that a rollout
can ask for, and as a line in every judgement.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta

import numpy as np

from rl_pipeline.deployment.columns import Columns, sums_by
from rl_pipeline.deployment.limits import REASONS, Limits, Reason, exceeded_limits
from rl_pipeline.deployment.windows import WINDOW_SECONDS

CHECK_SECONDS = 300


@dataclass(frozen=True, slots=True)
class PlainRollback:
    """When the plain rule rolls back, and why."""

    at: datetime
    reason: Reason


def plain_rollback(columns: Columns, started_at: datetime, now: datetime, limits: Limits) -> PlainRollback | None:
    """The first check up to now that finds a limit exceeded, if any. A check sees the windows that ended since the one
    before it."""
    elapsed = columns.start + WINDOW_SECONDS - started_at.timestamp()
    check = np.maximum(np.ceil(elapsed / CHECK_SECONDS).astype(np.int64), 1)
    is_made = check <= (now - started_at).total_seconds() // CHECK_SECONDS
    check, checks = check[is_made], int(check.max(initial=0)) + 1
    exceeded = exceeded_limits(columns.where(is_made), lambda values: sums_by(check, values, checks), limits)
    first = {metric: int(flags.argmax()) for metric, flags in exceeded.items() if flags.any()}
    if not first:
        return None
    metric = min(first, key=first.__getitem__)
    return PlainRollback(started_at + timedelta(seconds=first[metric] * CHECK_SECONDS), REASONS[metric])
