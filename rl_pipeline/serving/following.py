"""What one gateway goes by: the newest desired state it was shown, its own fences, and models it was told of.

All of it is kept on the disk, so a restarted gateway serves the right split before anybody answers it.
"""

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from rl_pipeline.deployment.state import DesiredState, ServedModel
from rl_pipeline.errors import PipelineError
from rl_pipeline.serving.durable_file import write_durably
from rl_pipeline.serving.routing import Routing, routing_of, weights_without

MOST_WAITING = 16
"""Models that were registered and that no state has named yet."""


class Refused(PipelineError):
    """The gateway will not do that; the text says why and what to do."""


class KeptFileUnreadable(PipelineError):
    """What the gateway kept across its restart cannot be read."""


class _Kept(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Followed(_Kept):
    """A state, and since when it is followed."""

    state: DesiredState
    since: datetime
    in_service: ServedModel
    """To which everything falls back: the state's serving model, unless that is fenced; then the one before it, unless
    that was rolled back."""


class Fence(_Kept):
    """Why a model gets nothing, and since when."""

    reason: str
    since: datetime


class _Fences(_Kept):
    fences: dict[str, Fence] = {}


class _Registered(_Kept):
    models: dict[str, ServedModel] = {}


@dataclass(frozen=True)
class ToKeep:
    """A file as it has to be on the disk before the change is confirmed."""

    path: Path
    data: bytes


_File = TypeVar("_File", bound=_Kept)


class Following:
    """The gateway's mind. Each change holds at once; it is confirmed once what is returned `ToKeep` is on the disk.

    A change that was made before and is not on the disk yet is returned again: repeated, it is confirmed only then.
    """

    def __init__(self, directory: Path) -> None:
        """Raises `KeptFileUnreadable`."""
        self._state_file = directory / "state.json"
        self._fences_file = directory / "fences.json"
        self._models_file = directory / "models.json"
        self.followed = _read(self._state_file, Followed)
        self.fences = (_read(self._fences_file, _Fences) or _Fences()).fences
        self.registered = (_read(self._models_file, _Registered) or _Registered()).models
        self._on_disk = self._contents()

    @property
    def generation(self) -> int:
        """Of the state that is followed; 0 for none yet."""
        return self.followed.state.generation if self.followed else 0

    @property
    def weights(self) -> dict[str, float]:
        """What the state gives to whom, after fences."""
        if self.followed is None:
            return {}
        return weights_without(self.followed.state, self.followed.in_service.model_id, self.fences)

    def follow(self, state: DesiredState, now: datetime) -> list[ToKeep]:
        """Go by the state, if it is newer. Raises `Refused` for another state of the same generation."""
        if state.generation <= self.generation:
            if self.followed and state.generation == self.generation and state != self.followed.state:
                raise Refused(
                    f"this gateway follows another state of generation {state.generation}: "
                    "store the one that is meant under the next generation"
                )
            return self.unkept(self._state_file, self._models_file)
        in_service = state.models[state.serving]
        if in_service.model_id in self.fences and self.followed:
            if self.followed.in_service.model_id in state.retired:
                # Somebody wanted both out, one after the other, and the record let only the first go: nobody else could
                # serve. A gateway that had not heard of that yet must not go on with the one that is out.
                self.fences = {k: v for k, v in self.fences.items() if k != in_service.model_id}
            else:
                in_service = self.followed.in_service
        self.followed = Followed(state=state, since=now, in_service=in_service)
        self.registered = {k: v for k, v in self.registered.items() if k not in state.models}
        # The fences first: a model in service that is fenced would serve nobody after a restart.
        return self.unkept(self._fences_file, self._state_file, self._models_file)

    def fence(self, model_id: str, reason: str, now: datetime) -> list[ToKeep]:
        """Give the model nothing from now on. Raises `Refused` for the model in service."""
        if self.followed and model_id == self.followed.in_service.model_id:
            raise Refused(f"{model_id} is in service and nothing could take over: give another model its place first")
        if model_id not in self.fences:
            self.fences = {**self.fences, model_id: Fence(reason=reason, since=now)}
        self.registered = {k: v for k, v in self.registered.items() if k != model_id}
        return self.unkept(self._fences_file, self._models_file)

    def register(self, model: ServedModel) -> list[ToKeep]:
        """Know the model, so that it is ready when a state gives it traffic."""
        if model.model_id in self.fences:
            raise Refused(f"{model.model_id} was fenced here and gets nothing any more: use a new model id")
        known = self.followed.state.models.get(model.model_id) if self.followed else None
        if known == model:
            return self.unkept(self._state_file)
        if known is not None:
            raise Refused(f"{model.model_id} is served already and is something else: use a new model id")
        if model.model_id not in self.registered and len(self.registered) >= MOST_WAITING:
            raise Refused(f"{MOST_WAITING} registered models wait for traffic: fence those that will get none")
        self.registered = {**self.registered, model.model_id: model}
        return self.unkept(self._models_file)

    def unkept(self, *files: Path) -> list[ToKeep]:
        """What holds and is not on the disk yet: of these files, by default of all."""
        contents = self._contents()
        return [
            ToKeep(path, contents[path])
            for path in files or contents
            if path in contents and self._on_disk.get(path) != contents[path]
        ]

    def keep(self, change: ToKeep) -> None:
        """Put it on the disk. One thread does, in the order of the changes. Raises `OSError`."""
        self._on_disk.pop(change.path, None)
        write_durably(change.path, change.data)
        self._on_disk[change.path] = change.data

    def models(self) -> dict[str, ServedModel]:
        """All that may have to answer, now or soon."""
        of_state = {**self.followed.state.models} if self.followed else {}
        if self.followed:
            of_state[self.followed.in_service.model_id] = self.followed.in_service
        every = {**self.registered, **of_state}
        return {model_id: model for model_id, model in every.items() if model_id not in self.fences}

    def routing(self, not_ready: Collection[str]) -> Routing | None:
        """How to route while these models are not ready; None while there is nothing to go by."""
        if self.followed is None or self.followed.in_service.model_id in self.fences:
            return None
        return routing_of(self.followed.state, self.followed.in_service.model_id, self.fences, not_ready)

    def _contents(self) -> dict[Path, bytes]:
        """Each file as it has to be."""
        files: dict[Path, _Kept] = {
            self._fences_file: _Fences(fences=self.fences),
            self._models_file: _Registered(models=self.registered),
        }
        if self.followed:
            files[self._state_file] = self.followed
        return {path: kept.model_dump_json().encode() for path, kept in files.items()}


def _read(path: Path, kind: type[_File]) -> _File | None:
    try:
        return kind.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValidationError) as error:
        raise KeptFileUnreadable(
            f"{path} cannot be read ({type(error).__name__}): restore it from a backup, or remove it to begin without"
        ) from error
