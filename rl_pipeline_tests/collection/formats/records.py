"""Invented records, one or more of every format, with what each can say."""

from datetime import UTC, datetime
from typing import Any

from rl_pipeline.collection.formats.format import Origin
from rl_pipeline_tests.collection.formats import otlp_records

MOMENT = datetime(2025, 12, 8, 12, 0, tzinfo=UTC)


def origin(file: str = "runs/file.json", key: str | None = None, **more: Any) -> Origin:
    return Origin(file, MOMENT, key=key, **more)


CONVERSATION: list[dict[str, Any]] = [
    {"role": "system", "content": "Help with the weather. Ärger → ☂"},
    {"role": "user", "content": "Do I need an umbrella in Graz?"},
    {
        "role": "assistant",
        "content": None,
        "reasoning_content": "Two places to look.",
        "tool_calls": [
            {"id": "a", "type": "function", "function": {"name": "rain", "arguments": '{"place":"Graz"}'}},
            {"id": "b", "type": "function", "function": {"name": "wind", "arguments": '{"place": "Graz"}'}},
        ],
    },
    {"role": "tool", "tool_call_id": "a", "content": "3 mm"},
    {"role": "tool", "tool_call_id": "b", "name": "wind", "content": [{"type": "text", "text": "calm"}]},
    {"role": "assistant", "content": "Yes, take one."},
    {"role": "user", "content": "Thanks!"},
]

OPENAI: dict[str, Any] = {
    "messages": CONVERSATION,
    "model": "gpt-4o-2024-08-06",
    "temperature": 0.5,
    "tools": [{"type": "function", "function": {"name": "rain"}}],
    "usage": {"prompt_tokens": 40, "completion_tokens": 9},
    "reward": 0.25,
    "user": "user-19",
    "created": 1736400000,
    "metadata": {"shop": "umbrellas"},
}

_CALLED_LEGACY = {"name": "wind", "arguments": {"place": "Graz"}, "x-note": 1}
ODD_CALLS: list[dict[str, Any]] = [
    {"role": "user", "content": "Rain?"},
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {"id": "a", "type": "custom", "custom": {"name": "shell", "input": "ls -l\n"}, "index": 0},
            {"id": "b", "type": "function", "function": {"name": "rain", "arguments": ["Graz", 3]}},
            {"id": "c", "type": "function", "function": {"name": "wind", "arguments": None}},
            {"id": "d", "type": "function", "function": {"name": "sun"}},
        ],
        "function_call": {"name": "rain", "arguments": "{}"},
    },
    {"role": "tool", "tool_call_id": "a", "content": None},
    {"role": "tool", "tool_call_id": "b", "content": "3 mm"},
    {"role": "tool", "tool_call_id": "d", "content": None},
    {"role": "assistant", "content": None, "function_call": _CALLED_LEGACY},
    {"role": "function", "name": "wind", "content": None},
    {"role": "assistant", "content": "Yes."},
]

FLAT_CALLS: list[dict[str, Any]] = [
    {"role": "user", "content": "Rain?"},
    {
        "role": "assistant",
        "content": "",
        "tool_calls": [
            {"id": "a", "name": "rain", "arguments": {"place": "Graz"}, "requestor": "assistant"},
            {"name": "wind", "args": {"place": "Graz"}, "id": "b", "type": "tool_call"},
            {"id": "c", "name": "sun"},
        ],
    },
    {"role": "tool", "id": "b", "content": "no such place", "error": True},
    {"role": "tool", "id": "a", "content": "3 mm", "error": False},
    {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "now", "arguments": {}}}]},
    {"role": "tool", "content": "noon"},
    {"role": "assistant", "content": "Yes."},
]

TAU: dict[str, Any] = {
    "task_id": 7,
    "reward": 1.0,
    "info": {"task": {"user_id": "mia_li_1", "actions": [], "instruction": "You are Mia.", "outputs": []}},
    "traj": [
        {"role": "system", "content": "# Retail agent policy\n\nBe kind."},
        {"role": "user", "content": "Cancel my order."},
        {
            "role": "assistant",
            "content": None,
            "function_call": None,
            "tool_calls": [
                {"function": {"arguments": '{"id":"#1"}', "name": "cancel"}, "id": "call_1", "type": "function"}
            ],
        },
        {"role": "tool", "tool_call_id": "call_1", "name": "cancel", "content": "Error: order not found"},
        {"role": "assistant", "content": "There is none.", "tool_calls": None},
        {"role": "user", "content": "###STOP###"},
    ],
    "trial": 2,
}

