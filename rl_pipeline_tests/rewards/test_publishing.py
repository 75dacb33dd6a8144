"""Every reward is published once, whoever is killed when, and its message says what the table says."""

import json
import math
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from rl_pipeline.contracts import Reward, parse_message
from rl_pipeline.rewards import publishing
from rl_pipeline.rewards.publishing import POINTS, PublishReport, publish_rewards, unfounded_messages
from rl_pipeline.rewards.storing import read_rewards, write_rewards
from rl_pipeline.stores.clickhouse import ClickHouseWarehouse
from rl_pipeline.stores.jetstream import JetStream
from rl_pipeline_tests.rewards.stored_frames import CONFIGURATION, STREAM, rewards, trajectory_id
from rl_pipeline_tests.waiting import wait_until

NOW = datetime(2026, 1, 3, tzinfo=UTC)
REWARDS = "RL_REWARDS"
SUBJECT = "agent.rl.reward.v1"
SOURCES: Any = {"task_completion": "automated", "user_feedback": "human"}


class Killed(BaseException):
    """Stands for kill -9: nothing handles it."""


def publish(stream: JetStream, warehouse: ClickHouseWarehouse, **options: Any) -> PublishReport:
    given = {"stream": STREAM, "reward_stream": REWARDS, "configuration": CONFIGURATION, "sources": SOURCES} | options
    return publish_rewards(stream, warehouse, **given)


def published(stream: JetStream) -> list[Reward]:
    last = stream.state(REWARDS).last_sequence
    found = [message for batch in stream.read(REWARDS, 1, last, 500) for message in batch if message.data != b"{}"]
    messages = [parse_message(SUBJECT, message.data) for message in found]
    assert [message.message_id for message in found] == [one.reward_id for one in messages if isinstance(one, Reward)]
    return messages  # type: ignore[return-value]


def test_the_message_says_what_the_table_says(stream: JetStream, warehouse: ClickHouseWarehouse) -> None:
    write_rewards(warehouse, STREAM, rewards({"sequence": 1, "revision": 2}), NOW)
    assert publish(stream, warehouse) == PublishReport(1, 0)
    (message,) = published(stream)
    assert (message.trajectory_id, message.session_id, message.timestamp) == (trajectory_id(1), "session", NOW)
    assert (message.total_reward, message.reward_type) == (0.65625, "sparse")
    component = message.reward_components.by_name()["user_feedback"]
    assert (component.score, component.weight, component.source) == (0.5, 0.375, "human")
    assert component.reasoning == "neutral: none given"
    assert message.normalization is not None
    told = json.loads(message.normalization.model_dump_json())
    assert told["method"] == "z-score"
    assert told["components"]["task_completion"] == {"mean": 0.5, "std": 0.25, "n": 1000}
    metadata = message.metadata
    assert (metadata.evaluator, metadata.evaluation_method) == ("rl-pipeline", "hybrid")
    assert (metadata.confidence, metadata.revision, metadata.raw_total) == (0.5, 2, 0.8125)
    assert metadata.configuration_hash == CONFIGURATION


def test_a_repeated_run_publishes_nothing_new_and_a_new_revision_is_published(
    stream: JetStream, warehouse: ClickHouseWarehouse
) -> None:
    first = rewards({"sequence": 1}, {"sequence": 2})
    write_rewards(warehouse, STREAM, first, NOW)
    write_rewards(warehouse, STREAM, rewards({"sequence": 1, "configuration": "another"}), NOW)
    assert publish(stream, warehouse) == PublishReport(2, 0)
    write_rewards(warehouse, STREAM, first, NOW)  # computed again
    assert publish(stream, warehouse) == PublishReport(0, 0)
    write_rewards(warehouse, STREAM, rewards({"sequence": 1, "revision": 1}), NOW)
    assert publish(stream, warehouse) == PublishReport(1, 0)
    assert [message.metadata.revision for message in published(stream)] == [0, 0, 1]
    marks = read_rewards(warehouse, STREAM, CONFIGURATION, 1, 2)["published_sequence"].to_list()
    assert marks == [1, 3, 2]


