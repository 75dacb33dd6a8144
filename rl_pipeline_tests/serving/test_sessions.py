"""One outcome per session, told in time and as the contract wants it."""

from collections import Counter
from collections.abc import Collection, Sequence
from copy import copy
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from random import Random

import orjson
import pytest

from rl_pipeline.contracts.serving_outcome import ServingOutcome
from rl_pipeline.deployment.judging import Limits, judge
from rl_pipeline.deployment.windows import WINDOW_SECONDS, Arm, window_start
from rl_pipeline.redaction.policy import RedactionKey
from rl_pipeline.serving import sessions as sessions_module
from rl_pipeline.serving.failed_sessions import FailedSessions
from rl_pipeline.serving.figures import FiguresByModel
from rl_pipeline.serving.remembering import Memory
from rl_pipeline.serving.routing import Routing, routing_of
from rl_pipeline.serving.sessions import Session, Sessions, session_id_of
from rl_pipeline_tests.serving.states import NEW, OLD, model_at, ramping, sessions_at, steady

STATE = ramping(7, model_at(OLD), model_at(NEW), 0.5, step=2)
ROUTING = routing_of(STATE, OLD, (), ())
WITHOUT_NEW = routing_of(STATE, OLD, {NEW}, ())
BAKE, RECHECK = (
    routing_of(ramping(8 + place, model_at(OLD), model_at(NEW), share, step=3 + place), OLD, (), ())
    for place, share in enumerate((1.0, 0.5))
)
OF_NEW, ANOTHER_OF_NEW = (session for session, _ in zip(sessions_at(0.5, split=2), range(2), strict=False))
OF_OLD = next(sessions_at(1.0, 0.5, split=2))
KEY = RedactionKey("v1", b"k" * 32)
START = 1_000_000.0  # the beginning of a window
OBSERVED = 40.0
CLOSED = START + WINDOW_SECONDS + OBSERVED
"""When the window is closed in which what begins at START is."""


class Desk:
    """Sessions with everything they tell."""

    def __init__(self, directory: Path) -> None:
        self.told: list[Session] = []
        self.remembered: list[tuple[str, float]] = []
        self.figures = FiguresByModel()
        self.memory = Memory(OBSERVED)
        self.file = directory / "failed-sessions"
        self.sessions = self.opened()

    def opened(self, *, idle_seconds: float = 60) -> Sessions:
        failed = FailedSessions(self.file, KEY)
        return Sessions(self._tell, self._remember, self.figures, self.memory, failed, idle_seconds=idle_seconds)

    def _tell(self, sessions: Sequence[Session]) -> None:
        self.told += map(copy, sessions)  # a session that goes on may be told again

    def _remember(self, sessions: Sequence[Session], now: float) -> None:
        self.remembered += [(session.session_id, now) for session in sessions]

    def request(self, session_id: str, now: float, routing: Routing = ROUTING, *, fails: bool = False) -> Session:
        session = self.sessions.enter(session_id, routing, now)
        if fails:
            self.sessions.fail(session, "upstream_status", routing, now)
        else:
            session.answered(0.25, {"prompt_tokens": 5, "completion_tokens": 2})
        self.sessions.leave(session, now)
        return session


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path)


def read(session: Session) -> ServingOutcome:
    return ServingOutcome.model_validate_json(orjson.dumps(session.outcome("stored", "gateway-1")))


def test_a_session_is_told_once_its_window_is_closed(desk: Desk) -> None:
    for second in (0, 30, 35):
        desk.request(OF_NEW, START + second)
        desk.sessions.sweep(START + second)
    desk.sessions.sweep(CLOSED - 1)
    assert not desk.told
    desk.sessions.sweep(CLOSED)
    (outcome,) = map(read, desk.told)
    assert (outcome.model_id, outcome.generation, outcome.requests, outcome.failed) == (NEW, 7, 3, False)
    assert (outcome.prompt_tokens, outcome.completion_tokens, outcome.latency_ms) == (15, 6, 250.0)
    assert (outcome.deployment_id, outcome.step, outcome.gateway) == ("deployment-1", 2, "gateway-1")
    assert (outcome.ended_at - outcome.started_at).total_seconds() == 35
    assert len(desk.sessions) == 1, "it goes on with its model"
    desk.sessions.sweep(START + 95)
    assert len(desk.sessions) == 0
    assert len(desk.told) == 1