TAU_REACT: dict[str, Any] = {
    **TAU,
    "reward": 0.0,
    "traj": [
        {"role": "user", "content": "Cancel my order."},
        {"role": "assistant", "content": 'Thought:\nLook.\nAction:\n{"name": "find", "arguments": {"id": 1}}'},
        {"role": "user", "content": "API output: none"},
        {"role": "assistant", "content": 'Action:\n{"name": "respond", "arguments": {"content": "No."}}'},
    ],
}

TAU_SIMULATION: dict[str, Any] = {
    "id": "0d9a2a5e-9f0e-4f43-8f4c-9d1c2b3a4d5e",
    "task_id": "12",
    "timestamp": "2025-06-01T10:02:00.500000",
    "start_time": "2025-06-01T10:00:00.250000",
    "end_time": "2025-06-01T10:02:00.500000",
    "duration": 120.25,
    "termination_reason": "user_stop",
    "agent_cost": 0.25,
    "user_cost": None,
    "reward_info": {"reward": 1.0, "db_check": None},
    "messages": [
        {"role": "assistant", "content": "Hi! How can I help?", "turn_idx": 0, "usage": None},
        {"role": "user", "content": "Cancel my order.", "turn_idx": 1, "usage": {"prompt_tokens": 900}},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "c1", "name": "cancel", "arguments": {"id": "#1"}, "requestor": "assistant"}],
            "usage": {"prompt_tokens": 40, "completion_tokens": 9},
        },
        {"id": "c1", "role": "tool", "content": "not found", "requestor": "assistant", "error": True},
        {"role": "assistant", "content": "There is none.", "usage": {"prompt_tokens": 60, "completion_tokens": 5}},
    ],
    "trial": 0,
    "seed": 300,
}

TAU_RESULTS: dict[str, Any] = {
    "timestamp": "2025-06-01T10:00:00",
    "info": {
        "agent_info": {"implementation": "llm_agent", "llm": "gpt-4.1", "llm_args": {"temperature": 0.5}},
        "environment_info": {"domain_name": "telecom", "policy": "Be kind."},
    },
    "tasks": [{"id": "12", "user_scenario": {}}],
    "simulations": [TAU_SIMULATION],
}

TAU_UNJUDGED: dict[str, Any] = {**TAU_REACT, "reward": None}

FIREACT: dict[str, Any] = {
    "reward": False,
    "em": False,
    "f1": 0.5,
    "gt": "the north pole",
    "pred": "the pole",
    "prompt": [],
    "traj": [
        {"role": "user", "content": "Where does he live?"},
        {"role": "assistant", "content": "Thought: Look it up.\nAction: search[Santa [Claus]]"},
        {"role": "user", "content": "Observation: At the pole."},
        {"role": "assistant", "content": "Thought: Done.\nAction: finish[the pole]"},
        {"role": "user", "content": "Observation: Episode finished, reward = False"},
    ],
}

_TEXT = (
    "Below is an instruction.\n\n### Instruction:\nWhere does he live?\n\n### Response:\n"
    "Thought: Look\nit up.\nAction: search[Santa]\nObservation: At the pole.\nSee also: elves\n"
    "Thought: Done.\nAction: finish[pole]\nObservation: Episode finished, reward = True\n"
)
FIREACT_TEXT: dict[str, Any] = {
    "reward": True,
    "em": True,
    "f1": 1.0,
    "gt": "pole",
    "pred": "pole",
    "prompt": "",
    "traj": _TEXT,
    "traj_by_line": _TEXT.split("\n"),
}

FIREACT_UNJUDGED: dict[str, Any] = {**FIREACT, "reward": None, "gt": None}

FIREACT_CUT: dict[str, Any] = {**FIREACT_TEXT, "traj": _TEXT[:-1].replace("Thought: Done", "Thought:Done")}
del FIREACT_CUT["traj_by_line"]

