"""What the gateway costs: throughput and latency through it against the bare backend, and how fast a rollback is.

Three processes: a stub backend, the gateway, and the load, which writes and reads bytes on connections that are kept,
and nothing else. The same load is put on the backend itself (bare) and on the gateway in front of it (through), in
rounds that alternate within one run; ratios are of the two halves of a round, and the median of the rounds counts.

Neither stub has a model, nor waits for anything: an answer takes no longer than it takes to write it. So everything
that is measured is transport, and a model that thinks makes the ratio better. Both are aiohttp servers on uvloop, as
the gateway is, without a router and without middleware:

- `minimal` reads the request and writes the same bytes every time. It is the fastest that this library can be; a proxy
  has to do all that it does, and to ask a backend as well, as a third process on the same cores.
- `realistic` does what any OpenAI-compatible server does around its model: it parses the request, looks at its
  messages, and writes an answer of 200 words with an id, a time, the model's name and its usage. `rps`, `of_bare`,
  `added_p50_ms` and `added_p99_ms` are of this one. Real servers (vLLM behind FastAPI) do more.

Throughput comes from 32 connections, added latency from one, where nothing queues. `gateway_cpu_us` is the gateway's
CPU time for a request, `backend_cpu_us` the realistic stub's: these do not depend on the number of cores.

A rollback is a fence under the load of 16 connections, measured from the call to its confirmation or, if that is
later, to the last answer that the fenced model gave to anybody.

The gateway has no NATS: it writes every outcome to its disk, and publishes none. What publishing costs, by a thread of
the same process, is not in these figures.
"""

import argparse
import asyncio
import http.client
import json
import math
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from typing import Any
from uuid import uuid4

import orjson
import psutil
import uvloop
from aiohttp import web

from rl_pipeline.deployment.state import Change, DesiredState, RampStep, Rollout, ServedModel
from rl_pipeline.redaction.policy import RedactionKey
from rl_pipeline.serving.configuration import GatewayConfiguration
from rl_pipeline.serving.running import run_gateway
from rl_pipeline.serving.traffic.gateways import Gateways

CONNECTIONS = 32
REQUESTS_OF_A_SESSION = 5
TOKEN = "the-token-of-a-benchmark"
STUB = "stub-model"
WORDS = "the plan is to look at the tests first and then to change one thing at a time " * 12
MESSAGES = [
    {"role": "system", "content": "You are an agent: use the tools that you are given, and say what you did. " * 6},
    {"role": "user", "content": "word " * 100},
]
BODY = orjson.dumps({"model": STUB, "messages": MESSAGES, "temperature": 0.7, "max_tokens": 512})
JSON = {"Content-Type": "application/json"}


def answer_to(asked: dict[str, Any]) -> bytes:
    """What an OpenAI-compatible server answers, by one that has nothing to think about."""
    message = {"role": "assistant", "content": WORDS, "refusal": None, "tool_calls": []}
    read = sum(len(each["content"]) for each in asked["messages"]) // 4
    return orjson.dumps(
        {
            "id": f"chatcmpl-{uuid4().hex}",
            "object": "chat.completion",
            "created": int(time.time()),
            "model": asked["model"],
            "choices": [{"index": 0, "message": message, "logprobs": None, "finish_reason": "stop"}],
            "usage": {"prompt_tokens": read, "completion_tokens": 200, "total_tokens": read + 200},
            "system_fingerprint": "fp_stub",
        }
    )


async def backend(kind: str) -> None:
    """A stub that answers at once; says its port."""
    always = answer_to(orjson.loads(BODY))

    async def minimal(request: web.BaseRequest) -> web.Response:
        await request.read()
        return web.Response(body=always, headers=JSON)

    async def realistic(request: web.BaseRequest) -> web.Response:
        if request.method == "GET":  # the gateway looks whether it is there
            return web.Response(body=b'{"object": "list", "data": []}', headers=JSON)
        asked = orjson.loads(await request.read())
        if not isinstance(asked.get("messages"), list):
            return web.Response(status=400)
        return web.Response(body=answer_to(asked), headers=JSON)

    runner = web.ServerRunner(web.Server(minimal if kind == "minimal" else realistic, access_log=None))
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, backlog=1024).start()
    print(runner.addresses[0][1], flush=True)
    await asyncio.Event().wait()


async def gateway(directory: str) -> None:
    """A gateway without NATS; says its port."""
    configuration = GatewayConfiguration(
        data_directory=Path(directory),
        admin_token=TOKEN,
        session_key=RedactionKey("v1", TOKEN.encode()),
        fetch=lambda _: Path(),
        port=0,
        on_listening=lambda port: print(port, flush=True),
    )
    await run_gateway(configuration)


