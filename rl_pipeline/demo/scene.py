"""The running stack as the demo sees it: what it waits for, asks and is told."""

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from time import monotonic
from typing import Any

from rl_pipeline.demo.profile import DemoFailed
from rl_pipeline.demo.telling import Telling
from rl_pipeline.deployment import record
from rl_pipeline.deployment.state import DesiredState
from rl_pipeline.embedded.stack import Stack
from rl_pipeline.opening import open_stream, open_warehouse
from rl_pipeline.settings import Settings
from rl_pipeline.stores.jetstream import JetStream
from rl_pipeline.stores.jetstream_desired_state import JetStreamDesiredStates
from rl_pipeline.stores.warehouse import Warehouse

PATIENCE_SECONDS = 180.0
_LOOK_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class Scene:
    """A stack with open stores."""

    stack: Stack
    stream: JetStream
    tables: Warehouse
    tell: Telling
    started: float
    """By the monotonic clock."""

    @property
    def settings(self) -> Settings:
        """Of the stack."""
        return self.stack.settings

    def say(self, text: str) -> None:
        """Tell something, with the minutes and seconds since the beginning."""
        self.tell(f"{self._time()}  {text}")

    def progress(self, text: str) -> None:
        """Show what goes on now, until something else does; nothing when it is over."""
        self.tell.progress(f"{self._time()}    {text}" if text else "")

    def until(self, done: Callable[[], Any], otherwise: str, patience_seconds: float = PATIENCE_SECONDS) -> Any:
        """Wait until Dagster's sensors have seen what there is to do, and their runs have done it: what `done` gave."""
        deadline = monotonic() + patience_seconds
        while not self.stack.supervisor.stop_requested.is_set():
            self.stack.supervisor.tick()
            found = done()
            if found:
                return found
            if monotonic() > deadline:
                logs = self.settings.rl_pipeline_home
                raise DemoFailed(f"{otherwise} in {patience_seconds:.0f} s: see the UI, and the logs in {logs}")
            self.stack.supervisor.stop_requested.wait(_LOOK_SECONDS)
        raise DemoFailed("interrupted")

    def _time(self) -> str:
        minutes, seconds = divmod(int(monotonic() - self.started), 60)
        return f"{minutes:2d}:{seconds:02d}"

    def state(self) -> DesiredState | None:
        """What is to be served."""
        recorded = record.read(JetStreamDesiredStates(self.stream))
        return recorded.state if recorded else None

    def rows(self, sql: str, **parameters: Any) -> list[dict[str, Any]]:
        """Of the warehouse."""
        return self.tables.query(sql, parameters).to_dicts()


@contextmanager
def scene_of(stack: Stack, tell: Telling, started: float) -> Iterator[Scene]:
    """The scene for the length of a block."""
    with open_stream(stack.settings) as stream, closing(open_warehouse(stack.settings)) as tables:
        yield Scene(stack, stream, tables, tell, started)
