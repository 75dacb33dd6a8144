"""The commands around ingested data, as people use them."""

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import polars as pl
import pytest

from rl_pipeline.cli import main
from rl_pipeline.collection.samples import sample_trajectories
from rl_pipeline.contracts import serialize
from rl_pipeline.embedded.nats_server import NatsServer
from rl_pipeline.ingestion.feedback_rows import FeedbackRow, write_feedback
from rl_pipeline.ingestion.holding import hold_for_dataset
from rl_pipeline.ingestion.importing import import_trajectories
from rl_pipeline.redaction.policy import RedactionKey, RedactionPolicy
from rl_pipeline.redaction.redactor import Redactor
from rl_pipeline.redaction.rule import packaged_rules
from rl_pipeline.stores.clickhouse import ClickHouseWarehouse
from rl_pipeline.stores.disk import DiskObjects
from rl_pipeline.stores.jetstream import JetStream
from rl_pipeline.training.jobs.cancelling import fetch_cancellations
from rl_pipeline.training.jobs.job import Job
from rl_pipeline.training.jobs.requests import Defaults, StartingPoint, accept_requests
from rl_pipeline.training.jobs.rows import write_job
from rl_pipeline_tests.fixtures.ingest import REDACTION_KEY
from rl_pipeline_tests.training.job_tables import wait_for_pending
from rl_pipeline_tests.training.job_values import a_request

Run = Callable[..., "Outcome"]
SUBJECT = "agent.rl.trajectory.v1"


@dataclass(frozen=True)
class Outcome:
    """How a command ended, and what it said."""

    returncode: int
    stdout: str
    stderr: str


