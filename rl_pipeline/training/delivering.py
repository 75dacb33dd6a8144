"""From a finished training to a checkpoint that others may use: described, signed, stored, recorded, registered."""

import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from rl_pipeline.errors import PipelineError
from rl_pipeline.stores.objects import Objects
from rl_pipeline.stores.tracker import Tracker, TrackerRefused, TrackerUnavailable
from rl_pipeline.stores.warehouse import Warehouse
from rl_pipeline.training.attempting import FinishedTraining
from rl_pipeline.training.checkpoints.curves import draw_curves
from rl_pipeline.training.checkpoints.manifest import MANIFEST, parse_manifest
from rl_pipeline.training.checkpoints.model_card import MODEL_CARD, CardDataset, model_card
from rl_pipeline.training.checkpoints.releasing import ReleasedCheckpoint, delete_released, release
from rl_pipeline.training.checkpoints.signing import SigningKey
from rl_pipeline.training.checkpoints.storage import amend
from rl_pipeline.training.jobs.job import Job
from rl_pipeline.training.jobs.rows import attempts_of, chosen_jobs
from rl_pipeline.training.site import TrainingSite

CURVES = "curves.png"
AGENT = "agent-zero-rl"
"""The model under which the checkpoints of this pipeline are registered."""


# It is looked for every night.
_ABANDONED_FOR = timedelta(days=30)
_MOST_ABANDONED = 10_000
_KEPT_OF_RESULT = ("measure", "improvement", "base", "final")
_NO_LONGER_BEST = """
    INSERT INTO model_checkpoints SELECT * REPLACE (false AS is_best, version + 1 AS version)
    FROM model_checkpoints FINAL WHERE id = {id:String}
"""
_WITHDRAWN = """
    INSERT INTO model_checkpoints
    SELECT * REPLACE (false AS is_best, {now:DateTime64(3, 'UTC')} AS pruned_at, version + 1 AS version)
    FROM model_checkpoints FINAL WHERE id = {id:String}
"""
# Of those from the same base by the same measure. Of equals the one that is marked stays it.
_BEST_OF_THE_OTHERS = """
    INSERT INTO model_checkpoints SELECT * REPLACE (true AS is_best, version + 1 AS version)
    FROM model_checkpoints FINAL WHERE id IN (
        SELECT id FROM model_checkpoints FINAL
        WHERE id != {id:String} AND NOT shadow AND pruned_at IS NULL
            AND JSONExtract(performance_metrics, 'improvement', 'Nullable(Float64)') > 0
            AND (base_model, JSONExtractString(performance_metrics, 'measure')) IN (
                SELECT base_model, JSONExtractString(performance_metrics, 'measure')
                FROM model_checkpoints FINAL WHERE id = {id:String}
            )
        ORDER BY JSONExtractFloat(performance_metrics, 'improvement') DESC, is_best DESC, created_at LIMIT 1
    )
"""

_log = logging.getLogger(__name__)


class NobodySigns(PipelineError):
    """There is no key to sign checkpoints with."""


@dataclass(frozen=True)
class Registration:
    """Where people find a checkpoint."""

    version: str | None
    run_url: str | None
    note: str = ""
    """Why it is not registered."""


def describe(finished: FinishedTraining, dataset: CardDataset, lineage: Mapping[str, str | None]) -> bytes:
    """Put the model card, the plan and the curves beside the weights; the picture of the curves is returned.

    What has them keeps them. An attempt before may have stored it so, and meanwhile somebody may have been erased from
    the dataset, or the card may be written otherwise: with another card it would be another checkpoint.
    """
    if MODEL_CARD in parse_manifest((finished.work.final / MANIFEST).read_bytes(), finished.work.final).files:
        return (finished.work.final / CURVES).read_bytes()
    result = finished.result
    curves = draw_curves(result.get("curves") or {})
    card = model_card(finished.plan, dataset, result, lineage)
    plan = finished.plan.model_dump_json(indent=2)
    amend(finished.work.final, {MODEL_CARD: card.encode(), CURVES: curves, "training_plan.json": plan.encode()})
    return curves


