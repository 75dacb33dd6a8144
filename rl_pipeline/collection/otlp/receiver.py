"""From requests of OTLP to trajectories in an outbox: spans wait in files until their trace is complete.

A trace is complete when its root has come and for some seconds nothing more, or when nothing has come for long. What a
request brought is on the disk before it is answered: a process that is killed loses none of it, and the next one goes
on. While it waits it is as it came, because only the whole trace tells what is a secret: such files are their owner's
alone. Of what cannot be used, whatever tells a call to a model is kept, redacted and with the reason, in
`refused.jsonl`, which `rl-pipeline import` takes; the rest could never be a trajectory, and goes.
"""

import contextlib
import json
import os
import re
import threading
import time
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rl_pipeline.collection.formats.format import NotOfFormat, Origin
from rl_pipeline.collection.formats.importing import UNEXPECTED
from rl_pipeline.collection.formats.otlp import NAME, OtlpTraces
from rl_pipeline.collection.formats.otlp_spans import call_of, flattened, located_spans, request_of
from rl_pipeline.collection.formats.refusals import FILE_NAME, Refusal
from rl_pipeline.collection.formats.values import JsonObject, as_object, as_text
from rl_pipeline.collection.outbox import Outbox
from rl_pipeline.contracts import CLAIMED_LIMITS, ContractError, serialize, validate_trajectory
from rl_pipeline.redaction.redactor import SensitiveKey

_TRACE_ID, _SPAN_ID = re.compile("[0-9a-f]{32}"), re.compile("[0-9a-f]{16}")
_SUFFIX = ".trace.jsonl"
_REMEMBERED = 10_000
_LOOK_SECONDS = 0.5


@dataclass(frozen=True)
class ReceiverLimits:
    """How long is waited for spans, and how much may wait."""

    settle_seconds: float = 5.0
    """After the root has come, without another span."""
    idle_seconds: float = 300.0
    """Without a root."""
    max_request_bytes: int = 64 * 1024 * 1024
    """Packed or not."""
    max_trace_bytes: int = 64 * 1024 * 1024
    max_waiting_bytes: int = 1024 * 1024 * 1024
    max_refused_bytes: int = 64 * 1024 * 1024
    """Of the refused, the newest are kept: so much, and as much again."""


@dataclass(frozen=True)
class Rejected:
    """How many spans of a request were not taken, and why the last of them was not."""

    spans: int = 0
    reason: str = ""


@dataclass
class _Trace:
    path: Path
    size: int
    latest: float
    has_root: bool


class NoRoomForSpans(Exception):
    """More waits than may; whoever sends is to try again later."""


class OtlpReceiver:
    """Takes requests from any thread. One process at a time may use a directory."""

    def __init__(self, outbox: Outbox, directory: Path, limits: ReceiverLimits | None = None) -> None:
        """Go on with what an earlier process left in the directory."""
        self._outbox = outbox
        self._directory = directory.absolute()
        self.limits = limits or ReceiverLimits()
        self._lock = threading.Lock()
        self._refusing = threading.Lock()
        self._done: OrderedDict[str, None] = OrderedDict()
        self._stopping = threading.Event()
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._traces = {path.name.removesuffix(_SUFFIX): _left(path) for path in self._directory.glob(f"*{_SUFFIX}")}
        self._thread = threading.Thread(target=self._run, name="otlp traces", daemon=True)
        self._thread.start()

    def take(self, request: Any) -> Rejected:
        """Keep the spans of a request. Raises `NotOfFormat` and `NoRoomForSpans`; an `OSError` is for later, too."""
        if not OtlpTraces().fits(request):
            raise NotOfFormat("a request has `resourceSpans`: send OTLP's JSON")
        usable: list[tuple[JsonObject, Any]] = []
        unusable: list[tuple[JsonObject, Any, str]] = []
        for place, span in located_spans(request):
            if reason := _fault(span):
                unusable.append((place, span, reason))
            else:
                usable.append((place, span))
        with self._lock:
            if sum(trace.size for trace in self._traces.values()) > self.limits.max_waiting_bytes:
                raise NoRoomForSpans
            for trace_id, part in OtlpTraces().groups(request_of(usable)):
                if reason := self._keep(trace_id, part):
                    unusable += [(place, span, reason) for place, span in located_spans(part)]
        for place, span, reason in unusable:
            self._refuse([request_of([(place, span)])], "unusable_span", reason)
        return Rejected(len(unusable), unusable[-1][2]) if unusable else Rejected()

    def close(self) -> None:
        """End. Traces that are not complete wait for the next process."""
        self._stopping.set()
        self._thread.join(30)

    def _keep(self, trace_id: str, part: JsonObject) -> str | None:
        """Keep spans of one trace, or say why not."""
        line = json.dumps(part, ensure_ascii=True).encode() + b"\n"
        trace = self._traces.get(trace_id)
        if trace_id in self._done:
            return "its trace was complete already: import it by itself, if it matters"
        if (trace.size if trace else 0) + len(line) > self.limits.max_trace_bytes:
            return "its trace has too many spans: import it by itself, if it matters"
        if trace is None:
            trace = self._traces[trace_id] = _Trace(self._directory / f"{trace_id}{_SUFFIX}", 0, 0.0, has_root=False)
        _append(trace.path, line)
        trace.size += len(line)
        trace.latest = time.monotonic()
        trace.has_root = trace.has_root or any(_is_root(span) for _, span in located_spans(part))
        return None

    def _refuse(self, requests: list[JsonObject], code: str, detail: str) -> None:
        """Keep what was refused, if it can ever be a trajectory: what tells no call to a model cannot."""
        if not _tell_a_call(requests):
            return
        origin, redactor = Origin("otlp receiver", datetime.now(UTC)), self._outbox.redactor()
        try:
            refusal = Refusal(origin, NAME, code, detail, redactor.redact(requests).tree)
        except SensitiveKey:
            refusal = Refusal(origin, NAME, code, detail, text=redactor.redact_text(json.dumps(requests)).text)
        line = json.dumps(refusal.line(), ensure_ascii=True).encode() + b"\n"
        file = self._directory / FILE_NAME
        with self._refusing, contextlib.suppress(OSError):
            if file.exists() and file.stat().st_size > self.limits.max_refused_bytes:
                file.replace(file.with_name(f"earlier-{FILE_NAME}"))
            _append(file, line)

    def _run(self) -> None:
        while not self._stopping.wait(_LOOK_SECONDS):
            for trace_id in self._complete():
                try:
                    self._send(trace_id)
                except Exception as error:  # noqa: BLE001 - the others must go, and this one comes again
                    self._outbox.counting.failed("turning a trace into a trajectory", error)

    def _complete(self) -> list[str]:
        now, limits = time.monotonic(), self.limits
        with self._lock:
            return [
                trace_id
                for trace_id, trace in self._traces.items()
                if now - trace.latest >= (limits.settle_seconds if trace.has_root else limits.idle_seconds)
            ]

    def _send(self, trace_id: str) -> None:
        """A trace becomes a trajectory in the outbox, or is refused; then its file goes."""
        with self._lock:
            path = self._traces[trace_id].path
            # From here on what comes is late: what is read now is all that there is.
            self._done[trace_id] = None
            while len(self._done) > _REMEMBERED:
                self._done.popitem(last=False)
        requests = list(_requests(path))
        try:
            (tree,) = OtlpTraces().read(requests, Origin("otlp receiver", datetime.now(UTC)))
            whole = json.loads(serialize(validate_trajectory(tree, limits=CLAIMED_LIMITS)))
        except NotOfFormat as error:
            self._outbox.counting.add("empty", "a trace cannot be a trajectory")
            self._refuse(requests, "not_of_format", str(error))
        except ContractError as error:
            self._refuse(requests, error.limit, str(error))
        except UNEXPECTED as error:
            self._refuse(requests, "not_of_format", f"its structure is not that of {NAME} ({type(error).__name__})")
        else:
            if not put_whole(self._outbox, whole):
                self._refuse(requests, "outbox", "the outbox had no room for it: make some, and import it")
        path.unlink()
        with self._lock:
            del self._traces[trace_id]