@pytest.fixture
def run(
    *,
    tmp_path: Path,
    nats_server: NatsServer,
    stream: JetStream,
    clickhouse_url: str,
    warehouse: ClickHouseWarehouse,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Run:
    """A command, in this process: the rules are compiled once for all of them."""
    variables = {
        "RL_PIPELINE_HOME": str(tmp_path / "home"),
        "NATS_URL": nats_server.url,
        "CLICKHOUSE_URL": clickhouse_url,
        "CLICKHOUSE_DATABASE": warehouse.database,
        "TRAJECTORY_STORAGE_PATH": str(tmp_path / "objects"),
        "REDACTION_KEY": REDACTION_KEY,
    }

    def command(*arguments: str, **more: str) -> Outcome:
        for name, value in {**variables, "REDACTION_POLICY_FILE": "", "REDACTION_PREVIOUS_KEYS": "", **more}.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr(sys, "argv", ["rl-pipeline", *arguments])
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main()
        return Outcome(int(ended.value.code or 0), *capsys.readouterr())

    return command


def publish(stream: JetStream, count: int, **task_context: Any) -> list[dict[str, Any]]:
    made = sample_trajectories(count, now=datetime(2026, 1, 1, tzinfo=UTC), randomness=Random(str(task_context)))
    trees = [json.loads(serialize(trajectory)) for trajectory in made]
    for tree in trees:
        tree["task_context"] |= task_context
        stream.publish(SUBJECT, json.dumps(tree).encode(), tree["trajectory_id"])
    return trees


def count(warehouse: ClickHouseWarehouse, condition: str = "1") -> int:
    return int(warehouse.query(f"SELECT count() AS n FROM trajectories FINAL WHERE {condition}")["n"][0])


def test_ingest_drains_the_stream_and_then_has_nothing_to_do(
    run: Run, stream: JetStream, warehouse: ClickHouseWarehouse
) -> None:
    publish(stream, 5)
    stream.request("STREAM.PURGE.RL_TRAJECTORIES", {"seq": 3})
    first = run("ingest")
    assert first.returncode == 0, first.stderr
    assert "3 accepted, 2 LOST to the stream's retention, 0 unchanged" in first.stdout
    assert run("ingest").stdout == "ingested up to sequence 5\n"
    assert count(warehouse) == 3


def test_without_a_key_ingest_says_what_to_set(run: Run, stream: JetStream) -> None:
    publish(stream, 1)
    refused = run("ingest", REDACTION_KEY="")
    assert refused.returncode == 1
    assert refused.stderr.startswith("rl-pipeline: set REDACTION_KEY to v1:")
    assert len(refused.stderr.splitlines()) == 1


def test_what_has_left_the_stream_and_stays_as_it_was_is_told(
    run: Run, stream: JetStream, warehouse: ClickHouseWarehouse
) -> None:
    publish(stream, 3)
    assert run("ingest").returncode == 0
    # The first is not ingested any more, so the range begins with it.
    stream.erase("RL_TRAJECTORIES", 2)
    warehouse.execute("ALTER TABLE trajectory_ledger DELETE WHERE sequence = 1", settings={"mutations_sync": 2})
    newer = run("ingest", REDACTION_KEY="v2:" + "k" * 40)
    assert "2 accepted, 0 unchanged, 1 gone from the stream and KEPT as older rules made them" in newer.stdout


def test_a_key_that_was_forgotten_is_named_by_every_command(run: Run, stream: JetStream) -> None:
    assert run("erase", "--user", "user-19", "--opt-out").returncode == 0
    publish(stream, 1, user_id="user-19")
    replays = (("dead-letters", "replay"), ("dead-letters", "replay", "--stream", "feedback"))
    for command in (("ingest",), *replays, ("archive", "restore", "2026-01-31")):
        refused = run(*command, REDACTION_KEY="v2:" + "k" * 40)
        assert refused.returncode == 1
        assert "under the redaction key v1, which is not set" in refused.stderr
        assert len(refused.stderr.splitlines()) == 1
    rotated = run("ingest", REDACTION_KEY="v2:" + "k" * 40, REDACTION_PREVIOUS_KEYS=REDACTION_KEY)
    assert "1 erased" in rotated.stdout


def test_dead_letters_are_listed_shown_and_replayed_after_the_fix(
    run: Run, stream: JetStream, warehouse: ClickHouseWarehouse, tmp_path: Path
) -> None:
    [tree] = publish(stream, 1)
    # A name that this deployment forbids, where names of fields cannot be changed.
    tree |= {"trajectory_id": "7d9f6a1e-52a3-4c52-9a51-0f1b7f1c2d3e"}
    tree["task_context"]["Ada Lovelace"] = 1
    stream.publish(SUBJECT, json.dumps(tree).encode(), "forbidden")
    stream.publish(SUBJECT, b"{", "broken")
    policy = tmp_path / "policy.toml"
    policy.write_text('names = ["Ada Lovelace"]')
    assert run("ingest", REDACTION_POLICY_FILE=str(policy)).returncode == 0

    def listed(*options: str) -> list[str]:
        return [line.split()[0] for line in run("dead-letters", "list", *options).stdout.splitlines()]

    assert listed() == ["3", "2"]
    assert listed("--reason", "not_json") == ["3"]
    letter = json.loads(run("dead-letters", "show", "2").stdout)
    assert (letter["sequence"], letter["reason"]) == (2, "sensitive_key")
    assert "Lovelace" not in json.dumps(letter)

    replayed = run("dead-letters", "replay")
    assert replayed.returncode == 0, replayed.stderr
    assert "1 accepted, 1 refused" in replayed.stdout
    assert count(warehouse) == 2
    assert listed() == ["3"]
    assert run("dead-letters", "replay").returncode == 0
    assert count(warehouse) == 2

    stream.erase("RL_TRAJECTORIES", 3)
    gone = run("dead-letters", "replay")
    assert gone.returncode == 1
    assert "1 messages have left the stream and cannot be judged again, the first is 3" in gone.stderr


def publish_feedback(stream: JetStream, number: int, kind: str) -> None:
    given = {"feedback_id": f"feedback-{number}", "trajectory_id": "7d9f6a1e-52a3-4c52-9a51-0f1b7f1c2d3e"}
    content = given | {"timestamp": "2026-01-01T12:00:00Z", "kind": kind}
    stream.publish("agent.rl.feedback.v1", json.dumps(content).encode(), f"feedback-{number}")


def test_refused_feedback_is_listed_shown_and_replayed_apart_from_trajectories(
    run: Run, stream: JetStream, warehouse: ClickHouseWarehouse, tmp_path: Path
) -> None:
    # All rules but one are off, to be quick.
    policy = tmp_path / "policy.toml"
    policy.write_text(f"rules_off = {json.dumps([rule.id for rule in packaged_rules()[1:]])}")
    run = partial(run, REDACTION_POLICY_FILE=str(policy))
    stream.publish(SUBJECT, b"{", "broken")
    assert run("ingest").returncode == 0
    for number, kind in enumerate(("thumbs_up", "stars", "shrug"), start=1):
        publish_feedback(stream, number, kind)
    # As a version left them whose contract knew none of these kinds.
    found = [stream.get("RL_FEEDBACK", sequence) for sequence in (1, 2, 3)]
    earlier = [FeedbackRow(message.sequence, message.time, "refused", 1, "enum") for message in found]
    write_feedback(warehouse, "RL_FEEDBACK", earlier)
    of_feedback = ("--stream", "feedback")

    def listed(*options: str) -> list[str]:
        return [line.split()[0] for line in run("dead-letters", "list", *options).stdout.splitlines()]

    assert (listed(), listed("--stream", "trajectories"), listed(*of_feedback)) == (["1"], ["1"], ["3", "2", "1"])
    assert "1 refused" in run("dead-letters", "replay", *of_feedback, "--last", "2", "--first", "2").stdout
    assert listed(*of_feedback, "--reason", "rating_of_stars") == ["2"]
    letter = json.loads(run("dead-letters", "show", "2", *of_feedback).stdout)
    assert (letter["stream"], letter["reason"]) == ("RL_FEEDBACK", "rating_of_stars")
    absent = run("dead-letters", "show", "2")
    assert (absent.returncode, absent.stderr.count("\n")) == (1, 1)
    assert "no dead letter for RL_TRAJECTORIES 2" in absent.stderr

    replayed = run("dead-letters", "replay", *of_feedback)
    assert replayed.stdout == "1 accepted, 2 refused, 0 unchanged\n", replayed.stderr
    assert listed(*of_feedback) == ["3", "2"]
    stream.erase("RL_FEEDBACK", 2)
    gone = run("dead-letters", "replay", *of_feedback)
    assert gone.returncode == 1
    assert "1 messages have left the stream and cannot be judged again, the first is 2" in gone.stderr
    assert listed() == ["1"]


def quick_policy() -> RedactionPolicy:
    """Only the rules for addresses are on."""
    version, _, key = REDACTION_KEY.partition(":")
    off = frozenset(rule.id for rule in packaged_rules() if "email" not in rule.id)
    return RedactionPolicy(RedactionKey(version, key.encode()), rules_off=off)


def test_what_imports_have_refused_is_listed_with_its_place_and_never_replayed(
    run: Run, stream: JetStream, warehouse: ClickHouseWarehouse, tmp_path: Path
) -> None:
    [one] = sample_trajectories(1, now=datetime(2026, 1, 1, tzinfo=UTC), randomness=Random(1))
    for day, name in ((1, "a"), (2, "b")):
        import_trajectories(
            *([(f"{name}.jsonl", serialize(one) + b'\n{"trajectory_id": "ada@example.com"}')], stream, warehouse),
            job_id="job",
            raw_objects=lambda: DiskObjects(tmp_path),
            policy=quick_policy(),
            previous_keys=(),
            now=datetime(2026, 2, day, tzinfo=UTC),
        )
    of_imports = ("--stream", "imports")
    lines = [line.split() for line in run("dead-letters", "list", *of_imports).stdout.splitlines()]
    assert [(line[2], line[5:]) for line in lines] == [
        ("pattern", ["job", "b.jsonl:2"]),
        ("pattern", ["job", "a.jsonl:2"]),
    ]
    letter = json.loads(run("dead-letters", "show", lines[0][0], *of_imports).stdout)
    assert (letter["path"], letter["message_id"]) == ("trajectory_id", "job b.jsonl:2")
    assert "ada@example.com" not in json.dumps(letter)
    replayed = run("dead-letters", "replay", *of_imports)
    assert (replayed.returncode, replayed.stderr.count("\n")) == (1, 1)
    assert "ask for another job that imports the file" in replayed.stderr


def test_refused_requests_and_cancellations_of_training_are_listed_and_shown_but_never_replayed(
    run: Run, stream: JetStream, warehouse: ClickHouseWarehouse
) -> None:
    secret = "ada@example.com"
    request = json.loads(a_request("job-1").model_dump_json()) | {"trigger_reason": secret}
    asked = [
        ("agent.rl.training.request.v1", json.dumps(request).encode()),
        ("agent.rl.training.request.v1", b"{"),
        ("agent.rl.training.cancel.v1", json.dumps({"training_job_id": "job-2", "requester": secret}).encode()),
    ]
    for number, (subject, data) in enumerate(asked):
        stream.publish(subject, data, f"asked-{number}")
    wait_for_pending(stream, "training_requests", 2)
    wait_for_pending(stream, "training_cancellations", 1)
    redactor = Redactor(quick_policy())
    arguments: dict[str, Any] = {"redactor": lambda: redactor, "now": datetime(2026, 2, 1, tzinfo=UTC)}
    assert fetch_cancellations(stream, **arguments) == []
    defaults = Defaults("rloo", lambda: StartingPoint("the-default"))
    taken = accept_requests(stream, warehouse, defaults=defaults, trajectories="RL_TRAJECTORIES", **arguments)
    assert taken.refused == (1, 2)
    # Letters of another stream are not among them, nor is what is no letter.
    stream.publish("agent.rl.dlq.RL_TRAJECTORIES.7.1", b"{}", "other-letter")
    stream.publish("agent.rl.dlq.RL_TRAINING.note", b"{}", "no-letter")
    of_training = ("--stream", "training")

    def listed(*options: str) -> list[list[str]]:
        return [line.split() for line in run("dead-letters", "list", *of_training, *options).stdout.splitlines()]

    assert [(line[0], line[2], line[5:]) for line in listed()] == [
        ("3", "missing", ["agent.rl.training.cancel.v1", "job-2"]),
        ("2", "not_json", ["agent.rl.training.request.v1"]),
        ("1", "enum", ["agent.rl.training.request.v1", "job-1"]),
    ]
    assert [line[0] for line in listed("--reason", "not_json")] == ["2"]
    assert [line[0] for line in listed("--first", "1", "--last", "2")] == ["2", "1"]
    assert [line[0] for line in listed("--limit", "1")] == ["3"]
    assert run("dead-letters", "list").stdout == ""

    letter = json.loads(run("dead-letters", "show", "1", *of_training).stdout)
    assert (letter["stream"], letter["path"], letter["message_id"]) == ("RL_TRAINING", "trigger_reason", "job-1")
    assert secret not in json.dumps(letter)
    absent = run("dead-letters", "show", "4", *of_training)
    assert (absent.returncode, absent.stderr.count("\n")) == (1, 1)
    assert "no dead letter for RL_TRAINING 4" in absent.stderr

    before = stream.state("RL_TRAINING").last_sequence
    replayed = run("dead-letters", "replay", *of_training)
    assert (replayed.returncode, replayed.stderr.count("\n")) == (1, 1)
    assert "is not replayed" in replayed.stderr
    assert "send it again: `rl-pipeline train`" in replayed.stderr
    assert stream.state("RL_TRAINING").last_sequence == before
    assert len(listed()) == 3


@pytest.mark.parametrize("command", [("list",), ("show", "1"), ("replay",)])
def test_dead_letters_of_a_stream_that_has_none_say_which_have(run: Run, command: tuple[str, ...]) -> None:
    refused = run("dead-letters", *command, "--stream", "rewards")
    assert refused.returncode == 2
    for said in ("--stream", "rewards", "trajectories", "feedback", "training", "imports"):
        assert said in refused.stderr


def test_an_archived_day_comes_back_with_one_command(
    run: Run, stream: JetStream, warehouse: ClickHouseWarehouse
) -> None:
    publish(stream, 4)
    day = stream.get("RL_TRAJECTORIES", 1).time.date().isoformat()
    assert run("ingest").returncode == 0
    assert f"{day}  4 trajectories written" in run("archive", "write").stdout
    assert "1 days unchanged" in run("archive", "write").stdout
    warehouse.execute("TRUNCATE TABLE trajectories")
    restored = run("archive", "restore", day)
    assert restored.stdout == f"{day}  4 trajectories restored\n", restored.stderr
    assert count(warehouse) == 4
    missing = run("archive", "restore", "2025-02-03")
    assert missing.returncode == 1
    assert "2025-02-03" in missing.stderr


def test_erase_ends_what_an_erasure_before_it_has_left_and_names_who_trains_on_it(
    run: Run, warehouse: ClickHouseWarehouse
) -> None:
    """The rows of the erased user are gone, and so is the way from them to their datasets."""
    provenance = {"dataset_id": "job-1.r1", "trajectory_id": "erased before", "role": "scored", "split": "train"}
    warehouse.insert("dataset_provenance", pl.DataFrame([provenance]))
    warehouse.insert("checkpoint_datasets", pl.DataFrame([{"checkpoint_id": "job-1/final", "dataset_id": "job-1.r1"}]))
    write_job(warehouse, Job.accepted(a_request("job-1"), through_sequence=0, now=datetime.now(UTC)))
    erased = run("erase", "--user", "user-19")
    assert erased.returncode == 0, erased.stderr
    assert "dataset job-1.r1 was made with this user's data" in erased.stdout
    assert "checkpoint job-1/final has learnt from" in erased.stdout
    assert "`rl-pipeline cancel job-1` and ask again" in erased.stdout


def test_erase_removes_a_user_and_names_what_learnt_from_them(
    run: Run, stream: JetStream, warehouse: ClickHouseWarehouse
) -> None:
    publish(stream, 2, user_id="user-19")
    publish(stream, 3, user_id="user-20")
    assert run("ingest").returncode == 0
    ids = warehouse.query("SELECT trajectory_id FROM trajectories FINAL WHERE sequence <= 2")["trajectory_id"].to_list()
    hold_for_dataset(warehouse, "dataset-1", ids[:1])
    erased = run("erase", "--user", "user-19", "--opt-out")
    assert erased.returncode == 0, erased.stderr
    assert "erased 2 trajectories, 0 archived rows, 2 messages" in erased.stdout
    assert "dataset dataset-1 was made with this user's data" in erased.stdout
    assert count(warehouse) == 3
    assert stream.state("RL_TRAJECTORIES").messages == 3
    publish(stream, 1, user_id="user-19", group_id="later")
    assert "1 erased" in run("ingest").stdout
    assert count(warehouse) == 3
