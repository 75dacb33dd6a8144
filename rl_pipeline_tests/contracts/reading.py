"""The subjects by name, a whole example of each, and what happens when a changed one is read."""

import json
from typing import Any

import pytest

from rl_pipeline.contracts import ContractError, parse_message
from rl_pipeline_tests.contracts.documents import examples

TRAJECTORY = "agent.rl.trajectory.v1"
REWARD = "agent.rl.reward.v1"
REQUEST = "agent.rl.training.request.v1"
STATUS = "agent.rl.training.status.v1"
DEPLOYED = "agent.rl.model.deployed.v1"
FEEDBACK = "agent.rl.feedback.v1"
CANCEL = "agent.rl.training.cancel.v1"

EXAMPLES = {subject: example for subject, example in reversed(examples()) if "claim_check" not in example}


def read(subject: str, tree: Any) -> Any:
    return parse_message(subject, json.dumps(tree).encode())


def refusal(subject: str, tree: Any) -> tuple[str, str, str]:
    with pytest.raises(ContractError) as caught:
        read(subject, tree)
    return caught.value.limit, caught.value.path, caught.value.value_type
