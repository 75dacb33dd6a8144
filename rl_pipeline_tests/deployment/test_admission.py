"""Which validated checkpoints are let in, and by which plan, in the real warehouse."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from rl_pipeline.deployment.admission import NotAdmitted, RolloutTerms, admit
from rl_pipeline.deployment.releases import NeverReleased, Release, Releases
from rl_pipeline.stores.clickhouse import ClickHouseWarehouse
from rl_pipeline.stores.disk import DiskObjects
from rl_pipeline.stores.jetstream import JetStream
from rl_pipeline.stores.jetstream_lease import JetStreamLeases
from rl_pipeline.validation.storing import NothingToValidate, NotValidated, candidate_of, store_report
from rl_pipeline.validation.verdict import ValidationReport
from rl_pipeline_tests.training.job_tables import emptied, migrated_database
from rl_pipeline_tests.validation.stored_reports import NOW, a_report, store_a_report, store_checkpoint, without_control

HOUR = timedelta(hours=1)


@pytest.fixture(scope="module")
def database(clickhouse_url: str) -> Iterator[ClickHouseWarehouse]:
    with migrated_database(clickhouse_url) as database:
        yield database


@pytest.fixture
def tables(database: ClickHouseWarehouse) -> ClickHouseWarehouse:
    return emptied(database)


@dataclass
class Door:
    """Where a checkpoint waits to be let in."""

    tables: ClickHouseWarehouse
    leases: JetStreamLeases
    directory: Path

    def judged(self, report: ValidationReport, job: str = "job") -> None:
        store_checkpoint(self.tables, job)
        store_a_report(self.tables, self.directory, job, report)

    def judged_again(self, report: ValidationReport, control: str, now: datetime) -> None:
        """Against another model."""
        objects, candidate = DiskObjects(self.directory), candidate_of(self.tables, "job")
        store_report(self.tables, objects, candidate, report, control=control, seconds=1.0, now=now)

    def admit(self, job: str = "job", terms: RolloutTerms | None = None, **more: Any) -> Release:
        return admit(self.tables, self.leases, job, terms or RolloutTerms(), now=NOW, **more)


@pytest.fixture
def door(tables: ClickHouseWarehouse, stream: JetStream, tmp_path: Path) -> Door:
    return Door(tables, JetStreamLeases(stream), tmp_path)


@pytest.mark.parametrize(
    ("report", "strategy", "shares"),
    [
        (a_report(points=0.02), "canary", (0.05, 0.25, 0.5)),
        (a_report(points=0.08), "canary", (0.1, 0.25, 0.5)),
        (a_report(points=0.20), "blue_green", (0.9,)),
        (without_control(a_report()), "canary", (0.1, 0.25, 0.5)),
    ],
)
def test_the_better_it_is_the_faster_it_comes_in(
    report: ValidationReport, strategy: str, shares: tuple[float, ...], door: Door
) -> None:
    door.judged(report)
    release = door.admit()
    assert (release.plan.strategy, tuple(step.share for step in release.plan.steps)) == (strategy, shares)
    assert (release.needs_approval, release.validation["benchmark_passed"]) == (False, True)
    assert release.model.model_id == "agent-zero-rl-v1"


def test_what_is_open_waits_for_a_person(door: Door) -> None:
    door.judged(a_report("ask_a_person"))
    assert door.admit().needs_approval


@pytest.mark.parametrize(
    ("report", "checkpoint", "why"),
    [
        pytest.param(a_report("refuse"), {}, "it was decided to refuse", id="refused"),
        pytest.param(a_report(points=-0.2), {}, "worse than the model in service", id="surely worse"),
        pytest.param(a_report(), {"shadow": True}, "shadow job", id="shadow"),
        pytest.param(a_report(), {"manifest_sha256": "cd" * 32}, "another checkpoint was validated", id="changed"),
    ],
)
def test_what_did_not_pass_stays_out(
    report: ValidationReport, checkpoint: dict[str, Any], why: str, door: Door
) -> None:
    door.judged(report)
    store_checkpoint(door.tables, "job", version=2, **checkpoint)
    with pytest.raises(NotAdmitted, match=why):
        door.admit()
    assert door.tables.query("SELECT count() AS n FROM model_releases")["n"][0] == 0


def test_a_release_that_waits_follows_what_its_checkpoint_is_validated_against_next(door: Door) -> None:
    door.judged(a_report(points=0.20))
    first = door.admit()
    assert (first.plan.strategy, first.plan.measured_against) == ("blue_green", "old")
    door.judged_again(a_report(points=0.02), "newer", NOW + HOUR)
    again = door.admit()
    assert (again.number, again.plan.strategy, again.plan.measured_against) == (first.number, "canary", "newer")
    door.judged_again(a_report(points=-0.2), "newest", NOW + 2 * HOUR)
    with pytest.raises(NotAdmitted, match="worse than the model in service"):
        door.admit()
    refused = Releases(door.tables).of_job("job")
    assert refused is not None
    assert (refused.state, "worse than the model in service" in refused.explanation) == ("refused", True)


def test_nobody_gets_past_validation(door: Door) -> None:
    with pytest.raises(NothingToValidate):
        door.admit()
    store_checkpoint(door.tables, "job")
    with pytest.raises(NotValidated):
        door.admit()


@pytest.mark.parametrize("strategy", ["blue_green", "immediate"])
def test_one_may_ask_for_more_care_and_never_for_less(strategy: str, door: Door) -> None:
    door.judged(a_report(points=0.08))
    with pytest.raises(NotAdmitted, match="bolder than its benchmarks allow"):
        door.admit(strategy=strategy)
    door.judged(a_report(points=0.2), "better")
    careful = door.admit("better", strategy="canary")
    assert [step.share for step in careful.plan.steps] == [0.1, 0.25, 0.5]
    door.judged(a_report(points=0.2), "better-still")
    always = door.admit("better-still", terms=RolloutTerms(always_canary=True))
    assert [step.share for step in always.plan.steps] == [0.1, 0.25, 0.5]


def test_a_backend_that_cannot_split_is_switched_at_once(door: Door) -> None:
    door.judged(a_report())
    release = door.admit(terms=RolloutTerms(splits=False), strategy="canary")
    assert (release.plan.strategy, [step.share for step in release.plan.steps]) == ("immediate", [1.0])


def test_a_model_is_called_as_one_asks_unless_another_is_called_so(door: Door) -> None:
    for job in ("first", "second", "third"):
        door.judged(a_report(), job)
    named = door.admit("first", model_id="agent-zero-rl-v2")
    assert (named.model.model_id, named.number) == ("agent-zero-rl-v2", 1)
    with pytest.raises(NeverReleased, match="another model already"):
        door.admit("second", model_id="agent-zero-rl-v2")
    assert door.admit("third").model.model_id == "agent-zero-rl-v3"
