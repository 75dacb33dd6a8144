"""Nothing is lost and nothing counted twice, whatever is killed when."""

import contextlib
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import psutil
import pytest

from rl_pipeline.embedded.nats_server import NatsServer, running_nats_server
from rl_pipeline.ingestion.draining import POINTS
from rl_pipeline.stores.clickhouse import ClickHouseWarehouse
from rl_pipeline.stores.jetstream import JetStream
from rl_pipeline.stores.topology import bootstrap
from rl_pipeline_tests.ingestion.ingest_process import BETWEEN_LEDGER_AND_CONTENT
from rl_pipeline_tests.ingestion.ingesting import STREAM, Ingesting, documents
from rl_pipeline_tests.waiting import wait_until

BATCH = 10
PUBLISHERS = 8


class Published:
    """What was published, and what must become of it."""

    def __init__(self, ingesting: Ingesting) -> None:
        self._ingesting = ingesting
        self._ids: list[str] = []
        self._expected: list[str] = []

    def more(self, count: int) -> None:
        """Publish good trajectories, of which some were published before, and messages that are none."""
        chance = Random(len(self._expected))
        contents: list[Any] = documents(count, seed=len(self._expected) + 1)
        fresh = [made["trajectory_id"] for made in contents]
        verdicts = ["accepted"] * count
        for place in sorted(chance.sample(range(1, count), count // 5)):
            if chance.random() < 0.5:
                contents[place], verdicts[place] = b"no trajectory", "refused"
            else:
                contents[place], verdicts[place] = contents[0], "duplicate"
        self._ingesting.publish(*contents)
        self._ids += [identity for identity, verdict in zip(fresh, verdicts, strict=True) if verdict == "accepted"]
        self._expected += verdicts

    def assert_exactly_once(self) -> None:
        """Each sequence with its verdict, each trajectory once, each dead letter once."""
        assert self._ingesting.verdicts() == dict(enumerate(self._expected, start=1))
        assert [row["trajectory_id"] for row in self._ingesting.stored()] == self._ids
        refused = [number for number, verdict in enumerate(self._expected, start=1) if verdict == "refused"]
        assert sorted(letter["sequence"] for letter in self._ingesting.letters()) == refused


@contextlib.contextmanager
def ingest_process(
    ingesting: Ingesting, nats_server: NatsServer, clickhouse_url: str, *options: str
) -> "Iterator[subprocess.Popen[str]]":
    """An ingest that is about to drain."""
    where = ["--nats", nats_server.url, "--clickhouse", clickhouse_url, "--database", ingesting.warehouse.database]
    command = [sys.executable, "-m", "rl_pipeline_tests.ingestion.ingest_process", *where, "--raw", str(ingesting.raw)]
    with subprocess.Popen([*command, "--batch", str(BATCH), *options], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert line_of(process) == "READY"
            yield process
        finally:
            process.kill()


def line_of(process: "subprocess.Popen[str]") -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def was_killed_underway(process: "subprocess.Popen[str]") -> bool:
    """Kill -9; whether there was still something to kill."""
    process.kill()
    process.wait()
    return line_of(process) != "DONE"


@pytest.mark.soak
def test_an_ingest_that_is_killed_loses_and_doubles_nothing(
    ingesting: Ingesting,
    nats_server: NatsServer,
    clickhouse_url: str,
    soak_count: Callable[[int, int], int],
    record_property: Callable[[str, object], None],
) -> None:
    kills = soak_count(8, 50)
    chance = Random(20260102)
    published = Published(ingesting)
    at_points = at_random = interrupted = 0
    while at_points + at_random < kills:
        published.more(6 * BATCH)
        # Every named point in turn, and as many moments in between that nobody chose.
        point = POINTS[at_points % len(POINTS)] if at_points <= at_random else None
        options = ["--wait-at", point] if point else []
        with ingest_process(ingesting, nats_server, clickhouse_url, *options) as process:
            if point:
                assert line_of(process) == f"AT {point}"
                at_points += was_killed_underway(process)
            else:
                time.sleep(chance.uniform(0, 0.3))
                at_random += was_killed_underway(process)
        interrupted += len(ingesting.verdicts()) < ingesting.stream.state(STREAM).last_sequence
    assert interrupted >= at_points, "kills that interrupt nothing prove nothing"
    ingesting.drain()
    published.assert_exactly_once()
    record_property("kill -9 of the ingest at named points", at_points)
    record_property("at random moments", at_random)


def test_the_control_that_writes_the_ledger_first_loses_rows(
    ingesting: Ingesting, nats_server: NatsServer, clickhouse_url: str
) -> None:
    published = Published(ingesting)
    published.more(6 * BATCH)
    options = ["--ledger-first", "--wait-at", BETWEEN_LEDGER_AND_CONTENT]
    with ingest_process(ingesting, nats_server, clickhouse_url, *options) as process:
        assert line_of(process) == f"AT {BETWEEN_LEDGER_AND_CONTENT}"
        assert was_killed_underway(process)
    ingesting.drain()
    with pytest.raises(AssertionError):
        published.assert_exactly_once()
    accepted = {sequence for sequence, verdict in ingesting.verdicts().items() if verdict == "accepted"}
    assert accepted > set(ingesting.stored_sequences()), "the control lost nothing: the kills prove nothing"


@pytest.mark.soak
def test_the_workers_of_an_ingest_that_is_killed_end_with_it_and_nothing_is_lost(
    ingesting: Ingesting,
    nats_server: NatsServer,
    clickhouse_url: str,
    soak_count: Callable[[int, int], int],
    record_property: Callable[[str, object], None],
) -> None:
    kills = soak_count(1, 10)
    published = Published(ingesting)
    for number in range(kills):
        published.more(6 * BATCH)
        options = ["--workers", "2", "--wait-at", POINTS[1 + number % (len(POINTS) - 1)]]
        with ingest_process(ingesting, nats_server, clickhouse_url, *options) as process:
            assert line_of(process).startswith("AT ")
            children = psutil.Process(process.pid).children(recursive=True)
            assert len(children) >= 2
            assert was_killed_underway(process)
        for child in children:
            wait_until(lambda child=child: not child.is_running() or child.status() == psutil.STATUS_ZOMBIE)
    ingesting.drain()
    published.assert_exactly_once()
    record_property("kill -9 of the ingest with workers", kills)


@pytest.mark.soak
def test_every_acknowledged_trajectory_is_stored_once_although_the_server_is_killed(
    warehouse: ClickHouseWarehouse,
    tmp_path: Path,
    soak_count: Callable[[int, int], int],
    record_property: Callable[[str, object], None],
) -> None:
    kills = soak_count(2, 20)
    chance = Random(20260102)
    outputs = [tmp_path / f"publisher-{number}" for number in range(PUBLISHERS)]
    with running_nats_server(tmp_path / "nats") as server, contextlib.ExitStack() as ended:
        with JetStream.connect(server.url) as stream:
            bootstrap(stream)
        for number, output in enumerate(outputs):
            ended.enter_context(publisher(server.url, number, output))
        for _ in range(kills):
            before = [len(acknowledged(output)) for output in outputs]
            wait_until(
                lambda before=before: all(
                    len(acknowledged(output)) > count for output, count in zip(outputs, before, strict=True)
                )
            )
            time.sleep(chance.uniform(0, 0.2))
            server.kill()
            server.start()
        ended.close()
        with JetStream.connect(server.url) as stream:
            ingesting = Ingesting(stream, warehouse, tmp_path / "raw")
            last = stream.state(STREAM).last_sequence
            report = ingesting.drain()
            stored = [row["trajectory_id"] for row in ingesting.stored()]
    told = [identity for output in outputs for identity in acknowledged(output)]
    assert report.judged == last
    assert len(stored) == len(set(stored))
    assert set(told) <= set(stored)
    record_property("kill -9 of nats-server under 8 publishers", kills)
    record_property("acknowledged trajectories", len(told))


@contextlib.contextmanager
def publisher(url: str, seed: int, output: Path) -> Iterator[None]:
    """A process that publishes until it is killed, and writes down what was acknowledged."""
    command = [sys.executable, "-m", "rl_pipeline_tests.ingestion.publish_process", url, str(seed)]
    with output.open("w") as file, subprocess.Popen(command, stdout=file) as process:
        try:
            yield
        finally:
            process.kill()


def acknowledged(output: Path) -> list[str]:
    """The ids that a publisher has told; the last line may be cut off."""
    return [line.strip() for line in output.read_text().splitlines(keepends=True) if line.endswith("\n")]


def test_an_overrun_of_the_stream_is_reported_with_its_exact_count(ingesting: Ingesting) -> None:
    configuration = ingesting.stream.request(f"STREAM.INFO.{STREAM}")["config"]
    ingesting.stream.request(f"STREAM.UPDATE.{STREAM}", configuration | {"max_msgs": 40})
    ingesting.publish(*documents(10))
    ingesting.drain()
    ingesting.publish(*documents(117, seed=2))
    report = ingesting.drain()
    assert (report.lost, report.judged, report.unchanged) == (77, 40, 10)
    verdicts = ingesting.verdicts()
    assert [sequence for sequence, verdict in verdicts.items() if verdict == "lost"] == list(range(11, 88))
    assert list(verdicts) == list(range(1, 128))
