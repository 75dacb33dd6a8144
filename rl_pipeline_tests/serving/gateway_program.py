"""A gateway as a process of its own: `python -m rl_pipeline_tests.serving.gateway_program '<JSON>'`.

It says `listening <port>`. A checkpoint's path is a directory here; traffic is changed in the simplest way there is.
"""

import asyncio
import json
import logging
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import uvloop

from rl_pipeline.deployment.state import Change, DesiredState
from rl_pipeline.redaction.policy import RedactionKey
from rl_pipeline.serving.configuration import GatewayConfiguration, Nats
from rl_pipeline.serving.running import run_gateway
from rl_pipeline.stores.jetstream import JetStream
from rl_pipeline.stores.jetstream_desired_state import JetStreamDesiredStates


def configuration(given: dict[str, Any]) -> GatewayConfiguration:
    """From what the test says."""
    nats_url = given.pop("nats_url", None)

    def open_nats() -> Nats:
        stream = JetStream.connect(nats_url, connect_seconds=1, patience_seconds=1)
        return Nats(stream, JetStreamDesiredStates(stream), stream.close)

    async def change_traffic(model_id: str, percentage: float) -> DesiredState:
        return await asyncio.to_thread(_swap, open_nats, model_id, percentage)

    return GatewayConfiguration(
        data_directory=Path(given.pop("data_directory")),
        session_key=RedactionKey.parse(given.pop("session_key")),
        fetch=lambda model: Path(str(model.checkpoint_path)),
        open_nats=open_nats if nats_url else None,
        change_traffic=change_traffic if nats_url else None,
        on_listening=lambda port: print(f"listening {port}", flush=True),  # noqa: T201  # the test reads it
        **given,
    )


def _swap(open_nats: Any, model_id: str, percentage: float) -> DesiredState:
    nats = open_nats()
    try:
        stored = nats.states.read()
        before = DesiredState.decoded(stored.data)
        weights = {model_id: percentage / 100, before.serving: 1 - percentage / 100}
        if model_id == before.serving:
            weights = {before.serving: 1.0}
        change = Change(event="ramped", model_id=model_id, reason="asked for", by="test", at=datetime.now(UTC))
        state = before.model_copy(
            update={
                "generation": before.generation + 1,
                "weights": weights,
                "change": change,
            }
        )
        assert nats.states.swap(state.encoded(), stored.revision)
        return state
    finally:
        nats.close()


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO)
    uvloop.run(run_gateway(configuration(json.loads(sys.argv[1]))))
