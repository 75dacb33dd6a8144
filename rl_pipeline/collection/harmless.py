"""The promise of everything that an agent calls here: it returns, whatever happens inside."""

import functools
from collections.abc import Callable
from typing import Concatenate, ParamSpec, Protocol, TypeVar

from rl_pipeline.collection.outbox.counts import Counting


class Watched(Protocol):
    """Something whose faults are counted."""

    @property
    def counting(self) -> Counting:
        """Where."""


_Self = TypeVar("_Self", bound=Watched)
_Arguments = ParamSpec("_Arguments")


def harmless(
    method: Callable[Concatenate[_Self, _Arguments], None],
) -> Callable[Concatenate[_Self, _Arguments], None]:
    """A method whose exceptions are logged and counted, and go no further."""

    @functools.wraps(method)
    def call(self: _Self, /, *args: _Arguments.args, **kwargs: _Arguments.kwargs) -> None:
        try:
            method(self, *args, **kwargs)
        except Exception as error:  # noqa: BLE001 - the agent must not fail for being recorded
            self.counting.failed(method.__name__, error)

    return call
