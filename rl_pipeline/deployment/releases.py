"""Models that passed validation and wait for their rollout: `model_releases`, one for each training job.

The newest that waits is rolled out when nothing else is; those that were overtaken are recorded as such. What was
started is told by the audit alone: a mark that a killed controller did not make is made by the next, and a rollout that
was lost with the record before it had a row begins anew.

A rollout that was interrupted, because its control was taken back, speaks against its candidate in no way: the release
waits again, for another attempt under a deployment id of its own. An A/B test that was interrupted is for whoever
ordered it.
"""

import json
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import Any, Literal
from uuid import UUID, uuid5

from pydantic import BaseModel, ConfigDict

from rl_pipeline.deployment.state import DesiredState, EvidenceRule, RampStep, Rollout, ServedModel, Strategy
from rl_pipeline.errors import PipelineError
from rl_pipeline.stores.lease import Leases, keep
from rl_pipeline.stores.warehouse import Warehouse

RELEASES_LEASE = "releases"
"""Held while a number is given out."""

ReleaseState = Literal["waiting", "started", "superseded", "refused"]

_LEASE_SECONDS = 60
_PATIENCE_SECONDS = 120.0
_AS_JSON = ("model", "plan", "validation")
_DEPLOYMENTS = UUID("5e0c7d4c-3a86-4c57-9a1c-8f0c2b9f6d11")

_BEGUN = "deployment_id IN (SELECT deployment_id FROM deployment_audit)"
_INTERRUPTED = """
    deployment_id IN (
        SELECT JSONExtractString(evidence, 'interrupted') FROM deployment_audit WHERE event = 'rolled_back'
    ) AND deployment_id NOT IN (SELECT deployment_id FROM deployment_audit WHERE phase = 'testing')
"""


class NeverReleased(PipelineError):
    """A model that must not be rolled out."""


class RolloutPlan(BaseModel):
    """How a model is to come into service."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    strategy: Strategy
    steps: tuple[RampStep, ...]
    bake_seconds: float
    rule: EvidenceRule = "evidence"
    explanation: str
    """Why so, for people."""
    measured_against: str = ""
    """The model that validation compared it with; empty where there was none, or where that was not kept. The plan
    holds while this model is in service."""


class Release(BaseModel):
    """A model that may be rolled out."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    training_job_id: str
    number: int
    attempt: int = 0
    """How often its rollout was interrupted."""
    deployment_id: str
    """Of the rollout of this attempt."""
    model: ServedModel
    plan: RolloutPlan
    validation: dict[str, Any] = {}
    """`validation_results` of `agent.rl.model.deployed.v1`."""
    needs_approval: bool = False
    state: ReleaseState = "waiting"
    explanation: str = ""
    """Why it is in this state."""
    released_at: datetime
    changed_at: datetime

    def rollout(self, *, control: str, now: datetime) -> Rollout:
        """Its rollout against the model in service."""
        return Rollout(
            deployment_id=self.deployment_id,
            candidate=self.model.model_id,
            control=control,
            strategy=self.plan.strategy,
            rule=self.plan.rule,
            steps=self.plan.steps,
            started_at=now,
            step_since=now,
            bake_seconds=self.plan.bake_seconds,
            validation=self.validation,
        )

    def renewed(
        self, plan: RolloutPlan, validation: Mapping[str, Any], now: datetime, *, needs_approval: bool
    ) -> "Release":
        """The release after its model was validated again."""
        changed = {"plan": plan, "validation": dict(validation), "needs_approval": needs_approval, "changed_at": now}
        return self.model_copy(update=changed)

    def ended(self, state: ReleaseState, explanation: str, now: datetime) -> "Release":
        """The release once it no longer waits."""
        return self.model_copy(update={"state": state, "explanation": explanation, "changed_at": now})

    def again(self, now: datetime) -> "Release":
        """The release once its rollout was interrupted."""
        changed = {
            "attempt": self.attempt + 1,
            "deployment_id": deployment_of(self.training_job_id, self.attempt + 1),
            "state": "waiting",
            "explanation": "its rollout was interrupted: it waits for another",
            "changed_at": now,
        }
        return self.model_copy(update=changed)