def store(finished: FinishedTraining, job: Job, models: Objects, key: SigningKey | None) -> ReleasedCheckpoint:
    """Verify, sign and upload the model of a finished training. May be repeated. Raises `NobodySigns`."""
    if key is None:
        raise NobodySigns("no key signs checkpoints: put <key id>:<private key> into CHECKPOINT_SIGNING_KEY")
    return release(finished.work.final, models, _released_at(job), key)


def make_room(warehouse: Warehouse, models: Objects, job: Job) -> None:
    """Remove what an attempt before has stored and nobody has recorded: what was trained anew is another model."""
    checkpoint_id = _released_at(job)
    if warehouse.query(
        "SELECT id FROM model_checkpoints FINAL WHERE id = {id:String}", {"id": checkpoint_id}
    ).is_empty():
        delete_released(models, checkpoint_id)


def withdraw(warehouse: Warehouse, models: Objects, tracker: Tracker, job: Job, now: datetime) -> None:
    """Take back what was stored of a job that was cancelled meanwhile, or has failed for good. May be repeated.

    The best that it may have beaten is the best again, and the registry names it no more: nobody is the candidate.
    """
    checkpoint_id = _released_at(job)
    delete_released(models, checkpoint_id)
    warehouse.execute(_WITHDRAWN, {"id": checkpoint_id, "now": now})
    warehouse.execute(_BEST_OF_THE_OTHERS, {"id": checkpoint_id})
    try:
        tracker.remove_alias(AGENT, _alias(job), models.url(checkpoint_id))
    except (TrackerUnavailable, TrackerRefused) as refused:
        _log.warning("%s was withdrawn, and the registry may still name it: %s", checkpoint_id, refused)


def has_stored(models: Objects, job: Job) -> bool:
    """Whether anything of a checkpoint of the job is in the store."""
    return any(True for _ in models.list(f"{_released_at(job)}/"))


def withdraw_abandoned(warehouse: Warehouse, models: Objects, tracker: Tracker, now: datetime) -> tuple[str, ...]:
    """Withdraw what is stored of jobs that failed or were cancelled; the ids of these jobs. May be repeated.

    Their own runs do that, unless they were killed or a store was away. Nobody else looks for what no row tells of.
    """
    ended = chosen_jobs(warehouse, states=["failed", "cancelled"], since=now - _ABANDONED_FOR, limit=_MOST_ABANDONED)
    attempts = attempts_of(warehouse, [job.job_id for job in ended])
    deployed = set(warehouse.query("SELECT job_id FROM model_checkpoints FINAL WHERE deployed")["job_id"])
    abandoned = [
        job
        for job in ended
        if job.job_id not in deployed
        and not any(attempt.is_open for attempt in attempts[job.job_id])
        and has_stored(models, job)
    ]
    for job in abandoned:
        withdraw(warehouse, models, tracker, job, now)
    return tuple(job.job_id for job in abandoned)


def record(
    warehouse: Warehouse, finished: FinishedTraining, job: Job, dataset_id: str, released: ReleasedCheckpoint
) -> None:
    """Write the checkpoint and its lineage down. May be repeated: a checkpoint has one row."""
    import polars as pl

    checkpoint_id = _released_at(job)
    others = _best_others(warehouse, checkpoint_id, finished.plan.base_model, finished.result.get("measure"))
    gain = finished.result.get("improvement")
    is_best = not job.shadow and gain is not None and gain > 0 and all(gain > other for other in others.values())
    row = {
        "id": checkpoint_id,
        "agent_id": AGENT,
        "checkpoint_path": released.url,
        "performance_metrics": json.dumps({name: finished.result.get(name) for name in _KEPT_OF_RESULT}),
        "training_iteration": int(finished.result["steps"]),
        "created_at": released.manifest.meta.created,
        "job_id": job.job_id,
        "attempt": finished.plan.attempt,
        "dataset_id": dataset_id,
        "base_model": finished.plan.base_model,
        "algorithm": finished.plan.algorithm,
        "manifest_sha256": released.manifest_sha256,
        "key_id": released.key_id,
        "is_best": is_best,
        "deployed": False,
        "shadow": job.shadow,
        "version": 1,
    }
    warehouse.insert("model_checkpoints", pl.DataFrame([row]))
    for beaten in others if is_best else ():
        warehouse.execute(_NO_LONGER_BEST, {"id": beaten})
    lineage = pl.DataFrame({"checkpoint_id": [checkpoint_id], "dataset_id": [dataset_id]})
    warehouse.insert("checkpoint_datasets", lineage)


