"""When a backend is left alone, and when it is tried again."""

from rl_pipeline.serving.breaker import FAILURES_TO_OPEN, OPEN_SECONDS, Breaker


def opened() -> Breaker:
    breaker = Breaker()
    for _ in range(FAILURES_TO_OPEN):
        assert breaker.admits(0.0)
        breaker.failed(0.0)
    return breaker


def test_it_opens_after_failures_in_a_row_and_not_after_scattered_ones() -> None:
    breaker = Breaker()
    for _ in range(FAILURES_TO_OPEN - 1):
        breaker.failed(0.0)
    breaker.succeeded()
    breaker.failed(0.0)
    assert breaker.admits(0.0)
    assert not opened().admits(OPEN_SECONDS - 0.1)


def test_one_request_at_a_time_tries_again() -> None:
    breaker = opened()
    assert breaker.admits(OPEN_SECONDS)
    assert not breaker.admits(OPEN_SECONDS)
    breaker.failed(OPEN_SECONDS)
    assert not breaker.admits(OPEN_SECONDS + 1)
    assert breaker.admits(2 * OPEN_SECONDS)
    breaker.succeeded()
    assert breaker.admits(2 * OPEN_SECONDS)
    assert breaker.admits(2 * OPEN_SECONDS)


def test_being_held_back_does_not_prolong_it() -> None:
    breaker = opened()
    for tenth in range(int(10 * OPEN_SECONDS)):
        assert not breaker.admits(tenth / 10)
    assert breaker.admits(OPEN_SECONDS)


def test_a_try_whose_caller_hung_up_does_not_block_the_next_for_ever() -> None:
    breaker = opened()
    assert breaker.admits(OPEN_SECONDS)
    assert breaker.admits(2 * OPEN_SECONDS)
