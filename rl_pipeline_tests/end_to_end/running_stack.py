"""`rl-pipeline up` and `demo` as a user runs them: a real process, whose lines and servers the tests see."""

import json
import os
import re
import signal
import subprocess
import sysconfig
import threading
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rl_pipeline.embedded.record import StackRecord, read_record
from rl_pipeline.settings import Settings
from rl_pipeline_tests.waiting import wait_until

COMMAND = Path(sysconfig.get_path("scripts")) / "rl-pipeline"


def user_environment(home: Path, **variables: str) -> dict[str, str]:
    """The environment of a user who has set nothing but the home and the given variables."""
    ours = {field.upper() for field in Settings.model_fields}
    inherited = {name: value for name, value in os.environ.items() if name not in ours}
    return {**inherited, "RL_PIPELINE_HOME": str(home), **variables}


def run_command(home: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """One `rl-pipeline` command, to its end."""
    return subprocess.run(
        [COMMAND, *arguments],
        env=user_environment(home, **variables),
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


class RunningStack:
    """One `rl-pipeline up`, or another command that runs a stack in `home`."""

    def __init__(self, home: Path, arguments: Sequence[str] = ("up",), **variables: str) -> None:
        self.home = home
        """Of the stack itself; a demo makes one below the user's."""
        self.process = subprocess.Popen(
            [COMMAND, *arguments],
            env=user_environment(home, **variables),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.lines: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line.rstrip())

    def wait_for_line(self, pattern: str, after: int = 0, seconds: float = 120.0) -> str:
        """The first line, not before the given count, in which the pattern is found."""

        def found() -> str | None:
            assert self.process.poll() is None or self._reader.is_alive(), "\n".join(self.lines)
            return next((line for line in self.lines[after:] if re.search(pattern, line)), None)

        try:
            return str(wait_until(found, f"a line like {pattern!r}", seconds=seconds))
        except AssertionError as error:
            error.add_note("\n".join(self.lines))
            raise

    @property
    def record(self) -> StackRecord:
        """What the stack has written down of itself."""
        record = read_record(self.home)
        assert record is not None
        return record

    def graphql(self, query: str) -> Any:
        """Ask the UI's API."""
        request = urllib.request.Request(
            f"{self.record.urls['ui']}/graphql",
            data=json.dumps({"query": query}).encode(),
            headers={"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=30) as answer:
            return json.loads(answer.read())["data"]

    def interrupt(self) -> int:
        """Ctrl-C, and the exit code."""
        self.process.send_signal(signal.SIGINT)
        code = self.process.wait(120)
        self._reader.join(10)
        return code

    def end(self) -> None:
        """Leave nothing behind, whatever the test did."""
        if self.process.poll() is None:
            self.interrupt()
        assert self.process.stdout is not None
        self.process.stdout.close()
