"""`GET /metrics` for whoever serves HTTP with FastAPI. It needs no key: it reads, and holds numbers and no text."""

from fastapi import APIRouter, Response
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.registry import Collector


def metrics_route(collector: Collector) -> APIRouter:
    """The route, with the collector's figures and those of this process. Nothing is read before it is asked for."""
    registry = CollectorRegistry()
    registry.register(collector)
    ProcessCollector(registry=registry)
    router = APIRouter()

    # No coroutine: reading waits for the stores, and must not hold up whoever else is served.
    @router.get("/metrics", tags=["observability"], summary="Figures for Prometheus", response_class=Response)
    def metrics() -> Response:
        return Response(generate_latest(registry), media_type=CONTENT_TYPE_LATEST)

    return router
