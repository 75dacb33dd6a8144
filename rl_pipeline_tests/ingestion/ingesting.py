"""A stream, a warehouse and the rules between them, for tests that ingest."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import Any

from rl_pipeline.collection.samples import sample_trajectories
from rl_pipeline.contracts import TrajectoryReference, serialize, validate_trajectory
from rl_pipeline.ingestion.draining import DrainReport, Replayed, drain, replay
from rl_pipeline.redaction.policy import RedactionKey, RedactionPolicy
from rl_pipeline.stores.clickhouse import ClickHouseWarehouse
from rl_pipeline.stores.jetstream import JetStream
from rl_pipeline.stores.object_addresses import ObjectsAddress
from rl_pipeline.stores.stream import OutgoingMessage

STREAM = "RL_TRAJECTORIES"
SUBJECT = "agent.rl.trajectory.v1"
NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
KEY = RedactionKey.parse("v1:a key for tests, of enough characters")
OLD_KEY = RedactionKey.parse("v0:an older key for tests, long enough too")
POLICY = RedactionPolicy(KEY)
OTHER_POLICY = RedactionPolicy(KEY, allowed=frozenset({"nothing that occurs"}))
SECRET = "AKIAZQ3DRSTUVWXY2345"  # of the form of an access key, and nobody's


def documents(count: int, seed: int = 1) -> list[dict[str, Any]]:
    """Trajectories as JSON objects, to be changed and published."""
    made = sample_trajectories(count, now=NOW, randomness=Random(seed))
    return [json.loads(serialize(trajectory)) for trajectory in made]


def document(seed: int = 1, **task: Any) -> dict[str, Any]:
    """One trajectory with more in its task's context."""
    (made,) = documents(1, seed)
    made["task_context"] |= task
    return made


def reference_to(made: dict[str, Any], key: str) -> tuple[bytes, bytes]:
    """The message that claims a trajectory, and the object that it claims."""
    trajectory = validate_trajectory(made)
    stored = serialize(trajectory)
    return serialize(TrajectoryReference.of(trajectory, key, stored)), stored


@dataclass
class Ingesting:
    """What the tests ingest with."""

    stream: JetStream
    warehouse: ClickHouseWarehouse
    raw: Path

    @property
    def address(self) -> ObjectsAddress:
        return ObjectsAddress(str(self.raw))

    def publish(self, *contents: Mapping[str, Any] | bytes, headers: Mapping[str, str] | None = None) -> None:
        """Publish each under an id of its own, whatever it is."""
        last = self.stream.state(STREAM).last_sequence
        self.stream.publish_many(
            OutgoingMessage(
                SUBJECT,
                content if isinstance(content, bytes) else json.dumps(content).encode(),
                f"message-{number}",
                headers or {},
            )
            for number, content in enumerate(contents, start=last + 1)
        )

    def drain(self, first: int = 1, last: int | None = None, **options: Any) -> DrainReport:
        """Drain a range, by default all there is."""
        given = {"policy": POLICY, "open_raw_objects": self.address.open, "clock": lambda: NOW} | options
        end = self.stream.state(STREAM).last_sequence if last is None else last
        return drain(self.stream, self.warehouse, stream=STREAM, first=first, last=end, **given)

    def replay(self, sequences: Iterable[int], **options: Any) -> Replayed:
        """Judge refused sequences again."""
        given = {"policy": POLICY, "open_raw_objects": self.address.open} | options
        return replay(self.stream, self.warehouse, stream=STREAM, sequences=sequences, **given)

    def verdicts(self) -> dict[int, str]:
        """What the ledger says, by sequence."""
        found = self.warehouse.query("SELECT sequence, verdict FROM trajectory_ledger FINAL ORDER BY sequence")
        return dict(found.iter_rows())

    def ledger(self, sequence: int) -> dict[str, Any]:
        """The ledger's row of a sequence."""
        sql = "SELECT * FROM trajectory_ledger FINAL WHERE sequence = {sequence:UInt64}"
        return self.warehouse.query(sql, {"sequence": sequence}).row(0, named=True)

    def stored(self) -> list[dict[str, Any]]:
        """The trajectories, in the order of the stream."""
        return self.warehouse.query("SELECT * FROM trajectories FINAL ORDER BY sequence").to_dicts()

    def stored_sequences(self) -> list[int]:
        """Which sequences have content."""
        return [row["sequence"] for row in self.stored()]

    def letters(self) -> Sequence[dict[str, Any]]:
        """The dead letters, as they lie in their stream."""
        state = self.stream.state("RL_DLQ")
        batches = self.stream.read("RL_DLQ", 1, state.last_sequence, 500)
        return [json.loads(letter.data) for batch in batches for letter in batch]
