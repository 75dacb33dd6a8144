"""Trouble with a store that passes: waited out a few times, and then raised."""

from collections.abc import Callable
from typing import TypeVar

from rl_pipeline.stores.objects import ObjectsUnavailable
from rl_pipeline.stores.stream import StreamUnavailable
from rl_pipeline.stores.warehouse import WarehouseUnavailable

_Result = TypeVar("_Result")

_WAITS_SECONDS = (1.0, 2.0, 4.0)
_PASSING = (StreamUnavailable, WarehouseUnavailable, ObjectsUnavailable)


class Patience:
    """Repeats what may be repeated: three times, after 1, 2 and 4 seconds."""

    def __init__(self, sleep: Callable[[float], None]) -> None:
        self._sleep = sleep

    def __call__(self, attempt: Callable[[], _Result]) -> _Result:
        """The result of the attempt; raises what the fourth one raises."""
        for seconds in _WAITS_SECONDS:
            try:
                return attempt()
            except _PASSING:
                self._sleep(seconds)
        return attempt()
