"""As much of the `nats` program as the specification's lines need, over nats-py (C-31)."""

import argparse
import asyncio
import os
import sys

import nats
from nats.aio.client import Client
from nats.js.api import RetentionPolicy, StorageType, StreamConfig


def arguments() -> argparse.Namespace:
    """What was typed."""
    parser = argparse.ArgumentParser(prog="nats")
    commands = parser.add_subparsers(dest="command", required=True)
    sub = commands.add_parser("sub")
    sub.add_argument("subject")
    sub.add_argument("--queue", default="")
    sub.add_argument("--count", type=int, default=0)
    for name in ("pub", "req"):
        sends = commands.add_parser(name)
        sends.add_argument("subject")
        sends.add_argument("body")
    actions = commands.add_parser("stream").add_subparsers(dest="action", required=True)
    add = actions.add_parser("add")
    add.add_argument("name")
    add.add_argument("--subjects", required=True)
    add.add_argument("--retention", type=RetentionPolicy)
    add.add_argument("--max-age", type=lambda text: 86_400 * int(text.removesuffix("d")))
    add.add_argument("--max-msgs", type=int)
    add.add_argument("--storage", type=StorageType)
    actions.add_parser("info").add_argument("name")
    return parser.parse_args()


def tell(text: str) -> None:
    """To whoever reads along."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


async def subscribe(client: Client, subject: str, queue: str, count: int) -> None:
    """Tell what comes, until so much has come."""
    subscription = await client.subscribe(subject, queue=queue)
    await client.flush()
    tell(f"Subscribing on {subject}")
    # Behind a pipe this is all that shows that it listens.
    sys.stderr.write("Subscribing\n")
    sys.stderr.flush()
    number = 0
    async for message in subscription.messages:
        number += 1
        tell(f'[#{number}] Received on "{message.subject}"\n{message.data.decode()}\n')
        if number == count:
            return


async def run(typed: argparse.Namespace) -> None:
    client = await nats.connect(os.environ["NATS_URL"])
    match typed.command:
        case "sub":
            await subscribe(client, typed.subject, typed.queue, typed.count)
        case "pub":
            await client.publish(typed.subject, typed.body.encode())
            await client.flush()
            tell(f'Published {len(typed.body)} bytes to "{typed.subject}"')
        case "req":
            tell((await client.request(typed.subject, typed.body.encode(), timeout=30)).data.decode())
        case "stream":
            streams = client.jetstream()
            if typed.action == "add":
                limits = {name: getattr(typed, name) for name in ("retention", "max_age", "max_msgs", "storage")}
                await streams.add_stream(StreamConfig(name=typed.name, subjects=[typed.subjects], **limits))
            found = await streams.stream_info(typed.name)
            tell(f"Information for Stream {typed.name}\n\n  Subjects: {', '.join(found.config.subjects or ())}")
            tell(f"  Maximum Age: {found.config.max_age}\n  Messages: {found.state.messages:,}")
    await client.close()


if __name__ == "__main__":
    try:
        asyncio.run(run(arguments()))
    except (nats.errors.Error, OSError) as trouble:
        sys.exit(f"nats: error: {trouble or type(trouble).__name__}")
