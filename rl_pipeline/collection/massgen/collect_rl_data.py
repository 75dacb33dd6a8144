"""Collects sample traces: a recorded agent of MassGen works on a few tasks.

Run as `python -m rl_pipeline.collection.massgen.collect_rl_data`, or by MassGen's own name for it from a checkout,
`python scripts/collect_rl_data.py`. It needs MassGen, and what MassGen needs to reach the model; nothing else of this
package imports either.
"""

import argparse
import asyncio
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from rl_pipeline.collection.massgen.agent import RLAgentMixin
from rl_pipeline.collection.massgen.config import RLConfig, StoreConfig
from rl_pipeline.collection.massgen.store import LightningStore

TASKS = (
    "How many moons has Mars, and how were they found?",
    "Write a Python function that reverses a list, with an example.",
    "Compare solar and wind power in three points.",
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Collect, and say what came of it; 1 where no task was completed, 2 without MassGen."""
    parser = argparse.ArgumentParser(prog="collect_rl_data", description="Collect sample traces of a MassGen agent.")
    parser.add_argument("tasks", nargs="*", default=TASKS, help="what the agent is asked; else three samples")
    parser.add_argument("--path", default="./rl_data", help="where traces/ and metadata/ are made (./rl_data)")
    parser.add_argument("--agent-id", default="my_agent")
    parser.add_argument("--backend", default="openai", help="as MassGen's create_backend names it (openai)")
    parser.add_argument("--model", default="gpt-4o")
    parser.add_argument("--base-url", help="of the model's server, for backends that take one")
    told = parser.parse_args(arguments)
    config = RLConfig(enable_rl=True, collect_only=True, store_config=StoreConfig(path=told.path))
    reached = {"model": told.model} | ({"base_url": told.base_url} if told.base_url else {})
    try:
        agent = _recorded_agent(told.agent_id, config, told.backend, reached)
    except ImportError:
        sys.stderr.write("collect_rl_data: MassGen is not installed here: pip install massgen\n")
        return 2
    collected = asyncio.run(collect(agent, told.tasks))
    store = LightningStore(config.store_config)
    statuses = Counter(trace.status for trace in map(store.load_trace, collected) if trace is not None)
    counts = ", ".join(f"{count} {status}" for status, count in sorted(statuses.items())) or "none was kept"
    sys.stdout.write(f"traces of {len(collected)} tasks in {told.path}/traces: {counts}\n")
    return 0 if statuses["completed"] else 1


async def collect(agent: Any, tasks: Iterable[str]) -> list[str]:
    """Have a recorded agent work on each task by itself; the ids of the traces."""
    collected = []
    for task in tasks:
        async for _ in agent.chat([{"role": "user", "content": task}], reset_chat=True):
            pass
        collected.append(str(agent.last_trace_id))
    return collected


def _recorded_agent(agent_id: str, config: RLConfig, backend: str, reached: dict[str, str]) -> Any:
    from massgen.chat_agent import SingleAgent
    from massgen.cli import create_backend

    recorded = type("RLSingleAgent", (RLAgentMixin, SingleAgent), {})
    return recorded(backend=create_backend(backend, **reached), agent_id=agent_id, rl_config=config)


if __name__ == "__main__":
    sys.exit(main())
