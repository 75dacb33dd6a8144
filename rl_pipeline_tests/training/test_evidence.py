"""What the warehouse's tables say about whether to train, and the requests that follow from it."""

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import polars as pl
import pytest

from rl_pipeline.stores.clickhouse import ClickHouseWarehouse
from rl_pipeline.stores.jetstream import JetStream
from rl_pipeline.training.asking import ask_if_due
from rl_pipeline.training.degradation import Sample
from rl_pipeline.training.evidence import read_evidence, serving_model, unscored_trajectories
from rl_pipeline.training.jobs.job import Job, State
from rl_pipeline.training.jobs.requests import Defaults, StartingPoint, accept_requests
from rl_pipeline.training.jobs.rows import write_job
from rl_pipeline.training.triggers import Decision, TriggerPolicy, Wait, decide
from rl_pipeline_tests.training.job_tables import (
    CONFIGURATION,
    STREAM,
    emptied,
    migrated_database,
    store_rewards,
    store_trajectories,
    wait_for_pending,
)
from rl_pipeline_tests.training.job_values import MINUTE, NOW, WAYS, a_request

DAY = timedelta(days=1)
ALIKE = (0.5, 0.9)
POLICY = TriggerPolicy(threshold=50, min_new=5)


@pytest.fixture(scope="module")
def tables(clickhouse_url: str) -> Iterator[ClickHouseWarehouse]:
    with migrated_database(clickhouse_url) as database:
        yield database


@pytest.fixture
def warehouse(tables: ClickHouseWarehouse) -> ClickHouseWarehouse:
    emptied(tables)
    choose(tables, CONFIGURATION, NOW - 30 * DAY)
    return tables


def choose(warehouse: ClickHouseWarehouse, configuration: str, since: datetime) -> None:
    row = {"hash": configuration, "scores_hash": "s", "configuration": "{}", "first_used_at": since}
    warehouse.insert("reward_configurations", pl.DataFrame([{**row, "current_since": since}]))


def store_job(
    warehouse: ClickHouseWarehouse,
    job_id: str,
    state: State,
    *,
    at: datetime,
    watermark: int = 0,
    reason: str = "manual",
    **fields: Any,
) -> None:
    job = Job.accepted(a_request(job_id, trigger_reason=reason, **fields), through_sequence=0, now=at)
    for step in WAYS[state]:
        job = job.moved(step, "", at, watermark=watermark)
    write_job(warehouse, job)


def test_without_any_job_everything_that_has_a_reward_is_new(warehouse: ClickHouseWarehouse) -> None:
    store_rewards(warehouse, 7, at=NOW - DAY)
    store_rewards(warehouse, 3, at=NOW - DAY, revision=1)
    store_rewards(warehouse, 7, at=NOW, configuration="another")
    found = read_evidence(warehouse, STREAM, now=NOW)
    assert (found.new_since_last_training, found.new_since_last_completed, found.last_training) == (7, 7, "")


def test_what_a_job_could_have_used_is_no_longer_new(warehouse: ClickHouseWarehouse) -> None:
    store_rewards(warehouse, 100, at=NOW - 5 * DAY, every=MINUTE)
    store_job(warehouse, "completed", "completed", at=NOW - 4 * DAY, watermark=40)
    store_job(warehouse, "failed", "failed", at=NOW - 3 * DAY, watermark=90, reason="scheduled")
    found = read_evidence(warehouse, STREAM, now=NOW)
    assert (found.new_since_last_training, found.new_since_last_completed) == (10, 60)
    assert (found.last_training, found.under_way) == ("failed", None)


def test_what_is_new_came_after_the_training_that_learnt_furthest_whichever_was_accepted_last(
    warehouse: ClickHouseWarehouse,
) -> None:
    store_rewards(warehouse, 105, at=NOW - 5 * DAY, every=MINUTE)
    store_job(warehouse, "waited", "completed", at=NOW - 4 * DAY, watermark=100, reason="scheduled")
    store_job(warehouse, "overtook", "completed", at=NOW - 4 * DAY + MINUTE, watermark=50)
    found = read_evidence(warehouse, STREAM, now=NOW)
    assert (found.new_since_last_training, found.new_since_last_completed) == (5, 5)
    assert found.last_training == "overtook", "the next request is named after it"


