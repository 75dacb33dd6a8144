"""A real gateway's administration, and what it shows of itself."""

import asyncio
import threading
from pathlib import Path

import pytest
from aiohttp import web
from aiohttp.test_utils import make_mocked_request

from rl_pipeline.deployment.windows import Window
from rl_pipeline.serving.admin import AdminApi
from rl_pipeline.serving.breaker import FAILURES_TO_OPEN
from rl_pipeline.serving.gateway import Gateway
from rl_pipeline.serving.remembering import Memory
from rl_pipeline_tests.serving import stub_backend
from rl_pipeline_tests.serving.gateway_program import configuration
from rl_pipeline_tests.serving.gateway_world import World
from rl_pipeline_tests.serving.running_gateway import SESSION_KEY, TOKEN, GatewayProcess
from rl_pipeline_tests.serving.states import sessions_at

ADMIN = [
    ("POST", "/admin/models"),
    ("GET", "/admin/models"),
    ("GET", "/admin/models/current/metrics"),
    ("PUT", "/admin/traffic"),
    ("POST", "/admin/fence"),
    ("PUT", "/admin/state"),
    ("GET", "/admin/state"),
    ("GET", "/admin/windows"),
]


@pytest.mark.parametrize(("method", "path"), ADMIN)
@pytest.mark.parametrize("authorization", ["", f"Bearer {TOKEN}x", f"Basic {TOKEN}", f"bearer{TOKEN}", "Bearer \u00e9"])
def test_without_the_token_nothing_is_administered(world: World, method: str, path: str, authorization: str) -> None:
    body = {"model_id": world.new.name, "reason": "an intruder"} if method != "GET" else None
    headers = {"Authorization": authorization} if authorization else {}
    reply = world.gateway.call(method, path, body, headers, token=None)
    assert reply.status == 401
    assert reply.json["error"]["next_step"]
    assert world.new.name not in world.gateway.standing()["fenced"]


def test_without_nats_the_traffic_can_only_be_taken_from_a_candidate(world: World) -> None:
    """By the calls of the specification, with the token."""
    new = {
        "model_id": f"registered-{world.generation}",
        "base_model": "qwen2.5-32b-instruct",
        "checkpoint_path": str(world.gateway.directory / "nothing-here"),
    }
    assert world.gateway.call("POST", "/admin/models", new).status == 201
    assert world.gateway.call("POST", "/admin/models", new).status == 201
    listed = world.gateway.call("GET", "/admin/models").json["models"]
    assert new["model_id"] in {model["model_id"] for model in listed}
    world.ramp(0.5)
    traffic = {"model_id": world.new.name, "traffic_percentage": 50}
    assert world.gateway.call("PUT", "/admin/traffic", traffic).status == 503
    metrics = world.gateway.call("GET", f"/admin/models/{world.new.name}/metrics").json
    assert metrics["traffic_percentage"] == 50
    back = world.gateway.call("PUT", "/admin/traffic", {"model_id": world.old.name, "traffic_percentage": 100})
    assert back.json == {
        "model_id": world.old.name,
        "traffic_percentage": 100,
        "generation": world.generation,
        "recorded": False,
        "pending": "it holds here, and is not recorded yet: NATS is away",
    }
    assert world.gateway.standing()["weights"] == {world.old.name: 1.0}
    current = world.gateway.call("GET", "/admin/models/current/metrics").json
    assert (current["model_id"], current["traffic_percentage"]) == (world.old.name, 100)
    world.gateway.call("POST", "/admin/fence", {"model_id": new["model_id"], "reason": "end of the test"})


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("POST", "/admin/models", {"model_id": "a/b", "base_model": "b", "checkpoint_path": "c"}, 400),
        ("POST", "/admin/models", {"model_id": "a", "base_model": "b"}, 400),
        ("POST", "/admin/models", {"model_id": "a", "base_model": "b", "endpoint": "file:///etc/passwd"}, 409),
        ("POST", "/admin/models", b"{", 400),
        ("PUT", "/admin/traffic", {"model_id": "a", "traffic_percentage": 101}, 400),
        ("PUT", "/admin/traffic", {"model_id": "unknown", "traffic_percentage": 10}, 404),
        ("PUT", "/admin/state", {"generation": 10**9}, 400),
        ("GET", "/admin/windows", None, 400),
        ("GET", "/admin/windows?candidate=a&control=b&since=noon", None, 400),
        ("GET", f"/admin/windows?candidate=a&control=b&since={'9' * 5000}", None, 400),
        ("GET", "/admin/models/unknown/metrics", None, 404),
        ("POST", "/admin/fence", {"model_id": "a", "reason": ""}, 400),
    ],
)
def test_nonsense_is_refused_with_a_next_step(world: World, method: str, path: str, body: object, status: int) -> None:
    reply = world.gateway.call(method, path, body)
    assert reply.status == status
    assert reply.json["error"]["next_step"]


