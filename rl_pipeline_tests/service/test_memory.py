"""What agents have remembered by the service, and what it gives them back."""

import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from rl_pipeline.stores.clickhouse import ClickHouseWarehouse
from rl_pipeline_tests.service.running_service import KEY, ServiceProcess
from rl_pipeline_tests.waiting import wait_until

STORE, RETRIEVE, CONSOLIDATE = (f"/api/v1/memory/{verb}" for verb in ("store", "retrieve", "consolidate"))


@pytest.fixture(scope="module")
def client(service: ServiceProcess) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=service.url, headers={"X-API-Key": KEY}, timeout=60) as opened:
        yield opened


def told(client: httpx.Client, memory_type: str = "semantic", agent: str = "ada", **content: Any) -> dict[str, Any]:
    answer = client.post(STORE, json={"agent_id": agent, "memory_type": memory_type, "content": content})
    assert answer.status_code == 201, answer.text
    return dict(answer.json())


def found(client: httpx.Client, goal: str, **more: Any) -> list[dict[str, Any]]:
    answer = client.post(RETRIEVE, json={"context": {"goal": goal}, **more})
    assert answer.status_code == 200, answer.text
    assert answer.json()["count"] == len(answer.json()["memories"])
    return list(answer.json()["memories"])


def test_what_is_told_is_redacted_and_found_at_once(client: httpx.Client, tables: ClickHouseWarehouse) -> None:
    memory = told(client, fact="The gardener waters orchids; ask jane.doe@example.com", task_type="garden")
    best = found(client, "Who waters orchids?", k=1)[0]
    assert (best["id"], best["agent_id"], best["relevance"]) == (memory["id"], "ada", 1.0)
    assert "[REDACTED:EMAIL:" in best["content"]["fact"]
    [row] = tables.query("SELECT * FROM memories FINAL WHERE task_type = 'garden'").to_dicts()
    assert (row["id"], row["origin"]) == (memory["id"], "told")
    assert "jane.doe" not in str(row)


def test_the_same_key_of_the_same_agent_is_the_same_memory(client: httpx.Client) -> None:
    body = {"agent_id": "bob", "memory_type": "episodic", "content": {"text": "Bob sailed to Gotland."}}
    ids = {client.post(STORE, json=body, headers={"Idempotency-Key": "trip"}).json()["id"] for _ in range(2)}
    assert len(ids) == 1
    assert client.post(STORE, json=body).json()["id"] not in ids


def test_there_are_exactly_k_each_once_and_filters_choose_among_them(client: httpx.Client) -> None:
    for number in range(12):
        told(client, "episodic", agent="carol", text=f"Carol repaired bicycle number {number}", task_type="repair")
    ten = found(client, "repair a bicycle", k=10, task_type="repair")
    assert len({memory["id"] for memory in ten}) == 10
    assert len(found(client, "anything else", k=100, agent_id="carol")) == 12
    assert found(client, "bicycle", agent_id="carol", memory_types=["procedural"]) == []
    again = found(client, "repair a bicycle", k=10, task_type="repair")
    assert all(memory["access_count"] >= 0 for memory in again)


def test_what_contradicts_a_fact_stays_visible_and_a_success_becomes_a_procedure(client: httpx.Client) -> None:
    for day in ("Mondays", "Mondays", "Fridays"):
        told(client, fact=f"The deploy key is rotated on {day}.", task_type="deploy")
    for status in ("success", "success", "failed"):
        told(client, "episodic", goal="Rotate the deploy key", actions=["make key", "store key"], status=status,
             outcome="rotated" if status == "success" else "denied", task_type="deploy")  # fmt: skip
    done = client.post(CONSOLIDATE, json={}).json()
    sets = {each["memory_type"]: each for each in done["sets"] if each["task_type"] == "deploy"}
    assert (sets["semantic"]["contradicted"], sets["procedural"]["memories"]) == (2, 1)
    [procedure] = found(client, "rotate the deploy key", task_type="deploy", memory_types=["procedural"])
    assert procedure["content"]["actions"] == ["make key", "store key"]
    assert (procedure["content"]["attempts"], procedure["content"]["successes"]) == (3, 2)
    facts = found(client, "when is the deploy key rotated?", task_type="deploy", memory_types=["semantic"])
    [merged] = [
        fact["content"] for fact in facts if fact["content"].get("support") == 2 and "goal" not in fact["content"]
    ]
    assert "Mondays" in merged["statement"]
    assert [each["support"] for each in merged["contradictions"]] == [1]
    again = client.post(CONSOLIDATE, json={"day": done["day"]}).json()
    assert {each["changed"] for each in again["sets"]} == {False}


def test_what_says_nothing_and_what_is_no_memory_is_refused(client: httpx.Client) -> None:
    body = {"agent_id": "ada", "memory_type": "semantic", "content": {"number": 1}}
    refused = client.post(STORE, json=body)
    assert (refused.status_code, refused.json()["code"]) == (422, "nothing_to_remember")
    assert client.post(STORE, json={**body, "memory_type": "imagined"}).status_code == 422
    assert client.post(RETRIEVE, json={"context": {}, "k": 0}).status_code == 422
    assert client.post(RETRIEVE, json={"k": 3}).status_code == 422
    assert client.post(CONSOLIDATE, json={"day": "someday"}).status_code == 422


def test_many_agents_tell_and_ask_at_once(client: httpx.Client) -> None:
    def work(number: int) -> bool:
        memory = told(client, "episodic", agent=f"agent-{number}", text=f"unique{number} happened")
        return memory["id"] in {each["id"] for each in found(client, f"unique{number}", agent_id=f"agent-{number}")}

    with ThreadPoolExecutor(20) as crew:
        assert all(crew.map(work, range(60)))


def test_what_was_told_outlives_a_kill_and_a_lost_store(service: ServiceProcess, client: httpx.Client) -> None:
    memory = told(client, fact="Zebras were counted in Zanzibar")
    service.end(signal.SIGKILL)
    for file in (service.directory / "home").rglob("memories.sqlite*"):
        file.unlink()
    service.start()
    wait_until(lambda: any(each["id"] == memory["id"] for each in found(client, "zebras")), "the memory's return")
    assert found(client, "zebras in Zanzibar", k=1)[0]["id"] == memory["id"]