def test_a_session_of_a_rollout_that_has_begun_is_remembered_once_unless_it_was_told(desk: Desk) -> None:
    desk.request(OF_NEW, START)
    desk.request(ANOTHER_OF_NEW, START, fails=True)
    desk.request(OF_OLD, START, routing_of(steady(8, model_at(OLD)), OLD, (), ()))
    assert not desk.remembered
    for second in (1, 2):
        desk.request(OF_NEW, START + second)
        desk.sessions.sweep(START + second)
    assert desk.remembered == [(OF_NEW, START + 1)]


def test_a_session_that_is_over_is_told_before_its_window_is_closed(desk: Desk) -> None:
    desk.sessions = desk.opened(idle_seconds=5)
    desk.request(OF_NEW, START)
    desk.sessions.sweep(START + 5)
    assert [session.session_id for session in desk.told] == [OF_NEW]
    desk.sessions.sweep(CLOSED)
    assert len(desk.told) == 1


def test_a_failure_after_its_time_is_told_as_a_session_that_begins_then(desk: Desk) -> None:
    desk.request(OF_NEW, START)
    desk.request(OF_NEW, START + 30)
    desk.request(OF_NEW, CLOSED, fails=True)  # though nobody has swept yet
    desk.request(OF_NEW, CLOSED + 1, fails=True)
    assert [(read(each).failed, read(each).requests, each.started) for each in desk.told] == [
        (False, 3, START),
        (True, 1, CLOSED),
    ]
    first, second = desk.memory.windows(NEW, OLD, CLOSED + 100)
    assert (first.start.timestamp(), first.candidate) == (START, Arm(sessions=1))
    assert (second.start.timestamp(), second.candidate) == (CLOSED, Arm(sessions=1, errors=1))
    assert desk.figures.of(NEW).failed_sessions == desk.figures.of(NEW).sessions == 1


def test_an_answer_that_never_comes_is_a_failure_when_patience_ends(desk: Desk) -> None:
    session = desk.sessions.enter(OF_NEW, ROUTING, START)
    for second in range(120):
        desk.sessions.sweep(START + second)
    desk.sessions.fail(session, "upstream_timeout", ROUTING, START + 120)
    assert [(read(each).failed, read(each).requests) for each in desk.told] == [(False, 1), (True, 1)]
    assert [window.candidate.errors for window in desk.memory.windows(NEW, OLD, START + 300)] == [0, 1]


def test_a_failure_under_another_share_than_the_sessions_is_evidence_of_nothing(desk: Desk) -> None:
    desk.request(OF_NEW, START)
    later = routing_of(ramping(8, model_at(OLD), model_at(NEW), 1.0, step=3), OLD, (), ())
    desk.request(OF_NEW, CLOSED + 5, later, fails=True)
    assert [(read(each).failed, read(each).deployment_id) for each in desk.told] == [
        (False, "deployment-1"),
        (True, None),
    ]
    assert [window.candidate for window in desk.memory.windows(NEW, OLD, CLOSED + 100)] == [Arm(sessions=1)]


def test_what_a_gateway_tells_counts_as_what_it_remembers(desk: Desk) -> None:
    chance = Random(5)
    sessions = [session for session, _ in zip(sessions_at(1.0), range(60), strict=False)]
    for second in range(600):
        desk.sessions.sweep(START + second)
        for session in chance.sample(sessions, 3):
            desk.request(session, START + second, fails=chance.random() < 0.02)
    desk.sessions.end_all()
    told = Counter(
        (window_start(each.started), each.model_id, read(each).failed) for each in desk.told if each.deployment_id
    )
    for window in desk.memory.windows(NEW, OLD, START + 1000):
        for model, arm in ((NEW, window.candidate), (OLD, window.control)):
            counts = [told[int(window.start.timestamp()), model, failed] for failed in (False, True)]
            assert counts == [arm.sessions - arm.errors, arm.errors]
    assert sum(told.values()) > 60


