"""What made-up trajectories are good for."""

from datetime import UTC, datetime
from random import Random

from rl_pipeline.collection.samples import sample_trajectories
from rl_pipeline.contracts import parse_message, serialize

NOW = datetime(2026, 1, 2, tzinfo=UTC)


def test_samples_keep_the_contract_and_differ_from_each_other() -> None:
    samples = list(sample_trajectories(50, now=NOW, randomness=Random("seed")))
    assert [parse_message("agent.rl.trajectory.v1", serialize(sample)) for sample in samples] == samples
    assert len({sample.trajectory_id for sample in samples}) == 50
    assert {sample.task_context.task_status for sample in samples} == {"success", "failed"}


def test_the_same_seed_makes_the_same_samples() -> None:
    once, again = (list(sample_trajectories(5, now=NOW, randomness=Random("seed"))) for _ in range(2))
    assert once == again
