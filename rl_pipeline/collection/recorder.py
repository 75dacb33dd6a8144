"""Records what an agent does, one trajectory to a block:

    with Recorder(outbox, agent_id="my-agent", model="my-model", instructions=task) as trajectory:
        ...

`async with` does the same without holding up the event loop. Blocks may be nested, and run in parallel threads and
tasks: a block inside another belongs to a subordinate, and names its superior's trajectory.
"""

import asyncio
import contextlib
from collections.abc import Mapping
from concurrent.futures import Future
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any
from uuid import uuid4

from rl_pipeline.collection.outbox import Outbox
from rl_pipeline.collection.recording import OpenTrajectory, Place, current_trajectory
from rl_pipeline.contracts import SubordinateProfile


class Recorder:
    """Records one task; the block's end puts it on the disk, and it is sent from there.

    An exception goes on its way, and the trajectory ends as `failed`; what is no error, such as a cancellation or an
    interrupt, ends it as `abandoned`. With `opt_out` nothing at all is kept.
    """

    def __init__(
        self,
        outbox: Outbox,
        *,
        agent_id: str,
        model: str,
        model_version: str | None = None,
        instructions: str | None = None,
        session_id: str | None = None,
        trajectory_id: str | None = None,
        subordinate_profile: SubordinateProfile | None = None,
        task_context: Mapping[str, Any] | None = None,
        metadata: Mapping[str, Any] | None = None,
        opt_out: bool = False,
    ) -> None:
        self._outbox = outbox
        self._opt_out = opt_out
        self._identity = {
            "trajectory_id": trajectory_id,
            "agent_id": agent_id,
            "session_id": session_id,
            "subordinate_profile": subordinate_profile,
        }
        self._task_context = {"instructions": instructions, **(task_context or {})}
        self._metadata = {"model": model, "model_version": model_version, **(metadata or {})}
        self._trajectory: OpenTrajectory | None = None
        self._block: AbstractContextManager[None] = contextlib.nullcontext()

    def __enter__(self) -> OpenTrajectory:
        superior = current_trajectory()
        superior_id = superior.trajectory_id if superior else None
        begin = {
            **_known(self._identity),
            "trajectory_id": self._identity["trajectory_id"] or str(uuid4()),
            "session_id": self._identity["session_id"] or (superior.session_id if superior else str(uuid4())),
            "task_context": _known(self._task_context),
            "metadata": _known({"parent_trajectory_id": superior_id, **self._metadata}),
        }
        self._trajectory = OpenTrajectory(self._outbox, begin, opt_out=self._opt_out)
        self._block = Place(self._trajectory).entered()
        self._block.__enter__()
        return self._trajectory

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        written = self._finish(error)
        if written is not None:
            try:
                written.result(self._outbox.disk_seconds)
            except TimeoutError:
                self._late()

    async def __aenter__(self) -> OpenTrajectory:
        return self.__enter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        written = self._finish(error)
        if written is not None:
            try:
                # Shielded: what is being written is written, whoever loses patience.
                await asyncio.wait_for(asyncio.shield(asyncio.wrap_future(written)), self._outbox.disk_seconds)
            except TimeoutError:
                self._late()

    def _finish(self, error: BaseException | None) -> "Future[None] | None":
        self._block.__exit__(None, None, None)
        if self._trajectory is None:
            return None
        written = self._trajectory.finish(error)
        return written if self._outbox.disk_seconds > 0 else None

    def _late(self) -> None:
        self._outbox.counting.add("late", f"a trajectory was not on the disk after {self._outbox.disk_seconds:g} s")


def _known(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}
