"""What materializing a day of the stream leaves behind, as Dagster shows it."""

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import Any

import dagster as dg
import polars as pl
import pytest

from rl_pipeline.assets.redacted_trajectories import raw_and_redacted_trajectories, trajectories_are_ingested_in_time
from rl_pipeline.assets.trajectory_stream import trajectory_stream
from rl_pipeline.collection.samples import sample_trajectories
from rl_pipeline.contracts import serialize
from rl_pipeline.ingestion.erasure import OPTED_OUT_UNTIL
from rl_pipeline.ingestion.judging import user_placeholders
from rl_pipeline.ingestion.tombstones import write_tombstones
from rl_pipeline.partitions import stream_days
from rl_pipeline.redaction.policy import RedactionKey
from rl_pipeline.stores.clickhouse import ClickHouseWarehouse
from rl_pipeline.stores.jetstream import JetStream
from rl_pipeline_tests.fixtures.ingest import REDACTION_KEY, changed

SUBJECT = "agent.rl.trajectory.v1"
REFUSED = b'{"trajectory_id": 1}'
downstream_ran: list[str] = []


@dg.asset(deps=["redacted_trajectories"], partitions_def=stream_days)
def whatever_comes_next() -> None:
    downstream_ran.append("ran")


@pytest.fixture(autouse=True)
def nothing_ran() -> None:
    downstream_ran.clear()


def documents(count: int, seed: int = 7) -> list[dict[str, Any]]:
    made = sample_trajectories(count, now=datetime(2026, 1, 1, tzinfo=UTC), randomness=Random(seed))
    return [json.loads(serialize(trajectory)) for trajectory in made]


def publish(stream: JetStream, messages: Sequence[bytes | dict[str, Any]]) -> str:
    """Publish, and return the day of the stream's clock."""
    for number, message in enumerate(messages):
        data = message if isinstance(message, bytes) else json.dumps(message).encode()
        stream.publish(SUBJECT, data, f"{number}-{hash(data)}")
    return stream.get("RL_TRAJECTORIES", 1).time.date().isoformat()


def materialize(resources: dict[str, Any], day: str, **config: int) -> dg.ExecuteInProcessResult:
    name = raw_and_redacted_trajectories.op.name
    return dg.materialize(
        [trajectory_stream, raw_and_redacted_trajectories, whatever_comes_next],
        partition_key=day,
        resources=resources,
        run_config={"ops": {name: {"config": config}}},
        raise_on_error=False,
    )


def metadata(result: dg.ExecuteInProcessResult, asset: str) -> dict[str, Any]:
    [event] = [
        event.materialization for event in result.get_asset_materialization_events() if event.asset_key.path == [asset]
    ]
    return {label: value.value for label, value in event.metadata.items()}


def checks(result: dg.ExecuteInProcessResult) -> dict[str, bool]:
    return {evaluation.check_name: evaluation.passed for evaluation in result.get_asset_check_evaluations()}


def accounts(result: dg.ExecuteInProcessResult) -> tuple[bool, dict[str, Any]]:
    [found] = [e for e in result.get_asset_check_evaluations() if e.check_name == "every_sequence_is_accounted_for"]
    return found.passed, {label: value.value for label, value in found.metadata.items()}


def failure(result: dg.ExecuteInProcessResult) -> str:
    data: Any = next(event for event in result.all_events if event.is_step_failure).event_specific_data
    return str(data.error.cause or data.error)


def test_a_day_becomes_a_ledger_and_trajectories_with_what_a_person_wants_to_know(
    ingest_resources: dict[str, Any], stream: JetStream, warehouse: ClickHouseWarehouse
) -> None:
    leak = documents(1, seed=99)[0]
    leak["turns"][0]["observation"]["content"] = "write to ada.lovelace@analytical.org about it"
    day = publish(stream, [*documents(20), leak, REFUSED])
    result = materialize(ingest_resources, day)
    assert result.success
    raw, redacted = metadata(result, "raw_trajectories"), metadata(result, "redacted_trajectories")
    assert (raw["dagster/row_count"], raw["ingested_now"], redacted["dagster/row_count"]) == (22, 22, 21)
    assert (raw["first_sequence"], raw["last_sequence"]) == (1, 22)
    hours = stream.get("RL_TRAJECTORIES", 1).time.hour
    assert f"| accepted | 21 | {'·' * hours}" in raw["verdicts"]
    assert "| refused | 1 |" in raw["verdicts"]
    assert "coding" in redacted["domains"]
    assert redacted["redactions"] == 1
    assert checks(result) == {
        "every_sequence_is_accounted_for": True,
        "few_messages_are_refused": True,
        "documents_are_valid": True,
        "nothing_sensitive_remains": True,
    }
    assert downstream_ran == ["ran"]
    stored = warehouse.query("SELECT document FROM trajectories FINAL")["document"].str.join("")[0]
    assert "ada.lovelace" not in stored
    assert "[REDACTED:EMAIL:" in stored


