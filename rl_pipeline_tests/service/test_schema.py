"""The OpenAPI document holds: schemathesis asks every route what its schema allows, and what it does not."""

import os
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import hypothesis
import pytest
import schemathesis
from schemathesis import Case, GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi import checks

from rl_pipeline.service.keys import Scope
from rl_pipeline.stores.clickhouse import ClickHouseWarehouse
from rl_pipeline.training.jobs.rows import write_job
from rl_pipeline_tests.service.running_service import KEY, ServiceProcess, keys_file
from rl_pipeline_tests.training.job_values import a_job
from rl_pipeline_tests.waiting import wait_until

EXAMPLES = 200 if os.environ.get("RL_PIPELINE_SOAK") else 6
EXPIRED, READER, PROMETHEUS = "the-key-that-has-expired", "the-key-that-may-only-read", "the-key-of-prometheus"
CHECKS = [
    not_a_server_error,
    checks.status_code_conformance,
    checks.content_type_conformance,
    checks.response_schema_conformance,
    checks.negative_data_rejection,
    checks.unsupported_method,
]


@pytest.fixture(scope="module")
def stores(stores: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    yesterday = datetime.now(UTC) - timedelta(days=1)
    keys: tuple[tuple[str, tuple[Scope, ...], Any], ...] = (
        (EXPIRED, ("admin",), yesterday),
        (READER, ("read",), None),
        (PROMETHEUS, ("metrics",), None),
    )
    file = keys_file(tmp_path_factory.mktemp("keys"), *keys)
    return {**stores, "SERVICE_KEYS_FILE": str(file)}


@pytest.fixture(scope="module")
def api(service: ServiceProcess, tables: ClickHouseWarehouse) -> Any:
    write_job(tables, a_job("manual-5b0c6d1e", "completed"))
    return schemathesis.openapi.from_url(f"{service.url}/openapi.json")


@pytest.mark.soak
@pytest.mark.parametrize("mode", [GenerationMode.POSITIVE, GenerationMode.NEGATIVE])
def test_no_request_breaks_a_route_or_its_schema(api: Any, mode: GenerationMode) -> None:
    """What a schema allows is answered as its document says, and what it does not allow is refused."""
    asked = 0
    for found in api.get_all_operations():
        operation = found.ok()
        try:
            requests = operation.as_strategy(generation_mode=mode)
        except schemathesis.errors.InvalidSchema:  # nothing can be wrong about a route without parameters
            continue

        @hypothesis.given(case=requests)
        @hypothesis.settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(hypothesis.HealthCheck))
        def holds(case: Case) -> None:
            case.call_and_validate(headers={"Authorization": f"Bearer {KEY}"}, checks=CHECKS)

        holds()
        asked += 1
    assert asked >= 10


def operations(service: ServiceProcess) -> list[tuple[str, str]]:
    """Every method and path of the document, with an id where one belongs."""
    document = httpx.get(f"{service.url}/openapi.json").json()
    return [
        (method.upper(), path.replace("{job_id}", "job-1").replace("{trajectory_id}", "trajectory-1"))
        for path, methods in document["paths"].items()
        for method in methods
    ]


def test_every_route_refuses_who_has_no_key_a_wrong_one_or_one_that_has_expired(service: ServiceProcess) -> None:
    found = operations(service)
    assert len(found) >= 20
    with httpx.Client(base_url=service.url) as client:
        for method, path in found:
            for key, code in ((None, "key_refused"), ("nobodys", "key_refused"), (EXPIRED, "key_expired")):
                for headers in ({"Authorization": f"Bearer {key}"}, {"X-API-Key": key}) if key else ({},):
                    answer = client.request(method, path, headers=headers)
                    assert (answer.status_code, answer.json()["code"]) == (401, code), (method, path)
                    assert answer.headers["content-type"] == "application/problem+json"
                    assert answer.json()["next_step"]


def test_a_key_that_may_only_read_changes_nothing(service: ServiceProcess) -> None:
    with httpx.Client(base_url=service.url, headers={"X-API-Key": READER}) as client:
        changing = [(method, path) for method, path in operations(service) if method != "GET"]
        refused = {client.request(method, path, json={}).json()["code"] for method, path in changing}
        assert refused == {"scope_missing"}
        assert client.get("/jobs").status_code == 200
        assert client.get("/trajectories/trajectory-1").json()["code"] == "scope_missing"


def test_the_key_of_prometheus_reads_figures_and_nothing_else(service: ServiceProcess) -> None:
    with httpx.Client(base_url=service.url, headers={"Authorization": f"Bearer {PROMETHEUS}"}, timeout=60) as client:
        told = {client.request(method, path).status_code: path for method, path in operations(service)}
        assert told.pop(200) == "/metrics"
        assert set(told) == {403}
        assert client.get("/metrics", headers={"Authorization": f"Bearer {READER}"}).status_code == 403


def test_the_later_prefix_has_the_same_routes(service: ServiceProcess) -> None:
    with httpx.Client(base_url=service.url, headers={"X-API-Key": KEY}) as client:
        assert client.get("/agentgym/jobs").status_code == 200
        assert client.get("/agentgym/jobs", headers={"X-API-Key": "nobodys"}).status_code == 401


def test_a_request_that_is_too_large_is_refused_however_it_is_sent(service: ServiceProcess) -> None:
    def pieces() -> Any:
        yield b'{"message": "'
        for _ in range(40):
            yield b"x" * 65536
        yield b'"}'

    with httpx.Client(base_url=service.url, headers={"X-API-Key": KEY}, timeout=30) as client:
        whole = client.post("/coordinator", content=b"".join(pieces()))
        assert (whole.status_code, whole.json()["code"]) == (413, "too_large")
        chunked = client.post("/coordinator", content=pieces())
        assert (chunked.status_code, chunked.json()["code"]) == (413, "too_large")


def test_keys_that_are_taken_back_do_not_count_any_more(service: ServiceProcess, stores: dict[str, str]) -> None:
    def status() -> int:
        return httpx.get(f"{service.url}/jobs", headers={"X-API-Key": READER}).status_code

    file = Path(stores["SERVICE_KEYS_FILE"])
    before = file.read_text()
    assert status() == 200
    file.write_text("")
    wait_until(lambda: status() == 401, "the key's end")
    file.write_text("this is no TOML")
    assert httpx.get(f"{service.url}/jobs", headers={"X-API-Key": KEY}).status_code == 200
    file.write_text(before)
    wait_until(lambda: status() == 200, "the key's return")
