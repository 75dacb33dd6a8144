"""A backend that serves models by name and nothing else, as vLLM does; the lenient kind says that it is another."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from aiohttp import web

from rl_pipeline_tests.serving.stub_backend import StubBackend


class KnowingBackend(StubBackend):
    """Lists `models`, answers for them with their own name, and with 404 for all others."""

    def __init__(self, *models: str, says_it_is: str | None = None) -> None:
        super().__init__("useless")
        self.models, self.says_it_is = models, says_it_is
        self.behaviour = _by_name

    async def _models(self, _request: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": [{"id": name, "object": "model"} for name in self.models]})


async def _by_name(stub: StubBackend, _request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
    assert isinstance(stub, KnowingBackend)
    if body["model"] not in stub.models:
        return web.json_response({"error": {"message": f"The model {body['model']} does not exist."}}, status=404)
    choice = {"index": 0, "message": {"role": "assistant", "content": "I am useless"}, "finish_reason": "stop"}
    return web.json_response({"model": stub.says_it_is or body["model"], "choices": [choice]})


@contextmanager
def knowing_backend(*models: str, says_it_is: str | None = None) -> Iterator[KnowingBackend]:
    """One that serves these models."""
    stub = KnowingBackend(*models, says_it_is=says_it_is)
    stub.start()
    try:
        yield stub
    finally:
        stub.close()
