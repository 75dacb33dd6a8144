"""The port to the tracker: where people follow trainings and find the models that came of them.

A tracker is for looking at. What the pipeline decides by is in the warehouse; a training never waits for its tracker.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal, Protocol

from rl_pipeline.errors import PipelineError

RunOutcome = Literal["completed", "failed", "cancelled", "preempted"]


class TrackerUnavailable(PipelineError):
    """The tracker does not answer: what was asked may or may not have been done, and may be asked again."""


class TrackerRefused(PipelineError):
    """The tracker answered, and refused: asking again does not help."""


@dataclass(frozen=True, slots=True)
class TrackedDataset:
    """The dataset that a run learns from."""

    dataset_id: str
    manifest_hash: str
    url: str
    summary: Mapping[str, float] = field(default_factory=dict)
    """Figures for people, such as how many trajectories there are."""


@dataclass(frozen=True, slots=True)
class RegisteredVersion:
    """A released checkpoint in the registry."""

    model: str
    version: str
    url: str
    """Of the checkpoint."""
    run_id: str
    tags: Mapping[str, str]


class TrackedRun(Protocol):
    """One attempt at a training job. Every method may be repeated and raises `TrackerUnavailable`, `TrackerRefused`."""

    @property
    def run_id(self) -> str:
        """The tracker's own name for the run."""

    @property
    def url(self) -> str | None:
        """The run's page for people; None for a tracker that serves none."""

    def log_parameters(self, parameters: Mapping[str, object]) -> None:
        """What the attempt was started with. A parameter that has a value cannot get another one."""

    def log_metrics(self, points: Sequence[tuple[Mapping[str, float], int, datetime]]) -> None:
        """Points of curves: figures by name, with their step and time. Any number, stored in bulk."""

    def log_dataset(self, dataset: TrackedDataset) -> None:
        """Link the dataset."""

    def set_tags(self, tags: Mapping[str, str]) -> None:
        """Set tags, such as the addresses of what came of the run; earlier values are replaced."""

    def end(self, outcome: RunOutcome) -> None:
        """Close the run. `start_run` opens it again."""


class Tracker(Protocol):
    """Runs and registered models. Every method raises `TrackerUnavailable`, `TrackerRefused`."""

    def start_run(self, job_id: str, attempt: int, tags: Mapping[str, str] | None = None) -> TrackedRun:
        """The run of this attempt: always the same one, however often it is started, by one process at a time."""

    def end_run(self, job_id: str, attempt: int, outcome: RunOutcome) -> None:
        """Close the run of this attempt, whoever has started it; nothing where nobody has. May be repeated."""

    def register(self, model: str, url: str, run_id: str, tags: Mapping[str, str] | None = None) -> RegisteredVersion:
        """The version of `model` that is the checkpoint at `url`; made once for each run and address."""

    def set_alias(self, version: RegisteredVersion, alias: str) -> None:
        """Let `alias` (`candidate`, `shadow` …) mean this version and no other of its model."""

    def find_alias(self, model: str, alias: str) -> RegisteredVersion | None:
        """The version that the alias means, or None."""

    def remove_alias(self, model: str, alias: str, url: str) -> None:
        """Let `alias` mean nothing if it means the checkpoint at `url`. May be repeated."""
