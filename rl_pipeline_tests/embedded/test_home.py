"""What holds of a stack's directory and its ports."""

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from threading import Event, Thread

import psutil
import pytest

from rl_pipeline.embedded.home import HomeUnusable, hold
from rl_pipeline.embedded.ports import (
    PortOccupied,
    choose_port,
    free_port,
    is_free,
    listens,
    one_stack_starts_at_a_time,
)
from rl_pipeline.embedded.record import find_running_stack

HOLD = """
import pathlib, signal, subprocess, sys
from rl_pipeline.embedded.home import hold
with hold(pathlib.Path(sys.argv[1])) as home:
    child = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"], start_new_session=True)
    home.write_record({"nats": "nats://127.0.0.1:1"}, {"nats": child.pid})
    print(child.pid, flush=True)
    signal.pause()
"""


@pytest.fixture
def held_by_another(tmp_path: Path):
    holder = subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    child = psutil.Process(int(holder.stdout.readline()))
    yield holder, child
    holder.kill()
    holder.wait()
    holder.stdout.close()
    if child.is_running():
        child.kill()


def test_a_directory_has_one_stack_and_the_second_is_told_who_holds_it(tmp_path: Path, held_by_another) -> None:
    holder, _ = held_by_another
    with pytest.raises(HomeUnusable, match=f"held by process {holder.pid}, started .*RL_PIPELINE_HOME"), hold(tmp_path):
        pass


def test_a_running_stack_is_found_with_its_addresses(tmp_path: Path, held_by_another) -> None:
    record = find_running_stack(tmp_path)
    assert record is not None
    assert record.urls == {"nats": "nats://127.0.0.1:1"}


def test_a_directory_without_a_stack_has_none_to_find(tmp_path: Path) -> None:
    assert find_running_stack(tmp_path) is None
    with hold(tmp_path) as home:
        home.write_record({}, {})
    assert find_running_stack(tmp_path) is None


def test_what_a_killed_stack_left_behind_is_ended_by_the_next(tmp_path: Path, held_by_another) -> None:
    holder, child = held_by_another
    os.kill(holder.pid, signal.SIGKILL)
    holder.wait()
    assert find_running_stack(tmp_path) is None
    with hold(tmp_path) as home:
        assert home.end_leftovers() == ["nats"]
        assert not child.is_running() or child.status() == psutil.STATUS_ZOMBIE


def test_a_process_that_only_shares_the_id_of_a_leftover_is_left_alone(tmp_path: Path) -> None:
    bystander = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"])
    try:
        with hold(tmp_path) as home:
            home.write_record({}, {"nats": bystander.pid})
            record = tmp_path / "stack.json"
            created = psutil.Process(bystander.pid).create_time()
            record.write_text(record.read_text().replace(str(created), str(created - 60)))
            assert home.end_leftovers() == []
        assert bystander.poll() is None
    finally:
        bystander.kill()
        bystander.wait()


def test_a_directory_that_cannot_be_made_is_refused_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(HomeUnusable, match=r"cannot be written .*RL_PIPELINE_HOME"), hold(tmp_path / "file" / "home"):
        pass


@pytest.mark.parametrize("text", ["", "{", "[]", '{"pid": 1}', '{"processes": []}'])
def test_a_record_that_cannot_be_read_counts_as_none(tmp_path: Path, text: str) -> None:
    (tmp_path / "stack.json").write_text(text)
    with hold(tmp_path) as home:
        assert home.end_leftovers() == []


@pytest.mark.parametrize("name", ["nats", "logs"])
def test_a_file_where_a_directory_should_be_is_named(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("")
    with hold(tmp_path) as home, pytest.raises(HomeUnusable, match=rf"{name} cannot be written .*RL_PIPELINE_HOME"):
        home.subdirectory(name)


def test_a_record_or_a_log_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with hold(tmp_path) as home:
        (tmp_path / "stack.json").mkdir()
        (tmp_path / "logs" / "nats.log").mkdir(parents=True)
        with pytest.raises(HomeUnusable, match=r"stack\.json cannot be written"):
            home.write_record({}, {})
        with pytest.raises(HomeUnusable, match=r"nats\.log cannot be written"):
            home.log("nats")


def test_while_one_stack_starts_another_waits_with_its_choice_of_ports() -> None:
    chosen = Event()

    def choose() -> None:
        with one_stack_starts_at_a_time():
            chosen.set()

    other = Thread(target=choose)
    with one_stack_starts_at_a_time():
        other.start()
        assert not chosen.wait(0.3)
    other.join()
    assert chosen.is_set()


def test_a_configured_port_that_is_taken_is_refused_with_its_setting() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert not is_free(port)
        with pytest.raises(PortOccupied, match=f"RL_PIPELINE_UI_PORT={port} is occupied"):
            choose_port("RL_PIPELINE_UI_PORT", port, 3000)


def test_the_usual_port_gives_way_to_a_free_one_when_it_is_taken() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        usual = server.getsockname()[1]
        chosen = choose_port("RL_PIPELINE_UI_PORT", None, usual)
    assert chosen != usual


def test_the_usual_port_is_taken_when_it_is_free() -> None:
    usual = free_port()
    assert choose_port("RL_PIPELINE_UI_PORT", None, usual) == usual


def test_a_port_belongs_to_the_process_that_listens_on_it_and_to_no_other() -> None:
    stranger = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"])
    try:
        with socket.create_server(("127.0.0.1", 0)) as server:
            port = server.getsockname()[1]
            assert listens(os.getpid(), port)
            assert not listens(stranger.pid, port)
    finally:
        stranger.kill()
        stranger.wait()
    assert not listens(stranger.pid, port)
