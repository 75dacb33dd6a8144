"""The application: one app, its routers, its OpenAPI document, and what stands before every route."""

import contextlib
import time
from collections.abc import AsyncIterator
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic.json_schema import models_json_schema

from rl_pipeline.contracts import CLAIMED_LIMITS, Feedback, Trajectory
from rl_pipeline.contracts.training_request import TrainingConfig
from rl_pipeline.observability.metrics import PipelineCollector
from rl_pipeline.observability.metrics_route import metrics_route
from rl_pipeline.service.access import needs
from rl_pipeline.service.limits import BodyCap, RateLimiter
from rl_pipeline.service.problems import MEDIA_TYPE, Problem, handle_problems
from rl_pipeline.service.routers import coordinator, deployments, experience, learning, memory, training
from rl_pipeline.service.routers.bodies import BODIES
from rl_pipeline.service.service import ServiceConfiguration, opened

_LARGEST_REQUEST = 1024 * 1024
_LARGER = {experience.TRAJECTORIES_PATH: CLAIMED_LIMITS.max_bytes}
_LATER_PREFIX = "/agentgym"
_READ_BY_ROUTES = (*BODIES, Feedback, Trajectory, TrainingConfig)
_REFUSALS = {
    "400": "The request is no strict JSON.",
    "401": "There is no key, or one that does not count.",
    "403": "The key lacks the scope.",
    "404": "There is no such thing.",
    "409": "It cannot be done as things stand.",
    "413": "The request is too large.",
    "422": "The request breaks its contract.",
    "429": "The key asks too fast.",
    "503": "A store that is needed does not answer.",
}


def build_app(configuration: ServiceConfiguration) -> FastAPI:
    """The app. Its stores are opened when it starts, and closed when it ends."""

    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async with opened(configuration) as service:
            app.state.service = service
            yield

    # No page of documentation: it would load its scripts from somebody else's server.
    app = FastAPI(
        title="rl_pipeline",
        version=configuration.version,
        description="Ask for trainings, hand in experience, look at jobs and models, order deployments, remember.",
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
    )
    app.state.limiter = RateLimiter(configuration.requests_per_second, time.monotonic)
    for each in (training, learning, memory, experience, deployments, coordinator):
        app.include_router(each.router)
    # The same under the prefix that later callers use.
    app.include_router(training.router, prefix=_LATER_PREFIX, include_in_schema=False)
    app.include_router(metrics_route(_collector(configuration)), dependencies=[needs("metrics")])
    handle_problems(app)
    app.add_middleware(BodyCap, most=_LARGEST_REQUEST, larger=_LARGER)
    app.openapi = lambda: _document(app)  # type: ignore[method-assign]  # FastAPI's own way to change it
    return app


def _collector(configuration: ServiceConfiguration) -> PipelineCollector:
    return PipelineCollector(
        open_warehouse=configuration.open_warehouse,
        open_stream=configuration.open_stream,
        trajectory_stream=configuration.trajectories,
        training_stream=configuration.training,
        streams=configuration.streams,
    )


def _document(app: FastAPI) -> dict[str, Any]:
    """The OpenAPI document: with the bodies that routes read themselves, and a problem for every refusal."""
    if app.openapi_schema is None:
        document = get_openapi(
            title=app.title, version=app.version, description=app.description, routes=app.routes, tags=app.openapi_tags
        )
        schemas = document["components"]["schemas"]
        for unused in ("HTTPValidationError", "ValidationError"):
            schemas.pop(unused, None)
        models = [(model, "validation") for model in (*_READ_BY_ROUTES, Problem)]
        _, made = models_json_schema(models, ref_template="#/components/schemas/{model}")  # type: ignore[arg-type]
        schemas.update(made["$defs"])
        for path in document["paths"].values():
            for operation in path.values():
                _add_refusals(operation["responses"])
        app.openapi_schema = document
    return app.openapi_schema


def _add_refusals(responses: dict[str, Any]) -> None:
    content = {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}}
    for status, description in _REFUSALS.items():
        own = responses.get(status, {}).get("content", {}) if status != "422" else {}
        responses[status] = {"description": description, "content": {**own, **content}}
