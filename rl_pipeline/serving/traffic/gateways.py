"""Our gateways behind the port of the traffic: one, or several that are asked at once."""

import http.client
import json
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, TypeVar
from urllib.parse import quote, urlencode, urlsplit

from rl_pipeline.deployment.state import DesiredState, ServedModel
from rl_pipeline.deployment.traffic import ModelMetrics, Standing, TrafficRefused, TrafficUnavailable
from rl_pipeline.deployment.windows import WINDOW_SECONDS, Arm, Window, aged

_T = TypeVar("_T")


@dataclass(frozen=True)
class _Told:
    """What a gateway has told of a rollout so far. Closed windows never change, so it is asked for the rest only."""

    asked: str
    until: int = 0
    windows: tuple[Window, ...] = ()


@dataclass(frozen=True)
class Gateways:
    """All gateways that share the traffic, by their addresses (`http://host:port`)."""

    addresses: Sequence[str]
    token: str
    patience_seconds: float = 5.0
    _told: dict[str, _Told] = field(default_factory=dict, init=False, repr=False, compare=False)
    """By address."""

    def register(self, model: ServedModel) -> None:
        """See `TrafficController.register`. A gateway that does not answer learns of it by the state."""
        self._all("POST", "/admin/models", model.model_dump_json())

    def apply(self, state: DesiredState) -> None:
        """See `TrafficController.apply`."""
        self._all("PUT", "/admin/state", state.model_dump_json())

    def fence(self, model_id: str, reason: str) -> Sequence[str]:
        """See `TrafficController.fence`."""
        confirmed = self._all("POST", "/admin/fence", json.dumps({"model_id": model_id, "reason": reason}))
        return [address for address, _ in confirmed]

    def standings(self) -> Sequence[Standing]:
        """See `TrafficController.standings`."""
        return [
            Standing(address, each["generation"], each["weights"], each["fenced"], tuple(each["not_ready"]))
            for address, each in self._all("GET", "/admin/state")
        ]

    def metrics(self, model_id: str) -> ModelMetrics:
        """See `TrafficController.metrics`. Latencies and the share are those of the gateway where they are highest."""
        found = [each for _, each in self._all("GET", f"/admin/models/{quote(model_id, safe='')}/metrics")]

        def total(name: str) -> int:
            return sum(each[name] for each in found)

        def highest(name: str) -> float | None:
            return max((each[name] for each in found if each[name] is not None), default=None)

        return ModelMetrics(
            model_id=found[0]["model_id"],
            requests=total("requests"),
            errors=total("errors"),
            sessions=total("sessions"),
            failed_sessions=total("failed_sessions"),
            negative_feedback=total("negative_feedback"),
            latency_ms_p50=highest("latency_ms_p50"),
            latency_ms_p99=highest("latency_ms_p99"),
            traffic_percentage=highest("traffic_percentage") or 0.0,
        )

    def windows(self, deployment_id: str, candidate: str, control: str) -> Sequence[Window]:
        """See `TrafficController.windows`. What several gateways saw in one window is added up, once it is closed at
        all of them that answer."""
        asked = urlencode({"deployment_id": deployment_id, "candidate": candidate, "control": control})
        answers = [told for _, told in _whoever_obeys(self.addresses, lambda address: self._windows_of(address, asked))]
        until = min(told.until for told in answers)
        summed: dict[tuple[datetime, int, float], Window] = {}
        for window in (each for told in answers for each in told.windows):
            if window.start.timestamp() + WINDOW_SECONDS <= until:
                key = (window.start, window.step, window.share)
                summed[key] = summed[key].joined(window) if key in summed else window
        return [summed[key] for key in sorted(summed)]

    def _windows_of(self, address: str, asked: str) -> _Told:
        before = self._told.get(address)
        if before is None or before.asked != asked:
            before = _Told(asked)
        answer = self._call(address, "GET", f"/admin/windows?{asked}&since={before.until}", None)
        until, more = max(before.until, answer["until"]), list(map(_window, answer["windows"]))
        if any(window.start.timestamp() < before.until for window in more):
            before = _Told(asked)  # all is told again
        windows = aged([*before.windows, *more], until)
        told = self._told[address] = _Told(asked, until, tuple(windows))
        return told

    def _all(self, method: str, path: str, body: str | None = None) -> list[tuple[str, Any]]:
        """What each gateway that obeyed answered. Raises if none did."""
        return _whoever_obeys(self.addresses, lambda address: self._call(address, method, path, body))

    def _call(self, address: str, method: str, path: str, body: str | None) -> Any:
        parts = urlsplit(address)
        kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        connection = kind(parts.hostname or "", parts.port, timeout=self.patience_seconds)
        headers = {"Authorization": f"Bearer {self.token}", "Content-Type": "application/json"}
        try:
            connection.request(method, parts.path.rstrip("/") + path, body, headers)
            answer = connection.getresponse()
            content = answer.read()
        except (OSError, http.client.HTTPException) as error:
            raise TrafficUnavailable(
                f"the gateway {address} does not answer ({type(error).__name__}): see whether it runs"
            ) from error
        finally:
            connection.close()
        return _read(address, answer.status, content)


def _read(address: str, status: int, content: bytes) -> Any:
    try:
        answer = json.loads(content)
        problem = answer.get("error") or {}
        text = f"{problem.get('message', f'status {status}')}: {problem.get('next_step', 'see its log')}"
    except (ValueError, AttributeError):
        raise TrafficUnavailable(f"{address} is no gateway of ours: correct its address") from None
    if status >= 500:
        raise TrafficUnavailable(f"the gateway {address}: {text}")
    if status >= 400:
        raise TrafficRefused(f"the gateway {address}: {text}")
    return answer


def _whoever_obeys(addresses: Sequence[str], call: Callable[[str], _T]) -> list[tuple[str, _T]]:
    """Ask all at once. Where none obeys, what one of them said is raised, a refusal before a silence."""
    if not addresses:
        raise TrafficUnavailable("no gateway is known: name at least one")

    def outcome(address: str) -> _T | TrafficRefused | TrafficUnavailable:
        try:
            return call(address)
        except (TrafficRefused, TrafficUnavailable) as problem:
            return problem

    with ThreadPoolExecutor(len(addresses), thread_name_prefix="gateway") as at_once:
        outcomes = list(zip(addresses, at_once.map(outcome, addresses), strict=True))
    obeyed: list[tuple[str, _T]] = []
    problems: list[TrafficRefused | TrafficUnavailable] = []
    for address, result in outcomes:
        if isinstance(result, TrafficRefused | TrafficUnavailable):
            problems.append(result)
        else:
            obeyed.append((address, result))
    if not obeyed:
        raise min(problems, key=lambda problem: isinstance(problem, TrafficUnavailable))
    return obeyed


def _window(content: dict[str, Any]) -> Window:
    return Window(
        start=datetime.fromisoformat(content["start"]),
        step=content["step"],
        share=content["share"],
        candidate=_arm(content["candidate"]),
        control=_arm(content["control"]),
    )


def _arm(content: dict[str, Any]) -> Arm:
    return Arm(content["sessions"], content["errors"], content["rated"], content["negative"])
