"""The front as a process: how it starts, why it does not, and how it stops."""

import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

import psutil
import pytest
import urllib3

from rl_pipeline_tests.fixtures.clickhouse import ClickHouseFront, running_front, start_front

# From Linux' prctl.h and capability.h.
PR_CAPBSET_DROP = 24
CAP_DAC_OVERRIDE = 1
SLOW = "SELECT count() FROM numbers(2) WHERE sleep(1) = 0 SETTINGS max_block_size = 1"


def refusal(process: "subprocess.Popen[str]") -> str:
    """What a front that cannot start says; it says it in one line, and ends with an error."""
    output, errors = process.communicate(timeout=60)
    assert process.returncode not in (0, None)
    assert output == ""
    assert errors.count("\n") == 1
    assert "Traceback" not in errors
    return errors


def post(front: ClickHouseFront, sql: str) -> bytes:
    return urllib3.request("POST", front.url, body=sql, timeout=60).data


def test_what_was_written_is_there_after_a_restart(tmp_path: Path) -> None:
    with running_front(tmp_path) as front:
        post(front, "CREATE TABLE default.t (a UInt8) ENGINE = MergeTree ORDER BY a")
        post(front, "CREATE DATABASE d")
        post(front, "CREATE TABLE d.t (a UInt8) ENGINE = MergeTree ORDER BY a")
        for table in ("default.t", "d.t"):
            post(front, f"INSERT INTO {table} VALUES (1), (2)")
        assert front.stop() == 0
    with running_front(tmp_path) as front:
        assert post(front, "SELECT sum(a) FROM default.t") == post(front, "SELECT sum(a) FROM d.t") == b"3\n"


def test_it_listens_on_loopback_alone(tmp_path: Path) -> None:
    with running_front(tmp_path) as front:
        listening = [c.laddr.ip for c in psutil.Process(front.process.pid).net_connections() if c.status == "LISTEN"]
        assert listening == ["127.0.0.1"]


def test_an_occupied_port_is_refused_and_the_directory_not_touched(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        said = refusal(start_front(tmp_path / "data", port))
    assert said == f"cannot listen on 127.0.0.1:{port}: Address already in use; free it or choose another port\n"
    assert not (tmp_path / "data").exists()


def test_a_port_that_cannot_be_is_refused(tmp_path: Path) -> None:
    assert "cannot listen on 127.0.0.1:99999" in refusal(start_front(tmp_path / "data", 99999))


def test_a_directory_that_another_process_holds_is_refused_by_that_processs_id(tmp_path: Path) -> None:
    with running_front(tmp_path) as front:
        before = sorted(tmp_path.rglob("*"))
        said = refusal(start_front(tmp_path, 0))
        assert f"process {front.process.pid} holds it; stop that process or choose another directory" in said
        assert sorted(tmp_path.rglob("*")) == before
        assert post(front, "SELECT 1") == b"1\n"


def test_a_file_where_the_directory_should_be_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    for directory in (tmp_path / "file", tmp_path / "file" / "below"):
        assert "cannot write to" in refusal(start_front(directory, 0))
    assert (tmp_path / "file").read_text() == "mine"


def test_a_read_only_directory_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o555)
    # Permissions do not bind root as long as it has the capability to override them.
    give_up = f"import ctypes, os; ctypes.CDLL(None).prctl({PR_CAPBSET_DROP}, {CAP_DAC_OVERRIDE}, 0, 0, 0); "
    command = [sys.executable, "-m", "rl_pipeline.embedded.clickhouse_http", "--data", str(tmp_path), "--port", "0"]
    process = subprocess.Popen(
        [sys.executable, "-c", f"{give_up}os.execv({sys.executable!r}, {command!r})"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    said = refusal(process)
    assert said == f"cannot write to {tmp_path}: Permission denied; make it writable or choose another directory\n"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_lets_the_running_query_finish_and_takes_no_more(tmp_path: Path, number: signal.Signals) -> None:
    with running_front(tmp_path) as front, urllib3.PoolManager() as pool:
        pool.request("GET", f"{front.url}/ping")  # and its connection stays open, idle
        answers: list[bytes] = []
        slow = threading.Thread(target=lambda: answers.append(post(front, SLOW)))
        slow.start()
        wait_for_the_query(front)
        front.process.send_signal(number)
        assert front.process.wait(timeout=60) == 0
        slow.join()
        assert answers == [b"2\n"]
        with pytest.raises(urllib3.exceptions.HTTPError):
            urllib3.request("GET", f"{front.url}/ping", retries=False)


def test_a_client_that_does_not_read_its_result_does_not_keep_the_front_from_stopping(tmp_path: Path) -> None:
    with running_front(tmp_path) as front, socket.create_connection(("127.0.0.1", front.port)) as client:
        sql = b"SELECT repeat('x', 1000) FROM numbers(1000000) FORMAT TSV"
        client.sendall(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s" % (len(sql), sql))
        assert client.recv(12) == b"HTTP/1.1 200"
        assert front.stop() == 0


def test_a_long_result_is_streamed_in_bounded_memory(tmp_path: Path) -> None:
    with running_front(tmp_path) as front, urllib3.PoolManager() as pool:
        # Prepared once, so that what is measured is the stream and not the engine's own warming up.
        post(front, "SELECT number, repeat('x', 1000) FROM numbers(100000) FORMAT Null")
        before = psutil.Process(front.process.pid).memory_info().rss
        sql = "SELECT number, repeat('x', 1000) FROM numbers(500000) FORMAT ArrowStream"
        settings = "output_format_arrow_compression_method=none&max_block_size=8192"
        answer = pool.request("POST", f"{front.url}/?{settings}", body=sql, preload_content=False)
        size, most = 0, before
        while piece := answer.read(16 << 20):
            size += len(piece)
            most = max(most, psutil.Process(front.process.pid).memory_info().rss)
    assert size > 500_000_000
    assert most - before < size / 3


def wait_for_the_query(front: ClickHouseFront) -> None:
    """Until the front works on a query that somebody else has asked."""
    others = "SELECT count() FROM system.processes WHERE query NOT LIKE '%system.processes%'"
    while post(front, others) != b"1\n":
        pass
