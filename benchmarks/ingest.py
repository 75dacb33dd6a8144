"""How fast do trajectories get from the stream into the warehouse, and does it cost more as there are more of them?

Realistic trajectories of 4 to 40 KB are published (without a sync per message: publishing is not measured), and drained
by the product's own code on all cores, with nats-server and the ClickHouse front on the same cores. The limits are
measured in the same run on the same messages: reading them from the stream and doing nothing (`raw_fetch`), and
decoding, redacting and encoding them on all cores and storing nothing (`bare_redaction`). `of_limit` is the drain's
speed over the slower of the two. Memory is that of the draining process and its workers, sampled while it runs:
`rss_growth_mb` is its peak in the last tenth of the way over its peak in the second. `cost_growth` is the CPU time per
trajectory, of all processes together, from 70 to 90 % of the way over that from 10 to 30 %.
"""

import argparse
import json
import multiprocessing
import os
import statistics
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

import orjson
import psutil

sys.path.insert(0, str(Path(__file__).parent.parent))  # for its neighbours, when started as a script

from benchmarks.corpus import realistic_trajectories
from benchmarks.servers import running_front
from rl_pipeline.embedded.nats_server import running_nats_server
from rl_pipeline.ingestion.draining import drain
from rl_pipeline.ingestion.reports import DrainReport
from rl_pipeline.redaction.policy import RedactionKey, RedactionPolicy
from rl_pipeline.redaction.redactor import Redactor
from rl_pipeline.stores.clickhouse import ClickHouseWarehouse
from rl_pipeline.stores.jetstream import JetStream
from rl_pipeline.stores.migrate import migrate
from rl_pipeline.stores.object_addresses import ObjectsAddress
from rl_pipeline.stores.stream import OutgoingMessage
from rl_pipeline.stores.topology import TRAJECTORIES, bootstrap

SUBJECT = "agent.rl.trajectory.v1"
POLICY = RedactionPolicy(RedactionKey.parse("v1:a key for benchmarks, of enough characters"))
PROCESSES = len(os.sched_getaffinity(0))
LIMIT_MESSAGES = 3_000
ROLES = {"clickhouse_http": "ClickHouse front", "nats-server": "nats-server"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="8,000 trajectories instead of 100,000, under a minute")
    quick = parser.parse_args().quick
    count = 8_000 if quick else 100_000
    with (
        tempfile.TemporaryDirectory() as scratch,
        running_front(Path(scratch, "clickhouse")) as url,
        running_nats_server(Path(scratch, "nats"), sync_always=False) as server,
        JetStream.connect(server.url) as stream,
        closing(ClickHouseWarehouse.connect(url, "ingest")) as warehouse,
    ):
        bootstrap(stream)
        migrate(warehouse)
        average = publish(stream, count)
        before = raw_fetch(stream), bare_redaction(stream)
        drained = measured_drain(stream, warehouse, count, Path(scratch, "raw"))
        # Once more afterwards, because a shared machine is not the same all the time.
        after = raw_fetch(stream), bare_redaction(stream)
        fetch, redaction = map(statistics.fmean, zip(before, after, strict=True))
        stored = warehouse.query("SELECT count() AS n, uniqExact(trajectory_id) AS ids FROM trajectories FINAL").row(0)
    if stored != (count, count) or drained.report.verdicts != {"accepted": count}:
        raise SystemExit(f"{count} were published and {stored} stored: the figures would mean nothing")
    report(count, average, fetch, redaction, drained)


def publish(stream: JetStream, count: int) -> float:
    """Publish the corpus; returns the mean size of a message."""
    total = 0

    def messages() -> Iterator[OutgoingMessage]:
        nonlocal total
        for trajectory in realistic_trajectories(count, seed=7):
            data = orjson.dumps(trajectory)
            total += len(data)
            yield OutgoingMessage(SUBJECT, data, trajectory["trajectory_id"])

    stream.publish_many(messages())
    return total / count


def raw_fetch(stream: JetStream) -> float:
    """Messages per second that the stream gives to a reader who does nothing with them."""
    began = time.perf_counter()
    read = sum(len(batch) for batch in stream.read(TRAJECTORIES.name, 1, LIMIT_MESSAGES, 500))
    return read / (time.perf_counter() - began)


