"""Several nodes: DeepSpeed's own runner, with stand-ins for ssh and pdsh that go no further than this machine."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest

from rl_pipeline.training.launching.exits import PROGRESS_FILE, Exit
from rl_pipeline.training.launching.failures import classify
from rl_pipeline.training.launching.launch import LaunchOutcome, launch
from rl_pipeline.training.launching.nodes import ORDERS_FILE, Orders
from rl_pipeline.training.plans.plan import DistributionPlan
from rl_pipeline_tests.training import probe_program
from rl_pipeline_tests.waiting import wait_until

SSH = "#!/bin/sh\necho 127.0.0.1\n"
PDSH = """#!{python}
import os, pathlib, sys, time
hosts, command = sys.argv[5].split(","), " ".join(sys.argv[6:])
asked = [pathlib.Path({place!r}, f"{{os.getpid()}}-{{node}}") for node, _ in enumerate(hosts)]
for node, path in enumerate(asked):
    path.with_suffix(".new").write_text(command.replace("%n", str(node)))
    path.with_suffix(".new").rename(path.with_suffix(".command"))
while not all(path.with_suffix(".code").exists() for path in asked):
    time.sleep(0.05)
sys.exit(max(int(path.with_suffix(".code").read_text()) for path in asked))
"""


class Nodes:
    """Two machines in one: what is sent there runs below the test, out of reach of whoever launches, with none of its
    variables."""

    def __init__(self, place: Path) -> None:
        self.mark = uuid.uuid4().hex
        self.place, self.attempt = place, place / "attempt"
        self.attempt.mkdir()
        self.commands: list[str] = []
        self._running: list[subprocess.Popen[bytes]] = []
        self._closed = threading.Event()
        for name, script in (("ssh", SSH), ("pdsh", PDSH.format(python=sys.executable, place=str(place)))):
            (place / name).write_text(script)
            (place / name).chmod(0o755)
        (place / "hosts").write_text("node-a slots=1\nnode-b slots=1\n")
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def launch(self, *asked: str, **how: Any) -> LaunchOutcome:
        addresses = {"NATS_URL": "nats://user:secret@n", "MLFLOW_TRACKING_PASSWORD": "secret"}
        addresses |= {"NATS_ADMIN_PASSWORD": "of-somebody-else", "CHECKPOINT_SIGNING_KEY": "of-somebody-else"}
        return launch(
            DistributionPlan(processes=2, nodes=2, hostfile=str(self.place / "hosts")),
            [probe_program.__file__, str(self.attempt), *asked],
            self.attempt,
            environment={**os.environ, **addresses, "PATH": f"{self.place}:{os.environ['PATH']}"},
            operators_cache=self.place / "operators",
            **{"stall_seconds": 600.0, "grace_seconds": 60.0, **how},
        )

    def rank(self, number: int) -> dict[str, Any]:
        content: dict[str, Any] = json.loads((self.attempt / f"rank{number}.json").read_text())
        return content

    def all_run(self) -> bool:
        return all((self.attempt / f"rank{number}.json").exists() for number in (0, 1))

    def processes(self) -> list[psutil.Process]:
        return [process for process in psutil.process_iter() if _marked(process, self.mark)]

    def close(self) -> None:
        for process in self.processes():
            process.kill()
        self._closed.set()
        self._thread.join()

    def _serve(self) -> None:
        while not self._closed.wait(0.05):
            for path in self.place.glob("*.command"):
                self._carry_out(path.read_text(), path.with_suffix(".code"))
                path.unlink()

    def _carry_out(self, command: str, code: Path) -> None:
        self.commands.append(command)
        if "pkill" in command:  # it would find the launchers of others, too
            for process in self._running:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)
            code.write_text("0")
            return
        bare = {"PATH": os.environ["PATH"], "PROBE_MARK": self.mark}
        process = subprocess.Popen(["/bin/sh", "-c", command], env=bare, start_new_session=True)
        self._running.append(process)
        threading.Thread(target=lambda: code.write_text(str(abs(process.wait()))), daemon=True).start()


def _marked(process: psutil.Process, mark: str) -> bool:
    try:
        return process.environ().get("PROBE_MARK") == mark and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


@pytest.fixture(scope="module")
def launches(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, tuple[Nodes, LaunchOutcome]]]:
    """Both at the same time: importing DeepSpeed is most of what each costs."""
    stopped, hung = (Nodes(tmp_path_factory.mktemp(name)) for name in ("stopped", "hung"))
    stopped_at: list[float] = []

    def stand_still(line: dict[str, Any]) -> None:
        if line["step"] == 3:
            wait_until(hung.all_run, "both ranks")
            os.kill(hung.rank(0)["pid"], signal.SIGSTOP)
            stopped_at.append(time.monotonic())

    def clock() -> float:
        """A hang takes long: from the stop on, time flies."""
        now = time.monotonic()
        return now + sum(5_000 * (now - moment) for moment in stopped_at)

    with pytest.MonkeyPatch.context() as patch, ThreadPoolExecutor() as threads:
        patch.setattr("rl_pipeline.training.launching.launch.NODES_PATIENCE_SECONDS", 3.0)
        ends = threads.submit(stopped.launch, "--steps", "0", stop_requested=stopped.all_run)
        hangs = threads.submit(hung.launch, "--steps", "0", "--deaf", on_progress=stand_still, clock=clock)
        try:
            yield {"stopped": (stopped, ends.result()), "hung": (hung, hangs.result())}
        finally:
            stopped.close()
            hung.close()


def test_ranks_on_all_nodes_save_when_they_are_asked_to_stop(launches: dict[str, tuple[Nodes, LaunchOutcome]]) -> None:
    nodes, outcome = launches["stopped"]
    assert (outcome.exit_code, outcome.stopped) == (Exit.SAVED, True)
    assert (nodes.attempt / "saved0").exists()
    assert (nodes.attempt / "saved1").exists()
    assert nodes.processes() == []
    assert not any("pkill" in command for command in nodes.commands), "they have ended by themselves"


def test_other_nodes_know_the_addresses_and_no_command_line_does(
    launches: dict[str, tuple[Nodes, LaunchOutcome]],
) -> None:
    nodes, _ = launches["stopped"]
    for number in (0, 1):
        environment = nodes.rank(number)["environment"]
        assert environment["NATS_URL"] == "nats://user:secret@n"
        assert environment["MLFLOW_TRACKING_PASSWORD"] == "secret"
        assert (environment["RANK"], environment["DS_ACCELERATOR"]) == (str(number), "cpu")
    assert not any("secret" in command for command in nodes.commands)
    assert "of-somebody-else" not in (nodes.attempt / ORDERS_FILE).read_text()
    assert "secret" not in (nodes.attempt / "node-variables").read_text()
    assert (nodes.attempt / ORDERS_FILE).stat().st_mode & 0o077 == 0


def test_a_rank_that_stands_still_on_another_node_is_ended_by_deepspeeds_runner(
    launches: dict[str, tuple[Nodes, LaunchOutcome]],
) -> None:
    nodes, outcome = launches["hung"]
    failure = classify(outcome)
    assert failure is not None
    assert failure.code == "TIMEOUT"
    assert any("pkill" in command for command in nodes.commands)
    assert nodes.processes() == []


def under_orders(orders: Orders, attempt: Path, *asked: str) -> subprocess.Popen[bytes]:
    """A rank of the probe program that has made its first step."""
    program = [probe_program.__file__, str(attempt), "--steps", "0", *asked]
    rank = subprocess.Popen([sys.executable, *orders.command(program)])
    wait_until((attempt / PROGRESS_FILE).exists, "the first step")
    return rank


@pytest.fixture
def orders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Orders:
    monkeypatch.setattr("rl_pipeline.training.launching.nodes.BEAT_SECONDS", 0.2)
    return Orders(tmp_path, {}, silence_seconds=5.0)


def test_a_rank_goes_on_while_its_launch_lives_and_ends_with_it(orders: Orders, tmp_path: Path) -> None:
    with orders.beating():
        rank = under_orders(orders, tmp_path, "--deaf")
        with pytest.raises(subprocess.TimeoutExpired):
            rank.wait(6.5)
    assert rank.wait(60) == -signal.SIGKILL


def test_a_rank_whose_launching_machine_is_gone_ends_itself(orders: Orders, tmp_path: Path) -> None:
    orders._write()  # once, and never again
    rank = under_orders(orders, tmp_path, "--deaf")
    assert rank.wait(60) == -signal.SIGKILL


def test_a_rank_of_an_earlier_launch_ends_when_there_is_another(orders: Orders, tmp_path: Path) -> None:
    earlier = Orders(tmp_path, {}, silence_seconds=600.0)
    with earlier.beating():
        rank = under_orders(earlier, tmp_path, "--deaf")
        with orders.beating():
            assert rank.wait(60) == -signal.SIGKILL
