"""The examples that an agent's developer reads do what the text beside them says."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from rl_pipeline.embedded.nats_server import NatsServer
from rl_pipeline.stores.jetstream import JetStream
from rl_pipeline_tests.collection.recordings import arrived

PROJECT = Path(__file__).parents[2]
SERVER = "nats://127.0.0.1:4222"


@pytest.mark.parametrize(
    ("page", "expected"),
    [
        ("docs/collection.md", {"my-agent": ("success", ["tool_call", "response"]), "helper": (None, ["response"])}),
        ("README.md", {"my-agent": ("success", ["response"])}),
    ],
)
def test_the_example_records_what_it_shows(
    page: str,
    expected: dict[str, tuple[str | None, list[str]]],
    outbox_directory: Path,
    stream: JetStream,
    nats_server: NatsServer,
) -> None:
    example, *_ = re.findall(r"```python\n(.*?)```", (PROJECT / page).read_text(), re.DOTALL)
    assert SERVER in example
    patient = f'"{nats_server.url}", disk_seconds=60, exit_seconds=60'
    program = [sys.executable, "-c", example.replace(f'"{SERVER}"', patient)]
    outcome = subprocess.run(program, cwd=outbox_directory.parent, capture_output=True, text=True, check=False)
    assert (outcome.returncode, outcome.stderr) == (0, "")
    sent = {
        one["agent_id"]: (one["task_context"].get("task_status"), [turn["action"]["type"] for turn in one["turns"]])
        for one in arrived(stream)
    }
    assert sent == expected
