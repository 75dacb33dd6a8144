"""Releases in the real warehouse: numbered once, started newest first, the rest recorded as overtaken."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import polars as pl
import pytest

from rl_pipeline.deployment import phases
from rl_pipeline.deployment.audit import AuditRow, WarehouseAudit
from rl_pipeline.deployment.releases import NeverReleased, Release, Releases, RolloutPlan, sorted_out
from rl_pipeline.deployment.state import DesiredState, Rollout
from rl_pipeline.embedded.nats_server import NatsServer
from rl_pipeline.stores.clickhouse import ClickHouseWarehouse
from rl_pipeline.stores.jetstream import JetStream
from rl_pipeline.stores.jetstream_lease import JetStreamLeases
from rl_pipeline_tests.deployment.states import NOW, RAMP, VALIDATION, a_model, a_release, because, first_state
from rl_pipeline_tests.training.job_tables import emptied, migrated_database

PLAN = RolloutPlan(strategy="canary", steps=RAMP, bake_seconds=60, explanation="hardly better", measured_against="old")
HOUR = timedelta(hours=1)


@pytest.fixture(scope="module")
def tables(clickhouse_url: str) -> Iterator[ClickHouseWarehouse]:
    with migrated_database(clickhouse_url) as database:
        yield database


@pytest.fixture
def warehouse(tables: ClickHouseWarehouse) -> ClickHouseWarehouse:
    return emptied(tables)


def release(warehouse: ClickHouseWarehouse, stream: JetStream, job: str, **more: Any) -> Release:
    given: dict[str, Any] = {
        "training_job_id": job,
        "base_model": "small",
        "checkpoint_path": f"s3://models/{job}/",
        "manifest_sha256": "0" * 64,
        "plan": PLAN,
        "validation": VALIDATION,
        "needs_approval": False,
        "shadow": False,
        "now": NOW,
    }
    return Releases(warehouse).release(JetStreamLeases(stream), **given | more)


def test_a_release_has_the_next_number_and_is_read_back_whole(
    warehouse: ClickHouseWarehouse, stream: JetStream
) -> None:
    first = release(warehouse, stream, "job-1")
    second = release(warehouse, stream, "job-2", needs_approval=True)
    assert [first.model.model_id, second.model.model_id] == ["agent-zero-rl-v1", "agent-zero-rl-v2"]
    assert Releases(warehouse).of_job("job-2") == second
    assert Releases(warehouse).of_model("agent-zero-rl-v1") == first
    assert Releases(warehouse).newest(5) == [second, first]
    assert Releases(warehouse).of_job("other") is None
    rollout = second.rollout(control="old", now=NOW + timedelta(hours=1))
    assert (rollout.steps, rollout.candidate, rollout.validation) == (RAMP, "agent-zero-rl-v2", VALIDATION)
    assert (rollout.deployment_id, first.deployment_id != second.deployment_id) == (second.deployment_id, True)


def test_a_job_is_released_once(warehouse: ClickHouseWarehouse, stream: JetStream) -> None:
    first = release(warehouse, stream, "job-1")
    assert release(warehouse, stream, "job-1", now=NOW + timedelta(hours=1)) == first
    assert warehouse.query("SELECT count() AS n FROM model_releases")["n"][0] == 1


def test_a_release_that_waits_takes_the_plan_of_its_new_validation_and_a_started_one_keeps_its_own(
    warehouse: ClickHouseWarehouse, stream: JetStream
) -> None:
    first, releases = release(warehouse, stream, "job-1"), Releases(warehouse)
    assert releases.outdated("old") is None
    assert releases.outdated("newer") == first
    plan = RolloutPlan(
        strategy="blue_green", steps=RAMP, bake_seconds=9, explanation="better", measured_against="newer"
    )
    again = release(warehouse, stream, "job-1", plan=plan, validation={}, needs_approval=True, now=NOW + HOUR)
    assert again == first.renewed(plan, {}, NOW + HOUR, needs_approval=True)
    assert releases.of_job("job-1") == again
    assert releases.outdated("newer") is None
    releases.refuse(again, "never", NOW)
    assert release(warehouse, stream, "job-1").plan == plan
    assert releases.outdated("old") is None, "it no longer waits"


def test_jobs_that_are_released_at_once_get_numbers_of_their_own(
    warehouse: ClickHouseWarehouse, stream: JetStream, nats_server: NatsServer
) -> None:
    def ask(number: int) -> int:
        with JetStream.connect(nats_server.url) as own:
            return release(warehouse, own, f"job-{number}").number

    with ThreadPoolExecutor(4) as threads:
        assert sorted(threads.map(ask, range(4))) == [1, 2, 3, 4]


def test_a_shadow_job_is_never_released(warehouse: ClickHouseWarehouse, stream: JetStream) -> None:
    with pytest.raises(NeverReleased, match="job-1 is a shadow job"):
        release(warehouse, stream, "job-1", shadow=True)
    assert Releases(warehouse).newest(5) == []


def test_the_checkpoint_of_a_release_counts_as_deployed(warehouse: ClickHouseWarehouse, stream: JetStream) -> None:
    rows = [
        {"id": f"{job}/1", "job_id": job, "created_at": NOW, "deployed": False, "version": 3}
        for job in ("job-1", "job-2")
    ]
    warehouse.insert("model_checkpoints", pl.DataFrame(rows))
    release(warehouse, stream, "job-1")
    found = warehouse.query("SELECT job_id, deployed, version FROM model_checkpoints FINAL ORDER BY job_id").rows()
    assert found == [("job-1", True, 4), ("job-2", False, 3)]


def test_the_newest_that_waits_is_next_and_what_was_overtaken_is_marked(
    warehouse: ClickHouseWarehouse, stream: JetStream
) -> None:
    made = [release(warehouse, stream, f"job-{number}") for number in (1, 2, 3)]
    releases, state = Releases(warehouse), first_state()
    assert releases.sort_out(state, NOW) == made[2]
    rollout = made[1].rollout(control="old", now=NOW)
    started = phases.start(state, made[1].model, rollout, because(), approved=True)
    # Two was started before three was released; its controller died before it could say so.
    WarehouseAudit(warehouse).add([AuditRow.of(started.encoded())])
    assert releases.sort_out(state, NOW) == made[2]
    assert [each.state for each in releases.newest(5)] == ["waiting", "started", "superseded"]
    assert releases.newest(5)[2].explanation == "number 2 was started before it"
    releases.refuse(made[2], "a gateway has fenced it", NOW)
    assert releases.sort_out(state, NOW) is None
    assert releases.newest(1)[0].state == "refused"


def test_a_release_never_waits_again_once_it_has_ended(warehouse: ClickHouseWarehouse, stream: JetStream) -> None:
    made = release(warehouse, stream, "job-1")
    releases = Releases(warehouse)
    releases.refuse(made, "never", NOW)
    releases._write([made])  # by a killed releaser that comes again
    assert releases.newest(1)[0].state == "refused"


def interrupt(
    warehouse: ClickHouseWarehouse, made: Release, *, rollout: Rollout | None = None, retired: tuple[str, ...] = ()
) -> DesiredState:
    """Audit that a rollout was begun and ended again because its control was taken back; the state after that."""
    begun = phases.start(
        first_state(), made.model, rollout or made.rollout(control="old", now=NOW), because(), approved=True
    )
    ended = phases.take_back(begun, a_model("former"), because()).model_copy(update={"retired": retired})
    WarehouseAudit(warehouse).add([AuditRow.of(state.encoded()) for state in (begun, ended)])
    return ended


def test_a_release_whose_rollout_was_interrupted_waits_again_under_a_deployment_of_its_own(
    warehouse: ClickHouseWarehouse, stream: JetStream
) -> None:
    made, releases = release(warehouse, stream, "job-1"), Releases(warehouse)
    state = interrupt(warehouse, made)
    releases.sort_out(state, NOW)
    again = releases.sort_out(state, NOW + HOUR)
    assert again is not None
    assert (again.number, again.attempt, again.state, again.model) == (1, 1, "waiting", made.model)
    assert again.deployment_id != made.deployment_id
    assert releases.of_job("job-1") == again
    assert releases.outdated("former") == again, "it has to be measured against the model that serves now"
    releases._write([made.ended("started", "told by a slow controller", NOW)])
    assert releases.sort_out(state, NOW + HOUR) == again, "it comes again once for each interruption"
    second = interrupt(warehouse, again)
    releases.sort_out(second, NOW)
    third = releases.sort_out(second, NOW)
    assert third is not None
    assert third.deployment_id not in {made.deployment_id, again.deployment_id}


def test_what_was_overtaken_rolled_back_or_tested_by_a_person_does_not_wait_again(
    warehouse: ClickHouseWarehouse, stream: JetStream
) -> None:
    releases = Releases(warehouse)
    rolled_back = release(warehouse, stream, "job-1")
    state = interrupt(warehouse, rolled_back, retired=(rolled_back.model.model_id,))
    for _ in range(2):
        assert releases.sort_out(state, NOW) is None
    assert releases.newest(1)[0].state == "started"
    tested = release(warehouse, stream, "job-2")
    test = tested.rollout(control="old", now=NOW).model_copy(update={"strategy": "ab_test"})
    state = interrupt(warehouse, tested, rollout=test)
    for _ in range(2):
        assert releases.sort_out(state, NOW) is None
    assert releases.newest(1)[0].state == "started"
    overtaken = release(warehouse, stream, "job-3")
    state = interrupt(warehouse, overtaken)
    releases._write([release(warehouse, stream, "job-4").ended("started", "it has begun", NOW)])
    for _ in range(2):
        assert releases.sort_out(state, NOW) is None
    assert releases.newest(2)[1].state == "superseded"


def test_a_release_whose_rollout_goes_on_is_not_validated_again_though_nobody_has_marked_it(
    warehouse: ClickHouseWarehouse, stream: JetStream
) -> None:
    made = release(warehouse, stream, "job-1")
    begun = phases.start(first_state(), made.model, made.rollout(control="old", now=NOW), because(), approved=True)
    assert Releases(warehouse).outdated("another") == made
    WarehouseAudit(warehouse).add([AuditRow.of(begun.encoded())])
    assert Releases(warehouse).outdated("another") is None


SORTED = [
    # waiting numbers, started among them, the highest marked so, the next, superseded
    ((1, 2, 3), (), 0, 3, ()),
    ((1, 2, 3), (3,), 0, None, (1, 2)),
    ((1, 2, 3), (2,), 0, 3, (1,)),
    ((1, 3), (), 2, 3, (1,)),
    ((1,), (), 2, None, (1,)),
    ((), (), 2, None, ()),
]


@pytest.mark.parametrize(("waiting", "started", "marked", "following", "superseded"), SORTED)
def test_releases_are_sorted_out_by_what_was_started(
    waiting: tuple[int, ...],
    started: tuple[int, ...],
    marked: int,
    following: int | None,
    superseded: tuple[int, ...],
) -> None:
    releases = [a_release(number) for number in waiting]
    deployments = {f"deployment-of-agent-zero-rl-v{number}" for number in started}
    found, ended = sorted_out(releases, deployments, marked, NOW)
    assert (found and found.number) == following
    assert tuple(each.number for each in ended if each.state == "superseded") == superseded
    assert tuple(each.number for each in ended if each.state == "started") == started
