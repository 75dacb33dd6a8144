"""Files become messages like all others: nothing bypasses the stream, and a request cannot read what it likes."""

import gzip
import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from pathlib import Path
from random import Random

import pytest

from rl_pipeline.collection.samples import sample_trajectories
from rl_pipeline.contracts import serialize
from rl_pipeline.ingestion.dead_letters import DeadLetter, show_dead_letter
from rl_pipeline.ingestion.importing import (
    IMPORTS,
    ImportFailed,
    ImportReport,
    files_below,
    files_in_store,
    import_trajectories,
)
from rl_pipeline.ingestion.judging import user_placeholders
from rl_pipeline.ingestion.tombstones import write_tombstones
from rl_pipeline.redaction.policy import RedactionKey, RedactionPolicy
from rl_pipeline.redaction.rule import packaged_rules
from rl_pipeline.stores.clickhouse import ClickHouseWarehouse
from rl_pipeline.stores.disk import DiskObjects
from rl_pipeline.stores.jetstream import JetStream

NOW = datetime(2026, 1, 1, tzinfo=UTC)
LINES = [serialize(each) for each in sample_trajectories(5, now=NOW, randomness=Random(3))]
KEYS = (RedactionKey("v2", b"2" * 32), RedactionKey("v1", b"1" * 32))
# Only a few rules are on, to be quick.
OFF = frozenset(rule.id for rule in packaged_rules() if not re.match("email|aws_access|password_", rule.id))
IDS = {json.loads(line)["trajectory_id"] for line in LINES}


def stored_bodies(stream: JetStream) -> list[bytes]:
    last = stream.state("RL_TRAJECTORIES").last_sequence
    return [message.data for batch in stream.read("RL_TRAJECTORIES", 1, last, 100) for message in batch]


def imported_ids(warehouse: ClickHouseWarehouse) -> set[str]:
    return set(warehouse.query("SELECT trajectory_id FROM imported_trajectories WHERE job_id = 'job'")["trajectory_id"])


def imported(
    files: Iterable[tuple[str, bytes]], stream: JetStream, warehouse: ClickHouseWarehouse, raw: DiskObjects
) -> ImportReport:
    return import_trajectories(
        *(files, stream, warehouse),
        job_id="job",
        raw_objects=lambda: raw,
        policy=RedactionPolicy(KEYS[0], rules_off=OFF),
        previous_keys=KEYS[1:],
        now=NOW,
    )


def letters(stream: JetStream) -> list[DeadLetter]:
    last = stream.state("RL_DLQ").last_sequence
    stored = [message for batch in stream.read("RL_DLQ", 1, last, 100) for message in batch]
    assert all(message.subject.startswith(f"agent.rl.dlq.{IMPORTS}.") for message in stored)
    return [DeadLetter(**json.loads(message.data)) for message in stored]


@pytest.fixture
def raw(tmp_path: Path) -> DiskObjects:
    return DiskObjects(tmp_path / "raw")


def test_every_trajectory_of_every_kind_of_file_is_in_the_stream_once(
    stream: JetStream, warehouse: ClickHouseWarehouse, raw: DiskObjects, tmp_path: Path
) -> None:
    directory = tmp_path / "imports"
    (directory / "more").mkdir(parents=True)
    (directory / "a.jsonl").write_bytes(b"\n".join(LINES[:2]) + b"\n\n")
    (directory / "one.json").write_bytes(LINES[2])
    (directory / "more" / "b.ndjson.gz").write_bytes(gzip.compress(b"\n".join(LINES[3:])))
    (directory / "notes.txt").write_text("not read")
    for expected in ((5, 0), (0, 5)):
        report = imported(files_below(directory, "."), stream, warehouse, raw)
        assert (report.published, report.repeated, report.last_sequence) == (*expected, 5)
    assert report.files == 3
    assert sorted(stored_bodies(stream)) == sorted(LINES)
    assert imported_ids(warehouse) == IDS


def test_what_breaks_the_contract_is_not_published_and_a_letter_says_where_it_stands(
    stream: JetStream, warehouse: ClickHouseWarehouse, raw: DiskObjects
) -> None:
    secrets = ("AKIAIOSFODNN7EXAMPLQ", "jane.doe@northwind.com", "Tr0ub4dor&3x")
    told = json.loads(LINES[1]) | {"surplus": 1}
    told["turns"][0]["observation"]["content"] = "Use {}, write to {}, password: {}".format(*secrets)
    broken = json.dumps(told).encode()
    files = [("a.jsonl", LINES[0] + b"\n\n" + broken)]
    for _ in range(2):
        report = imported(files, stream, warehouse, raw)
        assert report.refused == 1
    assert stored_bodies(stream) == [LINES[0]]
    [letter] = letters(stream)
    assert (letter.message_id, letter.reason, letter.path) == ("job a.jsonl:3", "unknown_field", "*")
    assert (letter.size, letter.sha256) == (len(broken), sha256(broken).hexdigest())
    assert "[REDACTED:EMAIL:" in letter.excerpt
    assert not [secret for secret in secrets if secret in json.dumps(asdict(letter))]
    assert show_dead_letter(stream, IMPORTS, letter.sequence) == letter
    assert imported_ids(warehouse) == {json.loads(LINES[0])["trajectory_id"]}


