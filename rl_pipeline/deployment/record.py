"""The desired state as it is recorded: read with the bytes that were stored, and changed by compare-and-swap alone."""

import contextlib
import hashlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from pydantic import ValidationError

from rl_pipeline.deployment.state import DesiredState, ServedModel
from rl_pipeline.errors import PipelineError
from rl_pipeline.stores.desired_state import DesiredStates, StoredState

_MOST_RACES = 20


class StateUnreadable(PipelineError):
    """What is stored is no desired state of this version."""


class NothingDeployed(PipelineError):
    """There is no desired state: none was ever made, or the store was lost and is not restored yet."""


class RecordBusy(PipelineError):
    """Others were faster, again and again."""


@dataclass(frozen=True, slots=True)
class Recorded:
    """A state and how it is stored."""

    state: DesiredState
    data: bytes
    revision: int

    @property
    def hash(self) -> str:
        """Of the stored bytes: a later version may write the same state in other words."""
        return hashlib.sha256(self.data).hexdigest()


def decoded(stored: StoredState) -> Recorded:
    """The state that a store holds. Raises `StateUnreadable`."""
    try:
        return Recorded(DesiredState.decoded(stored.data), stored.data, stored.revision)
    except ValidationError as error:
        raise StateUnreadable(
            f"the desired state of revision {stored.revision} cannot be read ({error.error_count()} errors): "
            "upgrade rl-pipeline, or remove what somebody wrote there by hand"
        ) from None


def read(states: DesiredStates) -> Recorded | None:
    """The newest state, or none. Raises `StateUnreadable` beside what the store raises."""
    stored = states.read()
    return decoded(stored) if stored else None


def history(states: DesiredStates) -> list[Recorded]:
    """The states that the store still has, oldest first. What somebody once wrote there by hand may be none."""
    found = []
    for stored in states.history():
        with contextlib.suppress(StateUnreadable):
            found.append(decoded(stored))
    return found


def swap(states: DesiredStates, following: DesiredState, current: Recorded | None) -> Recorded | None:
    """Record a state in place of the current one; None when somebody else was faster."""
    data = following.encoded()
    revision = states.swap(data, current.revision if current else 0)
    return Recorded(following, data, revision) if revision else None


def after(current: Recorded, following: DesiredState) -> DesiredState:
    """The state as one that follows the current one as it is stored."""
    return following.model_copy(update={"previous_hash": current.hash})


def change(states: DesiredStates, decide: Callable[[Recorded], DesiredState | None]) -> Recorded | None:
    """Record what `decide` makes of the newest state; whoever was faster is read, and it is decided again.

    None when there was nothing to change. Raises `NothingDeployed` without a state, and what `decide` raises.
    """
    for _ in range(_MOST_RACES):
        current = read(states)
        if current is None:
            raise NothingDeployed("nothing is deployed, or the record was lost: look at `rl-pipeline deployment`")
        following = decide(current)
        if following is None:
            return None
        changed = swap(states, after(current, following), current)
        if changed is not None:
            return changed
    raise RecordBusy("others change the desired state all the time: look who they are, and try again")


def former_models(newest_first: Iterable[DesiredState], state: DesiredState) -> Sequence[ServedModel]:
    """The models that served before the one that serves, the latest first, without those that were rolled back."""
    found: dict[str, ServedModel] = {}
    for earlier in newest_first:
        if earlier.serving != state.serving and earlier.serving not in state.retired:
            found.setdefault(earlier.serving, earlier.models[earlier.serving])
    return list(found.values())


def brought_by(newest_first: Iterable[DesiredState], state: DesiredState) -> str | None:
    """The deployment that brought the model that serves."""
    changes = (earlier.change for earlier in newest_first)
    return next(
        (each.deployment_id for each in changes if (each.event, each.model_id) == ("promoted", state.serving)), None
    )
