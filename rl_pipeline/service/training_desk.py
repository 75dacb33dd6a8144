"""Training jobs for callers: asked for, cancelled, looked at. With NATS away, what is asked for is kept.

What is said of a job is at most three seconds old, and says so (`as_of`): many who watch one job cost as much as one,
and where it was asked about just before, nobody waits for the warehouse.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from rl_pipeline.collection.publishing import outgoing_message
from rl_pipeline.contracts import Algorithm, TrainingCancel, TrainingRequest
from rl_pipeline.contracts.registry import validated
from rl_pipeline.contracts.training_status import JobStatus
from rl_pipeline.errors import PipelineError
from rl_pipeline.service.answers import (
    CancelAnswer,
    JobAnswer,
    LoopAnswer,
    StartAnswer,
    StopAnswer,
    job_answer,
    unaccepted_answer,
)
from rl_pipeline.service.connections import Connections
from rl_pipeline.service.dagster_api import DagsterUnavailable
from rl_pipeline.service.following import TrainingNews
from rl_pipeline.service.gathering import Gathering
from rl_pipeline.stores.stream import OutgoingMessage, StreamUnavailable
from rl_pipeline.stores.warehouse import WarehouseError, WarehouseUnavailable
from rl_pipeline.training.jobs.job import Attempt, Job
from rl_pipeline.training.jobs.outbox import keep, kept_requests
from rl_pipeline.training.jobs.reports import announcement, next_job_number
from rl_pipeline.training.jobs.requests import check_request, is_repetition
from rl_pipeline.training.jobs.rows import NoSuchJob, attempts_of, find_job, unfinished_jobs
from rl_pipeline.training.jobs.standings import STATUS_OF, newest_standings, standings_of

_FRESH_SECONDS = 0.5
_USABLE_SECONDS = 3.0
_MOST_REMEMBERED = 10_000
_MOST_AT_ONCE = 500
_log = logging.getLogger(__name__)

_ENDED: tuple[JobStatus, ...] = ("completed", "failed", "cancelled")


class JobIdTaken(PipelineError):
    """Another request was made under this id."""


class JobOver(PipelineError):
    """A job that has ended already."""


@dataclass(frozen=True, slots=True)
class _Before:
    """What was asked for under an id before."""

    job: Job | None
    request: TrainingRequest | None
    next_name: str
    """How the next job is called."""


class Terminate(Protocol):
    """Ends a run of Dagster."""

    async def terminate(self, run_id: str) -> bool:
        """See `DagsterApi.terminate`."""


class TrainingDesk:
    """Where jobs are asked for. Its stores may be away; see each method for what it raises then."""

    def __init__(
        self,
        connections: Connections,
        news: TrainingNews,
        runs: Terminate,
        *,
        algorithm: Algorithm,
        trajectories: str,
        clock: Callable[[], datetime],
    ) -> None:
        """`algorithm` is that of a request that names none, `trajectories` the stream that ingest reads."""
        self._connections = connections
        self._news = news
        self._runs = runs
        self._algorithm = algorithm
        self._trajectories = trajectories
        self._clock = clock
        self._reading = Gathering[str, bytes](self._read, "job statuses", _MOST_AT_ONCE)
        self._remembered: dict[str, tuple[float, bytes]] = {}
        self._refreshing: dict[str, asyncio.Task[None]] = {}

    def close(self) -> None:
        """Look nothing up any more."""
        self._reading.close()

    async def status(self, job_id: str) -> bytes:
        """A `JobAnswer` as JSON. Raises `NoSuchJob` and `WarehouseUnavailable`."""
        known = self._remembered.get(job_id)
        age = time.monotonic() - known[0] if known else _USABLE_SECONDS
        if known is None or age >= _USABLE_SECONDS:
            return await self._reading.ask(job_id)
        if age >= _FRESH_SECONDS and job_id not in self._refreshing:
            task = asyncio.get_running_loop().create_task(self._refresh(job_id))
            self._refreshing[job_id] = task
        return known[1]

    async def _refresh(self, job_id: str) -> None:
        """Look a job up for those who ask next; whoever asks once it is too old is told what went wrong."""
        try:
            with contextlib.suppress(PipelineError):
                await self._reading.ask(job_id)
        finally:
            self._refreshing.pop(job_id, None)

    async def jobs(self, *, status: JobStatus | None, since: datetime | None, limit: int) -> list[JobAnswer]:
        """Accepted jobs, those that changed last first. Raises `WarehouseUnavailable`."""

        def read() -> list[JobAnswer]:
            found = newest_standings(self._connections.warehouse(), status=status, since=since, limit=limit)
            return [job_answer(one, self._news.status(one.job.job_id), self._clock()) for one in found]

        return await asyncio.to_thread(read)

    async def loop(self) -> LoopAnswer:
        """What trains, what waits and what ended last. Raises `WarehouseUnavailable`."""
        running, queued, *ended = await asyncio.gather(
            self.jobs(status="running", since=None, limit=1),
            self.jobs(status="queued", since=None, limit=_MOST_AT_ONCE),
            *(self.jobs(status=status, since=None, limit=1) for status in _ENDED),
        )
        last = [job for found in ended for job in found]
        return LoopAnswer(
            status="running" if running else "waiting" if queued else "idle",
            current=running[0] if running else None,
            waiting=len(queued),
            latest=max(last, key=lambda job: job.changed_at or job.as_of, default=None),
        )

    async def start(self, request: TrainingRequest) -> StartAnswer:
        """Ask for a training over NATS; with that away, by the outbox in the warehouse.

        Raises `ContractError` for what would be refused, `JobIdTaken`, and `StreamUnavailable` where neither answers.
        """
        check_request(request, self._trajectories, self._algorithm)
        job_id = request.training_job_id
        before = await asyncio.to_thread(self._before, job_id)
        if before.request is not None and not is_repetition(request, before.request):
            raise JobIdTaken(
                f"another request was made under the id {job_id}, and that one counts: ask under another id"
            )
        fell_back = before.job is None and await self._send(outgoing_message(request), job_id)
        self._remembered.pop(job_id, None)
        if before.job is None and not fell_back:
            self._news.hear(request)
        if before.request is None:
            _log.info(
                "a training was asked for, sent by %s", "outbox" if fell_back else "NATS", extra={"job_id": job_id}
            )
        told = announcement(before.next_name, request.training_config.dataset.sample_size)
        if before.request is not None:
            told = f"{job_id} was asked for before: nothing more is started"
        if fell_back:
            told = f"NATS is away: it is kept in the warehouse, and starts when NATS is back. {told}"
        return StartAnswer(
            job_id=job_id,
            status=STATUS_OF[before.job.state] if before.job else "queued",
            message=told,
            sent_by="outbox" if fell_back else "nats",
            fell_back=fell_back,
            repeated=before.request is not None,
            status_url=f"/training/{job_id}/status",
        )

    async def cancel(self, job_id: str, by: str, reason: str | None) -> CancelAnswer:
        """End a job, wherever it stands. With NATS away its run is stopped through Dagster, and the rest follows.

        Raises `NoSuchJob`, `JobOver`, and what the stores raise.
        """
        job, attempts = await asyncio.to_thread(self._to_cancel, job_id)
        asked = {"training_job_id": job_id, "timestamp": self._clock(), "requester": by, "reason": reason}
        fell_back = await self._send(outgoing_message(validated(TrainingCancel, asked)), job_id)
        self._remembered.pop(job_id, None)
        _log.info("%s asked to cancel it, sent by %s", by, "outbox" if fell_back else "NATS", extra={"job_id": job_id})
        state = f"it is {job.state}" if job else "it is not accepted yet"
        if not fell_back:
            return CancelAnswer(
                job_id=job_id,
                message=f"asked to cancel {job_id}; {state}",
                sent_by="nats",
                fell_back=False,
                run_stopped=False,
            )
        stopped, how = await self._stop_run(attempts)
        return CancelAnswer(
            job_id=job_id,
            message=f"NATS is away: the cancellation is kept, and carried out when it is back; {state}, {how}",
            sent_by="outbox",
            fell_back=True,
            run_stopped=stopped,
        )

    async def stop(self, by: str, reason: str | None) -> StopAnswer:
        """Cancel the jobs that train now. Raises what the stores raise."""

        def running() -> list[str]:
            found = unfinished_jobs(self._connections.warehouse())
            return [job.job_id for job in found if job.state in ("running", "preempting")]

        stopping = [await self.cancel(job_id, by, reason) for job_id in await asyncio.to_thread(running)]
        told = "nothing trains now" if not stopping else f"stopping {', '.join(each.job_id for each in stopping)}"
        return StopAnswer(stopping=stopping, message=told)

    def _before(self, job_id: str) -> "_Before":
        try:
            tables = self._connections.warehouse()
            job = find_job(tables, job_id)
            known = job.request if job else self._news.request(job_id) or kept_requests(tables, [job_id]).get(job_id)
            return _Before(job, known, f"#{next_job_number(tables)}")
        except (WarehouseUnavailable, WarehouseError):
            # The request is what counts: the sensor of requests finds out all the same, and a number is for people.
            return _Before(None, self._news.request(job_id), job_id)

    def _to_cancel(self, job_id: str) -> tuple[Job | None, Sequence[Attempt]]:
        tables = self._connections.warehouse()
        job = find_job(tables, job_id)
        if job is None and not (self._news.request(job_id) or kept_requests(tables, [job_id])):
            raise _unknown(job_id)
        if job is not None and job.is_final:
            raise JobOver(f"the training job {job_id} is {job.state} already: there is nothing to cancel")
        return job, attempts_of(tables, [job_id])[job_id] if job else ()

    async def _send(self, message: OutgoingMessage, job_id: str) -> bool:
        """Publish a message, or keep it; whether it was kept. Raises `StreamUnavailable` where neither is possible."""

        def publish() -> None:
            self._connections.stream().publish(message.subject, message.data, message.message_id, message.headers)

        try:
            await asyncio.to_thread(publish)
        except StreamUnavailable as away:
            try:
                await asyncio.to_thread(lambda: keep(self._connections.warehouse(), message, job_id, self._clock()))
            except (WarehouseUnavailable, WarehouseError) as nowhere:
                raise StreamUnavailable(f"neither NATS nor the warehouse answers ({nowhere}): {away}") from nowhere
            return True
        return False

    async def _stop_run(self, attempts: Sequence[Attempt]) -> tuple[bool, str]:
        run_id = attempts[-1].run_id if attempts and attempts[-1].is_open else ""
        if not run_id:
            return False, "and no run of it is known"
        try:
            stopped = await self._runs.terminate(run_id)
        except DagsterUnavailable as away:
            return False, f"and its run goes on: {away}"
        return stopped, f"and Dagster {'stops' if stopped else 'cannot stop'} its run {run_id}"

    def _read(self, job_ids: Sequence[str]) -> list[bytes | Exception]:
        """The statuses of all of them, by at most three queries."""
        unique = list(dict.fromkeys(job_ids))
        tables = self._connections.warehouse()
        found = standings_of(tables, unique)
        now, read_at = self._clock(), time.monotonic()
        answers = {job_id: job_answer(one, self._news.status(job_id), now) for job_id, one in found.items()}
        unaccepted = {each: asked for each in unique if each not in found and (asked := self._news.request(each))}
        for job_id, request in unaccepted.items():
            answers[job_id] = unaccepted_answer(request, "asked", self._news.status(job_id), now)
        if missing := [job_id for job_id in unique if job_id not in answers]:
            for job_id, request in kept_requests(tables, missing).items():
                answers[job_id] = unaccepted_answer(request, "kept", None, now)
        if len(self._remembered) > _MOST_REMEMBERED:
            self._remembered.clear()
        encoded = {job_id: answer.model_dump_json(exclude_none=True).encode() for job_id, answer in answers.items()}
        self._remembered.update({job_id: (read_at, data) for job_id, data in encoded.items()})
        return [encoded.get(job_id) or _unknown(job_id) for job_id in job_ids]


def _unknown(job_id: str) -> NoSuchJob:
    return NoSuchJob(f"there is no training job {job_id}: POST /training/start asks for one, and GET /jobs lists them")