def test_no_document_that_is_refused_leaves_more_than_its_letter(
    stream: JetStream, warehouse: ClickHouseWarehouse, raw: DiskObjects
) -> None:
    broken = {
        "duplicate_key": LINES[1][:-1] + b', "turns": []}',
        "byte_order_mark": b"\xef\xbb\xbf" + LINES[1],
        "sensitive_key": LINES[1].replace(b'"metadata":{', b'"metadata":{"jane.doe@northwind.com":1,', 1),
        "pattern": b'{"trajectory_id": "' + b"too long for a message" * 30_000 + b'"}',
    }
    files = [("a.json", LINES[0]), *((f"{reason}.json", document) for reason, document in broken.items())]
    report = imported(files, stream, warehouse, raw)
    assert (report.published, report.refused) == (1, len(broken))
    assert stored_bodies(stream) == [LINES[0]]
    found = letters(stream)
    assert {letter.message_id: letter.reason for letter in found} == {f"job {name}.json:1": name for name in broken}
    assert "northwind" not in "".join(letter.excerpt for letter in found)


def test_a_letter_shows_nothing_of_a_document_that_names_a_user_and_there_is_none_of_who_opted_out(
    stream: JetStream, warehouse: ClickHouseWarehouse, raw: DiskObjects
) -> None:
    lines = [
        {"trajectory_id": "no-uuid", "user_id": "user-19", "goal": "find my letters"},
        {"trajectory_id": "no-uuid", "metadata": {"opt_out": True}},
    ]
    files = [("jane.doe@northwind.com/a.jsonl", b"\n".join([LINES[0], *(json.dumps(line).encode() for line in lines)]))]
    assert imported(files, stream, warehouse, raw).refused == 2
    [letter] = letters(stream)
    assert letter.excerpt == ""
    assert letter.message_id.startswith("job [REDACTED:EMAIL:")
    assert letter.message_id.endswith("/a.jsonl:2")


def test_files_in_which_everything_is_refused_are_an_error_that_says_so(
    stream: JetStream, warehouse: ClickHouseWarehouse, raw: DiskObjects
) -> None:
    with pytest.raises(ImportFailed, match="no trajectory in 1 files but 1 that break the contract"):
        imported([("a.json", b'{"trajectory_id": "no-uuid"}')], stream, warehouse, raw)
    assert len(letters(stream)) == 1


def test_what_is_no_json_object_fails_the_import_and_nothing_of_its_file_is_published(
    stream: JetStream, warehouse: ClickHouseWarehouse, raw: DiskObjects
) -> None:
    with pytest.raises(ImportFailed, match=r"a\.jsonl, line 2"):
        imported([("a.jsonl", LINES[0] + b"\nroot:x:0:0\n")], stream, warehouse, raw)
    assert stream.state("RL_TRAJECTORIES").messages == 0


@pytest.mark.parametrize("path", ["../outside", "/etc/hostname", "link", "missing"])
def test_a_request_reads_nothing_outside_of_the_directory_of_imports(tmp_path: Path, path: str) -> None:
    directory, outside = tmp_path / "imports", tmp_path / "outside"
    directory.mkdir()
    outside.mkdir()
    (outside / "a.jsonl").write_bytes(LINES[0])
    (directory / "link").symlink_to(outside)
    with pytest.raises(ImportFailed, match="directory of imports"):
        list(files_below(directory, path))
    (directory / "linked.jsonl").symlink_to(outside / "a.jsonl")
    assert list(files_below(directory, ".")) == []


def test_files_of_an_object_store_are_read_by_their_names(tmp_path: Path) -> None:
    objects = DiskObjects(tmp_path)
    objects.put("2026/a.jsonl", LINES[0])
    objects.put("2026/readme.md", b"not read")
    assert list(files_in_store(objects)) == [("2026/a.jsonl", LINES[0])]


def test_files_without_a_trajectory_are_an_error(
    stream: JetStream, warehouse: ClickHouseWarehouse, raw: DiskObjects
) -> None:
    def nothing() -> Iterator[tuple[str, bytes]]:
        yield "a.jsonl", b"\n"

    with pytest.raises(ImportFailed, match="no trajectory in 1 files"):
        imported(nothing(), stream, warehouse, raw)


def test_what_is_sensitive_is_redacted_before_it_is_published(
    stream: JetStream, warehouse: ClickHouseWarehouse, raw: DiskObjects
) -> None:
    told = json.loads(LINES[0])
    told["turns"][0]["observation"]["content"] = "Write to jane.doe@northwind.com now."
    told["task_context"]["user_id"] = "user-19"
    imported([("a.json", json.dumps(told).encode())], stream, warehouse, raw)
    [body] = stored_bodies(stream)
    assert b"jane.doe@northwind.com" not in body
    assert b"[REDACTED:EMAIL:" in body
    assert json.loads(body)["task_context"]["user_id"] == "user-19", "by it the user is found"


@pytest.mark.parametrize("key", KEYS)
def test_files_do_not_bring_back_who_was_erased_since(
    stream: JetStream, warehouse: ClickHouseWarehouse, raw: DiskObjects, key: RedactionKey
) -> None:
    lines = [json.loads(line) for line in LINES[:3]]
    lines[0]["task_context"]["user_id"] = lines[1]["task_context"]["user_id"] = "user-19"
    erased = datetime.fromisoformat(lines[0]["end_timestamp"]) + timedelta(days=1)
    lines[1]["end_timestamp"] = (erased + timedelta(days=1)).isoformat()
    lines += [{"trajectory_id": "no-uuid", "user_id": "user-19"}]
    write_tombstones(warehouse, user_placeholders("user-19", [key]), [key], datetime.now(UTC), erased)
    report = imported([("a.jsonl", b"\n".join(json.dumps(line).encode() for line in lines))], stream, warehouse, raw)
    assert (report.published, report.erased) == (2, 2)
    assert imported_ids(warehouse) == {lines[1]["trajectory_id"], lines[2]["trajectory_id"]}
    with pytest.raises(ImportFailed, match="no trajectory in 1 files but 1 of users who were erased"):
        imported([("a.json", json.dumps(lines[0]).encode())], stream, warehouse, raw)