def sorted_out(
    waiting: Sequence[Release], started: Collection[str], newest_started: int, now: datetime
) -> tuple[Release | None, list[Release]]:
    """The release to start next, if any, and those that no longer wait, as they become.

    `started` are the deployments that there ever were; `newest_started` is the highest number that is marked so. A
    release waits in vain once a newer one was started.
    """
    begun = [release for release in waiting if release.deployment_id in started]
    newest = max([newest_started, *(release.number for release in begun)])
    overtaken = [release for release in waiting if release not in begun and release.number < newest]
    ended = [
        *(release.ended("started", "its rollout has begun", now) for release in begun),
        *(release.ended("superseded", f"number {newest} was started before it", now) for release in overtaken),
    ]
    left = [release for release in waiting if release.number > newest]
    return max(left, key=lambda release: release.number, default=None), ended


def deployment_of(training_job_id: str, attempt: int) -> str:
    """The id of an attempt at rolling out the model of a training job."""
    return str(uuid5(_DEPLOYMENTS, f"{training_job_id}#{attempt}" if attempt else training_job_id))


def model_name(number: int) -> str:
    """The id of a released model."""
    return f"agent-zero-rl-v{number}"


def name_at_endpoint(training_job_id: str) -> str:
    """What a server of somebody's own calls the model of a training job: known before anything else about it is.

    Validation and rollout ask for the same name, so what was validated is what comes into service.
    """
    return training_job_id


def may_come_again(release: Release, state: DesiredState) -> bool:
    """Whether a release whose rollout was interrupted may wait again: what was rolled back never does."""
    return release.state == "started" and release.model.model_id not in state.retired


