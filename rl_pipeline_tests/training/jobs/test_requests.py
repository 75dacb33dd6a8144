"""Requests and cancellations from the real stream: what becomes a job, what repeats one, and what is refused."""

import asyncio
import json
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any, cast

import nats
import pytest

from rl_pipeline.collection.publishing import outgoing_message
from rl_pipeline.contracts import ContractError, TrainingCancel, TrainingRequest, TrainingStatus, parse_message
from rl_pipeline.embedded.nats_server import NatsServer
from rl_pipeline.ingestion.dead_letters import DeadLetter, NoDeadLetter, show_dead_letter
from rl_pipeline.redaction.policy import RedactionKey, RedactionPolicy
from rl_pipeline.redaction.redactor import Redactor
from rl_pipeline.stores.clickhouse import ClickHouseWarehouse
from rl_pipeline.stores.jetstream import JetStream
from rl_pipeline.stores.topology import DEAD_LETTERS, TRAINING, TRAJECTORIES
from rl_pipeline.stores.warehouse import WarehouseError
from rl_pipeline.training.jobs.cancelling import CANCELLATIONS_CONSUMER, fetch_cancellations, nobody_to_cancel
from rl_pipeline.training.jobs.job import Job
from rl_pipeline.training.jobs.refusals import TRAINING_STREAM
from rl_pipeline.training.jobs.requests import (
    REQUESTS_CONSUMER,
    Defaults,
    StartingPoint,
    StartUnknown,
    TakenIn,
    accept_requests,
    check_request,
    filled_in,
    successor_of,
)
from rl_pipeline.training.jobs.rows import find_job, newest_jobs, write_job
from rl_pipeline_tests.fixtures.ingest import REDACTION_KEY
from rl_pipeline_tests.training.job_tables import emptied, migrated_database, wait_for_pending
from rl_pipeline_tests.training.job_values import MINUTE, NOW, a_request

SUBJECT = "agent.rl.training.request.v1"
CANCEL = "agent.rl.training.cancel.v1"
DEFAULTS = Defaults("rloo", lambda: StartingPoint("the-default"))
# The request of the quick reference, as `nats pub` sends it.
QUICK_REFERENCE = {
    "training_job_id": "manual-5B0C6D1E-7f8a-4b9c-8d0e-1f2a3b4c5d6e",
    "timestamp": "2025-12-08T13:00:00Z",
    "requester": "admin-manual",
    "trigger_reason": "manual",
    "training_config": {
        "algorithm": "ppo",
        "base_model": "qwen2.5-32b-instruct",
        "dataset": {"source": "nats_stream", "stream_name": "RL_TRAJECTORIES", "sample_size": 5000},
        "hyperparameters": {"learning_rate": 1e-5, "batch_size": 32, "epochs": 3},
    },
}


@pytest.fixture(scope="module")
def tables(clickhouse_url: str) -> Iterator[ClickHouseWarehouse]:
    with migrated_database(clickhouse_url) as database:
        yield database


@pytest.fixture(scope="module")
def redactor() -> Redactor:
    version, _, secret = REDACTION_KEY.partition(":")
    return Redactor(RedactionPolicy(RedactionKey(version, secret.encode())))


