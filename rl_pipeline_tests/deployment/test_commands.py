"""What people can order, and what is recorded of it."""

import itertools
from collections.abc import Callable

import pytest

from rl_pipeline.deployment.commands import Commands, UnusableReason
from rl_pipeline.deployment.desk import RecordPending
from rl_pipeline.deployment.phases import TransitionRefused
from rl_pipeline.deployment.record import NothingDeployed, RecordBusy
from rl_pipeline.deployment.strategy import ramp
from rl_pipeline.stores.desired_state import StoredState
from rl_pipeline.stores.warehouse import WarehouseUnavailable
from rl_pipeline_tests.deployment.places import PlayedPlace
from rl_pipeline_tests.deployment.simulated_stores import HISTORY
from rl_pipeline_tests.deployment.states import a_model


@pytest.fixture
def place() -> PlayedPlace:
    return PlayedPlace()


def promoted(place: PlayedPlace) -> None:
    """`new` serves in place of `old`."""
    place.rolling_out()
    for _ in range(2):
        place.commands().promote("in a hurry", model_id="new")
    place.follow()
    assert place.state.serving == "new"


def test_the_first_state_is_made_once_and_above_what_gateways_remember(place: PlayedPlace) -> None:
    with pytest.raises(TransitionRefused, match="something is deployed already"):
        place.commands().create(a_model("other"), "again")
    place.states.values = []
    with pytest.raises(TransitionRefused, match="something is deployed already"):
        place.commands().create(a_model("other"), "the audit knows better")
    place.audit.rows.clear()
    assert place.commands().create(a_model("other"), "from nothing").generation == 2


def test_an_order_without_anything_deployed_says_so(place: PlayedPlace) -> None:
    place.states.values = []
    with pytest.raises(NothingDeployed):
        place.commands().freeze("why not")


def test_who_ordered_and_with_what_authority_is_recorded(place: PlayedPlace) -> None:
    place.release(1, "new", needs_approval=True)
    place.tick()
    state = place.commands("ada").approve("read the report")
    assert (state.change.by, state.change.reason) == ("ada", "read the report")
    assert state.change.evidence == {"approval_status": "manual_approved"}
    state = place.commands("bob").promote("trust me", model_id="new")
    assert (state.phase, state.change.evidence) == ("baking", {"approval_status": "emergency_override"})
    state = place.commands("bob").freeze("wait")
    assert (state.frozen, state.change.by) == ("wait", "bob")


def test_a_model_that_is_not_being_rolled_out_is_not_promoted(place: PlayedPlace) -> None:
    place.rolling_out()
    with pytest.raises(TransitionRefused, match="other is not being rolled out"):
        place.commands().promote("mistaken", model_id="other")


def test_a_candidate_that_waits_can_be_sent_away(place: PlayedPlace) -> None:
    place.release(1, "new", needs_approval=True)
    place.tick()
    assert place.commands().abort("not now").phase == "steady"


def test_a_rollback_by_a_person_fences_first_and_is_recorded(place: PlayedPlace) -> None:
    place.rolling_out()
    state = place.commands("ada").roll_back("users complain")
    assert (state.retired, state.change.by, state.change.reason) == (("new",), "ada", "users complain")
    assert [node.fenced for node in place.nodes] == [{"new": "users complain"}] * 2
    assert place.audit.messages["deployment-of-new/3"].change.reason == "users complain"


@pytest.mark.parametrize("reason", ["", " \n", "x" * 4097, "not UTF-8: \udcff"])
def test_a_reason_that_cannot_be_recorded_is_refused_before_anything_is_done(place: PlayedPlace, reason: str) -> None:
    place.rolling_out()
    before = place.state
    orders: list[Callable[[Commands], object]] = [
        lambda commands: commands.roll_back(reason),
        lambda commands: commands.roll_back(reason, model_id="new"),
        lambda commands: commands.set_traffic("old", 100, reason),
        lambda commands: commands.set_traffic("new", 5, reason),
        lambda commands: commands.promote(reason, model_id="new"),
        lambda commands: commands.freeze(reason),
        lambda commands: commands.create(a_model("other"), reason),
        lambda commands: commands.start_ab_test(
            a_model("other"), 0.5, reason, deployment_id="deployment-of-other", bake_seconds=0
        ),
    ]
    for order in orders:
        with pytest.raises(UnusableReason, match="give a reason"):
            order(place.commands())
    assert place.state == before
    assert [node.fenced for node in place.nodes] == [{}, {}]
    assert place.commands().roll_back("x" * 4096).change.event == "rolled_back"


