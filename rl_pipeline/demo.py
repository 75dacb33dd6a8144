"""`make demo`: what is built of the loop, for real: agents publish, the stream keeps, Dagster observes."""

from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime
from random import SystemRandom
from time import monotonic
from typing import TYPE_CHECKING

from rl_pipeline.collection.publishing import outgoing_message
from rl_pipeline.collection.samples import sample_trajectories
from rl_pipeline.embedded.stack import Stack, running_stack
from rl_pipeline.errors import PipelineError
from rl_pipeline.opening import open_stream, open_warehouse
from rl_pipeline.settings import Settings

if TYPE_CHECKING:
    import polars as pl

_TRAJECTORIES = 200
_PATIENCE_SECONDS = 120.0
_LAST_OBSERVATION = """
    SELECT observed_at, messages, bytes, last_sequence, lag, erased, overrun
    FROM stream_observations FINAL ORDER BY observed_at DESC LIMIT 1
"""


class DemoFailed(PipelineError):
    """The demo did not come to its end; the text says where to look."""


def run_demo(settings: Settings, *, tell: Callable[[str], None], prepare_stores: Callable[[Settings], None]) -> None:
    """Start a stack of its own, publish to it, and wait until Dagster has seen and stored what arrived."""
    foreign = [name.upper() for name in ("nats_url", "clickhouse_url") if name in settings.model_fields_set]
    if foreign:
        raise DemoFailed(f"the demo makes up data and must not reach real servers: unset {' and '.join(foreign)}")
    home = settings.rl_pipeline_home.resolve() / "demo"
    objects = str(home / "objects")
    own = {"dagster_home": None, "model_storage_path": objects, "trajectory_storage_path": objects}
    apart = settings.model_copy(update={"rl_pipeline_home": home, **own})
    with running_stack(apart, report=tell, prepare_stores=prepare_stores) as stack:
        if stack.supervisor.stop_requested.is_set():
            raise DemoFailed("interrupted")
        last = _publish(stack, tell)
        seen = _await_observation(stack, last)
        tell(f"\nDagster's sensor has observed the stream; ClickHouse keeps what it saw:\n{seen}\n")


def _publish(stack: Stack, tell: Callable[[str], None]) -> int:
    with open_stream(stack.settings) as stream:
        samples = sample_trajectories(_TRAJECTORIES, now=datetime.now(UTC), randomness=SystemRandom())
        started = monotonic()
        stored = stream.publish_many(outgoing_message(sample) for sample in samples)
        took = monotonic() - started
        last = max(published.sequence for published in stored)
        tell(f"\n{len(stored)} trajectories are on disk in JetStream after {took:.2f} s, the last as sequence {last}")
        return last


def _await_observation(stack: Stack, sequence: int) -> "pl.DataFrame":
    settings = stack.settings
    deadline = monotonic() + _PATIENCE_SECONDS
    with closing(open_warehouse(settings)) as tables:
        while not stack.supervisor.stop_requested.wait(0.5):
            stack.supervisor.tick()
            seen = tables.query(_LAST_OBSERVATION)
            if seen.height and seen["last_sequence"][0] >= sequence:
                return seen
            if monotonic() > deadline:
                raise DemoFailed(
                    f"Dagster saw nothing in {_PATIENCE_SECONDS:.0f} s: see the logs in {settings.rl_pipeline_home}"
                )
    raise DemoFailed("interrupted")
