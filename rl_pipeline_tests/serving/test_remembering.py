"""The windows that a gateway remembers: both arms looked at for the same time."""

from collections.abc import Sequence
from datetime import UTC, datetime
from random import Random
from typing import Any

import orjson
import pytest

from rl_pipeline.deployment.judging import Judgement, Limits, judge
from rl_pipeline.deployment.windows import WINDOW_SECONDS, Arm, Window, observed_seconds
from rl_pipeline.serving import remembering
from rl_pipeline.serving.remembering import Memory
from rl_pipeline.serving.routing import routing_of
from rl_pipeline.serving.traffic.gateways import Gateways
from rl_pipeline_tests.serving.states import NEW, OLD, model_at, ramping, steady

CONTROL, CANDIDATE = model_at(OLD), model_at(NEW)
FIRST = routing_of(ramping(1, CONTROL, CANDIDATE, 0.1), OLD, (), ())
SECOND = routing_of(ramping(2, CONTROL, CANDIDATE, 0.25, step=1), OLD, (), ())
START = 1_000_000.0  # the beginning of a window


def test_a_window_is_shown_once_all_of_its_sessions_had_their_time() -> None:
    memory = Memory(observed_seconds=60)
    memory.begin(NEW, FIRST, START + 1).errors += 1
    memory.begin(NEW, FIRST, START + 9)
    memory.begin(OLD, FIRST, START + 3).add_rating(is_negative=True)
    assert memory.windows(NEW, OLD, START + 69) == []
    assert memory.closed_until(START + 69) == START
    (window,) = memory.windows(NEW, OLD, START + 70)
    assert memory.closed_until(START + 70) == START + WINDOW_SECONDS
    assert (window.start.timestamp(), window.step) == (START, 0)
    assert window.share == pytest.approx(0.1)
    assert window.candidate == Arm(sessions=2, errors=1)
    assert window.control == Arm(sessions=1, rated=1, negative=1)


@pytest.mark.parametrize("idle_seconds", [2, 60, 3600])
def test_whatever_the_silence_that_ends_a_session_a_watchdog_sees_a_window_in_time(idle_seconds: float) -> None:
    memory = Memory(observed_seconds(idle_seconds))
    memory.begin(NEW, FIRST, START)
    minute = START + WINDOW_SECONDS + 60
    looks_every, answers_within = 2, Gateways.patience_seconds
    assert memory.windows(NEW, OLD, minute - looks_every - 2 * answers_within)


def test_a_session_that_is_evidence_of_nothing_is_in_no_window() -> None:
    memory = Memory(observed_seconds=0)
    memory.apart(NEW, START).errors += 1
    assert memory.windows(NEW, OLD, START + 100) == []


def test_two_steps_never_share_a_window() -> None:
    memory = Memory(observed_seconds=0)
    memory.begin(NEW, FIRST, START + 1)
    memory.begin(NEW, SECOND, START + 2)
    windows = memory.windows(NEW, OLD, START + 10)
    assert [(window.step, window.candidate.sessions) for window in windows] == [(0, 1), (1, 1)]


def test_sessions_of_other_models_rollouts_and_quiet_times_do_not_count() -> None:
    memory = Memory(observed_seconds=0)
    memory.begin("third", FIRST, START)
    memory.begin(OLD, routing_of(steady(1, CONTROL), OLD, (), ()), START)
    memory.begin(NEW, FIRST, START)
    assert memory.windows(NEW, OLD, START + 10, "another-deployment") == []
    assert len(memory.windows(NEW, OLD, START + 10, "deployment-1")) == 1


def test_whoever_has_heard_of_the_closed_windows_is_told_the_rest_only() -> None:
    memory = Memory(observed_seconds=40)
    heard, until = [], 0
    for now in range(int(START), int(START) + 300, 7):
        memory.begin(NEW, FIRST, now)
        heard += memory.windows(NEW, OLD, now, since=until)
        until = memory.closed_until(now)
    assert len(heard) > 20
    assert heard == memory.windows(NEW, OLD, now)


