"""How many status queries and feedback posts does the service sustain beside a running ingest, and what does it cost?

NATS that syncs every message, the ClickHouse front, the service as `rl-pipeline service` runs it, and an ingest that
publishes and drains trajectories at a steady rate all the while. A load asks at fixed rates, 10 % above the aim: 330
queries a second about 50 jobs, of which a tenth train, and 110 posts of feedback a second, some of them with words that
have to be redacted. A request's time counts from when it was due, so that a stall costs all that it delays.

The same load of GETs is put on a bare FastAPI route that answers with the bytes of a status, in rounds that alternate
with the service's, beside the same ingest. What is still due when a round is over is not asked any more: it is missing
from the rates. `p99_ms` is of all requests to the service, `p99_over_bare` the median over
the rounds of its p99 over that of the bare route. What was acknowledged is counted in the stream afterwards: `lost` is
what is not there, and `errors` all answers but 200 and 202.
"""

import argparse
import asyncio
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import orjson
import uvloop

sys.path.insert(0, str(Path(__file__).parent.parent))  # for its neighbours, when started as a script

if TYPE_CHECKING:
    import psutil

    from rl_pipeline.stores.clickhouse import ClickHouseWarehouse

# The rest is imported where it is used: a load that is to ask now must not pay for Polars first.

KEY = "the-key-of-a-benchmark-and-of-nothing-else"
SECRET = "v1:a key for benchmarks, of enough characters"
JOBS = 50
QUERIES_PER_SECOND, POSTS_PER_SECOND, TRAJECTORIES_PER_SECOND = 330, 110, 20
CONNECTIONS = 16
WORDS = "Right answer, but it took a detour: write to jane.doe@example.com when it is done. "


def settings(nats: str, clickhouse: str, home: str) -> dict[str, str]:
    """The environment of the service."""
    nobody = "http://127.0.0.1:9"
    return {
        **os.environ,
        "NATS_URL": nats,
        "CLICKHOUSE_URL": clickhouse,
        "CLICKHOUSE_DATABASE": "service",
        "RL_PIPELINE_HOME": home,
        "AGENTGYM_RL_API_KEY": KEY,
        "REDACTION_KEY": SECRET,
        "EDGE_REDACTION_KEY": SECRET,
        "MODEL_STORAGE_PATH": f"{home}/models",
        "TRAJECTORY_STORAGE_PATH": f"{home}/trajectories",
        "DAGSTER_URL": nobody,
        "TENSORZERO_BASE_URL": nobody,
        "MLFLOW_TRACKING_URI": nobody,
    }


def store_jobs(tables: "ClickHouseWarehouse") -> None:
    """Jobs to ask about, a tenth of which train."""
    from rl_pipeline.contracts import TrainingRequest
    from rl_pipeline.training.jobs.job import Attempt, Job
    from rl_pipeline.training.jobs.rows import write_attempt, write_job

    now = datetime.now(UTC)
    for number in range(JOBS):
        config = {"algorithm": "dpo", "base_model": "small", "dataset": {"source": "clickhouse"}}
        asked = {"training_job_id": f"job-{number}", "timestamp": now, "requester": "a benchmark"}
        request = TrainingRequest.model_validate({**asked, "trigger_reason": "manual", "training_config": config})
        job = Job.accepted(request, through_sequence=0, now=now)
        if number % 10 == 0:
            job = job.moved("ready", "its turn", now).moved("running", "attempt 1 starts from the dataset", now)
            write_attempt(tables, Attempt(job.job_id, 1, "dataset", now).begun(uuid4().hex, now))
        write_job(tables, job)


async def bare(answer: str) -> None:
    """A FastAPI route that does nothing, as uvicorn runs the service; says its port."""
    import socket

    import uvicorn
    from fastapi import FastAPI, Response

    app, data = FastAPI(openapi_url=None), answer.encode()

    @app.get("/training/{job_id}/status")
    async def status(job_id: str) -> Response:  # noqa: ARG001 - as the service's own is written
        return Response(data, media_type="application/json")

    listening = socket.create_server(("127.0.0.1", 0))
    print(listening.getsockname()[1], flush=True)
    configuration = uvicorn.Config(app, http="httptools", access_log=False, log_config=None)
    await uvicorn.Server(configuration).serve(sockets=[listening])