def test_the_same_day_again_changes_nothing(
    ingest_resources: dict[str, Any], stream: JetStream, warehouse: ClickHouseWarehouse
) -> None:
    day = publish(stream, documents(5))
    assert materialize(ingest_resources, day).success
    everything = "SELECT * FROM trajectories FINAL ORDER BY sequence"
    before = warehouse.query(everything)
    again = materialize(ingest_resources, day)
    assert metadata(again, "raw_trajectories")["unchanged"] == 5
    assert metadata(again, "raw_trajectories")["ingested_now"] == 0
    assert warehouse.query(everything).equals(before)


def test_a_run_keeps_to_the_sequences_it_was_given(
    ingest_resources: dict[str, Any], stream: JetStream, warehouse: ClickHouseWarehouse
) -> None:
    day = publish(stream, documents(6))
    assert materialize(ingest_resources, day, first_sequence=2, last_sequence=4).success
    kept = warehouse.query("SELECT sequence FROM trajectory_ledger FINAL ORDER BY sequence")
    assert kept["sequence"].to_list() == [2, 3, 4]


def test_neither_asset_is_made_without_the_other(ingest_resources: dict[str, Any]) -> None:
    with pytest.raises(dg.DagsterInvalidDefinitionError, match="Failed to resolve asset job one"):
        dg.Definitions(
            assets=[trajectory_stream, raw_and_redacted_trajectories],
            jobs=[dg.define_asset_job("one", selection=["raw_trajectories"])],
            resources=ingest_resources,
        ).resolve_job_def("one")


def test_a_tenth_of_refused_messages_fails_the_check_and_stops_nothing(
    ingest_resources: dict[str, Any], stream: JetStream
) -> None:
    result = materialize(ingest_resources, publish(stream, [*documents(9), REFUSED]))
    assert result.success
    assert checks(result)["few_messages_are_refused"] is False
    assert downstream_ran == ["ran"]


def test_lost_sequences_are_told_with_their_exact_number(ingest_resources: dict[str, Any], stream: JetStream) -> None:
    day = publish(stream, documents(8))
    stream.request("STREAM.PURGE.RL_TRAJECTORIES", {"seq": 6})
    result = materialize(ingest_resources, day)
    assert accounts(result) == (False, {"without_a_row": 0, "without_content": 0, "lost": 5})
    assert "| lost | 5 |" in metadata(result, "raw_trajectories")["verdicts"]


def test_an_accepted_sequence_without_its_content_fails_the_check(
    ingest_resources: dict[str, Any], stream: JetStream, warehouse: ClickHouseWarehouse
) -> None:
    day = publish(stream, documents(4))
    assert materialize(ingest_resources, day).success
    warehouse.execute("ALTER TABLE trajectories DELETE WHERE sequence IN (2, 3)", settings={"mutations_sync": 2})
    passed, found = accounts(materialize(ingest_resources, day))
    assert (passed, found) == (False, {"without_a_row": 0, "without_content": 2, "lost": 0})


def test_a_sequence_without_its_row_fails_the_check(ingest_resources: dict[str, Any], stream: JetStream) -> None:
    day = publish(stream, documents(3))
    # The stream does not have the last two yet.
    passed, found = accounts(materialize(ingest_resources, day, first_sequence=1, last_sequence=5))
    assert (passed, found) == (False, {"without_a_row": 2, "without_content": 0, "lost": 0})


@pytest.mark.parametrize(
    ("document", "check"),
    [
        ("reach me at ada.lovelace@analytical.org", "nothing_sensitive_remains"),
        ("no trajectory", "documents_are_valid"),
    ],
)
def test_what_must_not_flow_on_does_not(
    ingest_resources: dict[str, Any], stream: JetStream, warehouse: ClickHouseWarehouse, document: str, check: str
) -> None:
    day = publish(stream, documents(3))
    assert materialize(ingest_resources, day).success
    downstream_ran.clear()
    spoilt = warehouse.query("SELECT * FROM trajectories FINAL WHERE sequence = 2").with_columns(
        document=pl.lit(document), version=pl.col("version") + 2**40
    )
    warehouse.insert("trajectories", spoilt)
    result = materialize(ingest_resources, day)
    assert checks(result)[check] is False
    assert downstream_ran == []
    # What arrives later that day does not make it forgotten.
    publish(stream, documents(1, seed=3))
    assert checks(materialize(ingest_resources, day, first_sequence=4, last_sequence=4))[check] is False
    assert downstream_ran == []


