"""What the sensor of rollouts shows in the catalogue, with everything real around it."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import dagster as dg
import pytest

from rl_pipeline.assets.deployed_models import deployed_models
from rl_pipeline.deployment.audit import WarehouseAudit
from rl_pipeline.deployment.post_mortem import SETTLING
from rl_pipeline.deployment.state import RampStep
from rl_pipeline.embedded.nats_server import NatsServer
from rl_pipeline.embedded.ports import free_port
from rl_pipeline.stores.clickhouse import ClickHouseWarehouse
from rl_pipeline.stores.disk import DiskObjects
from rl_pipeline.stores.jetstream import JetStream
from rl_pipeline_tests.deployment.release_place import FIRST, ReleasePlace, opened_place
from rl_pipeline_tests.serving import stub_backend
from rl_pipeline_tests.training.job_tables import emptied, migrated_database
from rl_pipeline_tests.waiting import wait_until


@pytest.fixture(scope="module")
def tables(clickhouse_url: str) -> Iterator[ClickHouseWarehouse]:
    with migrated_database(clickhouse_url) as database:
        yield database


@pytest.fixture
def warehouse(tables: ClickHouseWarehouse) -> ClickHouseWarehouse:
    return emptied(tables)


def observed(instance: dg.DagsterInstance, job: str) -> list[str]:
    """The events of a job's model, as the catalogue has them, oldest first."""
    found = instance.fetch_observations(
        dg.AssetRecordsFilter(asset_key=deployed_models.key, asset_partitions=[job]), limit=100, ascending=True
    )
    return [str(each.asset_observation.metadata["event"].value) for each in found.records if each.asset_observation]


def materialized(instance: dg.DagsterInstance, job: str) -> list[dict[str, object]]:
    """What the catalogue has of a job's model, oldest first."""
    found = instance.fetch_materializations(
        dg.AssetRecordsFilter(asset_key=deployed_models.key, asset_partitions=[job]), limit=100, ascending=True
    )
    made = [each.asset_materialization for each in found.records]
    return [{name: value.value for name, value in each.metadata.items()} for each in made if each]


def roll_out_a_bad_model(place: ReleasePlace) -> str:
    """The id of a model that fails at everything and was taken back by the sensor's own judgement."""
    release = place.let_in("sabotage")
    place.new.behaviour = stub_backend.answer_500

    def is_out() -> bool:
        place.ask_many(20)
        place.look()
        return release.model.model_id in place.state().retired

    wait_until(is_out, "its rollback")
    return release.model.model_id


def test_a_rollback_shows_on_the_job_of_the_model_that_was_taken_back(releasing: ReleasePlace) -> None:
    roll_out_a_bad_model(releasing)
    assert observed(releasing.instance, "sabotage") == ["deployed", "rolled_back"]


def test_a_bad_model_is_taken_back_with_the_warehouse_away_and_what_needs_it_catches_up(
    releasing: ReleasePlace, clickhouse_url: str
) -> None:
    release = releasing.let_in("sabotage")
    releasing.clickhouse_url = f"http://127.0.0.1:{free_port()}"
    releasing.new.behaviour = stub_backend.answer_500

    def is_out() -> bool:
        releasing.ask_many(20)
        assert not releasing.look().asset_events
        return release.model.model_id in releasing.state().retired

    wait_until(is_out, "its rollback", seconds=240)
    rolled_back = releasing.state()
    assert (rolled_back.change.reason, rolled_back.change.evidence["mode"]) == ("high_error_rate", "watchdog")
    assert [row.state.change.event for row in WarehouseAudit(releasing.tables).recent(1)] == ["deployed"]
    releasing.clickhouse_url = clickhouse_url
    releasing.look()
    assert WarehouseAudit(releasing.tables).recent(1)[0].state == rolled_back
    assert observed(releasing.instance, "sabotage") == ["deployed", "rolled_back"]
    assert releasing.announced()[-1].metadata.event == "rolled_back"
    told = releasing.tables.query("SELECT countIf(failed) AS failed, count() AS all FROM serving_outcomes FINAL")
    assert told["all"][0] > told["failed"][0] > 0, "what sessions came to meanwhile is stored"


@pytest.mark.parametrize("refused", ["deployment_audit", "serving_outcomes", "rewards"])
def test_a_bad_model_is_taken_back_while_the_warehouse_answers_with_errors(
    releasing: ReleasePlace, refused: str
) -> None:
    release = releasing.let_in("sabotage")
    releasing.tables.execute(f"RENAME TABLE {refused} TO {refused}_elsewhere")
    try:
        releasing.new.behaviour = stub_backend.answer_500

        def is_out() -> bool:
            releasing.ask_many(20)
            releasing.look()
            return release.model.model_id in releasing.state().retired

        wait_until(is_out, "its rollback", seconds=240)
    finally:
        releasing.tables.execute(f"RENAME TABLE {refused}_elsewhere TO {refused}")
    rolled_back = releasing.state()
    assert (rolled_back.change.reason, rolled_back.change.evidence["mode"]) == ("high_error_rate", "watchdog")
    assert "without rewards: ClickHouse refused" in rolled_back.change.evidence["explanation"]
    releasing.look()
    assert WarehouseAudit(releasing.tables).recent(1)[0].state == rolled_back
    assert observed(releasing.instance, "sabotage") == ["deployed", "rolled_back"]
    told = releasing.tables.query("SELECT countIf(failed) AS failed FROM serving_outcomes FINAL")
    assert told["failed"][0] > 0, "what sessions came to meanwhile is stored"