def ingest(nats: str, clickhouse: str, scratch: str) -> None:
    """Publish trajectories at a steady rate and drain them, until the input ends; says how many of each."""
    import threading

    from benchmarks.corpus import realistic_trajectories
    from rl_pipeline.ingestion.draining import drain
    from rl_pipeline.redaction.policy import RedactionKey, RedactionPolicy
    from rl_pipeline.stores.clickhouse import ClickHouseWarehouse
    from rl_pipeline.stores.jetstream import JetStream
    from rl_pipeline.stores.object_addresses import ObjectsAddress
    from rl_pipeline.stores.stream import OutgoingMessage
    from rl_pipeline.stores.topology import TRAJECTORIES

    over = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), over.set()), daemon=True).start()
    published = drained = 0
    policy = RedactionPolicy(RedactionKey.parse(SECRET))
    with JetStream.connect(nats) as stream, closing(ClickHouseWarehouse.connect(clickhouse, "service")) as tables:
        trajectories = realistic_trajectories(10**7, seed=7)
        began = time.monotonic()
        print("READY", flush=True)
        while not over.is_set():
            due = int((time.monotonic() - began) * TRAJECTORIES_PER_SECOND) - published
            batch = [next(trajectories) for _ in range(min(due, 500))]
            if batch:
                stream.publish_many(
                    OutgoingMessage("agent.rl.trajectory.v1", orjson.dumps(one), one["trajectory_id"]) for one in batch
                )
                published += len(batch)
                report = drain(
                    stream,
                    tables,
                    stream=TRAJECTORIES.name,
                    first=published - len(batch) + 1,
                    last=published,
                    policy=policy,
                    open_raw_objects=ObjectsAddress(scratch).open,
                    workers=1,
                )
                drained += report.verdicts.get("accepted", 0)
            over.wait(5)  # as often as the sensor looks
    print(json.dumps({"published": published, "drained": drained}))


async def load(port: str, seconds: str, queries: str, posts: str) -> None:
    """Ask at the given rates for so long; says what came of it, as JSON."""
    began = time.perf_counter() + 0.2
    ends = began + float(seconds)
    head = f"Host: x\r\nX-API-Key: {KEY}\r\n"
    stem = uuid4().hex

    def query(number: int) -> bytes:
        return f"GET /training/job-{number % JOBS}/status HTTP/1.1\r\n{head}\r\n".encode()

    def post(number: int) -> bytes:
        given = {
            "feedback_id": f"{stem}-{number}",
            "trajectory_id": "3f2b8c1e-5d4a-4b6f-9e7d-1a2b3c4d5e6f",
            "timestamp": "2026-02-01T12:00:00Z",
            **({"kind": "comment", "text": WORDS} if number % 5 == 0 else {"kind": "thumbs_up"}),
        }
        body = orjson.dumps(given)
        return f"POST /feedback HTTP/1.1\r\n{head}Content-Length: {len(body)}\r\n\r\n".encode() + body

    async def ask(rate: float, request: Callable[[int], bytes]) -> dict[str, Any]:
        times: list[float] = []
        errors = 0
        numbers = count()

        async def ask_on() -> None:
            nonlocal errors
            reader, writer = await asyncio.open_connection("127.0.0.1", int(port))
            while (due := began + (number := next(numbers)) / rate) < ends > time.perf_counter():
                await asyncio.sleep(max(0.0, due - time.perf_counter()))
                writer.write(request(number))
                answer = (await reader.readuntil(b"\r\n\r\n")).lower()
                await reader.readexactly(int(answer.partition(b"content-length: ")[2].partition(b"\r\n")[0]))
                times.append(time.perf_counter() - due)
                errors += not answer.startswith((b"http/1.1 200", b"http/1.1 202"))
            writer.close()

        if rate:
            await asyncio.gather(*(ask_on() for _ in range(CONNECTIONS)))
        return {"answers": len(times), "errors": errors, "times": [round(1000 * each, 3) for each in times]}

    told = await asyncio.gather(ask(float(queries), query), ask(float(posts), post))
    took = time.perf_counter() - began
    print(json.dumps({"seconds": took, "queries": told[0], "posts": told[1]}))


def started(part: str, *arguments: str) -> "subprocess.Popen[str]":
    """One part of this benchmark as a process."""
    command = [sys.executable, __file__, "--part", part, *arguments]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


@contextmanager
def serving(process: "subprocess.Popen[str]") -> "Iterator[tuple[int, psutil.Process]]":
    """The port and the process of a server that says where it listens, for the length of the block."""
    import psutil

    try:
        assert process.stdout is not None
        yield int(process.stdout.readline().strip().rpartition(":")[2]), psutil.Process(process.pid)
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate()


def measured(port: int, seconds: float, queries: float, posts: float) -> dict[str, Any]:
    """What a load met."""
    told, _ = started("load", str(port), str(seconds), str(queries), str(posts)).communicate()
    result: dict[str, Any] = json.loads(told)
    return result


