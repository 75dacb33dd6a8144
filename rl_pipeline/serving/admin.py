"""`/admin`: the specification's administration of models and traffic, for whoever has the token."""

import asyncio
import hmac
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict
from typing import Annotated, Any, TypeVar

from aiohttp import web
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from rl_pipeline.contracts.fields import Identifier, Percentage
from rl_pipeline.deployment.state import DesiredState, ServedModel
from rl_pipeline.deployment.traffic import ModelMetrics
from rl_pipeline.errors import PipelineError
from rl_pipeline.serving.following import Refused
from rl_pipeline.serving.gateway import Gateway, NotKept
from rl_pipeline.serving.responses import json_response, refusal
from rl_pipeline.serving.upstream import Address, EndpointInvalid
from rl_pipeline.stores.stream import PublishRefused, StreamDenied, StreamUnavailable
from rl_pipeline.stores.warehouse import WarehouseUnavailable

CHANGE_SECONDS = 5.0
"""How long a change of the desired state may take before NATS counts as away."""

_MOST_DIGITS = 20
"""Of a time; what is longer is none, and Python reads no more than 4,300 of them."""

_log = logging.getLogger(__name__)

Handler = Callable[[web.BaseRequest], Awaitable[web.Response]]


class _Asked(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class FenceAsked(_Asked):
    """`POST /admin/fence`."""

    model_id: Identifier
    reason: Annotated[str, Field(min_length=1, max_length=4096)]


class TrafficAsked(_Asked):
    """`PUT /admin/traffic`."""

    model_id: Identifier
    traffic_percentage: Percentage


_Body = TypeVar("_Body", bound=BaseModel)


class _BadRequest(PipelineError):
    """What was sent is not what is asked for here."""


class _RecordAway(PipelineError):
    """The desired state cannot be changed now, whoever asks."""

    def __init__(self, status: int, why: str, advice: str) -> None:
        super().__init__(f"{why}, and without it traffic can only be taken from a candidate: {advice}")
        self.status = status
        self.why = why


_STATUS: dict[type[PipelineError], int] = {_BadRequest: 400, Refused: 409, EndpointInvalid: 409, NotKept: 507}


class AdminApi:
    """The handlers below `/admin`."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._token = gateway.configuration.admin_token.encode()

    async def handle(self, request: web.BaseRequest) -> web.Response:
        """Whatever is asked below `/admin`, behind the token."""
        given = request.headers.get("Authorization", "").encode("utf-8", "surrogateescape")
        if not hmac.compare_digest(given, b"Bearer " + self._token):
            return refusal(401, "this needs the gateway's admin token: send it as Authorization: Bearer <token>")
        handler = self._handler(request.method, request.path)
        if handler is None:
            return refusal(404, f"there is no {request.method} here: see GET /admin/models")
        try:
            return await handler(request)
        except (_BadRequest, Refused, EndpointInvalid, NotKept) as problem:
            return refusal(_STATUS[type(problem)], str(problem))
        except web.HTTPRequestEntityTooLarge as too_large:
            return refusal(413, f"{too_large.text}: send less")

    def _handler(self, method: str, path: str) -> Handler | None:
        if method == "GET" and path.startswith("/admin/models/") and path.endswith("/metrics"):
            return self.metrics
        table: dict[tuple[str, str], Handler] = {
            ("POST", "/admin/models"): self.register,
            ("GET", "/admin/models"): self.models,
            ("PUT", "/admin/traffic"): self.change_traffic,
            ("POST", "/admin/fence"): self.fence,
            ("PUT", "/admin/state"): self.follow,
            ("GET", "/admin/state"): self.standing,
            ("GET", "/admin/windows"): self.windows,
        }
        return table.get((method, path))

    async def register(self, request: web.BaseRequest) -> web.Response:
        """Make a model known, so that it is ready when it is given traffic."""
        model = await _read(request, ServedModel)
        if model.endpoint:
            Address.parse(model.endpoint)
        elif not model.checkpoint_path:
            raise _BadRequest("a model needs a place to be served from: send checkpoint_path or endpoint")
        await self._gateway.register(model)
        return json_response(self._model(model), 201)

    async def models(self, _request: web.BaseRequest) -> web.Response:
        """Every model that may have to answer."""
        return json_response({"models": [self._model(model) for model in self._gateway.following.models().values()]})

    async def metrics(self, request: web.BaseRequest) -> web.Response:
        """What one model has done; `current` is the one in service."""
        model_id = request.path.removeprefix("/admin/models/").removesuffix("/metrics")
        followed = self._gateway.following.followed
        if model_id == "current" and followed:
            model_id = followed.in_service.model_id
        if model_id not in self._gateway.figures.every() and model_id not in self._gateway.following.models():
            return refusal(404, "this gateway knows no such model: see GET /admin/models")
        figures, routing = self._gateway.figures.of(model_id), self._gateway.routing
        metrics = ModelMetrics(
            model_id=model_id,
            requests=figures.requests,
            errors=figures.endings["failed"],
            sessions=figures.sessions,
            failed_sessions=figures.failed_sessions,
            negative_feedback=figures.negative_feedback,
            latency_ms_p50=figures.latency_ms(0.5),
            latency_ms_p99=figures.latency_ms(0.99),
            traffic_percentage=100 * routing.weights.get(model_id, 0.0) if routing else 0.0,
        )
        return json_response({**asdict(metrics), "error_rate": figures.error_rate(time.time())})

    async def fence(self, request: web.BaseRequest) -> web.Response:
        """Give a model nothing from now on."""
        asked = await _read(request, FenceAsked)
        await self._gateway.fence(asked.model_id, asked.reason)
        return json_response(self._standing())

    async def follow(self, request: web.BaseRequest) -> web.Response:
        """Go by a desired state, if it is newer than the one that is followed."""
        is_newer = await self._gateway.follow(await _read(request, DesiredState))
        return json_response({**self._standing(), "applied": is_newer})

    async def standing(self, _request: web.BaseRequest) -> web.Response:
        """How this gateway routes now."""
        return json_response(self._standing())

    async def windows(self, request: web.BaseRequest) -> web.Response:
        """The outcomes of two models' sessions, window by window, as far as this gateway remembers them; all windows
        that end by `until` are closed. Whoever has heard these asks for the rest with them as `since`."""
        candidate, control = request.query.get("candidate"), request.query.get("control")
        if not candidate or not control:
            raise _BadRequest("two models are compared: name candidate and control in the query")
        deployment_id, since = request.query.get("deployment_id"), request.query.get("since", "0")
        if not since.isdecimal() or len(since) > _MOST_DIGITS:
            raise _BadRequest("since is no time: send the until of an earlier answer")
        now, memory = time.time(), self._gateway.memory

        def told() -> web.Response:
            windows = memory.windows(candidate, control, now, deployment_id, since=int(since))
            return json_response({"windows": windows, "until": memory.closed_until(now)})

        # A day has thousands of windows: callers do not wait until they are told to somebody who has heard of none.
        return await asyncio.to_thread(told)

    async def change_traffic(self, request: web.BaseRequest) -> web.Response:
        """Give a model a share of the traffic, by way of the desired state.

        What takes a candidate out waits for no store: the candidate is fenced here before anybody is asked to record
        it, and whoever looks next writes what could not be. Everything else needs the record.
        """
        asked, following = await _read(request, TrafficAsked), self._gateway.following
        # Of a promoted model's predecessors this gateway knows none any more, but the record does.
        may_have_served = asked.traffic_percentage == 100 and asked.model_id not in following.fences
        if asked.model_id not in following.models() and not may_have_served:
            return refusal(404, "this gateway knows no such model, or fenced it: register it with POST /admin/models")
        fenceable = self._what_a_fence_can_do(asked)
        is_out = any(following.weights.get(model_id) for model_id in fenceable or ())
        not_kept = await self._fence_all(fenceable or (), asked) if is_out else None
        try:
            state = await self._recorded(asked)
        except _RecordAway as away:
            if fenceable is None:
                return refusal(away.status, str(away))
            not_kept = not_kept or await self._fence_all(fenceable, asked)
            answer = self._traffic(asked, pending=away.why)
        except PipelineError as refused:
            if not is_out:
                return refusal(409, str(refused))
            answer = self._traffic(asked, pending=str(refused))
        else:
            await self._gateway.follow(state)
            answer = self._traffic(asked)
        if not_kept:
            raise not_kept
        return json_response(answer)

    async def _recorded(self, asked: TrafficAsked) -> DesiredState:
        """The new state. Raises `_RecordAway`, and another `PipelineError` for what may not be done."""
        change, watcher = self._gateway.configuration.change_traffic, self._gateway.watcher
        if not (change and watcher and watcher.is_reachable):
            raise _RecordAway(503, "NATS is away", "try again once it is back")
        try:
            async with asyncio.timeout(CHANGE_SECONDS):
                return await change(asked.model_id, asked.traffic_percentage)
        except (StreamUnavailable, TimeoutError):
            _log.warning("NATS went away while the traffic was being changed")
            raise _RecordAway(503, "NATS is away", "try again once it is back") from None
        except WarehouseUnavailable:
            why = "ClickHouse, where changes are audited, is away"
            raise _RecordAway(503, why, "try again once it is back") from None
        except (PublishRefused, StreamDenied):
            why = "this gateway's login at NATS may not change the desired state"
            advice = "use rl-pipeline deployment, or run the gateway as gateway_admin"
            raise _RecordAway(403, why, advice) from None

    async def _fence_all(self, models: Sequence[str], asked: TrafficAsked) -> NotKept | None:
        """Give the models nothing from now on. A full disk is told of once everything else is done."""
        not_kept = None
        for model_id in models:
            reason = f"PUT /admin/traffic gave {asked.model_id} {asked.traffic_percentage:g} %"
            try:
                await self._gateway.fence(model_id, reason)
            except NotKept as problem:
                not_kept = problem
        return not_kept

    def _what_a_fence_can_do(self, asked: TrafficAsked) -> list[str] | None:
        """The models that have to be fenced to obey; None where that would not do."""
        followed = self._gateway.following.followed
        if followed is None:
            return None
        in_service = followed.in_service.model_id
        if asked.model_id == in_service and asked.traffic_percentage == 100:
            return [model_id for model_id in self._gateway.following.weights if model_id != in_service]
        if asked.model_id != in_service and asked.traffic_percentage == 0:
            return [asked.model_id]
        return None

    def _traffic(self, asked: TrafficAsked, *, pending: str | None = None) -> dict[str, Any]:
        told = {
            "model_id": asked.model_id,
            "traffic_percentage": 100 * self._gateway.following.weights.get(asked.model_id, 0.0),
            "generation": self._gateway.following.generation,
            "recorded": pending is None,
        }
        return told if pending is None else {**told, "pending": f"it holds here, and is not recorded yet: {pending}"}

    def _standing(self) -> dict[str, Any]:
        gateway, following = self._gateway, self._gateway.following
        followed = following.followed
        return {
            "gateway": gateway.configuration.name,
            "generation": following.generation,
            "since": followed.since if followed else None,
            "serving": followed.in_service.model_id if followed else None,
            "weights": following.weights,
            "fenced": {model_id: fence.reason for model_id, fence in following.fences.items()},
            "not_ready": sorted(gateway.backends.not_ready),
        }

    def _model(self, model: ServedModel) -> dict[str, Any]:
        backend, routing = self._gateway.backends.by_model.get(model.model_id), self._gateway.routing
        return {
            **model.model_dump(exclude_none=True),
            "ready": bool(backend and backend.is_ready),
            "traffic_percentage": 100 * routing.weights.get(model.model_id, 0.0) if routing else 0.0,
        }


async def _read(request: web.BaseRequest, kind: type[_Body]) -> _Body:
    try:
        return kind.model_validate_json(await request.read())
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        where = ".".join(map(str, first["loc"])) or "the body"
        raise _BadRequest(f"{where} is not as it should be: {first['msg']}") from None
