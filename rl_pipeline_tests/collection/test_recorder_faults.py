"""Whatever is killed, down or full: each finished trajectory arrives once, and the agent goes on."""

import contextlib
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

from rl_pipeline.collection import Outbox, OutboxLimits, Recorder
from rl_pipeline.embedded.nats_server import NatsServer, running_nats_server
from rl_pipeline.stores.jetstream import JetStream
from rl_pipeline.stores.topology import bootstrap
from rl_pipeline_tests.collection.recordings import OpenOutbox, arrived, journals, sent_by
from rl_pipeline_tests.waiting import wait_until

AGENT: dict[str, Any] = {"agent_id": "agent-1", "model": "model-1"}
SMALL_DISK = "rl_pipeline_tests.collection.small_disk_process"


@contextlib.contextmanager
def agent(directory: Path, url: str, *options: str) -> "Iterator[subprocess.Popen[str]]":
    """An agent that records into the directory until it is killed at the latest by the block's end."""
    command = [sys.executable, "-m", "rl_pipeline_tests.collection.recording_process", str(directory), url, *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def line_of(process: "subprocess.Popen[str]") -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def killed(process: "subprocess.Popen[str]") -> list[str]:
    """Kill -9; the ids that it told and that nobody has read yet. The last line may be cut off."""
    process.kill()
    process.wait()
    assert process.stdout is not None
    return [line.strip() for line in process.stdout.readlines() if len(line.strip()) == 36]


@pytest.fixture
def own_server(tmp_path: Path) -> Iterator[NatsServer]:
    """A server that may be killed: what it acknowledged is on its disk."""
    with running_nats_server(tmp_path / "nats") as server:
        with JetStream.connect(server.url) as stream:
            bootstrap(stream)
        yield server


@pytest.mark.soak
def test_every_finished_trajectory_arrives_once_although_agents_and_the_server_are_killed(
    own_server: NatsServer,
    outbox_directory: Path,
    open_outbox: OpenOutbox,
    soak_count: Callable[[int, int], int],
    record_property: Callable[[str, object], None],
) -> None:
    kills = soak_count(3, 20)
    chance = Random(20260107)
    finished: list[str] = []
    outages = 0
    for number in range(kills):
        if number % 3 == 1:
            own_server.kill()
            outages += 1
        with agent(outbox_directory, own_server.url) as process:
            finished.append(line_of(process))
            time.sleep(chance.uniform(0, 0.5))
            finished += killed(process)
        if number % 3 == 1:
            own_server.start()
    unfinished = sum(b'"end"' not in path.read_bytes() for path in journals(outbox_directory))
    with JetStream.connect(own_server.url) as stream:
        sent = sent_by(open_outbox(own_server.url), stream)
    times = Counter(one["trajectory_id"] for one in sent)
    assert max(times.values()) == 1
    assert set(finished) <= set(times)
    statuses = {one["trajectory_id"]: one["task_context"]["task_status"] for one in sent}
    assert {statuses[identity] for identity in finished} == {"success"}
    assert set(statuses.values()) <= {"success", "abandoned"}
    assert journals(outbox_directory) == []
    record_property("kill -9 of the recording agent", kills)
    record_property("with the server killed meanwhile", outages)
    record_property("finished trajectories", len(finished))
    record_property("left unfinished at the end", unfinished)


@pytest.mark.parametrize(("options", "arrives"), [((), True), (("--in-memory",), False)], ids=["recorder", "control"])
def test_an_agent_that_is_killed_while_the_server_is_down_loses_only_what_it_kept_in_memory(
    own_server: NatsServer, outbox_directory: Path, open_outbox: OpenOutbox, options: tuple[str, ...], arrives: bool
) -> None:
    own_server.kill()
    with agent(outbox_directory, own_server.url, *options) as process:
        finished = [line_of(process), line_of(process)]
        killed(process)
    own_server.start()
    with JetStream.connect(own_server.url) as stream:
        sent = {one["trajectory_id"] for one in sent_by(open_outbox(own_server.url), stream)}
    assert (set(finished) <= sent) == arrives
    assert bool(sent) == arrives


@pytest.mark.parametrize(("options", "times"), [((), 1), (("--fresh-message-ids",), 2)], ids=["recorder", "control"])
def test_a_kill_between_the_acknowledgement_and_the_removal_doubles_only_what_has_no_message_id(
    own_server: NatsServer, outbox_directory: Path, open_outbox: OpenOutbox, options: tuple[str, ...], times: int
) -> None:
    with agent(outbox_directory, own_server.url, "--count", "1", "--hold-after-publishing", *options) as process:
        assert "PUBLISHED" in (line_of(process), line_of(process))
        killed(process)
    assert len(journals(outbox_directory)) == 1
    with JetStream.connect(own_server.url) as stream:
        assert len(sent_by(open_outbox(own_server.url), stream)) == times


def test_what_a_killed_agent_had_not_finished_arrives_as_abandoned(
    own_server: NatsServer, outbox_directory: Path, open_outbox: OpenOutbox
) -> None:
    with agent(outbox_directory, own_server.url, "--unfinished", "--turns", "4") as process:
        identity = line_of(process)
        with JetStream.connect(own_server.url) as stream:
            outbox = open_outbox(own_server.url)
            assert sent_by(outbox, stream) == [], "a trajectory that is being recorded is nobody else's to send"
            killed(process)
            outbox.close()
            [sent] = sent_by(another := open_outbox(own_server.url), stream)
    assert (sent["trajectory_id"], sent["task_context"]["task_status"]) == (identity, "abandoned")
    assert len(sent["turns"]) == 4
    assert sent["end_timestamp"] >= sent["turns"][-1]["timestamp"]
    assert (another.counts.sent, another.counts.recovered) == (1, 1)


def test_a_line_that_a_crash_cut_off_is_as_if_it_had_not_been_written(
    own_server: NatsServer, outbox_directory: Path, open_outbox: OpenOutbox
) -> None:
    with agent(outbox_directory, own_server.url, "--unfinished", "--turns", "4") as process:
        line_of(process)
        killed(process)
    [journal] = journals(outbox_directory)
    journal.write_bytes(journal.read_bytes()[:-10])
    (outbox_directory / "11111111-1111-4111-8111-111111111111.jsonl").write_bytes(b"\0" * 4096)
    with JetStream.connect(own_server.url) as stream:
        [sent] = sent_by(open_outbox(own_server.url), stream)
    assert len(sent["turns"]) == 3
    assert journals(outbox_directory) == []


def test_processes_share_a_directory_and_each_trajectory_arrives_once(
    own_server: NatsServer, outbox_directory: Path
) -> None:
    told: list[str] = []
    with contextlib.ExitStack() as ended:
        processes = [
            ended.enter_context(agent(outbox_directory, own_server.url, "--count", "25", "--turns", "1"))
            for _ in range(3)
        ]
        for process in processes:
            while (line := line_of(process)) != "SENT":
                assert line
                told.append(line)
    with JetStream.connect(own_server.url) as stream:
        sent = [one["trajectory_id"] for one in arrived(stream)]
    assert len(told) == 75
    assert sorted(sent) == sorted(told)


def test_the_agent_goes_on_while_the_server_is_down_and_everything_arrives_when_it_is_back(
    own_server: NatsServer, outbox_directory: Path, open_outbox: OpenOutbox
) -> None:
    outbox = open_outbox(own_server.url)
    told: list[str] = []

    def record(count: int) -> None:
        for _ in range(count):
            with Recorder(outbox, **AGENT) as trajectory:
                trajectory.respond("done")
            told.append(trajectory.trajectory_id)

    record(5)
    assert outbox.wait_until_sent(60)
    own_server.kill()
    record(20)
    assert not outbox.wait_until_sent(0.2)
    assert len(journals(outbox_directory)) == 20
    wait_until(lambda: outbox.counts.failures, "the outage was noticed")
    own_server.start()
    with JetStream.connect(own_server.url) as stream:
        sent = sent_by(outbox, stream)
    assert sorted(one["trajectory_id"] for one in sent) == sorted(told)
    assert journals(outbox_directory) == []


def test_streams_that_are_made_later_get_what_was_recorded_before(tmp_path: Path, open_outbox: OpenOutbox) -> None:
    with running_nats_server(tmp_path / "nats", sync_always=False) as server:
        outbox = open_outbox(server.url)
        with Recorder(outbox, **AGENT) as trajectory:
            trajectory.respond("done")
        wait_until(lambda: outbox.counts.failures, "nobody takes the subject")
        with JetStream.connect(server.url) as stream:
            bootstrap(stream)
            assert len(sent_by(outbox, stream)) == 1


def test_a_full_disk_drops_whole_trajectories_counts_them_and_is_written_again_when_there_is_room(
    own_server: NatsServer, tmp_path: Path, compiled_rules: Path
) -> None:
    own_server.stop()
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["unshare", "-rm", "mount", "-t", "tmpfs", "tmpfs", str(disk)], check=False, capture_output=True
    )
    program = f"exec {sys.executable} -m {SMALL_DISK} {disk} {compiled_rules} {own_server.url}"
    with_disk = f"mount -t tmpfs -o size=5m tmpfs {disk} && {program}"
    # Where nothing may be mounted, a limit on the size of a file fails writes as well.
    command = (
        ["unshare", "-rm", "sh", "-c", with_disk] if mounted.returncode == 0 else ["sh", "-c", f"{program} --limit"]
    )
    with subprocess.Popen(command, stdout=subprocess.PIPE, stdin=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdin is not None
            finished, dropped = (int(number) for number in line_of(process).split())
            own_server.start()
            process.stdin.write("\n")
            process.stdin.flush()
            assert line_of(process) == "5 more, 0 dropped"
        finally:
            process.kill()
    assert finished + dropped == 40
    assert finished > 5
    assert dropped > 5
    with JetStream.connect(own_server.url) as stream:
        sent = arrived(stream)
    assert len({one["trajectory_id"] for one in sent}) == len(sent) == finished + 5


def test_a_disk_that_is_nearly_full_is_left_to_others(open_outbox: OpenOutbox, outbox_directory: Path) -> None:
    outbox = open_outbox(limits=OutboxLimits(min_free_bytes=1 << 60))
    with Recorder(outbox, **AGENT) as trajectory:
        trajectory.respond("done")
    assert (outbox.counts.begun, outbox.counts.dropped, outbox.counts.finished) == (1, 1, 0)
    assert journals(outbox_directory) == []


def test_a_full_outbox_keeps_what_it_has_and_takes_nothing_new(
    open_outbox: OpenOutbox, outbox_directory: Path, compiled_rules: Path
) -> None:
    rules = sum(path.stat().st_size for path in compiled_rules.iterdir())
    with Recorder(open_outbox(), **AGENT) as first:
        first.respond("done")
    outbox = open_outbox(limits=OutboxLimits(max_bytes=rules + 100))
    with Recorder(outbox, **AGENT) as second:
        second.respond("done")
    assert outbox.counts.dropped == 1
    assert [path.stem for path in journals(outbox_directory)] == [first.trajectory_id]


@pytest.mark.parametrize("limits", [OutboxLimits(max_waiting=0), OutboxLimits(max_trajectory_bytes=1000)])
def test_a_trajectory_beyond_a_limit_is_dropped_whole(
    open_outbox: OpenOutbox, outbox_directory: Path, limits: OutboxLimits
) -> None:
    outbox = open_outbox(limits=limits)
    with Recorder(outbox, **AGENT) as trajectory:
        for _ in range(3):
            trajectory.respond("x" * 500)
    assert outbox.counts.finished == 0
    assert outbox.counts.dropped >= 1
    assert journals(outbox_directory) == []


def test_an_outbox_that_cannot_be_made_does_not_stop_the_agent(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    outbox = Outbox(tmp_path / "file" / "outbox", "nats://127.0.0.1:1")
    with Recorder(outbox, **AGENT) as trajectory:
        trajectory.respond("done")
    assert (outbox.counts.dropped, outbox.counts.finished) == (1, 0)
    outbox.close()
