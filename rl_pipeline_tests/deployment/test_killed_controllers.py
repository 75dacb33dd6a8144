"""A controller that is killed anywhere leaves nothing that the next one does not complete, on the real stores."""

import time
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from rl_pipeline.embedded.nats_server import NatsServer
from rl_pipeline.stores.clickhouse import ClickHouseWarehouse
from rl_pipeline.stores.jetstream import JetStream
from rl_pipeline_tests.deployment.controller_process import POINTS
from rl_pipeline_tests.deployment.kept_place import KeptPlace, line_of


@pytest.fixture
def place(
    stream: JetStream, warehouse: ClickHouseWarehouse, nats_server: NatsServer, clickhouse_url: str, tmp_path: Path
) -> KeptPlace:
    return KeptPlace(stream, warehouse, nats_server.url, clickhouse_url, tmp_path / "gateway.json")


@pytest.mark.soak
def test_a_controller_that_is_killed_anywhere_leaves_nothing_undone(
    place: KeptPlace, soak_count: Callable[[int, int], int], record_property: Callable[[str, object], None]
) -> None:
    kills = soak_count(3, 50)
    chance = Random(20260302)
    at_points = at_random = 0
    while at_points + at_random < kills:
        place.release()
        point = POINTS[at_points % len(POINTS)] if at_points <= at_random else None
        with place.controller_process(point) as process:
            if point is None:
                time.sleep(chance.uniform(0, 1))
            elif line_of(process) != f"AT {point}":
                continue  # a good model is never fenced: the next one is bad
            process.kill()
            process.wait()
            underway = line_of(process) != "DONE"
            at_points += underway and point is not None
            at_random += underway and point is None
    with place.controller_process() as process:
        assert line_of(process) == "DONE"
    generations = place.check()
    record_property("kill -9 of the controller at named points", at_points)
    record_property("at random moments", at_random)
    record_property("generations", generations)
