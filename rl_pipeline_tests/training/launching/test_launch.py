"""The launcher, with real processes: how programs end, and that nothing of them is left."""

import itertools
import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from rl_pipeline.training.launching.exits import Exit
from rl_pipeline.training.launching.failures import classify
from rl_pipeline.training.launching.launch import LaunchOutcome, launch, memory_kills
from rl_pipeline.training.plans.deepspeed_config import GROUP_TIMEOUT
from rl_pipeline.training.plans.plan import DistributionPlan
from rl_pipeline_tests.training import probe_program
from rl_pipeline_tests.waiting import wait_until

ALONE = DistributionPlan(deepspeed=False)
TWO_PROCESSES = DistributionPlan(processes=2)


@dataclass
class Probe:
    """A launch of the probe program whose processes can be told from all others."""

    attempt: Path
    mark: str

    @property
    def environment(self) -> dict[str, str]:
        return {**os.environ, "PROBE_MARK": self.mark}

    def launch(self, distribution: DistributionPlan, *asked: str, **how: Any) -> LaunchOutcome:
        program = [probe_program.__file__, str(self.attempt), *asked]
        cache = self.attempt / "operators"
        patience: dict[str, Any] = {"stall_seconds": 600.0, "grace_seconds": 60.0}
        return launch(
            distribution, program, self.attempt, environment=self.environment, operators_cache=cache, **patience | how
        )

    def processes(self) -> list[psutil.Process]:
        """All that run with the mark, wherever they belong."""
        return [process for process in psutil.process_iter() if _marked(process, self.mark)]

    def rank(self, number: int) -> dict[str, Any]:
        content: dict[str, Any] = json.loads((self.attempt / f"rank{number}.json").read_text())
        return content


def _marked(process: psutil.Process, mark: str) -> bool:
    try:
        return process.environ().get("PROBE_MARK") == mark and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


@pytest.fixture
def probe(tmp_path: Path) -> Iterator[Probe]:
    probe = Probe(tmp_path, uuid.uuid4().hex)
    yield probe
    for process in probe.processes():  # after a test that failed
        process.kill()


class Moves:
    """Counts progress; true once there was some."""

    def __init__(self) -> None:
        self.lines: list[dict[str, Any]] = []

    def __call__(self, line: dict[str, Any]) -> None:
        self.lines.append(line)

    def seen(self) -> bool:
        return len(self.lines) > 2


def test_a_program_runs_to_its_end_in_one_process_without_deepspeed(probe: Probe) -> None:
    moves = Moves()
    outcome = probe.launch(ALONE, "--steps", "3", on_progress=moves)
    assert (outcome.exit_code, outcome.has_result, outcome.hung, outcome.stopped) == (Exit.DONE, True, False, False)
    assert [line["step"] for line in moves.lines] == [1, 2, 3]
    assert classify(outcome) is None


def test_what_an_earlier_run_left_is_not_taken_for_the_end_of_this_one(probe: Probe) -> None:
    assert probe.launch(ALONE, "--fails").exit_code == Exit.DATA
    (probe.attempt / "result.json").write_text("{}")
    moves = Moves()
    outcome = probe.launch(ALONE, "--steps", "0", on_progress=moves, stop_requested=moves.seen)
    assert (outcome.records, outcome.has_result) == ((), False)
    assert moves.lines[0]["step"] == 1


def test_a_program_that_is_asked_to_stop_saves_its_state(probe: Probe) -> None:
    moves = Moves()
    outcome = probe.launch(ALONE, "--steps", "0", on_progress=moves, stop_requested=moves.seen)
    assert (outcome.exit_code, outcome.stopped) == (Exit.SAVED, True)
    assert (probe.attempt / "saved0").exists()
    assert classify(outcome) is None


def test_a_program_that_does_not_stop_is_killed_with_all_its_children(probe: Probe) -> None:
    moves = Moves()
    outcome = probe.launch(
        ALONE, "--steps", "0", "--deaf", "--children", on_progress=moves, stop_requested=moves.seen, grace_seconds=0.2
    )
    assert (outcome.exit_code, outcome.stopped) == (128 + signal.SIGKILL, True)
    assert probe.processes() == []


