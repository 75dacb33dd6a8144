"""A canary whose whole way takes about a minute, by settings alone: the real gateway, controller and stores."""

from collections.abc import Iterator
from datetime import UTC, datetime

import dagster as dg
import pytest

from rl_pipeline.definitions import resources_from
from rl_pipeline.settings import load_settings
from rl_pipeline.stores.clickhouse import ClickHouseWarehouse
from rl_pipeline_tests.assets.test_deployed_models import BETTER, materialized, validated
from rl_pipeline_tests.deployment.release_place import FIRST, IDLE, ReleasePlace
from rl_pipeline_tests.deployment.validated import a_report
from rl_pipeline_tests.serving import stub_backend
from rl_pipeline_tests.training.job_tables import emptied, migrated_database, store_rewards
from rl_pipeline_tests.waiting import wait_until

FAST = {
    "CANARY_RAMP_HOURS": "0.01",
    "CANARY_STEP_SAMPLES": "10,20,30",
    "CANARY_BAKE_HOURS": "0.003",
    "CANARY_REWARD_MATURITY_MINUTES": "0.1",
    "CANARY_SETTLING_SECONDS": "1",
    "GATEWAY_SESSION_IDLE_SECONDS": str(IDLE["session_idle_seconds"]),
}
MODEL = "agent-zero-rl-v1"


@pytest.fixture(scope="module")
def tables(clickhouse_url: str) -> Iterator[ClickHouseWarehouse]:
    with migrated_database(clickhouse_url) as database:
        yield database


@pytest.fixture
def warehouse(tables: ClickHouseWarehouse) -> ClickHouseWarehouse:
    return emptied(tables)


def let_in(place: ReleasePlace, monkeypatch: pytest.MonkeyPatch, **more: str) -> None:
    """Release a model by these settings."""
    for name, value in place.environment(**FAST | more).items():
        monkeypatch.setenv(name, value)
    with dg.build_resources({"deployment": resources_from(load_settings())["deployment"]}) as built:
        place.deployment = built.deployment.model_dump()
    validated(place, "job-1", a_report(BETTER))
    assert materialized(place, "job-1")
    wait_until(place.follows, "the rollout at the gateway")


def go_on(place: ReleasePlace, first: int, reward: float) -> None:
    """Some sessions, what both models earned in as many more, and a look."""
    place.ask_many(30)
    now = datetime.now(UTC)
    store_rewards(place.tables, 10, at=now, totals=(reward,), model=MODEL, seconds=0, first=first)
    store_rewards(place.tables, 10, at=now, totals=(0.8,), model=FIRST, seconds=0, first=first + 10)
    place.look()


def test_a_healthy_canary_goes_all_its_way_on_sessions_and_rewards(
    releasing: ReleasePlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    let_in(releasing, monkeypatch)
    sequences = iter(range(1, 10**6, 20))

    def is_in_service() -> bool:
        go_on(releasing, next(sequences), reward=0.8)
        return releasing.state().serving == MODEL

    wait_until(is_in_service, "its promotion", seconds=300)
    events = [said.metadata.event for said in releasing.announced()]
    assert events == ["deployed", "ramped", "ramped", "ramped", "promoted"]
    evidence = releasing.state().change.evidence
    assert evidence["candidate"]["rewards"] > 0, "rewards of the split were read before its end"
    assert evidence["control"]["rewards"] > 0


@pytest.mark.parametrize(
    ("sabotage", "reward", "reason"),
    [
        pytest.param(stub_backend.answer_500, 0.8, "high_error_rate", id="errors"),
        pytest.param(stub_backend.answer, 0.1, "performance_degradation", id="bad rewards"),
    ],
)
def test_a_sabotaged_canary_is_rolled_back_on_its_way(
    releasing: ReleasePlace,
    monkeypatch: pytest.MonkeyPatch,
    sabotage: stub_backend.Behaviour,
    reward: float,
    reason: str,
) -> None:
    let_in(releasing, monkeypatch, CANARY_BAKE_HOURS="1")
    releasing.new.behaviour = sabotage
    sequences = iter(range(1, 10**6, 20))

    def is_out() -> bool:
        go_on(releasing, next(sequences), reward)
        return MODEL in releasing.state().retired

    wait_until(is_out, "its rollback", seconds=300)
    assert (releasing.state().change.reason, releasing.state().weights) == (reason, {FIRST: 1.0})
