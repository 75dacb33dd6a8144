"""What an observation of the stream says."""

from dataclasses import replace
from datetime import UTC, datetime

import polars as pl
import pytest

from rl_pipeline.ingestion.observation import ledger_watermark, observe, record
from rl_pipeline.stores.stream import StreamState
from rl_pipeline.stores.warehouse import Warehouse

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
TEN_MESSAGES = StreamState(
    name="RL_TRAJECTORIES",
    first_sequence=1,
    last_sequence=10,
    messages=10,
    bytes=1000,
    deleted=0,
    first_time=NOW,
    last_time=NOW,
    consumers=0,
)
EMPTY = replace(TEN_MESSAGES, last_sequence=0, messages=0, bytes=0, first_time=None, last_time=None)


@pytest.mark.parametrize(
    ("state", "ingested_up_to", "lag", "erased", "overrun"),
    [
        pytest.param(EMPTY, 0, 0, 0, 0, id="an empty stream"),
        pytest.param(TEN_MESSAGES, 0, 10, 0, 0, id="nothing ingested"),
        pytest.param(TEN_MESSAGES, 7, 3, 0, 0, id="partly ingested"),
        pytest.param(TEN_MESSAGES, 10, 0, 0, 0, id="all ingested"),
        pytest.param(replace(TEN_MESSAGES, messages=8, deleted=2), 0, 8, 2, 0, id="two erased"),
        pytest.param(replace(TEN_MESSAGES, first_sequence=4, messages=7), 1, 7, 0, 2, id="two lost to retention"),
        pytest.param(replace(TEN_MESSAGES, first_sequence=4, messages=7), 3, 7, 0, 0, id="retention after ingest"),
        pytest.param(replace(TEN_MESSAGES, first_sequence=11, messages=0), 4, 0, 0, 6, id="all aged out"),
    ],
)
def test_lag_erasures_and_losses_are_told_apart(
    state: StreamState, ingested_up_to: int, lag: int, erased: int, overrun: int
) -> None:
    seen = observe(state, ingested_up_to=ingested_up_to, now=NOW)
    assert (seen.lag, seen.erased, seen.overrun) == (lag, erased, overrun)


def test_two_observations_of_the_same_state_share_a_cursor_and_any_movement_changes_it() -> None:
    cursor = observe(TEN_MESSAGES, ingested_up_to=0, now=NOW).cursor
    assert observe(TEN_MESSAGES, ingested_up_to=0, now=datetime.now(UTC)).cursor == cursor
    moved = [
        observe(replace(TEN_MESSAGES, last_sequence=11, messages=11), ingested_up_to=0, now=NOW),
        observe(replace(TEN_MESSAGES, messages=9, deleted=1), ingested_up_to=0, now=NOW),
        observe(TEN_MESSAGES, ingested_up_to=1, now=NOW),
    ]
    assert cursor not in [seen.cursor for seen in moved]


def test_an_observation_recorded_twice_is_kept_once(warehouse: Warehouse) -> None:
    seen = observe(TEN_MESSAGES, ingested_up_to=0, now=NOW)
    record(warehouse, seen)
    record(warehouse, seen)
    kept = warehouse.query("SELECT * FROM stream_observations FINAL")
    assert kept.select(list(seen.row())).row(0, named=True) == seen.row()
    assert kept.height == 1


@pytest.mark.parametrize(("sequences", "watermark"), [([], 0), ([1, 2, 3], 3), ([1, 2, 4, 5], 2), ([5, 6, 7, 9], 7)])
def test_the_watermark_is_where_the_ledger_has_its_first_hole(
    warehouse: Warehouse, sequences: list[int], watermark: int
) -> None:
    if sequences:
        ledger = pl.DataFrame({"sequence": sequences}).with_columns(
            stream=pl.lit("RL_TRAJECTORIES"), stream_time=pl.lit(NOW), verdict=pl.lit("accepted")
        )
        warehouse.insert("trajectory_ledger", ledger)
    assert ledger_watermark(warehouse, "RL_TRAJECTORIES") == watermark
