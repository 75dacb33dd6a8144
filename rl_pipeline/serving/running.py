"""Runs a gateway from its start to its end."""

import asyncio
import contextlib
import fcntl
import logging
import resource
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from rl_pipeline.serving.admin import AdminApi
from rl_pipeline.serving.configuration import GatewayConfiguration, GatewayMisconfigured
from rl_pipeline.serving.gateway import Gateway
from rl_pipeline.serving.proxying import MOST_IN_FLIGHT, ChatProxy
from rl_pipeline.serving.responses import openai_error, refusal
from rl_pipeline.serving.status_pages import StatusPages
from rl_pipeline.serving.stopping import told_to_stop
from rl_pipeline.serving.upstream import GatewayExhausted

FILES_BESIDE_REQUESTS = 64
"""What a gateway may have open that is no request's: files, NATS, children, and the admin API's connections."""

Handler = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]


async def run_gateway(configuration: GatewayConfiguration) -> None:
    """Serve until SIGTERM, SIGINT or cancellation; then finish what is running and stop.

    Raises `GatewayMisconfigured` and `KeptFileUnreadable` when it cannot start.
    """
    with _alone_in(configuration.data_directory):
        gateway = Gateway(configuration)
        runner = web.ServerRunner(front(gateway, _requests_at_once()), shutdown_timeout=configuration.drain_seconds)
        try:
            await gateway.begin()
            await runner.setup()
            site = web.TCPSite(runner, configuration.host, configuration.port, backlog=1024)
            try:
                await site.start()
            except OSError as error:
                raise GatewayMisconfigured(
                    f"{configuration.host}:{configuration.port} cannot be listened on ({error.strerror}): "
                    "choose another port"
                ) from error
            configuration.on_listening(runner.addresses[0][1])
            await told_to_stop()
        finally:
            gateway.is_stopping = True
            await runner.cleanup()
            await gateway.end()


def front(gateway: Gateway, requests_at_once: int = MOST_IN_FLIGHT) -> web.Server:
    """The gateway's HTTP server. A table finds the handlers: it is on the path of every request."""
    chat, pages, admin = ChatProxy(gateway), StatusPages(gateway), AdminApi(gateway)
    table: dict[tuple[str, str], Handler] = {
        ("POST", "/v1/chat/completions"): _bounded(chat.chat_completions, requests_at_once),
        ("GET", "/v1/models"): chat.models,
        ("POST", "/v1/feedback"): chat.feedback,
        ("GET", "/health"): pages.health,
        ("GET", "/metrics"): pages.metrics,
    }

    async def handle(request: web.BaseRequest) -> web.StreamResponse:
        handler = table.get((request.method, request.raw_path)) or table.get((request.method, request.path))
        if handler is not None:
            return await handler(request)
        if request.path.startswith("/admin/"):
            return await admin.handle(request)
        if request.path.startswith("/v1/"):
            text = f"there is no {request.method} here: see GET /v1/models"
            return openai_error(404, "invalid_request_error", text)
        return refusal(404, f"there is no {request.method} here: see GET /health")

    log = logging.getLogger(f"{__name__}.http")
    log.addFilter(_WITHOUT_REQUESTS)
    loop, largest = asyncio.get_running_loop(), gateway.configuration.largest_body_bytes
    return web.Server(
        handle,
        request_factory=lambda message, payload, protocol, writer, task: web.BaseRequest(
            message, payload, protocol, writer, task, loop, client_max_size=largest
        ),
        handler_cancellation=True,
        access_log=None,
        logger=log,
    )


def _requests_at_once() -> int:
    """How many there are files for, of which each request needs two; the system's limit is used up to its end."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    # Where the system refuses, the old limit is what there is.
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return MOST_IN_FLIGHT
    return max(1, min(MOST_IN_FLIGHT, (soft - FILES_BESIDE_REQUESTS) // 2))


def _bounded(handler: Handler, most: int) -> Handler:
    """The handler for so many requests at once. Further ones come again; none is a failure of a model."""
    in_flight = 0

    async def handle(request: web.BaseRequest) -> web.StreamResponse:
        nonlocal in_flight
        if in_flight >= most:
            return _overloaded(f"{most} requests are being answered: send it again in a moment")
        in_flight += 1
        try:
            return await handler(request)
        except GatewayExhausted as exhausted:
            return _overloaded(f"{exhausted}: send it again in a moment, and raise the gateway's limit of open files")
        finally:
            in_flight -= 1

    return handle


def _overloaded(text: str) -> web.Response:
    return openai_error(503, "overloaded", text, headers={"Retry-After": "1"})


class _WithoutRequests(logging.Filter):
    """Keeps out of the log what callers wrote: the error of a request that is no HTTP quotes it."""

    def filter(self, record: logging.LogRecord) -> bool:
        """All records pass; those errors without their text."""
        error = record.exc_info[1] if record.exc_info else None
        if isinstance(error, HttpProcessingError):
            record.msg, record.args, record.exc_info = "a request is no HTTP (%s)", (type(error).__name__,), None
        return True


_WITHOUT_REQUESTS = _WithoutRequests()


@contextlib.contextmanager
def _alone_in(directory: Path) -> Iterator[None]:
    directory.mkdir(parents=True, exist_ok=True)
    with (directory / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise GatewayMisconfigured(f"another gateway keeps its state in {directory}: choose another") from None
        yield
