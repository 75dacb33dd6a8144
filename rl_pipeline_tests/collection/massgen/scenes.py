"""What the tests of MassGen's mixins have in common: what agents say, and where it is kept."""

from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

from rl_pipeline.collection.massgen import LightningStore, RLConfig, StoreConfig, Trace
from rl_pipeline_tests.collection.massgen.stand_ins import Orchestrator, StreamChunk

ASKED = [{"role": "user", "content": "How many moons has Mars?"}]
ANSWER = "# Mars\n\nIt has two moons, because it caught them: for example Phobos, 22 km wide.\n\n- Phobos\n- Deimos"


def chunks(kind: Any) -> list[StreamChunk]:
    """A thought, a word, a tool that works, one that fails, an answer; `kind` makes the type of a chunk from text."""
    call = {"source": "mcp_search", "tool_call_id": "c1"}
    broken = {"source": "custom_measure", "tool_call_id": "c2"}
    return [
        StreamChunk(kind("reasoning"), reasoning_delta="I loo"),
        StreamChunk(kind("reasoning"), reasoning_delta="k it up."),
        StreamChunk(kind("reasoning_done")),
        StreamChunk(kind("content"), content="Let me "),
        StreamChunk(kind("content"), content="look."),
        StreamChunk(kind("mcp_status"), status="mcp_tool_called", content="🔧 [MCP Tool] Calling search...", **call),
        StreamChunk(
            kind("mcp_status"), status="function_call", content='Arguments for Calling search: {"q": "moons"}', **call
        ),
        StreamChunk(
            kind("mcp_status"), status="function_call_output", content="Results for Calling search: two\nmoons", **call
        ),
        StreamChunk(kind("mcp_status"), status="mcp_tool_response", content="✅ [MCP Tool] search completed", **call),
        StreamChunk(kind("custom_tool_status"), status="custom_tool_called", content="🔧 Calling measure...", **broken),
        StreamChunk(kind("custom_tool_status"), status="custom_tool_error", content="❌ no ruler", **broken),
        StreamChunk(kind("content"), content=ANSWER),
        StreamChunk(kind("done"), usage={"prompt_tokens": 30, "completion_tokens": 12}),
    ]


def config(directory: Path, **more: Any) -> RLConfig:
    return RLConfig(enable_rl=True, store_config=local(directory), **more)


def local(directory: Path) -> StoreConfig:
    """A store for whose disk is waited as long as a busy machine needs."""
    return StoreConfig(type="local", path=str(directory), disk_seconds=120)


async def read(stream: AsyncIterator[Any], at_most: int = 1000) -> list[Any]:
    """The chunks, of which the reader takes no more than it wants."""
    taken = []
    async with aclosing(stream) as opened:
        async for chunk in opened:
            taken.append(chunk)
            if len(taken) == at_most:
                break
    return taken


def kinds(trace: Trace) -> list[str]:
    return [span.span_type for span in trace.spans]


def kept(directory: Path) -> list[Trace]:
    return LightningStore(StoreConfig(path=str(directory))).query()


async def coordinate(orchestrator: Orchestrator) -> AsyncIterator[StreamChunk]:
    """Two agents answer, the second begins again with what the first wrote, both vote for the first."""
    tracker = orchestrator.coordination_tracker
    yield StreamChunk("content", content="I think ", source="a")
    yield StreamChunk("content", content="Hm.", source="b")
    yield StreamChunk("content", content="two.", source="a")
    tracker.add_agent_answer("a", ANSWER, snapshot_timestamp="t1")
    tracker.add_agent_vote("b", {"agent_id": "b", "reason": "mine"})
    tracker.track_restart_signal("a", ["b"])
    tracker.add_agent_vote("b", {"agent_id": "a", "reason": "right"})
    tracker.add_agent_vote("a", {"agent_id": "a"})
    tracker.set_final_agent("a", "2 votes", {"a": ANSWER})
    yield StreamChunk("content", content="Two moons.", source="a")
    tracker.set_final_answer("a", ANSWER)
    yield StreamChunk("done")
