"""What a gateway shows of itself to those who watch it: `/health` for people, `/metrics` for Prometheus."""

import time
from collections.abc import Iterator, Mapping
from typing import Any

from aiohttp import web
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric

from rl_pipeline.serving.backends import Backend
from rl_pipeline.serving.figures import LATENCY_BOUNDS, Figures
from rl_pipeline.serving.gateway import Gateway
from rl_pipeline.serving.outbox import waiting_bytes
from rl_pipeline.serving.responses import json_response


class StatusPages:
    """The handlers of `/health` and `/metrics`."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._registry = CollectorRegistry()
        self._registry.register(self)

    async def health(self, _request: web.BaseRequest) -> web.Response:
        """200 while the model in service can answer."""
        gateway, followed = self._gateway, self._gateway.following.followed
        backends = {model_id: _backend(backend) for model_id, backend in gateway.backends.by_model.items()}
        serving = followed.in_service.model_id if followed else None
        can_answer = gateway.routing is not None and backends.get(serving or "", {}).get("status") == "ok"
        nats = self._nats()
        unkept = [change.path.name for change in gateway.following.unkept()]
        is_well = can_answer and nats["reachable"] and not unkept and not gateway.outbox.problem
        is_well = is_well and all(each["status"] == "ok" for each in backends.values())
        content = {
            "status": "ok" if is_well else "degraded" if can_answer else "unavailable",
            "gateway": gateway.configuration.name,
            "generation": gateway.following.generation,
            "since": followed.since if followed else None,
            "phase": followed.state.phase if followed else None,
            "serving": serving,
            "weights": gateway.routing.weights if gateway.routing else {},
            "fenced": sorted(gateway.following.fences),
            "unkept": unkept,
            "sessions": len(gateway.sessions),
            "nats": nats,
            "outcomes": {
                "waiting_bytes": waiting_bytes(gateway.outbox.directory),
                "dropped": gateway.outbox.dropped,
                "problem": gateway.outbox.problem or (gateway.publisher.problem if gateway.publisher else None),
            },
            "backends": backends,
        }
        return json_response(content, 200 if can_answer else 503)

    async def metrics(self, _request: web.BaseRequest) -> web.Response:
        """The text format of Prometheus."""
        headers = {"Content-Type": "text/plain; version=0.0.4; charset=utf-8"}
        return web.Response(body=generate_latest(self._registry), headers=headers)

    def collect(self) -> Iterator[Metric]:
        """What Prometheus's client asks a collector."""
        figures = self._gateway.figures.every()
        yield from _of_models(figures)
        routing = self._gateway.routing
        traffic = GaugeMetricFamily(
            "agent_rl_model_traffic_percentage", "Share of the new sessions.", labels=["model_version"]
        )
        for model_id in {*figures, *(routing.weights if routing else ())}:
            traffic.add_metric([model_id], 100 * routing.weights.get(model_id, 0.0) if routing else 0.0)
        yield traffic
        for name, text, value in (
            ("generation", "Of the desired state that is followed.", self._gateway.following.generation),
            ("open_sessions", "Sessions that are going on.", len(self._gateway.sessions)),
            ("nats_reachable", "Whether NATS answers.", int(bool(self._nats()["reachable"]))),
            ("outbox_bytes", "Outcomes on the disk.", waiting_bytes(self._gateway.outbox.directory)),
        ):
            yield GaugeMetricFamily(f"agent_rl_gateway_{name}", text, value=value)
        yield CounterMetricFamily(
            "agent_rl_gateway_outcomes_dropped", "Outcomes that found no room.", value=self._gateway.outbox.dropped
        )

    def _nats(self) -> dict[str, Any]:
        watcher = self._gateway.watcher
        if watcher is None:
            return {"reachable": False, "answered_seconds_ago": None, "problem": "this gateway has no NATS"}
        return {
            "reachable": watcher.is_reachable,
            "answered_seconds_ago": watcher.silent_seconds,
            "problem": watcher.problem,
        }


def _backend(backend: Backend) -> dict[str, Any]:
    is_running = backend.is_ready and backend.upstream is not None
    return {
        "status": "ok" if is_running and not backend.breaker.is_open else "failing" if backend.is_ready else "starting",
        "kind": "endpoint" if backend.model.endpoint else "child",
        "breaker": "open" if backend.breaker.is_open else "closed",
        "problem": backend.child.problem if backend.child else backend.problem,
    }


def _of_models(by_model: Mapping[str, Figures]) -> Iterator[Metric]:
    now, model, ending = time.time(), ["model_version"], ["model_version", "ending"]
    errors = CounterMetricFamily("agent_rl_model_errors", "Requests that a model failed.", labels=model)
    rate = GaugeMetricFamily("agent_rl_model_error_rate", "Share of them in the last five minutes.", labels=model)
    requests = CounterMetricFamily("agent_rl_gateway_requests", "Requests by how they ended.", labels=ending)
    sessions = CounterMetricFamily("agent_rl_gateway_sessions", "Sessions that a model began.", labels=model)
    failed = CounterMetricFamily("agent_rl_gateway_failed_sessions", "Those in which anything failed.", labels=model)
    latency = HistogramMetricFamily("agent_rl_gateway_answer_seconds", "Time to an answer.", labels=model)
    for model_id, figures in by_model.items():
        errors.add_metric([model_id], figures.endings["failed"])
        recent = figures.error_rate(now)
        if recent is not None:
            rate.add_metric([model_id], recent)
        for how, count in figures.endings.items():
            requests.add_metric([model_id, how], count)
        sessions.add_metric([model_id], figures.sessions)
        failed.add_metric([model_id], figures.failed_sessions)
        latency.add_metric([model_id], _cumulative(figures), figures.latency_sum)
    yield from (errors, rate, requests, sessions, failed, latency)


def _cumulative(figures: Figures) -> list[tuple[str, float]]:
    buckets, below = [], 0
    for bound, count in zip((*map(str, LATENCY_BOUNDS), "+Inf"), figures.latency_buckets, strict=True):
        below += count
        buckets.append((bound, float(below)))
    return buckets