INTERCODE: dict[str, Any] = {
    "environment": "ic_sql",
    "dataset": "./data/sql/spider/ic_spider_dev.json",
    "task_id": 3,
    "query": "How many singers are there?",
    "turn_history": {
        "actions": ["SHOW TABLES", "SELECT coun FROM singer", "blocked"],
        "observations": ["[('singer',)]", "Error: unknown column"],
        "rewards": [0.2, 0.1, 0],
        "valid_action": [True, False],
    },
    "summary": {"max_reward": 0.2, "max_reward_idx": 0, "turns_taken": 3, "turns_max": 10},
    "hardness": "easy",
}

INTERCODE_REACT: dict[str, Any] = {
    "environment": "ic_bash",
    "dataset": "./data/nl2bash/nl2bash_fs_1.json",
    "task_id": 0,
    "query": "List the files.",
    "turn_history": {
        "thoughts": ["I look.", "That is all."],
        "actions": ["execute[ls]", "submit"],
        "observations": ["a.txt", "a.txt"],
        "rewards": [0, 1.0],
        "steps": ["Look."],
        "valid_action": [True, True],
    },
    "summary": {"max_reward": 1.0, "turns_taken": 2, "turns_max": 10},
}

INTERCODE_HUMAN: dict[str, Any] = {
    "environment": "ic_sql",
    "query_idx": 809,
    "query": "Which languages?",
    "gold": "SELECT 1",
    "reward": 0.0,
    "trajectory": [
        {"action": "show tables;", "observation": "('city',)"},
        {"action": "select 2;", "observation": ""},
    ],
}

INTERCODE_BLOCKED: dict[str, Any] = {
    "environment": "ic_bash",
    "dataset": "d.json",
    "task_id": 1,
    "query": "List the files.",
    "turn_history": {"actions": ["blocked"], "observations": [], "rewards": [0], "valid_action": []},
    "summary": {"max_reward": 0, "max_reward_idx": 0, "turns_taken": 1, "turns_max": 10},
}

SWE_AGENT: dict[str, Any] = {
    "environment": "main",
    "trajectory": [
        {
            "action": "open a.py",
            "observation": "[File: a.py]",
            "response": "Let us look.",
            "thought": "Let us look.",
            "execution_time": 0.5,
            "state": {"open_file": "a.py"},
            "query": [{"role": "system", "content": "s"}, {"role": "user", "content": "fix"}],
            "extra_info": {},
        },
        {
            "action": "submit",
            "observation": "diff",
            "response": "Done.",
            "thought": "Done.",
            "execution_time": 1.25,
            "state": {},
            "query": [
                {"role": "system", "content": "s"},
                {"role": "user", "content": "fix"},
                {"role": "assistant", "content": "Let us look."},
            ],
            "extra_info": {},
        },
    ],
    "history": [
        {"role": "system", "content": "You fix code.", "agent": "main", "message_type": "system_prompt"},
        {"role": "user", "content": "A demonstration", "agent": "main", "is_demo": True},
        {"role": "user", "content": "Fix the bug in a.py.", "agent": "main", "message_type": "observation"},
        {
            "role": "assistant",
            "content": "Let us look.",
            "thought": "Let us look.",
            "action": "open a.py",
            "agent": "main",
            "message_type": "action",
            "tool_calls": [
                {"function": {"arguments": '{"path":"a.py"}', "name": "open"}, "id": "call_9", "type": "function"}
            ],
        },
        {"role": "tool", "content": "[File: a.py]", "agent": "main", "tool_call_ids": ["call_9"]},
    ],
    "info": {
        "exit_status": "submitted",
        "submission": "diff",
        "model_stats": {"instance_cost": 0.75, "tokens_sent": 900, "tokens_received": 80, "api_calls": 2},
    },
    "replay_config": '{"agent": {"model": {"name": "claude-3", "temperature": 0.2}}, '
    '"problem_statement": {"id": "a__b-1", "text": "There is a bug."}}',
}

SWE_SPARSE: dict[str, Any] = {
    "trajectory": [
        {"response": None, "thought": None, "observation": "cannot"},
        {"action": "bash run.sh", "observation": None, "thought": "t", "execution_time": None},
        {"action": "ls", "observation": "a.py"},
    ],
    "history": None,
    "info": {},
}