@dataclass
class Intake:
    """The sensor's way of taking requests in."""

    messages: JetStream
    warehouse: ClickHouseWarehouse
    redactor: Redactor
    numbers: Iterator[int] = field(default_factory=lambda: iter(range(1000)))

    def publish(self, content: Any, subject: str = SUBJECT) -> int:
        """As `nats pub` does it: whatever it is, under no id that would hold a repetition back."""
        data = content if isinstance(content, bytes) else json.dumps(content).encode()
        consumer = REQUESTS_CONSUMER if subject == SUBJECT else CANCELLATIONS_CONSUMER
        known = self.messages.request(f"CONSUMER.INFO.{TRAINING.name}.{consumer}")["num_pending"]
        sequence = self.messages.publish(subject, data, f"pub-{next(self.numbers)}").sequence
        wait_for_pending(self.messages, consumer, known + 1)
        return sequence

    def take(self, **changes: Any) -> TakenIn:
        arguments = {"defaults": DEFAULTS, "trajectories": TRAJECTORIES.name, "now": NOW, **changes}
        return accept_requests(self.messages, self.warehouse, redactor=lambda: self.redactor, **arguments)

    def statuses(self) -> list[TrainingStatus]:
        state = self.messages.state(TRAINING.name)
        stored = [
            message for batch in self.messages.read(TRAINING.name, 1, state.last_sequence, 100) for message in batch
        ]
        found = [message for message in stored if message.subject == "agent.rl.training.status.v1"]
        return [parse_message(message.subject, message.data) for message in found]  # type: ignore[misc]

    def letter(self, sequence: int) -> DeadLetter:
        return show_dead_letter(self.messages, TRAINING.name, sequence)

    def is_settled(self, consumer: str = REQUESTS_CONSUMER) -> bool:
        info = self.messages.request(f"CONSUMER.INFO.{TRAINING.name}.{consumer}")
        return (info["num_pending"], info["num_ack_pending"]) == (0, 0)


@pytest.fixture
def intake(stream: JetStream, tables: ClickHouseWarehouse, redactor: Redactor) -> Intake:
    return Intake(stream, emptied(tables), redactor)


def content_of(request: TrainingRequest) -> Any:
    return json.loads(request.model_dump_json())


def test_the_names_of_streams_and_consumers_are_those_that_the_bootstrap_makes() -> None:
    assert TRAINING.name == TRAINING_STREAM
    assert [consumer.name for consumer in TRAINING.consumers] == [REQUESTS_CONSUMER, CANCELLATIONS_CONSUMER]


def test_the_request_of_the_quick_reference_becomes_a_job_that_waits_for_the_head_of_the_stream(intake: Intake) -> None:
    for number in range(3):
        intake.messages.publish("agent.rl.trajectory.v1", b"{}", f"trajectory-{number}")
    intake.publish(QUICK_REFERENCE)
    job_id = str(QUICK_REFERENCE["training_job_id"])
    assert intake.take() == TakenIn(accepted=(job_id,))
    job = find_job(intake.warehouse, job_id)
    assert job is not None
    assert (job.state, job.priority, job.source, job.through_sequence) == ("accepted", "high", "nats_stream", 3)
    assert job.request.training_config.dataset.sample_size == 5000
    [status] = intake.statuses()
    assert (status.training_job_id, status.status) == (job_id, "queued")
    assert intake.is_settled()


def test_a_request_that_is_published_without_any_header_is_accepted_once_and_an_invalid_one_answered(
    intake: Intake, nats_server: NatsServer
) -> None:
    job_id = str(QUICK_REFERENCE["training_job_id"])
    broken = {**QUICK_REFERENCE, "training_job_id": "manual-broken", "priority": "none"}

    async def publish() -> None:
        """As `nats pub` does it, which neither sets a header nor waits for an answer."""
        client = await nats.connect(nats_server.url)
        for content in (QUICK_REFERENCE, broken, QUICK_REFERENCE):
            await client.publish(SUBJECT, json.dumps(content).encode())
        await client.drain()

    asyncio.run(publish())
    wait_for_pending(intake.messages, REQUESTS_CONSUMER, 3)
    assert {intake.messages.get(TRAINING.name, sequence).message_id for sequence in (1, 2, 3)} == {None}
    assert intake.take() == TakenIn(accepted=(job_id,), repeated=(job_id,), refused=(2,))
    assert intake.letter(2).message_id == "manual-broken"
    assert [(one.training_job_id, one.status) for one in intake.statuses()] == [
        (job_id, "queued"),
        ("manual-broken", "failed"),
    ]
    assert intake.is_settled()