def test_a_reason_that_cannot_be_recorded_takes_no_model_out_of_service(place: PlayedPlace) -> None:
    promoted(place)
    with pytest.raises(UnusableReason):
        place.commands().roll_back("", model_id="new")
    assert (place.state.serving, [node.fenced for node in place.nodes]) == ("new", [{}, {}])


def test_a_rollback_by_a_person_holds_though_the_record_is_away(place: PlayedPlace) -> None:
    place.rolling_out()
    waiting = iter([True])

    def goes_after_the_read() -> None:
        place.world.nats_is_up = next(waiting, False)

    place.world.point = goes_after_the_read
    with pytest.raises(RecordPending, match="new is fenced at gateway-0, gateway-1, and that is not recorded yet"):
        place.commands().roll_back("users complain")
    assert place.routed() == [{"old": 1.0}] * 2


@pytest.mark.parametrize("named", ["new", None])
def test_a_rollback_by_a_person_is_fenced_and_found_later_with_every_store_away(
    place: PlayedPlace, named: str | None
) -> None:
    place.rolling_out()
    place.world.nats_is_up = place.world.warehouse_is_up = False
    with pytest.raises(RecordPending, match="new is fenced at gateway-0, gateway-1, and that is not recorded yet"):
        place.commands().roll_back("users complain", model_id=named)
    assert place.routed() == [{"old": 1.0}] * 2
    place.world.nats_is_up = place.world.warehouse_is_up = True
    assert place.tick().state == place.state
    assert (place.state.retired, place.state.change.reason) == (("new",), "users complain")


def test_a_candidate_that_bakes_is_known_to_the_gateways_too(place: PlayedPlace) -> None:
    place.rolling_out()
    place.commands().promote("in a hurry", model_id="new")
    place.world.nats_is_up = False
    with pytest.raises(RecordPending):
        place.commands().roll_back("users complain")
    assert place.routed() == [{"old": 1.0}] * 2


def test_gateways_that_disagree_or_roll_nothing_out_have_the_person_name_the_model(place: PlayedPlace) -> None:
    place.world.nats_is_up = False
    with pytest.raises(TransitionRefused, match="NATS is away; and the gateways do not tell who is the candidate"):
        place.commands().roll_back("which one?")
    place.world.nats_is_up = True
    place.nodes[1].is_up = False
    place.rolling_out()
    place.nodes[1].is_up, place.world.nats_is_up = True, False
    with pytest.raises(TransitionRefused, match="name it"):
        place.commands().roll_back("which one?")
    assert not any(node.fenced for node in place.nodes)
    for node in place.nodes:
        node.is_up = False
    with pytest.raises(TransitionRefused, match="no gateway answers"):
        place.commands().roll_back("which one?")


def test_a_lost_record_does_not_keep_a_person_from_taking_the_candidate_out(place: PlayedPlace) -> None:
    place.rolling_out()
    place.states.values = []
    with pytest.raises(RecordPending, match="or the record was lost"):
        place.commands().roll_back("users complain")
    assert place.routed() == [{"old": 1.0}] * 2


def test_a_model_that_nobody_rolls_out_is_fenced_nowhere(place: PlayedPlace) -> None:
    place.rolling_out()
    with pytest.raises(TransitionRefused, match="mistyped is not being rolled out"):
        place.commands().roll_back("users complain", model_id="mistyped")
    assert not any(node.fenced for node in place.nodes)


def test_a_promoted_model_is_taken_back_by_name(place: PlayedPlace) -> None:
    promoted(place)
    with pytest.raises(TransitionRefused, match="nothing is being rolled out"):
        place.commands().roll_back("which one?")
    state = place.commands().roll_back("it was better before", model_id="new")
    assert (state.serving, state.retired, state.change.deployment_id) == ("old", ("new",), "deployment-of-new")
    assert place.routed() == [{"old": 1.0}] * 2


def test_a_promoted_model_is_taken_back_after_the_record_was_restored(place: PlayedPlace) -> None:
    promoted(place)
    place.states.values = []
    place.tick()
    assert (place.state.change.event, len(place.states.values)) == ("restored", 1)
    place.world.warehouse_is_up = False
    with pytest.raises(WarehouseUnavailable):
        place.commands().roll_back("it was better before", model_id="new")
    place.world.warehouse_is_up = True
    state = place.commands().roll_back("it was better before", model_id="new")
    assert (state.serving, state.retired, state.change.deployment_id) == ("old", ("new",), "deployment-of-new")
    assert place.routed() == [{"old": 1.0}] * 2


