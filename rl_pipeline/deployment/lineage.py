"""From a served answer back to all that it came from: model, checkpoint, training, dataset, trajectories, rewards, and
the trainings before, where a model was trained from another.

An answer's id names the model and the generation under which it was given (`chatcmpl-<generation>-<model>-<random>`),
so it needs no table of answers. A session, a trajectory or a model is looked up.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rl_pipeline.errors import PipelineError
from rl_pipeline.ingestion.ancestry import read_ancestry
from rl_pipeline.redaction.policy import RedactionKey
from rl_pipeline.redaction.session_names import stored_names
from rl_pipeline.stores.warehouse import Warehouse

SAMPLE = 10
"""Trajectories that are named."""

# Generations have 64 bits.
_ANSWER = re.compile(r"chatcmpl-(?P<generation>\d{1,19})-(?P<model>.+)-[^-]+")

_FOUND_BY = """
    SELECT model_id, generation, session_id, trajectory_id FROM (
        SELECT 1 AS place, model_version AS model_id, toUInt64(0) AS generation, session_id, trajectory_id, stream_time
        FROM trajectories FINAL WHERE trajectory_id = {id:String} AND model_version != ''
        UNION ALL
        SELECT 2 AS place, model_id, generation, session_id, '' AS trajectory_id, stream_time
        FROM serving_outcomes WHERE session_id IN {stored_as:Array(String)}
        UNION ALL
        SELECT 3 AS place, model_version AS model_id, toUInt64(0) AS generation, session_id, trajectory_id, stream_time
        FROM trajectories FINAL WHERE session_id = {id:String} AND model_version != ''
        UNION ALL
        SELECT 4 AS place, model_id, toUInt64(0) AS generation, '' AS session_id, '' AS trajectory_id, at AS stream_time
        FROM deployment_audit WHERE model_id = {id:String}
        UNION ALL
        SELECT 5 AS place, model_id, toUInt64(0) AS generation, '' AS session_id, '' AS trajectory_id,
            released_at AS stream_time
        FROM model_releases WHERE model_id = {id:String}
    )
    ORDER BY place, stream_time DESC LIMIT 1
"""
# Of a generation that has two rows, the later change was followed.
_SERVED = """
    SELECT generation, JSONExtractRaw(state, 'models', {model:String}) AS model,
        JSONExtractRaw(state, 'weights') AS weights
    FROM deployment_audit FINAL
    WHERE JSONHas(state, 'models', {model:String}) AND ({generation:UInt64} = 0 OR generation = {generation:UInt64})
    ORDER BY generation DESC, at DESC LIMIT 1
"""
_TRAINED = """
    SELECT id, checkpoint_path, manifest_sha256, key_id, job_id, attempt, dataset_id, base_model, algorithm, created_at
    FROM model_checkpoints FINAL
    WHERE (manifest_sha256 = {manifest:String} AND {manifest:String} != '')
        OR (job_id = {job:String} AND {manifest:String} = '' AND {job:String} != '')
    ORDER BY created_at DESC LIMIT 1
"""
_ANCESTORS = """
    SELECT id, checkpoint_path, manifest_sha256, key_id, job_id, attempt, base_model, algorithm, made.dataset_id,
        learnt.manifest_hash, learnt.trajectories
    FROM (SELECT * FROM model_checkpoints FINAL WHERE id IN {ids:Array(String)}) AS made
    LEFT JOIN (SELECT dataset_id, manifest_hash, trajectories FROM datasets FINAL) AS learnt USING (dataset_id)
"""
_DATASET = """
    SELECT manifest_hash, manifest_url, trajectories, algorithm FROM datasets FINAL WHERE dataset_id = {dataset:String}
"""
_PROVENANCE = """
    SELECT uniqExact(trajectory_id) AS trajectories,
        arraySlice(arraySort(groupUniqArray(trajectory_id)), 1, {sample:UInt32}) AS sample,
        arraySort(groupUniqArray(reward_revision)) AS reward_revisions,
        arraySort(groupUniqArray(configuration)) AS configurations
    FROM dataset_provenance FINAL WHERE dataset_id = {dataset:String}
