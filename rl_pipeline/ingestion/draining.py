"""From the stream into the warehouse: every sequence of a range gets its row in the ledger, whatever became of it.

A range can be drained again at any time: what is done under the revision is not touched. Messages are read, judged and
stored in batches, a bounded number at a time, so that memory does not grow with the backlog.
"""

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from hashlib import sha256

from rl_pipeline.ingestion.committing import Committer
from rl_pipeline.ingestion.judging import Judgement
from rl_pipeline.ingestion.ledger import (
    Known,
    StreamRecreated,
    current_revision,
    known_rows,
    last_message,
    outdated_sequences,
    rows_of,
    sequences_done,
    unknown_sequences,
    write_lost,
)
from rl_pipeline.ingestion.patience import Patience
from rl_pipeline.ingestion.reports import DrainReport, Tally
from rl_pipeline.ingestion.tombstones import read_erasures, refuse_unrecognizable
from rl_pipeline.ingestion.workers import Bench, GetJudgements, Judging, OpenObjects, open_judging
from rl_pipeline.redaction.policy import RedactionKey, RedactionPolicy
from rl_pipeline.stores.objects import ObjectsUnavailable
from rl_pipeline.stores.stream import MessageGone, StoredMessage, Stream, StreamState
from rl_pipeline.stores.warehouse import Warehouse

POINTS = ("after_read", "after_judging", "after_content", "after_dead_letters", "after_ledger")
"""Where `reached` is called, in the order of one batch."""

_BATCH_MESSAGES = 500
# So many sequences of the ledger are held in memory at a time.
_WINDOW = 20_000
# Fewer messages are judged in this process: starting others takes seconds, in which it judges as many.
_FEW_MESSAGES = 2000


@dataclass(frozen=True)
class Replayed:
    """What a replay did. `gone` are the sequences that the stream no longer has; their rows are as they were."""

    report: DrainReport
    gone: tuple[int, ...]


@dataclass(frozen=True)
class _Batch:
    """Messages to judge, what the ledger said of them, and the gaps before them with the time of what follows each."""

    messages: Sequence[StoredMessage]
    known: Mapping[int, Known]
    gaps: Sequence[tuple[range, datetime]] = ()


def drain(
    messages: Stream,
    warehouse: Warehouse,
    *,
    stream: str,
    first: int,
    last: int,
    policy: RedactionPolicy,
    open_raw_objects: OpenObjects,
    previous_keys: Sequence[RedactionKey] = (),
    workers: int = 1,
    clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    sleep: Callable[[float], None] = time.sleep,
    reached: Callable[[str], None] = lambda _: None,
) -> DrainReport:
    """Ingest the sequences from `first` to `last`, as far as they are not done under the current revision.

    `open_raw_objects` opens the store of claims, in every worker; it must be picklable. Trouble with a store is waited
    out three times and then raised; draining the range again resumes it. `reached` hears the name of each of `POINTS`.
    Raises `StreamRecreated` where the stream is not the one that the ledger knows, and `RedactionKeyLost` where users
    were erased whom these keys do not recognize.
    """
    began = clock()
    bench = Bench(policy, tuple(previous_keys), open_raw_objects)
    ingest = _Ingest(messages, warehouse, stream, bench, workers=workers, clock=clock, sleep=sleep, reached=reached)
    state = ingest.state()
    first, last = max(first, 1), min(last, state.last_sequence)
    done = ingest.patiently(partial(sequences_done, warehouse, stream, first, last, ingest.revision))
    sequences = max(0, last - first + 1)
    tally = ingest.run(ingest.batches(first, last, state.first_sequence), sequences - done)
    kept = ingest.patiently(partial(outdated_sequences, warehouse, stream, first, last, ingest.revision))
    return tally.report(first, last, sequences, kept, (clock() - began).total_seconds())