def test_a_program_whose_steps_take_long_has_longer_to_save(probe: Probe) -> None:
    moves = Moves()
    # Minutes pass between two looks at it, however many steps are read in one go.
    minutes = itertools.count(0.0, 60.0)
    outcome = probe.launch(
        *(ALONE, "--steps", "0", "--saves-for", "1"),
        on_progress=moves,
        stop_requested=moves.seen,
        clock=lambda: next(minutes),
        grace_seconds=0.2,
        stall_seconds=1e6,
    )
    assert (outcome.exit_code, outcome.stopped) == (Exit.SAVED, True)


def test_kills_for_want_of_memory_are_those_of_our_own_group_where_it_counts_them(tmp_path: Path) -> None:
    group, machine = tmp_path / "memory.events", tmp_path / "vmstat"
    machine.write_text("nr_free_pages 4711\noom_kill 7\n")
    assert memory_kills([group, machine]) == 7
    group.write_text("low 0\noom 3\noom_kill 2\noom_group_kill 0\n")
    assert memory_kills([group, machine]) == 2
    assert memory_kills([tmp_path / "nowhere"]) == 0


def test_an_interrupt_lets_the_program_save_and_goes_on_its_way(probe: Probe) -> None:
    def interrupted(_: dict[str, Any]) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        probe.launch(ALONE, "--steps", "0", "--children", on_progress=interrupted)
    assert (probe.attempt / "saved0").exists()
    assert probe.processes() == []


def test_a_program_that_leaves_children_behind_takes_them_along(probe: Probe) -> None:
    assert probe.launch(ALONE, "--children").exit_code == Exit.DONE
    assert probe.processes() == []


def test_a_guard_that_is_killed_takes_the_program_along(probe: Probe) -> None:
    def kill_the_guard(_: dict[str, Any]) -> None:
        for child in psutil.Process().children():
            if _marked(child, probe.mark) and "rl_pipeline.training.launching.process_guard" in child.cmdline():
                child.kill()

    outcome = probe.launch(ALONE, "--steps", "0", "--deaf", on_progress=kill_the_guard)
    assert outcome.exit_code == -signal.SIGKILL
    wait_until(lambda: not probe.processes(), "the end of all processes")


LAUNCHING = """
import os, pathlib, sys
from rl_pipeline.training.launching.launch import launch
from rl_pipeline.training.plans.plan import DistributionPlan
attempt, alone = pathlib.Path(sys.argv[2]), DistributionPlan(deepspeed=False)
launch(alone, sys.argv[1:], attempt, environment=os.environ, operators_cache=attempt, stall_seconds=600)
"""


def launching_process(probe: Probe, *asked: str) -> subprocess.Popen[bytes]:
    """Another process that launches the probe, once the probe has made its first steps."""
    program = [probe_program.__file__, str(probe.attempt), "--steps", "0", "--deaf", *asked]
    process = subprocess.Popen([sys.executable, "-c", LAUNCHING, *program], env=probe.environment)
    wait_until((probe.attempt / "progress.jsonl").exists, "the first step")
    return process


def test_nothing_survives_the_death_of_the_launching_process(probe: Probe) -> None:
    launching = launching_process(probe, "--children")
    assert len(probe.processes()) == 4, "the launching process, the guard, the program and its child"
    launching.kill()
    launching.wait()
    wait_until(lambda: not probe.processes(), "the end of all processes", seconds=10)


def test_the_program_does_not_survive_the_death_of_guard_and_launching_process_together(probe: Probe) -> None:
    launching = launching_process(probe)
    (guard,) = psutil.Process(launching.pid).children()
    launching.send_signal(signal.SIGSTOP)
    guard.kill()
    launching.kill()
    launching.wait()
    wait_until(lambda: not probe.processes(), "the end of all processes", seconds=10)


