"""From candidates to what a dataset is made of, by the algorithm that learns from it.

- SFT imitates: the best of each task.
- DPO compares: pairs with a margin.
- PPO, RLOO, GRPO and REINFORCE play on: tasks, the undecided first. Where no environment is known in which they could
  be played, pairs go with them, from which a model of the rewards is learnt.
"""

from collections import Counter
from dataclasses import dataclass, replace

import polars as pl

from rl_pipeline.contracts.training_request import Algorithm
from rl_pipeline.curation.groups import select_attempts, task_statistics
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
    """Candidates with their `split`, in order of id."""
    pairs: pl.DataFrame
    """As `PAIRS`, with their `split`."""
    tasks: pl.DataFrame
    """task, attempts, mean_reward, reward_std: what is played, by the online algorithms to learn from it, by all others
    to measure what was learnt, where it can be played at all."""
    has_pairs: bool
    """Whether pairs belong to the dataset, even if none was found."""
    selection: Selection
    left_out: Counter[str]
    offered_by_domain: dict[str, int]

    @property
    def is_online(self) -> bool:
        """Whether the policy makes its own data, and needs tasks to begin with."""
        return is_online(self.algorithm)

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


def is_online(algorithm: Algorithm) -> bool:
    """Whether an algorithm makes its own data while it trains."""
    return algorithm not in ("sft", "dpo")


def choose(candidates: pl.DataFrame, criteria: Criteria, policy: CurationPolicy) -> Choice:
    """What the algorithm learns from."""
    distinct = without_copies(candidates)
    pairs = pl.DataFrame(schema=PAIRS)
    has_pairs = criteria.algorithm == "dpo"
    statistics = task_statistics(distinct)
    if criteria.algorithm == "sft":
        chosen = select_demonstrations(distinct, criteria, policy)
    elif has_pairs:
        chosen, pairs = select_pairs(distinct, criteria, policy)
    else:
        chosen = select_attempts(distinct, statistics, criteria, policy)
        has_pairs = bool((chosen.kept["environment"].cast(pl.String) == "").all())
        if has_pairs:
            pairs = possible_pairs(chosen.kept, criteria.pair_margin, policy)
    is_played = pl.lit(is_online(criteria.algorithm)) | (pl.col("environment").cast(pl.String) != "")
    tasks = statistics.join(chosen.kept.filter(is_played), on="task", how="semi").sort("task")
    rows = split(chosen.kept, criteria.holdout, policy.seed)
    sides = rows.select("trajectory_id", "split")
    return Choice(
        algorithm=criteria.algorithm,
        rows=rows,
        pairs=pairs.join(sides, left_on="chosen_id", right_on="trajectory_id").sort("task", "chosen_id", "rejected_id"),
        tasks=tasks,
        has_pairs=has_pairs,
        selection=chosen,
        left_out=chosen.left_out + Counter(duplicate=candidates.height - distinct.height),
        offered_by_domain=dict(candidates.group_by(pl.col("domain").cast(pl.String)).len().sort("domain").iter_rows()),
    )
