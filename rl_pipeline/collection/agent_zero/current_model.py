"""Which model the gateway has in service, asked in the background: nobody ever waits for the answer."""

import json
import threading
import time
import urllib.request
from collections import deque
from collections.abc import Callable

_FRESH_SECONDS = 30.0
_AGAIN_SECONDS = 5.0
_REMEMBERED = 120
_PATIENCE_SECONDS = 5.0


class CurrentModel:
    """What `GET /v1/models` of a gateway says. Without an address it is never known."""

    def __init__(self, gateway_url: str | None, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._url = f"{gateway_url.rstrip('/').removesuffix('/v1')}/v1/models" if gateway_url else None
        if self._url and not self._url.startswith(("http://", "https://")):
            raise ValueError("the gateway's address must begin with http:// or https://")
        self._clock = clock
        self._asked = float("-inf")
        self._lock = threading.Lock()
        self._answers: deque[tuple[float, tuple[str, ...]]] = deque(maxlen=_REMEMBERED)
        """By when it was asked: a model may take minutes, and meanwhile another may come into service."""

    def now(self) -> float:
        """A moment to ask about."""
        return self._clock()

    def version(self, at: float | None = None) -> str | None:
        """The model in service, or that of the moment `at`.

        None while two share the traffic, because then nobody here knows which one answers; and where the gateway was
        asked too long before that moment, because the model may have been another by then.
        """
        moment = self._clock() if at is None else at
        with self._lock:
            known = [answer for answer in self._answers if 0 <= moment - answer[0] <= _FRESH_SECONDS]
        _, models = max(known, default=(moment, ()))
        return models[0] if len(models) == 1 else None

    def refresh(self) -> None:
        """Ask again, unless that was done just now."""
        with self._lock:
            if self._url is None or self._clock() - self._asked < _AGAIN_SECONDS:
                return
            url, asked = self._url, self._clock()
            self._asked = asked
        threading.Thread(target=self._ask, args=(url, asked), name="asks for the current model", daemon=True).start()

    def _ask(self, url: str, asked: float) -> None:
        models: tuple[str, ...] = ()  # where it does not answer: an old answer may be wrong by now
        try:
            with urllib.request.urlopen(url, timeout=_PATIENCE_SECONDS) as answer:  # noqa: S310  # http, checked above
                listed = json.load(answer)["data"]
            models = tuple(str(model["id"]) for model in listed)
        except (OSError, ValueError, KeyError, TypeError):
            pass
        with self._lock:
            self._answers.append((asked, models))
