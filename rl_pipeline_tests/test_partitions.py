"""What the two partitions promise."""

from datetime import UTC, datetime

import dagster as dg

from rl_pipeline.partitions import stream_days, training_jobs


def test_today_is_a_partition_from_its_first_second() -> None:
    midnight = datetime(2026, 3, 4, tzinfo=UTC)
    assert stream_days.get_last_partition_key(current_time=midnight) == "2026-03-04"


def test_a_training_job_becomes_a_partition_by_its_id() -> None:
    instance = dg.DagsterInstance.ephemeral()
    instance.add_dynamic_partitions(str(training_jobs.name), ["manual-0b7e"])
    assert training_jobs.get_partition_keys(dynamic_partitions_store=instance) == ["manual-0b7e"]