@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize("batch", [1, 2])
def test_who_is_killed_in_between_publishes_each_once_all_the_same(
    stream: JetStream, warehouse: ClickHouseWarehouse, monkeypatch: pytest.MonkeyPatch, point: str, batch: int
) -> None:
    forget_message_ids(stream)
    monkeypatch.setattr(publishing, "_BATCH_REWARDS", 2)
    write_rewards(warehouse, STREAM, rewards(*({"sequence": number} for number in range(1, 6))), NOW)
    seen: list[str] = []

    def die(reached: str) -> None:
        seen.append(reached)
        if seen.count(point) == batch:
            raise Killed

    with pytest.raises(Killed):
        publish(stream, warehouse, reached=die)
    wait_until_forgotten(stream)
    report = publish(stream, warehouse)
    assert report.found == (2 if point == "after_publishing" else 0)
    assert [message.trajectory_id for message in published(stream)] == [trajectory_id(n) for n in range(1, 6)]
    assert 0 not in read_rewards(warehouse, STREAM, CONFIGURATION, 1, 5)["published_sequence"]
    assert publish(stream, warehouse) == PublishReport(0, 0)


def test_what_one_configuration_left_unmarked_is_not_published_again_after_another_went_on(
    stream: JetStream, warehouse: ClickHouseWarehouse
) -> None:
    def die(reached: str) -> None:
        if reached == "after_publishing":
            raise Killed

    forget_message_ids(stream)
    write_rewards(warehouse, STREAM, rewards({"sequence": 1}), NOW)
    write_rewards(warehouse, STREAM, rewards({"sequence": 2, "configuration": "another"}), NOW)
    with pytest.raises(Killed):
        publish(stream, warehouse, reached=die)
    wait_until_forgotten(stream)
    assert publish(stream, warehouse, configuration="another") == PublishReport(1, 1)
    assert publish(stream, warehouse) == PublishReport(0, 0)
    assert [message.trajectory_id for message in published(stream)] == [trajectory_id(1), trajectory_id(2)]


def test_a_reward_that_no_message_can_hold_holds_up_no_other(
    stream: JetStream, warehouse: ClickHouseWarehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publishing, "_BATCH_REWARDS", 2)
    too_long = {"sequence": 3, "evidences": ["x" * 2**21, ""]}
    rows = rewards({"sequence": 1, "total": math.nan}, {"sequence": 2}, too_long, {"sequence": 4}, {"sequence": 5})
    write_rewards(warehouse, STREAM, rows, NOW)
    assert publish(stream, warehouse) == PublishReport(3, 0, refused=2)
    assert [message.trajectory_id for message in published(stream)] == [trajectory_id(n) for n in (2, 4, 5)]
    assert publish(stream, warehouse) == PublishReport(0, 0, refused=2)
    assert read_rewards(warehouse, STREAM, CONFIGURATION, 1, 5)["published_sequence"].to_list() == [0, 1, 0, 2, 3]


def test_a_reward_that_was_withdrawn_and_computed_again_is_told_though_the_stream_knows_its_id(
    stream: JetStream, warehouse: ClickHouseWarehouse
) -> None:
    for again in range(3):
        write_rewards(warehouse, STREAM, rewards({"sequence": 1}), NOW + timedelta(hours=again))
        assert publish(stream, warehouse) == PublishReport(1, 0)
        assert list(unfounded_messages(stream, warehouse, REWARDS)) == []
        warehouse.execute("TRUNCATE TABLE rewards")
        [sequence] = unfounded_messages(stream, warehouse, REWARDS)
        assert sequence == again + 1
        stream.erase(REWARDS, sequence)


def test_the_stream_alone_would_take_a_reward_twice(stream: JetStream) -> None:
    forget_message_ids(stream)
    stream.publish(SUBJECT, b"{}", "reward")
    wait_until_forgotten(stream)
    assert not stream.publish(SUBJECT, b"{}", "reward").duplicate, "the test above could not fail"


def forget_message_ids(stream: JetStream) -> None:
    configuration = stream.request(f"STREAM.INFO.{REWARDS}")["config"]
    stream.request(f"STREAM.UPDATE.{REWARDS}", configuration | {"duplicate_window": 10**8})


def wait_until_forgotten(stream: JetStream) -> None:
    """Until the window is over in which the stream knows messages by their ids."""
    stream.publish(SUBJECT, b"{}", "probe")
    wait_until(lambda: not stream.publish(SUBJECT, b"{}", "probe").duplicate)
