"""What a watchdog does with everything there, and with everything gone but the gateways."""

from pathlib import Path
from typing import Any

import pytest

from rl_pipeline.deployment.judging import Judgement
from rl_pipeline.deployment.watchdog import FileMemory, Memory
from rl_pipeline.deployment.withdrawing import Withdrawal
from rl_pipeline.stores.desired_state import StoredState
from rl_pipeline_tests.deployment.places import PlayedPlace
from rl_pipeline_tests.deployment.states import NOW, started


@pytest.fixture
def place() -> PlayedPlace:
    return PlayedPlace()


def test_it_judges_as_a_watchdog_and_lets_nothing_advance(place: PlayedPlace) -> None:
    place.rolling_out()
    place.verdict = "advance"
    look = place.look()
    assert place.judged == [("new", "ramping", "watchdog")]
    assert (look.recorded, look.fencings, look.state) == ([], {}, place.state)


def test_it_fences_a_bad_candidate_at_once_and_records_it(place: PlayedPlace) -> None:
    place.rolling_out()
    place.verdict, place.reason = "roll_back", "high_error_rate"
    look = place.look()
    assert look.fencings["new"].confirmed == ("gateway-0", "gateway-1")
    assert place.routed() == [{"old": 1.0}] * 2
    (state,) = look.recorded
    assert (state.change.by, state.change.reason, state.retired) == ("rollout-watchdog", "high_error_rate", ("new",))
    assert state.change.evidence["errors"] == 8
    assert place.memory.memory.withdrawals == {}
    assert place.look().recorded == []


def baking(place: PlayedPlace) -> None:
    place.rolling_out()
    place.commands().promote("in a hurry", model_id="new")
    place.follow()
    assert (place.state.phase, place.routed()) == ("baking", [{"new": 1.0}] * 2)


@pytest.mark.parametrize("fails_nearly_always", [True, False])
def test_in_the_bake_it_brings_the_control_back_and_retires_nobody(
    place: PlayedPlace, fails_nearly_always: bool
) -> None:
    baking(place)
    place.verdict, place.reason, place.fails_nearly_always = "recheck", "high_error_rate", fails_nearly_always
    look = place.look()
    assert place.judged == [("new", "baking", "watchdog")]
    assert (look.fencings, [state.change.event for state in look.recorded]) == ({}, ["rechecked"])
    assert (place.state.phase, place.state.retired) == ("ramping", ())
    assert place.routed() == [{"old": 0.9, "new": 0.1}] * 2, "at once, by way of the gateways themselves"
    place.verdict = "hold"
    assert place.look().recorded == []


def test_it_brings_the_control_back_with_a_gateway_away(place: PlayedPlace) -> None:
    baking(place)
    place.nodes[1].is_up = False
    place.verdict, place.reason = "recheck", "high_error_rate"
    assert [state.change.event for state in place.look().recorded] == ["rechecked"]
    assert place.nodes[0].weights == {"old": 0.9, "new": 0.1}


def test_in_the_bake_with_nats_dead_only_what_nearly_always_fails_is_taken_out(place: PlayedPlace) -> None:
    baking(place)
    place.look()
    place.world.nats_is_up = False
    place.verdict, place.reason = "recheck", "high_error_rate"
    look = place.look()
    assert (place.routed(), look.fencings) == ([{"new": 1.0}] * 2, {})
    assert any("the control cannot be brought back" in each for each in look.pending)
    place.fails_nearly_always = True
    assert place.look().fencings["new"].confirmed == ("gateway-0", "gateway-1")
    assert place.routed() == [{"old": 1.0}] * 2
    place.world.nats_is_up = True
    place.look()
    assert (place.state.serving, place.state.retired) == ("old", ("new",))


def test_in_the_bake_with_the_record_lost_what_nearly_always_fails_is_out_and_the_record_is_repaired(
    place: PlayedPlace,
) -> None:
    baking(place)
    place.tick()
    place.look()
    place.states.values = []
    place.verdict, place.reason, place.fails_nearly_always = "recheck", "high_error_rate", True
    assert place.look().fencings["new"].confirmed == ("gateway-0", "gateway-1")
    assert place.routed() == [{"old": 1.0}] * 2
    place.tick()
    place.look()
    place.tick()
    assert (place.state.phase, place.state.serving, place.state.retired) == ("steady", "old", ("new",))
    assert (place.routed(), place.memory.memory.withdrawals) == ([{"old": 1.0}] * 2, {})


