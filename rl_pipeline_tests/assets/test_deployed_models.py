"""What is released of what was validated, carried out by Dagster with everything real around it."""

from collections.abc import Iterator
from typing import Any

import dagster as dg
import pytest

from rl_pipeline.assets.deployed_models import deployed_models
from rl_pipeline.assets.validation_reports import validation_reports
from rl_pipeline.deployment.releases import Releases
from rl_pipeline.stores.clickhouse import ClickHouseWarehouse
from rl_pipeline.stores.disk import DiskObjects
from rl_pipeline.validation.verdict import ValidationReport
from rl_pipeline_tests.deployment.release_place import FIRST, ReleasePlace
from rl_pipeline_tests.deployment.test_outcomes import an_outcome, publish
from rl_pipeline_tests.deployment.validated import a_report, store_checkpoint, store_validated
from rl_pipeline_tests.training.job_tables import emptied, migrated_database

BETTER = {"code_generation": (0.88, 0.80), "data_analysis": (0.86, 0.80)}


@pytest.fixture(scope="module")
def tables(clickhouse_url: str) -> Iterator[ClickHouseWarehouse]:
    with migrated_database(clickhouse_url) as database:
        yield database


@pytest.fixture
def warehouse(tables: ClickHouseWarehouse) -> ClickHouseWarehouse:
    return emptied(tables)


def validated(place: ReleasePlace, job: str, report: ValidationReport, **about: Any) -> None:
    store_validated(place.tables, DiskObjects(place.directory / "released"), job, report, **about)


def materialized(place: ReleasePlace, job: str) -> dict[str, Any] | None:
    """The metadata of the model that was released, if one was."""
    place.instance.add_dynamic_partitions("training_jobs", [job])
    place.deployment["endpoint"] = place.new.endpoint
    result = dg.materialize(
        [validation_reports, deployed_models],
        selection=[deployed_models],
        partition_key=job,
        resources=place.resources(),
        instance=place.instance,
    )
    assert result.success
    events = result.asset_materializations_for_node("deployed_models")
    return {name: value.value for name, value in events[0].metadata.items()} if events else None


def test_a_model_that_passed_is_released_and_let_in_at_once(releasing: ReleasePlace) -> None:
    validated(releasing, "job-1", a_report(BETTER))
    told = materialized(releasing, "job-1")
    assert told is not None
    assert (told["model"], told["strategy"], told["phase"]) == ("agent-zero-rl-v1", "canary", "ramping")
    assert told["report"] == "Model agent-zero-rl-v1 deployed, +9% performance improvement, canary rollout in progress"
    assert "| 10% | 1 h | 50 |" in told["steps"]
    state = releasing.state()
    assert state.rollout is not None
    assert (told["generation"], told["deployment"]) == (state.generation, state.rollout.deployment_id)
    assert state.weights == {FIRST: 0.9, "agent-zero-rl-v1": 0.1}
    assert state.rollout.validation["benchmark_scores"] == {"code_generation": 0.88, "data_analysis": 0.86}


def test_the_same_job_again_is_the_same_release(releasing: ReleasePlace) -> None:
    validated(releasing, "job-1", a_report(BETTER))
    first, again = materialized(releasing, "job-1"), materialized(releasing, "job-1")
    assert first is not None
    assert again is not None
    assert (again["model"], again["deployment"]) == (first["model"], first["deployment"])
    assert len(Releases(releasing.tables).newest(10)) == 1


def test_how_much_better_it_is_decides_how_it_comes_in(releasing: ReleasePlace) -> None:
    validated(releasing, "job-1", a_report({"code_generation": (0.81, 0.80)}))
    validated(releasing, "job-2", a_report({"code_generation": (0.98, 0.80)}))
    hardly, much = materialized(releasing, "job-1"), materialized(releasing, "job-2")
    assert hardly is not None
    assert hardly["steps"].splitlines()[2].startswith("| 5% |")
    assert much is not None
    assert (much["strategy"], much["phase"]) == ("blue_green", "ramping")
    assert much["report"].endswith("blue-green rollout waits for its turn"), "one rollout at a time"


def test_what_sessions_came_to_is_taken_in_before_the_controller_looks(releasing: ReleasePlace) -> None:
    publish(releasing.messages, an_outcome("a"), an_outcome("b"))
    validated(releasing, "job-1", a_report(BETTER))
    assert materialized(releasing, "job-1") is not None
    assert releasing.tables.query("SELECT count() AS n FROM serving_outcomes FINAL")["n"][0] == 2


REFUSED = [
    pytest.param(a_report(BETTER, outcome="FAIL"), {}, "fails against", id="a suite failed"),
    pytest.param(a_report(BETTER, safety="FAIL"), {}, "safety: refusal fails against", id="safety is a veto"),
    pytest.param(a_report(BETTER), {"shadow": True}, "shadow job", id="a shadow job"),
    pytest.param(a_report({"code_generation": (0.76, 0.80)}), {}, "worse than the model in service", id="worse"),
]


@pytest.mark.parametrize(("report", "about", "reason"), REFUSED)
def test_what_may_not_be_released_leaves_the_model_in_service(
    releasing: ReleasePlace, report: ValidationReport, about: dict[str, Any], reason: str
) -> None:
    validated(releasing, "job-1", report, **about)
    assert materialized(releasing, "job-1") is None
    assert (releasing.state().phase, releasing.state().weights) == ("steady", {FIRST: 1.0})
    assert Releases(releasing.tables).newest(10) == []
    [run] = releasing.instance.get_runs()
    assert any(reason in entry.user_message for entry in releasing.instance.all_logs(run.run_id))


def test_another_checkpoint_than_the_validated_one_is_not_released(releasing: ReleasePlace) -> None:
    validated(releasing, "job-1", a_report(BETTER))
    store_checkpoint(releasing.tables, "job-1", manifest_sha256="1" * 64, version=2)
    assert materialized(releasing, "job-1") is None
    assert Releases(releasing.tables).newest(10) == []


def test_what_is_in_doubt_waits_for_a_person(releasing: ReleasePlace) -> None:
    validated(releasing, "job-1", a_report(BETTER, outcome="INCONCLUSIVE"))
    told = materialized(releasing, "job-1")
    assert told is not None
    assert (told["needs_approval"], told["phase"]) == (True, "awaiting_approval")
    assert told["report"].endswith("canary rollout waits for an approval")
    assert releasing.state().weights == {FIRST: 1.0}
    releasing.commands().approve("read the report")
    assert releasing.state().weights["agent-zero-rl-v1"] == 0.1
