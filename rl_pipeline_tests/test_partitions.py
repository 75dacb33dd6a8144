"""What the two partitions promise."""

from datetime import UTC, datetime

import dagster as dg

from rl_pipeline.partitions import stream_days, training_jobs


def test_today_is_a_partition_already() -> None:
    before, last, after = datetime.now(UTC), stream_days.get_last_partition_key(), datetime.now(UTC)
    assert last in {before.date().isoformat(), after.date().isoformat()}


def test_a_training_job_becomes_a_partition_by_its_id() -> None:
    instance = dg.DagsterInstance.ephemeral()
    instance.add_dynamic_partitions(str(training_jobs.name), ["manual-0b7e"])
    assert training_jobs.get_partition_keys(dynamic_partitions_store=instance) == ["manual-0b7e"]