def put_whole(outbox: Outbox, tree: JsonObject) -> bool:
    """Have an outbox write a whole trajectory; whether it has. Nobody else may finish trajectories in it meanwhile."""
    finished = outbox.counts.finished
    ends = ("end_timestamp", "task_context", "metadata")
    begin = {name: value for name, value in tree.items() if name not in ("turns", "end_timestamp")}
    outbox.write(tree["trajectory_id"], "begin", begin).result()
    outbox.counting.add("begun")
    for turn in tree["turns"]:
        # One at a time: more parts than the outbox lets wait would make it give the trajectory up.
        outbox.write(tree["trajectory_id"], "turn", {"end_timestamp": turn["timestamp"], **turn}).result()
    outbox.write(tree["trajectory_id"], "end", {name: tree[name] for name in ends}).result()
    return outbox.counts.finished > finished


def _fault(span: Any) -> str | None:
    trace, identity = (as_text(as_object(span).get(name)).lower() for name in ("traceId", "spanId"))
    if not _TRACE_ID.fullmatch(trace):  # who exports must keep to OTLP's JSON; what lies in a file is read as it is
        return "its traceId has not 32 hexadecimal digits"
    if not _SPAN_ID.fullmatch(identity):
        return "its spanId has not 16 hexadecimal digits"
    return None


def _tell_a_call(requests: list[JsonObject]) -> bool:
    """Whether there is a call to a model in it, as far as it can be read."""
    spans = (flattened(as_object(span), 0) for request in requests for _, span in located_spans(request))
    try:
        return any(map(call_of, spans))
    except UNEXPECTED:
        return True


def _is_root(span: Any) -> bool:
    return not as_object(span).get("parentSpanId")


def _left(path: Path) -> _Trace:
    """A trace that an earlier process had not finished with; a line that it had not finished goes."""
    with path.open("r+b") as file:
        file.truncate(file.read().rfind(b"\n") + 1)
    roots = (_is_root(span) for request in _requests(path) for _, span in located_spans(request))
    return _Trace(path, path.stat().st_size, time.monotonic(), has_root=any(roots))


def _requests(path: Path) -> Iterator[JsonObject]:
    """What was kept of a trace."""
    with path.open("rb") as file:
        for line in file:
            yield json.loads(line)


def _append(path: Path, line: bytes) -> None:
    """Add a line, which is on the disk afterwards, or nothing of it. Raises `OSError`."""
    descriptor = os.open(path, os.O_CREAT | os.O_APPEND | os.O_WRONLY | os.O_CLOEXEC, 0o600)
    before = os.fstat(descriptor).st_size
    try:
        rest = memoryview(line)
        while rest:
            rest = rest[os.write(descriptor, rest) :]
        os.fsync(descriptor)
    except OSError:
        os.ftruncate(descriptor, before)
        raise
    finally:
        os.close(descriptor)