def test_what_a_deployment_wants_to_keep_is_no_residue(
    ingest_resources: dict[str, Any], stream: JetStream, warehouse: ClickHouseWarehouse, tmp_path: Path
) -> None:
    kept = documents(2)
    for tree in kept:
        tree["turns"][0]["observation"]["content"] = "write to ada.lovelace@analytical.org about it"
    day = publish(stream, kept)
    policy = tmp_path / "policy.toml"
    for text in ('rules_off = ["email"]', 'allowed = ["ada.lovelace@analytical.org"]'):
        policy.write_text(text)
        result = materialize(changed(ingest_resources, redaction_policy_file=str(policy)), day)
        assert checks(result)["nothing_sensitive_remains"] is True
        assert "ada.lovelace" in warehouse.query("SELECT document FROM trajectories FINAL")["document"][0]


def test_a_day_that_has_left_the_stream_keeps_its_rows_and_says_so(
    ingest_resources: dict[str, Any], stream: JetStream, warehouse: ClickHouseWarehouse
) -> None:
    day = publish(stream, documents(4))
    assert materialize(ingest_resources, day).success
    stream.request("STREAM.PURGE.RL_TRAJECTORIES", {})
    unchanged = materialize(ingest_resources, day)
    assert unchanged.success, "nothing needs to be read under the same rules"
    refused = materialize(changed(ingest_resources, redaction_key="v2:" + "k" * 40), day)
    assert not refused.success
    assert "4 of its 4 sequences have rows of an older revision, which stay as they are" in failure(refused)
    assert warehouse.query("SELECT count() AS n FROM trajectories FINAL")["n"][0] == 4


def test_a_day_of_which_the_stream_has_the_end_says_what_it_could_not_read_again(
    ingest_resources: dict[str, Any],
    stream: JetStream,
    warehouse: ClickHouseWarehouse,
    capfd: pytest.CaptureFixture[str],
) -> None:
    day = publish(stream, [*documents(6), REFUSED])
    assert metadata(materialize(ingest_resources, day), "raw_trajectories")["kept_from_older_rules"] == 0
    stream.request("STREAM.PURGE.RL_TRAJECTORIES", {"seq": 4})
    stream.erase("RL_TRAJECTORIES", 6)
    newer = changed(ingest_resources, redaction_key="v2:" + "k" * 40)
    for ingested_now in (3, 0):
        result = materialize(newer, day)
        assert result.success
        told = metadata(result, "raw_trajectories")
        assert (told["first_sequence"], told["last_sequence"], told["ingested_now"]) == (1, 7, ingested_now)
        assert (told["unchanged"], told["kept_from_older_rules"]) == (3 - ingested_now, 4)
        assert checks(result)["every_sequence_is_accounted_for"] is True
        assert "4 of 7 sequences have left the stream" in capfd.readouterr().err
    revisions = warehouse.query("SELECT revision FROM trajectory_ledger FINAL ORDER BY sequence")["revision"]
    assert revisions.to_list() == [1, 1, 1, 2, 2, 1, 2]


def test_who_was_erased_under_an_earlier_key_stays_away_and_without_it_nothing_is_ingested(
    ingest_resources: dict[str, Any], stream: JetStream, warehouse: ClickHouseWarehouse
) -> None:
    keys = [RedactionKey.parse(REDACTION_KEY)]
    now = datetime.now(UTC)
    write_tombstones(warehouse, user_placeholders("user-19", keys), keys, now, OPTED_OUT_UNTIL)
    [theirs, other] = documents(2)
    theirs["task_context"]["user_id"] = "user-19"
    day = publish(stream, [theirs, other])
    newer = changed(ingest_resources, redaction_key="v2:" + "k" * 40)
    refused = materialize(newer, day)
    assert "the redaction key v1, which is not set" in failure(refused)
    assert warehouse.query("SELECT count() AS n FROM trajectory_ledger")["n"][0] == 0
    assert materialize(changed(newer, redaction_previous_keys=REDACTION_KEY), day).success
    assert warehouse.query("SELECT sequence FROM trajectories FINAL")["sequence"].to_list() == [2]


def test_without_a_key_nothing_is_stored(
    ingest_resources: dict[str, Any], stream: JetStream, warehouse: ClickHouseWarehouse
) -> None:
    day = publish(stream, documents(1))
    result = materialize(changed(ingest_resources, redaction_key=""), day)
    assert "set REDACTION_KEY" in failure(result)
    assert warehouse.query("SELECT count() AS n FROM trajectory_ledger")["n"][0] == 0


def test_a_person_can_run_the_freshness_check(ingest_resources: dict[str, Any], stream: JetStream) -> None:
    publish(stream, documents(1))
    fresh = trajectories_are_ingested_in_time(**ingest_resources)
    stale = trajectories_are_ingested_in_time(**changed(ingest_resources, stale_seconds=1e-6))
    assert isinstance(fresh, dg.AssetCheckResult)
    assert isinstance(stale, dg.AssetCheckResult)
    assert (fresh.passed, stale.passed) == (True, False)