SWE_MINI: dict[str, Any] = {
    "info": {
        "exit_status": "Submitted",
        "submission": "",
        "model_stats": {"instance_cost": 0.5, "api_calls": 2},
        "config": {"model": {"model_name": "claude-4", "model_kwargs": {"temperature": 0.25}}},
        "mini_version": "1.9.1",
    },
    "messages": [
        {"role": "system", "content": "You fix code."},
        {"role": "user", "content": "Fix the bug in a.py."},
        {"role": "assistant", "content": "THOUGHT: I look.\n\n```bash\ncat a.py\n```", "extra": {"cost": 0.25}},
        {"role": "user", "content": "<returncode>0</returncode>\n<output>\nx\n</output>"},
        {"role": "assistant", "content": "Two:\n```bash\na\n```\n```bash\nb\n```"},
        {"role": "user", "content": "One command at a time."},
        {"role": "assistant", "content": "```mswea_bash_command\nsubmit\n```"},
        {"role": "user", "content": "diff"},
    ],
    "trajectory_format": "mini-swe-agent-1",
    "instance_id": "a__b-2",
}

SWE_HISTORY: dict[str, Any] = {"history": SWE_AGENT["history"]}

ATIF: dict[str, Any] = {
    "schema_version": "ATIF-v1.7",
    "session_id": "run-1",
    "trajectory_id": "3f2b8c1e-5d4a-4b6f-9e7d-1a2b3c4d5e6f",
    "agent": {
        "name": "terminus",
        "version": "2.0",
        "model_name": "gemini-2.5",
        "tool_definitions": [],
        "extra": {"a": 1},
    },
    "notes": "a note",
    "final_metrics": {"total_prompt_tokens": 1120, "total_completion_tokens": 124, "total_cost_usd": 0.5},
    "continued_trajectory_ref": "next.json",
    "extra": {"reward": 0.5},
    "steps": [
        {"step_id": 1, "timestamp": "2025-10-11T10:30:00Z", "source": "system", "message": "You are an agent."},
        {
            "step_id": 2,
            "timestamp": "2025-10-11T10:30:01Z",
            "source": "user",
            "message": [
                {"type": "text", "text": "What is in this image?"},
                {"type": "image", "source": {"media_type": "image/png", "path": "images/1.png"}},
            ],
            "extra": {"language": "en"},
        },
        {
            "step_id": 3,
            "timestamp": "2025-10-11T10:30:02Z",
            "source": "agent",
            "model_name": "gemini-2.5-flash",
            "reasoning_effort": "medium",
            "message": "I look.",
            "reasoning_content": "Two calls will do.",
            "tool_calls": [
                {"tool_call_id": "c1", "function_name": "look", "arguments": {"at": 1}},
                {"tool_call_id": "c2", "function_name": "ask", "arguments": {}, "extra": {"retries": 1}},
            ],
            "observation": {
                "results": [
                    {"source_call_id": "c1", "content": "a cat"},
                    {
                        "source_call_id": "c2",
                        "content": "done",
                        "subagent_trajectory_ref": [{"trajectory_id": "child"}],
                        "extra": {"score": 0.9},
                    },
                    {"content": "and a noise"},
                ]
            },
            "metrics": {
                "prompt_tokens": 520,
                "completion_tokens": 2,
                "cost_usd": 0.25,
                "prompt_token_ids": [1, 2, 3],
                "completion_token_ids": [4, 5],
                "logprobs": [-0.5, -0.25],
                "extra": {"reasoning_tokens": 12},
            },
        },
        {
            "step_id": 4,
            "source": "agent",
            "message": "",
            "llm_call_count": 0,
            "observation": {"results": [{"content": "ok"}]},
        },
        {"step_id": 5, "source": "system", "message": "compacted", "observation": {"results": [{"content": "short"}]}},
        {"step_id": 6, "source": "agent", "message": "A summary.", "is_copied_context": True},
        {"step_id": 7, "source": "agent", "message": "It is a cat."},
        {"step_id": 8, "source": "user", "message": "Right."},
    ],
}

ATIF_PARENT: dict[str, Any] = {
    **{name: value for name, value in ATIF.items() if name != "trajectory_id"},
    "subagent_trajectories": [
        {
            "schema_version": "ATIF-v1.7",
            "trajectory_id": "child",
            "agent": {"name": "asker", "version": "1"},
            "steps": [
                {"step_id": 1, "source": "user", "message": "Ask."},
                {"step_id": 2, "source": "agent", "message": "Asked."},
            ],
        }
    ],
}


