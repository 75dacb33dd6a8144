"""The specification's scenarios of a release, told by a real gateway, NATS, ClickHouse and Dagster's sensor.

The two models are stub backends; hours are seconds.
"""

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from random import Random
from typing import Any

import dagster as dg
import pytest
from aiohttp import web

from rl_pipeline.assets.deployed_models import deployed_models
from rl_pipeline.assets.validation_reports import validation_reports
from rl_pipeline.deployment.audit import verify_audit
from rl_pipeline.deployment.post_mortem import PATIENCE, hold_post_mortems
from rl_pipeline.deployment.record import read
from rl_pipeline.redaction.policy_file import read_keys
from rl_pipeline.stores.clickhouse import ClickHouseWarehouse
from rl_pipeline.stores.disk import DiskObjects
from rl_pipeline.stores.jetstream_desired_state import JetStreamDesiredStates
from rl_pipeline_tests.deployment.release_place import FIRST, ReleasePlace
from rl_pipeline_tests.deployment.validated import a_report, store_validated
from rl_pipeline_tests.ingestion.ingesting import Ingesting, documents
from rl_pipeline_tests.serving import stub_backend
from rl_pipeline_tests.serving.running_gateway import SESSION_KEY, Reply
from rl_pipeline_tests.serving.stub_backend import StubBackend
from rl_pipeline_tests.training.job_tables import emptied, migrated_database
from rl_pipeline_tests.waiting import wait_until

MODEL = "agent-zero-rl-v1"
LONG, SHORT = "word " * 20_000, "a short question"
CHARACTERS_A_TOKEN = 5


@pytest.fixture(scope="module")
def tables(clickhouse_url: str) -> Iterator[ClickHouseWarehouse]:
    with migrated_database(clickhouse_url) as database:
        yield database


@pytest.fixture
def warehouse(tables: ClickHouseWarehouse) -> ClickHouseWarehouse:
    return emptied(tables)


def events(place: ReleasePlace) -> list[tuple[str, str, float | None]]:
    """What was announced: the event, the model and its share of the traffic in percent."""
    return [
        (one.metadata.event, one.model_info.model_id, one.deployment_config.traffic_percentage)
        for one in place.announced()
    ]


def test_scenario_3_a_better_model_is_validated_registered_and_comes_into_service_step_by_step(
    releasing: ReleasePlace,
) -> None:
    scores = {"code_generation": (0.88, 0.82), "data_analysis": (0.79, 0.78), "research_synthesis": (0.81, 0.79)}
    objects = DiskObjects(releasing.directory / "released")
    store_validated(releasing.tables, objects, "job-47", a_report(scores))
    releasing.deployment |= {
        "endpoint": releasing.new.endpoint,
        "ramp_hours": 0.002,
        "step_samples": [5, 10, 15],
        "bake_hours": 0.0005,
    }
    releasing.instance.add_dynamic_partitions("training_jobs", ["job-47"])
    result = dg.materialize(
        [validation_reports, deployed_models],
        selection=[deployed_models],
        partition_key="job-47",
        resources=releasing.resources(),
        instance=releasing.instance,
    )
    [event] = result.asset_materializations_for_node("deployed_models")
    assert event.metadata["report"].value == (
        f"Model {MODEL} deployed, +4% performance improvement, canary rollout in progress"
    )
    # By 0.03 better: the scenario says 10 %, its own table of strategies 5 %.
    wait_until(releasing.follows)
    assert releasing.gateway.standing()["weights"] == {FIRST: 0.95, MODEL: 0.05}
    shares = [releasing.state().weights[MODEL]]

    def is_in_service() -> bool:
        releasing.ask_many(40)
        releasing.look()
        weights = releasing.state().weights
        if weights[MODEL] != shares[-1]:
            shares.append(weights[MODEL])
        return releasing.state().serving == MODEL

    wait_until(is_in_service, "its promotion", seconds=240)
    assert shares == [0.05, 0.25, 0.5, 1.0]
    wait_until(releasing.follows)
    assert releasing.ask_many(20) == {MODEL: 20}
    steps = [("deployed", 5), ("ramped", 25), ("ramped", 50), ("ramped", 100), ("promoted", 100)]
    wait_until(lambda: releasing.look() and len(events(releasing)) == len(steps), "all announcements")
    assert events(releasing) == [(event, MODEL, share) for event, share in steps]
    first = releasing.announced()[0]
    assert (first.training_job_id, first.deployment_config.rollout_strategy) == ("job-47", "canary")
    assert [step.percentage for step in first.deployment_config.ramp_schedule or ()] == [5, 25, 50, 100]
    told = first.validation_results
    assert (told.benchmark_passed, told.safety_checks_passed, told.performance_regression) == (True, True, False)
    assert told.benchmark_scores == {name: new for name, (new, _) in scores.items()}
    assert verify_audit(releasing.tables, read(JetStreamDesiredStates(releasing.messages))).holds