def p99(times: list[float]) -> float:
    """The 99th percentile."""
    return sorted(times)[int(0.99 * len(times))]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="3 rounds of 4 seconds instead of 6 of 10")
    parser.add_argument("--part", nargs="+", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.part:
        part, *arguments = asked.part
        if part == "ingest":
            ingest(*arguments)
        else:
            uvloop.run({"bare": bare, "load": load}[part](*arguments))
        return
    measure(*((3, 4.0) if asked.quick else (6, 10.0)))


def measure(rounds: int, seconds: float) -> None:
    """Run everything, and say what came of it."""
    from benchmarks.servers import running_front
    from rl_pipeline.embedded.nats_server import running_nats_server
    from rl_pipeline.stores.clickhouse import ClickHouseWarehouse
    from rl_pipeline.stores.jetstream import JetStream
    from rl_pipeline.stores.migrate import migrate
    from rl_pipeline.stores.topology import bootstrap

    with (
        tempfile.TemporaryDirectory() as scratch,
        running_front(Path(scratch, "clickhouse")) as url,
        running_nats_server(Path(scratch, "nats")) as server,
        JetStream.connect(server.url) as stream,
        closing(ClickHouseWarehouse.connect(url, "service")) as tables,
    ):
        bootstrap(stream)
        migrate(tables)
        store_jobs(tables)
        command = [str(Path(sys.executable).parent / "rl-pipeline"), "service", "--port", "0"]
        process = subprocess.Popen(command, env=settings(server.url, url, scratch), stdout=subprocess.PIPE, text=True)
        with serving(process) as (port, used), serving(started("bare", "x" * 700)) as (bare_port, _):
            feeding = started("ingest", server.url, url, f"{scratch}/raw")
            assert feeding.stdout is not None
            feeding.stdout.readline()
            print(f"the service, a bare route and an ingest run; {rounds} rounds of {seconds:g} s each", flush=True)
            measured(port, 2, QUERIES_PER_SECOND / 2, POSTS_PER_SECOND / 2)  # warms up: the rules of redaction compile
            before = stream.state("RL_FEEDBACK").messages
            cpu = sum(used.cpu_times()[:2])
            both = []
            for _ in range(rounds):
                alone = measured(bare_port, seconds, QUERIES_PER_SECOND + POSTS_PER_SECOND, 0)
                both.append((alone, measured(port, seconds, QUERIES_PER_SECOND, POSTS_PER_SECOND)))
                print(f"round {len(both)} of {rounds}", flush=True)
            cpu = sum(used.cpu_times()[:2]) - cpu
            fed = json.loads(feeding.communicate()[0])
            stored = stream.state("RL_FEEDBACK").messages - before
            in_warehouse = tables.query("SELECT count() AS n FROM trajectories FINAL")["n"][0]
    report(both, stored, fed, in_warehouse, cpu)


def report(
    both: list[tuple[dict[str, Any], dict[str, Any]]], stored: int, fed: dict[str, int], kept: int, cpu: float
) -> None:
    """A table for people, and the figures."""
    posts = sum(one["posts"]["answers"] - one["posts"]["errors"] for _, one in both)
    answers = sum(one[kind]["answers"] for _, one in both for kind in ("queries", "posts"))
    seconds = sum(one["seconds"] for _, one in both)
    every = {kind: [each for _, one in both for each in one[kind]["times"]] for kind in ("queries", "posts")}
    alone = [each for one, _ in both for each in one["queries"]["times"]]
    ratios = [
        p99(one["queries"]["times"] + one["posts"]["times"]) / p99(plain["queries"]["times"]) for plain, one in both
    ]
    print(f"{'':<24}{'a second':>10}{'p50 ms':>9}{'p99 ms':>9}")
    for name, times in (
        ("status queries", every["queries"]),
        ("feedback posts", every["posts"]),
        ("bare route", alone),
    ):
        print(f"{name:<24}{len(times) / seconds:>10.0f}{statistics.median(times):>9.1f}{p99(times):>9.1f}")
    print(f"beside it {fed['published']} trajectories were published, {kept} are stored; {stored} of {posts} posts are")
    figures = {
        "errors": sum(one[kind]["errors"] for _, one in both for kind in ("queries", "posts")),
        "status_rps": round(len(every["queries"]) / seconds, 1),
        "feedback_rps": round(len(every["posts"]) / seconds, 1),
        "p99_ms": round(p99(every["queries"] + every["posts"]), 2),
        "p99_over_bare": round(statistics.median(ratios), 2),
        "lost": posts - stored + fed["published"] - kept,
        "status_p99_ms": round(p99(every["queries"]), 2),
        "feedback_p99_ms": round(p99(every["posts"]), 2),
        "bare_p99_ms": round(p99(alone), 2),
        "ingested_per_s": round(fed["drained"] / (2 * seconds), 1),
        "service_cpu_us": round(1e6 * cpu / answers),
    }
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
