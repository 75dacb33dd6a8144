"""What scoring a day leaves behind, as Dagster shows it: from published trajectories and feedback to messages."""

import json
from datetime import UTC, datetime
from random import Random
from typing import Any

import dagster as dg
import pytest
from dagster._core.events import DagsterEvent  # the only way to end a run by hand

from rl_pipeline.assets.redacted_trajectories import raw_and_redacted_trajectories
from rl_pipeline.assets.trajectory_rewards import known_tricks_do_not_pay, trajectory_rewards
from rl_pipeline.assets.trajectory_stream import trajectory_stream
from rl_pipeline.automation.rewards_due import rewards_due
from rl_pipeline.collection.samples import sample_trajectories
from rl_pipeline.contracts import Reward, parse_message, serialize
from rl_pipeline.partitions import stream_days
from rl_pipeline.resources.rewards import RewardsResource
from rl_pipeline.rewards.configuration import DEFAULT_WEIGHTS
from rl_pipeline.stores.clickhouse import ClickHouseWarehouse
from rl_pipeline.stores.jetstream import JetStream

downstream_ran: list[str] = []


@dg.asset(deps=["trajectory_rewards"], partitions_def=stream_days)
def whatever_comes_next() -> None:
    downstream_ran.append("ran")


@dg.job
def a_run_that_does_nothing() -> None:
    pass


@pytest.fixture
def resources(ingest_resources: dict[str, Any]) -> dict[str, Any]:
    downstream_ran.clear()
    return {**ingest_resources, "rewards": RewardsResource(weights=DEFAULT_WEIGHTS)}


def publish(stream: JetStream, count: int) -> tuple[str, list[str]]:
    """Publish samples; returns the day of the stream's clock, and their ids."""
    made = list(sample_trajectories(count, now=datetime(2026, 1, 1, tzinfo=UTC), randomness=Random(7)))
    for trajectory in made:
        stream.publish("agent.rl.trajectory.v1", serialize(trajectory), trajectory.trajectory_id)
    return stream.get("RL_TRAJECTORIES", 1).time.date().isoformat(), [t.trajectory_id for t in made]


def give_feedback(stream: JetStream, trajectory_id: str, **opinion: Any) -> None:
    said = {"feedback_id": f"said-of-{trajectory_id}", "trajectory_id": trajectory_id, "user_id": "user-19"}
    message = {**said, "timestamp": "2026-01-01T00:00:00Z", **opinion}
    stream.publish("agent.rl.feedback.v1", json.dumps(message).encode(), message["feedback_id"])


def materialize(resources: dict[str, Any], day: str, *assets: Any) -> dg.ExecuteInProcessResult:
    return dg.materialize(list(assets), partition_key=day, resources=resources, raise_on_error=False)


def ingest(resources: dict[str, Any], day: str) -> None:
    assert materialize(resources, day, trajectory_stream, raw_and_redacted_trajectories).success


def score(resources: dict[str, Any], day: str) -> dict[str, Any]:
    result = materialize(resources, day, trajectory_rewards, whatever_comes_next)
    assert result.success
    [event] = [e.materialization for e in result.get_asset_materialization_events() if e.materialization.metadata]
    checks = {evaluation.check_name: evaluation.passed for evaluation in result.get_asset_check_evaluations()}
    return {label: value.value for label, value in event.metadata.items()} | {"checks": checks}


def failed_checks(resources: dict[str, Any], day: str) -> set[str]:
    result = materialize(resources, day, trajectory_rewards, whatever_comes_next)
    return {evaluation.check_name for evaluation in result.get_asset_check_evaluations() if not evaluation.passed}


def published(stream: JetStream) -> list[Reward]:
    last = stream.state("RL_REWARDS").last_sequence
    found = [message for batch in stream.read("RL_REWARDS", 1, last, 500) for message in batch] if last else []
    return [parse_message(message.subject, message.data) for message in found]  # type: ignore[misc]


def test_a_day_is_scored_checked_and_published_once(stream: JetStream, resources: dict[str, Any]) -> None:
    day, identities = publish(stream, 40)
    ingest(resources, day)
    shown = score(resources, day)
    assert (shown["dagster/row_count"], shown["scored_now"], shown["published_now"]) == (40, 40, 40)
    assert set(shown["checks"].values()) == {True}
    assert len(shown["checks"]) == 4
    assert downstream_ran == ["ran"]
    assert "task_completion" in shown["components"]
    messages = published(stream)
    assert sorted(reward.trajectory_id for reward in messages) == sorted(identities)
    assert all(0 <= reward.total_reward <= 1 for reward in messages)
    again = score(resources, day)
    assert (again["scored_now"], again["unchanged"], again["published_now"]) == (0, 40, 0)
    assert len(published(stream)) == 40


