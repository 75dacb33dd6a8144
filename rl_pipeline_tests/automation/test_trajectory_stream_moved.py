"""What the sensor does with a real stream and a real warehouse."""

from typing import Any

import dagster as dg
import pytest

from rl_pipeline.automation.trajectory_stream_moved import trajectory_stream_moved
from rl_pipeline.embedded.nats_server import NatsServer
from rl_pipeline.embedded.ports import free_port
from rl_pipeline.resources.stream import StreamResource
from rl_pipeline.resources.warehouse import WarehouseResource
from rl_pipeline.stores.clickhouse import ClickHouseWarehouse
from rl_pipeline.stores.jetstream import JetStream
from rl_pipeline.stores.stream import StreamUnavailable
from rl_pipeline.stores.warehouse import WarehouseUnavailable

SUBJECT = "agent.rl.trajectory.v1"


@pytest.fixture
def resources(
    nats_server: NatsServer, stream: JetStream, clickhouse_url: str, warehouse: ClickHouseWarehouse
) -> dict[str, Any]:
    return {
        "stream": StreamResource(url=nats_server.url),
        "warehouse": WarehouseResource(url=clickhouse_url, database=warehouse.database),
    }


def tick(resources: dict[str, Any], cursor: str | None = None) -> Any:
    return trajectory_stream_moved(dg.build_sensor_context(cursor=cursor, resources=resources))


def test_messages_that_arrived_are_observed_and_recorded(
    resources: dict[str, Any], stream: JetStream, warehouse: ClickHouseWarehouse
) -> None:
    for number in range(3):
        stream.publish(SUBJECT, b"{}", f"message-{number}")
    [observation] = tick(resources).asset_events
    assert observation.asset_key == dg.AssetKey("trajectory_stream")
    seen = {label: value.value for label, value in observation.metadata.items()}
    assert (seen["messages"], seen["last_sequence"], seen["lag"]) == (3, 3, 3)
    assert warehouse.query("SELECT messages FROM stream_observations FINAL")["messages"].to_list() == [3]


def test_a_stream_that_stands_still_is_observed_once(resources: dict[str, Any], warehouse: ClickHouseWarehouse) -> None:
    first = tick(resources)
    second = tick(resources, cursor=first.cursor)
    assert isinstance(second, dg.SkipReason)
    assert warehouse.query("SELECT count() AS n FROM stream_observations FINAL")["n"][0] == 1


def test_an_erased_message_moves_the_stream_and_is_told_from_a_lost_one(
    resources: dict[str, Any], stream: JetStream
) -> None:
    for number in range(3):
        stream.publish(SUBJECT, b"{}", f"message-{number}")
    before = tick(resources)
    stream.erase("RL_TRAJECTORIES", 2)
    [observation] = tick(resources, cursor=before.cursor).asset_events
    seen = {label: value.value for label, value in observation.metadata.items()}
    assert (seen["erased"], seen["overrun"], seen["lag"]) == (1, 0, 2)


def test_an_unreachable_server_fails_the_tick_with_what_to_do(resources: dict[str, Any]) -> None:
    nowhere = free_port()
    with pytest.raises(StreamUnavailable, match="NATS_URL"):
        tick({**resources, "stream": StreamResource(url=f"nats://127.0.0.1:{nowhere}")})
    with pytest.raises(WarehouseUnavailable, match="CLICKHOUSE_URL"):
        tick({**resources, "warehouse": WarehouseResource(url=f"http://127.0.0.1:{nowhere}", database="rl_pipeline")})