def test_what_a_request_leaves_open_is_filled_in_when_it_is_accepted(intake: Intake) -> None:
    request = content_of(a_request(training_config={"dataset": {"source": "clickhouse"}}))
    del request["priority"]
    intake.publish({**request, "trigger_reason": "performance_degradation", "metadata": {"shadow": True}})
    intake.publish({**request, "training_job_id": "job-2", "priority": "low"})
    intake.take()
    first, second = (find_job(intake.warehouse, job_id) for job_id in ("job-1", "job-2"))
    assert first is not None
    assert second is not None
    config = first.request.training_config
    assert (config.algorithm, config.base_model) == ("rloo", "the-default")
    assert (first.priority, first.shadow, first.through_sequence) == ("urgent", True, 0)
    assert (second.priority, second.shadow) == ("low", False)


def test_a_request_that_names_no_model_waits_until_it_is_known_which_is_in_service(intake: Intake) -> None:
    def unknown() -> StartingPoint:
        raise StartUnknown("the record was lost")

    open_request = content_of(a_request(training_config={"dataset": {"source": "clickhouse"}}))
    intake.publish(open_request)
    intake.publish(content_of(a_request("job-2")))
    taken = intake.take(defaults=Defaults("rloo", unknown))
    assert (taken.accepted, [one.request.training_job_id for one in taken.left]) == (("job-2",), ["job-1"])
    assert taken.left[0].why == "the record was lost"
    assert not intake.is_settled()
    served = Defaults("rloo", lambda: StartingPoint("s3://models/job-0/final", "v1"))
    assert intake.take(defaults=served) == TakenIn(accepted=("job-1",))
    jobs = {job.job_id: job.request for job in newest_jobs(intake.warehouse, 10)}
    assert jobs["job-1"].training_config.base_model == "s3://models/job-0/final"
    assert [successor_of(jobs[job]) for job in ("job-1", "job-2")] == ["v1", None]
    intake.publish(open_request)
    assert intake.take(defaults=Defaults("rloo", unknown)) == TakenIn(repeated=("job-1",)), "nobody is asked again"


def test_the_source_that_a_request_names_has_an_algorithm_of_its_own() -> None:
    def algorithm(**config: Any) -> str | None:
        request = a_request(training_config=config)
        return filled_in(request, DEFAULTS).training_config.algorithm

    assert [algorithm(preset="massgen"), algorithm(preset="agent-zero"), algorithm()] == ["grpo", "ppo", "rloo"]
    assert algorithm(preset="massgen", algorithm="dpo") == "dpo", "what the request says counts most"


def test_a_request_that_comes_again_starts_nothing_twice_and_is_told_so_once(intake: Intake) -> None:
    request = content_of(a_request())
    intake.publish(request)
    intake.publish(request)
    assert intake.take() == TakenIn(accepted=("job-1",), repeated=("job-1",))
    intake.publish({**request, "timestamp": "2026-03-01T00:00:00Z", "metadata": {"notes": "once more"}})
    assert intake.take(defaults=Defaults("ppo", lambda: StartingPoint("another")), now=NOW + MINUTE) == TakenIn(
        repeated=("job-1",)
    )
    [job] = newest_jobs(intake.warehouse, 10)
    assert job.request.timestamp == NOW
    assert [status.status for status in intake.statuses()] == ["queued"]
    assert intake.messages.state(DEAD_LETTERS.name).messages == 0


def test_a_request_whose_defaults_were_filled_in_is_still_recognised_after_the_defaults_changed(intake: Intake) -> None:
    request = content_of(a_request(training_config={}))
    for defaults in (DEFAULTS, Defaults("sft", lambda: StartingPoint("another", "another-model"))):
        intake.publish(request)
        taken = intake.take(defaults=defaults)
    assert taken == TakenIn(repeated=("job-1",))


