"""An agent on a disk that is too small for what it records while no server answers."""

import resource
import shutil
import sys
from pathlib import Path

from rl_pipeline.collection import Outbox, OutboxLimits, Recorder

TOO_LARGE_FOR_A_FILE = 64 * 1024


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def record(outbox: Outbox, sizes: list[int]) -> None:
    for size in sizes:
        with Recorder(outbox, agent_id="agent", model="model") as trajectory:
            for _ in range(2):
                trajectory.respond("x" * (size // 2))


def main() -> None:
    disk, rules, url, *limit = sys.argv[1:]
    directory = Path(disk) / "outbox"
    shutil.copytree(rules, directory)
    if limit:
        resource.setrlimit(resource.RLIMIT_FSIZE, (TOO_LARGE_FOR_A_FILE, resource.RLIM_INFINITY))
    outbox = Outbox(directory, url, limits=OutboxLimits(min_free_bytes=0), disk_seconds=60)
    record(outbox, [100_000 if number % 4 == 3 else 20_000 for number in range(40)])
    counts = outbox.counts
    say(f"{counts.finished} {counts.dropped}")
    sys.stdin.readline()
    assert outbox.wait_until_sent(120)
    record(outbox, [10_000] * 5)
    assert outbox.wait_until_sent(120)
    say(f"{outbox.counts.finished - counts.finished} more, {outbox.counts.dropped - counts.dropped} dropped")


if __name__ == "__main__":
    main()
