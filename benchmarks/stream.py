"""What the stream port costs: publishing and fetching through it, against bare nats-py doing the same work.

Both use the same server (JetStream on disk, without a sync per message, so that the clients decide and not the disk),
the same 4 KB messages with ids, and the same number in flight. Rounds alternate; each figure is the median of their
ratios. The bare fetch acknowledges without waiting for the confirmation that the port does wait for.
"""

import argparse
import asyncio
import json
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import nats
from nats.js import JetStreamContext
from nats.js.api import AckPolicy, ConsumerConfig

from rl_pipeline.embedded.nats_server import running_nats_server
from rl_pipeline.stores.jetstream import JetStream
from rl_pipeline.stores.jetstream_publishing import GROUP_MESSAGES
from rl_pipeline.stores.stream import OutgoingMessage

PAYLOAD = b"x" * 4096
IN_FLIGHT = 2 * GROUP_MESSAGES
BATCH = 500


def port_publish(stream: JetStream, count: int) -> None:
    stream.publish_many(OutgoingMessage("bench", PAYLOAD, str(index)) for index in range(count))


async def bare_publish(bare: JetStreamContext, count: int) -> None:
    futures = [
        await bare.publish_async("bench", PAYLOAD, headers={"Nats-Msg-Id": str(index)}) for index in range(count)
    ]
    await asyncio.gather(*futures)


def port_fetch(stream: JetStream, count: int) -> None:
    fetched = 0
    while fetched < count:
        deliveries = stream.fetch("BENCH", "durable", BATCH, 5)
        stream.acknowledge(deliveries)
        fetched += len(deliveries)


async def bare_fetch(bare: JetStreamContext, count: int) -> None:
    subscription = await bare.pull_subscribe_bind("durable", stream="BENCH")
    fetched = 0
    while fetched < count:
        messages = await subscription.fetch(BATCH, timeout=5)
        for message in messages:
            await message.ack()
        fetched += len(messages)


def port_read(stream: JetStream, count: int) -> None:
    assert sum(len(batch) for batch in stream.read("BENCH", 1, count, BATCH)) == count


async def bare_read(bare: JetStreamContext, count: int) -> None:
    configuration = ConsumerConfig(ack_policy=AckPolicy.NONE, mem_storage=True)
    subscription = await bare.pull_subscribe("bench", stream="BENCH", config=configuration)
    read = 0
    while read < count:
        read += len(await subscription.fetch(BATCH, timeout=5))


def on_port(stream: JetStream, work: Callable[[JetStream, int], None], count: int) -> float:
    """Messages per second through the port."""
    started = time.perf_counter()
    work(stream, count)
    return count / (time.perf_counter() - started)


def on_bare(url: str, work: Callable[[JetStreamContext, int], Awaitable[None]], count: int) -> float:
    """Messages per second of bare nats-py; connecting is not counted, as it is not for the port."""

    async def run() -> float:
        client = await nats.connect(url)
        bare = client.jetstream(publish_async_max_pending=IN_FLIGHT)
        started = time.perf_counter()
        await work(bare, count)
        took = time.perf_counter() - started
        await client.close()
        return count / took

    return asyncio.run(run())


def prepare(stream: JetStream, filled_with: int) -> None:
    """A new stream with a durable consumer, and that many messages in it."""
    if stream.request("STREAM.NAMES")["streams"]:
        stream.request("STREAM.DELETE.BENCH")
    stream.request("STREAM.CREATE.BENCH", {"name": "BENCH", "subjects": ["bench"], "allow_direct": True})
    consumer = {"durable_name": "durable", "ack_policy": "explicit", "max_ack_pending": 10 * BATCH}
    stream.request("CONSUMER.DURABLE.CREATE.BENCH.durable", {"stream_name": "BENCH", "config": consumer})
    port_publish(stream, filled_with)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="smaller inputs, under a minute")
    quick = parser.parse_args().quick
    count, rounds = (5_000, 5) if quick else (30_000, 9)
    questions = {
        "publish": (port_publish, bare_publish, 0),
        "fetch": (port_fetch, bare_fetch, count),
        "read": (port_read, bare_read, count),
    }
    figures: dict[str, float] = {}
    print(f"{count} messages of {len(PAYLOAD)} bytes, {rounds} rounds, {IN_FLIGHT} in flight, batches of {BATCH}")
    print(f"{'':<10}{'port/s':>10}{'bare/s':>10}{'of bare':>10}")
    with (
        tempfile.TemporaryDirectory() as directory,
        running_nats_server(Path(directory), sync_always=False) as server,
        JetStream.connect(server.url) as stream,
    ):
        for question, (by_port, by_bare, filled_with) in questions.items():
            pairs = []
            for number in range(rounds + 1):
                speeds = {}
                # Whoever goes first alternates: the second finds a warmer machine.
                for side in ("port", "bare") if number % 2 else ("bare", "port"):
                    prepare(stream, filled_with)
                    if side == "port":
                        speeds[side] = on_port(stream, by_port, count)
                    else:
                        speeds[side] = on_bare(server.url, by_bare, count)
                pairs.append((speeds["port"], speeds["bare"]))
            measured = pairs[1:]  # the first round warms up
            port = statistics.median(pair[0] for pair in measured)
            bare = statistics.median(pair[1] for pair in measured)
            ratio = statistics.median(pair[0] / pair[1] for pair in measured)
            print(f"{question:<10}{port:>10,.0f}{bare:>10,.0f}{ratio:>10.2f}")
            figures |= {
                f"{question}_of_bare": round(ratio, 3),
                f"{question}_per_second": round(port),
                f"bare_{question}_per_second": round(bare),
            }
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
