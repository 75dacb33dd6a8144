"""Memories for an agent, by the HTTP service: asked for before it acts, and told what came of it.

It needs Python alone, takes no longer than it is given, and never breaks the agent: where the service is away or
refuses, an agent remembers nothing, and the log says why once for each kind of trouble.
"""

import json
import logging
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

_log = logging.getLogger("rl_pipeline.collection")


@dataclass(slots=True)
class MemoryClient:
    """The memories behind the service at `url`. Threads may share it."""

    url: str
    key: str = field(repr=False)
    """A key with the scope `memory`."""
    patience_seconds: float = 2.0
    _told: set[str] = field(default_factory=set, init=False, repr=False)

    def recall(
        self,
        context: Mapping[str, Any] | str,
        *,
        k: int = 5,
        memory_types: Sequence[str] = (),
        agent_id: str | None = None,
        task_type: str | None = None,
    ) -> list[dict[str, Any]]:
        """The memories that may help, the best first; none where the service gives none."""
        body: dict[str, Any] = {"context": {"query": context} if isinstance(context, str) else dict(context), "k": k}
        chosen = {"memory_types": list(memory_types), "agent_id": agent_id, "task_type": task_type}
        answer = self._post("retrieve", body | {name: value for name, value in chosen.items() if value})
        found = answer.get("memories")
        return [each for each in found if isinstance(each, dict)] if isinstance(found, list) else []

    def remember(
        self,
        agent_id: str,
        memory_type: str,
        content: Mapping[str, Any],
        *,
        importance: float | None = None,
        key: str | None = None,
    ) -> str | None:
        """Have it remembered; its id, or None where the service does not take it. With a `key` it is kept once."""
        body: dict[str, Any] = {"agent_id": agent_id, "memory_type": memory_type, "content": dict(content)}
        body |= {"importance": importance} if importance is not None else {}
        answer = self._post("store", body, {"Idempotency-Key": key or str(uuid4())})
        return str(answer["id"]) if "id" in answer else None

    def _post(self, verb: str, body: Mapping[str, Any], more: Mapping[str, str] | None = None) -> dict[str, Any]:
        headers = {"Content-Type": "application/json", "X-API-Key": self.key, **(more or {})}
        address = f"{self.url.rstrip('/')}/api/v1/memory/{verb}"
        try:
            request = urllib.request.Request(address, json.dumps(body).encode(), headers)  # noqa: S310 - the service's URL
            with urllib.request.urlopen(request, timeout=self.patience_seconds) as answer:  # noqa: S310
                found = json.load(answer)
        except urllib.error.HTTPError as refused:
            with refused:
                self._tell(verb, f"answered {refused.code}")
            return {}
        except (OSError, ValueError) as away:
            self._tell(verb, f"gave no answer ({type(away).__name__})")
            return {}
        return found if isinstance(found, dict) else {}

    def _tell(self, verb: str, trouble: str) -> None:
        if trouble not in self._told:
            self._told.add(trouble)
            _log.warning("memory/%s %s: this agent remembers nothing meanwhile", verb, trouble)
