"""`GET /metrics` for whoever serves HTTP with FastAPI; who may ask is up to the application that includes it."""

from typing import Any

from fastapi import APIRouter, Response
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.registry import Collector

_TEXT: dict[int | str, dict[str, Any]] = {
    200: {"description": "Figures.", "content": {"text/plain": {"schema": {"type": "string"}}}}
}


def metrics_route(collector: Collector) -> APIRouter:
    """The route, with the collector's figures and those of this process. Nothing is read before it is asked for."""
    registry = CollectorRegistry()
    registry.register(collector)
    ProcessCollector(registry=registry)
    router = APIRouter(tags=["observability"])

    # No coroutine: reading waits for the stores, and must not hold up whoever else is served.
    @router.get("/metrics", summary="Figures for Prometheus", response_class=Response, responses=_TEXT)
    def metrics() -> Response:
        """All figures, in the text format of Prometheus."""
        return Response(generate_latest(registry), media_type=CONTENT_TYPE_LATEST)

    return router
