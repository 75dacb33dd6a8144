"""Who hears of a training while it runs: the stream of status messages, the tracker, the log of the Dagster run.

Each is served by a thread of its own. One that cannot be reached is named once in the log and tried again later; what
it missed is kept as far as there is room, and the training never waits for it.
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from datetime import UTC, datetime
from importlib.metadata import version
from typing import Any, Generic, TypeVar

from rl_pipeline.contracts import TrainingStatus, serialize, subject_of
from rl_pipeline.contracts.training_status import (
    BestMetrics,
    CurrentMetrics,
    Metrics,
    Progress,
    TrainingStatusMetadata,
)
from rl_pipeline.stores.stream import Stream
from rl_pipeline.stores.tracker import RunOutcome, TrackedDataset, TrackedRun, Tracker, TrackerRefused
from rl_pipeline.training.plans.plan import TrainingPlan
from rl_pipeline.training.program.reporting import FIGURES, PASSING_PHASES, Line

LEAST_SECONDS_BETWEEN_MESSAGES = 2.0
MOST_SECONDS_BETWEEN_MESSAGES = 300.0
_RETRY_SECONDS = 30.0
_ROOM = 10_000

Figures = tuple[Mapping[str, float], int, datetime]
"""Figures by name, with their step and time."""

_Item = TypeVar("_Item")
_log = logging.getLogger(__name__)


class Outbox(Generic[_Item]):
    """Items on their way to somebody far away; the oldest go first, and are lost first when there is no room."""

    def __init__(
        self,
        name: str,
        connect: Callable[[], AbstractContextManager[Callable[[Sequence[_Item]], None]]],
        retry_seconds: float = _RETRY_SECONDS,
    ) -> None:
        """`connect` opens what delivers; nothing is connected before there is something to deliver."""
        self._name = name
        self._connect = connect
        self._retry_seconds = retry_seconds
        self._waiting: deque[_Item] = deque(maxlen=_ROOM)
        self._changed = threading.Condition()
        self._closed = False
        self._away = False
        self._thread = threading.Thread(target=self._serve, name=f"outbox of {name}", daemon=True)

    def put(self, item: _Item) -> None:
        """Hand over an item; returns at once."""
        with self._changed:
            self._waiting.append(item)
            self._changed.notify()
            if not self._thread.is_alive() and not self._closed:
                self._thread.start()

    def close(self, patience_seconds: float = 10.0) -> None:
        """Deliver what is left, unless that takes longer than anybody wants to wait; not long for one who is away."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        if self._thread.is_alive():
            self._thread.join(2.0 if self._away else patience_seconds)
        if self._waiting:
            _log.warning("%s never received %d reports of this training", self._name, len(self._waiting))

    def _serve(self) -> None:
        while self._next():
            try:
                with self._connect() as deliver:
                    while items := self._next():
                        deliver(items)
                        self._forget(len(items))
                        self._away = False
            except Exception as error:  # noqa: BLE001  whatever it is, the training must not notice
                if not self._away:
                    _log.warning("%s does not answer (%s): trying again later", self._name, type(error).__name__)
                self._away = True
                if self._closed:
                    return
                with self._changed:
                    self._changed.wait_for(lambda: self._closed, self._retry_seconds)

    def _next(self) -> list[_Item]:
        """What waits, as soon as something does; nothing once the box is closed and empty."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._closed)
            return list(self._waiting)

    def _forget(self, count: int) -> None:
        with self._changed:
            for _ in range(min(count, len(self._waiting))):
                self._waiting.popleft()


class StatusMessages:
    """`agent.rl.training.status.v1`, state `running`: one per phase and per percent, the latter never in a hurry,
    and one more wherever there was none for five minutes.

    Who queued the job says so, and who started the program says how it ended: only they know whether another attempt
    follows and where the model went.
    """

    def __init__(
        self,
        plan: TrainingPlan,
        connect: Callable[[], AbstractContextManager[Stream]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._plan = plan
        self._clock = clock
        self._said: tuple[str, int] | None = None
        self._said_at = 0.0
        self._count = 0
        self._figures: dict[str, float] = {}
        self._best: BestMetrics | None = None
        self._outbox: Outbox[tuple[str, TrainingStatus]] = Outbox("NATS", lambda: _publishing(connect))

    def hear(self, line: Line, metrics: Mapping[str, float]) -> None:
        """Say it, if it is news."""
        self._figures |= {name: metrics[name] for name in FIGURES if name in metrics}
        self._note_best(line, metrics)
        total = line.get("total_steps") or 0
        percent = min(100.0, 100 * line["step"] / total) if total else 0.0
        # What passes is no news, and a sign of life.
        news = self._said if line["phase"] in PASSING_PHASES else (line["phase"], int(percent))
        now = self._clock()
        if not self._is_due(news, now - self._said_at):
            return
        self._said, self._said_at = news, now
        self._count += 1
        # The id is the same whenever the same thing is said, so that nothing is stored twice.
        message_id = f"{self._plan.job_id}.{self._plan.attempt}.{self._count}"
        self._outbox.put((message_id, self._status(line, percent)))

    def close(self, outcome: RunOutcome) -> None:  # noqa: ARG002  said by whoever started the program
        """Send what is left."""
        self._outbox.close()

    def _is_due(self, news: tuple[str, int] | None, silent_for: float) -> bool:
        if news is None or self._said is None:
            return news is not None
        if news == self._said:
            return silent_for >= MOST_SECONDS_BETWEEN_MESSAGES
        return news[0] != self._said[0] or silent_for >= LEAST_SECONDS_BETWEEN_MESSAGES

    def _note_best(self, line: Line, metrics: Mapping[str, float]) -> None:
        reward = metrics.get("reward_mean")
        if reward is not None and (self._best is None or reward > (self._best.reward_mean or 0.0)):
            self._best = BestMetrics(epoch=line.get("epoch"), step=line.get("step"), reward_mean=reward)

    def _status(self, line: Line, percent: float) -> TrainingStatus:
        return TrainingStatus(
            training_job_id=self._plan.job_id,
            timestamp=datetime.now(UTC),
            status="running",
            progress=Progress(
                current_epoch=line.get("epoch"),
                total_epochs=line.get("total_epochs"),
                current_step=line.get("step"),
                total_steps=line.get("total_steps"),
                percent_complete=round(percent, 2),
                eta_seconds=line.get("eta_seconds"),
            ),
            metrics=Metrics(current=CurrentMetrics(**self._figures), best=self._best) if self._figures else None,
            metadata=TrainingStatusMetadata.model_validate(
                {
                    "training_platform": "trl",
                    "pytorch_version": version("torch"),
                    "attempt": self._plan.attempt,
                    "phase": line["phase"],
                }
            ),
        )


class TrackedFigures:
    """The attempt's run in the tracker: what it was started with, what it learns from, and its curves."""

    def __init__(self, plan: TrainingPlan, dataset: Callable[[], TrackedDataset], tracker: Tracker) -> None:
        self._outbox: Outbox[Figures | RunOutcome] = Outbox("MLflow", lambda: _tracking(plan, dataset, tracker))

    def hear(self, line: Line, metrics: Mapping[str, float]) -> None:
        """Track the figures, if there are any."""
        if metrics:
            self._outbox.put((metrics, line.get("step", 0), datetime.fromisoformat(line["time"])))

    def close(self, outcome: RunOutcome) -> None:
        """Send what is left."""
        self._outbox.put(outcome)
        self._outbox.close(patience_seconds=30)