def _span(kind: str, number: int, **fields: Any) -> dict[str, Any]:
    return {"span_id": f"span-{number}", "span_type": kind, "timestamp": 1736400000.5 + number, **fields}


MASSGEN: dict[str, Any] = {
    "trace_id": "0d9a2a5e-9f0e-4f43-8f4c-9d1c2b3a4d5e",
    "agent_id": "agent_1",
    "task": "Analyze quantum computing",
    "spans": [
        _span("reasoning", 1, reasoning="First think.", source="agent_1"),
        _span(
            *("prompt", 2),
            input="What?",
            output="This.",
            model="gpt-4o",
            input_tokens=5,
            output_tokens=7,
            reasoning="Then answer.",
        ),
        _span(
            "tool",
            3,
            tool_name="search",
            arguments={"q": "qubit"},
            result=[1, 2],
            success=True,
            execution_time=0.5,
            error=None,
        ),
        _span("reward", 4, reward=1.0, reward_type="tool", reason="found"),
        _span(
            "tool", 5, tool_name="count", arguments={}, result=3, success=False, execution_time=0.0, error="timed out"
        ),
        _span("reward", 6, reward=-1.0, reward_type="tool", reason=None),
        _span(
            *("coordination", 7),
            action_type="vote",
            action_data={"voter": "agent_1", "voted_for": "agent_2"},
            agent_states={"agent_1": "done"},
            coordination_round=2,
        ),
        _span("content", 8, content="The answer.", source="agent_2"),
        _span("reasoning", 9, reasoning="Was it right?", source="agent_1"),
    ],
    "metadata": {"coordination": True, "num_agents": 2},
    "start_time": 1736400000.0,
    "end_time": 1736400010.0,
    "duration": 10.0,
    "total_reward": 0.0,
    "status": "completed",
}

MASSGEN_AS_SPECIFIED: dict[str, Any] = {
    "trace_id": "trace_abc123",
    "agent_id": "agent_1",
    "task": "Analyze quantum computing",
    "spans": [
        {"span_type": "prompt", "input": "...", "output": "...", "model": "gpt-4o"},
        {"span_type": "tool", "tool_name": "web_search", "arguments": {"q": "x"}, "result": {"hits": 2}},
        {"span_type": "reward", "reward": 1.0, "reward_type": "tool"},
    ],
    "total_reward": 2.5,
    "status": "completed",
}


def lightning_span(number: int, name: str, attributes: dict[str, Any], rollout: str = "ro-1") -> dict[str, Any]:
    return {
        "rollout_id": rollout,
        "attempt_id": "at-1",
        "sequence_id": number,
        "trace_id": "0" * 31 + "1",
        "span_id": f"{number:016x}",
        "parent_id": None,
        "name": name,
        "status": {"status_code": "OK", "description": None},
        "attributes": attributes,
        "events": [],
        "links": [],
        "start_time": 1760000000.0 + number,
        "end_time": 1760000000.5 + number,
        "context": None,
        "parent": None,
        "resource": {"attributes": {}, "schema_url": ""},
    }


_ASKED = {
    "gen_ai.prompt.0.role": "system",
    "gen_ai.prompt.0.content": "You write SQL.",
    "gen_ai.prompt.1.role": "user",
    "gen_ai.prompt.1.content": "How many?",
}
_CALL = {"id": "c1", "name": "sql", "arguments": '{"q":"select 1"}'}
LIGHTNING: list[dict[str, Any]] = [
    lightning_span(1, "run.session", {}),
    lightning_span(
        2,
        "openai.chat.completion",
        {
            **_ASKED,
            "gen_ai.completion.0.role": "assistant",
            "gen_ai.completion.0.finish_reason": "tool_calls",
            **{f"gen_ai.completion.0.tool_calls.0.{name}": value for name, value in _CALL.items()},
            "gen_ai.request.model": "qwen",
            "gen_ai.request.temperature": 0.7,
            "gen_ai.usage.prompt_tokens": 10,
            "gen_ai.usage.completion_tokens": 3,
            "gen_ai.response.id": "r1",
            "prompt_token_ids": [1, 2],
            "response_token_ids": [3, 4],
        },
    ),
    lightning_span(3, "tool.sql", {"tool.name": "sql", "agent.name": "sql-writer"}),
    lightning_span(
        4,
        "openai.chat.completion",
        {
            **_ASKED,
            "gen_ai.prompt.2.role": "assistant",
            **{f"gen_ai.prompt.2.tool_calls.0.{name}": value for name, value in _CALL.items()},
            "gen_ai.prompt.3.role": "tool",
            "gen_ai.prompt.3.tool_call_id": "c1",
            "gen_ai.prompt.3.content": "42",
            "gen_ai.completion.0.role": "assistant",
            "gen_ai.completion.0.content": "There are 42.",
            "gen_ai.completion.0.finish_reason": "stop",
            "gen_ai.request.model": "qwen",
        },
    ),
    lightning_span(
        5,
        "agentlightning.annotation",
        {"agentlightning.reward.0.name": "primary", "agentlightning.reward.0.value": 1.0},
    ),
]


