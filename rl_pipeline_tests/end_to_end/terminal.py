"""Where an operator types the specification's lines: `sh`, `curl` with keys in its configuration, and `nats`.

What is not the lines' own (C-31): the addresses, the keys, quotes around what the shell would split, and times.
"""

import json
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from rl_pipeline_tests.waiting import wait_until

SERVICE, GATEWAY = "http://agentgym-rl:8100", "http://tensorzero-gateway:3000"
PROMETHEUS = "http://prometheus:9090"
_PROJECT = Path(__file__).parents[2]


class Told(NamedTuple):
    """What curl printed."""

    status: int
    text: str

    @property
    def json(self) -> Any:
        return json.loads(self.text)


class Listening:
    """A line that prints for as long as it runs."""

    def __init__(self, process: "subprocess.Popen[bytes]", printed: Path) -> None:
        self._process = process
        self._printed = printed

    @property
    def text(self) -> str:
        return self._printed.read_text()

    def hears(self, words: str) -> None:
        wait_until(lambda: words in self.text, f"{words!r} in what {self._printed.name} prints")

    def end(self) -> str:
        """Ctrl-C of `nats`; what reads from it goes on to its end."""
        for process in psutil.Process(self._process.pid).children(recursive=True):
            if "rl_pipeline_tests.end_to_end.nats_command" in process.cmdline():
                process.send_signal(signal.SIGTERM)
        self._process.wait(30)
        return self.text


class Terminal:
    """A shell in a directory of its own."""

    def __init__(self, home: Path, addresses: Mapping[str, str], headers: Mapping[str, str], nats_url: str) -> None:
        """`addresses` stand in place of the specification's, `headers` are sent to them."""
        self.home = home
        self._addresses = addresses
        self._nats_url = nats_url
        for name, address in enumerate(addresses):
            directory = home / f"curl-{name}"
            directory.mkdir(parents=True)
            header = f'header = "{headers[address]}"\n' if address in headers else ""
            options = f'silent\nshow-error\nmax-time = 60\nwrite-out = "\\n%{{http_code}}"\n{header}'
            (directory / ".curlrc").write_text(options)
        self._program("nats", f'exec {sys.executable} -m rl_pipeline_tests.end_to_end.nats_command "$@"')
        self._program("uuidgen", "exec cat /proc/sys/kernel/random/uuid")

    def curl(self, line: str) -> Told:
        """A line that asks one of the addresses."""
        text, _, status = self.run(line).rpartition("\n")
        return Told(int(status), text)

    def run(self, line: str) -> str:
        """What a line prints, to its end."""
        command = ["sh", "-c", self._placed(line)]
        done = subprocess.run(
            command, env=self._environment(line), capture_output=True, text=True, check=False, cwd=self.home, timeout=90
        )
        assert done.returncode == 0, (line, done.stdout, done.stderr)
        return done.stdout

    @contextmanager
    def listening(self, line: str) -> Iterator[Listening]:
        """A line that runs while other things happen; it listens when this yields."""
        printed = self.home / f"heard-{len(list(self.home.iterdir()))}"
        said = printed.with_suffix(".stderr")
        with printed.open("wb") as output, said.open("wb") as errors:
            process = subprocess.Popen(
                ["sh", "-c", self._placed(line)],
                env=self._environment(line),
                stdout=output,
                stderr=errors,
                cwd=self.home,
            )
        heard = Listening(process, printed)
        try:
            wait_until(lambda: "Subscribing" in said.read_text(), f"{line!r}, which should listen,")
            yield heard
        finally:
            if process.poll() is None:
                heard.end()

    def _placed(self, line: str) -> str:
        for named, address in self._addresses.items():
            line = line.replace(named, address)
        return line

    def _environment(self, line: str) -> dict[str, str]:
        asked = next((number for number, named in enumerate(self._addresses) if named in line), 0)
        return {
            "CURL_HOME": str(self.home / f"curl-{asked}"),
            "NATS_URL": self._nats_url,
            "NO_PROXY": "127.0.0.1",
            "PATH": f"{self.home / 'bin'}:/usr/bin:/bin",
            "PYTHONPATH": str(_PROJECT),
        }

    def _program(self, name: str, line: str) -> None:
        program = self.home / "bin" / name
        program.parent.mkdir(parents=True, exist_ok=True)
        program.write_text(f"#!/bin/sh\n{line}\n")
        program.chmod(program.stat().st_mode | stat.S_IXUSR)
