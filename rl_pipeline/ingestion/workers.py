"""The processes that judge: spawned, each with the rules compiled once, and gone when their parent is."""

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

from rl_pipeline.contracts import CLAIMED_LIMITS, ClaimCheck, ContractError
from rl_pipeline.errors import PipelineError
from rl_pipeline.ingestion.judging import Erasures, Judgement, judge
from rl_pipeline.redaction.policy import RedactionKey, RedactionPolicy
from rl_pipeline.redaction.redactor import Redactor
from rl_pipeline.stores.objects import CorruptObject, ObjectMissing, Objects
from rl_pipeline.stores.stream import StoredMessage

OpenObjects = Callable[[], Objects]
GetJudgements = Callable[[], list[Judgement]]

# Claims can make judgements far larger than their messages: a batch is handed back in parts of about this much.
_PART_BYTES = 32 * 2**20


class Judging(Protocol):
    """Judges batches of messages, some of them ahead of their time."""

    @property
    def ahead(self) -> int:
        """How many batches are worth submitting before the result of the first is asked for."""

    def submit(self, messages: Sequence[StoredMessage], erasures: Erasures) -> GetJudgements:
        """Begin to judge. What is returned gives the judgements on the first messages, at least one: large ones come
        in parts. It raises what the judging raised, and `WorkerDied` when a process is gone."""


class WorkerDied(PipelineError):
    """A process that judged messages is gone."""


@dataclass(frozen=True)
class Bench:
    """What it takes to judge. It can be sent to another process, where `open_objects` opens the store of claims."""

    policy: RedactionPolicy
    previous_keys: tuple[RedactionKey, ...]
    open_objects: OpenObjects


_redactors: dict[str, Redactor] = {}


def _redactor_of(policy: RedactionPolicy) -> Redactor:
    """The redactor of a policy, made once in a process: compiling its rules takes a second."""
    if policy.revision not in _redactors:
        _redactors[policy.revision] = Redactor(policy)
    return _redactors[policy.revision]


class Judge:
    """Judges messages one by one."""

    def __init__(self, bench: Bench) -> None:
        self._keys = (bench.policy.key, *bench.previous_keys)
        self._redactor = _redactor_of(bench.policy)
        self._open_objects = bench.open_objects
        self._objects: Objects | None = None

    @property
    def ahead(self) -> int:
        """Nothing is judged ahead of its time in this very process."""
        return 0

    def submit(self, messages: Sequence[StoredMessage], erasures: Erasures) -> GetJudgements:
        """See `Judging.submit`."""
        return lambda: self.judge(messages, erasures)

    def judge(self, messages: Sequence[StoredMessage], erasures: Erasures) -> list[Judgement]:
        """The judgements on the first messages, at least one, up to so many as fit into one part."""
        judgements: list[Judgement] = []
        size = 0
        for message in messages:
            judgement = judge(message, self._redactor, self._keys, erasures, self._fetch_claim)
            judgements.append(judgement)
            size += len(judgement.trajectory.document) if judgement.trajectory else 0
            if size >= _PART_BYTES:
                break
        return judgements

    def _fetch_claim(self, ticket: ClaimCheck) -> bytes:
        if self._objects is None:
            self._objects = self._open_objects()
        try:
            # Asked first: what somebody else put there may be of any size.
            if self._objects.stat(ticket.key).size <= CLAIMED_LIMITS.max_bytes:
                return self._objects.get(ticket.key)
        except ObjectMissing:
            missing = ContractError("claim_missing", "claim_check.key", "absent", "publish it again: it is not stored")
        except CorruptObject:
            missing = ContractError("claim_check", "claim_check.sha256", "bytes", "publish it again: it is damaged")
        else:
            advice = f"store at most {CLAIMED_LIMITS.max_bytes} bytes for one trajectory"
            missing = ContractError("max_bytes", "claim_check.size_bytes", "bytes", advice)
        raise missing


class _Processes:
    """As `Judge`, on several processes at once."""

    def __init__(self, pool: ProcessPoolExecutor, processes: int) -> None:
        self._pool = pool
        # One batch for each process, and one that waits for whoever is free first.
        self.ahead = processes + 1

    def submit(self, messages: Sequence[StoredMessage], erasures: Erasures) -> GetJudgements:
        """See `Judging.submit`."""
        try:
            judging = self._pool.submit(_judge, messages, erasures)
        except BrokenProcessPool:
            raise _died() from None
        return lambda: _result_of(judging)


@contextmanager
def open_judging(bench: Bench, processes: int) -> Iterator[Judging]:
    """Somebody to judge: that many processes, or this one where there are none."""
    if not processes:
        yield Judge(bench)
        return
    # Spawned: a fork of a process with an engine or a connection open hangs.
    spawn = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(processes, spawn, _start, (bench,))
    try:
        yield _Processes(pool, processes)
    finally:
        pool.shutdown(cancel_futures=True)


def _result_of(judging: "Future[list[Judgement]]") -> list[Judgement]:
    try:
        return judging.result()
    except BrokenProcessPool:
        raise _died() from None


def _died() -> WorkerDied:
    return WorkerDied("a process that judges messages was killed: give the machine more memory, or use fewer workers")


_at_work: Judge | PipelineError | None = None


def _start(bench: Bench) -> None:
    global _at_work  # noqa: PLW0603  # one judge per process, made when it starts
    # An interrupt is for the parent: what it leaves undone is not worth a word here.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    try:
        _at_work = Judge(bench)
    except PipelineError as unfit:
        # Told to whoever asks: an error here would only look like a process that died.
        _at_work = unfit


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _judge(messages: Sequence[StoredMessage], erasures: Erasures) -> list[Judgement]:
    assert _at_work is not None  # noqa: S101  # `_start` has run
    if isinstance(_at_work, PipelineError):
        raise _at_work
    return _at_work.judge(messages, erasures)
