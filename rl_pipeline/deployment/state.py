"""What is to be served: one value, numbered by its generation, that everybody agrees on.

The value of generation n carries the hash of the value of generation n - 1, so a chain of values is its own audit. It
is changed by compare-and-swap only (`rl_pipeline.stores.desired_state`); how it may change is in `phases.py`.
"""

import hashlib
from datetime import datetime
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from rl_pipeline.contracts.fields import Identifier
from rl_pipeline.contracts.model_deployed import DeploymentEvent

Phase = Literal["steady", "awaiting_approval", "ramping", "testing", "baking"]
"""`steady`: one model serves and nothing moves. All others belong to a rollout."""

Strategy = Literal["canary", "blue_green", "ab_test", "immediate"]
EvidenceRule = Literal["evidence", "literal"]

LONGEST_REASON = 4096
"""Characters of why something was changed."""

Weight = Annotated[float, Field(ge=0, le=1)]

LEAST_BAKE_SECONDS = 600.0
"""A bake that goes on after a recheck takes at least so long: what fails again has to be seen before it is promoted."""


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class ServedModel(_Part):
    """A model that a gateway can serve: from a signed checkpoint, or at somebody's OpenAI-compatible address."""

    model_id: Identifier
    base_model: str
    checkpoint_path: str | None = None
    """Address of a released checkpoint, or a directory with the base model: served by a child of the gateway."""
    manifest_sha256: str | None = None
    """Of the checkpoint's manifest; None for a base model, which nobody has signed."""
    endpoint: str | None = None
    """Where an OpenAI-compatible server has it; else it is served from the checkpoint."""
    upstream_name: str | None = None
    """Its name there, where it is another one."""
    training_job_id: str | None = None


class RampStep(_Part):
    """A share of the traffic, and what it takes to leave it."""

    share: Weight
    min_seconds: Annotated[float, Field(ge=0)]
    min_samples: Annotated[int, Field(ge=0)]
    """Sessions of the candidate, within this step."""


class Rollout(_Part):
    """A candidate on its way into service, against the model that is there."""

    deployment_id: Identifier
    candidate: Identifier
    control: Identifier
    strategy: Strategy
    rule: EvidenceRule = "evidence"
    steps: Annotated[tuple[RampStep, ...], Field(min_length=1)]
    step: Annotated[int, Field(ge=0)] = 0
    started_at: datetime
    """When it was let in; its evidence counts from here."""
    step_since: datetime
    bake_seconds: Annotated[float, Field(ge=0)]
    baked_seconds: Annotated[float, Field(ge=0)] = 0.0
    """Of these, how many it had all the traffic and did not fail before it went back to a split to be judged there."""
    validation: dict[str, Any] = {}
    """`validation_results` of `agent.rl.model.deployed.v1`."""

    @property
    def current(self) -> RampStep:
        """The step that it is at."""
        return self.steps[min(self.step, len(self.steps) - 1)]

    @property
    def bake_left(self) -> float:
        """How many seconds a bake that begins now takes."""
        return max(self.bake_seconds - self.baked_seconds, min(self.bake_seconds, LEAST_BAKE_SECONDS))

    @property
    def splits(self) -> list[int]:
        """Of each step the place of the split that it is, or that it follows with all of the traffic."""
        splits: list[int] = []
        for place, step in enumerate(self.steps):
            splits.append(place if step.share < 1 or not splits else splits[-1])
        return splits

    @property
    def split(self) -> int:
        """The same of the present step."""
        return self.splits[min(self.step, len(self.steps) - 1)]


class Change(_Part):
    """What made this generation out of the one before."""

    event: (
        DeploymentEvent
        | Literal["created", "proposed", "approved", "aborted", "frozen", "unfrozen", "rechecked", "restored"]
    )
    model_id: Identifier
    """The model that it is about."""
    reason: Annotated[str, Field(min_length=1, max_length=LONGEST_REASON)]
    by: Annotated[str, Field(min_length=1, max_length=512)]
    at: datetime
    deployment_id: str | None = None
    evidence: dict[str, Any] = {}


class DesiredState(_Part):
    """Who shall serve what share of the sessions, and how that came to be."""

    generation: Annotated[int, Field(ge=1)]
    previous_hash: str
    """Of generation - 1; empty for the first."""
    phase: Phase = "steady"
    serving: Identifier
    """The model in service; during a rollout the control, to which everything falls back."""
    weights: dict[str, Weight]
    """Share of the new sessions by model; they sum to 1."""
    models: dict[str, ServedModel]
    """All that may have to answer: those with a weight, and those that are kept warm."""
    rollout: Rollout | None = None
    retired: tuple[str, ...] = ()
    """Models that were rolled back. None of them is ever given a weight again."""
    frozen: str | None = None
    """Why nothing advances; a freeze never keeps anything from being rolled back."""
    change: Change

    @model_validator(mode="after")
    def _is_servable(self) -> Self:
        if abs(sum(self.weights.values()) - 1) > 1e-9:
            raise ValueError("weights should sum to 1")
        unknown = {self.serving, *self.weights} - self.models.keys()
        if unknown:
            raise ValueError(f"models should have {', '.join(sorted(unknown))}")
        raised = [model for model, weight in self.weights.items() if weight > 0 and model in self.retired]
        if raised:
            raise ValueError(f"{', '.join(raised)} was rolled back and should not be raised again")
        if (self.phase == "steady") != (self.rollout is None):
            raise ValueError("a rollout and a phase other than steady should come together")
        return self

    def encoded(self) -> bytes:
        """As it is stored; the same state is always the same bytes."""
        return self.model_dump_json().encode()

    @classmethod
    def decoded(cls, data: bytes) -> "DesiredState":
        """What `encoded` wrote. Raises pydantic's `ValidationError`."""
        return cls.model_validate_json(data)

    @property
    def hash(self) -> str:
        """By which the next generation names this one."""
        return hashlib.sha256(self.encoded()).hexdigest()