def test_a_failure_is_told_at_once_and_only_the_first_one(desk: Desk) -> None:
    desk.request(OF_NEW, START)
    desk.request(OF_NEW, START + 1, fails=True)
    (outcome,) = map(read, desk.told)
    assert (outcome.failed, outcome.failure, outcome.requests, outcome.failed_requests) == (
        True,
        "upstream_status",
        2,
        1,
    )
    desk.request(OF_NEW, START + 2, fails=True)
    desk.sessions.sweep(START + 1000)
    assert len(desk.told) == 1
    assert desk.figures.of(NEW).failed_sessions == 1


def test_a_session_stays_with_its_model_when_the_share_shrinks(desk: Desk) -> None:
    assert desk.request(OF_NEW, START).model_id == NEW
    smaller = routing_of(ramping(8, model_at(OLD), model_at(NEW), 0.0), OLD, (), ())
    assert desk.request(OF_NEW, START + 1, smaller).model_id == NEW
    assert desk.request(ANOTHER_OF_NEW, START + 1, smaller).model_id == OLD


def test_a_fence_moves_a_running_session_and_tells_of_what_it_was(desk: Desk) -> None:
    desk.request(OF_NEW, START)
    assert desk.request(OF_NEW, START + 1, WITHOUT_NEW).model_id == OLD
    assert [read(session).model_id for session in desk.told] == [NEW]
    desk.sessions.end_all()
    assert [read(session).model_id for session in desk.told] == [NEW, OLD]
    assert len({session.message_id("stored", "gateway-1") for session in desk.told}) == 2
    assert desk.told[0].message_id("stored", "gateway-1") != desk.told[0].message_id("stored", "gateway-2")


def test_after_an_hour_a_session_counts_as_another_one(desk: Desk) -> None:
    for minute in range(61):
        desk.request(OF_OLD, START + 59 * minute)
    desk.sessions.sweep(START + 3590)
    assert [read(session).requests for session in desk.told] == [61]
    desk.request(OF_OLD, START + 3600)
    desk.sessions.end_all()
    assert [read(session).requests for session in desk.told] == [61, 1]
    assert len({session.message_id("stored", "gateway-1") for session in desk.told}) == 2


def test_a_request_that_takes_long_is_no_silence(desk: Desk) -> None:
    session = desk.sessions.enter(OF_OLD, ROUTING, START)
    desk.sessions.sweep(START + 500)
    assert len(desk.sessions) == 1
    desk.sessions.leave(session, START + 520)
    desk.sessions.sweep(START + 581)
    assert len(desk.sessions) == 0
    assert len(desk.told) == 1


def test_sessions_that_are_over_at_once_do_not_hold_up_those_with_a_request_on_its_way(desk: Desk) -> None:
    desk.sessions = desk.opened(idle_seconds=0)
    waiting = desk.sessions.enter(OF_OLD, ROUTING, START)
    desk.request(OF_NEW, START)
    desk.sessions.sweep(START)
    assert [session.session_id for session in desk.told] == [OF_NEW]
    desk.sessions.leave(waiting, START)
    desk.sessions.sweep(START)
    assert len(desk.told) == 2


def test_feedback_belongs_to_a_session_that_goes_on_and_has_not_failed(desk: Desk) -> None:
    desk.request(OF_NEW, START)
    assert desk.sessions.rate(OF_NEW, "negative", ROUTING, START + 1)
    assert desk.sessions.rate(OF_NEW, "positive", ROUTING, START + 2)
    assert not desk.sessions.rate("unknown", "positive", ROUTING, START)
    desk.sessions.sweep(START + 100)
    assert [read(session).feedback for session in desk.told] == ["negative"]
    assert desk.figures.of(NEW).negative_feedback == 1
    assert not desk.sessions.rate(OF_NEW, "negative", ROUTING, START + 101)
    desk.request(ANOTHER_OF_NEW, START + 102, fails=True)
    assert not desk.sessions.rate(ANOTHER_OF_NEW, "negative", ROUTING, START + 103)


