"""What one tick of the controller does, phase by phase, and what it makes of what others left undone."""

import json
from datetime import timedelta

import pytest

from rl_pipeline.deployment.controller import Controller
from rl_pipeline.deployment.judging import judge
from rl_pipeline.deployment.restoring import CannotRestore
from rl_pipeline.deployment.windows import Arm, Window
from rl_pipeline.stores.stream import StreamUnavailable
from rl_pipeline_tests.deployment.places import PlayedPlace
from rl_pipeline_tests.deployment.states import a_release

PLAN_AGAINST_OLD = a_release(2, "newer").plan


@pytest.fixture
def place() -> PlayedPlace:
    return PlayedPlace()


def test_a_release_is_started_followed_audited_and_announced(place: PlayedPlace) -> None:
    state = place.rolling_out()
    assert state.weights == {"old": 0.9, "new": 0.1}
    assert place.routed() == [state.weights] * 2
    assert [row.state.generation for row in place.audit.recent(9)] == [2, 1]
    assert list(place.audit.messages) == ["deployment-of-new/2"]
    assert place.releases.releases[1].state == "started"
    assert state.change.evidence["validation"] == place.releases.releases[1].validation


def test_a_good_candidate_goes_up_step_by_step_bakes_and_is_promoted(place: PlayedPlace) -> None:
    place.rolling_out()
    place.verdict, place.reason = "advance", "time_and_samples"
    shares, phases_seen = [], []
    for _ in range(4):
        tick = place.tick()
        (change,) = tick.changes
        shares.append(change.weights.get("new"))
        phases_seen.append(change.phase)
        assert change.change.reason == "time_and_samples"
    assert (shares, phases_seen) == ([0.25, 0.5, 1.0, 1.0], ["ramping", "ramping", "baking", "steady"])
    assert (place.state.serving, place.routed()) == ("new", [{"new": 1.0}] * 2)
    events = [state.change.event for state in place.audit.messages.values()]
    assert events == ["deployed", "ramped", "ramped", "ramped", "promoted"]
    assert place.tick().changes == []


def test_while_it_waits_nothing_changes(place: PlayedPlace) -> None:
    place.rolling_out()
    tick = place.tick()
    assert (tick.changes, tick.pending) == ([], [])
    assert tick.judgement is not None
    assert place.judged == [("new", "ramping", "full")]


def test_a_bad_candidate_is_fenced_rolled_back_and_announced_with_its_evidence(place: PlayedPlace) -> None:
    place.rolling_out()
    place.verdict, place.reason = "roll_back", "high_error_rate"
    tick = place.tick()
    (state,) = tick.rolled_back
    assert (state.weights, state.retired) == ({"old": 1.0}, ("new",))
    assert (state.change.reason, state.change.evidence["errors"]) == ("high_error_rate", 8)
    assert state.change.evidence["explanation"] == "because of high_error_rate"
    assert [node.fenced for node in place.nodes] == [{"new": "high_error_rate"}] * 2
    assert place.routed() == [{"old": 1.0}] * 2
    assert place.audit.messages["deployment-of-new/3"].change.event == "rolled_back"
    assert place.tick().changes == []


def test_with_nats_gone_at_a_rollback_the_gateways_are_fenced_and_the_record_is_repaired_later(
    place: PlayedPlace,
) -> None:
    place.rolling_out()
    place.verdict = "roll_back"

    def goes_after_the_read() -> None:
        if place.judged:
            place.world.nats_is_up = False

    place.world.point = goes_after_the_read
    tick = place.tick()
    assert "new is fenced at gateway-0, gateway-1, and that is not recorded yet" in tick.pending[0]
    assert tick.changes == []
    assert place.routed() == [{"old": 1.0}] * 2
    place.world.point = lambda: None
    with pytest.raises(StreamUnavailable):
        place.tick()
    place.world.nats_is_up = True
    place.verdict = "hold"
    (repaired,) = place.tick().changes
    assert (repaired.change.event, repaired.change.reason) == ("rolled_back", place.nodes[0].fenced["new"])
    assert repaired.retired == ("new",)


def test_a_fence_that_nobody_recorded_is_spread_and_recorded(place: PlayedPlace) -> None:
    place.rolling_out()
    place.nodes[1].fence("new", "user_dissatisfaction")
    (state,) = place.tick().changes
    assert (state.change.event, state.change.reason, state.retired) == ("rolled_back", "user_dissatisfaction", ("new",))
    assert place.nodes[0].fenced == {"new": "user_dissatisfaction"}


