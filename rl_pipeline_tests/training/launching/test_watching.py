"""When a training hangs, by times that are given and not waited for."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rl_pipeline.training.launching.watching import HangWatch, ProgressFile


def step(number: int) -> dict[str, object]:
    return {"phase": "training", "step": number}


def test_a_training_hangs_after_five_times_its_usual_step() -> None:
    watch = HangWatch(stall_seconds=10, moved_at=0)
    for number in range(1, 11):
        watch.observe(step(number), now=100.0 * number)
    assert watch.allowed_seconds == 500
    assert not watch.hangs(1_499)
    assert watch.hangs(1_501)


def test_quick_steps_may_pause_for_the_least_time_of_a_hang() -> None:
    watch = HangWatch(stall_seconds=600, moved_at=0)
    for number in range(1, 11):
        watch.observe(step(number), now=float(number))
    assert not watch.hangs(609)
    assert watch.hangs(611)


def test_one_slow_step_does_not_move_the_measure() -> None:
    watch = HangWatch(stall_seconds=1, moved_at=0)
    for number, moment in enumerate([10, 20, 30, 40, 400, 410, 420], start=1):
        watch.observe(step(number), now=float(moment))
    assert watch.allowed_seconds == 50


def test_loading_has_three_times_as_long() -> None:
    watch = HangWatch(stall_seconds=600, moved_at=0)
    watch.observe({"phase": "loading"}, now=5)
    assert not watch.hangs(1_804)
    assert watch.hangs(1_806)


def test_the_first_step_has_ten_times_as_long_because_it_compiles_and_nobody_knows_how_long_a_step_takes() -> None:
    watch = HangWatch(stall_seconds=600, moved_at=0)
    watch.observe({"phase": "loading"}, now=5)
    watch.observe({"phase": "training"}, now=100)
    assert not watch.hangs(6_099)
    assert watch.hangs(6_101)


def test_the_first_step_measures_the_second() -> None:
    watch = HangWatch(stall_seconds=600, moved_at=0)
    watch.observe({"phase": "training"}, now=50)
    watch.observe(step(1), now=750)
    assert watch.allowed_seconds == 3_500
    assert not watch.hangs(750 + 700)


def test_play_and_evaluation_before_the_first_step_are_no_measure_of_it() -> None:
    watch = HangWatch(stall_seconds=10, moved_at=0)
    watch.observe({"phase": "base_evaluation"}, now=1)
    watch.observe({"phase": "training"}, now=500)
    watch.observe({"phase": "playing"}, now=501)
    watch.observe({"phase": "training"}, now=1_000)
    watch.observe(step(1), now=1_020)
    assert watch.allowed_seconds == 100


def test_the_same_step_again_is_no_progress() -> None:
    watch = HangWatch(stall_seconds=10, moved_at=0)
    watch.observe(step(3), now=1)
    watch.observe(step(3), now=9)
    watch.observe(step(2), now=10)
    assert watch.hangs(12)


def test_lines_between_steps_are_progress_and_no_measure_of_a_step() -> None:
    watch = HangWatch(stall_seconds=10, moved_at=0)
    watch.observe(step(1), now=1)
    watch.observe(step(2), now=2)
    for moment in range(2, 1_000, 8):
        watch.observe({"phase": "evaluation", "step": 2}, now=moment)
        assert not watch.hangs(moment + 9)
    watch.observe(step(3), now=1_000)
    assert watch.allowed_seconds == 10, "the evaluation was not taken for a slow step"


@pytest.mark.parametrize("updates", [1, 4])
def test_long_play_between_quick_updates_is_no_hang_and_no_measure_of_a_step(updates: int) -> None:
    watch, now, number = HangWatch(stall_seconds=600, moved_at=0), 0.0, 0
    for _ in range(6):
        for _ in range(700):
            watch.observe({"phase": "playing", "step": number}, now)
            now += 1
        watch.observe({"phase": "training", "step": number}, now)
        assert not watch.hangs(now + 599)
        for _ in range(updates):
            now += 20
            assert not watch.hangs(now)
            number += 1
            watch.observe(step(number), now)
    watch.stall_seconds = 1
    assert watch.allowed_seconds == 100, "five updates of 20 seconds"


def test_play_that_stands_still_is_a_hang() -> None:
    watch = HangWatch(stall_seconds=600, moved_at=0)
    watch.observe(step(1), now=1)
    watch.observe({"phase": "playing", "step": 1}, now=2)
    watch.observe({"phase": "playing", "step": 1}, now=300)
    assert not watch.hangs(899)
    assert watch.hangs(901)


def test_a_phase_that_says_nothing_hangs_too() -> None:
    watch = HangWatch(stall_seconds=10, moved_at=0)
    watch.observe(step(1), now=1)
    watch.observe({"phase": "saving", "step": 1}, now=2)
    assert watch.hangs(13)


@given(
    st.lists(st.integers(min_value=10, max_value=50), min_size=1, max_size=80),
    st.integers(min_value=5, max_value=60),
)
def test_a_training_whose_steps_take_at_most_five_times_the_quickest_never_hangs(
    intervals: list[int], stall_seconds: int
) -> None:
    """Be they longer than the least time of a hang: the first may take ten times that."""
    watch, now = HangWatch(stall_seconds, moved_at=0), 0
    watch.observe({"phase": "training"}, now)
    for number, interval in enumerate(intervals, start=1):
        now += interval
        assert not watch.hangs(now)
        watch.observe(step(number), now)


def test_each_line_is_read_once_and_only_when_it_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "progress.jsonl"
    progress = ProgressFile(path)
    assert progress.new_lines() == []
    with path.open("a") as file:
        file.write(json.dumps(step(1)) + "\n" + json.dumps(step(2))[:9])
        file.flush()
        assert progress.new_lines() == [step(1)]
        assert progress.new_lines() == []
        file.write(json.dumps(step(2))[9:] + "\n")
    assert progress.new_lines() == [step(2)]


@pytest.mark.parametrize("broken", ["{", "3", "nothing", "\x00"])
def test_a_broken_line_is_left_out_and_the_next_is_read(tmp_path: Path, broken: str) -> None:
    path = tmp_path / "progress.jsonl"
    progress = ProgressFile(path)
    path.write_text(f"{broken}\n{json.dumps(step(1))}\n")
    assert progress.new_lines() == [step(1)]


def test_lines_of_an_earlier_run_are_not_read_again(tmp_path: Path) -> None:
    path = tmp_path / "progress.jsonl"
    path.write_text(json.dumps(step(99)) + "\n")
    progress = ProgressFile(path)
    with path.open("a") as file:
        file.write(json.dumps(step(1)) + "\n")
    assert progress.new_lines() == [step(1)]