@pytest.mark.parametrize(
    "other",
    [
        {"training_config": {"algorithm": "ppo"}},
        {"priority": "urgent"},
        {"metadata": {"shadow": True}},
        {"requester": "somebody else"},
    ],
    ids=["config", "priority", "shadow", "requester"],
)
def test_of_two_requests_under_one_id_the_first_counts_and_a_letter_says_so(
    intake: Intake, other: dict[str, Any]
) -> None:
    request = content_of(a_request())
    intake.publish(request)
    intake.take()
    before = find_job(intake.warehouse, "job-1")
    sequence = intake.publish({**request, **other})
    assert intake.take(now=NOW + MINUTE) == TakenIn(refused=(sequence,))
    assert find_job(intake.warehouse, "job-1") == before
    letter = intake.letter(sequence)
    assert (letter.reason, letter.path, letter.message_id) == ("job_id_taken", "training_job_id", "job-1")
    assert "that one counts" in letter.advice
    assert [status.status for status in intake.statuses()] == ["queued"], "nothing is said for the first job"
    assert intake.is_settled()


@pytest.mark.parametrize(
    ("change", "reason", "path"),
    [
        ({"trigger_reason": "boredom"}, "enum", "trigger_reason"),
        ({"training_config": {"dataset": {"source": "s3"}}}, "missing", "training_config.dataset.path"),
        ({"training_config": {"preset": "nobody"}}, "unknown_preset", "training_config.preset"),
        (
            {"training_config": {"dataset": {"source": "nats_stream", "stream_name": "RL_REWARDS"}}},
            "unknown_stream",
            "training_config.dataset.stream_name",
        ),
        (
            {"training_config": {"dataset": {"source": "clickhouse", "stream_name": "RL_TRAJECTORY"}}},
            "unknown_stream",
            "training_config.dataset.stream_name",
        ),
        (
            {"training_config": {"dataset": {"source": "local", "path": "s3://bucket/files"}}},
            "other_source",
            "training_config.dataset.path",
        ),
        (
            {"training_config": {"dataset": {"source": "s3", "path": "files"}}},
            "other_source",
            "training_config.dataset.path",
        ),
        ({"training_config": {"hyperparameters": {"learning_rate": -1.0}}}, "exclusive_minimum", None),
        ({"gift": 1}, "unknown_field", None),
    ],
)
def test_an_invalid_request_is_answered_with_failed_and_a_dead_letter(
    intake: Intake, change: dict[str, Any], reason: str, path: str | None
) -> None:
    sequence = intake.publish({**content_of(a_request()), **change})
    assert intake.take() == TakenIn(refused=(sequence,))
    assert newest_jobs(intake.warehouse, 10) == []
    letter = intake.letter(sequence)
    assert (letter.reason, letter.stream, letter.sequence, letter.subject) == (reason, "RL_TRAINING", sequence, SUBJECT)
    assert path is None or letter.path == path
    [status] = intake.statuses()
    assert (status.training_job_id, status.status) == ("job-1", "failed")
    assert status.error is not None
    assert str(status.error.message).startswith(f"the request was refused: {letter.path} breaks {reason}")
    assert intake.is_settled()


@pytest.mark.parametrize(
    "chosen",
    [
        {"pair_margin": "a lot"},
        {"literal_filter": "yes"},
        {"domain_shares": {"coding": 0}},
        {"task_domains": []},
        {"last_days": 800_000},
        {"last_days": 10**12},
    ],
    ids=str,
)
def test_a_filter_that_cannot_be_is_refused_before_anything_is_trained(intake: Intake, chosen: dict[str, Any]) -> None:
    dataset = {"source": "clickhouse", "filter": chosen}
    sequence = intake.publish({**content_of(a_request()), "training_config": {"dataset": dataset}})
    assert intake.take() == TakenIn(refused=(sequence,))
    letter = intake.letter(sequence)
    assert (letter.reason, letter.path) == ("invalid_filter", "training_config.dataset.filter")
    assert next(iter(chosen)) in letter.advice
    [status] = intake.statuses()
    assert status.status == "failed"