def test_a_model_that_is_fenced_where_its_promotion_came_late_gives_way_to_the_one_before(place: PlayedPlace) -> None:
    place.rolling_out()
    place.commands().promote("in a hurry", model_id="new")
    place.follow()
    place.nodes[1].fence("new", "high_error_rate")
    place.commands().promote("in a hurry", model_id="new")
    assert place.state.serving == "new"
    (state,) = place.tick().changes
    assert (state.serving, state.retired, state.change.model_id) == ("old", ("new",), "new")
    assert state.change.deployment_id == "deployment-of-new"
    place.follow()
    assert place.routed() == [{"old": 1.0}] * 2


def test_a_model_that_is_fenced_while_another_is_rolled_out_goes_and_the_other_is_not_retired(
    place: PlayedPlace,
) -> None:
    place.rolling_out()
    place.nodes[1].is_up = False
    for _ in range(2):
        place.commands().promote("in a hurry", model_id="new")
    place.rolling_out("newer")
    place.nodes[1].fence("new", "high_error_rate")
    place.nodes[1].is_up = True
    (state,) = place.tick().changes
    assert (state.serving, state.retired) == ("old", ("new",))
    assert state.change.evidence["interrupted"] == "deployment-of-newer"
    tick = place.tick()
    assert "newer was measured against new, and old is in service: it waits" in tick.pending[0]
    interrupted = place.releases.releases[2]
    assert (interrupted.state, interrupted.attempt) == ("waiting", 1)
    place.releases.releases[2] = interrupted.renewed(PLAN_AGAINST_OLD, {}, place.now, needs_approval=False)
    rollout = place.tick().changes[0].rollout
    assert rollout is not None
    assert (rollout.candidate, rollout.deployment_id) == ("newer", interrupted.deployment_id)
    assert interrupted.deployment_id != "deployment-of-newer"
    place.verdict = "roll_back"
    place.tick()
    place.verdict = "hold"
    assert (place.tick().changes, place.state.retired) == ([], ("new", "newer")), "what was rolled back stays out"
    assert place.releases.releases[2].state == "started"


def test_what_a_person_aborted_stays_so_though_its_proposal_had_no_row_in_the_audit(place: PlayedPlace) -> None:
    place.release(1, "new", needs_approval=True)

    def dies_after_the_record() -> None:
        place.world.warehouse_is_up = place.states.recorded[-1].rollout is None

    place.world.point = dies_after_the_record
    place.tick()
    place.world.point = lambda: None
    place.commands().abort("nobody wants it")
    place.world.warehouse_is_up = True
    assert [place.tick().changes for _ in range(2)] == [[], []]
    assert place.releases.releases[1].state == "started"


class _Killed(BaseException):
    """The process is gone."""


def kill_a_start(place: PlayedPlace, at: int) -> bool:
    """Have a look that starts a release die at one of the points at which it touches the world; whether it did."""
    left = [at]

    def dies() -> None:
        left[0] -= 1
        if left[0] < 0:
            raise _Killed

    place.world.point = dies
    try:
        place.tick()
    except _Killed:
        return True
    finally:
        place.world.point = lambda: None
    return False


@pytest.mark.parametrize("is_record_lost", [False, True], ids=["", "and the record lost"])
def test_a_start_that_is_killed_anywhere_is_finished_or_begun_again_by_the_looks_after_it(is_record_lost: bool) -> None:
    at, killed = 0, 0
    is_killed = True
    while is_killed:
        place = PlayedPlace()
        place.release(1, "new")
        is_killed = kill_a_start(place, at)
        if is_record_lost:
            place.states.values = []
        place.tick()
        place.tick()
        state = place.state
        assert state.rollout is not None, at
        assert (state.phase, state.rollout.candidate, state.weights) == ("ramping", "new", {"old": 0.9, "new": 0.1}), at
        assert place.releases.releases[1].state == "started", at
        assert place.audit.recent(1)[0].state == state, at
        announced = [each.change.event for each in place.audit.messages.values()]
        assert announced == ["deployed"], at
        at, killed = at + 1, killed + is_killed
    assert killed > 15


def test_who_served_before_is_known_from_the_audit_where_the_record_has_forgotten_it(place: PlayedPlace) -> None:
    place.rolling_out()
    place.commands().promote("in a hurry", model_id="new")
    place.nodes[1].fence("new", "high_error_rate")
    place.commands().promote("in a hurry", model_id="new")
    place.states.values = place.states.values[-1:]
    (state,) = place.tick().changes
    assert (state.serving, state.retired) == ("old", ("new",))


def test_with_the_warehouse_away_nothing_advances_and_a_bad_candidate_still_goes(place: PlayedPlace) -> None:
    place.rolling_out()
    place.world.warehouse_is_up = False
    place.verdict = "advance"
    tick = place.tick()
    assert (tick.changes, place.judged[-1]) == ([], ("new", "ramping", "watchdog"))
    place.verdict = "roll_back"
    (state,) = place.tick().changes
    assert state.change.event == "rolled_back"
    assert state.change.evidence["rewards"] == "not read"
    assert "without rewards: the warehouse is away" in state.change.evidence["explanation"]
    place.world.warehouse_is_up = True
    place.tick()
    assert [row.state.generation for row in place.audit.recent(9)] == [3, 2, 1]
    assert "deployment-of-new/3" in place.audit.messages


