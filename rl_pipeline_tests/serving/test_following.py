"""What a gateway goes by, and what of it outlives a restart."""

from datetime import UTC, datetime
from pathlib import Path

import pytest

from rl_pipeline.serving.following import MOST_WAITING, Following, KeptFileUnreadable, Refused, ToKeep
from rl_pipeline_tests.serving.states import NEW, OLD, model_at, ramping, steady

NOW = datetime(2026, 1, 2, tzinfo=UTC)
CONTROL, CANDIDATE = model_at(OLD), model_at(NEW)


def keep(following: Following, changes: list[ToKeep]) -> bool:
    """Whether there was anything to be kept."""
    for change in changes:
        following.keep(change)
    return bool(changes)


def test_only_a_newer_generation_is_followed(tmp_path: Path) -> None:
    following = Following(tmp_path)
    assert following.generation == 0
    assert keep(following, following.follow(ramping(5, CONTROL, CANDIDATE, 0.1), NOW))
    assert not following.follow(ramping(4, CONTROL, CANDIDATE, 0.5), NOW)
    assert not following.follow(ramping(5, CONTROL, CANDIDATE, 0.1), NOW)
    assert following.weights[NEW] == pytest.approx(0.1)


def test_another_state_of_the_same_generation_is_refused(tmp_path: Path) -> None:
    following = Following(tmp_path)
    following.follow(ramping(5, CONTROL, CANDIDATE, 0.1), NOW)
    with pytest.raises(Refused, match="another state of generation 5"):
        following.follow(ramping(5, CONTROL, CANDIDATE, 0.5), NOW)


def test_a_restart_knows_what_was_known(tmp_path: Path) -> None:
    before = Following(tmp_path)
    keep(before, before.follow(ramping(5, CONTROL, CANDIDATE, 0.1), NOW))
    keep(before, before.register(model_at("next")))
    keep(before, before.fence(NEW, "too many errors", NOW))
    after = Following(tmp_path)
    assert after.followed == before.followed
    assert after.weights == {OLD: 1.0}
    assert after.fences[NEW].reason == "too many errors"
    assert set(after.models()) == {OLD, "next"}


def test_the_model_in_service_cannot_be_fenced(tmp_path: Path) -> None:
    following = Following(tmp_path)
    following.follow(ramping(1, CONTROL, CANDIDATE, 1.0), NOW)
    with pytest.raises(Refused, match="is in service"):
        following.fence(OLD, "a mistake", NOW)


def test_a_fence_outlasts_every_state(tmp_path: Path) -> None:
    following = Following(tmp_path)
    following.follow(ramping(1, CONTROL, CANDIDATE, 0.1), NOW)
    following.fence(NEW, "bad", NOW)
    following.follow(ramping(2, CONTROL, CANDIDATE, 1.0), NOW)
    assert following.weights == {OLD: 1.0}
    following.follow(steady(3, CANDIDATE), NOW)
    routing = following.routing(())
    assert routing is not None
    assert routing.weights == {OLD: 1.0}, "the model before it goes on serving"
    assert set(following.models()) == {OLD}


def test_a_fence_ends_where_the_model_that_would_go_on_serving_was_rolled_back(tmp_path: Path) -> None:
    following = Following(tmp_path)
    keep(following, following.follow(steady(1, CANDIDATE), NOW))
    keep(following, following.fence(OLD, "nobody wants this one either", NOW))
    changes = following.follow(steady(2, CONTROL).model_copy(update={"retired": (NEW,)}), NOW)
    assert following.weights == {OLD: 1.0}
    for change in changes:
        following.keep(change)
        restarted = Following(tmp_path)
        assert restarted.routing(()) is not None, "whatever is on the disk, somebody serves"
    assert restarted.weights == {OLD: 1.0}
    assert restarted.fences == {}


def test_nothing_is_routed_to_a_fenced_model_even_if_there_is_no_other(tmp_path: Path) -> None:
    following = Following(tmp_path)
    following.fence(NEW, "bad", NOW)
    following.follow(steady(1, CANDIDATE), NOW)
    assert following.routing(()) is None


def test_a_registered_model_waits_for_a_state_and_then_belongs_to_it(tmp_path: Path) -> None:
    following = Following(tmp_path)
    keep(following, following.register(CANDIDATE))
    assert following.register(CANDIDATE) == []
    assert NEW in following.models()
    following.follow(ramping(1, CONTROL, CANDIDATE, 0.1), NOW)
    following.follow(steady(2, CONTROL), NOW)
    assert set(following.models()) == {OLD}


def test_what_cannot_be_registered_is_refused(tmp_path: Path) -> None:
    following = Following(tmp_path)
    following.follow(steady(1, CONTROL), NOW)
    following.fence(NEW, "bad", NOW)
    with pytest.raises(Refused, match="was fenced"):
        following.register(CANDIDATE)
    with pytest.raises(Refused, match="is something else"):
        following.register(model_at(OLD, "http://127.0.0.1:10"))
    for number in range(MOST_WAITING):
        following.register(model_at(f"model-{number}"))
    with pytest.raises(Refused, match="fence those"):
        following.register(model_at("one-too-many"))


def test_what_is_not_on_the_disk_is_returned_again_until_it_is(tmp_path: Path) -> None:
    following = Following(tmp_path)
    state = ramping(5, CONTROL, CANDIDATE, 0.1)
    for unfinished in (".state.json.unfinished", ".models.json.unfinished", ".fences.json.unfinished"):
        (tmp_path / unfinished).symlink_to("/dev/full")
    for change in (following.follow(state, NOW), following.register(model_at("next")), following.fence("bad", "", NOW)):
        with pytest.raises(OSError, match="No space left"):
            keep(following, change)
    assert Following(tmp_path).generation == 0
    for unfinished in tmp_path.iterdir():
        unfinished.unlink()
    assert len(following.unkept()) == 3
    keep(following, following.follow(state, NOW))
    keep(following, following.register(model_at("next")))
    keep(following, following.fence("bad", "", NOW))
    assert following.unkept() == []
    after = Following(tmp_path)
    assert (after.generation, set(after.registered), set(after.fences)) == (5, {"next"}, {"bad"})


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "fences.json").write_text('{"fences": ')
    with pytest.raises(KeptFileUnreadable, match=r"fences\.json"):
        Following(tmp_path)
