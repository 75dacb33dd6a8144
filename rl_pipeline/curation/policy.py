"""What a training request asks of its dataset, and what the deployment decides: all that a curation depends on.

A request's filter is an open object; beside the fields of the contract curation reads from it:

- `literal_filter` (true): `min_reward` and nothing below it, whatever the algorithm;
- `pair_margin` (0 to 1): by how much the better side of a pair must have earned more;
- `normalised_reward` (true): compare normalised rewards instead of raw ones;
- `source_share`, `user_share` (0 to 1): the most that one publisher or one user may have of the dataset.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from rl_pipeline.contracts.training_request import Algorithm, DatasetFilter, TrainingRequest
from rl_pipeline.environments.worlds import WORLDS, Worlds
from rl_pipeline.errors import PipelineError

DEFAULT_STREAM = "RL_TRAJECTORIES"
# The warehouse knows no moment before 1900.
_MOST_DAYS = 36_500


class InvalidFilter(PipelineError):
    """The filter of a request asks for something that cannot be."""


@dataclass(frozen=True)
class CurationPolicy:
    """How this deployment curates. Everything but the last three is part of a dataset's hash."""

    seed: int = 0
    pair_margin: float = 0.1
    """By how much the better side of a pair must have earned more, where the request does not say."""
    pairs_per_task: int = 4
    pairs_per_trajectory: int = 2
    enough_pairs: int = 100
    """Where attempts at one request give fewer, a model of the rewards also learns from pairs of different requests: a
    fifth of so many is enough to judge it by."""
    attempts_per_task: int = 16
    """Of one task no more attempts are kept for the online algorithms."""
    source_share: float = 0.5
    """The most that one publisher may have of a dataset, or an equal share where there are too few for that."""
    user_share: float = 0.1
    """The same for one user."""
    longest_observation: int = 16_000
    """Characters after which the middle of what the agent was shown is left out; what it wrote is never cut."""
    allowed: frozenset[str] = field(default=frozenset(), repr=False)
    """Values that are not sensitive here, as the redaction policy has them."""
    tolerated: frozenset[str] = frozenset()
    """Kinds of value that redaction leaves alone here."""
    worlds: Worlds = field(default=WORLDS, repr=False)
    """In which tasks can be played here."""

    def hashed(self) -> dict[str, Any]:
        """What becomes part of the manifest."""
        return {name: value for name, value in vars(self).items() if name not in ("allowed", "tolerated", "worlds")}


@dataclass(frozen=True)
class Criteria:
    """Which trajectories one dataset may have, and how they are chosen among."""

    job_id: str
    algorithm: Algorithm
    source: str
    stream: str
    watermark: int
    """The last stream sequence that counts."""
    start: datetime | None
    end: datetime | None
    longest: int
    """Turns."""
    domains: tuple[str, ...]
    """Only these; all if there is none."""
    shares: Mapping[str, float]
    """Of each domain, as they were asked for; none if all are to have the same."""
    excluded_profiles: tuple[str, ...]
    least_reward: float | None
    normalised: bool
    sample_size: int
    holdout: float
    pair_margin: float
    source_share: float | None
    """What the policy says, unless it is asked for."""
    user_share: float | None

    @property
    def is_imported(self) -> bool:
        """Whether the dataset is made of what files have brought, and of nothing else."""
        return self.source in ("s3", "local")

    def hashed(self) -> dict[str, Any]:
        """What becomes part of the manifest: everything but the name of the job."""
        told = {name: value for name, value in vars(self).items() if name != "job_id"}
        moments = {name: told[name] and told[name].isoformat() for name in ("start", "end")}
        return told | moments | {"shares": dict(sorted(self.shares.items()))}


def criteria_of(
    request: TrainingRequest,
    *,
    job_id: str,
    accepted_at: datetime,
    algorithm: Algorithm,
    watermark: int,
    policy: CurationPolicy,
) -> Criteria:
    """What the request asks for.

    `min_reward` is for what is imitated: pairs need a worse side and groups need variance, so only SFT obeys it without
    being told to. Trajectories are dated by when the stream stored them, except those that files have brought: they are
    dated by when they ended, and no window shuts them out unless the request says one. The last days end when the
    request was accepted: its own time is what a stranger's clock, or an example that was copied, has made of it.
    """
    dataset = request.training_config.dataset
    asked = dataset.filter
    options = _Options(asked)
    imported = dataset.source in ("s3", "local")
    start, end = _window(asked, accepted_at, imported=imported)
    shares = _shares(asked)
    literal = options.flag("literal_filter") or algorithm == "sft"
    return Criteria(
        job_id=job_id,
        algorithm=algorithm,
        source=dataset.source,
        stream=dataset.stream_name or DEFAULT_STREAM,
        watermark=watermark,
        start=start,
        end=end,
        longest=asked.max_trajectory_length,
        domains=_domains(asked, shares),
        shares=shares,
        excluded_profiles=tuple(sorted(set(asked.exclude_subordinate_profiles or ()))),
        least_reward=asked.min_reward if literal else None,
        normalised=options.flag("normalised_reward"),
        sample_size=dataset.sample_size,
        holdout=request.evaluation.holdout_size if request.evaluation.enabled else 0.0,
        pair_margin=options.share("pair_margin") or policy.pair_margin,
        source_share=options.share("source_share"),
        user_share=options.share("user_share"),
    )


def _window(asked: DatasetFilter, accepted_at: datetime, *, imported: bool) -> tuple[datetime | None, datetime | None]:
    if asked.date_range is not None:
        return asked.date_range.start, asked.date_range.end
    if imported and "last_days" not in asked.model_fields_set:
        return None, None
    if asked.last_days > _MOST_DAYS:
        raise InvalidFilter(f"last_days is at most {_MOST_DAYS:,}: correct it, or say a date_range")
    # What came after the request is bounded by the watermark.
    return accepted_at - timedelta(days=asked.last_days), None


def _shares(asked: DatasetFilter) -> dict[str, float]:
    if asked.domain_shares is None:
        return {}
    shares = {domain: share for domain, share in asked.domain_shares.items() if share > 0}
    if asked.task_domains is not None:
        shares = {domain: share for domain, share in shares.items() if domain in asked.task_domains}
    if not shares:
        raise InvalidFilter("domain_shares leaves no domain: give one of the task_domains a share above 0")
    return dict(sorted(shares.items()))


def _domains(asked: DatasetFilter, shares: Mapping[str, float]) -> tuple[str, ...]:
    if shares:
        return tuple(sorted(shares))
    if asked.task_domains is not None and not asked.task_domains:
        raise InvalidFilter("task_domains names no domain: name some, or leave it out for all of them")
    return tuple(sorted(set(asked.task_domains or ())))


class _Options:
    """The fields of the filter that the contract leaves open."""

    def __init__(self, asked: DatasetFilter) -> None:
        self._values = asked.model_extra or {}

    def flag(self, name: str) -> bool:
        value = self._values.get(name)
        if value is not None and not isinstance(value, bool):
            raise InvalidFilter(f"{name} in the dataset's filter is true or false: correct it, or leave it out")
        return bool(value)

    def share(self, name: str) -> float | None:
        value = self._values.get(name)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= 1:
            raise InvalidFilter(f"{name} in the dataset's filter is above 0 and at most 1: correct it, or leave it out")
        return float(value)