def replay(
    messages: Stream,
    warehouse: Warehouse,
    *,
    stream: str,
    sequences: Iterable[int],
    policy: RedactionPolicy,
    open_raw_objects: OpenObjects,
    previous_keys: Sequence[RedactionKey] = (),
    clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    sleep: Callable[[float], None] = time.sleep,
) -> Replayed:
    """Judge refused sequences again, though they are done: what is accepted now is stored, once.

    Sequences that are not refused, or no longer in the stream, are left as they are. Raises as `drain` does.
    """
    began = clock()
    bench = Bench(policy, tuple(previous_keys), open_raw_objects)
    ingest = _Ingest(messages, warehouse, stream, bench, workers=0, clock=clock, sleep=sleep, reached=lambda _: None)
    wanted = sorted(set(sequences))
    gone: list[int] = []
    tally = ingest.run(ingest.refused_batches(wanted, gone), 0)
    first, last = (wanted[0], wanted[-1]) if wanted else (1, 0)
    report = tally.report(first, last, len(wanted), 0, (clock() - began).total_seconds())
    return Replayed(report, tuple(gone))


class _Ingest:
    """One ingest: where messages come from, who judges them, and where they go."""

    def __init__(
        self,
        messages: Stream,
        warehouse: Warehouse,
        stream: str,
        bench: Bench,
        *,
        workers: int,
        clock: Callable[[], datetime],
        sleep: Callable[[float], None],
        reached: Callable[[str], None],
    ) -> None:
        self.patiently = Patience(sleep)
        self.patiently(partial(refuse_unrecognizable, warehouse, (bench.policy.key, *bench.previous_keys)))
        self.revision = self.patiently(partial(current_revision, warehouse, bench.policy))
        self._messages = messages
        self._warehouse = warehouse
        self._stream = stream
        self._bench = bench
        self._workers = workers
        self._clock = clock
        self._reached = reached
        self._committer = Committer(
            messages, warehouse, stream=stream, revision=self.revision, clock=clock, reached=reached
        )

    def state(self) -> StreamState:
        """What the stream holds, if it is the one that the ledger knows; else raises `StreamRecreated`."""
        # The ledger first: while it is read, other ingests go on.
        sequence, digest = self.patiently(partial(last_message, self._warehouse, self._stream))
        state = self.patiently(partial(self._messages.state, self._stream))
        if state.last_sequence < sequence:
            raise StreamRecreated(self._stream, f"it ends at {state.last_sequence}, and {sequence} is ingested already")
        for message in self._get([sequence] if sequence else [], []):
            if sha256(message.data).hexdigest() != digest:
                raise StreamRecreated(self._stream, f"{sequence} is not the message that was ingested")
        return state

    def run(self, batches: Iterable[_Batch], expected: int) -> Tally:
        """Judge and store the batches in their order, while the next ones are read and judged."""
        tally = Tally()
        with open_judging(self._bench, self._workers if expected >= _FEW_MESSAGES else 0) as judging:
            flights: deque[tuple[_Batch, GetJudgements]] = deque()
            for batch in batches:
                self._reached("after_read")
                flights.append((batch, self._submit(judging, batch.messages)))
                if len(flights) > judging.ahead:
                    self._land(judging, *flights.popleft(), tally)
            while flights:
                self._land(judging, *flights.popleft(), tally)
        return tally

    def batches(self, first: int, last: int, first_in_stream: int) -> Iterator[_Batch]:
        """What is to be done of a range; a batch that is done already is not even read."""
        waiting = [gap for gap in [range(first, min(first_in_stream, last + 1))] if gap]
        for start in range(max(first, first_in_stream), last + 1, _WINDOW):
            window = range(start, min(start + _WINDOW, last + 1))
            known = self.patiently(partial(known_rows, self._warehouse, self._stream, window[0], window[-1]))
            todo = [
                sequence for sequence in window if sequence not in known or known[sequence].revision < self.revision
            ]
            wanted = set(todo)
            for run in _runs(todo, _BATCH_MESSAGES):
                expected = run.start
                for found in self._read(run):
                    gaps: list[tuple[range, datetime]] = []
                    for message in found:
                        waiting += _unknown(range(expected, message.sequence), known)
                        gaps += [(gap, message.time) for gap in waiting]
                        waiting, expected = [], message.sequence + 1
                    yield _Batch([message for message in found if message.sequence in wanted], known, gaps)
                waiting += _unknown(range(expected, run.stop), known)
        if waiting:
            time_after = self._time_after(last)
            yield _Batch([], {}, [(gap, time_after) for gap in waiting])

    def refused_batches(self, sequences: Sequence[int], gone: list[int]) -> Iterator[_Batch]:
        """The refused ones of the sequences, as far as the stream has them; the others of them are added to `gone`."""
        for start in range(0, len(sequences), _BATCH_MESSAGES):
            some = sequences[start : start + _BATCH_MESSAGES]
            known = self.patiently(partial(rows_of, self._warehouse, self._stream, some))
            refused = [sequence for sequence in some if sequence in known and known[sequence].verdict == "refused"]
            yield _Batch(self._get(refused, gone), known)

    def _get(self, sequences: Iterable[int], gone: list[int]) -> list[StoredMessage]:
        found: list[StoredMessage] = []
        for sequence in sequences:
            try:
                found.append(self.patiently(partial(self._messages.get, self._stream, sequence)))
            except MessageGone:
                gone.append(sequence)
        return found

    def _read(self, run: range) -> Iterator[Sequence[StoredMessage]]:
        first = run.start
        while first < run.stop:
            found = self.patiently(partial(self._next, first, run[-1], _BATCH_MESSAGES))
            if not found:
                return
            yield found
            first = found[-1].sequence + 1

    def _submit(self, judging: Judging, messages: Sequence[StoredMessage]) -> GetJudgements:
        erasures = self.patiently(partial(read_erasures, self._warehouse))
        return judging.submit(messages, erasures)

    def _judge_now(self, judging: Judging, messages: Sequence[StoredMessage]) -> list[Judgement]:
        return self._submit(judging, messages)()

    def _land(self, judging: Judging, batch: _Batch, judgements: GetJudgements, tally: Tally) -> None:
        for gap, following in batch.gaps:
            tally.lost += self.patiently(partial(unknown_sequences, self._warehouse, self._stream, gap))
            self.patiently(
                partial(write_lost, self._warehouse, self._stream, gap, stream_time=following, revision=self.revision)
            )
        messages = batch.messages
        while messages:
            try:
                judged = judgements()
            except ObjectsUnavailable:
                judged = self.patiently(partial(self._judge_now, judging, messages))
            self._reached("after_judging")
            self._commit(judging, judged, batch.known, tally)
            # Large claims come in parts.
            messages = messages[len(judged) :]
            judgements = partial(self._judge_now, judging, messages)

    def _commit(self, judging: Judging, judged: list[Judgement], known: Mapping[int, Known], tally: Tally) -> None:
        """Store judgements, and with them, uncounted, those on duplicates that nothing stored stands for any more."""
        orphans = self.patiently(partial(self._committer.orphans, judged, known))
        messages = self._get(sorted(orphans), [])
        together = list(judged)
        while messages:
            more = self.patiently(partial(self._judge_now, judging, messages))
            together, messages = together + more, messages[len(more) :]
        stored = self.patiently(partial(self._committer.commit, together, {**known, **orphans} if orphans else known))
        tally.count(stored[: len(judged)])

    def _time_after(self, sequence: int) -> datetime:
        """When the stream stored the first message after a sequence; now, where there is none."""
        found = self.patiently(partial(self._next, sequence + 1, 2**62, 1))
        return found[0].time if found else self._clock()

    def _next(self, first: int, last: int, count: int) -> Sequence[StoredMessage]:
        # Each attempt reads anew: one that failed would end a reading as if nothing more was there.
        return next(self._messages.read(self._stream, first, last, count), ())


def _runs(sequences: Sequence[int], bridge: int) -> Iterator[range]:
    """The ascending sequences as few ranges, across holes that are shorter than `bridge`."""
    start = 0
    for place, sequence in enumerate(sequences):
        if place + 1 == len(sequences) or sequences[place + 1] - sequence > bridge:
            yield range(sequences[start], sequence + 1)
            start = place + 1


def _unknown(missing: range, known: Mapping[int, Known]) -> list[range]:
    """What is missing and not in the ledger, as ranges."""
    return list(_runs([sequence for sequence in missing if sequence not in known], 1))
