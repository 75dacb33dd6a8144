"""What lies in an outbox: redacted, whole, on the disk, and gone when it was sent."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from rl_pipeline.collection import Recorder
from rl_pipeline.contracts import read_claimed_trajectory
from rl_pipeline.contracts.registry import parse_message
from rl_pipeline.embedded.nats_server import NatsServer
from rl_pipeline.redaction.policy import RedactionKey, RedactionPolicy
from rl_pipeline.stores.disk import DiskObjects
from rl_pipeline.stores.jetstream import JetStream
from rl_pipeline_tests.collection.recordings import NOWHERE, SECRET, STREAM, OpenOutbox, arrived, journals, sent_by
from rl_pipeline_tests.collection.test_publishing import modules_of_a_plain_installation

AGENT: dict[str, Any] = {"agent_id": "agent-1", "model": "model-1"}


def every_byte_below(directory: Path) -> bytes:
    return b"".join(path.read_bytes() for path in directory.rglob("*") if path.is_file())


def test_no_secret_reaches_the_disk_or_the_stream(
    open_outbox: OpenOutbox, outbox_directory: Path, stream: JetStream, nats_server: NatsServer
) -> None:
    offline = open_outbox()
    with Recorder(offline, **AGENT, instructions=f"push with {SECRET}", metadata={"note": SECRET}) as trajectory:
        with trajectory.turn(f"use {SECRET}", context={"memory_state": {"token": SECRET}}) as turn:
            turn.think(f"so {SECRET} it is")
            turn.answer(f"push({SECRET})")
            turn.call("push", {"token": SECRET})
            turn.fail(f"no such token: {SECRET}", output={"log": [SECRET]})
        trajectory.add_task_context(summary=SECRET)
        offline._working().writer.wait_until_written(60)
        assert len(journals(outbox_directory)) == 1
        assert SECRET.encode() not in every_byte_below(outbox_directory)
    assert SECRET.encode() not in every_byte_below(outbox_directory)
    offline.close(0)
    [sent] = sent_by(open_outbox(nats_server.url), stream)
    text = json.dumps(sent)
    assert SECRET not in text
    assert text.count("[REDACTED:API_KEY:") == 10


def test_what_only_a_later_turn_gives_away_goes_from_the_disk_and_does_not_leave_the_agent(
    open_outbox: OpenOutbox, outbox_directory: Path, stream: JetStream, nats_server: NatsServer
) -> None:
    outbox = open_outbox(nats_server.url)
    with Recorder(outbox, **AGENT, instructions="open it, with Zq91xHunter2") as trajectory:
        trajectory.respond("it opens with Zq91xHunter2 I hear")
        trajectory.respond('login --password="Zq91xHunter2"')
        outbox._working().writer.wait_until_written(60)
        assert b"Zq91xHunter2" not in every_byte_below(outbox_directory)
        trajectory.respond("so Zq91xHunter2 it was")
    [sent] = sent_by(outbox, stream)
    assert "Zq91xHunter2" not in json.dumps(sent)
    assert json.dumps(sent).count("[REDACTED:PASSWORD:") == 7, "the task, three observations, three answers"
    assert len(sent["turns"]) == 3


def test_token_ids_do_not_spell_what_was_replaced(
    open_outbox: OpenOutbox, stream: JetStream, nats_server: NatsServer
) -> None:
    outbox = open_outbox(nats_server.url)
    drawn: dict[str, Any] = {
        "prompt_token_ids": [1],
        "completion_token_ids": [2],
        "logprobs": [-0.1],
        "model_version": "v",
    }
    with Recorder(outbox, **AGENT) as trajectory:
        for answer in ("harmless", "it is Zq91xHunter2", "go on", 'login --password="Zq91xHunter2"', "done"):
            trajectory.respond(answer, **drawn)
    [sent] = sent_by(outbox, stream)
    samplings = [turn["sampling"] for turn in sent["turns"]]
    assert samplings == [drawn, *[{"model_version": "v"}] * 4], "the prompt of a later turn holds the earlier ones"
    assert sent["metadata"]["prompt_tokens"] == 5


def test_a_rewriting_that_was_interrupted_is_cleared_away(open_outbox: OpenOutbox, outbox_directory: Path) -> None:
    (outbox_directory / "left.rewriting").write_bytes(b"half")
    assert open_outbox().wait_until_sent(60)
    assert not (outbox_directory / "left.rewriting").exists()


def test_a_secret_that_names_a_field_is_told_as_redacted_text(
    open_outbox: OpenOutbox, stream: JetStream, nats_server: NatsServer
) -> None:
    outbox = open_outbox(nats_server.url)
    with Recorder(outbox, **AGENT) as trajectory, trajectory.turn({SECRET: 1}) as turn:
        turn.call("count", {"ada@analytical.org": 2})
        turn.succeed({"plain": 3})
    [sent] = sent_by(outbox, stream)
    assert SECRET not in json.dumps(sent)
    assert "ada@analytical.org" not in json.dumps(sent)
    [turn_sent] = sent["turns"]
    assert turn_sent["observation"]["content"].startswith('{"[REDACTED:')
    assert turn_sent["result"]["output"] == '{"plain": 3}'


def test_the_users_id_stays(open_outbox: OpenOutbox, stream: JetStream, nats_server: NatsServer) -> None:
    outbox = open_outbox(nats_server.url)
    with Recorder(outbox, **AGENT, task_context={"user_id": "ada@analytical.org"}) as trajectory:
        trajectory.respond("mail ada@analytical.org")
    [sent] = sent_by(outbox, stream)
    assert sent["task_context"]["user_id"] == "ada@analytical.org"
    assert "ada@" not in json.dumps(sent["turns"])


def test_an_outbox_without_a_policy_keeps_a_key_of_its_own_that_nobody_else_reads(
    open_outbox: OpenOutbox, outbox_directory: Path, stream: JetStream, nats_server: NatsServer
) -> None:
    placeholders = set()
    for _ in range(2):
        outbox = open_outbox(nats_server.url)
        with Recorder(outbox, **AGENT) as trajectory:
            trajectory.respond(SECRET)
        placeholders.add(sent_by(outbox, stream)[-1]["turns"][0]["action"]["raw_response"])
        outbox.close()
    assert len(placeholders) == 1, "the same secret joins across processes"
    key = outbox_directory / "redaction.key"
    assert key.stat().st_mode & 0o777 == 0o600
    own = RedactionPolicy(RedactionKey.parse("v1:another-key-of-more-than-32-characters"))
    outbox = open_outbox(nats_server.url, redaction=own)
    with Recorder(outbox, **AGENT) as trajectory:
        trajectory.respond(SECRET)
    assert sent_by(outbox, stream)[-1]["turns"][0]["action"]["raw_response"] not in placeholders


def test_what_was_written_under_another_policy_is_redacted_under_the_present_one(
    open_outbox: OpenOutbox, stream: JetStream, nats_server: NatsServer
) -> None:
    before = open_outbox()
    with Recorder(before, **AGENT) as trajectory:
        trajectory.respond("about the Bluebird project")
    before.close(0)
    key = RedactionKey.parse("v1:another-key-of-more-than-32-characters")
    now = open_outbox(nats_server.url, redaction=RedactionPolicy(key, dictionary={"Bluebird": "IDENTIFIER"}))
    [sent] = sent_by(now, stream)
    assert sent["turns"][0]["action"]["raw_response"].startswith("about the [REDACTED:IDENTIFIER:")


def test_rules_that_were_spoilt_on_the_disk_are_compiled_again(
    open_outbox: OpenOutbox, outbox_directory: Path, stream: JetStream, nats_server: NatsServer
) -> None:
    rules = outbox_directory / "redaction.rules"
    good = rules.read_bytes()
    rules.write_bytes(good[:1000] + b"\0" * 1000 + good[2000:])
    outbox = open_outbox(nats_server.url)
    with Recorder(outbox, **AGENT) as trajectory:
        trajectory.respond(SECRET)
    [sent] = sent_by(outbox, stream)
    assert SECRET not in json.dumps(sent)
    assert rules.read_bytes() == good


def test_a_finished_trajectory_and_its_name_are_synced_before_the_block_ends(
    open_outbox: OpenOutbox, outbox_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []
    sync = os.fsync

    def fsync(descriptor: int) -> None:
        synced.append(Path(f"/proc/self/fd/{descriptor}").readlink().name)
        sync(descriptor)

    outbox = open_outbox()
    monkeypatch.setattr(os, "fsync", fsync)
    with Recorder(outbox, **AGENT) as trajectory:
        trajectory.respond("done")
        assert synced == []
    assert synced == [f"{trajectory.trajectory_id}.jsonl", outbox_directory.name]
    [journal] = journals(outbox_directory)
    assert journal.stat().st_mode & 0o777 == 0o600


def test_a_large_trajectory_travels_by_claim_check(
    open_outbox: OpenOutbox, tmp_path: Path, stream: JetStream, nats_server: NatsServer
) -> None:
    objects = DiskObjects(tmp_path / "objects")
    outbox = open_outbox(nats_server.url, open_objects=lambda: objects)
    with Recorder(outbox, **AGENT) as trajectory:
        trajectory.respond(f"{SECRET} " + "and so on " * 60_000)
    assert outbox.wait_until_sent(120)
    reference = parse_message("agent.rl.trajectory.v1", stream.get(STREAM, 1).data)
    stored = objects.get(reference.claim_check.key)  # type: ignore[union-attr]
    whole = read_claimed_trajectory(reference, stored)  # type: ignore[arg-type]
    assert whole.trajectory_id == trajectory.trajectory_id
    assert SECRET.encode() not in stored


def test_what_can_never_be_sent_is_set_aside_and_holds_nothing_up(
    open_outbox: OpenOutbox, outbox_directory: Path, stream: JetStream, nats_server: NatsServer
) -> None:
    outbox = open_outbox(nats_server.url)
    with Recorder(outbox, **AGENT) as large:
        large.respond("and so on " * 60_000)
    with Recorder(outbox, **AGENT) as small:
        small.respond("done")
    assert [one["trajectory_id"] for one in sent_by(outbox, stream)] == [small.trajectory_id]
    assert (outbox.counts.refused, outbox.counts.sent) == (1, 1)
    assert [path.name for path in outbox_directory.glob("*.refused")] == [f"{large.trajectory_id}.refused"]


def test_a_file_that_nobody_understands_is_set_aside(open_outbox: OpenOutbox, outbox_directory: Path) -> None:
    strange = outbox_directory / "11111111-1111-4111-8111-111111111111.jsonl"
    strange.write_text('{"begin": {}}\n{"turn": {}}\n')
    outbox = open_outbox()
    assert outbox.wait_until_sent(60)
    assert (outbox.counts.refused, journals(outbox_directory)) == (1, [])
    assert strange.with_suffix(".refused").exists()


def test_the_newest_of_what_was_set_aside_are_kept(
    open_outbox: OpenOutbox, outbox_directory: Path, stream: JetStream, nats_server: NatsServer
) -> None:
    for number in range(30):
        old = outbox_directory / f"{number}.refused"
        old.touch()
        os.utime(old, (number, number))
    outbox = open_outbox(nats_server.url)
    with Recorder(outbox, **AGENT) as large:
        large.respond("and so on " * 60_000)
    assert sent_by(outbox, stream) == []
    kept = {path.stem for path in outbox_directory.glob("*.refused")}
    assert kept == {large.trajectory_id, *(str(number) for number in range(11, 30))}


def test_an_outbox_that_is_closed_takes_nothing_and_harms_nobody(open_outbox: OpenOutbox) -> None:
    outbox = open_outbox()
    outbox.close()
    outbox.close()
    with Recorder(outbox, **AGENT) as trajectory:
        trajectory.respond("done")
    assert (outbox.counts.dropped, outbox.counts.finished) == (1, 0)


def run(program: str, *arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-c", program, *arguments], capture_output=True, text=True, check=False, timeout=200
    )


SHORT = """
import sys
from rl_pipeline.collection import Outbox, Recorder
outbox = Outbox(sys.argv[1], sys.argv[2], disk_seconds=60, exit_seconds=60)
with Recorder(outbox, agent_id="a", model="m") as trajectory:
    trajectory.respond("done")
