"""Runs in MassGen's own environment: its agents and its orchestrator, recorded, with a model that follows a script.

Writes traces below the directory that it is given, and what it saw as the last line of its output.
"""

# ruff: noqa: ARG002 - the signatures are MassGen's

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

from massgen.agent_config import AgentConfig
from massgen.backend.base import LLMBackend, StreamChunk
from massgen.chat_agent import SingleAgent
from massgen.orchestrator import Orchestrator
from massgen.stream_chunk import ChunkType, TextStreamChunk

from rl_pipeline.collection.massgen import RLAgentMixin, RLConfig, RLOrchestratorMixin, StoreConfig

ASKED = [{"role": "user", "content": "How many moons has Mars?"}]


class RLSingleAgent(RLAgentMixin, SingleAgent):
    pass


class RLOrchestrator(RLOrchestratorMixin, Orchestrator):
    pass


class ScriptedBackend(LLMBackend):
    """Answers each call with the next of its scripts, and the last one again."""

    def __init__(self, *scripts: list[Any]) -> None:
        super().__init__(model="scripted-1")
        self._scripts = list(scripts)

    async def stream_with_tools(
        self, messages: list[dict[str, Any]], tools: list[dict[str, Any]], **kwargs: Any
    ) -> AsyncIterator[Any]:
        script = self._scripts.pop(0) if len(self._scripts) > 1 else self._scripts[0]
        self.token_usage.input_tokens += 10
        self.token_usage.output_tokens += 4
        for chunk in script:
            yield chunk

    def get_provider_name(self) -> str:
        return "scripted"

    def extract_tool_name(self, tool_call: dict[str, Any]) -> str:
        return str(tool_call["function"]["name"])

    def extract_tool_arguments(self, tool_call: dict[str, Any]) -> Any:
        return tool_call["function"]["arguments"]

    def create_tool_result_message(self, tool_call: dict[str, Any], result: str) -> dict[str, Any]:
        return {"role": "tool", "tool_call_id": tool_call["id"], "content": result}


def called(name: str, **arguments: Any) -> list[Any]:
    function = {"name": name, "arguments": arguments}
    call = {"id": f"call_{name}", "type": "function", "function": function}
    text = f"I {name.replace('_', ' ')}."
    return [StreamChunk("content", content=text), StreamChunk("tool_calls", tool_calls=[call]), StreamChunk("done")]


def mixed() -> list[Any]:
    """Both kinds of chunks that MassGen has: with types of text and of an enumeration."""
    call = {"source": "mcp_search"}
    return [
        TextStreamChunk(type=ChunkType.REASONING, reasoning_delta="Look it up."),
        TextStreamChunk(type=ChunkType.REASONING_DONE, reasoning_text="Look it up."),
        TextStreamChunk(
            type=ChunkType.MCP_STATUS, status="mcp_tool_called", content="🔧 [MCP Tool] Calling search...", **call
        ),
        StreamChunk(
            "mcp_status", status="function_call", content='Arguments for Calling search: {"q": "moons"}', **call
        ),
        StreamChunk("mcp_status", status="function_call_output", content="Results for Calling search: two", **call),
        TextStreamChunk(type=ChunkType.MCP_STATUS, status="mcp_tool_response", content="✅ search completed", **call),
        TextStreamChunk(type=ChunkType.CONTENT, content="It has "),
        StreamChunk("content", content="two."),
        StreamChunk("done", usage={"prompt_tokens": 30, "completion_tokens": 12}),
    ]


async def chat_of(agent: Any, at_most: int = 10_000) -> list[str]:
    seen = []
    stream = agent.chat(ASKED)
    async for chunk in stream:
        kind = chunk.type
        seen.append(kind if isinstance(kind, str) else kind.value)
        if len(seen) == at_most:
            break
    await stream.aclose()
    return seen


async def main(directory: Path) -> None:
    config = RLConfig(enable_rl=True, store_config=StoreConfig(path=str(directory), disk_seconds=120))
    plain = await chat_of(SingleAgent(ScriptedBackend(mixed()), agent_id="single"))
    single = RLSingleAgent(ScriptedBackend(mixed()), agent_id="single", enable_rl=True, rl_config=config)
    recorded = await chat_of(single)
    early = RLSingleAgent(ScriptedBackend(mixed()), agent_id="early", enable_rl=True, rl_config=config)
    await chat_of(early, 2)
    answer = called("new_answer", content="# Mars\n\nTwo moons, because it caught them:\n\n- Phobos\n- Deimos")
    vote = called("vote", agent_id="agent1", reason="It is right.")
    agents = {
        name: RLSingleAgent(ScriptedBackend(*scripts, vote), agent_id=name, enable_rl=True, rl_config=config)
        for name, scripts in (("a", [answer]), ("b", []))
    }
    orchestrator = RLOrchestrator(
        agents=agents, config=AgentConfig.create_openai_config(), enable_rl=True, rl_config=config
    )
    coordinated = await chat_of(orchestrator)
    told = {
        "version": version("massgen"),
        "plain": plain,
        "recorded": recorded,
        "coordinated": coordinated,
        "events": [str(event.event_type.value) for event in orchestrator.coordination_tracker.events],
    }
    print(json.dumps(told), flush=True)  # noqa: T201 - what the test reads


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
