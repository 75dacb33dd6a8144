"""Alerts as the sensors raise them: about servers that go away, by ways that need none of them, once an episode."""

import json
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from rl_pipeline.automation.alerts import failures_in_a_row, notices_waiting, runs_failed, something_is_wrong
from rl_pipeline.contracts import Alert, parse_message
from rl_pipeline.deployment.controller import Tick
from rl_pipeline.deployment.holds import note_hold
from rl_pipeline.deployment.judging import Judgement
from rl_pipeline.observability.notices.outbox import Outbox
from rl_pipeline.resources.alerts import AlertsResource
from rl_pipeline.resources.objects import ObjectsResource
from rl_pipeline.resources.stream import StreamResource
from rl_pipeline.resources.warehouse import WarehouseResource
from rl_pipeline.stores.clickhouse import ClickHouseWarehouse
from rl_pipeline.stores.disk import DiskObjects
from rl_pipeline.stores.jetstream import JetStream
from rl_pipeline_tests.deployment.states import started
from rl_pipeline_tests.observability.reports.stored_period import store_audit, store_ledger

NOWHERE = "127.0.0.1:1"


@pytest.fixture
def service() -> Iterator[str]:
    """Something that answers on /health, though not with good news: it is there."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(503)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def resources(ingest_resources: dict[str, Any], tmp_path: Path, service: str) -> dict[str, Any]:
    return {
        "stream": ingest_resources["stream"],
        "warehouse": ingest_resources["warehouse"],
        "model_objects": ObjectsResource(url=str(tmp_path / "models")),
        "alerts": AlertsResource(file=str(tmp_path / "alerts.jsonl"), service_url=service),
    }


def look(resources: dict[str, Any], cursor: str | None = None) -> dg.SensorResult:
    result = something_is_wrong(dg.build_sensor_context(resources=resources, cursor=cursor))
    assert isinstance(result, dg.SensorResult)
    return result


def aged(cursor: str | None, by: timedelta) -> str:
    """The cursor of a sensor that has known of everything for longer."""
    content = json.loads(cursor or "")
    for name, (since, looks) in content["episodes"].items():
        content["episodes"][name] = [(datetime.fromisoformat(since) - by).isoformat(), looks]
    return json.dumps(content)


def lines(tmp_path: Path) -> list[dict[str, Any]]:
    file = tmp_path / "alerts.jsonl"
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def waiting(tmp_path: Path) -> list[str]:
    return [str(notice.body["kind"]) for notice in Outbox(DiskObjects(tmp_path / "models")).waiting()]


def test_where_all_is_well_nothing_is_said(resources: dict[str, Any], tmp_path: Path) -> None:
    result = look(resources)
    assert result.skip_reason is not None
    assert result.skip_reason.skip_message == "nothing is wrong"
    assert waiting(tmp_path) == []


def test_the_loss_of_nats_is_told_after_five_minutes_by_file_and_by_nats_when_it_is_back(
    resources: dict[str, Any], stream: JetStream, tmp_path: Path
) -> None:
    lost = {**resources, "stream": StreamResource(url=f"nats://{NOWHERE}")}
    first = look(lost)
    assert "NATS is lost since" in str(first.skip_reason and first.skip_reason.skip_message)
    look(lost, aged(first.cursor, timedelta(minutes=4)))
    assert waiting(tmp_path) == [], "it has not lasted long enough"
    second = look(lost, aged(first.cursor, timedelta(minutes=5)))
    look(lost, second.cursor)
    assert waiting(tmp_path) == ["nats_lost"], "once for the episode"
    notices_waiting(dg.build_sensor_context(resources=lost))
    [told] = lines(tmp_path)
    assert (told["kind"], told["severity"]) == ("nats_lost", "critical")
    assert waiting(tmp_path) == ["nats_lost"], "NATS has not taken it yet"
    [notice] = Outbox(DiskObjects(tmp_path / "models")).waiting()
    resources["alerts"].ways(lambda: stream)["nats"](notice)
    heard = parse_message("agent.rl.alert.v1", stream.get("RL_REPORTS", 1).data)
    assert isinstance(heard, Alert)
    assert heard.alert_id == told["alert_id"]


def test_a_service_and_a_warehouse_that_are_away_are_told_after_three_looks_and_again_in_another_episode(
    resources: dict[str, Any], tmp_path: Path
) -> None:
    away = {
        **resources,
        "warehouse": WarehouseResource(url=f"http://{NOWHERE}", database="x"),
        "alerts": AlertsResource(file=str(tmp_path / "alerts.jsonl"), service_url=f"http://{NOWHERE}"),
    }
    cursor = None
    for seen in ([], [], ["service_unreachable", "warehouse_lost"], ["service_unreachable", "warehouse_lost"]):
        cursor = look(away, cursor).cursor
        assert sorted(waiting(tmp_path)) == seen
    cursor = look(resources, cursor).cursor
    for _ in range(3):
        cursor = look(away, cursor).cursor
    assert len(waiting(tmp_path)) == 4


def test_what_the_tables_tell_is_raised_once_and_what_was_long_ago_is_no_news(
    resources: dict[str, Any], warehouse: ClickHouseWarehouse, tmp_path: Path
) -> None:
    now = datetime.now(UTC)
    back = {"serving": "v1", "model_id": "v2", "event": "rolled_back"}
    store_audit(warehouse, {**back, "at": now - timedelta(days=2)}, {**back, "at": now - timedelta(minutes=1)})
    store_ledger(warehouse, ("accepted", 10, now - timedelta(minutes=1)), ("refused", 10, now - timedelta(minutes=1)))
    held = Tick(started(), Judgement("hold", "fails_only_alone", "it failed 3 times", {"mode": "full"}))
    note_hold(warehouse, held, now - timedelta(minutes=1))
    result = look(resources)
    assert sorted(waiting(tmp_path)) == ["collection_errors", "model_rolled_back", "rollout_waits"]
    look(resources, result.cursor)
    assert len(waiting(tmp_path)) == 3


class Fails(dg.Config):
    fails: bool = True


@dg.op
def work(config: Fails) -> None:
    if config.fails:
        raise dg.Failure("no room on the disk")


@dg.job
def archive_things() -> None:
    work()


def test_three_failed_runs_in_a_row_are_one_alert_and_a_success_begins_anew(
    resources: dict[str, Any], tmp_path: Path
) -> None:
    (tmp_path / "dagster").mkdir()
    with dg.DagsterInstance.local_temp(str(tmp_path / "dagster")) as instance:

        def finish(fails: bool) -> None:
            config = {"ops": {"work": {"config": {"fails": fails}}}}
            result = archive_things.execute_in_process(instance=instance, run_config=config, raise_on_error=False)
            if not fails:
                return
            [event] = [each for each in result.all_events if each.event_type == dg.DagsterEventType.RUN_FAILURE]
            context = dg.build_run_status_sensor_context(
                sensor_name="runs_failed",
                dagster_event=event,
                dagster_instance=instance,
                dagster_run=result.dagster_run,
                resources={name: resources[name] for name in ("model_objects", "alerts")},
            ).for_run_failure()
            runs_failed(context)

        told = []
        for fails in (True, True, True, True, False, True, True, True):
            finish(fails)
            told.append(len(waiting(tmp_path)))
        assert told == [0, 0, 1, 1, 1, 1, 1, 2]
        newest = instance.get_runs()[0]
        assert len(failures_in_a_row(instance, newest, 3)) == 3
    [first, _] = Outbox(DiskObjects(tmp_path / "models")).waiting()
    assert "archive_things failed 3 times in a row" in str(first.body["text"])
    assert "no room on the disk" in str(first.body["text"])
