"""Load on a gateway or a backend: fixed concurrency, connections that are kept, nothing else in the way."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count

import orjson

BODY = orjson.dumps({"model": "any", "messages": [{"role": "user", "content": "x" * 200}], "temperature": 0.7})


@dataclass
class Load:
    """What came back."""

    answers: int = 0
    errors: list[str] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    by_model: dict[str, int] = field(default_factory=dict)
    last_of_model: dict[str, float] = field(default_factory=dict)
    """When each model's last answer came, by `time.monotonic`."""


async def put_load(
    port: int, connections: int, session_of: Callable[[int, int], str], until: Callable[[int], bool]
) -> Load:
    """Ask on so many connections, each time again as soon as the answer is there, `until(requests so far)`.

    `session_of(connection, request)` names the session of each request.
    """
    load, numbers = Load(), count()

    async def ask_on(connection: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for request in count():
            if until(next(numbers)):
                break
            await _ask(reader, writer, session_of(connection, request), load)
        writer.close()

    await asyncio.gather(*(ask_on(number) for number in range(connections)))
    return load


async def _ask(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, session: str, load: Load) -> None:
    head = (
        "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        f"X-Session-Id: {session}\r\nContent-Length: {len(BODY)}\r\n\r\n"
    )
    started = time.perf_counter()
    writer.write(head.encode() + BODY)
    answer = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    headers = dict(line.lower().split(": ", 1) for line in answer.splitlines()[1:] if line)
    content = await reader.readexactly(int(headers["content-length"]))
    load.seconds.append(time.perf_counter() - started)
    load.answers += 1
    if not answer.startswith("HTTP/1.1 200"):
        load.errors.append(answer.splitlines()[0] + content[:200].decode())
    model = headers.get("x-model-id", "")
    load.by_model[model] = load.by_model.get(model, 0) + 1
    load.last_of_model[model] = time.monotonic()
