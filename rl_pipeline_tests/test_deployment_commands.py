"""The commands around models in service, as people use them, with the real servers behind them."""

import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from rl_pipeline.cli import main
from rl_pipeline.deployment.releases import Releases
from rl_pipeline.deployment.state import RampStep
from rl_pipeline.embedded.nats_server import NatsServer
from rl_pipeline.stores.clickhouse import ClickHouseWarehouse
from rl_pipeline.stores.jetstream import JetStream
from rl_pipeline_tests.deployment.release_place import FIRST, ReleasePlace, opened_place
from rl_pipeline_tests.training.job_tables import emptied, migrated_database
from rl_pipeline_tests.waiting import wait_until

MODEL = "agent-zero-rl-v1"
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def tables(clickhouse_url: str) -> Iterator[ClickHouseWarehouse]:
    with migrated_database(clickhouse_url) as database:
        yield database


@pytest.fixture
def warehouse(tables: ClickHouseWarehouse) -> ClickHouseWarehouse:
    return emptied(tables)


@pytest.fixture
def place(
    nats_server: NatsServer, stream: JetStream, clickhouse_url: str, warehouse: ClickHouseWarehouse, tmp_path: Path
) -> Iterator[ReleasePlace]:
    """Nothing is deployed yet."""
    with opened_place(nats_server.url, stream, warehouse, clickhouse_url, tmp_path, empty=True) as place:
        yield place


