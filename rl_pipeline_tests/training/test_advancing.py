"""The whole life of jobs: in a world of faults, and through the real stream, warehouse and lease."""

import random
from collections import Counter
from collections.abc import Callable

import pytest

from rl_pipeline.training.jobs import FINAL_STATES, VALID_TRANSITIONS, State
from rl_pipeline_tests.training.simulated_training import QUIET, Chances, SimulatedTraining


@pytest.mark.soak
def test_every_job_comes_to_exactly_one_end_whatever_happens_when(
    soak_count: Callable[[int, int], int], record_property: Callable[[str, object], None]
) -> None:
    walked, deaths, jobs = Counter[tuple[State, State]](), 0, 0
    schedules = soak_count(60, 2000)
    for seed in range(schedules):
        world = SimulatedTraining(random.Random(seed), Chances())
        for _ in range(150):
            world.pass_time()
        world.chances = QUIET
        for _ in range(3000):
            if not world._unfinished():
                break
            world.pass_time()
        walked += world.walked
        deaths += world.deaths
        jobs += len(world.jobs)
        for job in world.jobs.values():
            assert job.state in FINAL_STATES, f"schedule {seed}: {job}"
            ends = {end for end in FINAL_STATES if f"status/{job.job_id}/{end}" in world.said}
            assert ends == {job.state}, f"schedule {seed}: {job.job_id} was said to be {ends}"
        assert all(run.attempt is None for run in world.runs.values()), f"schedule {seed}: a program was left"
        assert all(not attempt.is_open for attempt in world.attempts.values()), f"schedule {seed}: a place was left"
    record_property("schedules", schedules)
    record_property("jobs", jobs)
    record_property("deaths of the sensor", deaths)
    assert set(walked) == {(state, after) for state, following in VALID_TRANSITIONS.items() for after in following}
