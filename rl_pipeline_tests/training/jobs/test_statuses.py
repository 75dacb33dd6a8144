"""What is said of a job, and that saying it again changes nothing."""

from collections.abc import Callable

import pytest

from rl_pipeline.contracts import TrainingStatus, parse_message
from rl_pipeline.contracts.fields import IDENTIFIER_PATTERN
from rl_pipeline.stores.jetstream import JetStream
from rl_pipeline.training.jobs import statuses
from rl_pipeline.training.jobs.statuses import Announcement, announce
from rl_pipeline_tests.training.job_values import MINUTE, NOW, a_failure, an_attempt

RESULT = """{"steps": 3, "artifacts": {"final_checkpoint": "s3://models/job-1"}, "resource_usage": {"cost_usd": 0.5},
             "evaluation_results": {"holdout_reward": 0.8, "improvement_over_baseline": 0.1}}"""
SAYINGS: dict[str, Callable[[], Announcement]] = {
    "queued": lambda: statuses.queued("job-1", 1, NOW),
    "queued again": lambda: statuses.queued("job-1", 2, NOW, after=a_failure("OOM")),
    "failed": lambda: statuses.failed(a_failure("UNKNOWN", 3), "a person has to look", NOW),
    "failed early": lambda: statuses.failed_without_attempt("job-1", "there are no files", NOW),
    "refused": lambda: statuses.refused("job-1", 41, "priority breaks enum", NOW),
    "cancelled": lambda: statuses.cancelled("job-1", "cancelled by ada", NOW),
    "completed": lambda: statuses.completed(an_attempt(begun=True).ended("completed", NOW, result=RESULT), NOW),
    "completed without more": lambda: statuses.completed(an_attempt(begun=True).ended("completed", NOW), NOW),
}


@pytest.mark.parametrize("saying", SAYINGS)
def test_every_status_keeps_the_contract_and_is_stored_once(stream: JetStream, saying: str) -> None:
    for _ in range(2):
        announce(stream, SAYINGS[saying]())
    assert stream.state("RL_TRAINING").messages == 1
    stored = stream.get("RL_TRAINING", 1)
    status = parse_message(stored.subject, stored.data)
    assert isinstance(status, TrainingStatus)
    assert (status.training_job_id, status.status) == (
        "job-1",
        saying.split(maxsplit=1)[0].replace("refused", "failed"),
    )


def test_different_things_have_different_ids_that_no_job_and_no_request_can_have() -> None:
    ids = [SAYINGS[saying]().message_id for saying in SAYINGS]
    assert len(set(ids)) == len(ids) - 2, "a job fails once and completes once, however it is told"
    assert all("/" in one for one in ids)
    assert "/" not in IDENTIFIER_PATTERN


def test_a_failure_tells_its_class_its_message_why_it_is_final_and_the_traceback() -> None:
    error = SAYINGS["failed"]().status.error
    assert error is not None
    assert (error.code, error.message, error.traceback) == ("UNKNOWN", "it broke; a person has to look", "…")


def test_a_completed_job_tells_its_artifacts_costs_and_results() -> None:
    status = SAYINGS["completed"]().status
    assert status.artifacts is not None
    assert status.artifacts.final_checkpoint == "s3://models/job-1"
    assert status.resource_usage is not None
    assert status.resource_usage.cost_usd == 0.5
    assert status.evaluation_results is not None
    assert status.evaluation_results.improvement_over_baseline == 0.1
    bare = SAYINGS["completed without more"]().status
    assert (bare.artifacts, bare.resource_usage, bare.evaluation_results) == (None, None, None)


def test_a_traceback_is_cut_to_its_end() -> None:
    attempt = an_attempt(begun=True).ended("failed", NOW + MINUTE, traceback="x" * 100_000 + "the last line")
    error = statuses.failed(attempt, "", NOW).status.error
    assert error is not None
    assert str(error.traceback).endswith("the last line")
    assert len(str(error.traceback)) == 20_000
