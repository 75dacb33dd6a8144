"""A running stack on which something of everything has happened, the Prometheus that looks at it, and a terminal."""

import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil

from rl_pipeline.deployment.commands import Commands
from rl_pipeline.deployment.state import ServedModel
from rl_pipeline.embedded.ports import free_port
from rl_pipeline.opening import open_desk, open_stream
from rl_pipeline_tests.end_to_end import specified_lines as lines
from rl_pipeline_tests.end_to_end.released_models import FAST_ROLLOUTS, Releases
from rl_pipeline_tests.end_to_end.running_stack import RunningStack, run_command
from rl_pipeline_tests.end_to_end.terminal import GATEWAY, PROMETHEUS, SERVICE, Listening, Terminal
from rl_pipeline_tests.end_to_end.training_stack import TrainingStack
from rl_pipeline_tests.observability.scraping import Prometheus, running_prometheus, seconds_for_minutes
from rl_pipeline_tests.serving.stub_backend import StubBackend, answer, answer_500, stub_backends
from rl_pipeline_tests.waiting import wait_until

FIRST, SECOND, THIRD = "agent-zero-rl-v2.2", "agent-zero-rl-v2.3", "agent-zero-rl-v2.4"
SAMPLES = 12
SCORED = "SELECT count() AS n FROM (SELECT DISTINCT sequence FROM rewards)"


@dataclass
class OperatedStack:
    """The stack of one home, whether it runs or was killed; `backend` answers for every model."""

    home: Path
    variables: dict[str, str]
    backend: StubBackend
    stack: RunningStack = field(init=False)
    training: TrainingStack = field(init=False)
    releases: Releases = field(init=False)

    def start(self) -> None:
        """Return when all of it serves."""
        self.stack = RunningStack(self.home, **self.variables)
        self.stack.wait_for_line("The UI is at", seconds=600)
        self.training = TrainingStack(self.stack)
        self.releases = Releases(self.training)

    def end(self) -> None:
        """Leave nothing behind."""
        self.stack.end()

    def kill(self, *names: str) -> None:
        """kill -9, at once: the supervisor, and all components but these, with whatever they have started."""
        spared = [self.stack.record.processes[name] for name in names]
        kept = {process.pid for process in spared if process}
        parent = psutil.Process(self.stack.process.pid)
        parent.suspend()  # it must start nothing again
        for child in parent.children():
            if child.pid not in kept:
                for process in (child, *child.children(recursive=True)):
                    process.kill()
        parent.kill()
        self.stack.process.wait(30)

    def kill_left(self, *pids: int) -> None:
        """kill -9, of what was spared before."""
        for pid in pids:
            process = psutil.Process(pid)
            for each in (*process.children(recursive=True), process):
                each.kill()

    def commands(self) -> "CommandsNow":
        return CommandsNow(self)

    def publish(self, count: int) -> None:
        published = run_command(self.home, "publish", "--sample", str(count))
        assert published.returncode == 0, published.stderr

    def scored(self) -> int:
        return int(self.training.query(SCORED)[0]["n"])

    def reported(self) -> list[str]:
        """The jobs whose reports were told, each as often as it was."""
        with open_stream(self.training.settings) as stream:
            last = stream.state("RL_REPORTS").last_sequence
            stored = [json.loads(one.data) for batch in stream.read("RL_REPORTS", 1, last, 100) for one in batch]
        return [each["report_id"].removeprefix("training_job-") for each in stored if each["kind"] == "training_job"]


@dataclass(frozen=True)
class CommandsNow:
    """Orders of a person, each given over connections of its own."""

    operated: OperatedStack

    def test(self, model: str) -> None:
        """`deployment ab-test` of a model that was never trained here."""
        served = ServedModel(model_id=model, base_model="small", endpoint=self.operated.backend.endpoint)
        with open_desk(self.operated.training.settings) as desk:
            commands = Commands(desk, "tests", datetime.now(UTC))
            commands.start_ab_test(served, 0.1, "a test", deployment_id=f"test-of-{model}", bake_seconds=0)
        wait_until(lambda: self.operated.releases.weights().get(model), f"{model} at the gateway")

    def promote(self, model: str) -> None:
        with open_desk(self.operated.training.settings) as desk:
            Commands(desk, "tests", datetime.now(UTC)).promote("a test", model_id=model)
        wait_until(lambda: self.operated.releases.weights() == {model: 1.0}, f"{model} in service")


@dataclass(frozen=True)
class Operated:
    """What a test has before it."""

    stack: OperatedStack
    terminal: Terminal
    prometheus: Prometheus
    heard: dict[str, Listening]
    """By the names of `lines.LISTEN`."""

    def status(self, job: str) -> dict[str, Any]:
        found: dict[str, Any] = self.terminal.curl(lines.STATUS.replace("{job_id}", job)).json
        return found

    def is_taken_in(self, job: str) -> None:
        """The sensor of requests has made a job of it."""
        wait_until(lambda: self.status(job)["state"] != "asked", f"the sensor to take in {job}", seconds=200)

    def end(self, job: str) -> None:
        """Cancel it, unless it has ended by itself."""
        self.terminal.curl(f"curl -X POST {SERVICE}/training/{job}/cancel")
        wait_until(lambda: self.status(job)["status"] in ("cancelled", "failed"), f"the end of {job}", seconds=200)


@contextmanager
def operated_stack(directory: Path) -> Iterator[Operated]:
    """Prometheus has looked before anything happened; a terminal listens to every subject."""
    ports = {name: free_port() for name in ("service", "gateway")}
    with stub_backends("every model") as (backend,), ExitStack() as opened:
        variables = {
            "RL_BASE_MODEL": FIRST,
            "SERVING_ENDPOINT": backend.endpoint,
            "RL_PIPELINE_SERVICE_PORT": str(ports["service"]),
            "RL_PIPELINE_GATEWAY_PORT": str(ports["gateway"]),
            **FAST_ROLLOUTS,
        }
        stack = OperatedStack(directory / "home", variables, backend)
        stack.start()
        opened.callback(stack.end)
        key = (stack.home / "service-api.key").read_text()
        urls = stack.stack.record.urls
        targets = {"rl-pipeline": [f"127.0.0.1:{ports['service']}"], "gateway": [f"127.0.0.1:{ports['gateway']}"]}
        prometheus = opened.enter_context(
            running_prometheus(directory / "prometheus", targets, shorter=seconds_for_minutes, key=key)
        )
        terminal = Terminal(
            directory / "operator",
            {SERVICE: urls["service"], GATEWAY: urls["gateway"], PROMETHEUS: prometheus.url},
            {
                SERVICE: f"X-API-Key: {key}",
                GATEWAY: f"Authorization: Bearer {(stack.home / 'gateway-admin.token').read_text()}",
            },
            urls["nats"],
        )
        heard = {name: opened.enter_context(terminal.listening(line)) for name, line in lines.LISTEN.items()}
        wait_until(lambda: stack.releases.weights() == {FIRST: 1.0}, "the first model")
        prometheus.look_again()
        stack.publish(SAMPLES)
        backend.behaviour = answer_500
        for _ in range(2):
            assert _fails(stack.releases)
        backend.behaviour = answer
        stack.releases.ask_many(10)
        wait_until(lambda: stack.scored() >= SAMPLES, "rewards", seconds=200)
        yield Operated(stack, terminal, prometheus, heard)


def _fails(releases: Releases) -> bool:
    try:
        releases.ask()
    except OSError:
        return True
    return False