"""


@pytest.mark.parametrize("online", [True, False])
def test_the_end_of_a_program_sends_what_it_can_and_leaves_the_rest(
    outbox_directory: Path, stream: JetStream, nats_server: NatsServer, online: bool
) -> None:
    outcome = run(SHORT, str(outbox_directory), nats_server.url if online else NOWHERE)
    assert (outcome.returncode, outcome.stderr.count("Traceback")) == (0, 0), outcome.stderr
    assert (len(arrived(stream)), len(journals(outbox_directory))) == ((1, 0) if online else (0, 1))


DROPPED = """
import gc, sys, time
from rl_pipeline.collection import Outbox, Recorder
from rl_pipeline.stores.jetstream import JetStream

connect = JetStream.connect

def connect_from_afar(*arguments, **named):
    time.sleep(2)
    return connect(*arguments, **named)

JetStream.connect = connect_from_afar

def task(number):
    outbox = Outbox(sys.argv[1], sys.argv[2], disk_seconds=60, exit_seconds=60)
    with Recorder(outbox, agent_id=f"a{number}", model="m") as trajectory:
        trajectory.respond("done")

for number in range(3):
    task(number)
gc.collect()
"""


def test_the_end_of_a_program_waits_for_an_outbox_that_nobody_holds_any_more(
    outbox_directory: Path, stream: JetStream, nats_server: NatsServer
) -> None:
    outcome = run(DROPPED, str(outbox_directory), nats_server.url)
    assert (outcome.returncode, outcome.stderr.count("Traceback")) == (0, 0), outcome.stderr
    assert {one["agent_id"] for one in arrived(stream)} == {"a0", "a1", "a2"}
    assert journals(outbox_directory) == []


FORK = """
import os, sys
from rl_pipeline.collection import Outbox, Recorder
outbox = Outbox(sys.argv[1], sys.argv[2], disk_seconds=60)
with Recorder(outbox, agent_id="parent", model="m") as trajectory:
    trajectory.respond("before")
    outbox._working().writer.wait_until_written(60)
    child = os.fork()
    if child == 0:
        trajectory.respond("not the child's to record")
        with Recorder(outbox, agent_id="child", model="m") as own:
            own.respond("mine")
        outbox.wait_until_sent(60)
        sys.stdin.read()
        os._exit(0)
    trajectory.respond("after")