async def run_out_of_memory(stub: StubBackend, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
    """As a server whose model does not fit beside a long context."""
    if len(body["messages"][0]["content"]) >= len(LONG):
        error = {"error": {"message": "CUDA out of memory", "type": "server_error"}}
        return web.json_response(error, status=500)
    return await stub_backend.answer(stub, request, body)


class Agents:
    """Those who ask, and who publish what came of it, as far as they can see."""

    def __init__(self, place: ReleasePlace) -> None:
        self.place = place
        self.chance = Random(8)
        self.trajectories: list[dict[str, Any]] = []

    def ask(self, count: int) -> None:
        """In so many sessions, of which 8 in 100 bring a long context."""
        contents = [LONG if self.chance.random() < 0.08 else SHORT for _ in range(count)]
        asked = self.place.sessions(count, contents.__getitem__)
        for content, (session, reply) in zip(contents, asked, strict=True):
            assert reply.status == 200, "the model in service answers where the candidate fails"
            self.trajectories.append(self.trajectory(session, reply, content))

    def trajectory(self, session: str, reply: Reply, content: str) -> dict[str, Any]:
        [made] = documents(1, seed=len(self.trajectories))
        made["session_id"] = session
        made["metadata"] |= {"model_version": reply.model, "total_tokens": len(content) // CHARACTERS_A_TOKEN}
        return made

    def publish(self) -> None:
        """What they have done goes the way of all trajectories."""
        ingesting = Ingesting(self.place.messages, self.place.tables, self.place.directory / "raw")
        ingesting.publish(*self.trajectories)
        ingesting.drain(clock=lambda: datetime.now(UTC))


def test_scenario_4_a_model_that_runs_out_of_memory_on_long_contexts_is_taken_back_and_the_cause_found(
    releasing: ReleasePlace,
) -> None:
    release = releasing.let_in("job-48")
    releasing.new.behaviour = run_out_of_memory
    agents = Agents(releasing)

    def is_out() -> bool:
        agents.ask(60)
        releasing.look()
        return MODEL in releasing.state().retired

    wait_until(is_out, "its rollback", seconds=240)
    state = releasing.state()
    assert (state.weights, state.change.reason) == ({FIRST: 1.0}, "high_error_rate")
    wait_until(releasing.follows)
    assert releasing.ask_many(20) == {FIRST: 20}
    evidence = state.change.evidence
    assert evidence["candidate"]["error_rate"] > 0.05 > evidence["control"]["error_rate"]
    assert {"threshold", "combined", "e_values", "decided_at", "plain_rule"} <= evidence.keys()
    wait_until(lambda: releasing.look() and events(releasing)[-1][:2] == ("rolled_back", MODEL), "its announcement")
    assert events(releasing)[-1] == ("rolled_back", MODEL, 0)

    agents.publish()
    objects = DiskObjects(releasing.directory / "released")
    [found] = hold_post_mortems(
        releasing.tables,
        objects,
        datetime.now(UTC) + PATIENCE,  # nobody scores here
        session_keys=read_keys(SESSION_KEY),
        last_sequence=lambda: releasing.messages.state("RL_TRAJECTORIES").last_sequence,
    )
    assert found.without_trajectory < found.told == found.without_reward
    assert (found.deployment_id, found.training_job_id) == (release.deployment_id, "job-48")
    assert found.worst is not None
    assert (found.worst.dimension, found.worst.value) == ("context length", "16K to 64K")
    assert (found.worst.bad, found.worst.control_bad) == (found.worst.sessions, 0)
    assert found.alert.startswith(f"URGENT: Model {MODEL} rolled back due to high error rate (")
    assert "out of memory" in found.cause
    assert found.recommendation.startswith("Retrain with gradient checkpointing enabled")
    [row] = releasing.tables.query("SELECT * FROM post_mortems FINAL").to_dicts()
    assert json.loads(row["report"])["recommendation"] == found.recommendation
