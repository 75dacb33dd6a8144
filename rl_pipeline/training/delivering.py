"""From a finished training to a checkpoint that others may use: described, signed, stored, recorded, registered."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rl_pipeline.errors import PipelineError
from rl_pipeline.stores.objects import Objects
from rl_pipeline.stores.tracker import Tracker, TrackerRefused, TrackerUnavailable
from rl_pipeline.stores.warehouse import Warehouse
from rl_pipeline.training.attempting import FinishedTraining
from rl_pipeline.training.checkpoints import amend
from rl_pipeline.training.curves import draw_curves
from rl_pipeline.training.jobs import Job
from rl_pipeline.training.model_card import MODEL_CARD, CardDataset, model_card
from rl_pipeline.training.releasing import ReleasedCheckpoint, release
from rl_pipeline.training.signing import SigningKey
from rl_pipeline.training.site import TrainingSite

CURVES = "curves.png"
AGENT = "agent-zero-rl"
"""The model under which the checkpoints of this pipeline are registered."""


_KEPT_OF_RESULT = ("measure", "improvement", "base", "final")
_KEYS_OF_MEASURES = {"success": "success_sampled", "reward": "reward_mean"}
_NO_LONGER_BEST = """
    INSERT INTO model_checkpoints SELECT * REPLACE (false AS is_best, version + 1 AS version)
    FROM model_checkpoints FINAL WHERE id = {id:String}
"""


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
    """Put the model card, the plan and the curves beside the weights; the picture of the curves is returned."""
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
    return release(finished.work.final, models, f"{job.job_id}/final", key)


def record(
    warehouse: Warehouse, finished: FinishedTraining, job: Job, dataset_id: str, released: ReleasedCheckpoint
) -> None:
    """Write the checkpoint and its lineage down. May be repeated: a checkpoint has one row."""
    import polars as pl

    checkpoint_id = f"{job.job_id}/final"
    others = _best_others(warehouse, checkpoint_id, finished.plan.base_model, finished.result.get("measure"))
    is_best = not job.shadow and all(_beats(finished.result, metrics) for metrics in [{}, *others.values()])
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


def _best_others(warehouse: Warehouse, own: str, base_model: str, measure: str | None) -> dict[str, dict[str, Any]]:
    """The figures of the best checkpoint from the same base by the same measure, by its id, if there is one.

    There are two after a kill between the two changes that make another the best.
    """
    found = warehouse.query(
        """
        SELECT id, performance_metrics FROM model_checkpoints FINAL
        WHERE is_best AND id != {own:String} AND base_model = {base:String}
            AND JSONExtractString(performance_metrics, 'measure') = {measure:String}
        """,
        {"own": own, "base": base_model, "measure": measure or ""},
    )
    return {row["id"]: json.loads(row["performance_metrics"])["final"] for row in found.iter_rows(named=True)}


def _beats(result: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether it was measured and reaches more than the other did. Losses count the other way round."""
    measure = result.get("measure")
    key = _KEYS_OF_MEASURES.get(str(measure), str(measure))
    reached, before = result["final"].get(key), other.get(key)
    if reached is None or before is None:
        return reached is not None
    return bool(reached < before) if measure == "holdout_loss" else bool(reached > before)


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
        tracker.set_alias(version, "shadow" if job.shadow else "candidate")
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