class Releases:
    """The table of releases."""

    def __init__(self, warehouse: Warehouse) -> None:
        self._warehouse = warehouse

    def release(
        self,
        leases: Leases,
        *,
        training_job_id: str,
        base_model: str,
        checkpoint_path: str | None,
        manifest_sha256: str | None,
        plan: RolloutPlan,
        validation: Mapping[str, Any],
        needs_approval: bool,
        shadow: bool,
        now: datetime,
        endpoint: str | None = None,
        model_id: str | None = None,
    ) -> Release:
        """Let the model of a training job wait for its rollout, under the next number; again, it is the same release.

        One that still waits takes the new plan if that was measured against another model than the old one. It is
        called by its number unless `model_id` says otherwise; at an `endpoint` it is asked for by `name_at_endpoint`.
        Its checkpoint is never pruned from now on. Raises `NeverReleased` for a shadow job and for the id of another
        model, and `LeaseHeld` when somebody else gives numbers out for minutes.
        """
        if shadow:
            raise NeverReleased(
                f"{training_job_id} is a shadow job: its model is trained and validated, never deployed"
            )
        with keep(leases, RELEASES_LEASE, training_job_id, _LEASE_SECONDS, patience_seconds=_PATIENCE_SECONDS):
            found = self.of_job(training_job_id)
            if found is not None:
                is_new = found.state == "waiting" and plan.measured_against != found.plan.measured_against
                if is_new:
                    found = found.renewed(plan, validation, now, needs_approval=needs_approval)
                    self._write([found])
                return found
            if model_id is not None and self.of_model(model_id) is not None:
                raise NeverReleased(f"{model_id} is another model already: give this one an id of its own")
            number = int(self._warehouse.query("SELECT max(number) AS number FROM model_releases")["number"][0]) + 1
            while self.of_model(model_name(number)) is not None:  # somebody has called a model so
                number += 1
            model = ServedModel(
                model_id=model_id or model_name(number),
                base_model=base_model,
                checkpoint_path=checkpoint_path,
                manifest_sha256=manifest_sha256,
                endpoint=endpoint,
                upstream_name=name_at_endpoint(training_job_id) if endpoint else None,
                training_job_id=training_job_id,
            )
            release = Release(
                training_job_id=training_job_id,
                number=number,
                deployment_id=deployment_of(training_job_id, 0),
                model=model,
                plan=plan,
                validation=dict(validation),
                needs_approval=needs_approval,
                explanation="it waits for its rollout",
                released_at=now,
                changed_at=now,
            )
            self._keep_checkpoint(training_job_id)
            self._write([release])
        return release

    def of_job(self, training_job_id: str) -> Release | None:
        """The release of a training job."""
        return next(iter(self._read("training_job_id = {job:String}", {"job": training_job_id})), None)

    def of_model(self, model_id: str) -> Release | None:
        """The release that a model is."""
        return next(iter(self._read("model_id = {model:String}", {"model": model_id})), None)

    def newest(self, limit: int) -> list[Release]:
        """The latest releases, the newest first."""
        return self._read("true ORDER BY number DESC LIMIT {limit:UInt32}", {"limit": limit})

    def outdated(self, serving: str) -> Release | None:
        """The newest release that waits, if it was measured against another model than the one in service.

        It has to be validated again; what is older waits in vain once this one is started. One whose rollout has begun
        does not wait, though nobody has marked it yet.
        """
        waiting = self._read(f"state = 'waiting' AND NOT {_BEGUN} ORDER BY number DESC LIMIT 1", {})
        return next((release for release in waiting if release.plan.measured_against != serving), None)

    def sort_out(self, state: DesiredState, now: datetime) -> Release | None:
        """See `WaitingReleases.sort_out`."""
        found = self._read(f"state = 'waiting' OR (state = 'started' AND {_INTERRUPTED})", {})
        waiting = [release for release in found if release.state == "waiting"]
        again = [release.again(now) for release in found if may_come_again(release, state)]
        if not waiting and not again:
            return None
        self._write(again)
        begun = self._warehouse.query(
            "SELECT DISTINCT deployment_id FROM deployment_audit WHERE deployment_id IN {ids:Array(String)}",
            {"ids": [release.deployment_id for release in waiting]},
        )
        marked = self._warehouse.query("SELECT max(number) AS number FROM model_releases FINAL WHERE state = 'started'")
        following, ended = sorted_out([*waiting, *again], set(begun["deployment_id"]), int(marked["number"][0]), now)
        self._write(ended)
        return following

    def refuse(self, release: Release, explanation: str, now: datetime) -> None:
        """See `WaitingReleases.refuse`."""
        self._write([release.ended("refused", explanation, now)])

    def _keep_checkpoint(self, training_job_id: str) -> None:
        self._warehouse.execute(
            """
            INSERT INTO model_checkpoints
            SELECT * REPLACE (true AS deployed, version + 1 AS version)
            FROM (SELECT * FROM model_checkpoints FINAL WHERE job_id = {job:String} AND NOT deployed)
            """,
            {"job": training_job_id},
        )

    def _read(self, condition: str, parameters: Mapping[str, Any]) -> list[Release]:
        found = self._warehouse.query(
            f"SELECT * FROM model_releases FINAL WHERE {condition}",  # noqa: S608  # written above
            parameters,
        )
        return [
            Release(
                **{name: row[name] for name in Release.model_fields if name not in _AS_JSON},
                **{name: json.loads(row[name]) for name in _AS_JSON},
            )
            for row in found.iter_rows(named=True)
        ]

    def _write(self, releases: Sequence[Release]) -> None:
        import polars as pl

        if not releases:
            return
        rows = [
            release.model_dump(include=set(Release.model_fields) - set(_AS_JSON))
            | {name: json.dumps(release.model_dump(mode="json")[name]) for name in _AS_JSON}
            | {
                "model_id": release.model.model_id,
                "version": 2 * release.attempt + (release.state != "waiting"),
            }
            for release in releases
        ]
        self._warehouse.insert("model_releases", pl.DataFrame(rows))
