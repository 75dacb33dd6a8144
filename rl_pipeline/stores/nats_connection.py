"""One NATS connection on an event loop of its own thread: requests and their replies for callers that are synchronous.

Nothing of JetStream belongs here. A client of our own above `nats-py`'s, because its request path hides what people
need to know: a denied request is mere silence there, and a lost connection is noticed only by a timeout.
"""

import asyncio
import concurrent.futures
import contextlib
import itertools
import logging
import os
import re
import threading
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass
from typing import Any, NoReturn, TypeVar
from urllib.parse import urlsplit

import nats.errors
from nats.aio.client import Client
from nats.aio.msg import Msg

from rl_pipeline.stores.nats_login import Login
from rl_pipeline.stores.stream import StreamUnavailable

_log = logging.getLogger(__name__)
_Result = TypeVar("_Result")

# How long one request may go unanswered before it is asked again.
ANSWER_SECONDS = 5.0
_RECONNECT_SECONDS = 0.25
_CLOSE_SECONDS = 5.0
# nats-py hands the server's text over in lower case.
_VIOLATION = re.compile(r'permissions violation for (publish|subscription) to "([^"]+)"')
_LOGIN_REFUSED = re.compile("authorization violation|authentication expired", re.IGNORECASE)


class Unanswered(Exception):
    """No answer this time: the connection was lost, or nobody replied. Asking again may help."""


class NoResponder(Unanswered):
    """The server says that nobody listens on the subject."""


class Denied(Exception):
    """The account may not do this; the text names the subject."""


class TooLarge(Exception):
    """More than the server's limit for one message; the text names the limit."""


@dataclass(eq=False, slots=True)
class Exchange:
    """A request under way: `answer` ends with the last reply, or with what prevented it."""

    token: str
    subject: str
    answer: asyncio.Future[Msg]
    is_last: Callable[[Msg], bool] | None

    def take(self, reply: Msg) -> None:
        """A reply has come."""
        if self.answer.done():
            return
        if _is_no_responder(reply):
            self.fail(NoResponder(f"nobody answers on {self.subject}"))
        elif self.is_last is None or self.is_last(reply):
            self.answer.set_result(reply)

    def fail(self, error: Exception) -> None:
        """End the exchange without an answer, unless it has one."""
        if not self.answer.done():
            self.answer.set_exception(error)
            # Whoever gave up waiting does not look at the failure any more; that is no reason for a warning.
            self.answer.exception()


class _RenewingClient(Client):
    """nats-py's client, but for a login that expires: it comes back as soon as the credentials file is renewed."""

    async def _process_err(self, err_msg: str) -> None:
        if "authentication expired" in err_msg:
            # nats-py would close for good (nats.py's issues 193 and 1019).
            await self._process_op_err(nats.errors.Error(f"nats: {err_msg}"))
        else:
            await super()._process_err(err_msg)


