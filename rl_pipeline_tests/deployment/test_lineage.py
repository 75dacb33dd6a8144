"""From a served answer back to all that it came from."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import polars as pl
import pytest

from rl_pipeline.deployment import phases
from rl_pipeline.deployment.audit import AuditRow, WarehouseAudit
from rl_pipeline.deployment.lineage import Unknown, explain
from rl_pipeline.deployment.releases import Releases
from rl_pipeline.redaction.policy import RedactionKey
from rl_pipeline.redaction.session_names import stored_name
from rl_pipeline.stores.clickhouse import ClickHouseWarehouse
from rl_pipeline_tests.deployment.states import a_model, a_release, because, started
from rl_pipeline_tests.training.job_tables import migrated_database

LATELY = datetime.now(UTC).replace(microsecond=0) - timedelta(days=1)
MODEL = "agent-zero-rl-v2.4"
KEY = RedactionKey("v1", b"a key of gateways, for tests alone")
STORED = stored_name(KEY, "session-7")


@pytest.fixture(scope="module")
def warehouse(clickhouse_url: str) -> Iterator[ClickHouseWarehouse]:
    with migrated_database(clickhouse_url) as database:
        fill(database)
        yield database


def fill(database: ClickHouseWarehouse) -> None:
    """Two trajectories were redacted, scored and learnt from; what came of it serves some of the traffic."""

    def insert(table: str, *rows: dict[str, Any]) -> None:
        database.insert(table, pl.DataFrame(list(rows)))

    for number in (1, 2):
        trajectory = f"learnt-{number}"
        insert(
            "trajectories",
            {"trajectory_id": trajectory, "revision": 3, "stream_time": LATELY, "held": True, "model_version": "old"},
        )
        insert("dataset_trajectories", {"dataset_id": "job-1.r1", "trajectory_id": trajectory})
        for role in ("chosen", "prompt"):
            insert(
                "dataset_provenance",
                {
                    "dataset_id": "job-1.r1",
                    "trajectory_id": trajectory,
                    "role": role,
                    "reward_revision": number,
                    "configuration": "configuration-1",
                },
            )
    insert("ingest_revisions", {"revision": 3, "fingerprint": "rules-3", "key": "k1"})
    insert(
        "datasets",
        {
            "dataset_id": "job-1.r1",
            "job_id": "job-1",
            "revision": 1,
            "manifest_hash": "dataset-hash",
            "manifest_url": "s3://datasets/job-1",
            "trajectories": 2,
            "created_at": LATELY,
        },
    )
    insert(
        "model_checkpoints",
        {
            "id": "job-1/2",
            "job_id": "job-1",
            "attempt": 2,
            "dataset_id": "job-1.r1",
            "checkpoint_path": "s3://models/job-1/",
            "manifest_sha256": "a" * 64,
            "key_id": "key-1",
            "base_model": "small",
            "algorithm": "dpo",
            "created_at": LATELY,
            "version": 1,
        },
    )
    model = a_model(MODEL).model_copy(update={"manifest_sha256": "a" * 64, "checkpoint_path": "s3://models/job-1/"})
    first = phases.create(a_model("old"), because())
    rollout = a_release(1, MODEL).rollout(control="old", now=LATELY)
    second = phases.start(first, model, rollout, because(), approved=True)
    third = phases.advance(second, because())
    WarehouseAudit(database).add([AuditRow.of(state.encoded()) for state in (first, second, third)])
    insert(
        "serving_outcomes",
        {"session_id": STORED, "model_id": MODEL, "generation": 2, "stream_time": LATELY, "started_at": LATELY},
    )
    insert(
        "trajectories",
        {
            "trajectory_id": "served-1",
            "session_id": "session-8",
            "model_version": MODEL,
            "stream_time": LATELY,
            "held": True,
        },
    )


def test_an_answer_leads_to_everything(warehouse: ClickHouseWarehouse) -> None:
    found = explain(warehouse, f"chatcmpl-2-{MODEL}-0123456789abcdef", session_keys=[KEY])
    assert (found.model_id, found.generation, found.share) == (MODEL, 2, 0.1)
    assert found.checkpoint_path == "s3://models/job-1/"
    assert found.training is not None
    assert (found.training.job_id, found.training.attempt, found.training.algorithm) == ("job-1", 2, "dpo")
    assert (found.training.manifest_sha256, found.training.signed_by) == ("a" * 64, "key-1")
    data = found.dataset
    assert data is not None
    assert (data.dataset_id, data.manifest_hash, data.trajectories) == ("job-1.r1", "dataset-hash", 2)
    assert (data.sample, data.reward_revisions) == (("learnt-1", "learnt-2"), (1, 2))
    assert (data.reward_configurations, data.redaction_revisions) == (("configuration-1",), (3,))
    assert data.redaction_fingerprints == ("rules-3",)


def test_it_is_told_in_words(warehouse: ClickHouseWarehouse) -> None:
    text = explain(warehouse, f"chatcmpl-3-{MODEL}-abc", session_keys=[KEY]).text()
    assert text.splitlines() == [
        f"chatcmpl-3-{MODEL}-abc",
        f"model: {MODEL}",
        "served under: generation 3, 25% of the traffic",
        "checkpoint: s3://models/job-1/",
        f"manifest: {'a' * 64}, signed by key-1",
        "training job: job-1, attempt 2, dpo on small",
        "dataset: job-1.r1, manifest dataset-hash",
        "trajectories: 2, such as learnt-1, learnt-2",
        "reward revisions: 1, 2",
        "reward configurations: configuration-1",
        "redaction revisions: 3",
    ]


@pytest.mark.parametrize(
    ("name", "generation", "session", "trajectory"),
    [
        ("session-7", 2, STORED, None),
        (STORED, 2, STORED, None),
        ("served-1", 3, "session-8", "served-1"),
        ("session-8", 3, "session-8", "served-1"),
        (MODEL, 3, None, None),
    ],
)
def test_a_session_a_trajectory_and_a_model_lead_to_the_same(
    warehouse: ClickHouseWarehouse, name: str, generation: int, session: str | None, trajectory: str | None
) -> None:
    found = explain(warehouse, name, session_keys=[KEY])
    assert (found.model_id, found.generation) == (MODEL, generation)
    assert (found.session_id, found.trajectory_id) == (session, trajectory)
    assert found.dataset is not None
    assert found.dataset.manifest_hash == "dataset-hash"


def test_a_model_that_was_not_trained_here_ends_the_trail_early(warehouse: ClickHouseWarehouse) -> None:
    found = explain(warehouse, "chatcmpl-1-old-abc", session_keys=[KEY])
    assert (found.model_id, found.training, found.dataset) == ("old", None, None)
    assert "dataset" not in found.text()


def test_an_answer_of_a_generation_that_was_lost_is_explained_by_its_model(warehouse: ClickHouseWarehouse) -> None:
    found = explain(warehouse, f"chatcmpl-99-{MODEL}-abc", session_keys=[KEY])
    assert (found.generation, found.training and found.training.job_id) == (99, "job-1")


def test_a_release_that_never_served_is_known_by_its_model(warehouse: ClickHouseWarehouse) -> None:
    release = a_release(9)
    release = release.model_copy(update={"model": release.model.model_copy(update={"manifest_sha256": "a" * 64})})
    Releases(warehouse)._write([release])
    found = explain(warehouse, "agent-zero-rl-v9", session_keys=[KEY])
    assert (found.generation, found.training and found.training.job_id) == (None, "job-1")


def test_a_model_that_was_trained_from_others_leads_to_what_these_have_learnt_from(
    warehouse: ClickHouseWarehouse,
) -> None:
    for number, base in ((10, "s3://models/job-1"), (11, "s3://models/job-10/final")):
        job = f"job-{number}"
        made = {"id": f"{job}/final", "job_id": job, "dataset_id": f"{job}.r1", "created_at": LATELY, "version": 1}
        where = {"checkpoint_path": f"s3://models/{job}/final", "base_model": base, "algorithm": "rloo"}
        signed = {"manifest_sha256": "0" * 64 if number == 11 else "1" * 64}
        warehouse.insert("model_checkpoints", pl.DataFrame([{**made, **where, **signed}]))
    release = a_release(11)
    assert release.model.manifest_sha256 == "0" * 64
    Releases(warehouse)._write([release])
    found = explain(warehouse, "agent-zero-rl-v11", session_keys=[KEY])
    assert found.training is not None
    assert [found.training.job_id, *(one.training.job_id for one in found.before)] == ["job-11", "job-10", "job-1"]
    assert (found.before[1].dataset_id, found.before[1].manifest_hash) == ("job-1.r1", "dataset-hash")
    assert found.text().splitlines()[-2:] == [
        "before it: training job job-10, rloo on s3://models/job-1, dataset job-10.r1 of 0 trajectories",
        "before it: training job job-1, dpo on small, dataset job-1.r1 of 2 trajectories",
    ]


def test_what_nobody_knows_is_said_to_be_unknown(warehouse: ClickHouseWarehouse) -> None:
    with pytest.raises(Unknown, match="nothing is known of 'nothing'"):
        explain(warehouse, "nothing", session_keys=[KEY])


@pytest.mark.parametrize("name", ["chatcmpl-9-nobody-abcd", "chatcmpl-99999999999999999999999-nobody-abcd"])
def test_an_answer_of_a_model_that_nobody_has_released_was_never_given(
    warehouse: ClickHouseWarehouse, name: str
) -> None:
    with pytest.raises(Unknown, match=f"nothing is known of '{name}'"):
        explain(warehouse, name, session_keys=[KEY])


def test_the_generation_of_a_rolled_back_model_is_the_last_that_had_it(warehouse: ClickHouseWarehouse) -> None:
    state = started()
    rolled_back = phases.roll_back(state, because())
    WarehouseAudit(warehouse).add([AuditRow.of(each.encoded()) for each in (state, rolled_back)])
    assert explain(warehouse, "new", session_keys=[KEY]).generation == 2
