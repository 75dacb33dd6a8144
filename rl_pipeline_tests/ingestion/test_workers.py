"""Judging in other processes: the same results in the same order, and nothing left behind."""

import psutil
import pytest

from rl_pipeline.ingestion import draining, workers
from rl_pipeline.ingestion.ledger import ledger_watermark
from rl_pipeline.redaction.policy import InvalidPolicy, RedactionPolicy
from rl_pipeline_tests.ingestion.ingesting import (
    KEY,
    OTHER_POLICY,
    STREAM,
    Ingesting,
    document,
    documents,
    reference_to,
)


def test_claims_are_fetched_wherever_they_are_judged(ingesting: Ingesting, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(draining, "_FEW_MESSAGES", 1)
    objects = ingesting.address.open()
    for number, made in enumerate(documents(4)):
        message, stored = reference_to(made, f"claims/{number}.json")
        if number != 2:
            objects.put(f"claims/{number}.json", stored if number != 3 else stored + b" ")
        ingesting.publish(message)
    report = ingesting.drain(workers=2)
    assert ingesting.verdicts() == {1: "accepted", 2: "accepted", 3: "refused", 4: "refused"}
    assert report.reasons == {"claim_missing": 1, "claim_check": 1}


def test_large_claims_are_stored_in_parts(ingesting: Ingesting, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "_PART_BYTES", 10_000)
    objects = ingesting.address.open()
    for number, made in enumerate(documents(6)):
        made["turns"][0]["observation"]["content"] = "x" * 6_000
        message, stored = reference_to(made, f"claims/{number}.json")
        objects.put(f"claims/{number}.json", stored)
        ingesting.publish(message)
    inserts: list[int] = []
    report = ingesting.drain(reached=lambda point: inserts.append(1) if point == "after_content" else None)
    assert (report.verdicts, len(inserts)) == ({"accepted": 6}, 3)
    assert ingesting.stored_sequences() == [1, 2, 3, 4, 5, 6]


def test_several_processes_store_what_one_would_in_order(ingesting: Ingesting, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(draining, "_BATCH_MESSAGES", 20)
    monkeypatch.setattr(draining, "_FEW_MESSAGES", 20)
    ingesting.publish(*documents(150))
    watermarks: list[int] = []

    def look(point: str) -> None:
        if point == "after_ledger":
            watermarks.append(ledger_watermark(ingesting.warehouse, STREAM))

    report = ingesting.drain(workers=2, reached=look)
    assert report.verdicts == {"accepted": 150}
    assert watermarks == [20, 40, 60, 80, 100, 120, 140, 150]
    before = ingesting.stored()
    columns = [name for name in before[0] if name not in {"revision", "version", "ingested_at"}]
    ingesting.drain(policy=OTHER_POLICY, workers=0)
    again = ingesting.stored()
    assert [[row[name] for name in columns] for row in again] == [[row[name] for name in columns] for row in before]


def test_no_worker_is_left_behind(ingesting: Ingesting, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(draining, "_FEW_MESSAGES", 1)
    ingesting.publish(*documents(3))
    ingesting.drain(workers=2)
    names = [" ".join(child.cmdline()) for child in psutil.Process().children(recursive=True)]
    assert not [name for name in names if "spawn_main" in name]


def test_rules_that_cannot_be_used_are_told_as_such_by_the_workers(
    ingesting: Ingesting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(draining, "_FEW_MESSAGES", 1)
    ingesting.publish(document())
    with pytest.raises(InvalidPolicy, match="there is no redaction rule absent"):
        ingesting.drain(workers=1, policy=RedactionPolicy(KEY, rules_on=frozenset({"absent"})))
