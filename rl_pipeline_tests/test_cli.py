"""The commands as people use them: one line of error, an exit code, nothing half-done."""

import json
import socket
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from random import Random

import pytest

from rl_pipeline.collection.samples import sample_trajectories
from rl_pipeline.contracts import serialize
from rl_pipeline.embedded.nats_server import NatsServer
from rl_pipeline.embedded.ports import free_port
from rl_pipeline.stores.disk import DiskObjects
from rl_pipeline.stores.jetstream import JetStream
from rl_pipeline_tests.end_to_end.running_stack import run_command

GOOD = [
    serialize(sample).decode() for sample in sample_trajectories(3, now=datetime.now(UTC), randomness=Random("samples"))
]


@pytest.fixture
def publish(tmp_path: Path, nats_server: NatsServer) -> Callable[..., object]:
    return lambda *arguments: run_command(tmp_path, "publish", *arguments, NATS_URL=nats_server.url)


def written(directory: Path, *lines: str) -> str:
    file = directory / "messages.jsonl"
    file.write_text("\n".join(lines))
    return str(file)


def test_publish_stores_every_message_of_a_file_once(publish, stream: JetStream, tmp_path: Path) -> None:
    file = written(tmp_path, *GOOD)
    assert publish(file).returncode == 0
    again = publish(file)
    assert "published 0 messages" in again.stdout
    assert "3 were there already" in again.stdout
    assert stream.state("RL_TRAJECTORIES").messages == 3


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        pytest.param("{", "not_json", id="malformed"),
        pytest.param(GOOD[1].replace('"turns":[{', '"extra":1,"turns":[{'), "unknown_field", id="unknown field"),
        pytest.param(json.dumps({**json.loads(GOOD[1]), "turns": []}), "min_items", id="no turns"),
        pytest.param(json.dumps({"text": "x" * 2**20}), "max_bytes", id="oversize"),
        pytest.param('{"a": 1e999}', "not_finite", id="infinite"),
        pytest.param("[" * 2000, "max_depth", id="deep"),
    ],
)
def test_one_bad_message_stops_the_whole_file_with_one_line(
    publish, stream: JetStream, tmp_path: Path, bad: str, said: str
) -> None:
    refused = publish(written(tmp_path, GOOD[0], bad, GOOD[2]))
    assert refused.returncode == 1
    assert len(refused.stderr.splitlines()) == 1
    assert "messages.jsonl:2" in refused.stderr
    assert said in refused.stderr
    assert stream.state("RL_TRAJECTORIES").messages == 0


def test_an_unknown_subject_is_refused_with_those_that_are_known(publish, stream: JetStream, tmp_path: Path) -> None:
    refused = publish(written(tmp_path, *GOOD), "--subject", "agent.rl.gossip.v1")
    assert refused.returncode == 1
    assert refused.stderr.count("agent.rl.trajectory.v1") == 1
    assert len(refused.stderr.splitlines()) == 1


def test_a_trajectory_too_large_for_a_message_travels_by_claim_check(
    stream: JetStream, tmp_path: Path, nats_server: NatsServer
) -> None:
    large = json.loads(GOOD[0])
    large["turns"][0]["result"]["output"] = "x" * 600_000
    (tmp_path / "large.json").write_text(json.dumps(large))
    servers = {"NATS_URL": nats_server.url, "TRAJECTORY_STORAGE_PATH": str(tmp_path / "objects")}
    published = run_command(tmp_path, "publish", str(tmp_path / "large.json"), **servers)
    assert published.returncode == 0, published.stderr
    reference = json.loads(stream.get("RL_TRAJECTORIES", 1).data)
    stored = DiskObjects(tmp_path / "objects" / "raw").get(reference["claim_check"]["key"])
    assert json.loads(stored)["trajectory_id"] == large["trajectory_id"]


def test_samples_are_trajectories_and_take_no_other_subject(publish, stream: JetStream) -> None:
    refused = publish("--sample", "1", "--subject", "agent.rl.reward.v1")
    assert refused.returncode == 1
    assert stream.state("RL_TRAJECTORIES").messages == 0


