"""What each model has done since the gateway started: plain numbers, changed by one thread, read by whoever asks."""

import math
from bisect import bisect_left
from collections.abc import Mapping
from typing import Literal

Ending = Literal["answered", "client_error", "failed", "hung_up"]

_STEP = 1.35
LATENCY_BOUNDS = tuple(round(0.001 * math.pow(_STEP, power), 6) for power in range(45))
"""Upper bounds of the histogram's buckets, in seconds: 1 ms to 9 minutes, each a third above the one before."""
RECENT_SECONDS = 300
_SLOT_SECONDS = 10
_SLOTS = RECENT_SECONDS // _SLOT_SECONDS
MOST_MODELS = 32
"""Figures are kept of so many; of those that are gone, the oldest are forgotten."""


class Figures:
    """The figures of one model."""

    __slots__ = (
        "_recent",
        "endings",
        "failed_sessions",
        "latency_buckets",
        "latency_sum",
        "negative_feedback",
        "sessions",
    )

    def __init__(self) -> None:
        self.endings: dict[Ending, int] = {"answered": 0, "client_error": 0, "failed": 0, "hung_up": 0}
        self.sessions = self.failed_sessions = self.negative_feedback = 0
        self.latency_buckets = [0] * (len(LATENCY_BOUNDS) + 1)
        self.latency_sum = 0.0
        self._recent = [(-1, 0, 0)] * _SLOTS

    @property
    def requests(self) -> int:
        """All that were sent to it."""
        return sum(self.endings.values())

    def add(self, ending: Ending, seconds: float, now: float) -> None:
        """A request is over; the latency of those that were answered counts."""
        self.endings[ending] += 1
        if ending == "answered":
            self.latency_buckets[bisect_left(LATENCY_BOUNDS, seconds)] += 1
            self.latency_sum += seconds
        tick = int(now // _SLOT_SECONDS)
        at, requests, errors = self._recent[tick % _SLOTS]
        if at != tick:
            requests = errors = 0
        self._recent[tick % _SLOTS] = (tick, requests + 1, errors + (ending == "failed"))

    def error_rate(self, now: float) -> float | None:
        """Failed requests of the last five minutes, as a share; None where there were none at all."""
        oldest = int(now // _SLOT_SECONDS) - _SLOTS
        recent = [(requests, errors) for at, requests, errors in self._recent if at > oldest]
        requests = sum(requests for requests, _ in recent)
        return sum(errors for _, errors in recent) / requests if requests else None

    def latency_ms(self, quantile: float) -> float | None:
        """Within a sixth of the true one; None where nothing was answered."""
        answered = sum(self.latency_buckets)
        below = 0
        for bucket, count in enumerate(self.latency_buckets):
            below += count
            if count and below >= quantile * answered:
                upper = LATENCY_BOUNDS[min(bucket, len(LATENCY_BOUNDS) - 1)]
                return 1000.0 * upper / math.sqrt(_STEP)
        return None


class FiguresByModel:
    """Figures of the models that are served, and of the last ones that were."""

    def __init__(self) -> None:
        self._by_model: dict[str, Figures] = {}

    def of(self, model_id: str) -> Figures:
        """The model's figures; new ones for a model that was never seen."""
        figures = self._by_model.get(model_id)
        if figures is None:
            figures = self._by_model[model_id] = Figures()
        return figures

    def every(self) -> Mapping[str, Figures]:
        """By model."""
        return self._by_model

    def forget_all_but(self, served: Mapping[str, object]) -> None:
        """Keep those of the served models, and of as many others as there is room for."""
        gone = [model_id for model_id in self._by_model if model_id not in served]
        for model_id in gone[: max(0, len(self._by_model) - MOST_MODELS)]:
            del self._by_model[model_id]