def test_what_a_person_has_done_shows_on_the_job_too(releasing: ReleasePlace) -> None:
    release = releasing.let_in("job-1")
    releasing.commands().roll_back("users complain")
    releasing.look()
    assert observed(releasing.instance, "job-1") == ["deployed", "rolled_back"]
    assert not releasing.look().asset_events, "it is told once"
    assert release.model.model_id in releasing.state().retired


def test_a_rollback_leaves_its_post_mortem_on_that_job_once(releasing: ReleasePlace) -> None:
    long_ago = datetime.now(UTC) - 3 * SETTLING
    release = releasing.release("sabotage")
    releasing.commands(long_ago).start_ab_test(
        release.model, 0.5, "a test", deployment_id=release.deployment_id, bake_seconds=0
    )
    releasing.commands(long_ago + SETTLING).roll_back("high_error_rate")
    releasing.look()
    [told] = materialized(releasing.instance, "sabotage")
    assert (told["event"], told["model"]) == ("rolled_back", release.model.model_id)
    assert f"# {release.model.model_id} was rolled back" in str(told["post_mortem"])
    assert DiskObjects(releasing.directory / "released").get(f"post-mortems/{release.deployment_id}.md")
    assert not releasing.look().asset_events, "nobody looks into it twice"


def test_a_rollout_that_gets_no_sessions_is_noted_as_waiting_for_a_person_until_it_is_over(
    releasing: ReleasePlace,
) -> None:
    long_ago = datetime.now(UTC) - timedelta(days=2)
    release = releasing.release("job-1")
    releasing.commands(long_ago).start_ab_test(
        release.model, 0.5, "a test", deployment_id=release.deployment_id, bake_seconds=0
    )
    releasing.commands(long_ago).promote("in a hurry", model_id=release.model.model_id)

    def holds() -> list[tuple[str, str, bool]]:
        found = releasing.tables.query("SELECT model_id, reason, ended_at IS NOT NULL FROM rollout_holds FINAL")
        return [(model, reason, bool(is_over)) for model, reason, is_over in found.iter_rows()]

    for _ in range(2):
        releasing.look()
        assert holds() == [(release.model.model_id, "stalled", False)]
    releasing.commands().roll_back("nobody uses it")
    releasing.look()
    assert holds() == [(release.model.model_id, "stalled", True)]


@pytest.mark.parametrize("ending", ["promote", "roll_back"])
def test_an_ab_test_that_ends_leaves_its_report_on_that_job_once(releasing: ReleasePlace, ending: str) -> None:
    release = releasing.release("job-1")
    releasing.commands().start_ab_test(
        release.model, 0.5, "which is better?", deployment_id=release.deployment_id, bake_seconds=3600
    )
    wait_until(releasing.follows)
    releasing.ask_many(20)

    def is_counted() -> bool:
        assert not releasing.look().asset_events or not materialized(releasing.instance, "job-1")
        return bool(releasing.tables.query("SELECT count() AS n FROM serving_outcomes FINAL")["n"][0] == 20)

    wait_until(is_counted, "its sessions")
    if ending == "promote":
        releasing.commands().promote("it is better", model_id=release.model.model_id)
    else:
        releasing.commands().roll_back("it is not better")
    releasing.look()
    [told] = materialized(releasing.instance, "job-1")
    assert (told["event"], told["model"]) == ("ab_test_ended", release.model.model_id)
    assert f"A/B test of {release.model.model_id} against {FIRST}" in str(told["ab_report"])
    kept = DiskObjects(releasing.directory / "released").get(f"ab-tests/{release.deployment_id}.md")
    assert kept.decode() == told["ab_report"]
    releasing.look()
    assert len(materialized(releasing.instance, "job-1")) == 1


def test_the_first_look_of_all_puts_the_base_model_into_service(
    nats_server: NatsServer, stream: JetStream, clickhouse_url: str, warehouse: ClickHouseWarehouse, tmp_path: Path
) -> None:
    with opened_place(nats_server.url, stream, warehouse, clickhouse_url, tmp_path, empty=True) as place:
        place.deployment["endpoint"] = place.old.endpoint
        result = place.look()
        assert place.state().serving == "strict"
        assert "generation 1, steady, strict 100%" in str(result.skip_reason)
        assert not result.asset_events, "no training has made it"
        wait_until(place.follows)
        assert place.ask_many(3) == {"strict": 3}


def test_each_step_of_a_good_rollout_shows_on_its_job(releasing: ReleasePlace) -> None:
    steps = [RampStep(share=share, min_seconds=0, min_samples=5) for share in (0.5, 0.9)]
    release = releasing.let_in("job-1", steps)

    def is_in_service() -> bool:
        releasing.ask_many(20)
        releasing.look()
        return releasing.state().serving == release.model.model_id

    wait_until(is_in_service, "its promotion")
    assert observed(releasing.instance, "job-1") == ["deployed", "ramped", "ramped", "promoted"]
    assert observed(releasing.instance, "another") == []


def test_a_look_says_where_things_stand_and_why_nothing_moves(releasing: ReleasePlace) -> None:
    assert f"generation 1, steady, {FIRST} 100%" in str(releasing.look().skip_reason)
    releasing.let_in("job-1")
    standing = str(releasing.look().skip_reason)
    assert "generation 2, ramping" in standing
    assert "still to come" in standing


def test_a_gateway_that_is_away_is_told_of_and_holds_nothing_up(releasing: ReleasePlace) -> None:
    releasing.gateway.kill()
    releasing.release("job-1")
    result = releasing.look()
    assert releasing.state().rollout is None, "nothing is raised while nobody knows what is fenced"
    assert f"{FIRST} 100%" in str(result.skip_reason)
    releasing.gateway.start()
    releasing.look()
    assert releasing.state().rollout is not None
