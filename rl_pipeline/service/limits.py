"""How much one caller may ask: requests by the second for each key, and bytes for each request."""

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from rl_pipeline.errors import PipelineError
from rl_pipeline.service.keys import ApiKey

ASGIApp = Callable[
    [
        MutableMapping[str, Any],
        Callable[[], Awaitable[MutableMapping[str, Any]]],
        Callable[[MutableMapping[str, Any]], Awaitable[None]],
    ],
    Awaitable[None],
]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]


class TooManyRequests(PipelineError):
    """A key has used up its rate."""

    def __init__(self, name: str, retry_after: float) -> None:
        super().__init__(f"the key {name} asks faster than it may: wait, and ask again")
        self.retry_after = retry_after


class BodyTooLarge(PipelineError):
    """A request of more bytes than its route takes."""

    def __init__(self, most: int) -> None:
        super().__init__(f"the request is larger than the {most} bytes that this route takes: send less")


class RateLimiter:
    """A bucket of one second's requests for each key, filled as time passes. Each replica counts for itself."""

    def __init__(self, requests_per_second: float, clock: Callable[[], float]) -> None:
        self._rate = requests_per_second
        self._clock = clock
        self._buckets: dict[str, tuple[float, float]] = {}

    def take(self, key: ApiKey) -> None:
        """Count a request. Raises `TooManyRequests`."""
        rate = key.requests_per_second or self._rate
        most = max(rate, 1.0)
        now = self._clock()
        left, at = self._buckets.get(key.name, (most, now))
        left = min(most, left + (now - at) * rate)
        if left < 1:
            self._buckets[key.name] = (left, now)
            raise TooManyRequests(key.name, (1 - left) / rate)
        self._buckets[key.name] = (left - 1, now)


class BodyCap:
    """Stops reading a request's body where it gets larger than its route takes, however it is sent."""

    def __init__(self, app: ASGIApp, most: int, larger: MutableMapping[str, int]) -> None:
        """`larger` are the paths that take more."""
        self._app = app
        self._most = most
        self._larger = larger

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        """Pass the request on; `BodyTooLarge` is raised where it is read."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        most = self._larger.get(scope["path"], self._most)
        read = 0

        async def capped() -> MutableMapping[str, Any]:
            nonlocal read
            message = await receive()
            read += len(message.get("body", b""))
            if read > most:
                raise BodyTooLarge(most)
            return message

        await self._app(scope, capped, send)