class NatsConnection:
    """An open connection. Methods that are coroutines run on its loop, by `run` or `submit` from any thread."""

    def __init__(self, url: str, login: Login, *, name: str, inbox_prefix: str, connect_seconds: float) -> None:
        """Connect, or raise `StreamUnavailable` or `StreamDenied` after one try of each server."""
        servers = [server.strip() for server in url.split(",")]
        self.url = ",".join(_without_login(server) for server in servers)
        self._login = login
        self._inbox_prefix = inbox_prefix
        self._exchanges: dict[str, Exchange] = {}
        self._tokens = itertools.count(1)
        self._connected_once = False
        self._closed = False
        self._inbox_denied = False
        self._failures: list[Exception] = []
        self._denied_subscriptions: set[str] = set()
        self._server_count = len(servers)
        self._replying: set[asyncio.Task[None]] = set()
        self._process = os.getpid()
        self._client = _RenewingClient()
        self._online = False
        self._offline_reason = "the connection was lost"
        self._every_server_failed = asyncio.Event()
        options = {"servers": servers, "name": name, "inbox_prefix": inbox_prefix, **login.options()}
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name=f"nats {name}", daemon=True)
        self._thread.start()
        try:
            self.run(self._connect(options, connect_seconds))
        except BaseException:
            self._stop_loop()
            raise

    @property
    def largest_message(self) -> int:
        """The server's limit for the headers and data of one message, in bytes."""
        return int(self._client.max_payload)

    @property
    def server_name(self) -> str:
        """The name of the server that this connection is on."""
        return str(self._client._server_info["server_name"])  # noqa: SLF001 - nats-py has no public name for it

    def submit(self, work: Coroutine[Any, Any, _Result]) -> concurrent.futures.Future[_Result]:
        """Start work on the loop."""
        if self._closed or os.getpid() != self._process:
            work.close()
            state = "closed" if self._closed else "another process's"
            raise StreamUnavailable(f"this connection to {self.url} is {state}: open a new one in this process")
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def run(self, work: Coroutine[Any, Any, _Result]) -> _Result:
        """Do work on the loop and wait for its result."""
        future = self.submit(work)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def close(self) -> None:
        """Send what is on its way and close. Closing twice is fine; a fork's copy is left alone."""
        if self._closed or os.getpid() != self._process:
            return
        with contextlib.suppress(TimeoutError):
            self.submit(self._disconnect()).result(_CLOSE_SECONDS)
        self._stop_loop()

    async def post(
        self,
        subject: str,
        data: bytes,
        headers: dict[str, str] | None = None,
        is_last: Callable[[Msg], bool] | None = None,
    ) -> Exchange:
        """Send a request; the first reply answers it, or the reply for which `is_last` is true.

        Every exchange must end in `forget`. Raises `Unanswered` or `TooLarge` when the request cannot leave.
        """
        size = len(data) + sum(len(key) + len(value) + 4 for key, value in (headers or {}).items()) + 12
        if size > self.largest_message:
            # Sent anyway, it would cost the whole connection: the server hangs up on it.
            raise TooLarge(f"{size} bytes are more than the server's {self.largest_message} (max_payload)")
        exchange = self._begin(subject, is_last)
        try:
            await self._client.publish(subject, data, reply=f"{self._replies}{exchange.token}", headers=headers)
        except BaseException as error:
            self.forget(exchange)
            if isinstance(error, nats.errors.ConnectionClosedError | nats.errors.OutboundBufferLimitError):
                raise Unanswered(str(error)) from error
            raise
        return exchange

    def forget(self, exchange: Exchange) -> None:
        """Stop waiting for replies."""
        self._exchanges.pop(exchange.token, None)

    async def ask(
        self, subject: str, data: bytes, *, seconds: float, is_last: Callable[[Msg], bool] | None = None
    ) -> Msg:
        """Send a request and wait for its answer. Raises `Unanswered`, `NoResponder`, `Denied` or `TooLarge`."""
        exchange: Exchange | None = None
        try:
            async with asyncio.timeout(seconds):
                exchange = await self.post(subject, data, is_last=is_last)
                return await exchange.answer
        except TimeoutError:
            raise Unanswered(f"no answer on {subject} within {seconds:g} s") from None
        finally:
            if exchange is not None:
                self.forget(exchange)

    async def pull(self, subject: str, data: bytes, *, seconds: float, is_last: Callable[[Msg], bool]) -> Msg:
        """As `ask`, for replies that keep the subject they were published on: only an inbox tells whose they are."""
        exchange = self._begin(subject, is_last)
        inbox = f"{self._replies}{exchange.token}.pull"

        async def on_reply(reply: Msg) -> None:
            exchange.take(reply)

        try:
            async with asyncio.timeout(seconds):
                subscription = await self._client.subscribe(inbox, cb=on_reply)
                try:
                    await self._client.publish(subject, data, reply=inbox)
                    return await exchange.answer
                finally:
                    await subscription.unsubscribe()
        except TimeoutError:
            raise Unanswered(f"no answer on {subject} within {seconds:g} s") from None
        except nats.errors.ConnectionClosedError as error:
            raise Unanswered(str(error)) from error
        finally:
            self.forget(exchange)

    async def subscribe(self, subject: str, queue_group: str, receive: Callable[[Msg], None]) -> Callable[[], None]:
        """Hear what is published from now on, shared among the queue group; returns what ends it."""

        async def on_message(message: Msg) -> None:
            receive(message)

        subscription = await self._client.subscribe(subject, queue=queue_group, cb=on_message)
        # nats-py's first PING overtakes what it has buffered; when the second is answered, the server knows.
        await self._client.flush()
        await self._client.flush()
        if subject.lower() in self._denied_subscriptions:
            raise Denied(f"subscribe to {subject}")
        return lambda: self.run(subscription.unsubscribe())

    def reply_later(self, request: Msg, answer: concurrent.futures.Future[bytes]) -> None:
        """Reply to a request once its answer is there. Called on the loop; a server that is gone gets none."""

        async def reply() -> None:
            try:
                await request.respond(await asyncio.wrap_future(answer))
            except (nats.errors.Error, OSError, asyncio.CancelledError) as unsent:
                _log.debug("no reply on %s: %s", request.subject, unsent)

        task = self._loop.create_task(reply())
        # The loop keeps no task alive by itself.
        self._replying.add(task)
        task.add_done_callback(self._replying.discard)

    async def _connect(self, options: dict[str, Any], seconds: float) -> None:
        options |= {
            "error_cb": self._on_error,
            "disconnected_cb": self._on_disconnected,
            "reconnected_cb": self._on_reconnected,
            "closed_cb": self._on_closed,
            "connect_timeout": seconds,
            "reconnect_time_wait": _RECONNECT_SECONDS,
            "max_reconnect_attempts": -1,
            "flush_timeout": ANSWER_SECONDS,
        }
        connecting = asyncio.ensure_future(self._client.connect(**options))
        failing = asyncio.ensure_future(self._every_server_failed.wait())
        await asyncio.wait({connecting, failing}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        failing.cancel()
        if not connecting.done():
            connecting.cancel()
            await asyncio.wait({connecting})
            await self._client.close()
            self._refuse_connection()
        try:
            connecting.result()
        except (nats.errors.Error, ValueError) as error:
            raise StreamUnavailable(f"{self.url} is no usable address of NATS ({error}): set NATS_URL") from error
        self._replies = f"{self._client.new_inbox()}."
        await self._client.subscribe(f"{self._replies}*", cb=self._on_reply)
        await self._client.flush()
        self._connected_once = True
        self._online = True

    def _refuse_connection(self) -> NoReturn:
        reason = self._failures[-1] if self._failures else "no answer in time"
        if any(_LOGIN_REFUSED.search(str(failure)) for failure in self._failures):
            raise self._login.refusal(self.url)
        refused = isinstance(reason, ConnectionRefusedError)
        why = "connection refused" if refused else str(reason) or type(reason).__name__
        raise StreamUnavailable(
            f"NATS does not answer at {self.url} ({why}): start it with `rl-pipeline up`, or set NATS_URL"
        )

    async def _disconnect(self) -> None:
        # A server that is gone takes no goodbye.
        with contextlib.suppress(nats.errors.Error, OSError):
            if self._client.is_connected:
                await self._client.flush(timeout=2)
            await self._client.close()
        rest = asyncio.all_tasks() - {asyncio.current_task()}
        for task in rest:
            task.cancel()
        await asyncio.gather(*rest, return_exceptions=True)

    def _stop_loop(self) -> None:
        self._closed = True
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _begin(self, subject: str, is_last: Callable[[Msg], bool] | None) -> Exchange:
        if self._inbox_denied:
            raise self._inbox_denial()
        if not self._online:
            raise Unanswered(f"not connected: {self._offline_reason}")
        exchange = Exchange(str(next(self._tokens)), subject, self._loop.create_future(), is_last)
        self._exchanges[exchange.token] = exchange
        return exchange

    async def _on_reply(self, reply: Msg) -> None:
        exchange = self._exchanges.get(reply.subject[len(self._replies) :])
        if exchange is not None:
            exchange.take(reply)

    async def _on_error(self, error: Exception) -> None:
        violation = _VIOLATION.search(str(error))
        if violation:
            self._on_violation(*violation.groups())
        elif not self._connected_once:
            self._failures.append(error)
            # A server that hangs up on a wrong login often does so before its reason was read: the next try tells.
            told = [failure for failure in self._failures if not isinstance(failure, ConnectionResetError)]
            if len(told) >= self._server_count:
                self._every_server_failed.set()
        else:
            self._offline_reason = str(error) or type(error).__name__
            _log.debug("NATS at %s: %s", self.url, error)

    def _on_violation(self, action: str, subject: str) -> None:
        if action == "publish":
            for exchange in self._waiting():
                if exchange.subject.lower() == subject:
                    exchange.fail(Denied(f"publish to {exchange.subject}"))
        elif subject.startswith(self._inbox_prefix.lower() + "."):
            self._inbox_denied = True
            for exchange in self._waiting():
                exchange.fail(self._inbox_denial())
        else:
            self._denied_subscriptions.add(subject)

    def _inbox_denial(self) -> Denied:
        return Denied(f"receive replies under {self._inbox_prefix}.> (pass the account's own inbox_prefix)")

    def _waiting(self) -> Iterator[Exchange]:
        return iter(list(self._exchanges.values()))

    def _lose_exchanges(self, reason: str) -> None:
        for exchange in self._waiting():
            exchange.fail(Unanswered(reason))

    async def _on_disconnected(self) -> None:
        self._online = False
        if self._client.is_reconnecting:
            _log.warning("lost NATS at %s; reconnecting", self.url)
        self._lose_exchanges("the connection was lost")

    async def _on_reconnected(self) -> None:
        _log.warning("NATS at %s is back", self.url)
        self._online = True

    async def _on_closed(self) -> None:
        self._lose_exchanges("the connection was closed")


def _is_no_responder(reply: Msg) -> bool:
    """Whether this is the server's own notice, and no stored message whose publisher gave it such a header.

    A stored message comes either with a subject to settle it, or with its sequence in a header that the server adds.
    """
    headers = reply.headers or {}
    return headers.get("Status") == "503" and not (reply.data or reply.reply or "Nats-Sequence" in headers)


def _without_login(url: str) -> str:
    parts = urlsplit(url)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()