@pytest.fixture
def run(place: ReleasePlace, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    for name, value in place.environment().items():
        monkeypatch.setenv(name, value)

    def command(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["rl-pipeline", *arguments])
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main()
        return int(ended.value.code or 0), *capsys.readouterr()

    return command


def created(place: ReleasePlace, run: Run) -> None:
    code, said, complaint = run("deployment", "create", FIRST, "--endpoint", place.old.endpoint)
    assert (code, said.splitlines()[0]) == (0, f"generation 1, steady: {FIRST} 100%"), complaint
    wait_until(place.follows)


def test_nothing_deployed_is_said_with_what_to_do(run: Run) -> None:
    code, _, complaint = run("deployment")
    assert code == 1
    assert "name a model with `deployment create`" in complaint
    code, _, complaint = run("deployment", "freeze")
    assert code == 1
    assert "nothing is deployed" in complaint


def test_the_first_model_is_named_once_and_serves(place: ReleasePlace, run: Run) -> None:
    created(place, run)
    assert place.ask_many(3) == {FIRST: 3}
    code, said, _ = run("deployment")
    assert code == 0
    assert f"generation 1, steady: {FIRST} 100%" in said
    assert f"follows generation 1: {FIRST} 100%" in said
    code, _, complaint = run("deployment", "create", "another", "--endpoint", place.new.endpoint)
    assert code == 1
    assert "something is deployed already" in complaint


def test_a_rollout_is_shown_with_its_step_its_evidence_and_its_expected_finish(place: ReleasePlace, run: Run) -> None:
    created(place, run)
    place.let_in("job-1", [RampStep(share=0.5, min_seconds=3600, min_samples=10)])
    place.ask_many(20)

    def is_shown() -> bool:
        place.look()
        code, said, complaint = run("deployment")
        assert code == 0, complaint
        assert f"generation 2, ramping: {MODEL} 50%, {FIRST} 50%" in said
        assert f"{MODEL} against {FIRST} by canary, step 1 of 1" in said
        assert "hold: nothing speaks against it; still to come: " in said
        return "expected to finish at" in said

    wait_until(is_shown, "sessions in the evidence")


def test_a_rollout_is_shown_though_the_warehouse_is_away(
    place: ReleasePlace, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    created(place, run)
    place.let_in("job-1")
    monkeypatch.setenv("CLICKHOUSE_URL", "http://127.0.0.1:1")
    code, said, _ = run("deployment")
    assert code == 0
    assert f"ramping: {MODEL} 50%, {FIRST} 50%" in said
    assert "its evidence cannot be read now" in said
    assert f"follows generation 2: {MODEL} 50%" in said


def test_a_person_lets_a_model_in_or_sends_it_away(place: ReleasePlace, run: Run) -> None:
    created(place, run)
    place.release("job-1", needs_approval=True)
    place.look()
    assert "awaiting_approval" in run("deployment")[1]
    code, said, _ = run("deployment", "abort", "--reason", "not today")
    assert (code, said.splitlines()[0]) == (0, f"generation 3, steady: {FIRST} 100%")
    assert "not today" in said
    place.release("job-2", needs_approval=True)
    place.look()
    code, said, _ = run("deployment", "approve", "--reason", "read the report")
    assert (code, said.splitlines()[0]) == (0, f"generation 5, ramping: agent-zero-rl-v2 50%, {FIRST} 50%")
    assert place.state().change.by.endswith(" by command")
    assert run("deployment", "approve")[0] == 1


def test_a_freeze_holds_a_rollout_and_never_a_rollback(place: ReleasePlace, run: Run) -> None:
    created(place, run)
    place.let_in("job-1")
    code, said, _ = run("deployment", "freeze", "--reason", "a holiday")
    assert code == 0
    assert "frozen: a holiday" in said
    code, _, complaint = run("deployment", "promote", MODEL)
    assert code == 1
    assert "frozen (a holiday)" in complaint
    code, said, _ = run("deployment", "roll-back", "--reason", "users complain")
    assert code == 0
    assert f"steady: {FIRST} 100%" in said
    wait_until(lambda: place.ask_many(5) == {FIRST: 5})
    assert run("deployment", "unfreeze")[0] == 0
    assert place.state().frozen is None
    code, _, complaint = run("deployment", "promote", MODEL)
    assert code == 1
    assert f"{MODEL} is not being rolled out" in complaint


def test_a_freeze_and_a_rollback_do_not_wait_for_the_warehouse(
    place: ReleasePlace, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    created(place, run)
    place.let_in("job-1")
    monkeypatch.setenv("CLICKHOUSE_URL", "http://127.0.0.1:1")
    code, said, complaint = run("deployment", "freeze", "--reason", "the warehouse is away")
    assert (code, "frozen: the warehouse is away" in said) == (0, True), complaint
    code, said, complaint = run("deployment", "roll-back", "--reason", "users complain")
    assert (code, said.splitlines()[0]) == (0, f"generation 4, steady: {FIRST} 100%"), complaint
    assert run("deployment", "unfreeze")[0] == 1, "what raises waits for its audit"


@pytest.mark.parametrize("named", [(), (MODEL,)])
def test_a_rollback_takes_the_candidate_out_with_nats_and_the_warehouse_away_and_is_recorded_later(
    place: ReleasePlace, run: Run, monkeypatch: pytest.MonkeyPatch, named: tuple[str, ...]
) -> None:
    created(place, run)
    place.let_in("job-1")
    monkeypatch.setenv("CLICKHOUSE_URL", "http://127.0.0.1:1")
    monkeypatch.setenv("NATS_URL", "nats://127.0.0.1:1")
    code, said, complaint = run("deployment", "roll-back", *named, "--reason", "users complain")
    assert code == 0, complaint
    assert f"{MODEL} is fenced at {place.gateway.url}, and that is not recorded yet" in said
    assert place.ask_many(5) == {FIRST: 5}
    place.look()
    assert (place.state().retired, place.state().change.reason) == ((MODEL,), "users complain")


def test_a_rollback_that_reaches_nobody_fails(place: ReleasePlace, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    created(place, run)
    place.let_in("job-1")
    place.gateway.kill()
    monkeypatch.setenv("NATS_URL", "nats://127.0.0.1:1")
    assert run("deployment", "roll-back", MODEL)[0] == 1


def test_a_person_promotes_a_model_and_takes_it_back_when_it_serves(place: ReleasePlace, run: Run) -> None:
    created(place, run)
    place.let_in("job-1", bake_seconds=3600)
    code, said, _ = run("deployment", "promote", MODEL, "--reason", "trust me")
    assert (code, said.splitlines()[0]) == (0, f"generation 3, baking: {MODEL} 100%")
    code, said, _ = run("deployment", "promote", MODEL)
    assert (code, said.splitlines()[0]) == (0, f"generation 4, steady: {MODEL} 100%")
    assert run("deployment", "roll-back")[0] == 1, "nothing is being rolled out, and none was named"
    code, said, _ = run("deployment", "roll-back", MODEL, "--reason", "it got worse")
    assert (code, said.splitlines()[0]) == (0, f"generation 5, steady: {FIRST} 100%")
    assert place.state().retired == (MODEL,)


def test_an_ab_test_holds_its_split(place: ReleasePlace, run: Run) -> None:
    created(place, run)
    code, _, complaint = run("deployment", "ab-test", "job-1")
    assert code == 1
    assert "the job job-1 has no validated model" in complaint
    place.release("job-1")
    code, said, _ = run("deployment", "ab-test", "job-1", "--share", "0.3")
    assert (code, said.splitlines()[0]) == (0, f"generation 2, testing: {MODEL} 30%, {FIRST} 70%")
    code, said, _ = run("deployment")
    assert code == 0
    assert "hold: an A/B test keeps its split until somebody ends it" in said
    assert f"A/B test of {MODEL} against {FIRST} since " in said
    assert "| failed sessions | too little to tell | too little to tell | too little to tell | 0 and 0 |" in said


def test_a_release_that_was_refused_later_is_not_tested(place: ReleasePlace, run: Run) -> None:
    created(place, run)
    releases = Releases(place.tables)
    releases.refuse(place.release("job-1"), "validation found it unsafe", datetime.now(UTC))
    code, _, complaint = run("deployment", "ab-test", "job-1")
    assert code == 1
    assert f"{MODEL} was refused (validation found it unsafe)" in complaint
    assert place.state().weights == {FIRST: 1.0}


def test_an_ab_test_s_report_is_shown_while_it_goes_on_and_after_it_has_ended(place: ReleasePlace, run: Run) -> None:
    created(place, run)
    code, _, complaint = run("deployment", "ab-report")
    assert code == 1
    assert "there was no A/B test" in complaint
    place.release("job-1")
    assert run("deployment", "ab-test", "job-1")[0] == 0
    wait_until(place.follows)
    place.ask_many(20)

    def is_shown() -> bool:
        place.look()
        return "| failed sessions | 0.000 (0.000 to " in run("deployment")[1]

    wait_until(is_shown, "sessions in the report")
    run("deployment", "roll-back", "--reason", "seen enough")
    code, said, complaint = run("deployment", "ab-report", MODEL)
    assert (code, "| failed sessions | 0.000 (0.000 to " in said) == (0, True), complaint
    assert run("deployment", "ab-report", "another")[0] == 1


def test_a_backend_that_cannot_split_tests_nothing(
    place: ReleasePlace, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRAFFIC_CONTROLLER", "direct")
    monkeypatch.setenv("SERVING_ENDPOINT", place.new.endpoint)
    code, _, complaint = run("deployment", "ab-test", "job-1")
    assert code == 1
    assert "a single backend cannot split traffic" in complaint


def test_the_audit_is_walked_and_a_break_is_named(place: ReleasePlace, run: Run) -> None:
    created(place, run)
    place.let_in("job-1")
    run("deployment", "roll-back")
    code, said, complaint = run("deployment", "verify-audit")
    assert code == 0, said + complaint
    place.tables.execute("DELETE FROM deployment_audit WHERE generation = 2")
    code, said, _ = run("deployment", "verify-audit")
    assert code == 1
    assert "generation 3: the state before it has no row" in said