@pytest.mark.parametrize("fails_nearly_always", [True, False])
def test_in_the_bake_an_old_copy_of_the_record_is_no_record_that_the_control_could_be_brought_back_by(
    place: PlayedPlace, fails_nearly_always: bool
) -> None:
    old_copy = list(place.states.values)
    baking(place)
    place.look()
    place.states.values = old_copy
    place.verdict, place.reason, place.fails_nearly_always = "recheck", "high_error_rate", fails_nearly_always
    look = place.look()
    assert any("the control cannot be brought back" in each for each in look.pending)
    assert place.routed() == [{"old": 1.0} if fails_nearly_always else {"new": 1.0}] * 2
    place.verdict = "hold"
    place.tick()
    place.look()
    assert (place.state.retired, place.memory.memory.withdrawals) == (("new",) if fails_nearly_always else (), {})


def test_it_does_not_repeat_a_recheck_that_the_controller_was_faster_with(
    place: PlayedPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    baking(place)
    place.verdict, place.reason = "recheck", "high_error_rate"
    judge = place.judge

    def judge_while_the_controller_looks(*asked: Any, **named: Any) -> Judgement:
        if named["mode"] == "watchdog":
            place.tick()
        return judge(*asked, **named)

    monkeypatch.setattr(place, "judge", judge_while_the_controller_looks)
    assert place.look().recorded == []
    assert (place.state.phase, place.state.change.by, place.state.rollout and place.state.rollout.step) == (
        "ramping",
        "rollout-controller",
        2,
    )


def test_with_nats_and_the_warehouse_dead_it_fences_and_records_once_they_are_back(place: PlayedPlace) -> None:
    place.rolling_out()
    place.look()
    place.world.nats_is_up = place.world.warehouse_is_up = False
    place.verdict, place.reason = "roll_back", "high_error_rate"
    look = place.look()
    assert place.routed() == [{"old": 1.0}] * 2
    assert look.recorded == []
    assert any("new is not recorded as rolled back yet" in each for each in look.pending)
    assert place.memory.memory.withdrawals["new"].evidence["errors"] == 8
    place.world.nats_is_up = True
    place.verdict = "hold"
    (state,) = place.look().recorded
    assert (state.change.reason, state.change.evidence["errors"]) == ("high_error_rate", 8)
    assert place.memory.memory.withdrawals == {}


def test_started_anew_with_nats_dead_it_knows_the_rollout_from_its_file(place: PlayedPlace, tmp_path: Path) -> None:
    place.rolling_out()
    file = tmp_path / "watchdog" / "memory.json"
    place.look(FileMemory(file))
    place.world.nats_is_up = False
    place.verdict = "roll_back"
    place.look(FileMemory(file))
    assert place.routed() == [{"old": 1.0}] * 2
    place.world.nats_is_up = True
    place.verdict = "hold"
    (state,) = place.look(FileMemory(file)).recorded
    assert state.change.event == "rolled_back"
    assert FileMemory(file).load() == Memory(place.state)


def test_with_nats_dead_and_no_memory_it_touches_nothing(place: PlayedPlace) -> None:
    place.rolling_out()
    place.world.nats_is_up = False
    place.verdict = "roll_back"
    look = place.look()
    assert (look.state, look.fencings, place.judged) == (None, {}, [])


def test_a_gateway_that_was_away_is_fenced_when_it_is_back(place: PlayedPlace) -> None:
    place.rolling_out()
    place.nodes[1].is_up = False
    place.world.nats_is_up = True
    place.verdict = "roll_back"
    assert place.look().fencings["new"].confirmed == ("gateway-0",)
    assert place.state.retired == ("new",)
    # It comes back cut off from the record, with the split that it kept.
    place.nodes[1].is_up = True
    assert place.nodes[1].weights == {"old": 0.9, "new": 0.1}
    place.verdict = "hold"
    place.world.nats_is_up = False
    assert place.look().fencings["new"].confirmed == ("gateway-0", "gateway-1")
    assert place.routed() == [{"old": 1.0}] * 2
    assert place.look().fencings == {}


def test_a_fence_of_another_is_spread_and_recorded_with_its_reason(place: PlayedPlace) -> None:
    place.rolling_out()
    place.nodes[0].fence("new", "user_dissatisfaction")
    look = place.look()
    assert place.nodes[1].fenced == {"new": "user_dissatisfaction"}
    (state,) = look.recorded
    assert (state.change.reason, state.change.evidence) == ("user_dissatisfaction", {"found": "fenced at a gateway"})
    assert place.judged == []


def test_what_is_in_service_by_now_is_left_alone_though_old_knowledge_speaks_against_it(place: PlayedPlace) -> None:
    place.rolling_out()
    place.look()
    place.verdict = "advance"
    for _ in range(4):
        place.tick()
    assert place.state.serving == "new"
    place.world.nats_is_up = False
    place.verdict = "roll_back"
    look = place.look()
    assert look.fencings["new"].refusal
    place.world.nats_is_up = True
    assert place.look().recorded == []
    assert (place.state.serving, place.routed()) == ("new", [{"new": 1.0}] * 2)
    assert place.memory.memory.withdrawals == {}


def test_with_no_gateway_there_it_keeps_trying(place: PlayedPlace) -> None:
    place.rolling_out()
    place.verdict = "roll_back"
    for node in place.nodes:
        node.is_up = False
    assert place.look().pending
    for node in place.nodes:
        node.is_up = True
    place.look()
    assert place.routed() == [{"old": 1.0}] * 2
    assert place.state.retired == ("new",)


def test_a_full_disk_keeps_nobody_from_taking_a_bad_model_out(place: PlayedPlace) -> None:
    class Full:
        def load(self) -> Memory:
            return Memory()

        def save(self, _: Memory) -> None:
            raise OSError(28, "No space left on device")

    place.rolling_out()
    place.verdict = "roll_back"
    look = place.look(Full())
    assert any("cannot be written" in each and "make room" in each for each in look.pending)
    assert (place.routed(), place.state.retired) == ([{"old": 1.0}] * 2, ("new",))


def test_a_lost_record_is_left_to_the_controller_and_its_withdrawal_kept(place: PlayedPlace) -> None:
    place.rolling_out()
    place.look()
    place.states.values = []
    place.verdict = "roll_back"
    look = place.look()
    assert place.routed() == [{"old": 1.0}] * 2
    assert look.recorded == []
    assert "new" in place.memory.memory.withdrawals
    place.verdict = "hold"
    place.tick()
    place.look()
    assert (place.state.retired, place.memory.memory.withdrawals) == (("new",), {})


def test_an_old_copy_of_the_record_does_not_hide_the_rollout_that_goes_on(place: PlayedPlace) -> None:
    old_copy = list(place.states.values)
    place.rolling_out()
    place.look()
    place.states.values = old_copy
    place.verdict, place.reason = "roll_back", "high_error_rate"
    look = place.look()
    assert look.fencings["new"].confirmed == ("gateway-0", "gateway-1")
    assert place.routed() == [{"old": 1.0}] * 2
    place.verdict = "hold"
    place.tick()
    place.look()
    assert (place.state.retired, place.memory.memory) == (("new",), Memory(place.state))


def test_it_follows_an_old_copy_that_somebody_has_changed_no_sooner_than_the_gateways_do(place: PlayedPlace) -> None:
    old_copy = list(place.states.values)
    place.rolling_out()
    place.verdict = "advance"
    place.tick()
    place.look()
    place.states.values = old_copy
    place.commands().freeze("careful")
    assert place.state.generation < place.nodes[0].state.generation  # type: ignore[union-attr]
    place.verdict = "roll_back"
    place.look()
    assert place.routed() == [{"old": 1.0}] * 2


def test_it_guards_a_deployment_that_was_made_anew_though_it_remembers_higher_generations(place: PlayedPlace) -> None:
    place.rolling_out()
    place.look()
    anew = PlayedPlace(now=place.now)
    assert anew.look(place.memory).state == anew.state


def test_it_does_not_fall_over_a_record_that_it_cannot_read(place: PlayedPlace) -> None:
    place.rolling_out()
    place.look()
    place.states.values.append(StoredState(b"written by hand", 99))
    place.verdict = "roll_back"
    look = place.look()
    assert any("cannot be read" in each for each in look.pending)
    assert place.routed() == [{"old": 1.0}] * 2


def test_memory_is_read_back_as_it_was_written(tmp_path: Path) -> None:
    memory = Memory(started(), {"new": Withdrawal("new", "high_error_rate", "watchdog", NOW, {"e_value": 21.5})})
    file = FileMemory(tmp_path / "memory.json")
    assert file.load() == Memory()
    file.save(memory)
    assert FileMemory(tmp_path / "memory.json").load() == memory
    assert [path.name for path in tmp_path.iterdir()] == ["memory.json"]


@pytest.mark.parametrize("content", [b"", b"{", b'{"state": null}', b'{"state": "{}", "withdrawals": {}}', b"[]"])
def test_memory_that_cannot_be_read_counts_as_none(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "memory.json"
    path.write_bytes(content)
    assert FileMemory(path).load() == Memory()
