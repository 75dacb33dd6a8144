"""When the record of the desired state was lost, or an old copy of it was put back: what it becomes.

The audit has the newest state that is still known, and the gateways know the highest generation. The record goes on
above both with that state. A rollout that was going on goes on: if its candidate was rolled back by a generation that
went with the record, the gateways hold the fence, and the next look follows it.

A gateway that was away meanwhile may follow a lost state of the very generation that the record has now. It would never
follow the record, so that goes up once more.
"""

from collections.abc import Sequence
from datetime import datetime

from rl_pipeline.deployment import phases
from rl_pipeline.deployment.audit import AuditRow
from rl_pipeline.deployment.phases import Cause
from rl_pipeline.deployment.record import Recorded
from rl_pipeline.deployment.state import DesiredState
from rl_pipeline.deployment.traffic import Standing
from rl_pipeline.errors import PipelineError


class CannotRestore(PipelineError):
    """The record was lost, and nobody knows what it said."""


def highest_generation(standings: Sequence[Standing], newest: AuditRow | None) -> int:
    """The highest generation that anybody has seen."""
    audited = newest.state.generation if newest else 0
    return max([audited, *(standing.generation for standing in standings)])


def restoration(
    current: Recorded | None, newest: AuditRow | None, standings: Sequence[Standing], *, by: str, now: datetime
) -> DesiredState | None:
    """The state that the record has to become; None where it is as new as all that is known.

    `newest` and `standings` were read before `current`: whatever they know was in the record by then. Raises
    `CannotRestore` where gateways follow something of which neither the record nor the audit has any state.
    """
    highest = highest_generation(standings, newest)
    generation = current.state.generation if current else 0
    if generation >= highest and not (current and any(_is_astray(each, current.state) for each in standings)):
        return None
    known = [(each.state.generation, each.hash, each.state) for each in (current, newest) if each is not None]
    if not known:
        raise CannotRestore(
            f"gateways follow generation {highest}, and neither the record nor the audit has any: "
            "create it anew with `rl-pipeline deployment create`"
        )
    base_generation, base_hash, base = max(known, key=lambda each: each[0])
    lost = list(range(base_generation + 1, highest + 1))
    reason = (
        f"the record was at generation {generation}, and others follow another" if current else "the record was lost"
    )
    restored = phases.restore(base, highest, Cause(reason, by, now, {"lost_generations": lost}))
    return restored.model_copy(update={"previous_hash": base_hash})


def _is_astray(standing: Standing, state: DesiredState) -> bool:
    """Whether a gateway follows another state of this generation: it serves what this one does not."""
    if standing.generation != state.generation or state.serving in standing.fenced:
        return False
    served = {model for model, weight in standing.weights.items() if weight > 0}
    given = {model for model, weight in state.weights.items() if weight > 0}
    return bool(served - given - {state.serving})