def test_feedback_after_its_time_is_told_as_a_session_that_begins_then(desk: Desk) -> None:
    desk.request(OF_NEW, START)
    desk.sessions.sweep(CLOSED)
    desk.request(OF_NEW, CLOSED + 1)
    for second in (5, 6):
        assert desk.sessions.rate(OF_NEW, "negative", ROUTING, CLOSED + second)
    assert [read(session).feedback for session in desk.told] == [None, "negative"]
    desk.request(OF_NEW, CLOSED + 7, fails=True)
    assert [read(session).feedback for session in desk.told] == [None, "negative", None]
    windows = desk.memory.windows(NEW, OLD, CLOSED + 100)
    assert [window.candidate for window in windows] == [Arm(1), Arm(2, 1, 1, 1)]


def test_too_many_sessions_are_told_early_the_most_silent_first(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions_module, "MOST_SESSIONS", 10)
    for number in range(15):
        desk.request(f"session-{number}", START + number / 100)
    desk.request("session-0", START + 1)
    desk.sessions.sweep(START + 1)
    assert [session.session_id for session in desk.told] == [f"session-{number}" for number in range(1, 6)]
    assert len(desk.sessions) == 10


@pytest.mark.parametrize("named", ["a b", "x\r\nSet-Cookie: a=b", "Jörg", "x" * 300, "\ud800"])
def test_a_name_that_no_header_carries_becomes_a_digest(named: str) -> None:
    used = session_id_of(named)
    assert used == session_id_of(named)
    assert used.isascii()
    assert used.startswith("session-")
    assert "\n" not in used


@pytest.mark.parametrize("named", [None, "", 17, ["a"]])
def test_who_names_no_session_gets_a_new_one(named: object) -> None:
    assert session_id_of(named) != session_id_of(named)


def test_a_plain_name_is_kept() -> None:
    assert session_id_of("user-7:chat/3") == "user-7:chat/3"


EVERY_OTHER_MINUTE = range(0, 7200, 120)


@pytest.mark.parametrize("restarts", [False, True])
def test_an_agent_with_a_fixed_name_that_always_fails_is_one_error_of_a_rollout(desk: Desk, restarts: bool) -> None:
    for second in EVERY_OTHER_MINUTE:
        desk.request(OF_NEW, START + second, fails=True)
        desk.sessions.sweep(START + second + 61)
        if restarts:
            desk.sessions = desk.opened()
    (only,) = desk.memory.windows(NEW, OLD, START + 7300)
    assert only.candidate == Arm(sessions=1, errors=1)
    outcomes = list(map(read, desk.told))
    assert len(outcomes) == len(EVERY_OTHER_MINUTE)
    assert [each.deployment_id for each in outcomes] == ["deployment-1"] + [None] * (len(outcomes) - 1)
    assert OF_NEW not in desk.file.read_text()


def test_whoever_failed_at_a_split_is_no_news_in_the_bake_that_follows(desk: Desk) -> None:
    for session in (OF_OLD, OF_NEW):
        desk.request(session, START, fails=True)
    desk.sessions.sweep(START + 61)
    for session in (OF_OLD, OF_NEW, "another"):
        desk.request(session, START + 70, BAKE, fails=True)
    first, second = desk.memory.windows(NEW, OLD, START + 300)
    assert (first.candidate, first.control) == (Arm(1, 1), Arm(1, 1))
    assert (second.step, second.candidate, second.control) == (3, Arm(1, 1), Arm())


@pytest.mark.parametrize("restarts", [False, True])
def test_whoever_has_failed_counts_again_at_the_next_split_where_it_is_drawn_anew_who_has_which_model(
    desk: Desk, restarts: bool
) -> None:
    desk.request(OF_NEW, START, BAKE, fails=True)
    for number in range(3):
        if restarts:
            desk.sessions = desk.opened()
        desk.sessions.sweep(START + 70 * number + 61)
        desk.request(OF_NEW, START + 70 * (number + 1), RECHECK, fails=True)
    windows = desk.memory.windows(NEW, OLD, START + 400)
    assert [(each.step, each.candidate.errors + each.control.errors) for each in windows] == [(3, 1), (4, 1)]


