"""Everything that is stored about one trajectory: what was done, what it earned and why, and what learnt from it."""

import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from rl_pipeline.errors import PipelineError
from rl_pipeline.ingestion.ancestry import read_ancestry
from rl_pipeline.stores.warehouse import Warehouse

Row = dict[str, Any]

_STORED = """
    SELECT *, (trajectory_id, version) IN (SELECT trajectory_id, version FROM suspicious_trajectories) AS suspicious
    FROM trajectories FINAL WHERE trajectory_id = {id:String}
"""
_REWARD = "SELECT * FROM trajectory_rewards WHERE trajectory_id = {id:String}"
_REVISIONS = """
    SELECT configuration, revision, raw_total, total, scored_at FROM rewards FINAL
    WHERE trajectory_id = {id:String} ORDER BY scored_at, configuration, revision
"""
_FEEDBACK = """
    SELECT kind, rating, text, user, turn_id, channel, given_at, heard_at FROM trajectory_feedback FINAL
    WHERE trajectory_id = {id:String} AND verdict = 'accepted' ORDER BY heard_at, sequence
"""
_DATASETS = """
    SELECT dataset_id, groupArray(role) AS roles, any(split) AS split, any(raw_total) AS raw_total,
        any(reward_revision) AS reward_revision, any(datasets.algorithm) AS algorithm,
        any(datasets.trajectories) AS trajectories, any(datasets.created_at) AS created_at
    FROM (SELECT * FROM dataset_provenance FINAL WHERE trajectory_id = {id:String} ORDER BY dataset_id, role) AS used
    LEFT JOIN (SELECT * FROM datasets FINAL) AS datasets USING dataset_id
    GROUP BY dataset_id ORDER BY created_at, dataset_id
"""
_CHECKPOINTS = """
    SELECT checkpoint.id AS id, checkpoint.dataset_id AS dataset_id, checkpoint.algorithm AS algorithm,
        checkpoint.base_model AS base_model, checkpoint.job_id AS job_id, checkpoint.attempt AS attempt,
        checkpoint.checkpoint_path AS checkpoint_path, checkpoint.deployed AS deployed,
        checkpoint.created_at AS created_at, release.model_id AS model_id
    FROM (SELECT * FROM model_checkpoints FINAL WHERE id IN {ids:Array(String)}) AS checkpoint
    LEFT JOIN (SELECT training_job_id, model_id FROM model_releases FINAL) AS release
        ON release.training_job_id = checkpoint.job_id
    ORDER BY created_at, id
"""


class NoTrace(PipelineError):
    """There is no such trajectory, or none that may be shown."""


@dataclass(frozen=True)
class Component:
    """One term of a reward."""

    name: str
    score: float
    units: int
    """The score on [0, 1], in parts of 2^20."""
    normalised: float
    weight: float
    compared_with: int
    """Earlier scores."""
    evidence: str


@dataclass(frozen=True)
class Trace:
    """A trajectory, and what became of it. Rows are as their tables have them."""

    document: Row
    """The redacted message."""
    stored: Row
    """The row of the trajectory, without the document."""
    reward: Row | None
    """As it stands."""
    revisions: Sequence[Row]
    """All rewards that it ever had, in the order in which they were computed."""
    feedback: Sequence[Row]
    """That was given after it was published."""
    datasets: Sequence[Row]
    checkpoints: Sequence[Row]
    """That learnt from those datasets, and all that were trained from them, which have learnt it too: `directly` tells
    them apart."""

    @property
    def turns(self) -> list[Row]:
        """Its turns, in order."""
        return list(self.document["turns"])

    @property
    def turn_rewards(self) -> list[float | None]:
        """The shaped reward of each turn; None where there is none."""
        given: list[float] = self.reward["turn_rewards"] if self.reward else []
        return [given[place] if place < len(given) else None for place in range(len(self.turns))]

    @property
    def components(self) -> list[Component]:
        """Of its reward."""
        if self.reward is None:
            return []
        lists = ("terms", "scores", "units", "normalised", "weights", "counts", "evidences")
        return [Component(*fields) for fields in zip(*(self.reward[name] for name in lists), strict=True)]

    @property
    def credits(self) -> dict[str, float]:
        """Of each agent."""
        return dict(zip(self.reward["agents"], self.reward["credits"], strict=True)) if self.reward else {}

    @property
    def redactions(self) -> dict[str, int]:
        """How often each rule of redaction has replaced something."""
        return dict(zip(self.stored["redaction_rules"], self.stored["redaction_counts"], strict=True))


def trace_of(warehouse: Warehouse, trajectory_id: str) -> Trace:
    """What is stored about the trajectory. Raises `NoTrace`, also where a check found something left to redact in it:
    that stays where it is."""
    asked = {"id": trajectory_id}
    stored = _rows(warehouse, _STORED, asked)
    if not stored:
        raise NoTrace(
            f"no trajectory {trajectory_id[:200]!r} is stored: it may be refused (rl-pipeline dead-letters list), "
            "archived (rl-pipeline archive restore its day), or erased"
        )
    row = stored[0]
    if row.pop("suspicious"):
        raise NoTrace(
            f"a check found something that should be redacted in {trajectory_id[:200]!r}: correct the rules, backfill "
            "its day of redacted_trajectories, and show it then"
        )
    rewards = _rows(warehouse, _REWARD, asked)
    datasets = _rows(warehouse, _DATASETS, asked)
    return Trace(
        document=json.loads(row.pop("document")),
        stored=row,
        reward=rewards[0] if rewards else None,
        revisions=_rows(warehouse, _REVISIONS, asked),
        feedback=_rows(warehouse, _FEEDBACK, asked),
        datasets=datasets,
        checkpoints=_checkpoints(warehouse, {one["dataset_id"] for one in datasets}),
    )


def _checkpoints(warehouse: Warehouse, dataset_ids: Collection[str]) -> list[Row]:
    """What learnt from these datasets, and all that descends from it."""
    ancestry = read_ancestry(warehouse)
    learnt = {one.id for one in ancestry.checkpoints if one.dataset_id in dataset_ids}
    rows = _rows(warehouse, _CHECKPOINTS, {"ids": sorted(ancestry.with_descendants(learnt))})
    return [{**row, "directly": row["id"] in learnt} for row in rows]


def _rows(warehouse: Warehouse, sql: str, parameters: dict[str, Any]) -> list[Row]:
    return list(warehouse.query(sql, parameters).iter_rows(named=True))
