"""`rl-pipeline otlp-receiver` as a process: it takes spans, survives a kill, and ends when it is told to."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rl_pipeline.embedded.nats_server import NatsServer
from rl_pipeline.stores.jetstream import JetStream
from rl_pipeline_tests.collection.formats import otlp_records
from rl_pipeline_tests.collection.otlp.test_receiver import post
from rl_pipeline_tests.collection.recordings import arrived
from rl_pipeline_tests.waiting import wait_until

COMMAND = [sys.executable, "-c", "from rl_pipeline.cli import main; main()", "otlp-receiver", "--port", "0"]


@contextmanager
def receiver(home: Path, nats: NatsServer, *options: str) -> Iterator[tuple[subprocess.Popen[str], int]]:
    variables = {**os.environ, "RL_PIPELINE_HOME": str(home), "NATS_URL": nats.url}
    with subprocess.Popen([*COMMAND, *options], env=variables, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            said = re.search(r":(\d+)/v1/traces", process.stdout.readline())
            assert said is not None
            yield process, int(said[1])
        finally:
            process.kill()


def test_what_a_killed_receiver_has_answered_for_is_sent_by_the_next(
    tmp_path: Path, stream: JetStream, nats_server: NatsServer
) -> None:
    body = json.dumps(otlp_records.OTLP_TEXT).encode()
    with receiver(tmp_path, nats_server, "--settle", "1000000") as (process, port):
        assert post(port, body, Content_Type="application/json") == (200, {})
    assert arrived(stream) == []
    with receiver(tmp_path, nats_server, "--settle", "0") as (process, _):
        wait_until(lambda: arrived(stream))
        process.terminate()
        assert process.wait(120) == 0
        assert process.stdout is not None
        assert "sent 1 trajectories" in process.stdout.read()
    [sent] = arrived(stream)
    assert sent["session_id"] == "s-2"
