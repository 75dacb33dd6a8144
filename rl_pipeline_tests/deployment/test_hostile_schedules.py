"""Whatever dies, races, is stale or away: in the end no bad model serves, and everybody agrees what does."""

from collections import Counter
from collections.abc import Callable

import pytest

from rl_pipeline_tests.deployment.hostile_schedules import Chances, HostileSchedule
from rl_pipeline_tests.deployment.naive_schedule import NaiveSchedule


@pytest.mark.soak
@pytest.mark.timeout(3000)
def test_no_schedule_leaves_a_bad_model_serving_a_difference_or_a_hole_in_the_audit(
    soak_count: Callable[[int, int], int], record_property: Callable[[str, object], None]
) -> None:
    happened: Counter[str] = Counter()
    violated = {}
    count = soak_count(200, 20_000)
    for seed in range(count):
        schedule = HostileSchedule(seed)
        if violations := schedule.run():
            violated[seed] = violations
        happened += schedule.happened
        happened.update(f"states {state.change.event}" for state in schedule.states.recorded)
        happened["rollouts interrupted"] += sum(
            "interrupted" in each.change.evidence for each in schedule.states.recorded
        )
    assert not violated
    # What never happens proves nothing.
    everything = ("deaths", "lost answers", "records lost", "records set back", "orders", "states restored")
    assert min(happened[what] for what in (*everything, "states rolled_back", "states promoted")) > count / 10
    assert happened["releases validated again"] > count / 20
    assert happened["states rechecked"] > count / 10
    assert happened["fenced because the control could not be brought back"] > count / 200
    assert happened["rollouts interrupted"] > count / 50
    assert happened["states rechecked"] > count / 50
    record_property("schedules", count)
    for what, times in sorted(happened.items()):
        record_property(what, times)


@pytest.mark.soak
@pytest.mark.timeout(3000)
def test_the_control_that_changes_traffic_and_then_saves_leaves_bad_models_serving(
    soak_count: Callable[[int, int], int], record_property: Callable[[str, object], None]
) -> None:
    rough, count = Chances(outage=0.02, record_lost=0, record_set_back=0), soak_count(100, 2_000)
    violated = [violations for seed in range(count) if (violations := NaiveSchedule(seed, rough).run())]
    left_serving = sum(any("bad" in each for each in violations) for violations in violated)
    assert left_serving >= count / 20
    assert [violations for seed in range(count // 2) for violations in HostileSchedule(seed, rough).run()] == []
    record_property("schedules of the naive order", count)
    record_property("of them with a bad model left serving", left_serving)