"""
_REDACTION = """
    SELECT revision, fingerprint FROM ingest_revisions FINAL WHERE revision IN (
        SELECT DISTINCT revision FROM trajectories FINAL WHERE trajectory_id IN (
            SELECT trajectory_id FROM dataset_trajectories WHERE dataset_id = {dataset:String}
        )
    ) ORDER BY revision
"""


class Unknown(PipelineError):
    """Nothing is known under this id."""


@dataclass(frozen=True, slots=True)
class Training:
    """What made the model."""

    job_id: str
    attempt: int
    algorithm: str
    base_model: str
    checkpoint_id: str
    checkpoint_path: str
    manifest_sha256: str
    signed_by: str


@dataclass(frozen=True, slots=True)
class Dataset:
    """What it learnt from."""

    dataset_id: str
    manifest_hash: str
    manifest_url: str
    trajectories: int
    sample: tuple[str, ...]
    """Some of their ids."""
    reward_revisions: tuple[int, ...]
    reward_configurations: tuple[str, ...]
    """Hashes: `reward_configurations` has their rules."""
    redaction_revisions: tuple[int, ...]
    redaction_fingerprints: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class EarlierTraining:
    """What made a checkpoint that the model goes back to, and what that had learnt from."""

    training: Training
    dataset_id: str
    manifest_hash: str
    trajectories: int


@dataclass(frozen=True, slots=True)
class Lineage:
    """What is known of an id. What is not known, because nothing of ours has made it, is None."""

    id: str
    model_id: str
    generation: int | None
    """Under which it was served, or that knows the model."""
    share: float | None
    """Of the traffic that the model had in that generation."""
    session_id: str | None
    trajectory_id: str | None
    checkpoint_path: str | None
    training: Training | None
    dataset: Dataset | None
    before: tuple[EarlierTraining, ...] = ()
    """The trainings whose checkpoints it was trained from, the latest first."""

    def as_dict(self) -> dict[str, Any]:
        """For machines."""
        return asdict(self)

    def text(self) -> str:
        """For people."""
        lines = [f"{self.id}", f"model: {self.model_id}"]
        if self.generation is not None:
            share = "" if self.share is None else f", {self.share:.0%} of the traffic"
            lines.append(f"served under: generation {self.generation}{share}")
        lines += [f"session: {self.session_id}"] if self.session_id else []
        lines += [f"trajectory: {self.trajectory_id}"] if self.trajectory_id else []
        lines.append(f"checkpoint: {self.checkpoint_path or 'none of ours'}")
        if self.training:
            made = self.training
            lines.append(f"manifest: {made.manifest_sha256}, signed by {made.signed_by}")
            lines.append(f"training job: {made.job_id}, attempt {made.attempt}, {made.algorithm} on {made.base_model}")
        if self.dataset:
            data = self.dataset
            lines.append(f"dataset: {data.dataset_id}, manifest {data.manifest_hash}")
            lines.append(f"trajectories: {data.trajectories}, such as {', '.join(data.sample)}")
            lines.append(f"reward revisions: {_listed(data.reward_revisions)}")
            lines.append(f"reward configurations: {_listed(data.reward_configurations)}")
            lines.append(f"redaction revisions: {_listed(data.redaction_revisions)}")
        lines += [
            f"before it: training job {one.training.job_id}, {one.training.algorithm} on {one.training.base_model}, "
            f"dataset {one.dataset_id} of {one.trajectories} trajectories"
            for one in self.before
        ]
        return "\n".join(lines)


def explain(warehouse: Warehouse, name: str, *, session_keys: Sequence[RedactionKey]) -> Lineage:
    """All that an answer, a session, a trajectory or a model came from. Raises `Unknown`.

    A session may be named as its caller did, or as it is stored; `session_keys` are what gateways stored it under.
    """
    model_id, generation, session_id, trajectory_id = _found(warehouse, name, session_keys)
    served = _row(warehouse, _SERVED, {"model": model_id, "generation": generation})
    if served is None and generation:
        # The record was lost before the audit had this generation; others know the model all the same.
        served = _row(warehouse, _SERVED, {"model": model_id, "generation": 0})
    model = json.loads(served["model"]) if served else _released(warehouse, model_id)
    if not model and _ANSWER.fullmatch(name):
        raise _unknown(name)  # whoever can write an id can write this one: no model of ours has given it
    training = _training(warehouse, model.get("manifest_sha256") or "", model.get("training_job_id") or "")
    return Lineage(
        id=name,
        model_id=model_id,
        generation=generation or (served["generation"] if served else None),
        share=json.loads(served["weights"]).get(model_id, 0.0) if served else None,
        session_id=session_id or None,
        trajectory_id=trajectory_id or None,
        checkpoint_path=model.get("checkpoint_path"),
        training=training[0] if training else None,
        dataset=_dataset(warehouse, training[1]) if training else None,
        before=_before(warehouse, training[0].job_id) if training else (),
    )


def _found(warehouse: Warehouse, name: str, session_keys: Sequence[RedactionKey]) -> tuple[str, int, str, str]:
    answer = _ANSWER.fullmatch(name)
    if answer:
        return answer["model"], int(answer["generation"]), "", ""
    found = _row(warehouse, _FOUND_BY, {"id": name, "stored_as": [name, *stored_names(session_keys, [name])]})
    if found is None:
        raise _unknown(name)
    return found["model_id"], int(found["generation"]), found["session_id"], found["trajectory_id"]


def _unknown(name: str) -> Unknown:
    return Unknown(
        f"nothing is known of {name[:200]!r}: give the id of a served answer (chatcmpl-…), of a session, of a "
        "trajectory or of a model"
    )


def _released(warehouse: Warehouse, model_id: str) -> dict[str, Any]:
    found = _row(warehouse, "SELECT model FROM model_releases FINAL WHERE model_id = {id:String}", {"id": model_id})
    content: dict[str, Any] = json.loads(found["model"]) if found else {}
    return content


def _training(warehouse: Warehouse, manifest_sha256: str, job_id: str) -> tuple[Training, str] | None:
    found = _row(warehouse, _TRAINED, {"manifest": manifest_sha256, "job": job_id})
    return (_trained(found), found["dataset_id"]) if found else None


def _trained(row: Mapping[str, Any]) -> Training:
    return Training(
        job_id=row["job_id"],
        attempt=row["attempt"],
        algorithm=row["algorithm"],
        base_model=row["base_model"],
        checkpoint_id=row["id"],
        checkpoint_path=row["checkpoint_path"],
        manifest_sha256=row["manifest_sha256"],
        signed_by=row["key_id"],
    )


def _before(warehouse: Warehouse, job_id: str) -> tuple[EarlierTraining, ...]:
    line = [one.id for one in read_ancestry(warehouse).line(job_id)[1:]]
    rows = {row["id"]: row for row in warehouse.query(_ANCESTORS, {"ids": line}).iter_rows(named=True)} if line else {}
    return tuple(
        EarlierTraining(_trained(row), row["dataset_id"], row["manifest_hash"], row["trajectories"])
        for row in (rows[one] for one in line)
    )


def _dataset(warehouse: Warehouse, dataset_id: str) -> Dataset | None:
    found = _row(warehouse, _DATASET, {"dataset": dataset_id})
    if found is None:
        return None
    provenance = _row(warehouse, _PROVENANCE, {"dataset": dataset_id, "sample": SAMPLE}) or {}
    redaction = warehouse.query(_REDACTION, {"dataset": dataset_id})
    return Dataset(
        dataset_id=dataset_id,
        manifest_hash=found["manifest_hash"],
        manifest_url=found["manifest_url"],
        trajectories=provenance["trajectories"],
        sample=tuple(provenance["sample"]),
        reward_revisions=tuple(provenance["reward_revisions"]),
        reward_configurations=tuple(provenance["configurations"]),
        redaction_revisions=tuple(redaction["revision"]),
        redaction_fingerprints=tuple(redaction["fingerprint"]),
    )


def _row(warehouse: Warehouse, sql: str, parameters: dict[str, Any]) -> dict[str, Any] | None:
    return next(warehouse.query(sql, parameters).iter_rows(named=True), None)


def _listed(values: tuple[object, ...]) -> str:
    return ", ".join(map(str, values)) or "none"
