"""Dagster's public GraphQL: whether its daemons and the sensor of requests run, and the end of a run."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import aiohttp

from rl_pipeline.errors import PipelineError

SENSOR = "training_requested"
_JSON = {"Content-Type": "application/json"}
_TIMEOUT = aiohttp.ClientTimeout(total=5)
_HEALTH = """{
  instance { daemonHealth { allDaemonStatuses { daemonType required healthy } } }
  repositoriesOrError { __typename
    ... on RepositoryConnection { nodes { sensors { name sensorState { status } } } } }
}"""
_TERMINATE = """mutation ($run: String!) {
  terminateRun(runId: $run) { __typename ... on TerminateRunFailure { message } }
}"""


class DagsterUnavailable(PipelineError):
    """Dagster's webserver does not answer."""


@dataclass(frozen=True, slots=True)
class DagsterHealth:
    """What Dagster says of itself."""

    daemons_down: Sequence[str]
    sensor_runs: bool | None
    """Of the sensor that takes requests in; None where no code location has it."""


class DagsterApi:
    """The API at the address of Dagster's webserver."""

    def __init__(self, url: str, http: aiohttp.ClientSession) -> None:
        self._url = f"{url.rstrip('/')}/graphql"
        self._http = http

    async def health(self) -> DagsterHealth:
        """How it is. Raises `DagsterUnavailable`."""
        data = await self._ask(_HEALTH, {})
        try:
            daemons = data["instance"]["daemonHealth"]["allDaemonStatuses"]
            sensors = [sensor for node in data["repositoriesOrError"].get("nodes") or () for sensor in node["sensors"]]
            states = [sensor["sensorState"]["status"] for sensor in sensors if sensor["name"] == SENSOR]
            down = [each["daemonType"] for each in daemons if each["required"] and not each["healthy"]]
        except (KeyError, TypeError) as unexpected:
            raise self._not_dagster() from unexpected
        return DagsterHealth(down, any(state == "RUNNING" for state in states) if states else None)

    async def terminate(self, run_id: str) -> bool:
        """Ask for the end of a run; whether it was there to be ended. Raises `DagsterUnavailable`."""
        data = await self._ask(_TERMINATE, {"run": run_id})
        try:
            return bool(data["terminateRun"]["__typename"] == "TerminateRunSuccess")
        except (KeyError, TypeError) as unexpected:
            raise self._not_dagster() from unexpected

    async def _ask(self, query: str, variables: dict[str, str]) -> dict[str, Any]:
        try:
            async with self._http.post(
                self._url, data=json.dumps({"query": query, "variables": variables}), headers=_JSON, timeout=_TIMEOUT
            ) as answer:
                content = await answer.json(content_type=None)
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as away:
            raise DagsterUnavailable(
                f"Dagster does not answer at {self._url} ({type(away).__name__}): start it, or set DAGSTER_URL"
            ) from away
        data: dict[str, Any] | None = content.get("data") if isinstance(content, dict) else None
        if not data or not isinstance(data, dict):
            raise self._not_dagster()
        return data

    def _not_dagster(self) -> DagsterUnavailable:
        return DagsterUnavailable(f"what answers at {self._url} is not Dagster of this version: set DAGSTER_URL")
