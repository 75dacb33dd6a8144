"""A service to ask: `rl-pipeline service` as people start it, or the app itself in this process."""

import json
import signal
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

from rl_pipeline.service.keys import Scope, entry_of
from rl_pipeline_tests.end_to_end.running_stack import COMMAND, user_environment

KEY = "the-key-of-tests-which-may-do-everything"
NOBODY = "http://127.0.0.1:9"
"""Where nothing listens."""


class Told(NamedTuple):
    """What curl printed."""

    status: int
    text: str

    @property
    def json(self) -> Any:
        return json.loads(self.text)


@dataclass
class ServiceProcess:
    """`rl-pipeline service` whose stores are given as environment variables."""

    directory: Path
    stores: Mapping[str, str]
    port: int = 0
    url: str = field(init=False, default="")
    process: "subprocess.Popen[bytes]" = field(init=False)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end(signal.SIGKILL)

    def start(self) -> Self:
        """Return when it listens."""
        self.directory.mkdir(parents=True, exist_ok=True)
        variables = {
            "AGENTGYM_RL_API_KEY": KEY,
            "REDACTION_KEY": "v1:the-key-of-tests-of-32-characters",
            "EDGE_REDACTION_KEY": "v1:the-edge-key-of-tests-of-32-chars",
            "MODEL_STORAGE_PATH": str(self.directory / "models"),
            "TRAJECTORY_STORAGE_PATH": str(self.directory / "trajectories"),
            "MLFLOW_TRACKING_URI": NOBODY,
            "DAGSTER_URL": NOBODY,
            "TENSORZERO_BASE_URL": NOBODY,
            **self.stores,
        }
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [COMMAND, "service", "--port", str(self.port)],
                env=user_environment(self.directory / "home", **variables),
                stdout=subprocess.PIPE,
                stderr=log,
            )
        assert self.process.stdout is not None
        line = self.process.stdout.readline().decode()
        assert line.startswith("the service listens on "), self.log.read_text()[-2000:]
        self.url = line.split()[-1]
        self.port = int(self.url.rpartition(":")[2])
        return self

    @property
    def log(self) -> Path:
        return self.directory / "service.log"

    def end(self, how: signal.Signals) -> int:
        """Signal it, and wait for its end."""
        if self.process.poll() is None:
            self.process.send_signal(how)
        code = self.process.wait(30)
        assert self.process.stdout is not None
        self.process.stdout.close()
        return code


@dataclass(frozen=True)
class Shell:
    """Where somebody types the lines of the specification; the key is in curl's configuration."""

    service: ServiceProcess
    home: Path
    key: str | None = KEY

    def __post_init__(self) -> None:
        self.home.mkdir(parents=True, exist_ok=True)
        header = f'header = "Authorization: Bearer {self.key}"\n' if self.key else ""
        options = f'silent\nshow-error\nmax-time = 60\nwrite-out = "\\n%{{http_code}}"\n{header}'
        (self.home / ".curlrc").write_text(options)

    def run(self, line: str) -> Told:
        environment = {"CURL_HOME": str(self.home), "PATH": "/usr/bin:/bin", "NO_PROXY": "127.0.0.1"}
        command = ["sh", "-c", line.replace("http://agentgym-rl:8100", self.service.url)]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, cwd=self.home)
        text, _, status = done.stdout.rpartition("\n")
        return Told(int(status), text)


def keys_file(directory: Path, *keys: tuple[str, tuple[Scope, ...], Any]) -> Path:
    """A file of keys, each named by itself: the key, its scopes, and its end."""
    file = directory / "keys.toml"
    file.write_text("\n".join(entry_of(key, key, scopes, expires) for key, scopes, expires in keys))
    return file
