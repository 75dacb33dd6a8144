"""Public trajectories of other people's agents as documents of ours, in the ways that publishers record them."""

import json
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any
from uuid import NAMESPACE_URL, uuid5

from rl_pipeline_tests.rewards.documents import call, document, says, turn

Document = dict[str, Any]


def real_documents(test_data: Path) -> Iterator[Document]:
    """All of them, with ids of their own; `task_status` says how each ended."""
    directory = test_data / "trajectories"
    for maker, pattern in (
        (_tau_bench, "tau-bench/*.json"),
        (_fireact, "fireact/*.json"),
        (_intercode, "intercode/*.json"),
        (_swe_agent, "swe-agent/*.traj"),
    ):
        for file in sorted(directory.glob(pattern)):
            for number, one in enumerate(maker(json.loads(file.read_text()), file.stem)):
                yield one | {"trajectory_id": str(uuid5(NAMESPACE_URL, f"{file.name}/{number}"))}


def _tau_bench(runs: Any, name: str) -> Iterator[Document]:
    """Function calls: the message is the text beside the call, which it does not tell."""
    for run in runs:
        turns: list[Any] = []
        messages = [message for message in run["traj"] if message["role"] != "system"]
        for before, message in pairwise(messages):
            if message["role"] != "assistant":
                continue
            shown = {
                "observed": "user_message" if before["role"] == "user" else "tool_result",
                "content": before["content"] or "",
            }
            for asked in message.get("tool_calls") or ():
                function = asked["function"]
                made = call(function["name"], json.loads(function["arguments"]), **shown)
                made["action"]["raw_response"] = message["content"]
                turns.append(made)
            if not message.get("tool_calls"):
                turns.append(says(message["content"], **shown))
        yield document(turns, {"task_id": f"{name}-{run['task_id']}", "task_status": _status(run["reward"])})


def _fireact(runs: Any, name: str) -> Iterator[Document]:
    """Thought and action in one text; what came back is told as the user's next message."""
    for key, run in runs.items():
        turns = []
        for before, message in pairwise(run["traj"]):
            if message["role"] == "assistant":
                verb, _, rest = message["content"].rpartition("Action: ")[2].partition("[")
                action = {"type": "tool_call", "tool_name": verb, "tool_args": {"input": rest.rstrip("]")}}
                turns.append(
                    turn(
                        action | {"raw_response": message["content"]},
                        observed="user_message",
                        content=before["content"],
                    )
                )
        yield document(turns, {"task_id": f"{name}-{key}", "task_status": _status(run["reward"])})


def _intercode(runs: Any, name: str) -> Iterator[Document]:
    """The request is told once; what came of an action is its result alone."""
    for key, run in runs.items():
        history = run["turn_history"]
        turns = [
            call("execute", {"code": action}, output=shown, observed="user_message", content=run["query"])
            for action, shown in zip(history["actions"], history["observations"], strict=False)
        ]
        task = {"task_id": f"{name}-{key}", "instructions": run["query"]}
        yield document(turns, task | {"task_status": _status(run["summary"]["max_reward"] == 1)})


def _swe_agent(run: Any, name: str) -> Iterator[Document]:
    """Thoughts, commands and observations of a shell, with objects for content."""
    turns = []
    shown: Any = {"parts": [{"type": "text", "text": message["content"]} for message in run["history"][:2]]}
    for step in run.get("trajectory", ()):
        turns.append(
            turn(
                {"type": "tool_call", "tool_name": "bash", "tool_args": {"command": step["action"]}}
                | {"raw_response": step["response"]},
                output=step["observation"],
                content=shown,
                observed="tool_result" if turns else "user_message",
            )
        )
        shown = step["observation"]
    yield document(turns, {"instructions": name})


def _status(success: object) -> str:
    return "success" if success else "failed"
