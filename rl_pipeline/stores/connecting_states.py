"""The desired state for whoever must start while its store is away: connects when it is first asked."""

from collections.abc import Callable, Sequence

from rl_pipeline.stores.desired_state import DesiredStates, StoredState


class ConnectingStates:
    """The port over a connection that is opened on demand. `connect` raises `StreamUnavailable` while it cannot be."""

    def __init__(self, connect: Callable[[], DesiredStates]) -> None:
        self._connect = connect
        self._states: DesiredStates | None = None

    def read(self) -> StoredState | None:
        """See `DesiredStates.read`."""
        return self._connected().read()

    def swap(self, data: bytes, expected_revision: int) -> int | None:
        """See `DesiredStates.swap`."""
        return self._connected().swap(data, expected_revision)

    def history(self) -> Sequence[StoredState]:
        """See `DesiredStates.history`."""
        return self._connected().history()

    def _connected(self) -> DesiredStates:
        if self._states is None:
            self._states = self._connect()
        return self._states
