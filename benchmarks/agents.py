"""How many agents the embedded stack bears at once: they play through the gateway for minutes, with the embedded model.

`rl-pipeline up` runs as a user would run it, with Dagster ingesting and scoring what is played; 100 agents play one
task after another, each attempt a session of its own, recorded like any agent's. No training competes with them.
`episodes` and `episodes_per_s` count attempts that came to their end, `errors` those that were cut off, `arrived` what
the stream has afterwards: the episodes, all of them, or the benchmark fails. `latency_p50_ms` and `latency_p99_ms` are
over all turns, each timed by itself: the answer, the world, and the recording.
"""

import argparse
import asyncio
import json
import signal
import subprocess
import sysconfig
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

import aiohttp

from rl_pipeline.agents import Attempt, Player, play_all
from rl_pipeline.collection import Outbox
from rl_pipeline.embedded.record import StackRecord, read_record, settings_of_running_stack
from rl_pipeline.environments.crafting import CraftingWorld
from rl_pipeline.environments.environment import Task
from rl_pipeline.opening import open_stream
from rl_pipeline.settings import Settings

AGENTS = 100
SECONDS = 300
START_SECONDS = 300
NEVER = 10**9
"""So many new trajectories start a training."""


def main() -> None:
    """Play, and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="ten seconds in place of five minutes")
    seconds = 10 if parser.parse_args().quick else SECONDS
    with tempfile.TemporaryDirectory() as directory, running_stack(Path(directory)) as record:
        settings = settings_of_running_stack(Settings(rl_pipeline_home=Path(directory)), record)
        outbox = Outbox(Path(directory, "outbox"), settings.nats_url)
        started = time.perf_counter()
        made = asyncio.run(play(record.urls["gateway"], outbox, seconds))
        took = time.perf_counter() - started
        sent = outbox.wait_until_sent(120)
        with open_stream(settings) as stream:
            arrived = stream.state("RL_TRAJECTORIES").messages
        counts = outbox.counts
        outbox.close()
    ended = [one for one in made if one.error is None]
    turns = sorted(1000 * seconds for one in ended for seconds in one.turn_seconds)
    if not turns:
        raise SystemExit(f"nobody got an answer: {made[0].error if made else 'nobody played'}")
    figures = {
        "agents": AGENTS,
        "episodes_per_s": round(len(ended) / took, 1),
        "errors": len(made) - len(ended),
        "episodes": len(ended),
        "arrived": arrived,
        "turns_per_s": round(len(turns) / took),
        "latency_p50_ms": round(turns[len(turns) // 2], 1),
        "latency_p99_ms": round(turns[len(turns) * 99 // 100], 1),
    }
    print(json.dumps(figures))
    if not sent or arrived != len(ended):
        raise SystemExit(f"{len(ended)} episodes ended, {arrived} arrived: {counts}")


async def play(gateway: str, outbox: Outbox, seconds: float) -> list[Attempt]:
    """Attempts that were begun in time, by all agents at once."""
    world, ends = CraftingWorld(), time.monotonic() + seconds

    def tasks() -> Iterator[Task]:
        for seed in count():
            for task in world.tasks(100, seed=seed):
                if time.monotonic() > ends:
                    return
                yield task

    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as http:
        players = [Player(world, gateway, outbox, http, f"agent-{n}", "embedded") for n in range(AGENTS)]
        return await play_all(players, tasks(), seed=0)


@contextmanager
def running_stack(home: Path) -> Iterator[StackRecord]:
    """`rl-pipeline up`, once its gateway answers."""
    command = [str(Path(sysconfig.get_path("scripts")) / "rl-pipeline"), "up"]
    triggers = dict.fromkeys(("RL_TRAINING_THRESHOLD", "RL_TRAINING_MIN_NEW"), str(NEVER))
    environment = {"RL_PIPELINE_HOME": str(home), "PATH": "/usr/bin:/bin", **triggers}
    deadline = time.monotonic() + START_SECONDS
    with subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL) as stack:
        try:
            while not (record := read_record(home)) or not answers(record.urls.get("gateway", "")):
                if stack.poll() is not None or time.monotonic() > deadline:
                    raise SystemExit("the stack did not start")
                time.sleep(0.5)
            yield record
        finally:
            stack.send_signal(signal.SIGINT)
            stack.wait(120)


def answers(gateway: str) -> bool:
    """Whether a model is in service."""
    try:
        with urllib.request.urlopen(f"{gateway}/health", timeout=5) as health:
            return bool(health.status == 200)
    except (urllib.error.URLError, ConnectionError, TimeoutError, ValueError):
        return False


if __name__ == "__main__":
    main()
