"""The off-policy estimate of a candidate from what the warehouse has: the newest rewarded work, as far as it is of use.

Left out is what the checkpoint was trained on, or any that it goes back to: that has raised its likelihood, whatever it
was worth. So is what a check found suspicious, and what was said in tokens of another model, which mean other words.
The cost is bounded by so many trajectories, the newest, and by so many tokens of them.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, takewhile
from pathlib import Path

from rl_pipeline.contracts import CLAIMED_LIMITS, ContractError, Trajectory, validate_trajectory
from rl_pipeline.ingestion.ancestry import read_ancestry
from rl_pipeline.stores.warehouse import Warehouse
from rl_pipeline.validation.checkpoint_likelihoods import CheckpointLikelihoods, tokens_to_read
from rl_pipeline.validation.off_policy import (
    LoggedTrajectory,
    OffPolicyEstimate,
    estimate_off_policy,
    logged_trajectories,
)

MOST_TRAJECTORIES = 1000
MOST_TOKENS = 300_000

_NEWEST = """
    SELECT trajectory_id, raw_total FROM (
        SELECT trajectory_id, version, stream_time, sequence FROM trajectories FINAL
        WHERE trajectory_id NOT IN (
            SELECT trajectory_id FROM dataset_provenance
            WHERE split = 'train' AND dataset_id IN {learnt:Array(String)}
        ) AND (trajectory_id, version) NOT IN (SELECT trajectory_id, version FROM suspicious_trajectories)
    ) AS stored
    INNER JOIN (SELECT trajectory_id, raw_total FROM trajectory_rewards) AS rewarded USING (trajectory_id)
    ORDER BY stream_time DESC, sequence DESC
    LIMIT {most:UInt32}
"""
_DOCUMENTS = """
    SELECT document FROM trajectories FINAL PREWHERE trajectory_id IN {ids:Array(String)}
    ORDER BY stream_time DESC, sequence DESC
"""


@dataclass(frozen=True)
class LoggedWork:
    """What was done and rewarded before, the newest first."""

    trajectories: Sequence[Trajectory]
    rewards: dict[str, float]
    """The raw total of each."""


def read_logged_work(warehouse: Warehouse, job_id: str, *, most: int = MOST_TRAJECTORIES) -> LoggedWork:
    """The newest rewarded trajectories that neither the checkpoint of `job_id` nor its ancestors were trained on."""
    learnt = [one.dataset_id for one in read_ancestry(warehouse).line(job_id)]
    found = warehouse.query(_NEWEST, {"learnt": learnt, "most": most})
    rewards = {str(one): float(reward) for one, reward in found.select("trajectory_id", "raw_total").iter_rows()}
    documents = warehouse.query(_DOCUMENTS, {"ids": list(rewards)})["document"] if rewards else ()
    return LoggedWork([one for document in documents for one in _parsed(document)], rewards)


def estimate_from_logs(work: LoggedWork, directory: Path | None, *, seed: int) -> OffPolicyEstimate:
    """What the model in `directory` would have earned on the work, or why that cannot be told.

    It decides nothing, so nothing that goes wrong here stops a validation.
    """
    if directory is None:
        return OffPolicyEstimate(
            False, "not available: the candidate is served elsewhere, where nobody can ask for its likelihoods"
        )
    try:
        same_words = _same_words(directory)
        usable, _ = logged_trajectories([one for one in work.trajectories if same_words(one)], work.rewards)
        affordable = _affordable(usable)
        unusable = len(work.rewards) - len(usable)
        return estimate_off_policy(affordable, CheckpointLikelihoods(directory), seed=seed, unusable=unusable)
    except Exception as error:  # noqa: BLE001 - whatever a model does with what others said, the verdict stands
        reason = " ".join(str(error).split())[:300]
        return OffPolicyEstimate(
            False, f"not available: the likelihoods cannot be computed ({type(error).__name__}: {reason})"
        )


def _parsed(document: str) -> Iterator[Trajectory]:
    """The trajectory; none where redaction left less than the contract asks for."""
    try:
        yield validate_trajectory(document, limits=CLAIMED_LIMITS)
    except ContractError:
        return


def _same_words(directory: Path) -> Callable[[Trajectory], bool]:
    """Whether the tokens that were drawn are, for the model in `directory`, the words that were said."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(directory)

    def are_the_same(trajectory: Trajectory) -> bool:
        drawn = [turn.sampling.completion_token_ids or () if turn.sampling else () for turn in trajectory.turns]
        read = [str(tokenizer.decode(list(token_ids), skip_special_tokens=True)) for token_ids in drawn]
        return [text.split() for text in read] == [
            (turn.action.raw_response or "").split() for turn in trajectory.turns
        ]

    return are_the_same


def _affordable(newest_first: Sequence[LoggedTrajectory]) -> list[LoggedTrajectory]:
    """As many of the newest as can be read within `MOST_TOKENS`."""
    spent = accumulate(tokens_to_read(one) for one in newest_first)
    within = takewhile(lambda pair: pair[1] <= MOST_TOKENS, zip(newest_first, spent, strict=True))
    return [one for one, _ in within]
