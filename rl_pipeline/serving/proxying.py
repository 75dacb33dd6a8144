"""`/v1`: takes a request to the model of its session, and the answer back. It reads, renames and passes on; no more."""

import asyncio
import math
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import orjson
from aiohttp import web

from rl_pipeline.serving.answers import EventStream, Unreadable, answer_id, renamed
from rl_pipeline.serving.backends import Backend
from rl_pipeline.serving.figures import Ending
from rl_pipeline.serving.gateway import Gateway
from rl_pipeline.serving.responses import json_response, openai_error, openai_error_content
from rl_pipeline.serving.routing import Routing
from rl_pipeline.serving.sessions import Session, session_id_of
from rl_pipeline.serving.upstream import Answer, UpstreamFault

MOST_IN_FLIGHT = 1000
"""Requests at once; more are asked to come again."""

# What of a request's headers concerns the backend, and of an answer's the caller. Nothing else passes: what belongs to
# one connection must not, and what we do not know need not.
_PASSED_ON = ("Authorization", "OpenAI-Organization", "OpenAI-Project", "X-Request-Id", "Traceparent", "Tracestate")
_PASSED_BACK = (b"retry-after", b"x-request-id")

# What a backend answers when the caller is at fault, and not the model: the request, its key, its rights, its quota.
# The key is the caller's own, so one caller with a wrong one must not cost the model anything. A candidate may say so
# and be at fault itself (no chat template, a shorter context, a quota of its own): the model in service tells. 404 is
# the model's: the path and the name that the backend is asked for are ours.
_CALLER_AT_FAULT = frozenset({400, 401, 402, 403, 413, 415, 422, 429, 431})

_USUAL = 2.0
"""A model is slow beyond doubt when it takes so many times as long as the slowest answers of the model in service."""

_STATUS_OF_FAILURE = {
    "upstream_unreachable": 503,
    "upstream_status": 502,
    "upstream_timeout": 504,
    "upstream_broke_off": 502,
}