def bare_redaction(stream: JetStream) -> float:
    """Messages per second that are decoded, redacted and encoded on all cores, by processes that have them already."""
    batches = stream.read(TRAJECTORIES.name, 1, LIMIT_MESSAGES, 500)
    share = [message.data for batch in batches for message in batch][: LIMIT_MESSAGES // PROCESSES]
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(PROCESSES, spawn) as pool:
        took = list(pool.map(redact_all, [share] * PROCESSES))
    return PROCESSES * len(share) / max(took)


def redact_all(messages: Sequence[bytes]) -> float:
    """Seconds for one pass over the messages, after one that warms up."""
    redactor = Redactor(POLICY)
    for _ in range(2):
        began = time.perf_counter()
        for data in messages:
            orjson.dumps(redactor.redact(orjson.loads(data)).tree)
    return time.perf_counter() - began


@dataclass
class Drained:
    """What was seen while it ran: at each moment the sequences done, the memory, and the CPU seconds so far by role."""

    seconds: float = 0.0
    samples: list[tuple[int, int, Counter[str]]] = field(default_factory=list)
    report: DrainReport = field(default_factory=DrainReport.of_nothing)

    def peak_memory(self, first: int, last: int) -> int:
        """The most bytes between two sequences."""
        return max(memory for done, memory, _ in self.samples if first <= done <= last)

    def cpu_ms(self, first: int, last: int) -> Counter[str]:
        """CPU milliseconds per trajectory between two sequences, by role."""
        within = [(done, cpu) for done, _, cpu in self.samples if first <= done <= last]
        (low, before), (high, after) = within[0], within[-1]
        return Counter({role: 1000 * (after[role] - before[role]) / (high - low) for role in after})


def measured_drain(stream: JetStream, warehouse: ClickHouseWarehouse, count: int, raw: Path) -> Drained:
    """Drain everything, looking at the processes twice a second and whenever a batch is done."""
    drained = Drained()
    done = 0
    over = threading.Event()

    def look() -> None:
        memory, cpu = look_at_processes()
        drained.samples.append((done, memory, cpu))

    def reached(point: str) -> None:
        nonlocal done
        if point == "after_ledger":
            done = min(count, done + 500)
            look()

    def look_now_and_then() -> None:
        while not over.wait(0.5):
            look()

    watching = threading.Thread(target=look_now_and_then)
    watching.start()
    began = time.perf_counter()
    try:
        drained.report = drain(
            stream,
            warehouse,
            stream=TRAJECTORIES.name,
            first=1,
            last=count,
            policy=POLICY,
            open_raw_objects=ObjectsAddress(str(raw)).open,
            workers=PROCESSES,
            reached=reached,
        )
    finally:
        over.set()
        watching.join()
    drained.seconds = time.perf_counter() - began
    return drained


def look_at_processes() -> tuple[int, Counter[str]]:
    """Bytes that this process and its workers hold, and CPU seconds of all processes by role."""
    own = psutil.Process()
    used = own.cpu_times()
    memory = own.memory_info().rss
    cpu = Counter({"draining process": used.user + used.system, "workers": used.children_user + used.children_system})
    for child in own.children(recursive=True):
        try:
            arguments, used = " ".join(child.cmdline()), child.cpu_times()
            role = next((role for sign, role in ROLES.items() if sign in arguments), "workers")
            cpu[role] += used.user + used.system
            memory += child.memory_info().rss if role == "workers" else 0
        except psutil.Error:
            continue  # it has just ended
    return memory, cpu


def report(count: int, average: float, fetch: float, redaction: float, drained: Drained) -> None:
    speed = count / drained.seconds
    tenth = count // 10
    early, late = drained.cpu_ms(tenth, 3 * tenth), drained.cpu_ms(count - 3 * tenth, count - tenth)
    growth = drained.peak_memory(count - tenth, count) - drained.peak_memory(tenth, 2 * tenth)
    print(f"{count:,} trajectories of {average / 1000:.1f} KB on {PROCESSES} cores\n")
    rows: list[tuple[str, float]] = [
        ("reading the stream, nothing more", fetch),
        ("decoding, redacting, encoding alone", redaction),
        ("from the stream to stored", speed),
    ]
    for name, per_second in rows:
        print(f"{name:<40}{per_second:>8,.0f} /s{per_second * average / 1e6:>8.1f} MB/s")
    print(f"\n{'CPU ms per trajectory':<40}{'early':>8}{'late':>8}")
    for role in late:
        print(f"{role:<40}{early[role]:>8.2f}{late[role]:>8.2f}")
    print(f"{'all':<40}{early.total():>8.2f}{late.total():>8.2f}")
    print(f"\n{'memory, peak and growth (MB)':<40}{drained.peak_memory(0, count) / 1e6:>8.0f}{growth / 1e6:>8.0f}\n")
    figures = {
        "trajectories_per_s": speed,
        "of_limit": speed / min(fetch, redaction),
        "rss_growth_mb": growth / 1e6,
        "cost_growth": late.total() / early.total(),
        "raw_fetch_per_s": fetch,
        "bare_redaction_per_s": redaction,
        "rss_peak_mb": drained.peak_memory(0, count) / 1e6,
        "cpu_ms_per_trajectory": late.total(),
    }
    print(json.dumps({name: round(value, 3) for name, value in figures.items()}))


if __name__ == "__main__":
    main()
