"""A model that is bad and passed for good: released as if validation had missed it, and taken back by the evidence."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic
from typing import Any

from rl_pipeline.demo.cycle import standing
from rl_pipeline.demo.population import Population
from rl_pipeline.demo.profile import DemoFailed
from rl_pipeline.deployment.limits import REASONS, Metric
from rl_pipeline.deployment.releases import Releases, RolloutPlan
from rl_pipeline.deployment.state import ServedModel
from rl_pipeline.deployment.strategy import ramp
from rl_pipeline.opening import model_objects
from rl_pipeline.stores.jetstream_lease import JetStreamLeases
from rl_pipeline.training.checkpoints.manifest import MANIFEST, SIGNATURE
from rl_pipeline.training.checkpoints.releasing import ReleasedCheckpoint, download_checkpoint, prefix_of, release
from rl_pipeline.training.checkpoints.signing import PublicKeys, SigningKey
from rl_pipeline.training.checkpoints.storage import saving

JOB = "sabotage"
_PATIENCE_SECONDS = 420.0
_NOISE = 3.0
"""In units of each weight's own spread: it answers as fluently as ever, and knows nothing."""
_ROLLED_BACK = """
    SELECT reason, evidence FROM deployment_audit FINAL WHERE event = 'rolled_back' AND model_id = {model:String}
"""


@dataclass(frozen=True, slots=True)
class TakenBack:
    """What came of it."""

    model: str
    reason: str
    evidence: dict[str, Any]
    sessions: int
    """That were played before it was out."""
    seconds: float
    carried_by: Metric | None = None
    """The metric that had proved it worse than the model beside it; None where it was no metric."""


def sabotage(agents: Population) -> TakenBack:
    """Raises `DemoFailed` where it is not taken back."""
    scene = agents.scene
    state = scene.until(scene.state, "nothing is deployed")
    good: ServedModel = state.models[state.serving]
    bad = _release(agents, good, _damaged(agents, good))
    scene.say(f"Somebody sabotages the next model: {bad} is {good.model_id} with its weights drowned in noise.")
    return await_its_end(agents, bad)


def await_its_end(agents: Population, bad: str) -> TakenBack:
    """Agents play on, and their users say what they think, until `bad` is out of service."""
    scene, started = agents.scene, monotonic()
    played, seen = 0, ""
    while True:
        state = scene.until(scene.state, "nothing is deployed")
        if (now := standing(state)) != seen and state.rollout:
            scene.say(f"  {now}")
            seen = now
        if bad in state.retired:
            break
        played += len(agents.play_on())
        if monotonic() - started > _PATIENCE_SECONDS:
            raise DemoFailed(f"{bad} was not taken back after {played} sessions: see `rl-pipeline deployment`")
    [row] = scene.until(lambda: scene.rows(_ROLLED_BACK, model=bad), "the audit does not tell of the rollback")
    agents.tell_opinions()
    seconds, evidence = monotonic() - started, json.loads(row["evidence"])
    metric = next((metric for metric, reason in REASONS.items() if reason == row["reason"]), None)
    scene.say(f"Nobody was asked: {bad} is out again after {seconds:.0f} s, for {row['reason']}.")
    scene.say(f"  {_proof(metric, evidence)}")
    return TakenBack(bad, row["reason"], evidence, played, seconds, metric)


def _proof(metric: Metric | None, evidence: Mapping[str, Any]) -> str:
    """Which metric carried the verdict, and how little or much the others said."""
    others = [
        f"{other} {found['highest']:.3g}" for other, found in evidence.get("e_values", {}).items() if other != metric
    ]
    rest = f"; e-values of the others: {', '.join(others)}" if others else ""
    return f"what proved it: {metric or 'no metric'}, {evidence.get('explanation', 'without a word')}{rest}"


def _damaged(agents: Population, good: ServedModel) -> ReleasedCheckpoint:
    """A signed checkpoint like any other, with weights that know nothing."""
    settings = agents.scene.settings
    objects = model_objects(settings).open()
    keys = PublicKeys.parse(settings.checkpoint_public_keys or "")
    secret = settings.checkpoint_signing_key
    prefix = prefix_of(objects, good.checkpoint_path or "")
    if prefix is None or secret is None:
        raise DemoFailed(f"{good.model_id} is no checkpoint of this stack: run at least one cycle first")
    with TemporaryDirectory() as directory:
        whole, bad = Path(directory, "good"), Path(directory, "bad")
        download_checkpoint(objects, prefix, whole, keys, good.manifest_sha256)
        with saving(bad, {"job_id": JOB, "step": 0, "created": datetime.now(UTC)}) as staging:
            for file in whole.iterdir():
                if file.name == "model.safetensors":
                    _drown(file, staging / file.name, agents.profile.seed)
                elif file.is_file() and file.name not in (MANIFEST, SIGNATURE):
                    (staging / file.name).write_bytes(file.read_bytes())
        return release(bad, objects, f"{JOB}-{agents.profile.seed}/final", SigningKey.parse(secret.get_secret_value()))


def _drown(weights: Path, damaged: Path, seed: int) -> None:
    import numpy as np
    from safetensors.numpy import load_file, save_file

    randomness = np.random.default_rng(seed)
    drowned = {
        name: (values + randomness.normal(0, _NOISE * float(values.std()), values.shape)).astype(values.dtype)
        for name, values in load_file(weights).items()
    }
    save_file(drowned, damaged, metadata={"format": "pt"})


def _release(agents: Population, good: ServedModel, checkpoint: ReleasedCheckpoint) -> str:
    """Past validation, which would have refused it: so that it is the rollout's turn to notice."""
    scene, settings = agents.scene, agents.scene.settings
    first, second, third = settings.step_samples
    released = Releases(scene.tables).release(
        JetStreamLeases(scene.stream),
        training_job_id=JOB,
        base_model=good.base_model,
        checkpoint_path=checkpoint.url,
        manifest_sha256=checkpoint.manifest_sha256,
        plan=RolloutPlan(
            strategy="canary",
            steps=ramp("canary", settings.canary_initial_traffic, settings.canary_ramp_hours, (first, second, third)),
            bake_seconds=settings.canary_bake_hours * 3600,
            explanation="sabotage, as if validation had let it through",
            measured_against=good.model_id,
        ),
        validation={"benchmark_passed": True, "safety_checks_passed": True, "performance_regression": False},
        needs_approval=False,
        shadow=False,
        now=datetime.now(UTC),
        endpoint=None,
    )
    return released.model.model_id
