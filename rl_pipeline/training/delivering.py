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
_KEYS_OF_MEASURES = {"success": "success_sampled"}
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

    best = _best_so_far(warehouse, finished.plan.base_model, str(finished.result.get("measure")))
    is_best = not job.shadow and _beats(finished.result, best)
    row = {
        "id": f"{job.job_id}/final",
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
    if is_best and best is not None and best["id"] != row["id"]:
        warehouse.execute(_NO_LONGER_BEST, {"id": best["id"]})
    lineage = pl.DataFrame({"checkpoint_id": [row["id"]], "dataset_id": [dataset_id]})
    warehouse.insert("checkpoint_datasets", lineage)


def _best_so_far(warehouse: Warehouse, base_model: str, measure: str) -> dict[str, Any] | None:
    """The best checkpoint from the same base by the same measure, if there is one."""
    found = warehouse.query(
        """
        SELECT id, performance_metrics FROM model_checkpoints FINAL
        WHERE is_best AND base_model = {base:String}
            AND JSONExtractString(performance_metrics, 'measure') = {measure:String}
        """,
        {"base": base_model, "measure": measure},
    )
    return found.row(0, named=True) if found.height else None


def _beats(result: Mapping[str, Any], best: Mapping[str, Any] | None) -> bool:
    """Whether it reaches more than the best did. Losses count the other way round."""
    measure = str(result.get("measure"))
    key = _KEYS_OF_MEASURES.get(measure, measure)
    reached = result["final"].get(key)
    if best is None or reached is None:
        return best is None
    before = json.loads(best["performance_metrics"])["final"].get(key)
    if before is None:
        return True
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