async def load(port: str, connections: str, requests: str) -> None:
    """Ask so many times on each connection, or until the input ends for 0, and say what came of it, as JSON."""
    seconds: list[float] = []
    errors = 0
    of_this_load = uuid4().hex[:8]  # no session goes on in the next round
    last_of_model: dict[str, float] = {}
    ended = asyncio.get_running_loop().run_in_executor(None, sys.stdin.read) if requests == "0" else None

    async def ask_on(connection: int) -> None:
        nonlocal errors
        reader, writer = await asyncio.open_connection("127.0.0.1", int(port))
        for number in range(int(requests)) if ended is None else count():
            if ended is not None and ended.done():
                break
            session = f"s-{of_this_load}-{connection}-{number // REQUESTS_OF_A_SESSION}"
            head = f"Content-Type: application/json\r\nX-Session-Id: {session}\r\nContent-Length: {len(BODY)}\r\n\r\n"
            started = time.perf_counter()
            writer.write(f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\n{head}".encode() + BODY)
            answer = (await reader.readuntil(b"\r\n\r\n")).lower()
            await reader.readexactly(int(answer.partition(b"content-length: ")[2].partition(b"\r\n")[0]))
            seconds.append(time.perf_counter() - started)
            errors += not answer.startswith(b"http/1.1 200")
            model = answer.partition(b"x-model-id: ")[2].partition(b"\r\n")[0].decode()
            last_of_model[model] = time.monotonic()
        writer.close()

    started = time.perf_counter()
    await asyncio.gather(*(ask_on(number) for number in range(int(connections))))
    took = time.perf_counter() - started
    seconds.sort()
    summary = {
        "rps": len(seconds) / took,
        "errors": errors,
        "p50": 1000 * seconds[len(seconds) // 2],
        "p99": 1000 * seconds[int(0.99 * len(seconds))],
        "answers": len(seconds),
        "last_of_model": last_of_model,
    }
    print(json.dumps(summary))


PARTS: dict[str, Callable[..., Any]] = {"backend": backend, "gateway": gateway, "load": load}


def started(part: str, *arguments: str) -> subprocess.Popen[str]:
    """One part of this benchmark as a process."""
    return subprocess.Popen(
        [sys.executable, __file__, "--part", part, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


@dataclass(frozen=True)
class Server:
    """A part that serves, while it does."""

    port: int
    process: psutil.Process

    def cpu_seconds(self) -> float:
        """What it has used so far."""
        times = self.process.cpu_times()
        return times.user + times.system


@contextmanager
def serving(part: str, *arguments: str) -> Iterator[Server]:
    """A server for the length of the block."""
    process = started(part, *arguments)
    try:
        assert process.stdout is not None
        yield Server(int(process.stdout.readline()), psutil.Process(process.pid))
    finally:
        process.terminate()
        process.communicate()


def measured(port: int, connections: int, requests: int) -> dict[str, Any]:
    """What a load met."""
    told, _ = started("load", str(port), str(connections), str(requests)).communicate()
    summary: dict[str, Any] = json.loads(told)
    return summary


def state(generation: int, endpoint: str, candidate: str | None) -> DesiredState:
    """The stub serves; a candidate, which is the same stub under another name, gets half."""
    now = datetime.now(UTC)
    names = [STUB, candidate] if candidate else [STUB]
    models = {name: ServedModel(model_id=name, base_model="stub", endpoint=endpoint) for name in names}
    rollout = candidate and Rollout(
        deployment_id=f"deployment-{generation}",
        candidate=candidate,
        control=STUB,
        strategy="canary",
        steps=(RampStep(share=0.5, min_seconds=0, min_samples=0),),
        started_at=now,
        step_since=now,
        bake_seconds=0,
    )
    return DesiredState(
        generation=generation,
        previous_hash="",
        phase="ramping" if rollout else "steady",
        serving=STUB,
        weights={name: 1 / len(names) for name in names},
        models=models,
        rollout=rollout or None,
        change=Change(event="ramped", model_id=STUB, reason="a benchmark", by="a benchmark", at=now),
    )


def rollbacks(number: int, port: int, endpoint: str) -> list[float]:
    """Milliseconds of each, under load."""
    traffic = Gateways([f"http://127.0.0.1:{port}"], TOKEN)
    loading = started("load", str(port), str(CONNECTIONS // 2), "0")
    called: dict[str, tuple[float, float]] = {}
    for rollback in range(number):
        candidate = f"candidate-{rollback}"
        traffic.apply(state(2 + rollback, endpoint, candidate))
        while not has_answered(port, candidate):
            time.sleep(0.01)
        before = time.monotonic()
        traffic.fence(candidate, "a benchmark")
        called[candidate] = before, time.monotonic()
    time.sleep(0.5)
    told, _ = loading.communicate()
    summary = json.loads(told)
    assert summary["errors"] == 0, summary["errors"]
    last = summary["last_of_model"]
    return [1000 * (max(confirmed, last[name]) - before) for name, (before, confirmed) in called.items()]


def has_answered(port: int, model: str) -> bool:
    """Whether the model serves by now."""
    connection = http.client.HTTPConnection("127.0.0.1", port)
    connection.request("GET", f"/admin/models/{model}/metrics", headers={"Authorization": f"Bearer {TOKEN}"})
    requests: int = json.load(connection.getresponse())["requests"]
    connection.close()
    return requests >= 5


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer rounds, under a minute")
    parser.add_argument("--part", nargs="+", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.part:
        uvloop.run(PARTS[asked.part[0]](*asked.part[1:]))
        return
    rounds, requests, number = (3, 60, 60) if asked.quick else (9, 600, 200)
    compared: dict[str, Compared] = {}
    times: list[float] = []
    for kind in ("minimal", "realistic"):
        with (
            tempfile.TemporaryDirectory() as directory,
            serving("backend", kind) as bare,
            serving("gateway", directory) as through,
        ):
            endpoint = f"http://127.0.0.1:{bare.port}"
            Gateways([f"http://127.0.0.1:{through.port}"], TOKEN).apply(state(1, endpoint, None))
            compared[kind] = compare(bare, through, rounds, requests)
            if kind == "realistic":
                times = sorted(rollbacks(number, through.port, endpoint))
    report(compared, times)


@dataclass(frozen=True)
class Compared:
    """What loads met at a bare backend and through the gateway, round by round."""

    many: list[tuple[dict[str, Any], dict[str, Any]]]
    single: list[tuple[dict[str, Any], dict[str, Any]]]
    """On one connection."""
    backend_cpu: float
    gateway_cpu: float
    """Seconds for a request."""

    @property
    def of_bare(self) -> float:
        """Throughput through the gateway over that of the bare backend."""
        return statistics.median(through["rps"] / bare["rps"] for bare, through in self.many)

    @property
    def errors(self) -> int:
        """Answers other than 200, on either side."""
        return sum(side["errors"] for pair in (*self.many, *self.single) for side in pair)

    def middle(self, name: str, side: int, *, single: bool = False) -> float:
        """The median of the rounds; side 0 is bare, 1 is through the gateway."""
        return statistics.median(pair[side][name] for pair in (self.single if single else self.many))


def compare(bare: Server, through: Server, rounds: int, requests: int) -> Compared:
    """Put the same loads on both, in turns."""
    for server in (bare, through):
        measured(server.port, CONNECTIONS, max(requests // 4, 20))  # warms up
    many, backend_cpu, gateway_cpu = [], 0.0, 0.0
    for _ in range(rounds):
        before = bare.cpu_seconds()
        at_backend = measured(bare.port, CONNECTIONS, requests)
        backend_cpu += bare.cpu_seconds() - before
        before = through.cpu_seconds()
        at_gateway = measured(through.port, CONNECTIONS, requests)
        gateway_cpu += through.cpu_seconds() - before
        many.append((at_backend, at_gateway))
    answers = rounds * requests * CONNECTIONS
    single = [(measured(bare.port, 1, 5 * requests), measured(through.port, 1, 5 * requests)) for _ in range(rounds)]
    return Compared(many, single, backend_cpu / answers, gateway_cpu / answers)


def report(compared: dict[str, Compared], times: list[float]) -> None:
    """A table for people, and the figures."""
    print(f"{'':<22}{'rps':>8}{'of bare':>9}{'p50 ms':>9}{'p99 ms':>9}{'alone p50':>11}{'alone p99':>11}")
    for kind, each in compared.items():
        for side, label in enumerate(("bare", "through the gateway")):
            busy = [each.middle(name, side) for name in ("rps", "p50", "p99")]
            alone = [each.middle(name, side, single=True) for name in ("p50", "p99")]
            ratio = f"{each.of_bare:.2f}" if side else ""
            print(
                f"{f'{kind}, {label}' if not side else f'  {label}':<22}{busy[0]:>8,.0f}{ratio:>9}"
                f"{busy[1]:>9.2f}{busy[2]:>9.2f}{alone[0]:>11.3f}{alone[1]:>11.3f}"
            )
    print(f"{len(times)} rollbacks: p50 {times[len(times) // 2]:.1f} ms, worst {times[-1]:.1f} ms")
    real = compared["realistic"]
    added = {name: real.middle(name, 1, single=True) - real.middle(name, 0, single=True) for name in ("p50", "p99")}
    figures = {
        "rps": round(real.middle("rps", 1)),
        "errors": sum(each.errors for each in compared.values()),
        "added_p50_ms": round(added["p50"], 3),
        "added_p99_ms": round(added["p99"], 3),
        "rollback_p99_ms": round(times[math.ceil(0.99 * len(times)) - 1], 1),
        "rollbacks": len(times),
        "of_bare": round(real.of_bare, 3),
        "of_bare_minimal": round(compared["minimal"].of_bare, 3),
        "bare_rps": round(real.middle("rps", 0)),
        "gateway_cpu_us": round(1e6 * real.gateway_cpu),
        "backend_cpu_us": round(1e6 * real.backend_cpu),
    }
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