def test_after_an_outage_of_both_a_candidate_that_fails_at_the_next_step_is_taken_out_though_all_names_are_fixed(
    desk: Desk,
) -> None:
    agents = [f"agent-{number}" for number in range(40)]
    times = iter(range(10_000))

    def come(minutes: int, step: int, failing: Collection[str]) -> None:
        """Every agent asks every other minute."""
        for minute in islice(times, minutes):
            if minute % 2 == 0:
                for agent in agents:
                    routing = routing_of(ramping(7, model_at(OLD), model_at(NEW), 0.5, step=step), OLD, (), ())
                    session = desk.sessions.enter(agent, routing, START + 60 * minute)
                    if session.model_id in failing:
                        desk.sessions.fail(session, "upstream_status", routing, START + 60 * minute)
                    desk.sessions.leave(session, START + 60 * minute)
            desk.sessions.sweep(START + 60 * minute + 59)

    come(20, 1, ())
    come(6, 1, (OLD, NEW))
    come(20, 2, (NEW,))
    rollout, now = STATE.rollout, datetime.fromtimestamp(START + 3600, UTC)
    assert rollout is not None
    found = judge(
        rollout, "ramping", desk.memory.windows(NEW, OLD, START + 3600), now, mode="watchdog", limits=Limits()
    )
    assert (found.verdict, found.reason) == ("roll_back", "high_error_rate")


def test_a_late_failure_of_a_split_or_rollout_before_forgets_nobody_of_the_present_one(desk: Desk) -> None:
    another = routing_of(ramping(9, model_at(OLD), model_at(NEW), 0.5, deployment_id="another"), OLD, (), ())
    slow = desk.sessions.enter("slow", ROUTING, START)
    slower = desk.sessions.enter("slower", RECHECK, START + 1)
    desk.request("agent", START + 2, another, fails=True)
    for session in (slow, slower):
        desk.sessions.fail(session, "upstream_timeout", another, START + 3)
    desk.sessions.sweep(START + 70)
    assert desk.request("agent", START + 71, another, fails=True).deployment_id is None


def test_another_rollout_begins_with_nobody_who_has_failed(desk: Desk) -> None:
    another = routing_of(ramping(9, model_at(OLD), model_at(NEW), 0.999999, deployment_id="another"), OLD, (), ())
    desk.request(OF_NEW, START, fails=True)
    desk.sessions.sweep(START + 61)
    for second in (70, 140):
        desk.request(OF_NEW, START + second, another, fails=True)
        desk.sessions.sweep(START + second + 61)
        desk.sessions = desk.opened()
    windows = desk.memory.windows(NEW, OLD, START + 300, "another")
    assert sum(each.candidate.errors for each in windows) == 1


def test_one_agent_that_fails_every_two_minutes_takes_no_healthy_model_out(desk: Desk) -> None:
    """10,000 sessions a day, a tenth of them with the candidate, and the agent among these."""
    state = ramping(7, model_at(OLD), model_at(NEW), 0.1)
    routing, chance = routing_of(state, OLD, (), ()), Random(1)
    agent = next(sessions_at(0.1))
    for second in range(7200):
        now = START + second
        if second % 120 == 0:
            desk.request(agent, now, routing, fails=True)
        if chance.random() < 10_000 / 86_400:
            desk.request(f"session-{second}", now, routing, fails=chance.random() < 0.02)
        desk.sessions.sweep(now)
    assert state.rollout is not None
    windows, later = desk.memory.windows(NEW, OLD, START + 7300), datetime.fromtimestamp(START + 7300, UTC)
    found = judge(state.rollout, "ramping", windows, later, mode="watchdog", limits=Limits())
    assert found.verdict == "hold", found.explanation