def test_a_rank_that_stands_still_is_a_hang_that_ends_both_processes_under_deepspeed(probe: Probe) -> None:
    stopped_at: list[float] = []

    def stop_a_rank(line: dict[str, Any]) -> None:
        if line["step"] == 3:
            os.kill(probe.rank(1)["pid"], signal.SIGSTOP)
            stopped_at.append(time.monotonic())

    def clock() -> float:
        """A hang takes long: from the stop on, time flies."""
        now = time.monotonic()
        return now + sum(5_000 * (now - moment) for moment in stopped_at)

    outcome = probe.launch(TWO_PROCESSES, "--join", "--steps", "0", on_progress=stop_a_rank, clock=clock)
    assert outcome.hung
    failure = classify(outcome)
    assert failure is not None
    assert failure.code == "TIMEOUT"
    assert probe.processes() == []
    for number in (0, 1):
        environment = probe.rank(number)["environment"]
        assert (environment["RANK"], environment["WORLD_SIZE"]) == (str(number), "2")
        assert (environment["DS_ACCELERATOR"], environment["OMP_NUM_THREADS"]) == ("cpu", "1")
        assert environment["CUDA_VISIBLE_DEVICES"] == "-1,-1", "no GPU"
        assert probe.rank(number)["waits"] == [GROUP_TIMEOUT.total_seconds()] * 2, "while one of them delivers"
    compiled = [path for path in (probe.attempt / "operators").rglob("*") if path.suffix in {".so", ".o"}]
    assert compiled == [], "without offloading there is nothing to compile"
    assert not list(Path("/dev/shm").glob(f"*{environment['MASTER_PORT']}*"))


class UnderLauncher:
    """Three launches at the same time: importing DeepSpeed is most of what each costs."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._probes: dict[str, Probe] = {}
        self._futures: dict[str, Future[LaunchOutcome]] = {}
        with ThreadPoolExecutor() as threads:
            self._start(threads, "stopped", "--steps", "0", "--children", stop_requested=self._both_run)
            self._start(threads, "failing", "--steps", "0", "--fails")
            self._start(threads, "dying", "--steps", "0", "--dies")

    def _start(self, threads: ThreadPoolExecutor, name: str, *asked: str, **how: Any) -> None:
        attempt = self._directory / name
        attempt.mkdir()
        probe = self._probes[name] = Probe(attempt, uuid.uuid4().hex)
        self._futures[name] = threads.submit(probe.launch, TWO_PROCESSES, *asked, **how)

    def _both_run(self) -> bool:
        return all((self._directory / "stopped" / f"rank{number}.json").exists() for number in (0, 1))

    def __getitem__(self, name: str) -> tuple[Probe, LaunchOutcome]:
        return self._probes[name], self._futures[name].result()


@pytest.fixture(scope="module")
def launches(tmp_path_factory: pytest.TempPathFactory) -> UnderLauncher:
    return UnderLauncher(tmp_path_factory.mktemp("launches"))


def test_all_ranks_save_when_a_launch_under_deepspeed_is_stopped(launches: UnderLauncher) -> None:
    probe, outcome = launches["stopped"]
    assert (outcome.exit_code, outcome.stopped) == (Exit.SAVED, True)
    assert (probe.attempt / "saved0").exists()
    assert (probe.attempt / "saved1").exists()
    assert probe.processes() == []


def test_a_rank_that_fails_ends_the_others_and_its_record_says_why(launches: UnderLauncher) -> None:
    probe, outcome = launches["failing"]
    assert outcome.exit_code == Exit.DATA
    failure = classify(outcome)
    assert failure is not None
    assert (failure.code, failure.message, failure.trajectory_ids) == ("DATA", "A row is poisoned.", ("t-1",))
    assert probe.processes() == []


def test_a_rank_that_is_killed_ends_the_others_and_comes_back_later(launches: UnderLauncher) -> None:
    probe, outcome = launches["dying"]
    failure = classify(outcome)
    assert failure is not None
    assert (failure.code, "SIGKILL" in failure.message) == ("INFRA", True)
    assert probe.processes() == []
