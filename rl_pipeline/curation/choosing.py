"""From candidates to what a dataset is made of, by the algorithm that learns from it.

- SFT imitates: the best of each task.
- DPO compares: pairs with a margin.
- PPO, RLOO, GRPO and REINFORCE play on: tasks, the undecided first. Unless all of them can be played in one world that
  exists, pairs go with them, from which a model of the rewards is learnt: if too few compare attempts at one request,
  pairs of different requests as well.
"""

from collections import Counter
from dataclasses import dataclass, replace

import polars as pl

from rl_pipeline.contracts.training_request import Algorithm
from rl_pipeline.curation.groups import one_task_for_each_request, select_attempts, task_statistics
from rl_pipeline.curation.likeness import without_copies
from rl_pipeline.curation.pairs import PAIRS, possible_pairs, select_pairs
from rl_pipeline.curation.policy import Criteria, CurationPolicy
from rl_pipeline.curation.selection import Selection, select_demonstrations
from rl_pipeline.curation.splits import split


@dataclass(frozen=True)
class Choice:
    """What was chosen. Nothing in it depends on the order of the candidates."""

    algorithm: Algorithm
    rows: pl.DataFrame
    """Candidates, in order of id; with their `split` once they are dealt."""
    pairs: pl.DataFrame
    """As `PAIRS`, in order; with their `split` once they are dealt, and `across_requests` once they are written."""
    tasks: pl.DataFrame
    """task, attempts, mean_reward, reward_std: what is played, by the online algorithms to learn from it, by all others
    to measure what was learnt, where it can be played at all."""
    selection: Selection
    left_out: Counter[str]
    offered_by_domain: dict[str, int]

    @property
    def is_online(self) -> bool:
        """Whether the policy makes its own data, and needs tasks to begin with."""
        return is_online(self.algorithm)

    @property
    def has_pairs(self) -> bool:
        """Whether pairs belong to the dataset, even if none was found."""
        worlds = set(self.rows["environment"].cast(pl.String))
        return self.algorithm == "dpo" or (self.is_online and (len(worlds) != 1 or "" in worlds))

    def dealt(self, told: pl.DataFrame, share: float, seed: int) -> "Choice":
        """The choice on its two sides, by what its documents told: see `TOLD`. About `share` is held out."""
        rows = self.rows.drop("environment", "setup").join(told, on="trajectory_id", maintain_order="left")
        rows = split(rows, share, seed)
        dealt = replace(self, rows=rows)
        return replace(dealt, pairs=dealt.with_sides(self.pairs))

    def with_sides(self, pairs: pl.DataFrame) -> pl.DataFrame:
        """Pairs of what was dealt, with their `split`."""
        sides = self.rows.select("trajectory_id", "split")
        return pairs.join(sides, left_on="chosen_id", right_on="trajectory_id", maintain_order="left")

    def without(self, reasons: dict[str, str]) -> "Choice":
        """The choice without some trajectories, by their ids, and without the pairs that they were in."""
        ids = pl.Series(list(reasons), dtype=pl.String).implode()
        gone = pl.col("chosen_id").is_in(ids) | pl.col("rejected_id").is_in(ids)
        rows = self.rows.filter(~pl.col("trajectory_id").is_in(ids))
        return replace(
            self,
            rows=rows,
            pairs=self.pairs.filter(~gone),
            tasks=self.tasks.join(rows, on="task", how="semi", maintain_order="left"),
            left_out=self.left_out + Counter(reasons.values()),
        )


TOLD = pl.Schema(
    {
        "trajectory_id": pl.String(),
        "environment": pl.String(),
        "setup": pl.UInt64(),
        "task_type": pl.String(),
        "opening_words": pl.UInt64(),
        "words": pl.UInt64(),
    }
)
"""What documents tell beside what the warehouse has read of them; see `splits.split` for the words."""


def is_online(algorithm: Algorithm) -> bool:
    """Whether an algorithm makes its own data while it trains."""
    return algorithm not in ("sft", "dpo")


def choose(candidates: pl.DataFrame, criteria: Criteria, policy: CurationPolicy) -> Choice:
    """What the algorithm learns from."""
    candidates = one_task_for_each_request(candidates)
    distinct = without_copies(candidates)
    pairs = pl.DataFrame(schema=PAIRS)
    statistics = task_statistics(distinct)
    if criteria.algorithm == "sft":
        chosen = select_demonstrations(distinct, criteria, policy)
    elif criteria.algorithm == "dpo":
        chosen, pairs = select_pairs(distinct, criteria, policy)
    else:
        chosen = select_attempts(distinct, statistics, criteria, policy)
        pairs = possible_pairs(chosen.kept, criteria.pair_margin, policy)
    is_played = pl.lit(is_online(criteria.algorithm)) | (pl.col("environment").cast(pl.String) != "")
    tasks = statistics.join(chosen.kept.filter(is_played), on="task", how="semi").sort("task")
    return Choice(
        algorithm=criteria.algorithm,
        rows=chosen.kept,
        pairs=pairs.sort("task", "chosen_id", "rejected_id"),
        tasks=tasks,
        selection=chosen,
        left_out=chosen.left_out + Counter(duplicate=candidates.height - distinct.height),
        offered_by_domain=dict(candidates.group_by(pl.col("domain").cast(pl.String)).len().sort("domain").iter_rows()),
    )