def test_late_feedback_makes_a_new_revision_and_republishes(
    stream: JetStream, warehouse: ClickHouseWarehouse, resources: dict[str, Any]
) -> None:
    day, identities = publish(stream, 5)
    ingest(resources, day)
    score(resources, day)
    give_feedback(stream, identities[2], kind="thumbs_down", text="mail me at jo@northwind.example")
    shown = score(resources, day)
    assert (shown["feedback_now"], shown["scored_now"], shown["published_now"], shown["revised"]) == (1, 1, 1, 1)
    [first, second] = [reward for reward in published(stream) if reward.trajectory_id == identities[2]]
    assert (first.metadata.revision, second.metadata.revision) == (0, 1)
    assert second.reward_components.by_name()["user_feedback"].score == 0.0
    assert first.metadata.raw_total is not None
    assert second.metadata.raw_total is not None
    assert second.metadata.raw_total < first.metadata.raw_total
    history = warehouse.query(
        "SELECT * FROM reward_history WHERE metadata LIKE {id:String}", {"id": f"%{identities[2]}%"}
    )
    assert history.height >= 2
    assert "northwind" not in str(warehouse.query("SELECT text FROM trajectory_feedback").rows())


def test_feedback_that_came_first_counts_from_the_first_reward_on(stream: JetStream, resources: dict[str, Any]) -> None:
    made = list(sample_trajectories(1, now=datetime(2026, 1, 1, tzinfo=UTC), randomness=Random(7)))
    give_feedback(stream, made[0].trajectory_id, kind="stars", rating=5)
    day, _ = publish(stream, 1)
    ingest(resources, day)
    assert score(resources, day)["revised"] == 0
    [reward] = published(stream)
    assert reward.reward_components.by_name()["user_feedback"].score == 1.0


def test_the_sensor_scores_what_has_no_reward_and_then_rests(stream: JetStream, resources: dict[str, Any]) -> None:
    day, identities = publish(stream, 3)
    ingest(resources, day)
    with dg.DagsterInstance.ephemeral() as instance:
        context = dg.build_sensor_context(instance=instance, resources=resources)
        asked = rewards_due(context)
        assert [request.partition_key for request in asked.run_requests] == [day]
        score(resources, day)
        rests = rewards_due(dg.build_sensor_context(instance=instance, resources=resources, cursor=asked.cursor))
        assert not rests.run_requests
        give_feedback(stream, identities[0], kind="thumbs_up")
        wakes = rewards_due(dg.build_sensor_context(instance=instance, resources=resources, cursor=rests.cursor))
        assert len(wakes.run_requests) == 1
        assert wakes.run_requests[0].run_key != asked.run_requests[0].run_key


@pytest.mark.parametrize(
    ("ended", "reason"),
    [(dg.DagsterRunStatus.SUCCESS, "still without a reward"), (dg.DagsterRunStatus.FAILURE, "failed 1 times")],
)
def test_a_day_that_a_run_did_not_help_is_not_scored_over_and_over(
    stream: JetStream, resources: dict[str, Any], ended: dg.DagsterRunStatus, reason: str
) -> None:
    day, _ = publish(stream, 1)
    ingest(resources, day)
    with dg.DagsterInstance.ephemeral() as instance:
        asked = rewards_due(dg.build_sensor_context(instance=instance, resources=resources))
        [request] = asked.run_requests
        run = instance.create_run_for_job(
            a_run_that_does_nothing, tags=dict(request.tags), status=dg.DagsterRunStatus.STARTED
        )
        if ended is dg.DagsterRunStatus.FAILURE:
            instance.report_run_failed(run)
        else:
            instance.report_dagster_event(DagsterEvent("PIPELINE_SUCCESS", run.job_name), run.run_id)
        waits = rewards_due(dg.build_sensor_context(instance=instance, resources=resources, cursor=asked.cursor))
        assert not waits.run_requests
        assert reason in str(waits.skip_reason)


def repeat_a_place(warehouse: ClickHouseWarehouse) -> None:
    """A second trajectory at a place that is measured already: nobody measures it."""
    warehouse.execute(
        "INSERT INTO trajectories SELECT * REPLACE ('another' AS trajectory_id) "
        "FROM trajectories FINAL WHERE sequence = 2"
    )


def test_a_reward_out_of_bounds_stops_what_comes_next(
    stream: JetStream, warehouse: ClickHouseWarehouse, resources: dict[str, Any]
) -> None:
    day, _ = publish(stream, 3)
    ingest(resources, day)
    score(resources, day)
    downstream_ran.clear()
    warehouse.execute("ALTER TABLE rewards UPDATE raw_total = 1.5 WHERE sequence = 2", {}, {"mutations_sync": 2})
    assert failed_checks(resources, day) == {"rewards_are_bounded"}
    assert downstream_ran == []


def test_a_trajectory_without_a_reward_is_noticed(
    stream: JetStream, warehouse: ClickHouseWarehouse, resources: dict[str, Any]
) -> None:
    day, _ = publish(stream, 3)
    ingest(resources, day)
    score(resources, day)
    downstream_ran.clear()
    repeat_a_place(warehouse)
    assert failed_checks(resources, day) == {"every_trajectory_has_a_reward"}
    assert downstream_ran == []


def test_known_tricks_do_not_pay_under_the_default_configuration(resources: dict[str, Any]) -> None:
    found = known_tricks_do_not_pay(resources["rewards"])
    assert isinstance(found, dg.AssetCheckResult)
    assert found.passed