def test_a_job_that_waits_while_a_later_one_trains_will_learn_what_came_before_it(
    warehouse: ClickHouseWarehouse,
) -> None:
    store_rewards(warehouse, 100, at=NOW, every=MINUTE)
    store_job(warehouse, "waiting", "ready", at=NOW + timedelta(minutes=89, seconds=30))
    store_job(warehouse, "running", "running", at=NOW + timedelta(minutes=99), watermark=40)
    assert read_evidence(warehouse, STREAM, now=NOW).new_since_last_training == 10


def test_a_job_that_has_no_dataset_yet_counts_from_when_it_was_accepted(warehouse: ClickHouseWarehouse) -> None:
    store_rewards(warehouse, 100, at=NOW, every=MINUTE)
    store_job(warehouse, "waiting", "waiting", at=NOW + timedelta(minutes=89, seconds=30))
    assert read_evidence(warehouse, STREAM, now=NOW).new_since_last_training == 10


def bring(warehouse: ClickHouseWarehouse, first: int, count: int) -> None:
    """Remember that files have brought the trajectories at these sequences."""
    ids = [f"trajectory-{number}" for number in range(first, first + count)]
    warehouse.insert("imported_trajectories", pl.DataFrame({"trajectory_id": ids}).with_columns(job_id=pl.lit("files")))


def test_what_files_have_brought_is_not_new(warehouse: ClickHouseWarehouse) -> None:
    store_rewards(warehouse, 60, at=NOW)
    bring(warehouse, 1, 60)
    store_job(warehouse, "files", "running", at=NOW, watermark=60, **IMPORTED)
    store_rewards(warehouse, 7, first=61, at=NOW)
    found = read_evidence(warehouse, STREAM, now=NOW)
    assert (found.new_since_last_training, found.new_since_last_completed) == (7, 7)
    assert isinstance(decide(found, POLICY), Wait)


def test_what_files_have_brought_says_nothing_of_the_model_in_service(warehouse: ClickHouseWarehouse) -> None:
    store_rewards(warehouse, 250, first=301, at=NOW - 3 * DAY, totals=ALIKE)
    store_rewards(warehouse, 150, first=551, at=NOW - timedelta(hours=5), totals=ALIKE)
    alone = serving_model(warehouse, STREAM, NOW)
    assert alone is not None
    store_rewards(warehouse, 300, first=1, at=NOW - 4 * DAY, totals=(1.0,))
    store_rewards(warehouse, 300, first=701, at=NOW - MINUTE, totals=(0.0, 0.1))
    store_rewards(warehouse, 900, first=1001, at=NOW - MINUTE, model="model-2")
    bring(warehouse, 1, 300)
    bring(warehouse, 701, 1200)
    assert serving_model(warehouse, STREAM, NOW) == alone
    store_job(
        warehouse,
        "asked",
        "running",
        at=NOW - DAY,
        reason="performance_degradation",
        timestamp=NOW - DAY,
        metadata={"degraded_model": "model-1"},
    )
    since = serving_model(warehouse, STREAM, NOW)
    assert since is not None
    assert [(day.model_version, day.count) for day in since.since_asked] == [("model-1", 150)]


IMPORTED = {"training_config": {"dataset": {"source": "local", "path": "files"}}}


@pytest.mark.parametrize(
    ("state", "fields", "new"),
    [
        ("running", {}, 10),
        ("completed", {}, 10),
        ("cancelled", {}, 60),
        ("cancelling", {}, 60),
        ("failed", {}, 60),
        ("failed", {"reason": "threshold_reached"}, 10),
        ("completed", {"metadata": {"shadow": True}}, 60),
        ("completed", IMPORTED, 60),
        ("running", IMPORTED, 60),
    ],
    ids=str,
)
def test_only_a_training_on_what_came_by_the_stream_makes_it_old(
    warehouse: ClickHouseWarehouse, state: State, fields: dict[str, Any], new: int
) -> None:
    store_rewards(warehouse, 100, at=NOW - 5 * DAY, every=MINUTE)
    store_job(warehouse, "before", "completed", at=NOW - 4 * DAY, watermark=40)
    store_job(warehouse, "then", state, at=NOW, watermark=90, **fields)
    found = read_evidence(warehouse, STREAM, now=NOW)
    assert (found.new_since_last_training, found.last_training) == (new, "then" if new == 10 else "before")


