"""Traces as files: `rl_data/traces/YYYYMMDD/<agent>/trace_*.json`, with `rl_data/metadata/trace_index.json`.

They are the owner's, as they were and not redacted; `rl-pipeline import rl_data` publishes them, redacted. Feedback is
kept beside them in `metadata/feedback.jsonl`, for `rl-pipeline publish --subject agent.rl.feedback.v1`.
"""

import fcntl
import json
import os
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, BinaryIO

from rl_pipeline.collection.formats.massgen_traces import place_of
from rl_pipeline.collection.massgen.spans import Span, Trace
from rl_pipeline.contracts import Feedback, serialize

_LONGEST_TASK = 100
_EMPTY: dict[str, Any] = {"traces": {}, "agents": {}}


class LocalTraces:
    """The traces below a directory. Several processes may write there at once; an agent never waits for the disk."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory.absolute()
        self._index = self._directory / "metadata" / "trace_index.json"
        # One thread, which the end of the program waits for.
        self._writing = ThreadPoolExecutor(1, thread_name_prefix="massgen traces")

    def begin(self, trace: Trace) -> None:
        """A trace is written when it has ended."""

    def add(self, trace: Trace, span: Span) -> None:
        """See `begin`."""

    def forget(self, trace: Trace) -> None:
        """See `begin`."""

    def finish(self, trace: Trace) -> "Future[None]":
        """Have a trace written; the future ends, or fails, with that."""
        return self._writing.submit(self._save, trace.to_dict())

    def give_feedback(self, feedback: Feedback) -> None:
        """Have feedback written."""
        self._writing.submit(self._append, serialize(feedback))

    def index(self) -> dict[str, Any]:
        """What `trace_index.json` says: traces by id, and the ids of each agent's traces, oldest first."""
        try:
            found: dict[str, Any] = json.loads(self._index.read_bytes())
        except FileNotFoundError:
            return {name: dict(value) for name, value in _EMPTY.items()}
        return found

    def read(self, file: str) -> Trace:
        """The trace of a file that the index names."""
        return Trace.from_dict(json.loads((self._directory / file).read_bytes()))

    def _save(self, trace: dict[str, Any]) -> None:
        day = datetime.fromtimestamp(trace["start_time"], UTC).date().isoformat()
        file = f"{place_of(trace['trace_id'], trace['agent_id'], day)}.json"
        (self._directory / file).parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        _replace(self._directory / file, json.dumps(trace, ensure_ascii=False, indent=2).encode())
        with self._locked():
            index = self.index()
            kept = {name: trace[name] for name in ("agent_id", "start_time", "status", "total_reward")}
            index["traces"][trace["trace_id"]] = {**kept, "task": trace["task"][:_LONGEST_TASK], "file": file}
            known = index["agents"].setdefault(trace["agent_id"], [])
            known += [] if trace["trace_id"] in known else [trace["trace_id"]]
            _replace(self._index, json.dumps(index, ensure_ascii=False).encode())

    def _append(self, line: bytes) -> None:
        with self._locked():
            file = os.open(self._index.with_name("feedback.jsonl"), os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o600)
            with os.fdopen(file, "wb") as opened:
                opened.write(line + b"\n")

    @contextmanager
    def _locked(self) -> Iterator[None]:
        self._index.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with _opened_private(self._index.with_name(".lock")) as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield


def _replace(file: Path, data: bytes) -> None:
    """The file is there whole or not at all, for its owner alone."""
    new = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        with _opened_private(new) as opened:
            opened.write(data)
        new.replace(file)
    finally:
        new.unlink(missing_ok=True)


def _opened_private(file: Path) -> BinaryIO:
    return os.fdopen(os.open(file, os.O_CREAT | os.O_TRUNC | os.O_WRONLY, 0o600), "wb")
