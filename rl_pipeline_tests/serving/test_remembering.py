"""The windows that a gateway remembers: both arms looked at for the same time."""

import pytest

from rl_pipeline.deployment.windows import WINDOW_SECONDS, Arm, observed_seconds
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


def test_the_oldest_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remembering, "MOST_COUNTS", 5)
    memory = Memory(observed_seconds=0)
    for number in range(8):
        memory.begin(NEW, FIRST, START + 10 * number)
    windows = memory.windows(NEW, OLD, START + 100)
    assert [window.start.timestamp() - START for window in windows] == [30, 40, 50, 60, 70]
