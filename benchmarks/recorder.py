"""What recording costs an agent: per turn, and as a share of an episode, with everything from redaction to the stream.

An episode has 8 turns of one second each, which is quick for an agent whose model has to answer: 4 KB are shown, the
model answers with 1 KB and 1,500 + 300 token ids and their log-probabilities, and a tool brings 2 KB. 16 agents play at
once, as threads of one process, begun one after the other. What is measured is the time inside the recorder on the
agents' own threads; the disk is synced at the end of each episode, and a real NATS server takes the trajectories
meanwhile. The figures that end in `_base` are those of one agent with a plain `pip install rl-pipeline`, where
Vectorscan is missing and redaction is slow, in a process of its own.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from random import Random

from rl_pipeline.collection import JetStream, OpenTrajectory, Outbox, Recorder
from rl_pipeline.embedded.nats_server import running_nats_server
from rl_pipeline.stores.topology import bootstrap

TURNS = 8
TURN_SECONDS = 1.0
AGENTS = 16
STREAM = "RL_TRAJECTORIES"
WORDS = "the agent reads a file of the project and finds that a function returns one item too many because its loop "


def text(chance: Random, size: int) -> str:
    words = WORDS.split()
    written = ""
    while len(written) < size:
        written += f"{chance.choice(words)} {chance.randrange(1000)} "
    return written[:size]


@dataclass(frozen=True)
class Happening:
    """What the world and the model contribute to a turn."""

    shown: str
    answer: str
    brought: str
    prompt: list[int]
    drawn: list[int]
    logprobs: list[float]

    @classmethod
    def made(cls, chance: Random) -> "Happening":
        prompt, drawn = ([chance.randrange(50_000) for _ in range(count)] for count in (1500, 300))
        logprobs = [-chance.random() for _ in drawn]
        return cls(text(chance, 4000), text(chance, 1000), text(chance, 2000), prompt, drawn, logprobs)

    def record(self, trajectory: OpenTrajectory) -> None:
        with trajectory.turn(self.shown) as turn:
            turn.think(self.answer[:200])
            turn.answer(
                self.answer,
                model_version="v1",
                prompt_token_ids=self.prompt,
                completion_token_ids=self.drawn,
                logprobs=self.logprobs,
            )
            turn.call("read_file", {"path": "src/project/module.py"})
            turn.succeed(self.brought)


@dataclass
class Measurements:
    """Milliseconds inside the recorder, by what was done; threads share them."""

    turns: list[float] = field(default_factory=list)
    turns_cpu: list[float] = field(default_factory=list)
    begins: list[float] = field(default_factory=list)
    ends: list[float] = field(default_factory=list)
    ended_at: dict[str, float] = field(default_factory=dict)


def milliseconds(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return (time.perf_counter() - started) * 1000


def play(outbox: Outbox, measurements: Measurements, happenings: list[Happening], wait_seconds: float) -> None:
    """One episode, in which every turn takes its time before it is recorded."""
    time.sleep(wait_seconds)
    recorder = Recorder(outbox, agent_id="bench", model="bench-model", instructions=happenings[0].answer[:200])
    started = time.perf_counter()
    trajectory = recorder.__enter__()
    measurements.begins.append((time.perf_counter() - started) * 1000)
    for happening in happenings:
        time.sleep(TURN_SECONDS)
        cpu = time.thread_time()
        measurements.turns.append(milliseconds(partial(happening.record, trajectory)))
        measurements.turns_cpu.append((time.thread_time() - cpu) * 1000)
    measurements.ends.append(milliseconds(lambda: recorder.__exit__(None, None, None)))
    measurements.ended_at[trajectory.trajectory_id] = time.time()


def measured(agents: int, rounds: int) -> dict[str, float]:
    watch, chance = Measurements(), Random(7)
    episodes = [[Happening.made(chance) for _ in range(TURNS)] for _ in range(agents)]
    with (
        tempfile.TemporaryDirectory() as directory,
        running_nats_server(Path(directory) / "nats") as server,
        JetStream.connect(server.url) as stream,
    ):
        bootstrap(stream)
        outbox = Outbox(Path(directory) / "outbox", server.url)
        assert outbox.wait_until_sent(120), "the rules were not compiled in time"
        cpu, started = time.process_time(), time.perf_counter()
        with ThreadPoolExecutor(agents) as pool:
            waits = [agent / agents * TURN_SECONDS for agent in range(agents)] + [0.0] * agents * (rounds - 1)
            list(pool.map(partial(play, outbox, watch), episodes * rounds, waits))
        took = time.perf_counter() - started
        cpu = time.process_time() - cpu
        assert outbox.wait_until_sent(120), outbox.counts
        messages = [one for batch in stream.read(STREAM, 1, stream.state(STREAM).last_sequence, 100) for one in batch]
        assert len(messages) == agents * rounds == outbox.counts.finished, outbox.counts
        outbox.close()
    sent = [(one.time.timestamp() - watch.ended_at[one.message_id or ""]) * 1000 for one in messages]
    episode = TURNS * TURN_SECONDS * 1000
    inside = sum(watch.turns) + sum(watch.begins) + sum(watch.ends)
    return {
        "p99_ms": quantile(watch.turns, 0.99),
        "share_of_episode": inside / (len(watch.ends) * episode),
        "p99_cpu_ms": quantile(watch.turns_cpu, 0.99),
        "median_ms": quantile(watch.turns, 0.5),
        "end_p99_ms": quantile(watch.ends, 0.99),
        "sent_after_median_ms": quantile(sent, 0.5),
        "sent_after_p99_ms": quantile(sent, 0.99),
        "cpu_share_of_agent": cpu / (took * agents),
        "turns": len(watch.turns),
    }


def quantile(values: list[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


def without_vectorscan(rounds: int) -> dict[str, float]:
    program = "import sys; sys.modules['hyperscan'] = None; sys.path.insert(0, sys.argv[1]); import recorder as bench\n"
    command = [sys.executable, "-c", f"{program}bench.child({rounds})", str(Path(__file__).parent)]
    figures: dict[str, float] = json.loads(subprocess.check_output(command, text=True))
    return {f"{name}_base": value for name, value in figures.items()}


def child(rounds: int) -> None:
    print(json.dumps(measured(1, rounds)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer episodes, under a minute")
    quick = parser.parse_args().quick
    rounds = 1 if quick else 8
    figures = {
        name: round(value, 5) for name, value in (measured(AGENTS, rounds) | without_vectorscan(2 * rounds)).items()
    }
    print(f"{AGENTS} agents at once, {rounds} episodes each, of {TURNS} turns of {TURN_SECONDS:g} s")
    print(f"{'':<34}{'Vectorscan':>12}{'plain, 1':>12}")
    for name in [name for name in figures if not name.endswith("_base")]:
        print(f"{name:<34}{figures[name]:>12.4g}{figures[f'{name}_base']:>12.4g}")
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
