"""Classes with the signatures of MassGen 0.1.97, for the tests that run without it.

`test_released_massgen.py` runs the mixins with MassGen's own.
"""

# ruff: noqa: ARG002 - the signatures are MassGen's

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from rl_pipeline.collection.massgen import RLAgentMixin, RLOrchestratorMixin


class ChunkType(Enum):
    """As in `massgen.stream_chunk`."""

    CONTENT = "content"
    TOOL_CALLS = "tool_calls"
    DONE = "done"
    ERROR = "error"
    REASONING = "reasoning"
    REASONING_DONE = "reasoning_done"
    MCP_STATUS = "mcp_status"
    CUSTOM_TOOL_STATUS = "custom_tool_status"


@dataclass
class StreamChunk:
    """As in `massgen.backend.base`, the fields that matter here."""

    type: str | ChunkType
    content: str | None = None
    tool_calls: list[dict[str, Any]] | None = None
    usage: dict[str, Any] | None = None
    error: str | None = None
    source: str | None = None
    status: str | None = None
    reasoning_delta: str | None = None
    reasoning_text: str | None = None
    tool_call_id: str | None = None


@dataclass
class TokenUsage:
    """As in `massgen.token_manager`."""

    input_tokens: int = 0
    output_tokens: int = 0


@dataclass
class Backend:
    """Says what it is told to."""

    chunks: list[StreamChunk | BaseException]
    config: dict[str, Any] = field(default_factory=lambda: {"model": "gpt-4o"})
    token_usage: TokenUsage = field(default_factory=TokenUsage)
    tokens: tuple[int, int] = (0, 0)


class SingleAgent:
    """As in `massgen.chat_agent`."""

    def __init__(self, backend: Backend, agent_id: str | None = None, session_id: str | None = None) -> None:
        self.backend = backend
        self.agent_id = agent_id or "agent_0"
        self.session_id = session_id or "chat_session_1"
        self.was_closed = False

    async def chat(
        self,
        messages: list[dict[str, Any]],
        tools: list[dict[str, Any]] | None = None,
        reset_chat: bool = False,
        clear_history: bool = False,
        current_stage: Any = None,
    ) -> AsyncIterator[StreamChunk]:
        try:
            for chunk in self.backend.chunks:
                if isinstance(chunk, BaseException):
                    raise chunk
                yield chunk
        finally:
            self.was_closed = True
            self.backend.token_usage.input_tokens += self.backend.tokens[0]
            self.backend.token_usage.output_tokens += self.backend.tokens[1]


class CoordinationTracker:
    """As in `massgen.coordination_tracker`."""

    def __init__(self) -> None:
        self.agent_rounds: dict[str, int] = {}
        self.calls: list[str] = []

    def get_agent_round(self, agent_id: str) -> int:
        return self.agent_rounds.get(agent_id, 0)

    def add_agent_answer(self, agent_id: str, answer: str, snapshot_timestamp: str | None = None) -> None:
        self.calls.append("answer")

    def add_agent_vote(self, agent_id: str, vote_data: dict[str, Any], snapshot_timestamp: str | None = None) -> None:
        if "agent_id" not in vote_data:
            raise KeyError("agent_id")
        self.calls.append("vote")

    def track_restart_signal(self, triggering_agent: str, agents_restarted: list[str]) -> None:
        self.calls.append("restart")
        for agent in agents_restarted:
            self.agent_rounds[agent] = self.get_agent_round(agent) + 1

    def set_final_agent(self, agent_id: str, vote_summary: str, all_answers: dict[str, str]) -> None:
        self.calls.append("final agent")

    def set_final_answer(self, agent_id: str, final_answer: str, snapshot_timestamp: str | None = None) -> None:
        self.calls.append("final answer")


class Orchestrator:
    """As in `massgen.orchestrator`; what it does when it chats is given."""

    def __init__(
        self,
        agents: dict[str, Any],
        orchestrator_id: str = "orchestrator",
        session_id: str | None = None,
        script: Callable[["Orchestrator"], AsyncIterator[StreamChunk]] | None = None,
    ) -> None:
        self.agents = agents
        self.orchestrator_id = orchestrator_id
        self.session_id = session_id or "chat_session_2"
        self.current_attempt = 0
        self.script = script
        self.coordination_tracker = CoordinationTracker()

    async def chat(
        self,
        messages: list[dict[str, Any]],
        tools: list[dict[str, Any]] | None = None,
        reset_chat: bool = False,
        clear_history: bool = False,
    ) -> AsyncIterator[StreamChunk]:
        assert self.script is not None
        async for chunk in self.script(self):
            yield chunk


class RLSingleAgent(RLAgentMixin, SingleAgent):
    pass


class RLOrchestrator(RLOrchestratorMixin, Orchestrator):
    pass
