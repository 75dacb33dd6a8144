"""Not one byte of a secret leaves the stream: not into the warehouse, the dead letters, Dagster's storage or a log."""

import json
import shutil
from collections.abc import Callable, Iterable
from contextlib import closing
from pathlib import Path
from random import Random

import pytest

from rl_pipeline.stores.clickhouse import ClickHouseWarehouse
from rl_pipeline.stores.jetstream import JetStream
from rl_pipeline.stores.stream import OutgoingMessage
from rl_pipeline_tests.end_to_end.planted_secrets import planted_trajectories
from rl_pipeline_tests.end_to_end.running_stack import RunningStack
from rl_pipeline_tests.end_to_end.stored_bytes import stored_bytes
from rl_pipeline_tests.waiting import wait_until

MARKER = "quincunx-of-marmalade"
TRAJECTORIES = 500
PER_TRAJECTORY = 2
REFUSED_EVERY = 5
SUBJECT = "agent.rl.trajectory.v1"
DONE = "SELECT countIf(verdict = 'accepted') AS a, countIf(verdict = 'refused') AS r FROM trajectory_ledger FINAL"


def planted_messages() -> tuple[list[OutgoingMessage], list[str]]:
    """Most are trajectories; every fifth is broken in one of several ways, and refused."""
    messages, secrets = [], []
    made = planted_trajectories(TRAJECTORIES, PER_TRAJECTORY, MARKER, Random(20260101))
    for number, (tree, values) in enumerate(made):
        secrets += values
        way, rest = divmod(number, REFUSED_EVERY)
        data = json.dumps(tree).encode() if rest else broken(tree, way)
        # A publisher may write anything into its headers.
        headers = {"Publisher": values[0] if values[0].isprintable() else "agent"}
        messages.append(OutgoingMessage(SUBJECT, data, tree["trajectory_id"], headers))
    return messages, secrets


def broken(tree: dict[str, object], way: int) -> bytes:
    whole = json.dumps(tree)
    return [
        whole[: len(whole) - 40].encode(),  # cut off after everything that was planted
        whole[:-1].encode() + b', "extra": 1}',
        whole.replace('"turn_id": 1,', '"turn_id": NaN,', 1).encode(),
        whole[:-1].encode() + b', "agent_id": "twice"}',
        json.dumps({"wrapped": whole}).encode(),
        whole.encode("utf-16"),
    ][way % 6]


def found_in(places: Iterable[tuple[Path, bytes]], values: list[str]) -> dict[str, set[str]]:
    """Which of the values are found in which files."""
    found: dict[str, set[str]] = {}
    # As they are, as JSON writes them, and letter by letter, as a text in another encoding reads.
    written = {
        value: {value.encode(), json.dumps(value)[1:-1].encode(), " ".join(value).encode(), value.encode("utf-16-le")}
        for value in values
    }
    for path, data in places:
        for value, forms in written.items():
            if any(form in data for form in forms):
                found.setdefault(value, set()).add(path.name)
    return found


@pytest.mark.soak
def test_no_planted_secret_is_found_in_anything_that_was_written(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    messages, secrets = planted_messages()
    stack = RunningStack(tmp_path)
    try:
        stack.wait_for_line("The UI is at")
        with JetStream.connect(stack.record.urls["nats"]) as stream:
            stream.publish_many(messages)
        refused = len(range(0, TRAJECTORIES, REFUSED_EVERY))
        with closing(ClickHouseWarehouse.connect(stack.record.urls["clickhouse"], "rl_pipeline")) as warehouse:
            wait_until(lambda: warehouse.query(DONE).row(0) == (TRAJECTORIES - refused, refused), "all is ingested")
        wait_until(lambda: last_run(stack) == "SUCCESS", "the run has ended")
        assert stack.interrupt() == 0
    finally:
        stack.end()
    # A secret that the scan cannot see proves nothing: in the stream, where it may be, it must be found.
    raw = list(stored_bytes(tmp_path / "nats"))
    assert len(found_in(raw, secrets)) > 0.8 * len(secrets)
    written = list(stored_bytes(tmp_path, without=("/RL_TRAJECTORIES/",)))
    assert {"document.bin", "data.bin"} & found_in(written, [MARKER])[MARKER], "the columns were decompressed"
    assert any("/RL_DLQ/" in path.as_posix() for path, _ in written)
    assert any(path.suffix == ".db" for path, _ in written), "Dagster's storage"
    assert found_in(written, secrets) == {}
    record_property("secrets", len(secrets))
    record_property("files", len({path for path, _ in written}))
    record_property("megabytes", sum(len(data) for _, data in written) // 10**6)
    shutil.rmtree(tmp_path)


def last_run(stack: RunningStack) -> str | None:
    runs = stack.graphql("{ runsOrError(limit: 1) { ... on Runs { results { status } } } }")["runsOrError"]["results"]
    return runs[0]["status"] if runs else None
