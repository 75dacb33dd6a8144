"""What is asked of Dagster is what this release of it answers, by its own schema."""

import asyncio
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from dagster_graphql.schema import create_schema
from graphql import parse, validate

from rl_pipeline.service import dagster_api
from rl_pipeline.service.dagster_api import DagsterApi, DagsterUnavailable
from rl_pipeline.service.health import ComponentPoorly, dagster_check


@pytest.mark.parametrize("query", [dagster_api._HEALTH, dagster_api._TERMINATE])
def test_the_queries_are_valid_in_dagsters_own_schema(query: str) -> None:
    assert validate(create_schema().graphql_schema, parse(query)) == []


def told(daemons: list[dict[str, Any]], sensors: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "data": {
            "instance": {"daemonHealth": {"allDaemonStatuses": daemons}},
            "repositoriesOrError": {"__typename": "RepositoryConnection", "nodes": [{"sensors": sensors}]},
        }
    }


def daemon(*, healthy: bool) -> dict[str, Any]:
    return {"daemonType": "SENSOR", "required": True, "healthy": healthy}


def sensor(state: str) -> dict[str, Any]:
    return {"name": "training_requested", "sensorState": {"status": state}}


def checked(content: Any) -> str:
    """What the check says of a Dagster that answers so."""

    async def answer(_: web.Request) -> web.Response:
        return web.json_response(content)

    async def check() -> str:
        app = web.Application()
        app.router.add_post("/graphql", answer)
        runner = web.AppRunner(app)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        try:
            async with aiohttp.ClientSession() as http:
                return await dagster_check(DagsterApi(f"http://127.0.0.1:{runner.addresses[0][1]}", http))()
        finally:
            await runner.cleanup()

    return asyncio.run(check())


def test_a_dagster_that_starts_no_training_is_not_well() -> None:
    assert checked(told([daemon(healthy=True)], [sensor("RUNNING")]))
    with pytest.raises(ComponentPoorly, match="start `dagster-daemon run`"):
        checked(told([daemon(healthy=False)], [sensor("RUNNING")]))
    with pytest.raises(ComponentPoorly, match="switched off"):
        checked(told([daemon(healthy=True)], [sensor("STOPPED")]))
    with pytest.raises(ComponentPoorly, match="no code location"):
        checked(told([daemon(healthy=True)], []))
    for other in ({"data": {"other": 1}}, {"errors": []}, [], told([{}], [])):
        with pytest.raises(DagsterUnavailable, match="not Dagster of this version"):
            checked(other)
