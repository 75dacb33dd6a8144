"""Which model the gateway has in service, asked in the background: nobody ever waits for the answer."""

import json
import threading
import time
import urllib.request
from collections.abc import Callable

_FRESH_SECONDS = 30.0
_PATIENCE_SECONDS = 5.0


class CurrentModel:
    """What `GET /v1/models` of a gateway said last. Without an address it is never known."""

    def __init__(self, gateway_url: str | None, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._url = f"{gateway_url.rstrip('/').removesuffix('/v1')}/v1/models" if gateway_url else None
        if self._url and not self._url.startswith(("http://", "https://")):
            raise ValueError("the gateway's address must begin with http:// or https://")
        self._clock = clock
        self._asked: float | None = None
        self._lock = threading.Lock()
        self._models: tuple[str, ...] = ()

    def version(self) -> str | None:
        """The model in service; None while two share the traffic, because then nobody here knows which one answers."""
        return self._models[0] if len(self._models) == 1 else None

    def refresh(self) -> None:
        """Ask again, unless that was done just now."""
        with self._lock:
            if self._url is None or (self._asked is not None and self._clock() - self._asked < _FRESH_SECONDS):
                return
            self._asked = self._clock()
        threading.Thread(target=self._ask, args=(self._url,), name="asks for the current model", daemon=True).start()

    def _ask(self, url: str) -> None:
        try:
            with urllib.request.urlopen(url, timeout=_PATIENCE_SECONDS) as answer:  # noqa: S310  # http, checked above
                listed = json.load(answer)["data"]
            self._models = tuple(str(model["id"]) for model in listed)
        except (OSError, ValueError, KeyError, TypeError):
            self._models = ()  # an old answer may be wrong by now
