"""Agent Zero 0.9.x: its few extension points, told to the recording as the events of 1.x.

What enters the history passes one point, `hist_add_before`, once it is masked; what it is shows in its content. Nothing
says that a chat was stopped: that shows when a task is given to an agent which is at one, or when nothing happens for
long.
"""

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from rl_pipeline.collection.agent_zero import hooks

CONFIG_FILE = "rl_pipeline.json"
"""In Agent Zero's directory: 0.9.x keeps no settings for others."""
POINTS = {
    "agent_init": "agent_began",
    "monologue_start": "monologue_began",
    "message_loop_start": "model_chosen",
    "hist_add_before": "",
    "monologue_end": "monologue_left",
}
"""What of `AgentZeroRecording` a point calls; of a message, its content decides."""
_MESSAGES = {
    "tool_result": "tool_returned",
    "system_warning": "warned",
    "user_intervention": "user_said",
    "user_message": "task_given",
}


def tell(point: str, agent: Any, given: Mapping[str, Any], agent_zero: Path) -> None:
    """Something happened. Does not raise."""

    def read_config(_plugin: str) -> Mapping[str, Any] | None:
        file = agent_zero / CONFIG_FILE
        config: Mapping[str, Any] | None = json.loads(file.read_text()) if file.exists() else None
        return config

    event = POINTS[point]
    data: dict[str, Any] = {"exception": sys.exc_info()[1]}  # what ends a monologue is being raised meanwhile
    if point == "hist_add_before":
        content = given["content_data"]["content"]
        event, data = _event_of(content, is_answer=bool(given.get("ai"))), {"result": SimpleNamespace(content=content)}
    if event:
        hooks.tell(event, agent, data, read_config)
    if point == "monologue_start":
        hooks.tell("minute_passed", agent, None, read_config)


def _event_of(content: Any, *, is_answer: bool) -> str:
    if is_answer:
        return "agent_said"
    return next((event for name, event in _MESSAGES.items() if isinstance(content, dict) and name in content), "")