class _StatusFault(UpstreamFault):
    """The backend answered that it failed."""

    def __init__(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        super().__init__("upstream_status", f"it answered with status {status}")
        self.status = status
        self.body = body
        self.headers = headers


class _RequestRefused(Exception):
    """The backend answered that the caller is at fault: no failure of its own, unless another answers."""

    def __init__(self, response: web.Response) -> None:
        super().__init__(response.status)
        self.response = response


class _Deserted(UpstreamFault):
    """The caller waited for long, heard nothing, and hung up."""

    def __init__(self, hang_up: asyncio.CancelledError | ConnectionError) -> None:
        super().__init__("upstream_timeout", "it said nothing until its caller hung up")
        self.hang_up = hang_up


@dataclass(slots=True)
class _Call:
    """One request on its way."""

    request: web.BaseRequest
    body: bytes
    """As JSON, without the name of the model and what would come before it."""
    session: Session
    header_lines: str
    response: web.StreamResponse | None = None
    """What of an answer the caller has begun to receive."""
    seconds: float = 0.0
    """How long the answer took; of a stream, its beginning."""

    def note_answer(self, model_id: str, usage: object) -> None:
        """What another model had to answer is not to the credit of the session's own."""
        if model_id == self.session.model_id:
            self.session.answered(self.seconds, usage)


class ChatProxy:
    """The handlers below `/v1`."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._in_flight = 0

    async def models(self, _request: web.BaseRequest) -> web.Response:
        """`GET /v1/models`: who may answer now."""
        routing, followed = self._gateway.routing, self._gateway.following.followed
        created = int(followed.since.timestamp()) if followed else 0
        data = [
            {"id": model_id, "object": "model", "created": created, "owned_by": self._gateway.configuration.name}
            for model_id in (routing.weights if routing else ())
        ]
        return json_response({"object": "list", "data": data})

    async def feedback(self, request: web.BaseRequest) -> web.Response:
        """`POST /v1/feedback`: what the user of a session thought."""
        content = await _json_object(request)
        if isinstance(content, web.Response):
            return content
        session_id, feedback = content.get("session_id"), content.get("feedback")
        if not isinstance(session_id, str) or feedback not in ("positive", "negative"):
            return _bad_request("send session_id and feedback, which is positive or negative")
        routing, sessions = self._gateway.routing, self._gateway.sessions
        if routing is None or not sessions.rate(session_id_of(session_id), feedback, routing, time.time()):
            text = "no such session is open: publish agent.rl.feedback.v1 for what is over"
            return openai_error(404, "invalid_request_error", text, code="session_not_found")
        return json_response({"session_id": session_id_of(session_id), "feedback": feedback})

    async def chat_completions(self, request: web.BaseRequest) -> web.StreamResponse:
        """`POST /v1/chat/completions`."""
        body = await _json_object(request)
        if isinstance(body, web.Response):
            return body
        if not isinstance(body.get("messages"), list):
            return _bad_request("send messages, a list")
        body.pop("model", None)
        try:
            rest = orjson.dumps(body)[1:]
        except orjson.JSONEncodeError:
            return _bad_request("the body is nested too deeply: send one with fewer levels")
        session_id = session_id_of(request.headers.get("X-Session-Id") or body.get("user"))
        routing = self._gateway.routing
        if routing is None:
            text = "no model is in service yet: register one and give it traffic"
            return openai_error(503, "service_unavailable", text, headers={"Retry-After": "1"})
        if self._in_flight >= MOST_IN_FLIGHT:
            text = f"{MOST_IN_FLIGHT} requests are being answered: send it again in a moment"
            return openai_error(503, "overloaded", text, headers={"Retry-After": "1"})
        session = self._gateway.sessions.enter(session_id, routing, time.time())
        self._in_flight += 1
        try:
            return await self._answer(_Call(request, rest, session, _header_lines(request, session_id)), routing)
        finally:
            self._in_flight -= 1
            self._gateway.sessions.leave(session, time.time())

    async def _answer(self, call: _Call, routing: Routing) -> web.StreamResponse:
        """By the session's model; where that fails before anything was passed on, by the model in service."""
        model_id = call.session.model_id
        try:
            return await self._answer_by(model_id, call)
        except _RequestRefused as refused:
            return await self._second_opinion(call, refused.response, self._gateway.routing or routing)
        except _Deserted as deserted:
            self._gateway.sessions.fail(call.session, deserted.failure, self._gateway.routing or routing, time.time())
            raise deserted.hang_up from None
        except UpstreamFault as fault:
            routing = self._gateway.routing or routing
            self._gateway.sessions.fail(call.session, fault.failure, routing, time.time())
            if call.response is not None or model_id == routing.serving:
                return await _tell_caller(call, model_id, fault)
        try:
            return await self._answer_by(routing.serving, call)
        except _RequestRefused as refused:
            self._count(routing.serving, "client_error")
            return refused.response
        except _Deserted as deserted:
            raise deserted.hang_up from None
        except UpstreamFault as fault:
            return await _tell_caller(call, routing.serving, fault)

    async def _second_opinion(self, call: _Call, refusal: web.Response, routing: Routing) -> web.StreamResponse:
        """What the session's model refuses, the model in service is asked: if it answers, the refusal was a failure of
        the other. If it refuses too, or cannot tell, the caller is told what it was told first."""
        model_id, is_answered = call.session.model_id, False
        try:
            if model_id == routing.serving:
                return refusal
            response = await self._answer_by(routing.serving, call)
            is_answered = True
        except _RequestRefused:
            self._count(routing.serving, "client_error")
            return refusal
        except _Deserted as deserted:
            raise deserted.hang_up from None
        except UpstreamFault as fault:
            return refusal if call.response is None else await _tell_caller(call, routing.serving, fault)
        finally:
            if is_answered or call.response is not None:
                self._gateway.sessions.fail(call.session, "upstream_status", routing, time.time())
                self._count(model_id, "failed")
            else:
                self._count(model_id, "client_error")
        return response

    def _count(self, model_id: str, ending: Ending) -> None:
        """A request that was refused is over, and it is known by whose fault."""
        self._gateway.figures.of(model_id).add(ending, 0.0, time.time())

    async def _answer_by(self, model_id: str, call: _Call) -> web.StreamResponse:
        """Raises `UpstreamFault`, which the breaker and the figures know of already, and `_RequestRefused`, which is
        not counted yet."""
        figures = self._gateway.figures.of(model_id)
        backend = self._gateway.backends.by_model.get(model_id)
        ending: Ending | None = "failed"
        try:
            if backend is None:
                raise UpstreamFault("upstream_unreachable", "it is not served here")
            if not backend.breaker.admits(time.monotonic()):
                raise UpstreamFault("upstream_unreachable", "it failed too often and is left alone for a moment")
            response = await self._exchange_guarded(backend, call)
            ending = "answered"
        except _RequestRefused:
            ending = None
            raise
        except (asyncio.CancelledError, ConnectionError):
            ending = "hung_up"  # the caller did: no fault of the model
            raise
        finally:
            if ending:
                figures.add(ending, call.seconds, time.time())
        return response

    async def _exchange_guarded(self, backend: Backend, call: _Call) -> web.StreamResponse:
        """`_exchange`, of which the breaker hears."""
        started = time.perf_counter()
        try:
            response = await self._exchange(backend, call, started)
        except _RequestRefused:
            backend.breaker.succeeded()
            raise
        except UpstreamFault:
            backend.breaker.failed(time.monotonic())
            raise
        except (asyncio.CancelledError, ConnectionError) as hang_up:
            if call.response is not None or time.perf_counter() - started < self._patience():
                raise
            backend.breaker.failed(time.monotonic())
            raise _Deserted(hang_up) from None
        backend.breaker.succeeded()
        return response

    def _patience(self) -> float:
        """For how many seconds a caller may wait in vain before its hanging up speaks against the model."""
        gateway = self._gateway
        if gateway.is_stopping:
            return math.inf  # it is the gateway that hangs up
        usual_ms = gateway.figures.of(gateway.routing.serving).latency_ms(0.99) if gateway.routing else None
        return max(gateway.configuration.patient_seconds, _USUAL * (usual_ms or 0.0) / 1000)

    async def _exchange(self, backend: Backend, call: _Call, started: float) -> web.StreamResponse:
        if backend.upstream is None:
            raise UpstreamFault("upstream_unreachable", "it is not running")
        body = b'{"model":' + orjson.dumps(backend.name_there) + b"," + call.body
        answer = await backend.upstream.post("/v1/chat/completions", call.header_lines, body)
        try:
            headers = _answer_headers(answer, backend.model.model_id, call.session.session_id)
            if answer.status == 200:
                if answer.headers.get(b"content-type", b"").startswith(b"text/event-stream"):
                    return await self._stream(backend, answer, call, headers, started)
                return await self._pass_on(backend, answer, call, headers, started)
            content = await answer.body()
            if answer.status in _CALLER_AT_FAULT:
                headers["Content-Type"] = _content_type(answer)
                raise _RequestRefused(web.Response(status=answer.status, body=content, headers=headers))
            raise _StatusFault(answer.status, content, headers)
        finally:
            answer.release()

    async def _pass_on(
        self, backend: Backend, answer: Answer, call: _Call, headers: dict[str, str], started: float
    ) -> web.Response:
        model_id = backend.model.model_id
        try:
            content, usage = renamed(await answer.body(), model_id, answer_id(call.session.generation, model_id))
        except Unreadable as unreadable:
            raise UpstreamFault("upstream_broke_off", str(unreadable)) from None
        call.seconds = time.perf_counter() - started
        call.note_answer(model_id, usage)
        headers["Content-Type"] = "application/json"
        return web.Response(body=content, headers=headers)

    async def _stream(
        self, backend: Backend, answer: Answer, call: _Call, headers: dict[str, str], started: float
    ) -> web.StreamResponse:
        model_id = backend.model.model_id
        events = EventStream(model_id, answer_id(call.session.generation, model_id))
        pieces = _renamed_pieces(answer, events)
        # Nothing is promised to the caller before the backend said something.
        first = await anext(pieces, b"")
        if not first:
            raise UpstreamFault("upstream_broke_off", "its stream is empty")
        call.seconds = time.perf_counter() - started
        headers |= {"Content-Type": "text/event-stream", "Cache-Control": "no-cache"}
        call.response = response = web.StreamResponse(headers=headers)
        await response.prepare(call.request)
        await response.write(first)
        async for piece in pieces:
            await response.write(piece)
        if events.has_failed or not events.is_done:
            raise UpstreamFault("upstream_broke_off", "its stream ended before it was complete")
        call.note_answer(model_id, events.usage)
        await response.write_eof()
        return response


async def _renamed_pieces(answer: Answer, events: EventStream) -> AsyncIterator[bytes]:
    async for piece in answer.pieces():
        try:
            renamed_piece = events.feed(piece)
        except Unreadable as unreadable:
            raise UpstreamFault("upstream_broke_off", str(unreadable)) from None
        if renamed_piece:
            yield renamed_piece
    try:
        last = events.finish()
    except Unreadable as unreadable:
        raise UpstreamFault("upstream_broke_off", str(unreadable)) from None
    if last:
        yield last


async def _json_object(request: web.BaseRequest) -> dict[str, Any] | web.Response:
    try:
        content = orjson.loads(await request.read())
    except orjson.JSONDecodeError:
        return _bad_request("the body is no JSON: send an object")
    except web.HTTPRequestEntityTooLarge as refused:
        text = f"{refused.text}: send less, or let the gateway take more"
        return openai_error(413, "invalid_request_error", text, code="request_too_large")
    return content if isinstance(content, dict) else _bad_request("the body is no object: send one")


def _bad_request(text: str) -> web.Response:
    return openai_error(400, "invalid_request_error", text)


def _header_lines(request: web.BaseRequest, session_id: str) -> str:
    lines = [f"X-Session-Id: {session_id}\r\n"]
    for name in _PASSED_ON:
        value = request.headers.get(name)
        if value and value.isprintable():
            lines.append(f"{name}: {value}\r\n")
    return "".join(lines)


def _answer_headers(answer: Answer, model_id: str, session_id: str) -> dict[str, str]:
    headers = {"X-Model-Id": model_id, "X-Session-Id": session_id}
    for name in _PASSED_BACK:
        value = answer.headers.get(name)
        if value and value.isascii():
            headers[name.decode()] = value.decode()
    return headers


def _content_type(answer: Answer) -> str:
    value = answer.headers.get(b"content-type", b"application/json")
    return value.decode() if value.isascii() else "application/octet-stream"


async def _tell_caller(call: _Call, model_id: str, fault: UpstreamFault) -> web.StreamResponse:
    """A failure that is the caller's by now."""
    text = f"{model_id} failed: {fault}. Send it again; the session stays where it is unless the model is taken out"
    if call.response is not None:
        event = orjson.dumps(openai_error_content("server_error", text, fault.failure))
        await call.response.write(b"data: %s\n\n" % event)
        await call.response.write_eof()
        return call.response
    headers = {"X-Model-Id": model_id, "X-Session-Id": call.session.session_id}
    if isinstance(fault, _StatusFault):
        try:
            content = orjson.loads(fault.body)
        except orjson.JSONDecodeError:
            content = openai_error_content("server_error", text, fault.failure)
        return json_response(content, fault.status if fault.status >= 400 else 502, fault.headers)
    status = _STATUS_OF_FAILURE[fault.failure]
    return openai_error(status, "server_error", text, code=fault.failure, headers={**headers, "Retry-After": "1"})
