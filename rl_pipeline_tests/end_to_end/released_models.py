"""What tests ask of the gateway and the rollouts of a running stack."""

import json
import urllib.request
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from uuid import uuid4

from rl_pipeline.contracts import ModelDeployed, parse_message
from rl_pipeline.deployment import record
from rl_pipeline.deployment.state import DesiredState
from rl_pipeline.opening import open_stream, open_traffic
from rl_pipeline.stores.jetstream_desired_state import JetStreamDesiredStates
from rl_pipeline_tests.end_to_end.training_stack import TrainingStack

QUESTION = "Answer with a command: get THING or craft THING.\nGoal: plank. Have nothing"
FAST_ROLLOUTS = {
    "CANARY_RAMP_HOURS": "0.003",
    "CANARY_STEP_SAMPLES": "5,5,5",
    "CANARY_BAKE_HOURS": "0.001",
    "VALIDATION_ITEMS": "80",
    "GATEWAY_SESSION_IDLE_SECONDS": "1",
}


class Releases:
    """A running stack, and what is asked of its gateway."""

    def __init__(self, training: TrainingStack) -> None:
        self.training = training
        self.gateway = training.stack.record.urls["gateway"]

    def ask(self, session: str | None = None) -> dict[str, Any]:
        """One answer of the gateway, in a session of its own unless one is named."""
        body = json.dumps({"model": "any", "max_tokens": 8, "messages": [{"role": "user", "content": QUESTION}]})
        headers = {"Content-Type": "application/json", "X-Session-Id": session or uuid4().hex}
        request = urllib.request.Request(f"{self.gateway}/v1/chat/completions", body.encode(), headers)
        with urllib.request.urlopen(request, timeout=60) as answer:
            found: dict[str, Any] = json.loads(answer.read())
            return found

    def ask_many(self, count: int) -> Counter[str]:
        """How often each model answered, over sessions of their own."""
        with ThreadPoolExecutor(8) as pool:
            return Counter(answer["model"] for answer in pool.map(lambda _: self.ask(), range(count)))

    def state(self) -> DesiredState:
        with open_stream(self.training.settings) as stream:
            recorded = record.read(JetStreamDesiredStates(stream))
        assert recorded is not None
        return recorded.state

    def weights(self) -> dict[str, float]:
        """How the gateway routes."""
        [standing] = open_traffic(self.training.settings).standings()
        return dict(standing.weights)

    def events(self) -> list[tuple[str, str]]:
        """What was announced: the event and the model, in order."""
        with open_stream(self.training.settings) as stream:
            last = stream.state("RL_MODELS").last_sequence
            stored = [message for batch in stream.read("RL_MODELS", 1, last, 100) for message in batch]
        said = [parse_message(one.subject, one.data) for one in stored]
        return [(one.metadata.event, one.model_info.model_id) for one in said if isinstance(one, ModelDeployed)]
