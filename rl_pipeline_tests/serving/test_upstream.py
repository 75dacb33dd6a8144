"""The client for backends, against servers that speak HTTP well, badly, slowly and not at all."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from rl_pipeline.serving import upstream as upstream_module
from rl_pipeline.serving.upstream import Address, EndpointInvalid, Patience, Upstream, UpstreamFault

PATIENT = Patience(connect_seconds=5, silence_seconds=30, request_seconds=30)
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def serving(*answers: bytes | Serve, patience: Patience = PATIENT) -> AsyncIterator["Backend"]:
    backend = Backend(list(answers))
    server = await asyncio.start_server(backend.connected, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    backend.upstream = Upstream(Address("127.0.0.1", port), patience)
    try:
        yield backend
    finally:
        backend.upstream.close()
        server.close()
        for task in backend.tasks:
            task.cancel()
        await asyncio.gather(*backend.tasks, return_exceptions=True)


class Backend:
    """Answers each request with the next of what it was given; closes the connection when there is nothing left."""

    def __init__(self, answers: list[bytes | Serve]) -> None:
        self.answers = answers
        self.connections = 0
        self.requests: list[bytes] = []
        self.tasks: set[asyncio.Task[None]] = set()
        self.upstream: Upstream

    async def connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self.tasks.add(task)
        self.connections += 1
        try:
            while self.answers:
                head = await reader.readuntil(b"\r\n\r\n")
                length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0] or 0)
                self.requests.append(head + await reader.readexactly(length))
                answer = self.answers.pop(0)
                if callable(answer):
                    await answer(reader, writer)
                else:
                    writer.write(answer)
                    await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async def ask(self) -> tuple[int, bytes]:
        answer = await self.upstream.post("/v1/chat/completions", "X-Session-Id: s\r\n", b'{"a": 1}')
        try:
            return answer.status, await answer.body()
        finally:
            answer.release()

    async def fault(self) -> UpstreamFault:
        with pytest.raises(UpstreamFault) as raised:
            await self.ask()
        return raised.value


async def hold(_reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
    await asyncio.sleep(3600)


def test_a_connection_is_used_again() -> None:
    async def case() -> None:
        async with serving(OK, OK, OK, hold) as backend:
            assert [await backend.ask() for _ in range(3)] == [(200, b"ok")] * 3
            assert backend.connections == 1
            assert backend.requests[0].startswith(b"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1:")
            assert backend.requests[0].endswith(b'\r\n\r\n{"a": 1}')

    asyncio.run(case())


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\no\r\n1\r\nk\r\n0\r\n\r\n",
        b"HTTP/1.1 100 Continue\r\n\r\n" + OK,
        b"HTTP/1.1 102 Processing\r\nX: y\r\n\r\n" + OK,
        b"HTTP/1.0 200 OK\r\n\r\nok",
        b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok",
    ],
)
def test_every_way_to_send_an_answer_is_understood(answer: bytes) -> None:
    async def case() -> None:
        async with serving(answer) as backend:
            assert await backend.ask() == (200, b"ok")

    asyncio.run(case())


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"HTTP/1.1 200 OK\r\nContent-Len",
        b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nok",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n9\r\nok",
        b"SSH-2.0-OpenSSH_9.2\r\n",
        b"HTTP/1.1 200 OK\r\nX: " + 70_000 * b"x" + b"\r\n\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\nbytes",
    ],
)
def test_an_answer_that_breaks_off_is_a_failure(answer: bytes) -> None:
    async def case() -> None:
        async with serving(answer) as backend:
            assert (await backend.fault()).failure == "upstream_broke_off"

    asyncio.run(case())


@pytest.mark.parametrize("more", [OK, b"rubbish"])
def test_what_nobody_asked_for_is_never_taken_for_an_answer(more: bytes) -> None:
    async def case() -> None:
        async with serving(OK + more, OK) as backend:
            try:
                assert await backend.ask() == (200, b"ok")
            except UpstreamFault:
                assert more == b"rubbish"
            assert await backend.ask() == (200, b"ok")
            assert backend.connections == 2

    asyncio.run(case())


def test_an_unasked_answer_on_an_idle_connection_is_dropped() -> None:
    async def case() -> None:
        was_answered, was_dropped = asyncio.Event(), asyncio.Event()

        async def twice(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(OK)
            await was_answered.wait()
            writer.write(OK.replace(b"ok", b"no"))
            await reader.read()
            was_dropped.set()

        async with serving(twice, OK) as backend:
            await backend.ask()
            was_answered.set()
            await asyncio.wait_for(was_dropped.wait(), 60)
            assert await backend.ask() == (200, b"ok")
            assert backend.connections == 2

    asyncio.run(case())


def test_a_silent_backend_is_given_up() -> None:
    async def case() -> None:
        async with serving(hold, patience=Patience(5, 0.05, 30)) as backend:
            assert (await backend.fault()).failure == "upstream_timeout"

    asyncio.run(case())


def test_a_backend_that_never_finishes_is_given_up() -> None:
    async def drip(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        while True:
            writer.write(b"1\r\nx\r\n")
            await writer.drain()
            await asyncio.sleep(0.02)

    async def case() -> None:
        async with serving(drip, patience=Patience(5, 30, 0.2)) as backend:
            assert (await backend.fault()).failure == "upstream_timeout"

    asyncio.run(case())


def test_a_refused_connection_is_tried_once_more(monkeypatch: pytest.MonkeyPatch) -> None:
    tries = []
    connect = Upstream._connect

    async def counting(self: Upstream, loop: asyncio.AbstractEventLoop) -> object:
        tries.append(1)
        if len(tries) == 1:
            raise ConnectionRefusedError
        return await connect(self, loop)

    async def case() -> None:
        monkeypatch.setattr(Upstream, "_connect", counting)
        async with serving(OK) as backend:
            assert await backend.ask() == (200, b"ok")

    asyncio.run(case())
    assert len(tries) == 2


def test_a_backend_that_is_not_there_is_unreachable() -> None:
    async def case() -> None:
        async with serving() as backend:
            pass
        assert (await backend.fault()).failure == "upstream_unreachable"

    asyncio.run(case())


def test_a_connection_that_was_idle_for_long_is_not_trusted(monkeypatch: pytest.MonkeyPatch) -> None:
    async def case() -> None:
        async with serving(OK, OK) as backend:
            await backend.ask()
            monkeypatch.setattr(upstream_module, "KEEP_IDLE_SECONDS", 0.0)
            await backend.ask()
            assert backend.connections == 2

    asyncio.run(case())


def test_a_stream_comes_as_it_is_sent_and_one_that_is_left_is_cut() -> None:
    async def case() -> None:
        was_cut = asyncio.Event()
        go_on = asyncio.Event()

        async def stream(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n")
            await go_on.wait()
            writer.write(b"1\r\nb\r\n")
            await reader.read()
            was_cut.set()

        async with serving(stream) as backend:
            answer = await backend.upstream.post("/", "", b"")
            pieces = answer.pieces()
            assert await anext(pieces) == b"a"
            go_on.set()
            assert await anext(pieces) == b"b"
            answer.release()
            await asyncio.wait_for(was_cut.wait(), 10)

    asyncio.run(case())


def test_a_slow_reader_holds_the_backend_back_and_not_in_memory() -> None:
    async def case() -> None:
        sent = 0

        async def flood(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            nonlocal sent
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000000\r\n\r\n")
            while True:
                writer.write(bytes(2**16))
                await writer.drain()
                sent += 2**16

        async with serving(flood) as backend:
            answer = await backend.upstream.post("/", "", b"")
            before = -1
            while before < sent < 50_000_000:
                before = sent
                await asyncio.sleep(0.3)
            assert before == sent < 50_000_000
            answer.release()

    asyncio.run(case())


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("http://10.0.0.1:8000", Address("10.0.0.1", 8000)),
        ("https://models.example/v1/", Address("models.example", 443, True)),
        ("http://host/ollama/v1", Address("host", 80, False, "/ollama")),
    ],
)
def test_an_endpoint_is_read(url: str, address: Address) -> None:
    assert Address.parse(url) == address


@pytest.mark.parametrize(
    "url",
    ["host:80", "ftp://host", "http://", "http://host:port", "http://a b", "http://host/?q=1", "http://h\r\nX: y"],
)
def test_what_is_no_endpoint_is_refused(url: str) -> None:
    with pytest.raises(EndpointInvalid):
        Address.parse(url)