def test_a_file_that_is_not_there_is_named(publish, stream: JetStream, tmp_path: Path) -> None:
    refused = publish(str(tmp_path / "nothing.jsonl"))
    assert refused.returncode == 1
    assert "nothing.jsonl cannot be read" in refused.stderr


@pytest.mark.parametrize(
    ("command", "variable", "scheme"),
    [
        (("publish", "--sample", "1"), "NATS_URL", "nats"),
        (("streams", "bootstrap"), "NATS_URL", "nats"),
        (("warehouse", "migrate"), "CLICKHOUSE_URL", "http"),
    ],
)
def test_a_server_that_cannot_be_reached_is_one_line_that_says_what_to_do(
    tmp_path: Path, command: tuple[str, ...], variable: str, scheme: str
) -> None:
    refused = run_command(tmp_path, *command, **{variable: f"{scheme}://127.0.0.1:{free_port()}"})
    assert refused.returncode == 1
    assert len(refused.stderr.splitlines()) == 1
    assert variable in refused.stderr


def test_bootstrap_and_migrate_say_what_they_made_and_that_a_second_time_makes_nothing(
    tmp_path: Path, nats_server: NatsServer, stream: JetStream, clickhouse_url: str
) -> None:
    servers = {"NATS_URL": nats_server.url, "CLICKHOUSE_URL": clickhouse_url, "CLICKHOUSE_DATABASE": "made_by_command"}
    stream.request("STREAM.DELETE.RL_REWARDS")
    assert "created RL_REWARDS" in run_command(tmp_path, "streams", "bootstrap", **servers).stdout
    assert "up to date" in run_command(tmp_path, "streams", "bootstrap", **servers).stdout
    assert "created 0001" in run_command(tmp_path, "warehouse", "migrate", **servers).stdout
    assert "up to date" in run_command(tmp_path, "warehouse", "migrate", **servers).stdout


def test_a_wrong_setting_stops_a_command_before_it_does_anything(tmp_path: Path) -> None:
    refused = run_command(tmp_path / "home", "up", REWARD_WEIGHT_EFFICIENCY="0.9")
    assert refused.returncode == 1
    assert "must sum to 1" in refused.stderr
    assert not (tmp_path / "home").exists()


def test_the_demo_refuses_to_touch_real_servers(tmp_path: Path) -> None:
    refused = run_command(tmp_path / "home", "demo", NATS_URL="nats://nats:4222")
    assert refused.returncode == 1
    assert "unset NATS_URL" in refused.stderr


def test_status_without_a_stack_says_how_to_start_one(tmp_path: Path) -> None:
    refused = run_command(tmp_path, "status")
    assert refused.returncode == 1
    assert "rl-pipeline up" in refused.stderr


def test_contracts_check_passes_on_what_is_checked_in(tmp_path: Path) -> None:
    assert run_command(tmp_path, "contracts", "check").returncode == 0


def test_a_home_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    refused = run_command(tmp_path / "file" / "home", "up")
    assert refused.returncode == 1
    assert "RL_PIPELINE_HOME" in refused.stderr
    assert len(refused.stderr.splitlines()) == 1


def test_an_occupied_port_is_named_with_its_setting(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = str(server.getsockname()[1])
        refused = run_command(tmp_path, "up", RL_PIPELINE_NATS_PORT=port)
    assert refused.returncode == 1
    assert f"RL_PIPELINE_NATS_PORT={port} is occupied" in refused.stderr
    assert refused.stdout == ""
    assert sorted(path.name for path in tmp_path.iterdir()) == ["lock", "logs"]


@pytest.mark.parametrize("name", ["logs", "nats", "clickhouse", "dagster"])
def test_a_home_that_is_in_the_way_of_itself_is_one_line(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("")
    refused = run_command(tmp_path, "up")
    assert refused.returncode == 1
    assert name in refused.stderr
    assert len(refused.stderr.splitlines()) == 1


def test_a_dagster_home_that_is_not_there_stops_up_before_anything_starts(tmp_path: Path) -> None:
    refused = run_command(tmp_path, "up", DAGSTER_HOME=str(tmp_path / "nowhere"))
    assert refused.returncode == 1
    assert "unset DAGSTER_HOME" in refused.stderr
    assert refused.stdout == ""
