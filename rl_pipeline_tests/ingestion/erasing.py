"""The stores that an erasure goes through, for tests that erase."""

import json
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import polars as pl

from rl_pipeline.collection.publishing import outgoing_message
from rl_pipeline.contracts import CLAIMED_LIMITS, parse_message
from rl_pipeline.ingestion.archive import archive_days, archived_objects
from rl_pipeline.ingestion.erasure import ErasureReport, erase_user
from rl_pipeline.ingestion.ledger import ledger_watermark
from rl_pipeline.ingestion.observation import observe
from rl_pipeline.ingestion.reports import DrainReport
from rl_pipeline.redaction.policy import RedactionKey, RedactionPolicy
from rl_pipeline.redaction.rule import packaged_rules
from rl_pipeline.stores.clickhouse import ClickHouseWarehouse
from rl_pipeline.stores.disk import DiskObjects
from rl_pipeline.stores.jetstream import JetStream
from rl_pipeline.stores.sqlite_memories import SqliteMemories
from rl_pipeline_tests.ingestion.ingesting import KEY, STREAM, SUBJECT, Ingesting, document

ERIN = "erin-7"
FAYE = "erin-77"  # whose id begins with Erin's
FEEDBACK = "agent.rl.feedback.v1"
# All but one, to be quick: who a message belongs to is not the rules' matter.
RULES_OFF = frozenset(rule.id for rule in packaged_rules()[1:])
SESSION_KEY = RedactionKey("v1", b"a key of gateways, for tests alone")
SOME_DIGITS = "0123456789abcdef"


@dataclass
class Erasing:
    """The stores that an erasure goes through, and the erasure with them."""

    ingesting: Ingesting
    archive: DiskObjects
    memories: SqliteMemories = field(init=False)

    def __post_init__(self) -> None:
        self.memories = SqliteMemories(self.archive.root.parent / "memory" / "memories.sqlite")

    @property
    def stream(self) -> JetStream:
        return self.ingesting.stream

    @property
    def warehouse(self) -> ClickHouseWarehouse:
        return self.ingesting.warehouse

    @property
    def claims(self) -> DiskObjects:
        return DiskObjects(self.ingesting.raw)

    def erase(self, user: str = ERIN, **options: Any) -> ErasureReport:
        given: dict[str, Any] = {"messages": self.stream, "now": datetime.now(UTC), "opt_out": False, "keys": [KEY]}
        return erase_user(
            user,
            warehouse=self.warehouse,
            raw_objects=self.claims,
            archive_objects=self.archive,
            memories=self.memories,
            session_keys=[SESSION_KEY],
            trajectory_stream=STREAM,
            feedback_stream="RL_FEEDBACK",
            serving_stream="RL_SERVING",
            **given | options,
        )

    def drain(self, key: RedactionKey = KEY, **options: Any) -> DrainReport:
        return self.ingesting.drain(policy=RedactionPolicy(key, rules_off=RULES_OFF), **options)

    def publish_claim(self, user: str, seed: int) -> None:
        large = document(seed, user_id=user)
        large["turns"][0]["result"]["output"] = SOME_DIGITS * 40_000
        trajectory = parse_message(SUBJECT, json.dumps(large).encode(), CLAIMED_LIMITS)
        self.ingesting.publish(outgoing_message(trajectory, lambda: self.claims).data)

    def publish_feedback(self, *users: str | None) -> None:
        for number, user in enumerate(users):
            given = {
                "feedback_id": f"feedback-{number}",
                "trajectory_id": document()["trajectory_id"],
                "timestamp": "2026-01-01T00:00:00Z",
                "kind": "thumbs_up",
            }
            content = given | ({"user_id": user} if user else {})
            self.stream.publish(FEEDBACK, json.dumps(content).encode(), f"feedback-{number}")

    def archive_now(self) -> None:
        archive_days(self.warehouse, self.archive, datetime.now(UTC))

    def messages(self, stream: str = STREAM) -> dict[int, bytes]:
        last = self.stream.state(stream).last_sequence
        return {found.sequence: found.data for batch in self.stream.read(stream, 1, last, 100) for found in batch}

    def archived(self) -> list[int]:
        keys = [key for _, key in archived_objects(self.archive)]
        return sorted(number for key in keys for number in pl.read_parquet(self.archive.root / key)["sequence"])

    def assert_no_gap(self) -> None:
        last = self.stream.state(STREAM).last_sequence
        assert ledger_watermark(self.warehouse, STREAM) == last
        seen = observe(self.stream, STREAM, ingested_up_to=last, now=datetime.now(UTC))
        assert (seen.lag, seen.overrun) == (0, 0)