@pytest.mark.parametrize(
    ("reason", "state", "under_way"),
    [
        ("threshold_reached", "running", "job-1"),
        ("scheduled", "waiting", "job-1"),
        ("performance_degradation", "ready", "job-1"),
        ("manual", "running", None),
        ("scheduled", "completed", None),
    ],
)
def test_under_way_is_what_the_pipeline_asked_for_and_has_not_ended(
    warehouse: ClickHouseWarehouse, reason: str, state: State, under_way: str | None
) -> None:
    store_job(warehouse, "job-1", state, at=NOW, reason=reason)
    assert read_evidence(warehouse, STREAM, now=NOW).under_way == under_way


def test_a_model_is_measured_by_its_first_trajectories_and_those_of_the_last_day(
    warehouse: ClickHouseWarehouse,
) -> None:
    store_rewards(warehouse, 50, first=1, at=NOW - 3 * DAY, model="model-0", totals=(0.1,))
    store_rewards(warehouse, 200, first=51, at=NOW - 2 * DAY, totals=ALIKE)
    store_rewards(warehouse, 200, first=51, at=NOW - 2 * DAY, totals=(0.2,), revision=1)
    store_rewards(warehouse, 200, first=51, at=NOW - 2 * DAY, totals=(0.1,), configuration="another")
    store_rewards(warehouse, 30, first=251, at=NOW - 2 * DAY, totals=(0.0,))
    store_rewards(warehouse, 120, first=281, at=NOW - timedelta(hours=5), totals=(0.4, 0.6))
    store_rewards(warehouse, 40, first=401, at=NOW - timedelta(hours=5), model="model-2", totals=(1.0,))
    store_rewards(warehouse, 500, first=441, at=NOW - timedelta(hours=5), model="", totals=(0.0,))
    store_rewards(warehouse, 200, first=51, at=NOW - 2 * DAY, totals=ALIKE)  # the same again, as after a publication
    found = serving_model(warehouse, STREAM, NOW)
    assert found is not None
    assert (found.version, found.asked_at) == ("model-1", None)
    assert (found.bake.count, found.recent.count) == (200, 120)
    assert (found.bake.mean, found.recent.mean) == (pytest.approx(0.7), pytest.approx(0.5))
    assert found.bake.variance == pytest.approx(0.04 * 200 / 199)


def test_under_a_new_configuration_a_model_is_measured_once_its_first_days_are(warehouse: ClickHouseWarehouse) -> None:
    store_rewards(warehouse, 200, at=NOW - 2 * DAY, totals=ALIKE)
    choose(warehouse, "newer", NOW - DAY)
    store_rewards(warehouse, 150, first=201, at=NOW - MINUTE, totals=(0.2,), configuration="newer")
    found = serving_model(warehouse, STREAM, NOW)
    assert found is not None
    assert (found.bake.count, found.recent) == (150, Sample(0, 0.0, 0.0))


def test_there_may_be_no_model_to_measure(warehouse: ClickHouseWarehouse) -> None:
    assert serving_model(warehouse, STREAM, NOW) is None
    store_rewards(warehouse, 300, at=NOW - 2 * DAY)
    assert serving_model(warehouse, STREAM, NOW) is None, "nothing in the last day"
    store_rewards(warehouse, 300, first=301, at=NOW - MINUTE, model="")
    assert serving_model(warehouse, STREAM, NOW) is None, "nobody says which model"


def test_without_a_configuration_there_is_nothing_to_measure(tables: ClickHouseWarehouse) -> None:
    assert serving_model(emptied(tables), STREAM, NOW) is None


def test_a_trajectory_without_a_reward_is_counted_up_to_a_sequence(warehouse: ClickHouseWarehouse) -> None:
    store_trajectories(warehouse, 5, scored=2, at=NOW)
    assert [unscored_trajectories(warehouse, STREAM, last) for last in (1, 2, 4, 9)] == [0, 0, 2, 3]


def test_a_trajectory_that_was_measured_at_another_place_has_its_reward(warehouse: ClickHouseWarehouse) -> None:
    store_trajectories(warehouse, 5, scored=0, at=NOW)
    warehouse.insert("rewards", pl.DataFrame({"stream": [STREAM], "sequence": [40], "trajectory_id": ["trajectory-3"]}))
    assert unscored_trajectories(warehouse, STREAM, 5) == 4


