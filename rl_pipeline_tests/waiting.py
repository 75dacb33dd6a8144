"""Waiting for a condition, in place of sleeping for a time."""

import time
from collections.abc import Callable
from typing import Any


def wait_until(holds: Callable[[], Any], what: str = "the condition", seconds: float = 120) -> Any:
    """What `holds` returns once it is true."""
    deadline = time.monotonic() + seconds
    while not (outcome := holds()):
        assert time.monotonic() < deadline, f"{what} did not come to hold"
        time.sleep(0.02)
    return outcome
