"""Whole trajectories as `agent.rl.trajectory.v1` has them, of 4 to 40 KB."""

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any
from uuid import UUID

from benchmarks.corpus.blocks import BLOCKS, answer, identifier, path, python_code, sentence
from benchmarks.corpus.sensitive import PERSONAL, SECRETS
from benchmarks.corpus.words import NOUNS

SECRET_SHARE = 0.03
PERSONAL_SHARE = 0.10
"""How many of the trajectories hold at least one. Public runs of coding and research agents have 0 to 15 findings per
MB; those of a customer service, which look up people all day, have 600. These stand between, nearer to the first."""
_SMALLEST, _LARGEST = 4_300, 37_000
_TOOLS = ("bash", "python", "read_file", "edit_file", "search", "browser", "query_database")
_DOMAINS = ("coding", "research", "data_analysis", "general", "debugging", "writing")
_POOL = 1_500


def realistic_trajectories(count: int, seed: int) -> Iterator[dict[str, Any]]:
    """`count` trajectories, as decoded JSON; the same seed gives the same ones."""
    chance = Random(seed)
    blocks, weights = zip(*BLOCKS, strict=True)
    # Texts are drawn from a pool: their variety is what matters, and a fresh one for each turn would take minutes.
    pool = [block(chance) for block in chance.choices(blocks, weights, k=_POOL)]
    for _ in range(count):
        yield _trajectory(chance, pool)


def _trajectory(chance: Random, pool: list[str]) -> dict[str, Any]:
    wanted = _SMALLEST * (_LARGEST / _SMALLEST) ** chance.random()
    start = datetime(2026, 3, 1, tzinfo=UTC) + timedelta(seconds=chance.randrange(10**6))
    request = " ".join(sentence(chance) for _ in range(chance.randrange(1, 4)))
    planted = [chance.choice(SECRETS)(chance)] if chance.random() < SECRET_SHARE else []
    planted += [chance.choice(PERSONAL)(chance)] if chance.random() < PERSONAL_SHARE else []
    turns: list[dict[str, Any]] = []
    seen: Any = request
    size = 900
    while size < wanted or planted or not turns:
        output = _output(chance, pool, int(wanted - size), planted)
        turns.append(_turn(chance, len(turns) + 1, start, seen, output))
        size += len(json.dumps(turns[-1]))
        seen = output if chance.random() < 0.3 and 2 * size < wanted else f"{_TOOLS[0]}: exit code 0"
    tokens = chance.randrange(900, 9000)
    return {
        "trajectory_id": str(UUID(int=chance.getrandbits(128), version=4)),
        "session_id": f"session-{chance.getrandbits(40):010x}",
        "agent_id": f"agent-{chance.randrange(12)}",
        "subordinate_profile": None,
        "start_timestamp": start.isoformat().replace("+00:00", "Z"),
        "end_timestamp": (start + timedelta(seconds=30 * len(turns))).isoformat().replace("+00:00", "Z"),
        "turns": turns,
        "task_context": {
            "task_id": f"task-{chance.randrange(5000)}",
            "instructions": request,
            "task_type": f"{identifier(chance)}",
            "domain": chance.choice(_DOMAINS),
            "complexity_score": round(chance.random(), 2),
            "task_status": chance.choice(("success", "success", "partial", "failed")),
            "user_id": f"user-{chance.getrandbits(48):012x}",
        },
        "metadata": {
            "model": "qwen2.5-32b-instruct",
            "model_version": f"agent-zero-rl-v2.{chance.randrange(9)}",
            "temperature": 0.7,
            "total_tokens": tokens,
            "prompt_tokens": tokens - 300,
            "completion_tokens": 300,
            "total_cost_usd": round(tokens * 2e-6, 6),
            "framework": "agent-zero",
        },
    }


def _output(chance: Random, pool: list[str], room: int, planted: list[str]) -> str | dict[str, Any]:
    """What a tool returned: mostly text, sometimes an object, sometimes JSON in a text."""
    if chance.random() < 0.15 and not planted:
        return answer(chance) if chance.random() < 0.6 else json.dumps(answer(chance), indent=2)
    text = chance.choice(pool)[: max(room, 600)]
    if planted and chance.random() < 0.6:
        at = text.find("\n") + 1
        text = text[:at] + planted.pop() + text[at:]
    return text


def _turn(chance: Random, number: int, start: datetime, seen: Any, output: Any) -> dict[str, Any]:
    tool = chance.choice(_TOOLS)
    turn: dict[str, Any] = {
        "turn_id": number,
        "timestamp": (start + timedelta(seconds=30 * (number - 1))).isoformat().replace("+00:00", "Z"),
        "observation": {
            "type": "user_message" if number == 1 else "tool_result",
            "content": seen,
            "context": {"available_tools": list(_TOOLS), "subordinates_active": 0},
        },
        "thought_process": [sentence(chance) for _ in range(chance.randrange(1, 4))],
        "action": {"type": "tool_call", "tool_name": tool, "tool_args": _arguments(chance, tool)},
        "result": {
            "success": chance.random() < 0.85,
            "output": output,
            "execution_time_ms": chance.randrange(20, 9000),
        },
    }
    if chance.random() < 0.1:
        ids = [chance.randrange(32000) for _ in range(chance.randrange(20, 120))]
        turn["sampling"] = {"completion_token_ids": ids, "logprobs": [round(-chance.random(), 4) for _ in ids]}
    return turn


def _arguments(chance: Random, tool: str) -> dict[str, Any]:
    if tool == "bash":
        return {"command": f"cd /workspace && grep -rn '{chance.choice(NOUNS)}' {path(chance)} | head"}
    if tool == "python":
        return {"code": python_code(chance)[:800], "timeout": 30}
    if tool == "edit_file":
        return {"path": path(chance), "old": sentence(chance), "new": sentence(chance), "line": chance.randrange(900)}
    if tool == "query_database":
        return {
            "sql": f"SELECT {chance.choice(NOUNS)}, count(*) FROM {chance.choice(NOUNS)}s GROUP BY 1 ORDER BY 2 DESC"
        }
    return {"path": path(chance), "query": sentence(chance)}