def requests_in(stream: JetStream) -> list[dict[str, object]]:
    last = stream.state("RL_TRAINING").last_sequence
    stored = [message for batch in stream.read("RL_TRAINING", 1, last, 100) for message in batch]
    return [json.loads(one.data) for one in stored if one.subject == "agent.rl.training.request.v1"]


def accept(stream: JetStream, warehouse: ClickHouseWarehouse, now: datetime) -> None:
    defaults = Defaults("dpo", lambda: StartingPoint("small"))
    wait_for_pending(stream, "training_requests", 1)
    taken = accept_requests(
        stream, warehouse, defaults=defaults, trajectories=STREAM, redactor=lambda: pytest.fail("refused"), now=now
    )
    assert not taken.refused


def test_the_threshold_asks_once_and_again_after_as_many_more(
    warehouse: ClickHouseWarehouse, stream: JetStream
) -> None:
    store_rewards(warehouse, 49, at=NOW)
    ask = lambda now: ask_if_due(stream, warehouse, POLICY, trajectories=STREAM, now=now)  # noqa: E731
    assert ask(NOW) == Wait("49 new trajectories since the last training, 50 are needed")
    store_rewards(warehouse, 1, first=50, at=NOW)
    decided = [ask(NOW + MINUTE), ask(NOW + 2 * MINUTE)]
    [request] = requests_in(stream)
    assert [one.job_id for one in decided if isinstance(one, Decision)] == [request["training_job_id"]] * 2
    assert (request["trigger_reason"], request["priority"]) == ("threshold_reached", "normal")
    accept(stream, warehouse, NOW + 2 * MINUTE)
    assert isinstance(ask(NOW + 3 * MINUTE), Wait)
    [job] = warehouse.query("SELECT job_id FROM training_jobs FINAL")["job_id"].to_list()
    store_job(warehouse, job, "cancelled", at=NOW + 2 * MINUTE, reason="threshold_reached")
    assert isinstance(ask(NOW + 3 * MINUTE), Wait), "not the same again at once"
    store_rewards(warehouse, 50, first=51, at=NOW + 4 * MINUTE)
    assert isinstance(ask(NOW + 5 * MINUTE), Decision)
    assert len({one["training_job_id"] for one in requests_in(stream)}) == 2


def test_the_schedule_asks_once_per_time_and_says_why_it_does_not(
    warehouse: ClickHouseWarehouse, stream: JetStream
) -> None:
    two = datetime(2026, 2, 1, 2, tzinfo=UTC)
    store_rewards(warehouse, 4, at=NOW - DAY)
    ask = lambda: ask_if_due(stream, warehouse, POLICY, trajectories=STREAM, scheduled_for=two, now=NOW)  # noqa: E731
    assert ask() == Wait("4 new trajectories since the last completed training, the schedule needs 5")
    store_rewards(warehouse, 1, first=5, at=NOW)
    for _ in range(2):
        assert isinstance(ask(), Decision)
    [request] = requests_in(stream)
    assert request["trigger_reason"] == "scheduled"


def test_degradation_asks_once_per_episode(warehouse: ClickHouseWarehouse, stream: JetStream) -> None:
    policy = TriggerPolicy(threshold=10**6)

    def ask(now: datetime) -> bool:
        return isinstance(ask_if_due(stream, warehouse, policy, trajectories=STREAM, now=now), Decision)

    def days(first: int, last: int, total: float) -> None:
        """200 trajectories on each day from one to another, counted from NOW."""
        for day in range(first, last):
            begins = 1 + 200 * (day + 3)
            spread = timedelta(minutes=5)
            store_rewards(warehouse, 200, first=begins, at=NOW + day * DAY, every=spread, totals=(total, total + 0.1))

    days(-3, -1, 0.7)
    assert not ask(NOW - DAY)
    days(-1, 0, 0.5)
    assert ask(NOW)
    assert ask(NOW + MINUTE), "until it has become a job"
    accept(stream, warehouse, NOW)
    [request] = requests_in(stream)
    assert (request["trigger_reason"], request["priority"]) == ("performance_degradation", "urgent")
    days(0, 3, 0.5)
    assert not ask(NOW + MINUTE)
    assert not ask(NOW + 3 * DAY), "it is still the same episode"
    days(3, 4, 0.7)
    assert not ask(NOW + 4 * DAY), "it has recovered"
    days(4, 5, 0.5)
    assert ask(NOW + 5 * DAY)
    assert len({one["training_job_id"] for one in requests_in(stream)}) == 2
