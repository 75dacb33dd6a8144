"""A gateway that may have few files open: it uses what there is, and charges no model for what there is not."""

import asyncio
import json
from pathlib import Path

import pytest

from rl_pipeline_tests.serving import stub_backend
from rl_pipeline_tests.serving.running_gateway import GatewayProcess
from rl_pipeline_tests.serving.states import OLD, model_at, steady
from rl_pipeline_tests.serving.stub_backend import StubBackend, stub_backends
from rl_pipeline_tests.waiting import wait_until

AT_ONCE = 120
HUNG_UP = 0
"""What the system itself does with a connection for which a process has no file left."""


async def statuses(port: int, count: int) -> set[int]:
    """Of so many requests that are sent at once."""

    async def ask(number: int) -> int:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        body = json.dumps({"messages": []}).encode()
        head = f"X-Session-Id: s-{number}\r\nContent-Length: {len(body)}\r\nConnection: close"
        writer.write(f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\n{head}\r\n\r\n".encode() + body)
        try:
            answer = await reader.read()
        except ConnectionResetError:
            return HUNG_UP
        finally:
            writer.close()
        return int(answer.split()[1]) if answer else HUNG_UP

    return set(await asyncio.gather(*map(ask, range(count))))


async def wait_for_all(stub: StubBackend, request: object, body: object) -> object:
    """No answer before many are asked, so that they are asked at once."""
    await asyncio.sleep(0.3)
    return await stub_backend.answer(stub, request, body)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("limits", "refused"),
    [((128, 1024), set()), ((160, 160), {503, HUNG_UP})],
    ids=["a low soft limit", "a low hard one"],
)
def test_more_requests_than_files_are_no_failure_of_a_model(
    tmp_path: Path, limits: tuple[int, int], refused: set[int]
) -> None:
    with stub_backends(OLD) as (old,):
        old.behaviour = wait_for_all  # type: ignore[assignment]
        with GatewayProcess(tmp_path / "gateway", {"drain_seconds": 1.0}, most_files=limits) as gateway:
            gateway.follow(steady(1, model_at(OLD, old.endpoint)))
            wait_until(lambda: gateway.standing()["not_ready"] == [])
            answered = asyncio.run(statuses(gateway.port, AT_ONCE))
            assert 200 in answered
            assert answered - {200} <= refused
            assert bool(answered - {200}) == bool(refused)
            metrics = gateway.call("GET", f"/admin/models/{OLD}/metrics").json
            assert (metrics["errors"], metrics["failed_sessions"]) == (0, 0)
            assert gateway.health()["backends"][OLD]["breaker"] == "closed"