def test_a_promoted_model_that_was_taken_back_stays_out_though_the_record_of_it_is_lost(place: PlayedPlace) -> None:
    promoted(place)
    place.world.warehouse_is_up = False
    place.commands().roll_back("it was better before", model_id="new")
    place.states.values = []
    place.world.warehouse_is_up = True
    restored, again = place.tick().changes
    assert (restored.serving, restored.retired) == ("new", ()), "the audit knows no better"
    assert (again.serving, again.retired, again.change.reason) == ("old", ("new",), "it was better before")
    place.follow()
    assert place.routed() == [{"old": 1.0}] * 2


def test_a_promoted_model_is_taken_back_after_more_changes_than_the_record_remembers(place: PlayedPlace) -> None:
    promoted(place)
    for _ in range(HISTORY // 2):
        place.commands().freeze("careful")
        place.commands().unfreeze("go on")
    state = place.commands().set_traffic("old", 100, "PUT /admin/traffic")
    assert (state.serving, state.change.deployment_id) == ("old", "deployment-of-new")


def test_a_promoted_model_is_taken_back_while_another_waits_for_its_approval(place: PlayedPlace) -> None:
    promoted(place)
    place.release(2, "newer", needs_approval=True)
    assert place.tick().state is not None
    assert place.state.phase == "awaiting_approval"
    state = place.commands().roll_back("it was better before", model_id="new")
    assert (state.phase, state.serving, state.retired) == ("steady", "old", ("new",))
    assert state.change.deployment_id == "deployment-of-new"
    assert state.change.evidence == {"approval_status": "manual_approved", "interrupted": "deployment-of-newer"}
    assert place.routed() == [{"old": 1.0}] * 2


@pytest.mark.parametrize("is_test", [False, True])
def test_a_promoted_model_is_taken_back_while_another_is_rolled_out_which_is_not_retired(
    place: PlayedPlace, is_test: bool
) -> None:
    promoted(place)
    if is_test:
        place.commands().start_ab_test(a_model("newer"), 0.5, "?", deployment_id="test-1", bake_seconds=60)
    else:
        place.rolling_out("newer")
    place.follow()
    state = place.commands().roll_back("it was better before", model_id="new")
    assert (state.phase, state.serving, state.retired) == ("steady", "old", ("new",))
    assert place.routed() == [{"old": 1.0}] * 2
    assert not any("newer" in node.fenced for node in place.nodes)


def test_a_frozen_deployment_gives_its_model_back_too(place: PlayedPlace) -> None:
    promoted(place)
    place.rolling_out("newer")
    place.commands().freeze("careful")
    assert place.commands().roll_back("it was better before", model_id="new").serving == "old"


def test_the_specified_call_brings_the_former_model_back_in_the_middle_of_a_rollout(place: PlayedPlace) -> None:
    promoted(place)
    place.rolling_out("newer")
    with pytest.raises(TransitionRefused, match="third has not served before"):
        place.commands().set_traffic("third", 100, "PUT /admin/traffic")
    state = place.commands().set_traffic("old", 100, "PUT /admin/traffic")
    assert (state.serving, state.retired) == ("old", ("new",))


def test_a_control_without_traffic_is_not_taken_back(place: PlayedPlace) -> None:
    promoted(place)
    place.rolling_out("newer")
    place.commands().promote("in a hurry", model_id="newer")
    with pytest.raises(TransitionRefused, match="new has no traffic while newer bakes: promote newer first"):
        place.commands().roll_back("it was better before", model_id="new")
    assert place.state.weights == {"newer": 1.0}


def test_only_the_model_that_was_named_is_taken_back(place: PlayedPlace, monkeypatch: pytest.MonkeyPatch) -> None:
    promoted(place)
    place.rolling_out("newer")
    read, looks = place.states.read, itertools.count()

    def read_before_it_is_promoted() -> StoredState | None:
        found = read()
        if next(looks) == 1:  # the first was for a candidate
            for _ in range(2):
                place.commands("other").promote("it is good", model_id="newer")
        return found

    monkeypatch.setattr(place.states, "read", read_before_it_is_promoted)
    with pytest.raises(TransitionRefused, match="new is no longer in service"):
        place.commands().roll_back("it was better before", model_id="new")
    assert (place.state.serving, place.state.retired) == ("newer", ())


def test_a_first_model_has_nobody_before_it(place: PlayedPlace) -> None:
    with pytest.raises(TransitionRefused, match="no model has served before"):
        place.commands().roll_back("it is bad", model_id="old")


def test_the_specified_call_gives_the_model_in_service_everything_and_rolls_back(place: PlayedPlace) -> None:
    place.rolling_out()
    state = place.commands().set_traffic("old", 100, "PUT /admin/traffic")
    assert (state.weights, state.retired) == ({"old": 1.0}, ("new",))
    assert place.nodes[0].fenced == {"new": "PUT /admin/traffic"}
    assert place.commands().set_traffic("old", 100, "again") == state


def test_the_specified_call_brings_the_former_model_back_after_a_promotion(place: PlayedPlace) -> None:
    promoted(place)
    with pytest.raises(TransitionRefused, match="third has not served before"):
        place.commands().set_traffic("third", 100, "PUT /admin/traffic")
    state = place.commands().set_traffic("old", 100, "PUT /admin/traffic")
    assert (state.serving, state.retired) == ("old", ("new",))


def test_a_share_within_a_rollout_is_raised_record_first_and_lowered_without_the_warehouse(place: PlayedPlace) -> None:
    place.rolling_out()
    assert place.commands().set_traffic("new", 40, "more").weights == {"old": 0.6, "new": 0.4}
    place.world.warehouse_is_up = False
    with pytest.raises(WarehouseUnavailable):
        place.commands().set_traffic("new", 60, "more")
    assert place.commands().set_traffic("new", 20, "less").weights == {"old": 0.8, "new": 0.2}
    with pytest.raises(TransitionRefused, match="101 is no percentage"):
        place.commands().set_traffic("new", 101, "too much")


def test_a_freeze_does_not_wait_for_the_warehouse_and_an_unfreeze_does(place: PlayedPlace) -> None:
    place.world.warehouse_is_up = False
    assert place.commands().freeze("everything is down").frozen
    with pytest.raises(WarehouseUnavailable):
        place.commands().unfreeze("go on")
    place.world.warehouse_is_up = True
    assert place.commands().unfreeze("go on").frozen is None
    assert [row.state.generation for row in place.audit.recent(9)] == [3, 2, 1]


def test_an_ab_test_keeps_its_split_until_somebody_ends_it(place: PlayedPlace) -> None:
    state = place.commands().start_ab_test(
        a_model("new"), 0.5, "which is better?", deployment_id="test-1", bake_seconds=60
    )
    assert (state.phase, state.weights, state.change.event) == ("testing", {"old": 0.5, "new": 0.5}, "deployed")
    place.verdict = "advance"
    assert place.tick().changes == []
    assert place.judged == [("new", "testing", "full")]
    assert place.commands().promote("it is", model_id="new").phase == "baking"


def test_the_split_to_which_a_promoted_test_goes_back_takes_what_the_last_step_of_a_canary_does(
    place: PlayedPlace,
) -> None:
    place.commands().start_ab_test(a_model("new"), 0.3, "which is better?", deployment_id="test-1", bake_seconds=60)
    place.commands().promote("it is", model_id="new")
    place.verdict = "recheck"
    place.tick()
    assert place.state.rollout is not None
    last = ramp("canary", 0.1, 4)[-1]
    assert place.state.rollout.current == last.model_copy(update={"share": 0.3})


def test_an_order_that_lost_a_race_is_given_again_on_what_is_there_then(place: PlayedPlace) -> None:
    place.rolling_out()
    place.verdict = "advance"
    races = [place.tick, lambda: place.commands("other").freeze("faster")]

    def somebody_is_faster() -> None:
        if races and len(place.states.values) == 2:
            race = races.pop()
            races.clear()
            race()

    place.world.point = somebody_is_faster
    state = place.commands("ada").freeze("slower")
    assert (state.frozen, state.generation) == ("slower", 4)
    assert [each.change.by for each in place.states.recorded[-2:]] == ["other", "ada"]


def test_whoever_always_loses_is_told(place: PlayedPlace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(place.states, "swap", lambda *_: None)
    for order in (lambda: place.commands().freeze("x"), lambda: place.commands().approve("x")):
        with pytest.raises((RecordBusy, TransitionRefused)):
            order()
    with pytest.raises(RecordBusy, match="others change the desired state all the time"):
        place.commands().freeze("x")
