"""An OpenAI-compatible backend that says its own name, and fails in every way it is told to."""

import asyncio
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any, Self

import orjson
from aiohttp import web

Behaviour = Callable[["StubBackend", web.Request, dict[str, Any]], Awaitable[web.StreamResponse]]


async def answer(stub: "StubBackend", request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
    """As a healthy backend does, whole or as a stream."""
    if not body.get("stream"):
        message = {"role": "assistant", "content": f"I am {stub.name}"}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        usage = {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10}
        return web.json_response({"id": "theirs", "object": "chat.completion", "choices": [choice], "usage": usage})
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    for word in ("I ", "am ", stub.name):
        await response.write(event(word))
        await asyncio.sleep(stub.pause)
    await response.write(b"data: [DONE]\n\n")
    return response


async def answer_500(_stub: "StubBackend", _request: web.Request, _body: dict[str, Any]) -> web.StreamResponse:
    """A failure that it tells of."""
    return web.json_response({"error": {"message": "broken", "type": "server_error"}}, status=500)


async def answer_400(_stub: "StubBackend", _request: web.Request, _body: dict[str, Any]) -> web.StreamResponse:
    """The caller's fault."""
    return web.json_response({"error": {"message": "no such role", "type": "invalid_request_error"}}, status=400)


async def answer_404(_stub: "StubBackend", _request: web.Request, _body: dict[str, Any]) -> web.StreamResponse:
    """It does not know the model that it was given to serve."""
    return web.json_response({"error": {"message": "no such model"}}, status=404)


def refuse(status: int) -> Behaviour:
    """The caller's fault, with word when to come again."""

    async def refused(_stub: "StubBackend", _request: web.Request, _body: dict[str, Any]) -> web.StreamResponse:
        return web.json_response({"error": {"message": "not you"}}, status=status, headers={"Retry-After": "7"})

    return refused


async def answer_503(_stub: "StubBackend", _request: web.Request, _body: dict[str, Any]) -> web.StreamResponse:
    """Too busy, with word when to come again."""
    return web.json_response({"error": {"message": "busy"}}, status=503, headers={"Retry-After": "7"})


async def answer_rubbish(_stub: "StubBackend", _request: web.Request, _body: dict[str, Any]) -> web.StreamResponse:
    """Neither JSON nor a failure."""
    return web.Response(body=b"<html>welcome</html>", content_type="text/html")


async def say_nothing(_stub: "StubBackend", _request: web.Request, _body: dict[str, Any]) -> web.StreamResponse:
    """Until the caller is tired of it."""
    await asyncio.sleep(3600)
    raise AssertionError


async def hang_up(_stub: "StubBackend", request: web.Request, _body: dict[str, Any]) -> web.StreamResponse:
    """Before the first byte."""
    assert request.transport is not None
    request.transport.abort()
    return web.Response()


async def end_early(stub: "StubBackend", request: web.Request, _body: dict[str, Any]) -> web.StreamResponse:
    """A stream that ends in good order, and without the word that it is complete."""
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    await response.write(event("I "))
    return response


async def fail_within(stub: "StubBackend", request: web.Request, _body: dict[str, Any]) -> web.StreamResponse:
    """A stream that tells of an error, as vLLM does, and then calls itself complete."""
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    await response.write(event("I ") + b'data: {"error": {"message": "out of memory"}}\n\ndata: [DONE]\n\n')
    return response


async def break_off(stub: "StubBackend", request: web.Request, _body: dict[str, Any]) -> web.StreamResponse:
    """In the middle of a stream."""
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    await response.write(event("I "))
    await asyncio.sleep(0.05)
    assert request.transport is not None
    request.transport.abort()
    return response


def event(text: str) -> bytes:
    """A chunk of a stream as OpenAI sends it."""
    choice = {"index": 0, "delta": {"content": text}, "finish_reason": None}
    return b"data: " + orjson.dumps({"id": "theirs", "object": "chat.completion.chunk", "choices": [choice]}) + b"\n\n"


class StubBackend:
    """A server on a thread of its own."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.behaviour: Behaviour = answer
        self.pause = 0.0
        self.pause_of_probes = 0.0
        self.requests = 0
        self.hung_up_on = 0
        self.bodies: deque[dict[str, Any]] = deque(maxlen=100)
        self.headers: deque[dict[str, str]] = deque(maxlen=100)
        self.port = 0
        self._loop = asyncio.new_event_loop()
        self._runner: web.AppRunner | None = None
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> Self:
        """Listen; again on the same port after a stop."""
        asyncio.run_coroutine_threadsafe(self._start(), self._loop).result()
        return self

    def stop(self) -> None:
        """Refuse connections."""
        asyncio.run_coroutine_threadsafe(self._stop(), self._loop).result()

    def close(self) -> None:
        self.stop()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _start(self) -> None:
        app = web.Application(client_max_size=2**26)
        app.router.add_post("/v1/chat/completions", self._chat)
        app.router.add_get("/v1/models", self._models)
        self._runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1, access_log=None)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", self.port).start()
        self.port = self._runner.addresses[0][1]

    async def _stop(self) -> None:
        if self._runner:
            await self._runner.cleanup()
        self._runner = None

    async def _models(self, _request: web.Request) -> web.Response:
        await asyncio.sleep(self.pause_of_probes)
        return web.json_response({"object": "list", "data": []})

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        self.requests += 1
        body = orjson.loads(await request.read())
        self.bodies.append(body)
        self.headers.append(dict(request.headers))
        try:
            return await self.behaviour(self, request, body)
        except (asyncio.CancelledError, ConnectionError):
            self.hung_up_on += 1
            raise


@contextmanager
def stub_backends(*names: str) -> Iterator[list[StubBackend]]:
    """Healthy backends of these names."""
    stubs = [StubBackend(name).start() for name in names]
    try:
        yield stubs
    finally:
        for stub in stubs:
            stub.close()