@pytest.mark.parametrize(
    ("section", "said"),
    [
        ("hyperparameters", {"beta": -1}),
        ("hyperparameters", {"lora_rank": "16"}),
        ("hyperparameters", {"max_tokens": 0}),
        ("hyperparameters", {"kl_coefficient": "0.1"}),
        ("hyperparameters", {"schedule": "stairs"}),
        ("hyperparameters", {"micro_batch": 2**53 - 2, "batch_size": 2**53 - 1}),
        ("compute", {"zero_stage": "3"}),
        ("compute", {"offload_optimizer": "yes"}),
    ],
    ids=str,
)
@pytest.mark.parametrize("start", ["known", "unknown"])
def test_values_of_which_no_machine_makes_a_plan_are_refused_before_anything_waits_or_is_curated(
    intake: Intake, section: str, said: dict[str, Any], start: str
) -> None:
    def base_model() -> StartingPoint:
        if start == "unknown":
            raise StartUnknown("the record was lost")
        return StartingPoint("the-default")

    request = {**content_of(a_request()), "training_config": {section: said}}
    sequence = intake.publish(request)
    assert intake.take(defaults=Defaults("rloo", base_model)) == TakenIn(refused=(sequence,))
    assert newest_jobs(intake.warehouse, 10) == []
    letter = intake.letter(sequence)
    assert (letter.reason, letter.path) == ("unplannable", "training_config")
    assert next(iter(said)).removeprefix("lora_") in letter.advice
    [status] = intake.statuses()
    assert (status.status, "send it again" in str(status.error)) == ("failed", True)
    with pytest.raises(ContractError, match="send it again"):
        check_request(TrainingRequest.model_validate(request), TRAJECTORIES.name, "rloo")


def test_a_request_that_outgrows_its_limits_once_it_is_filled_in_is_refused(intake: Intake) -> None:
    numbers = b",".join([b"1e15"] * 60_000)  # which are written out as 1000000000000000.0
    request = json.dumps({**content_of(a_request()), "metadata": {"figures": "NUMBERS"}}).encode()
    sequence = intake.publish(request.replace(b'"NUMBERS"', b"[" + numbers + b"]"))
    following = intake.publish(content_of(a_request("job-2")))
    assert following > sequence
    assert intake.take() == TakenIn(accepted=("job-2",), refused=(sequence,))
    assert intake.letter(sequence).reason == "max_bytes"
    assert [(status.training_job_id, status.status) for status in intake.statuses()] == [
        ("job-1", "failed"),
        ("job-2", "queued"),
    ]
    assert [job.job_id for job in newest_jobs(intake.warehouse, 10)] == ["job-2"]


@pytest.mark.parametrize(
    "content", [b"", b"no json", b'{"training_job_id": "../../etc"}', b"[1]", b"\xff\xfe", b'{"training_job_id": 7}']
)
def test_what_names_no_job_is_answered_with_a_dead_letter_alone(intake: Intake, content: bytes) -> None:
    sequence = intake.publish(content)
    assert intake.take() == TakenIn(refused=(sequence,))
    assert intake.letter(sequence).sequence == sequence
    assert intake.statuses() == []
    assert intake.is_settled()


def test_a_broken_request_never_speaks_for_a_job_that_exists(intake: Intake) -> None:
    intake.publish(content_of(a_request()))
    intake.take()
    sequence = intake.publish(b'{"training_job_id": "job-1", "priority": ')
    intake.take()
    assert intake.letter(sequence).message_id == "job-1"
    assert [status.status for status in intake.statuses()] == ["queued"]


def test_a_secret_in_a_refused_request_is_not_shown(intake: Intake) -> None:
    token = "ghp_q1W2e3R4t5Y6u7I8o9P0a1S2d3F4g5H6j7K8"
    sequence = intake.publish({**content_of(a_request()), "gift": token, "metadata": {"notes": f"use {token}"}})
    intake.take()
    assert token not in intake.letter(sequence).excerpt
    assert "REDACTED" in intake.letter(sequence).excerpt


