"""What the candidate would have earned on logged work, estimated from how likely it would have said the same.

Each logged trajectory weighs w = P(candidate says it) / P(it was said), from the log-probabilities of its tokens. The
self-normalised estimate is sum(w r) / sum(w); the doubly robust one predicts each reward by the mean of the other
attempts at its task, and weighs only what the prediction misses: mean(q) + sum(w (r - q)) / sum(w). The interval comes
from resampling tasks. How many trajectories still count is the effective sample size (sum w)^2 / sum(w^2): the further
the candidate has moved, the fewer. The estimate is reported beside the verdict and never decides.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from rl_pipeline.contracts.trajectory import Sampling, Trajectory

FEWEST_EFFECTIVE = 30.0
_RESAMPLES = 1000
_CHUNK = 100

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class LoggedTrajectory:
    """What was said, how likely it was then, and what it earned."""

    task: str
    """Attempts at the same task are resampled together."""
    reward: float
    turns: Sequence[Sampling]
    """All with tokens and their log-probabilities."""
    temperature: float

    @property
    def log_likelihood(self) -> float:
        """Of everything that was said, by the model that said it."""
        return sum(sum(turn.logprobs or ()) for turn in self.turns)


class Likelihoods(Protocol):
    """A model that can be asked how likely it would have said something."""

    def log_likelihoods(self, trajectories: Sequence[LoggedTrajectory]) -> list[float]:
        """Of everything that was said in each trajectory, at the temperature that it was said with."""
        ...


@dataclass(frozen=True)
class OffPolicyEstimate:
    """The candidate's reward on logged work, or why it cannot be told."""

    available: bool
    reason: str
    trajectories: int = 0
    effective_sample_size: float = 0.0
    logged_mean: float | None = None
    self_normalised: float | None = None
    doubly_robust: float | None = None
    interval: tuple[float, float] | None = None
    """95 %, of the doubly robust estimate."""


def logged_trajectories(
    trajectories: Sequence[Trajectory], rewards: Mapping[str, float]
) -> tuple[list[LoggedTrajectory], int]:
    """Those that an estimate can use, and how many it cannot: without tokens or log-probabilities, or unrewarded."""
    usable = []
    for trajectory in trajectories:
        turns = [turn.sampling for turn in trajectory.turns if turn.sampling is not None]
        complete = len(turns) == len(trajectory.turns) and all(_is_complete(turn) for turn in turns)
        reward = rewards.get(str(trajectory.trajectory_id))
        temperature = trajectory.metadata.temperature
        if complete and reward is not None and temperature:
            task = trajectory.task_context.task_id or str(trajectory.trajectory_id)
            usable.append(LoggedTrajectory(task, reward, turns, temperature))
    return usable, len(trajectories) - len(usable)


def estimate_off_policy(
    logged: Sequence[LoggedTrajectory], candidate: Likelihoods, *, seed: int, unusable: int = 0
) -> OffPolicyEstimate:
    """The estimate, with its interval; the same arguments give the same one."""
    if len(logged) < FEWEST_EFFECTIVE:
        return OffPolicyEstimate(
            False,
            f"not available: {len(logged)} of {len(logged) + unusable} logged trajectories have a reward and the "
            f"log-probabilities of all their tokens, and an estimate takes {FEWEST_EFFECTIVE:.0f}",
        )
    rewards = np.asarray([one.reward for one in logged])
    ratios = np.asarray(candidate.log_likelihoods(logged)) - np.asarray([one.log_likelihood for one in logged])
    if not np.isfinite(ratios).all():
        return OffPolicyEstimate(False, "not available: the candidate gives likelihoods that are no numbers")
    weights = np.exp(ratios - ratios.max())
    names, task_of = np.unique([one.task for one in logged], return_inverse=True)
    predicted = _leave_one_out(rewards, task_of)
    effective = float(weights.sum() ** 2 / np.sum(weights**2))
    columns = np.stack([weights, weights * (rewards - predicted), predicted, np.ones(len(logged))])
    drawn = _resampled(columns, task_of, len(names), np.random.default_rng(seed))
    reliable = effective >= FEWEST_EFFECTIVE
    return OffPolicyEstimate(
        available=True,
        reason="" if reliable else f"weak: only {effective:.1f} trajectories count, the candidate has moved far away",
        trajectories=len(logged),
        effective_sample_size=effective,
        logged_mean=float(rewards.mean()),
        self_normalised=float(np.average(rewards, weights=weights)),
        doubly_robust=float(predicted.mean() + np.average(rewards - predicted, weights=weights)),
        interval=(float(np.quantile(drawn, 0.025)), float(np.quantile(drawn, 0.975))),
    )


def _is_complete(turn: Sampling) -> bool:
    written, logprobs = turn.completion_token_ids, turn.logprobs
    return bool(turn.prompt_token_ids and written and logprobs) and len(written or ()) == len(logprobs or ())


def _leave_one_out(rewards: Floats, task_of: NDArray[np.intp]) -> Floats:
    """The mean reward of the other attempts at the same task; of all others where there is none."""
    sums, counts = np.bincount(task_of, weights=rewards), np.bincount(task_of)
    others = counts[task_of] - 1
    overall = (rewards.sum() - rewards) / max(len(rewards) - 1, 1)
    within = (sums[task_of] - rewards) / np.maximum(others, 1)
    predicted: Floats = np.where(others > 0, within, overall)
    return predicted


def _resampled(columns: Floats, task_of: NDArray[np.intp], tasks: int, randomness: np.random.Generator) -> Floats:
    """The doubly robust estimate of samples of tasks, drawn with replacement.

    `columns` are the weights, what was weighed of the predictions' misses, the predictions, and ones.
    """
    sums = np.stack([np.bincount(task_of, weights=column, minlength=tasks) for column in columns])
    found = []
    for _ in range(0, _RESAMPLES, _CHUNK):
        times = randomness.multinomial(tasks, np.full(tasks, 1 / tasks), size=_CHUNK)
        weight, missed, prediction, count = sums @ times.T
        found.append(prediction / count + missed / np.maximum(weight, np.finfo(float).tiny))
    return np.concatenate(found)