def test_metrics_are_those_that_the_specification_names(world: World) -> None:
    world.ramp(0.5)
    world.new.behaviour = stub_backend.answer_500
    session = next(sessions_at(0.5, deployment_id=world.deployment_id))
    world.gateway.chat(session)
    text = world.gateway.call("GET", "/metrics").body.decode()
    label = f'{{model_version="{world.new.name}"}}'
    for line in (
        f"agent_rl_model_errors_total{label} 1.0",
        f"agent_rl_model_error_rate{label} 1.0",
        f"agent_rl_model_traffic_percentage{label} 50.0",
        f'agent_rl_gateway_requests_total{{ending="answered",model_version="{world.old.name}"}} 1.0',
        f'agent_rl_gateway_answer_seconds_count{{model_version="{world.old.name}"}} 1.0',
        f"agent_rl_gateway_generation {float(world.generation)}",
    ):
        assert line in text, line
    assert session not in text


def test_health_says_what_is_and_what_is_not_well(world: World) -> None:
    health = world.gateway.health()
    assert (health["generation"], health["serving"], health["phase"]) == (
        world.generation,
        world.old.name,
        "steady",
    )
    assert health["status"] == "degraded"
    assert not health["nats"]["reachable"], "this gateway has no NATS, and says so"
    assert health["backends"][world.old.name]["status"] == "ok"
    world.old.stop()
    for _ in range(FAILURES_TO_OPEN):
        world.gateway.chat()
    reply = world.gateway.call("GET", "/health")
    assert (reply.status, reply.json["status"]) == (503, "unavailable")


def test_a_gateway_that_was_told_nothing_says_what_to_do(tmp_path: Path) -> None:
    with GatewayProcess(tmp_path / "new") as gateway:
        assert gateway.call("GET", "/health").status == 503
        reply = gateway.chat()
        assert (reply.status, reply.json["error"]["type"]) == (503, "service_unavailable")
        assert gateway.call("GET", "/v1/models").json["data"] == []
        assert gateway.end() == 0
        gateway.start()


def test_two_gateways_cannot_share_a_directory(world: World) -> None:
    with pytest.raises(AssertionError, match="another gateway keeps its state"):
        GatewayProcess(world.gateway.directory).start()


class BusyMemory(Memory):
    """It has so much to tell that others are served meanwhile, or it gives up."""

    def __init__(self) -> None:
        super().__init__(observed_seconds=0)
        self.others_are_served = threading.Event()

    def windows(self, *_: object, **__: object) -> list[Window]:
        assert self.others_are_served.wait(30), "nobody else was served"
        return []


def test_nobody_waits_until_windows_are_told(tmp_path: Path) -> None:
    memory = BusyMemory()

    async def ask() -> web.Response:
        given = {"data_directory": str(tmp_path), "admin_token": TOKEN, "session_key": SESSION_KEY}
        gateway = Gateway(configuration(given))
        gateway.memory = memory
        told = asyncio.create_task(
            AdminApi(gateway).windows(make_mocked_request("GET", "/admin/windows?candidate=a&control=b"))
        )
        await asyncio.sleep(0)
        asyncio.get_running_loop().call_soon(memory.others_are_served.set)
        return await told

    assert asyncio.run(ask()).status == 200