class LogLines:
    """Lines for people wherever the run is watched: phases, notes, what was measured, a hundred times the figures."""

    def __init__(self, say: Callable[[str], None], hang_up: Callable[[], None] = lambda: None) -> None:
        self._say = say
        self._hang_up = hang_up
        self._phase = ""
        self._percent = -1

    def hear(self, line: Line, metrics: Mapping[str, float]) -> None:
        """Say it, if it is news."""
        measured = {name: value for name, value in metrics.items() if "/" in name}
        step, total = line.get("step", 0), line.get("total_steps") or 0
        percent = 100 * step // total if total else 0
        if "note" in line:
            self._say(line["note"])
        elif measured:
            self._say(_figures(measured))
        elif metrics:
            if percent > self._percent:
                self._percent = percent
                shown = {name: metrics[name] for name in (*FIGURES, "tokens_per_second") if name in metrics}
                self._say(f"step {step} of {total}: {_figures(shown)}")
        elif line["phase"] not in {self._phase, *PASSING_PHASES}:
            self._phase = line["phase"]
            self._say(self._phase.replace("_", " "))

    def close(self, outcome: RunOutcome) -> None:
        """Say how it ended."""
        self._say(outcome)
        self._hang_up()


def _figures(figures: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {value:.4g}" for name, value in figures.items())


@contextmanager
def _publishing(
    connect: Callable[[], AbstractContextManager[Stream]],
) -> Iterator[Callable[[Sequence[tuple[str, TrainingStatus]]], None]]:
    with connect() as stream:
        yield lambda items: _publish(stream, items)


def _publish(stream: Stream, items: Sequence[tuple[str, TrainingStatus]]) -> None:
    for message_id, status in items:
        stream.publish(subject_of(status), serialize(status), message_id)


@contextmanager
def _tracking(
    plan: TrainingPlan, dataset: Callable[[], TrackedDataset], tracker: Tracker
) -> Iterator[Callable[[Sequence[Figures | RunOutcome]], None]]:
    known = dataset()
    run = tracker.start_run(plan.job_id, plan.attempt, {"algorithm": plan.algorithm, "dataset": known.manifest_hash})
    try:
        run.log_parameters(_flat(plan.model_dump(mode="json")))
        run.log_dataset(known)
    except TrackerRefused as refused:
        _log.warning("the run goes without what it was started with: %s", refused)
    yield lambda items: _track(run, items)


def _track(run: TrackedRun, items: Sequence[Figures | RunOutcome]) -> None:
    run.log_metrics([item for item in items if not isinstance(item, str)])
    for item in items:
        if isinstance(item, str):
            run.end(item)


def _flat(tree: Mapping[str, Any], prefix: str = "") -> dict[str, object]:
    """Nested objects as one, with dots in the names: `optimization.learning_rate`."""
    flat: dict[str, object] = {}
    for name, value in tree.items():
        flat |= _flat(value, f"{prefix}{name}.") if isinstance(value, Mapping) else {f"{prefix}{name}": value}
    return flat
