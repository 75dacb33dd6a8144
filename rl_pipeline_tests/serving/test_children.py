"""Models that a gateway serves itself, by children that die, come back, and never outlive it."""

import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from rl_pipeline.deployment.state import ServedModel
from rl_pipeline.serving.breaker import FAILURES_TO_OPEN
from rl_pipeline_tests.serving import stub_child
from rl_pipeline_tests.serving.running_gateway import GatewayProcess
from rl_pipeline_tests.serving.states import OLD, model_at, ramping, steady
from rl_pipeline_tests.serving.stub_backend import StubBackend, stub_backends
from rl_pipeline_tests.waiting import wait_until

CHILD = "tiny-model"


@pytest.fixture
def backend() -> Iterator[StubBackend]:
    with stub_backends(OLD) as (stub,):
        yield stub


@pytest.fixture
def gateway(tmp_path: Path) -> Iterator[GatewayProcess]:
    """Its children serve nothing but their names, and are quick to start."""
    program = [sys.executable, str(Path(stub_child.__file__))]
    with GatewayProcess(tmp_path / "gateway", {"drain_seconds": 1.0, "model_server": program}) as running:
        yield running


def children_of(gateway: GatewayProcess) -> list[psutil.Process]:
    assert gateway.process is not None
    return list(psutil.Process(gateway.process.pid).children())


def is_gone(process: psutil.Process) -> bool:
    return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE


def served(directory: Path) -> ServedModel:
    return ServedModel(model_id=CHILD, base_model="tiny", checkpoint_path=str(directory))


def test_a_child_is_restarted_and_never_left_behind(
    gateway: GatewayProcess, backend: StubBackend, tmp_path: Path
) -> None:
    control = model_at(OLD, backend.endpoint)
    gateway.follow(ramping(1, control, served(tmp_path), 1.0))
    wait_until(lambda: gateway.standing()["not_ready"] == [])
    assert gateway.chat("first").model == CHILD

    (child,) = children_of(gateway)
    child.kill()
    wait_until(lambda: is_gone(child))
    taken_over = gateway.chat("first")
    assert (taken_over.status, taken_over.model) == (200, OLD)
    assert gateway.call("GET", f"/admin/models/{CHILD}/metrics").json["failed_sessions"] == 1
    wait_until(lambda: gateway.chat("first").model == CHILD)

    (child,) = children_of(gateway)
    gateway.kill()
    wait_until(lambda: is_gone(child), "a child ends with its gateway")
    gateway.start()
    wait_until(lambda: gateway.standing()["not_ready"] == [])
    assert gateway.chat("second").model == CHILD

    gateway.follow(steady(2, control))
    wait_until(lambda: children_of(gateway) == [], "a model that nobody needs is let go of")


def test_a_registered_model_is_warm_before_it_is_given_anything(
    gateway: GatewayProcess, backend: StubBackend, tmp_path: Path
) -> None:
    gateway.follow(steady(1, model_at(OLD, backend.endpoint)))
    gateway.call("POST", "/admin/models", served(tmp_path).model_dump())
    wait_until(lambda: gateway.standing()["not_ready"] == [])
    assert len(children_of(gateway)) == 1
    assert gateway.chat().model == OLD
    gateway.call("POST", "/admin/fence", {"model_id": CHILD, "reason": "never mind"})
    wait_until(lambda: children_of(gateway) == [])


def test_a_child_that_does_not_start_gets_nothing_and_says_why(
    gateway: GatewayProcess, backend: StubBackend, tmp_path: Path
) -> None:
    gateway.follow(ramping(1, model_at(OLD, backend.endpoint), served(tmp_path / "missing"), 1.0))
    wait_until(lambda: gateway.health()["backends"][CHILD]["problem"])
    health = gateway.health()["backends"][CHILD]
    assert f"{CHILD}.log" in health["problem"]
    assert health["status"] == "starting"
    assert gateway.chat().model == OLD
    assert gateway.standing()["not_ready"] == [CHILD]


def test_after_a_restart_callers_wait_for_the_model_in_service_and_nobody_is_charged(
    tmp_path: Path, backend: StubBackend
) -> None:
    """The child starts once it is allowed to, which is after it was asked."""
    gate, program = tmp_path / "may-start", tmp_path / "gated.py"
    gated = f"import pathlib, time\nwhile not pathlib.Path({str(gate)!r}).exists():\n    time.sleep(0.01)\n"
    program.write_text(gated + Path(stub_child.__file__).read_text())
    options = {"drain_seconds": 1.0, "model_server": [sys.executable, str(program)]}
    with GatewayProcess(tmp_path / "gateway", options) as gateway, ThreadPoolExecutor(20) as callers:
        gateway.follow(ramping(1, served(tmp_path), model_at(OLD, backend.endpoint), 0.0))
        wait_until(lambda: gateway.standing()["not_ready"] == [CHILD])
        gateway.kill()
        gateway.start()
        waiting = [callers.submit(gateway.chat, f"session-{number}") for number in range(20)]
        wait_until(lambda: gateway.health()["sessions"] == 20)
        gate.touch()
        assert {(each.result().status, each.result().model) for each in waiting} == {(200, CHILD)}
        assert gateway.call("GET", f"/admin/models/{CHILD}/metrics").json["failed_sessions"] == 0


def test_a_model_in_service_that_failed_before_it_started_is_asked_as_soon_as_it_has(
    gateway: GatewayProcess, tmp_path: Path
) -> None:
    gateway.follow(steady(1, served(tmp_path / "late")))
    wait_until(lambda: gateway.health()["backends"][CHILD]["problem"])
    assert {gateway.chat().status for _ in range(2 * FAILURES_TO_OPEN)} == {503}
    assert gateway.health()["backends"][CHILD]["breaker"] == "open"
    (tmp_path / "late").mkdir()
    wait_until(lambda: gateway.standing()["not_ready"] == [])
    assert gateway.health()["backends"][CHILD]["breaker"] == "closed"
    assert gateway.chat().status == 200


def test_a_checkpoint_is_served_by_the_embedded_model_server(
    tmp_path: Path, backend: StubBackend, tiny_model: Path
) -> None:
    with GatewayProcess(tmp_path / "gateway") as gateway:
        gateway.follow(ramping(1, model_at(OLD, backend.endpoint), served(tiny_model), 1.0))
        assert gateway.chat("early", max_tokens=4).model == OLD, "until it is loaded, the model in service answers"
        wait_until(lambda: gateway.standing()["not_ready"] == [])
        reply = gateway.chat("first", max_tokens=4)
        assert (reply.status, reply.model, reply.json["model"]) == (200, CHILD, CHILD)
        assert reply.json["usage"]["completion_tokens"] <= 4
        streamed = gateway.chat("second", max_tokens=4, stream=True)
        assert streamed.body.rstrip().endswith(b"data: [DONE]")
        assert CHILD.encode() in streamed.body