def _released_at(job: Job) -> str:
    """The prefix of its checkpoint in the store of models, which is the checkpoint's id too."""
    return f"{job.job_id}/final"


def _alias(job: Job) -> str:
    """By which people find the newest checkpoint of its kind."""
    return "shadow" if job.shadow else "candidate"


def _best_others(warehouse: Warehouse, own: str, base_model: str, measure: str | None) -> dict[str, float]:
    """What the best checkpoint from the same base by the same measure gained over it, by its id, if there is one.

    Gains are compared, not what was reached: each job has held-out tasks of its own, each reward model its own zero.
    There are two after a kill between the two changes that make another the best.
    """
    found = warehouse.query(
        """
        SELECT id, JSONExtractFloat(performance_metrics, 'improvement') AS gain FROM model_checkpoints FINAL
        WHERE is_best AND id != {own:String} AND base_model = {base:String}
            AND JSONExtractString(performance_metrics, 'measure') = {measure:String}
        """,
        {"own": own, "base": base_model, "measure": measure or ""},
    )
    return dict(found.iter_rows())


def register(
    tracker: Tracker, finished: FinishedTraining, job: Job, dataset_id: str, released: ReleasedCheckpoint
) -> Registration:
    """Enter the checkpoint into the registry. A tracker that does not answer holds up no checkpoint."""
    tags = {
        "training_job_id": job.job_id,
        "dataset": dataset_id,
        "manifest_sha256": released.manifest_sha256,
        "key_id": released.key_id,
    }
    try:
        run = tracker.start_run(job.job_id, finished.plan.attempt)
        run.set_tags({"checkpoint": released.url, **tags})
        version = tracker.register(AGENT, released.url, run.run_id, tags)
        tracker.set_alias(version, _alias(job))
        run.end("completed")
    except (TrackerUnavailable, TrackerRefused) as refused:
        return Registration(None, None, f"not registered: {refused}")
    return Registration(version.version, run.url)


def result_of(
    finished: FinishedTraining, released: ReleasedCheckpoint, site: TrainingSite, samples: int
) -> dict[str, Any]:
    """What is kept of a completed attempt: the program's own result, and the parts that its status message has."""
    result: Mapping[str, Any] = finished.result
    seconds = float(result["seconds"])
    plan = finished.plan
    hours = plan.distribution.processes * seconds / 3600
    return {
        **result,
        "samples": samples,
        "artifacts": {
            "final_checkpoint": released.url,
            "model_card": f"{released.url}/{MODEL_CARD}",
            "training_curves": f"{released.url}/{CURVES}",
        },
        "resource_usage": {
            **({"gpu_hours": hours} if plan.distribution.device == "cuda" else {"cpu_hours": hours}),
            "cost_usd": site.cost_usd(plan, seconds),
            "peak_memory_gb": result.get("peak_memory_gb"),
            "total_training_time_seconds": seconds,
        },
        "evaluation_results": {
            "holdout_reward": result["final"].get("reward_mean"),
            "benchmark_scores": {name: value for name, value in result["final"].items() if value is not None},
            "improvement_over_baseline": result.get("improvement"),
        },
    }
