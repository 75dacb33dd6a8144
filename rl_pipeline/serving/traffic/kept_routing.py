"""What an adapter without a memory of its own keeps beside it: the state, the fences, the known models."""

import fcntl
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from rl_pipeline.deployment.state import DesiredState, ServedModel
from rl_pipeline.deployment.traffic import Standing, TrafficRefused, TrafficUnavailable
from rl_pipeline.serving.durable_file import write_durably
from rl_pipeline.serving.following import Following, KeptFileUnreadable, Refused, ToKeep


class KeptRouting:
    """`Following` for adapters: each change is on the disk when its method returns, and then `put` carries it out.

    `put` is called by every change, also by one that was known already: whatever could not be carried out is tried
    again, and until then the state counts as not yet followed. Refusals and faults are those of the port. The
    controller, the watchdog and people's commands are processes of their own: each change starts from what is on the
    disk, and one is made at a time.
    """

    def __init__(self, directory: Path, put: Callable[[Following], None]) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._directory = directory
        self._unfinished = directory / "unfinished"
        """There while a change is on the disk that `put` has not carried out."""
        self._put = put
        self._guard = threading.Lock()

    def register(self, model: ServedModel) -> None:
        """See `TrafficController.register`."""
        self._change(lambda following: following.register(model))

    def follow(self, state: DesiredState) -> None:
        """See `TrafficController.apply`."""
        self._change(lambda following: following.follow(state, datetime.now(UTC)))

    def fence(self, model_id: str, reason: str) -> None:
        """See `TrafficController.fence`."""
        self._change(lambda following: following.fence(model_id, reason, datetime.now(UTC)))

    def standing(self, name: str, weights: Mapping[str, float]) -> Standing:
        """How it stands, where the traffic is split by `weights`."""
        following = self._following()
        fenced = {model_id: fence.reason for model_id, fence in following.fences.items()}
        behind = int(self._unfinished.exists() and following.generation > 0)
        return Standing(name, following.generation - behind, weights, fenced)

    def _following(self) -> Following:
        try:
            return Following(self._directory)
        except KeptFileUnreadable as unreadable:
            raise TrafficUnavailable(str(unreadable)) from unreadable

    def _change(self, change: Callable[[Following], Sequence[ToKeep]]) -> None:
        with self._guard:
            try:
                with self._alone():
                    following = self._following()
                    changes = change(following)
                    self._unfinished.touch()
                    for kept in changes:
                        write_durably(kept.path, kept.data)
                    self._put(following)
                    self._unfinished.unlink()
            except Refused as refused:
                raise TrafficRefused(str(refused)) from None
            except OSError as error:
                raise TrafficUnavailable(
                    f"{error.filename} cannot be written ({error.strerror}): make room, or let this user write there"
                ) from error

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Let one process at a time change it."""
        with (self._directory / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
