"""A circuit breaker: a backend that keeps failing is left alone for a while, then tried with one request."""

FAILURES_TO_OPEN = 5
OPEN_SECONDS = 5.0


class Breaker:
    """Opens after `FAILURES_TO_OPEN` failures in a row. Asked and told about every request; times are given."""

    __slots__ = ("_failures", "_probing_until", "_shut_until")

    def __init__(self) -> None:
        self._failures = 0
        self._shut_until = 0.0
        self._probing_until = 0.0

    @property
    def is_open(self) -> bool:
        """Whether it holds requests back."""
        return self._failures >= FAILURES_TO_OPEN

    def admits(self, now: float) -> bool:
        """Whether a request may go through. While it is open, one at a time may, after a pause."""
        if self._failures < FAILURES_TO_OPEN:
            return True
        if now < self._shut_until or now < self._probing_until:
            return False
        # A probe that never reports, because its caller hung up, does not keep the next one away for ever.
        self._probing_until = now + OPEN_SECONDS
        return True

    def succeeded(self) -> None:
        """The backend answered."""
        self._failures = 0
        self._probing_until = 0.0

    def failed(self, now: float) -> None:
        """The backend failed."""
        self._failures += 1
        self._probing_until = 0.0
        if self._failures >= FAILURES_TO_OPEN:
            self._shut_until = now + OPEN_SECONDS
