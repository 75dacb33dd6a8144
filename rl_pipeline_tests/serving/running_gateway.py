"""A real gateway process for a test, and how a test talks to it."""

import http.client
import json
import signal
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from rl_pipeline.deployment.state import DesiredState
from rl_pipeline.redaction.policy import RedactionKey
from rl_pipeline.redaction.session_names import stored_name

TOKEN = "0123456789abcdef-token"
SESSION_KEY = "v1:a-key-of-gateways-for-tests-alone"


def stored_as(session: str) -> str:
    """How what is stored calls a session of these gateways."""
    return stored_name(RedactionKey.parse(SESSION_KEY), session)


@dataclass
class Reply:
    """What came back."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def model(self) -> str:
        """Who answered."""
        return self.headers["x-model-id"]


@dataclass
class GatewayProcess:
    """A gateway that can be started, stopped, killed, and started again in the same directory."""

    directory: Path
    options: dict[str, Any] = field(default_factory=dict)
    port: int = 0
    process: subprocess.Popen[bytes] | None = None
    most_files: tuple[int, int] | None = None
    """How many files it may have open: the soft and the hard limit, as it is started."""

    def start(self) -> Self:
        """Return when it listens; again on the same port."""
        given = {
            "data_directory": str(self.directory),
            "admin_token": TOKEN,
            "session_key": SESSION_KEY,
            "name": "gateway-1",
            "port": self.port,
            **self.options,
        }
        self.directory.mkdir(parents=True, exist_ok=True)
        with (self.directory / "gateway.log").open("ab") as log:
            limits = [f"ulimit -{kind}n {most}" for kind, most in zip("SH", self.most_files or (), strict=False)]
            self.process = subprocess.Popen(
                [
                    "sh",
                    "-c",
                    " && ".join([*limits, 'exec "$@"']),
                    "sh",
                    sys.executable,
                    "-m",
                    "rl_pipeline_tests.serving.gateway_program",
                    json.dumps(given),
                ],
                stdout=subprocess.PIPE,
                stderr=log,
            )
        assert self.process.stdout is not None
        words = self.process.stdout.readline().split()
        assert words[:1] == [b"listening"], (self.directory / "gateway.log").read_text()[-2000:]
        self.port = int(words[1])
        return self

    def end(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Its exit code."""
        if self.process is None:
            return 0
        process, self.process = self.process, None
        process.send_signal(number)
        try:
            return process.wait(60)
        finally:
            process.kill()
            process.wait()
            assert process.stdout is not None
            process.stdout.close()

    def kill(self) -> None:
        """As a crash would."""
        self.end(signal.SIGKILL)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.end()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def call(
        self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None, token: str | None = TOKEN
    ) -> Reply:
        """One request on a connection of its own."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        authorization = {"Authorization": f"Bearer {token}"} if token and path.startswith("/admin") else {}
        try:
            connection.request(method, path, data, {**authorization, **(headers or {})})
            answer = connection.getresponse()
            return Reply(answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read())
        finally:
            connection.close()

    def chat(self, session: str | None = None, **body: Any) -> Reply:
        """One turn of a session."""
        headers = {"X-Session-Id": session} if session else {}
        messages = [{"role": "user", "content": "who are you?"}]
        return self.call("POST", "/v1/chat/completions", {"model": "any", "messages": messages, **body}, headers)

    def follow(self, state: DesiredState) -> Any:
        """Have a state followed."""
        reply = self.call("PUT", "/admin/state", state.encoded())
        assert reply.status == 200, reply.body
        return reply.json

    def standing(self) -> Any:
        return self.call("GET", "/admin/state").json

    def health(self) -> Any:
        return self.call("GET", "/health").json