def test_whoever_heard_of_the_middle_of_an_hour_that_is_one_window_by_now_is_told_all_again() -> None:
    memory = Memory(observed_seconds=40)
    hour = START - START % 3600
    for second in range(0, 26 * 3600, WINDOW_SECONDS):
        memory.begin(NEW, FIRST, hour + second)
    now, middle = hour + 26 * 3600, int(hour) + 1800
    assert memory.windows(NEW, OLD, now, since=middle) == memory.windows(NEW, OLD, now)
    assert memory.windows(NEW, OLD, now, since=int(hour) + 3600) == memory.windows(NEW, OLD, now)[1:]


def test_the_oldest_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remembering, "MOST_COUNTS", 5)
    memory = Memory(observed_seconds=0)
    for number in range(8):
        memory.begin(NEW, FIRST, START + 10 * number)
    windows = memory.windows(NEW, OLD, START + 100)
    assert [window.start.timestamp() - START for window in windows] == [30, 40, 50, 60, 70]


DAY = 86_400
HALF = ramping(1, CONTROL, CANDIDATE, 0.5)


class Guarded:
    """A gateway's memory and the watchdog's side of it, on a simulated clock: the gateway answers as over HTTP."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.memory, self.gateways = Memory(observed_seconds=40), Gateways(["http://gateway"], "token")
        self.chance, self.routing, self.now = Random(3), routing_of(HALF, OLD, (), ()), START
        monkeypatch.setattr(Gateways, "_call", self._answer)

    def _answer(self, _address: str, _method: str, path: str, _body: str | None) -> Any:
        windows = self.memory.windows(NEW, OLD, self.now, since=int(path.rpartition("since=")[2]))
        return orjson.loads(orjson.dumps({"windows": windows, "until": self.memory.closed_until(self.now)}))

    def serve(self, seconds: float, errors: float = 0.02) -> None:
        """A session a window and arm; the candidate fails so often."""
        for _ in range(int(seconds / WINDOW_SECONDS)):
            for model, share in ((NEW, errors), (OLD, 0.02)):
                self.memory.begin(model, self.routing, self.now).errors += self.chance.random() < share
            self.now += WINDOW_SECONDS

    def look(self) -> tuple[Sequence[Window], Judgement]:
        windows, now = self.gateways.windows("deployment-1", NEW, OLD), datetime.fromtimestamp(self.now, UTC)
        assert HALF.rollout is not None
        return windows, judge(HALF.rollout, "testing", windows, now, mode="watchdog", limits=Limits())


def test_a_watchdog_loses_no_session_of_a_rollout_that_takes_days_and_its_evidence_keeps_its_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    guarded, starts = Guarded(monkeypatch), set()
    for _ in range(3 * 4):
        guarded.serve(DAY / 4)
        windows, judgement = guarded.look()
        starts.add(windows[0].start.timestamp() // 3600)
    told = sum(window.candidate.sessions for window in windows)
    assert told == 3 * DAY / WINDOW_SECONDS - 4, "all but the windows that are open"
    assert starts == {START // 3600}
    assert len(windows) < 10_000
    assert judgement.verdict == "hold"
    # One that begins now hears the same of the gateway.
    guarded.gateways = Gateways(["http://gateway"], "token")
    assert guarded.look()[0] == windows
    guarded.serve(DAY / 12, errors=0.2)
    assert guarded.look()[1].verdict == "roll_back"


def test_a_watchdog_that_was_away_for_more_than_a_day_counts_every_session_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    guarded = Guarded(monkeypatch)
    guarded.serve(1800)
    guarded.look()
    guarded.serve(2 * DAY)
    windows, _ = guarded.look()
    assert sum(window.candidate.sessions for window in windows) == (1800 + 2 * DAY) / WINDOW_SECONDS - 4
    guarded.serve(1800)
    again, _ = guarded.look()
    assert sum(window.candidate.sessions for window in again) == (3600 + 2 * DAY) / WINDOW_SECONDS - 4
