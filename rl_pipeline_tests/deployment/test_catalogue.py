"""Which models there are, by the real warehouse."""

from datetime import timedelta

from rl_pipeline.deployment import phases
from rl_pipeline.deployment.audit import AuditRow, WarehouseAudit
from rl_pipeline.deployment.catalogue import catalogue
from rl_pipeline.deployment.releases import Releases, RolloutPlan
from rl_pipeline.stores.clickhouse import ClickHouseWarehouse
from rl_pipeline.stores.jetstream import JetStream
from rl_pipeline.stores.jetstream_lease import JetStreamLeases
from rl_pipeline_tests.deployment.states import NOW, RAMP, VALIDATION, because, first_state

HOUR = timedelta(hours=1)


def test_models_are_listed_with_what_became_of_each_and_by_when_they_got_traffic(
    warehouse: ClickHouseWarehouse, stream: JetStream
) -> None:
    assert catalogue(warehouse, deployed_since=None, limit=10) == []
    plan = RolloutPlan(strategy="canary", steps=RAMP, bake_seconds=60, explanation="better", measured_against="old")
    released = [
        Releases(warehouse).release(
            JetStreamLeases(stream),
            training_job_id=job,
            base_model="small",
            checkpoint_path=f"s3://models/{job}/",
            manifest_sha256="0" * 64,
            plan=plan,
            validation=VALIDATION,
            needs_approval=False,
            shadow=False,
            now=NOW,
        )
        for job in ("job-1", "job-2")
    ]
    first = first_state()
    rollout = released[0].rollout(control="old", now=NOW + HOUR)
    begun = phases.start(first, released[0].model, rollout, because(at=NOW + HOUR), approved=True)
    WarehouseAudit(warehouse).add([AuditRow.of(state.encoded()) for state in (first, begun)])

    found = catalogue(warehouse, deployed_since=None, limit=10)
    assert [(each.model.model_id, each.state, each.share, each.is_serving) for each in found] == [
        ("agent-zero-rl-v2", "waiting", 0.0, False),
        ("agent-zero-rl-v1", "waiting", 0.1, False),
        ("old", "first", 0.9, True),
    ]
    assert [each.deployed_at for each in found] == [None, NOW + HOUR, NOW]
    assert found[1].validation == VALIDATION
    later = catalogue(warehouse, deployed_since=NOW + HOUR, limit=10)
    assert [each.model.model_id for each in later] == ["agent-zero-rl-v1"]
    assert len(catalogue(warehouse, deployed_since=None, limit=1)) == 1
