"""With Dagster stopped or killed, a bad model is taken out all the same, by the watchdog of the running stack alone."""

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from datetime import UTC, datetime

import pytest

from rl_pipeline.deployment import releases as model_releases
from rl_pipeline.deployment.judging import Limits, judge
from rl_pipeline.deployment.state import RampStep
from rl_pipeline.opening import open_stream, open_traffic, open_warehouse
from rl_pipeline.stores.jetstream_lease import JetStreamLeases
from rl_pipeline_tests.end_to_end.released_models import FAST_ROLLOUTS, Releases
from rl_pipeline_tests.end_to_end.running_stack import RunningStack, run_command
from rl_pipeline_tests.end_to_end.training_stack import TrainingStack
from rl_pipeline_tests.serving import stub_backend
from rl_pipeline_tests.serving.stub_backend import StubBackend, stub_backends
from rl_pipeline_tests.waiting import wait_until

DAGSTER = ("code", "ui", "daemon")
HALF = RampStep(share=0.5, min_seconds=3600, min_samples=1000)
VALIDATION = {"benchmark_passed": True, "safety_checks_passed": True, "performance_regression": False}


@pytest.fixture(scope="module")
def backends() -> Iterator[tuple[StubBackend, StubBackend]]:
    with stub_backends("good", "bad") as (good, bad):
        yield good, bad


@pytest.fixture(scope="module")
def released(tmp_path_factory: pytest.TempPathFactory, backends: tuple[StubBackend, StubBackend]) -> Iterator[Releases]:
    """A stack whose models are served elsewhere; nothing is trained in it."""
    stack = RunningStack(
        tmp_path_factory.mktemp("home"), RL_BASE_MODEL="good", SERVING_ENDPOINT=backends[0].endpoint, **FAST_ROLLOUTS
    )
    try:
        stack.wait_for_line("The UI is at")
        released = Releases(TrainingStack(stack))
        wait_until(lambda: open_traffic(released.training.settings).standings()[0].weights, "the first model")
        yield released
    finally:
        stack.end()


def let_in(released: Releases, job: str, endpoint: str) -> model_releases.Release:
    """A model whose rollout Dagster has begun."""
    settings = released.training.settings
    plan = model_releases.RolloutPlan(
        strategy="canary",
        steps=(HALF,),
        bake_seconds=0,
        explanation="a test",
        measured_against=released.state().serving,
    )
    with open_stream(settings) as stream, closing(open_warehouse(settings)) as tables:
        release = model_releases.Releases(tables).release(
            JetStreamLeases(stream),
            training_job_id=job,
            base_model="none",
            checkpoint_path=None,
            manifest_sha256=None,
            plan=plan,
            validation=VALIDATION,
            needs_approval=False,
            shadow=False,
            now=datetime.now(UTC),
            endpoint=endpoint,
        )
    wait_until(lambda: released.weights().get(release.model.model_id), "its rollout at the gateway")
    return release


def groups_of_dagster(stack: RunningStack) -> list[int]:
    """Its processes, each of which leads a group of all that it has started."""
    processes = [stack.record.processes[name] for name in DAGSTER]
    return [process.pid for process in processes if process]


@contextmanager
def stopped(stack: RunningStack) -> Iterator[None]:
    """Dagster's processes and their children stand still."""
    groups = groups_of_dagster(stack)
    for group in groups:
        os.killpg(group, signal.SIGSTOP)
    try:
        yield
    finally:
        for group in groups:
            os.killpg(group, signal.SIGCONT)


@contextmanager
def killed(stack: RunningStack) -> Iterator[None]:
    """Dagster's processes are gone, and so is for a while who would start them again."""
    stack.process.send_signal(signal.SIGSTOP)
    try:
        for group in groups_of_dagster(stack):
            os.killpg(group, signal.SIGKILL)
        yield
    finally:
        stack.process.send_signal(signal.SIGCONT)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("dead", [stopped, killed])
def test_a_bad_model_is_out_though_dagster_is_dead(
    released: Releases,
    backends: tuple[StubBackend, StubBackend],
    dead: Callable[[RunningStack], AbstractContextManager[None]],
    record_property: Callable[[str, object], None],
) -> None:
    _, bad = backends
    bad.behaviour = stub_backend.answer
    release = let_in(released, f"sabotage-{dead.__name__}", bad.endpoint)
    candidate, serving = release.model.model_id, released.state().serving
    traffic = open_traffic(released.training.settings)

    def evidence_is_enough() -> bool:
        released.ask_many(10)
        rollout = released.state().rollout
        if rollout is None:
            return True  # the watchdog has seen it first
        windows = traffic.windows(rollout.deployment_id, candidate, serving)
        now = datetime.now(UTC)
        return judge(rollout, "ramping", windows, now, mode="watchdog", limits=Limits()).verdict == "roll_back"

    with dead(released.training.stack):
        bad.behaviour = stub_backend.answer_500
        wait_until(evidence_is_enough, "evidence against it", seconds=200)
        enough = time.monotonic()
        wait_until(lambda: candidate not in released.weights(), "the end of its traffic", seconds=60)
        record_property("seconds from enough evidence to restored routing", round(time.monotonic() - enough, 1))
        wait_until(lambda: candidate in released.state().retired, "its record", seconds=60)
        change = released.state().change
        assert (change.event, change.reason, change.by) == ("rolled_back", "high_error_rate", "rollout-watchdog")
        decided = datetime.fromisoformat(change.evidence["decided_at"])
        record_property("seconds from the window to the withdrawal", round((change.at - decided).total_seconds(), 1))
        assert released.ask_many(20) == {serving: 20}
    wait_until(lambda: ("rolled_back", candidate) in released.events(), "its announcement by Dagster", seconds=200)
    verified = run_command(released.training.stack.home, "deployment", "verify-audit")
    assert verified.returncode == 0, verified.stdout
