"""The audit in the real warehouse: a row for every generation, whoever died, and a chain that shows every change."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from rl_pipeline.deployment import phases, record
from rl_pipeline.deployment.audit import AuditRow, WarehouseAudit, catch_up, newest_row, verify_audit
from rl_pipeline.deployment.phases import Cause
from rl_pipeline.deployment.record import Recorded
from rl_pipeline.deployment.state import DesiredState
from rl_pipeline.stores.clickhouse import ClickHouseWarehouse
from rl_pipeline_tests.deployment.simulated_stores import SimulatedStates, World
from rl_pipeline_tests.deployment.states import NOW, a_model, a_rollout, because, first_state
from rl_pipeline_tests.training.job_tables import emptied, migrated_database


@pytest.fixture(scope="module")
def tables(clickhouse_url: str) -> Iterator[ClickHouseWarehouse]:
    with migrated_database(clickhouse_url) as database:
        yield database


@pytest.fixture
def warehouse(tables: ClickHouseWarehouse) -> ClickHouseWarehouse:
    return emptied(tables)


@pytest.fixture
def log(warehouse: ClickHouseWarehouse) -> WarehouseAudit:
    return WarehouseAudit(warehouse)


def a_chain() -> list[DesiredState]:
    states = [first_state()]
    rollout = a_rollout()
    # A moment that the table cannot hold to its end, and figures as a judgement has them.
    found = Cause("it is better", "tester", NOW.replace(microsecond=987_999), {"errors": 8, "rate": 0.1, "über": None})
    states.append(phases.start(states[-1], a_model("new"), rollout, found, approved=True))
    states.append(phases.advance(states[-1], because("time_and_samples")))
    states.append(phases.roll_back(states[-1], because("high_error_rate")))
    states.append(phases.freeze(states[-1], because("an incident")))
    return states


def rows(states: list[DesiredState]) -> list[AuditRow]:
    return [AuditRow.of(state.encoded()) for state in states]


def recorded(states: SimulatedStates) -> Recorded:
    found = record.read(states)
    assert found is not None
    return found


def stored(states: list[DesiredState]) -> SimulatedStates:
    """The record with these states as its history."""
    store = SimulatedStates(World())
    for state in states:
        current = store.read()
        store.swap(state.encoded(), current.revision if current else 0)
    return store


def test_a_row_says_what_its_state_says(log: WarehouseAudit, warehouse: ClickHouseWarehouse) -> None:
    state = a_chain()[3]
    log.add(rows([state]))
    (row,) = warehouse.query("SELECT * FROM deployment_audit FINAL").to_dicts()
    assert (row["generation"], row["event"], row["phase"], row["model_id"]) == (4, "rolled_back", "steady", "new")
    assert (row["deployment_id"], row["reason"], row["by"]) == ("deployment-of-new", "high_error_rate", "tester")
    assert (row["hash"], row["previous_hash"], row["at"]) == (state.hash, state.previous_hash, NOW)
    assert json.loads(row["state"]) == state.model_dump(mode="json")
    assert (row["announced_at"], log.recent(1)[0].state) == (None, state)


def test_rows_that_are_written_again_are_there_once(log: WarehouseAudit) -> None:
    chain = rows(a_chain())
    for _ in range(2):
        log.add(chain)
    log.add([])
    assert [row.state.generation for row in log.recent(9)] == [5, 4, 3, 2, 1]
    assert log.recent(2) == chain[:-3:-1]
    assert log.known([chain[0].hash, "unknown"]) == {chain[0].hash}


def test_what_writers_left_out_is_written_from_the_record_s_history(log: WarehouseAudit) -> None:
    chain = a_chain()
    states = stored(chain)
    assert catch_up(log, states, recorded(states)) == 5
    assert catch_up(log, states, recorded(states)) == 0
    following = phases.unfreeze(chain[-1], because())
    states.swap(following.encoded(), recorded(states).revision)
    assert catch_up(log, states, recorded(states)) == 1
    newest = newest_row(log)
    assert newest is not None
    assert newest.state == following


def test_of_a_record_that_was_lost_meanwhile_nothing_is_written_that_hangs_in_the_air(log: WarehouseAudit) -> None:
    chain = a_chain()
    states = stored(chain)
    current = recorded(states)
    states.values = []
    assert catch_up(log, states, current) == 0
    assert newest_row(log) is None


def test_an_empty_audit_and_a_whole_chain_hold(log: WarehouseAudit, warehouse: ClickHouseWarehouse) -> None:
    assert verify_audit(warehouse).holds
    chain = a_chain()
    log.add(rows(chain))
    states = stored(chain)
    verified = verify_audit(warehouse, recorded(states))
    assert (verified.first_break, verified.generations, verified.lost, verified.aside) == (None, 5, (), ())
    assert str(verified) == "the chain holds; 5 generations"


TAMPERED = [
    ("state = replaceOne(state, 'it is better', 'it is worse!')", "generation 2: its state was changed"),
    ("reason = 'another'", "generation 2: its reason is not that of its state"),
    ("by = 'nobody'", "generation 2: its by is not that of its state"),
    ("at = at + INTERVAL 1 MILLISECOND", "generation 2: its at is not that of its state"),
    ("evidence = '{\"errors\": 7}'", "generation 2: its evidence is not that of its state"),
    ("state = '{}'", "generation 2: its state cannot be read"),
]


@pytest.mark.parametrize(("change", "found"), TAMPERED, ids=[found for _, found in TAMPERED])
def test_a_changed_row_is_named(log: WarehouseAudit, warehouse: ClickHouseWarehouse, change: str, found: str) -> None:
    log.add(rows(a_chain()))
    warehouse.execute(
        f"ALTER TABLE deployment_audit UPDATE {change} WHERE generation = 2", settings={"mutations_sync": 2}
    )
    assert verify_audit(warehouse).first_break == found


def test_a_row_that_was_forged_with_its_hash_breaks_the_next(
    log: WarehouseAudit, warehouse: ClickHouseWarehouse
) -> None:
    chain = a_chain()
    forged = chain[1].model_copy(update={"change": chain[1].change.model_copy(update={"by": "nobody"})})
    log.add(rows([chain[0], forged, *chain[2:]]))
    assert verify_audit(warehouse).first_break == "generation 3: the state before it has no row, or was changed"


def test_a_missing_row_is_named_in_the_middle_and_at_the_end(
    log: WarehouseAudit, warehouse: ClickHouseWarehouse
) -> None:
    chain = a_chain()
    log.add(rows([*chain[:2], *chain[3:]]))
    assert verify_audit(warehouse).first_break == "generation 4: the state before it has no row, or was changed"
    emptied(warehouse)
    log.add(rows(chain[:4]))
    assert verify_audit(warehouse).holds
    current = recorded(stored(chain))
    assert verify_audit(warehouse, current).first_break == "generation 5: it is recorded and has no row"


def test_a_record_that_was_set_back_is_named(log: WarehouseAudit, warehouse: ClickHouseWarehouse) -> None:
    chain = a_chain()
    log.add(rows(chain))
    verified = verify_audit(warehouse, recorded(stored(chain[:3])))
    assert verified.first_break == "generation 5: the record is at generation 3"


def test_a_jump_is_a_break_unless_a_restoration_says_so(log: WarehouseAudit, warehouse: ClickHouseWarehouse) -> None:
    chain = a_chain()
    restored = phases.restore(chain[2], 6, because("the record was lost"))
    log.add(rows([*chain[:3], restored]))
    verified = verify_audit(warehouse)
    assert (verified.first_break, verified.generations, verified.lost) == (None, 4, (4, 5, 6))
    assert str(verified) == "the chain holds; 4 generations; lost with the record: 4, 5, 6"
    emptied(warehouse)
    jumped = chain[3].model_copy(update={"generation": 7})
    log.add(rows([*chain[:3], jumped]))
    assert verify_audit(warehouse).first_break == "generation 7: it follows generation 3"


def test_a_generation_that_went_with_its_bucket_stands_aside(
    log: WarehouseAudit, warehouse: ClickHouseWarehouse
) -> None:
    chain = a_chain()
    later = because("the record was lost")
    restored = phases.restore(chain[2], 3, phases.Cause(later.reason, later.by, NOW.replace(hour=13)))
    log.add(rows([*chain[:4], restored]))
    verified = verify_audit(warehouse)
    assert (verified.first_break, verified.generations, verified.aside) == (None, 4, (4,))
    newest = newest_row(log)
    assert newest is not None
    assert newest.state == restored


def test_states_of_another_version_keep_their_bytes_and_so_their_hashes(
    log: WarehouseAudit, warehouse: ClickHouseWarehouse
) -> None:
    first, second = a_chain()[:2]
    older: dict[str, Any] = first.model_dump(mode="json")
    del older["frozen"]  # as a version wrote it that did not know this field
    data = json.dumps(older).encode()
    states = SimulatedStates(World())
    states.swap(data, 0)
    current = recorded(states)
    changed = record.swap(states, record.after(current, second), current)
    assert changed is not None
    catch_up(log, states, changed)
    assert verify_audit(warehouse, changed).holds


def test_what_is_to_be_announced_comes_in_order_with_the_row_before_it_and_once(log: WarehouseAudit) -> None:
    chain = rows(a_chain())
    log.add(chain)
    due = log.unannounced()
    assert [(each.row.state.generation, each.before and each.before.state.generation) for each in due] == [
        (2, 1),
        (3, 2),
        (4, 3),
    ]
    log.mark_announced(due[0].row, NOW)
    assert [each.row.state.generation for each in log.unannounced()] == [3, 4]
    log.add(chain)
    assert [each.row.state.generation for each in log.unannounced()] == [3, 4]