def test_with_no_gateway_to_be_seen_nothing_is_raised_because_nobody_knows_what_is_fenced(place: PlayedPlace) -> None:
    place.rolling_out()
    place.verdict = "advance"
    for node in place.nodes:
        node.is_up = False
    assert place.tick().changes == []
    place.verdict = "roll_back"
    (state,) = place.tick().changes
    assert state.change.event == "rolled_back"


def test_a_recheck_goes_back_to_a_split(place: PlayedPlace) -> None:
    place.rolling_out()
    place.verdict = "advance"
    for _ in range(3):
        place.tick()
    place.verdict, place.reason = "recheck", "high_error_rate"
    (state,) = place.tick().changes
    assert (state.phase, state.weights, state.change.event) == ("ramping", {"old": 0.5, "new": 0.5}, "rechecked")
    assert place.routed() == [{"old": 0.5, "new": 0.5}] * 2


def test_a_recheck_does_not_wait_for_the_warehouse(place: PlayedPlace) -> None:
    place.rolling_out()
    place.commands().promote("in a hurry", model_id="new")
    place.world.warehouse_is_up = False
    place.verdict, place.reason = "recheck", "high_error_rate"
    (state,) = place.tick().changes
    assert (state.change.event, place.routed()) == ("rechecked", [{"old": 0.9, "new": 0.1}] * 2)
    place.world.warehouse_is_up, place.verdict = True, "hold"
    place.tick()
    assert place.audit.recent(1)[0].state.change.event == "rechecked"


def test_a_freeze_holds_what_would_advance_and_no_rollback(place: PlayedPlace) -> None:
    place.rolling_out()
    place.commands().freeze("an incident")
    place.verdict = "advance"
    assert place.tick().changes == []
    place.verdict = "roll_back"
    assert place.tick().rolled_back
    place.release(2, "newer")
    assert place.tick().changes == []
    place.commands().unfreeze("it is over")
    place.verdict = "hold"
    assert [state.change.event for state in place.tick().changes] == ["deployed"]


def test_a_release_that_needs_an_approval_waits_for_it_without_traffic(place: PlayedPlace) -> None:
    place.release(1, "new", needs_approval=True)
    (state,) = place.tick().changes
    assert (state.phase, state.weights, state.change.event) == ("awaiting_approval", {"old": 1.0}, "proposed")
    assert place.tick().changes == []
    assert place.judged == []
    assert place.audit.messages == {}
    place.commands("a person").approve("looks good")
    assert place.state.weights == {"old": 0.9, "new": 0.1}
    assert place.audit.messages["deployment-of-new/3"].change.by == "a person"


def test_the_newest_release_is_started_and_older_ones_are_superseded(place: PlayedPlace) -> None:
    for number in (1, 2, 3):
        place.release(number, f"v{number}")
    state = place.tick().state
    assert state is not None
    assert state.rollout is not None
    assert state.rollout.candidate == "v3"
    assert [release.state for release in place.releases.releases.values()] == ["superseded", "superseded", "started"]
    place.release(4, "v4")
    assert place.tick().changes == []
    place.verdict = "roll_back"
    place.tick()
    place.verdict = "hold"
    state = place.tick().state
    assert state is not None
    assert state.rollout is not None
    assert state.rollout.candidate == "v4"


def test_a_release_measured_against_a_model_that_no_longer_serves_waits_until_it_is_validated_again(
    place: PlayedPlace,
) -> None:
    place.rolling_out("second")
    place.release(2, "third")
    for _ in range(2):
        place.commands().promote("in a hurry", model_id="second")
    tick = place.tick()
    assert (tick.changes, place.state.rollout, place.releases.releases[2].state) == ([], None, "waiting")
    assert tick.pending == [
        "third was measured against old, and second is in service: "
        "it waits until `release_policy` has validated job-of-third again"
    ]
    place.release(2, "third")
    rollout = place.tick().changes[0].rollout
    assert rollout is not None
    assert (rollout.candidate, rollout.control) == ("third", "second")


def test_a_release_that_a_gateway_has_fenced_is_refused(place: PlayedPlace) -> None:
    place.nodes[0].fence("new", "somebody knows it")
    place.release(1, "new")
    assert place.tick().changes == []
    release = place.releases.releases[1]
    assert (release.state, release.explanation) == ("refused", "a gateway has fenced it: somebody knows it")