def test_a_sensor_that_died_before_it_could_settle_a_request_finds_it_again_and_says_that_it_is_queued(
    intake: Intake,
) -> None:
    intake.publish(content_of(a_request()))
    [delivery] = intake.messages.fetch(TRAINING.name, REQUESTS_CONSUMER, 1, 10)
    request = cast("TrainingRequest", parse_message(SUBJECT, delivery.message.data))
    write_job(intake.warehouse, Job.accepted(filled_in(request, DEFAULTS), through_sequence=0, now=NOW))
    before = find_job(intake.warehouse, "job-1")
    delivery.nak()  # at once, in place of the wait for an answer
    assert intake.take(now=NOW + MINUTE) == TakenIn(repeated=("job-1",))
    assert find_job(intake.warehouse, "job-1") == before
    assert [status.status for status in intake.statuses()] == ["queued"]


def test_a_request_is_not_settled_while_the_warehouse_has_trouble(intake: Intake, clickhouse_url: str) -> None:
    intake.publish(content_of(a_request()))
    with (
        closing(ClickHouseWarehouse.connect(clickhouse_url, "never_made")) as broken,
        pytest.raises(WarehouseError),
    ):
        Intake(intake.messages, broken, intake.redactor).take()
    assert not intake.is_settled()


def test_more_requests_than_one_batch_are_taken_in_one_go(intake: Intake) -> None:
    for number in range(130):
        request = json.dumps(content_of(a_request(f"job-{number % 3}"))).encode()
        intake.messages.publish(SUBJECT, request, f"pub-{number}")
    wait_for_pending(intake.messages, REQUESTS_CONSUMER, 130)
    taken = intake.take()
    assert (len(taken.accepted), len(taken.repeated)) == (3, 127)


def cancellation(job_id: str = "job-1") -> dict[str, Any]:
    return {"training_job_id": job_id, "timestamp": "2026-02-01T12:00:00Z", "requester": "ada"}


def test_an_invalid_cancellation_becomes_a_dead_letter_and_nothing_is_said(intake: Intake) -> None:
    sequence = intake.publish({**cancellation(), "requester": ""}, CANCEL)
    valid = intake.publish(cancellation("job-2"), CANCEL)
    [found] = fetch_cancellations(intake.messages, lambda: intake.redactor, NOW)
    assert (found.asked.training_job_id, found.delivery.message.sequence) == ("job-2", valid)
    assert intake.letter(sequence).path == "requester"
    assert intake.statuses() == []


def test_a_cancellation_without_a_job_waits_for_it_and_then_becomes_a_dead_letter(intake: Intake) -> None:
    sequence = intake.publish(cancellation(), CANCEL)
    published = intake.messages.get(TRAINING.name, sequence).time
    # A request that was handed out to a sensor which died comes again after half an hour at most.
    for attempt, minutes in enumerate((1, 2, 3, 31, 46), start=1):
        [found] = fetch_cancellations(intake.messages, lambda: intake.redactor, NOW)
        assert found.delivery.attempt == attempt
        with pytest.raises(NoDeadLetter):
            intake.letter(sequence)
        nobody_to_cancel(intake.messages, found, lambda: intake.redactor, published + minutes * MINUTE)
        found.delivery.nak()  # at once, in place of the wait
    assert intake.letter(sequence).reason == "unknown_job"
    assert intake.is_settled(CANCELLATIONS_CONSUMER)


def test_a_cancellation_travels_like_every_message(intake: Intake) -> None:
    asked = TrainingCancel.model_validate(cancellation())
    message = outgoing_message(asked)
    assert message.subject == CANCEL
    assert parse_message(CANCEL, message.data) == asked
    assert outgoing_message(asked).message_id == message.message_id
