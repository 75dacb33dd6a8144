"""The proxy's HTTP side: passes on, byte by byte, and hands copies to the recorder."""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, get_args

from aiohttp import ClientError, ClientResponse, ClientSession, ClientTimeout, DummyCookieJar, web
from pydantic import BaseModel, ConfigDict, ValidationError

from rl_pipeline.collection.proxy.recorder import Ended, Passing, ProxyRecorder, UnknownSession
from rl_pipeline.contracts.feedback import FeedbackSignal
from rl_pipeline.contracts.fields import Percentage
from rl_pipeline.contracts.trajectory import TaskStatus

RECORDED = "/v1/chat/completions"

_LARGEST_REQUEST = 64 << 20
_LARGEST_RECORDED = 32 << 20
_OF_ONE_CONNECTION = frozenset(
    {
        "connection",
        "keep-alive",
        "proxy-authenticate",
        "proxy-authorization",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    }
)
_SET_HERE = frozenset({"host", "accept-encoding", "content-length"})

_log = logging.getLogger("rl_pipeline.collection")


class _EndOfSession(BaseModel):
    """The body of `POST /record/end`."""

    model_config = ConfigDict(extra="forbid")

    session_id: str | None = None
    completion_id: str | None = None
    status: TaskStatus | None = None
    completion_percentage: Percentage | None = None
    feedback: FeedbackSignal | None = None


class RecordingProxy:
    """Passes everything below `/v1/` on to `upstream`, and records the chat completions."""

    def __init__(self, upstream: str, recorder: ProxyRecorder) -> None:
        self._upstream = upstream.rstrip("/").removesuffix("/v1")
        self._recorder = recorder
        self._client: ClientSession | None = None

    def application(self) -> web.Application:
        """The proxy, to be run."""
        application = web.Application(client_max_size=_LARGEST_REQUEST)
        application.cleanup_ctx.append(self._connected)
        application.router.add_post("/record/end", self._end)
        application.router.add_route("*", "/v1/{path:.*}", self._pass_on)
        return application

    async def _connected(self, _application: web.Application) -> AsyncIterator[None]:
        # As long as its caller waits, the proxy waits; only an upstream that cannot be reached is an error of its own.
        patience = ClientTimeout(total=None, sock_connect=30)
        async with ClientSession(timeout=patience, auto_decompress=False, cookie_jar=DummyCookieJar()) as client:
            self._client = client
            yield

    async def _pass_on(self, request: web.Request) -> web.StreamResponse:
        assert self._client is not None  # noqa: S101  # the application is running
        body = await request.read()
        is_recorded = request.method == "POST" and request.path == RECORDED
        passing = self._recorder.began(request.headers.get("X-Session-Id"), body) if is_recorded else None
        headers = {
            name: value for name, value in request.headers.items() if name.lower() not in _OF_ONE_CONNECTION | _SET_HERE
        }
        copy = _Copy(self._recorder, passing)
        try:
            async with self._client.request(
                request.method,
                f"{self._upstream}{request.raw_path}",
                headers={**headers, "Accept-Encoding": "identity"},
                data=body or None,
                allow_redirects=False,
            ) as answer:
                return await _pass_back(request, answer, copy)
        except (ClientError, TimeoutError) as error:
            if copy.response is not None:
                # The caller sees an answer that breaks off, as it would without the proxy.
                raise ConnectionResetError("the upstream broke off") from None
            _log.warning("proxy: the upstream does not answer (%s)", type(error).__name__)
            return _error(502, "the upstream does not answer")
        finally:
            copy.hand_over()

    async def _end(self, request: web.Request) -> web.Response:
        try:
            told = _EndOfSession.model_validate_json(await request.read())
        except ValidationError as refused:
            [first, *_] = refused.errors(include_url=False, include_context=False, include_input=False)
            place = ".".join(map(str, first["loc"])) or "the body"
            return _error(400, f"{place}: {first['msg']}; status is one of {', '.join(get_args(TaskStatus))}")
        context = {"task_status": told.status, "completion_percentage": told.completion_percentage}
        known = {name: value for name, value in context.items() if value is not None}
        ended = Ended(told.session_id, told.completion_id, known, told.feedback)
        try:
            trajectory_id = await asyncio.wrap_future(self._recorder.end(ended))
        except UnknownSession as unknown:
            return _error(404, str(unknown))
        return web.json_response({"trajectory_id": trajectory_id})


class _Copy:
    """What of an answer has passed, for the recorder."""

    def __init__(self, recorder: ProxyRecorder, passing: Passing | None) -> None:
        self._recorder = recorder
        self._passing = passing
        self._parts: list[bytes] = []
        self._size = 0
        self.answer: ClientResponse | None = None
        self.response: web.StreamResponse | None = None

    def add(self, part: bytes) -> None:
        if self._passing is not None:
            self._size += len(part)
            if self._size <= _LARGEST_RECORDED:
                self._parts.append(part)

    def hand_over(self) -> None:
        """The request is over, one way or the other."""
        if self._passing is None:
            return
        answer = self.answer
        is_readable = answer is not None and answer.status == 200 and not answer.headers.get("Content-Encoding")
        if answer is None or not is_readable or self._size > _LARGEST_RECORDED or not self._parts:
            self._recorder.failed(self._passing)
        else:
            is_stream = answer.content_type == "text/event-stream"
            self._recorder.answered(self._passing, b"".join(self._parts), is_stream=is_stream)


async def _pass_back(request: web.Request, answer: ClientResponse, copy: _Copy) -> web.StreamResponse:
    copy.answer = answer
    headers = [(name, value) for name, value in answer.headers.items() if name.lower() not in _OF_ONE_CONNECTION]
    response = web.StreamResponse(status=answer.status, reason=answer.reason)
    response.headers.extend(headers)
    await response.prepare(request)
    copy.response = response
    async for part in answer.content.iter_any():
        copy.add(part)
        await response.write(part)
    await response.write_eof()
    return response


def _error(status: int, text: str) -> web.Response:
    return web.json_response({"error": {"message": text, "type": "record_proxy_error"}}, status=status)


async def run_proxy(
    proxy: RecordingProxy, host: str, port: int, *, until: Awaitable[Any], on_listening: Callable[[int], None]
) -> None:
    """Serve until `until` is done; what is under way then has a moment to end."""
    # A caller that hangs up is a caller that hangs up, upstream too.
    runner = web.AppRunner(proxy.application(), handler_cancellation=True, shutdown_timeout=5.0, access_log=None)
    await runner.setup()
    try:
        site = web.TCPSite(runner, host, port)
        await site.start()
        on_listening(int(runner.addresses[0][1]))
        await until
    finally:
        await runner.cleanup()
