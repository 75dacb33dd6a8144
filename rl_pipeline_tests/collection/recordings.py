"""What the tests of the recorder share: what arrived, and outboxes that need not compile the rules again."""

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rl_pipeline.collection import Outbox
from rl_pipeline.collection.outbox.redaction import OutboxRedaction
from rl_pipeline.stores.jetstream import JetStream

STREAM = "RL_TRAJECTORIES"
SECRET = "ghp_q1W2e3R4t5Y6u7I8o9P0a1S2d3F4g5H6j7K8"
NOWHERE = "nats://127.0.0.1:1"
"""Where no server answers."""

OpenOutbox = Callable[..., Outbox]


@pytest.fixture(scope="session")
def compiled_rules(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the rules as an outbox keeps them: compiling takes seconds."""
    directory = tmp_path_factory.mktemp("rules")
    OutboxRedaction(directory, None).redactor()
    return directory


@pytest.fixture
def outbox_directory(tmp_path: Path, compiled_rules: Path) -> Path:
    """The directory of an outbox in which nothing lies yet."""
    directory = tmp_path / "outbox"
    shutil.copytree(compiled_rules, directory)
    return directory


@pytest.fixture
def open_outbox(outbox_directory: Path) -> Iterator[OpenOutbox]:
    """Opens outboxes, which are closed at the end."""
    opened: list[Outbox] = []

    def open_one(url: str = NOWHERE, **options: Any) -> Outbox:
        opened.append(Outbox(**{"directory": outbox_directory, "nats_url": url, "disk_seconds": 60, **options}))
        return opened[-1]

    yield open_one
    for outbox in opened:
        outbox.close(0)


def arrived(stream: JetStream, name: str = STREAM) -> list[dict[str, Any]]:
    """The messages of a stream, in its order; if no other is named, the trajectories."""
    last = stream.state(name).last_sequence
    return [json.loads(message.data) for batch in stream.read(name, 1, last, 500) for message in batch]


def sent_by(outbox: Outbox, stream: JetStream) -> list[dict[str, Any]]:
    """The trajectories in the stream once the outbox has sent everything."""
    assert outbox.wait_until_sent(120), outbox.counts
    return arrived(stream)


def journals(directory: Path) -> list[Path]:
    """The trajectories that lie in an outbox."""
    return sorted(directory.glob("*.jsonl"))
