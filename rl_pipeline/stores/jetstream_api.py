"""Requests to JetStream with patience: what passes is retried, what does not becomes an error for people."""

import asyncio
import json
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeVar

import nats.errors
from nats.aio.msg import Msg

from rl_pipeline.errors import PipelineError
from rl_pipeline.stores.nats_connection import (
    ANSWER_SECONDS,
    Denied,
    Exchange,
    NatsConnection,
    NoResponder,
    TooLarge,
    Unanswered,
)
from rl_pipeline.stores.stream import StreamDenied, StreamMissing, StreamUnavailable

_Result = TypeVar("_Result")
Request = tuple[str, bytes, dict[str, str] | None]

RETRY_PAUSE_SECONDS = 0.1
_STREAM_NOT_FOUND = 10059
_CONSUMER_NOT_FOUND = 10014
_NAMES = re.compile(r"(STREAM|CONSUMER)(\.MSG)?\.[A-Z]+\.(?P<stream>[^.]+)(\.(?P<consumer>[^.]+).*)?")


class JetStreamRefused(PipelineError):
    """JetStream's own refusal of a request; `code` is its error code."""

    def __init__(self, text: str, code: int) -> None:
        super().__init__(text)
        self.code = code


class JetStreamApi:
    """JetStream's requests on one connection. Its coroutines run on the connection's loop."""

    def __init__(self, connection: NatsConnection, patience_seconds: float) -> None:
        self.connection = connection
        self.patience_seconds = patience_seconds
        self.answer_seconds = min(ANSWER_SECONDS, patience_seconds)

    async def request(self, operation: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """One request to JetStream's API and its answer.

        Raises `StreamMissing`, `StreamDenied`, `StreamUnavailable`, or `JetStreamRefused` for any other refusal.
        """
        data = b"" if body is None else json.dumps(body).encode()

        async def attempt() -> dict[str, Any]:
            try:
                reply = await self.connection.ask(f"$JS.API.{operation}", data, seconds=self.answer_seconds)
            except NoResponder as nobody:
                raise StreamUnavailable(
                    f"NATS at {self.connection.url} runs without JetStream: start it with jetstream enabled"
                ) from nobody
            answer: dict[str, Any] = json.loads(reply.data)
            if answer.get("error", {}).get("code") == 503:
                raise Unanswered(answer["error"]["description"])
            return answer

        answer = await self.patiently(attempt)
        if "error" in answer:
            raise _refusal(operation, answer["error"])
        return answer

    async def patiently(self, attempt: Callable[[], Awaitable[_Result]]) -> _Result:
        """The result of an attempt that may be repeated, once it is answered."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self.patience_seconds
        while True:
            try:
                return await attempt()
            except Unanswered as fault:
                if loop.time() > deadline:
                    raise self.unavailable(fault) from fault
            except Denied as denied:
                raise self.denied(denied) from denied
            await asyncio.sleep(RETRY_PAUSE_SECONDS)

    async def ask_all(self, requests: Sequence[Request]) -> list[Msg | Exception]:
        """Send all requests at once; for each its reply, or what prevented it. Nothing is retried."""
        exchanges: list[Exchange | Exception] = []
        # Each waits behind the others in the server, and a synced disk takes its time for each.
        seconds = self.answer_seconds + 0.05 * len(requests)
        try:
            async with asyncio.timeout(seconds):
                for subject, data, headers in requests:
                    try:
                        exchanges.append(await self.connection.post(subject, data, headers))
                    except (Unanswered, Denied, TooLarge, nats.errors.Error) as error:
                        exchanges.append(error)
                answers = [exchange.answer for exchange in exchanges if isinstance(exchange, Exchange)]
                if answers:
                    await asyncio.wait(answers)
        except TimeoutError:
            pass
        finally:
            for exchange in exchanges:
                if isinstance(exchange, Exchange):
                    self.connection.forget(exchange)
        unsent = [Unanswered(f"not sent within {seconds:g} s")] * (len(requests) - len(exchanges))
        return [*map(_outcome, exchanges), *unsent]

    async def nothing_takes(self, subject: str) -> bool:
        """Whether it is certain that no stream takes the subject. An account that may not look is never certain."""
        try:
            reply = await self.connection.ask(
                "$JS.API.STREAM.NAMES", json.dumps({"subject": subject}).encode(), seconds=self.answer_seconds
            )
        except (Denied, Unanswered):
            return False
        answer = json.loads(reply.data)
        return "error" not in answer and not answer["streams"]

    def unavailable(self, fault: Exception) -> StreamUnavailable:
        """For people: the patience is over."""
        return StreamUnavailable(
            f"NATS at {self.connection.url} gave no answer for {self.patience_seconds:g} s ({fault}): "
            "check that it runs (`rl-pipeline up`, NATS_URL) and try again"
        )

    def denied(self, denied: Denied) -> StreamDenied:
        """For people: the account lacks a permission."""
        return StreamDenied(f"this account may not {denied} at {self.connection.url}: use the account that may")


def missing(what: str) -> StreamMissing:
    """For people: the topology is not there."""
    return StreamMissing(f"{what} does not exist: run `rl-pipeline streams bootstrap`")


def _refusal(operation: str, error: Mapping[str, Any]) -> PipelineError:
    names = _NAMES.fullmatch(operation)
    if names and error["err_code"] == _STREAM_NOT_FOUND:
        return missing(f"the stream {names['stream']}")
    if names and error["err_code"] == _CONSUMER_NOT_FOUND:
        return missing(f"the consumer {names['consumer']} of the stream {names['stream']}")
    return JetStreamRefused(f"JetStream refuses {operation}: {error['description']}", error["err_code"])


def _outcome(exchange: Exchange | Exception) -> Msg | Exception:
    if isinstance(exchange, Exception):
        return exchange
    if not exchange.answer.done():
        return Unanswered(f"no answer on {exchange.subject} in time")
    failure = exchange.answer.exception()
    return failure if isinstance(failure, Exception) else exchange.answer.result()
