"""The desired state for whoever starts while its store is away."""

from collections.abc import Sequence

import pytest

from rl_pipeline.stores.connecting_states import ConnectingStates
from rl_pipeline.stores.desired_state import StoredState
from rl_pipeline.stores.stream import StreamUnavailable


class Stored:
    """A store with one value."""

    def read(self) -> StoredState | None:
        return StoredState(b"value", 7)

    def swap(self, data: bytes, expected_revision: int) -> int | None:
        return expected_revision + len(data)

    def history(self) -> Sequence[StoredState]:
        return [StoredState(b"value", 7)]


def test_it_is_away_until_a_connection_is_there_and_then_stays_with_it() -> None:
    tries: list[int] = []

    def connect() -> Stored:
        tries.append(len(tries))
        if len(tries) < 3:
            raise StreamUnavailable("away")
        return Stored()

    states = ConnectingStates(connect)
    for _ in range(2):
        with pytest.raises(StreamUnavailable):
            states.read()
    assert states.read() == StoredState(b"value", 7)
    assert states.swap(b"other", 7) == 12
    assert states.history() == [StoredState(b"value", 7)]
    assert len(tries) == 3
