"""The plain rule, as it is written in the specification."""

from datetime import timedelta

import pytest

from benchmarks.rollouts import START
from rl_pipeline.deployment.columns import Columns
from rl_pipeline.deployment.limits import Limits
from rl_pipeline.deployment.literal_rule import PlainRollback, plain_rollback
from rl_pipeline.deployment.windows import Arm, Window

GOOD = Arm(100, 5, 20, 2, (0.70,))


def found(*windows: tuple[float, Arm, Arm], minutes: float = 60) -> PlainRollback | None:
    """What the rule finds in windows, each with its seconds since the start, when it is asked after so many minutes."""
    columns = Columns.of([Window(START + timedelta(seconds=at), 0, 0.5, *arms) for at, *arms in windows])
    return plain_rollback(columns, START, START + timedelta(minutes=minutes), Limits())


@pytest.mark.parametrize(
    ("candidate", "reason"),
    [
        (Arm(100, 6, 20, 2, (0.70,)), "high_error_rate"),
        (Arm(100, 5, 20, 2, (0.64,)), "performance_degradation"),
        (Arm(100, 5, 20, 5, (0.70,)), "user_dissatisfaction"),
        (Arm(100, 6, 20, 5, (0.64,)), "high_error_rate"),
    ],
)
def test_beyond_a_limit_it_rolls_back_at_the_next_check(candidate: Arm, reason: str) -> None:
    rollback = found((600, candidate, GOOD))
    assert rollback == PlainRollback(START + timedelta(minutes=15), reason)


def test_at_the_limits_it_does_not() -> None:
    assert found((0, Arm(100, 5, 20, 4, (0.651,)), GOOD)) is None


def test_a_check_sees_the_last_five_minutes_alone() -> None:
    assert found((0, Arm(10, 1), GOOD), (280, Arm(30, 0), GOOD)) is None
    assert found((0, Arm(10, 1), GOOD), (295, Arm(30, 0), GOOD)) == PlainRollback(
        START + timedelta(minutes=5), "high_error_rate"
    )


def test_what_was_not_checked_yet_is_not_known() -> None:
    bad = (0, Arm(10, 10), GOOD)
    assert found(bad, minutes=4.9) is None
    assert found(bad, minutes=5) is not None
    assert found(minutes=5) is None


def test_without_a_control_only_errors_can_be_too_many() -> None:
    assert found((0, Arm(100, 5, 20, 20, (0.0,)), Arm())) is None
    assert found((0, Arm(100, 6, 20, 20, (0.0,)), Arm())) is not None
