"""What the online algorithms start from: tasks with the attempts at them that were logged.

Attempts at one request are attempts at one task, whatever they call it: mostly each execution has an id of its own. Two
setups of a world are two tasks, though they may open with the same.

An attempt teaches by how it differs from the others at the same task. So tasks whose logged attempts earned different
rewards come first, the most undecided (the largest deviation) before all; then those of a single attempt, of which
nobody knows; last those whose attempts all earned the same. These stay, since a policy that explores may do otherwise
than the one that was logged, but they are the first to give way when the sample is full.
"""

from collections import Counter
from dataclasses import replace

import numpy as np
import polars as pl
from scipy.sparse import coo_array  # type: ignore[import-untyped]  # ships no types
from scipy.sparse.csgraph import connected_components  # type: ignore[import-untyped]

from rl_pipeline.curation.policy import Criteria, CurationPolicy
from rl_pipeline.curation.selection import Selection, select_rows

_NO_DEVIATION = 1e-7
"""Below it are errors of rounding."""


def one_task_for_each_request(candidates: pl.DataFrame) -> pl.DataFrame:
    """The candidates, with tasks that share a request under the first of their names. Where nothing is asked, tasks
    share nothing."""
    request = ["opening", "setup"]
    name = pl.col("task").hash()
    # Narrow and mostly empty: of a million candidates with tasks of their own nothing is copied.
    is_shared = candidates.select(*request, "asked", name=name).select(
        (pl.col("asked") > 1) & (pl.col("name").min() != pl.col("name").max()).over(request)
    )
    tied = candidates.select("task", request=pl.struct(request).hash()).filter(is_shared.to_series())
    names = tied["task"].unique().sort()
    tasks = tied["task"].cast(pl.Enum(names)).to_physical().to_numpy()
    requests = len(names) + tied["request"].rank("dense").to_numpy()
    size = len(names) + tied.height + 1
    ties = coo_array((np.ones(tied.height, dtype=bool), (tasks, requests)), shape=(size, size))
    _, families = connected_components(ties, directed=False)
    firsts = pl.DataFrame({"task": names, "family": families[: len(names)]}).select(pl.first("task").over("family"))
    return candidates.with_columns(pl.col("task").replace(names, firsts["task"]))


def task_statistics(candidates: pl.DataFrame) -> pl.DataFrame:
    """task, attempts, mean_reward, reward_std: of all attempts, copies included."""
    copies = pl.col("copies")
    mean = (pl.col("reward") * copies).sum() / copies.sum()
    square = (pl.col("reward").pow(2) * copies).sum() / copies.sum()
    return (
        # In order of id: sums of floats depend on the order.
        candidates.select("task", "reward", "copies", "trajectory_id")
        .sort("trajectory_id")
        .group_by("task", maintain_order=True)
        .agg(attempts=copies.sum(), mean_reward=mean, variance=square - mean.pow(2))
        .select("task", "attempts", "mean_reward", reward_std=pl.col("variance").clip(0.0).sqrt())
        .with_columns(reward_std=pl.when(pl.col("reward_std") < _NO_DEVIATION).then(0.0).otherwise("reward_std"))
        .sort("task")
    )


def select_attempts(
    candidates: pl.DataFrame, statistics: pl.DataFrame, criteria: Criteria, policy: CurationPolicy
) -> Selection:
    """Whole tasks in the order of this module, of each at most `attempts_per_task`, drawn by lot."""
    tier = pl.when(pl.col("reward_std") > 0).then(0).when(pl.col("attempts") == 1).then(1).otherwise(2).cast(pl.UInt8)
    ranked = statistics.select("task", "reward_std", tier=tier)
    rows = candidates.select("task", "draw", "trajectory_id", place=pl.int_range(pl.len())).join(ranked, on="task")
    rows = rows.sort("draw", "trajectory_id")
    few = rows.filter(pl.int_range(pl.len()).over("task") < policy.attempts_per_task)
    in_turn = few.with_columns(lot=pl.col("draw").min().over("task")).sort(
        "tier", "reward_std", "lot", "task", "draw", "trajectory_id", descending=[False, True, *[False] * 4]
    )
    chosen = select_rows(candidates, in_turn["place"], criteria, policy)
    return replace(chosen, left_out=chosen.left_out + Counter(enough_of_task=rows.height - few.height))
