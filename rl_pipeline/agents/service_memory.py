"""What agents remember for good: the `MemoryManager` of the HTTP service, which all agents share."""

from collections.abc import Mapping, Sequence
from typing import Any

from rl_pipeline.agents.memory import MDPTransition
from rl_pipeline.collection.memories import MemoryClient

_LASTING = ("procedural", "episodic")
_SUCCESS = 0.5


class ServiceMemory:
    """Recalls what worked and what happened in states like this one, by whichever agent."""

    def __init__(self, client: MemoryClient, k: int = 3, memory_types: Sequence[str] = _LASTING) -> None:
        self._client = client
        self._k = k
        self._types = memory_types

    def retrieve_relevant(self, state: str) -> list[MDPTransition]:
        """See `MemoryManager`."""
        found = self._client.recall({"state": state}, k=self._k, memory_types=self._types)
        relevant = [one for one in found if one.get("relevance", 0) > 0 and isinstance(one.get("content"), dict)]
        return [made for one in relevant if (made := _transition(one, one["content"])) is not None]

    def store_episodic(self, transition: MDPTransition) -> None:
        """See `MemoryManager`."""
        content = {
            "goal": transition.state,
            "actions": [action.strip() or "nothing" for action in transition.action],
            "reward": transition.reward,
            "status": "success" if transition.reward >= _SUCCESS else "failed",
            "outcome": transition.next_state,
            "task_id": transition.task_id,
        }
        self._client.remember(transition.agent_id, "episodic", content)


def _transition(memory: Mapping[str, Any], content: Mapping[str, Any]) -> MDPTransition | None:
    actions, goal = content.get("actions"), content.get("goal")
    if not isinstance(goal, str) or not isinstance(actions, list):
        return None
    outcome, worth = str(content.get("outcome", "")), content.get("reward")
    if memory.get("memory_type") == "procedural":
        outcome = f"It worked in {content.get('successes')} of {content.get('attempts')} attempts."
        worth = content.get("success_rate")
    return MDPTransition(
        state=goal,
        action=[str(action) for action in actions],
        reward=float(worth) if isinstance(worth, int | float) else 0.0,
        next_state=outcome,
        agent_id=str(memory.get("agent_id", "")),
        task_id=str(content.get("task_id", "")),
    )