print("sent" if outbox.wait_until_sent(60) else "waits", flush=True)
"""


def test_a_fork_records_for_itself_and_does_not_hold_up_its_parent(
    outbox_directory: Path, stream: JetStream, nats_server: NatsServer
) -> None:
    command = [sys.executable, "-c", FORK, str(outbox_directory), nats_server.url]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        # By either of them: whoever looks into the directory first sends what is whole.
        assert process.stdout.readline() == "sent\n", "the parent waits although its child lives"
        process.communicate()
    answers = {one["agent_id"]: [turn["action"]["raw_response"] for turn in one["turns"]] for one in arrived(stream)}
    assert answers == {"parent": ["before", "after"], "child": ["mine"]}


BASE = """
import sys

class OnlyWhatAnAgentHas:
    def find_spec(self, name, path=None, target=None):
        top = name.partition(".")[0]
        if top not in {allowed!r} and top not in sys.stdlib_module_names and not top.startswith("_sysconfigdata"):
            raise ModuleNotFoundError(f"an agent has no {{top}}", name=name)

sys.meta_path.insert(0, OnlyWhatAnAgentHas())
"""


def test_an_agent_records_with_nothing_but_the_base_dependencies_into_a_directory_of_its_own(
    tmp_path: Path, stream: JetStream, nats_server: NatsServer
) -> None:
    program = BASE.format(allowed=modules_of_a_plain_installation()) + SHORT.replace('"done"', repr(SECRET))
    outcome = run(program, str(tmp_path / "outbox"), nats_server.url)
    assert outcome.returncode == 0, outcome.stderr
    [sent] = arrived(stream)
    assert "[REDACTED:API_KEY:" in sent["turns"][0]["action"]["raw_response"]
    assert (tmp_path / "outbox").stat().st_mode & 0o777 == 0o700