def test_a_lost_record_is_restored_above_all_that_anybody_has_seen(place: PlayedPlace) -> None:
    before = place.rolling_out()
    place.states.values = []
    (state,) = place.tick().changes
    assert (state.generation, state.change.event, state.weights) == (3, "restored", before.weights)
    assert state.previous_hash == place.audit.recent(2)[1].hash
    assert place.routed() == [before.weights] * 2


def test_a_lost_record_whose_last_generation_nobody_audited_is_restored_above_what_the_gateways_follow(
    place: PlayedPlace,
) -> None:
    place.rolling_out()
    place.world.warehouse_is_up = False
    place.commands().freeze("not in the audit")
    place.follow()
    place.world.warehouse_is_up = True
    place.states.values = []
    (state,) = place.tick().changes
    assert (state.generation, state.frozen) == (4, None)
    assert state.change.evidence == {"lost_generations": [3]}


def test_what_was_rolled_back_by_a_generation_that_was_lost_is_rolled_back_again(place: PlayedPlace) -> None:
    place.rolling_out()
    place.world.warehouse_is_up = False
    place.verdict = "roll_back"
    place.tick()
    place.world.warehouse_is_up = True
    place.verdict = "hold"
    place.states.values = []
    tick = place.tick()
    assert [state.change.event for state in tick.changes] == ["restored", "rolled_back"]
    assert (place.state.retired, place.state.weights) == (("new",), {"old": 1.0})
    place.follow()
    assert place.routed() == [{"old": 1.0}] * 2


def test_an_old_copy_of_the_record_is_lifted_above_what_is_known(place: PlayedPlace) -> None:
    place.rolling_out()
    place.verdict = "advance"
    place.tick()
    place.states.values = place.states.values[:1]
    place.verdict = "hold"
    (state,) = place.tick().changes
    assert (state.generation, state.weights, state.change.event) == (4, {"old": 0.75, "new": 0.25}, "restored")


def test_a_gateway_that_follows_a_lost_state_of_the_same_generation_is_led_back(place: PlayedPlace) -> None:
    before = place.state
    lost = place.rolling_out()
    place.nodes[0].is_up = False
    place.audit.rows.pop(place.audit.recent(1)[0].hash)
    place.releases.releases.clear()
    place.states.values = place.states.values[:1]
    place.nodes[1].state = before
    place.commands().freeze("a generation 2 of its own")
    assert (lost.generation, place.state.generation) == (2, 2)
    place.nodes[0].is_up = True
    (state,) = place.tick().changes
    assert (state.generation, state.weights) == (3, {"old": 1.0})
    assert place.routed() == [{"old": 1.0}] * 2


def test_a_record_of_which_nobody_knows_anything_is_not_invented(place: PlayedPlace) -> None:
    place.audit.rows.clear()
    place.states.values = []
    with pytest.raises(CannotRestore, match=r"gateways follow generation 1.*create it anew"):
        place.tick()


def test_a_lost_record_waits_for_the_audit(place: PlayedPlace) -> None:
    place.states.values = []
    place.world.warehouse_is_up = False
    tick = place.tick()
    assert (tick.state, tick.changes) == (None, [])
    assert tick.pending


def test_whoever_lost_a_race_decides_again_at_the_next_look(place: PlayedPlace) -> None:
    place.rolling_out()
    place.verdict = "advance"
    waiting = [lambda: place.commands().freeze("faster")]

    def somebody_is_faster() -> None:
        if place.judged and waiting:
            waiting.pop()()

    place.world.point = somebody_is_faster
    tick = place.tick()
    assert tick.changes == []
    assert "somebody else has changed the state meanwhile" in tick.pending[0]
    assert (place.state.frozen, place.state.weights) == ("faster", {"old": 0.9, "new": 0.1})


def test_what_does_not_watch_the_record_is_shown_it(place: PlayedPlace) -> None:
    place.release(1, "new")
    place.tick()
    assert [node.state and node.state.generation for node in place.nodes] == [2, 2]


@pytest.mark.parametrize(("errors", "event"), [(4, "rolled_back"), (0, "ramped")])
def test_the_real_judge_s_evidence_goes_into_the_record_and_comes_out_of_it_again(
    place: PlayedPlace, errors: int, event: str
) -> None:
    rollout = place.rolling_out().rollout
    assert rollout is not None
    windows = [
        Window(rollout.started_at + timedelta(seconds=10 * number), 0, 0.1, Arm(5, errors), Arm(45, 1))
        for number in range(30)
    ]
    controller = Controller(place.desk, place.releases, lambda *_: windows, judge)
    (state,) = controller.tick(rollout.started_at + timedelta(minutes=6)).changes
    assert state.change.event == event
    assert state.change.evidence["candidate"]["sessions"] == 150
    newest = place.audit.recent(1)[0]
    assert newest.state.change.evidence == json.loads(json.dumps(state.change.evidence))
