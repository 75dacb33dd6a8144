"""The reward of one trajectory at once, against trajectories that came before it: for agents, tools and services."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import polars as pl

from rl_pipeline.contracts import Reward
from rl_pipeline.rewards.configuration import RewardConfiguration
from rl_pipeline.rewards.linting import CodeChecker
from rl_pipeline.rewards.publishing import reward_message
from rl_pipeline.rewards.scoring import History, score
from rl_pipeline.rewards.signals import SIGNALS, signals_of_one


def reward_of(
    trajectory: Mapping[str, Any],
    earlier: Sequence[Mapping[str, Any]],
    configuration: RewardConfiguration,
    *,
    checker: CodeChecker | None,
    now: datetime,
) -> Reward:
    """The reward as a message. `earlier` are trajectories in their order; without a checker code is not linted.

    All of them are documents of `agent.rl.trajectory.v1`. What the pipeline stores has in addition the feedback that
    came in messages of its own.
    """
    documents = [*earlier, trajectory]
    rows = [signals_of_one(dict(one), checker, {"sequence": place}) for place, one in enumerate(documents, start=1)]
    batch = pl.DataFrame(rows, SIGNALS).hstack([pl.Series("revision", [0] * len(rows), dtype=pl.UInt32)])
    scored = score(batch, History.empty(), configuration).row(-1, named=True)
    return reward_message({**scored, "scored_at": now}, configuration.sources)
