"""Which models there are: those that were released, and the one that was there first, with what became of each."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from rl_pipeline.deployment.audit import WarehouseAudit, newest_row
from rl_pipeline.deployment.releases import Release, Releases
from rl_pipeline.deployment.state import DesiredState, ServedModel
from rl_pipeline.stores.warehouse import Warehouse

_ALL = 2**31
# A model has traffic from one of these on.
_IN_TRAFFIC = "event IN ('created', 'deployed', 'approved', 'ramped', 'promoted')"
_EVENTS = f"""
    SELECT model_id, minIf(at, {_IN_TRAFFIC}) AS first_at, countIf({_IN_TRAFFIC}) AS times,
        argMax(event, generation) AS last_event, max(at) AS last_at
    FROM deployment_audit FINAL GROUP BY model_id
"""  # noqa: S608  # written above


@dataclass(frozen=True, slots=True)
class CataloguedModel:
    """A model and what became of it."""

    model: ServedModel
    state: str
    """Of its release; `first` for a model that was in service without one."""
    explanation: str
    released_at: datetime | None
    deployed_at: datetime | None
    """When it first got traffic."""
    last_event: str | None
    last_event_at: datetime | None
    share: float
    """Of the new sessions, by the newest state that is in the audit."""
    is_serving: bool
    validation: Mapping[str, Any] = field(default_factory=dict)


def catalogue(warehouse: Warehouse, *, deployed_since: datetime | None, limit: int) -> list[CataloguedModel]:
    """The models, the newest first; with a time, those alone that first got traffic since then.

    Comes from the warehouse alone: the share of a model is known as of the last change that its audit has.
    """
    row = newest_row(WarehouseAudit(warehouse))
    state = row.state if row else None
    events = {each["model_id"]: each for each in warehouse.query(_EVENTS).iter_rows(named=True)}
    releases = Releases(warehouse)
    released = releases.newest(limit if deployed_since is None else _ALL)
    first = [
        _catalogued(model, None, events.get(model.model_id), state)
        for model in (state.models.values() if state else ())
        if releases.of_model(model.model_id) is None
    ]
    known = [_catalogued(each.model, each, events.get(each.model.model_id), state) for each in released]
    every = [*known, *first]
    if deployed_since is not None:
        every = [each for each in every if each.deployed_at is not None and each.deployed_at >= deployed_since]
    return every[:limit]


def _catalogued(
    model: ServedModel, release: Release | None, event: Mapping[str, Any] | None, desired: DesiredState | None
) -> CataloguedModel:
    return CataloguedModel(
        model=model,
        state=release.state if release else "first",
        explanation=release.explanation if release else "it was in service without a release",
        released_at=release.released_at if release else None,
        deployed_at=event["first_at"] if event and event["times"] else None,
        last_event=event["last_event"] if event else None,
        last_event_at=event["last_at"] if event else None,
        share=desired.weights.get(model.model_id, 0.0) if desired else 0.0,
        is_serving=desired is not None and desired.serving == model.model_id,
        validation=release.validation if release else {},
    )