def names_itself(name: str, record: Any) -> bool:
    """Whether a record has an id of its own."""
    is_simulation = name == "tau-bench" and "traj" not in record
    return is_simulation or name in ("atif", "massgen-traces", "otlp")


SINGLE: list[tuple[str, Any, Origin]] = [
    ("openai-messages", OPENAI, origin("runs/chats.jsonl")),
    ("openai-messages", {"messages": CONVERSATION[:2] + CONVERSATION[5:6]}, origin("runs/chats.jsonl")),
    ("openai-messages", {"messages": ODD_CALLS}, origin("runs/chats.jsonl")),
    ("openai-messages", {"messages": FLAT_CALLS}, origin("runs/chats.jsonl")),
    ("tau-bench", TAU, origin("runs/tool-calling-gpt-4o-0.3_range_0--1_user-gpt-4o-llm_0612073827.json")),
    ("tau-bench", TAU_REACT, origin("runs/react.json")),
    ("tau-bench", TAU_UNJUDGED, origin("runs/unjudged.json")),
    ("tau-bench", {name: TAU[name] for name in ("task_id", "reward", "traj")}, origin("runs/bare.json")),
    ("tau-bench", TAU_SIMULATION, origin("simulations/0d9a2a5e.json")),
    ("tau-bench", TAU_RESULTS, origin("runs/results.json")),
    ("fireact", FIREACT_UNJUDGED, origin("runs/unjudged.json", key="1")),
    ("fireact", FIREACT, origin("runs/hotpotqa_ft-gpt-3.5_first120.json", key="6238")),
    (
        "fireact",
        FIREACT_TEXT,
        origin("trajs/hotpotqa_dev_0_500_llama_models_lora_llama-2-7b-d_1000_0.7_2023-09-19-00-49-36.json", key="5"),
    ),
    ("fireact", FIREACT_CUT, origin("runs/strategyqa_gpt-4.json", key="7")),
    ("intercode", INTERCODE, origin("data/ic_sql_multiturn_gpt-4_10_turns.json", key="3")),
    ("intercode", INTERCODE_REACT, origin("gpt-3.5/ic_bash_react_10_turns_fs_1.json", key="0")),
    ("intercode", INTERCODE_HUMAN, origin("human/ic_sql_multiturn_human_10_turns.json", key="809")),
    ("intercode", INTERCODE_BLOCKED, origin("x/ic_bash_multiturn_gpt-4_10_turns.json", key="1")),
    ("swe-agent", SWE_AGENT, origin("a__b-1/a__b-1.traj")),
    ("swe-agent", SWE_HISTORY, origin("runs/simple.traj")),
    ("swe-agent", SWE_SPARSE, origin("runs/sparse.traj")),
    ("swe-agent", SWE_MINI, origin("a__b-2/a__b-2.traj.json")),
    ("atif", ATIF, origin("agent/trajectory.json")),
    ("massgen-traces", MASSGEN, origin("agent_1/trace.json")),
    ("massgen-traces", MASSGEN_AS_SPECIFIED, origin("agent_1/trace_abc123.json")),
    ("lightning-spans", LIGHTNING, origin("spans/spans.jsonl")),
    ("otlp", otlp_records.OTLP_FLAT, origin("spans/traces.json")),
    ("otlp", otlp_records.OTLP_MESSAGES, origin("spans/traces.jsonl")),
    ("otlp", otlp_records.OTLP_TEXT, origin("spans/traces.jsonl")),
    ("otlp", otlp_records.OTLP_OPENINFERENCE, origin("spans/traces.jsonl")),
]
"""One record each that is one trajectory: the format, the record, where it stood."""
