"""Records as other tools write them, each with what was done in it and what came back."""

from typing import Any

from rl_pipeline_tests.collection.formats.wild_otlp_records import SAID, WILD_OTLP, Told

ASKED: dict[str, Any] = {"role": "user", "content": "Hi"}
DONE: dict[str, Any] = {"role": "assistant", "content": "Done."}


def call(identity: Any, name: str = "look", arguments: Any = "{}") -> dict[str, Any]:
    return {"id": identity, "type": "function", "function": {"name": name, "arguments": arguments}}


def calling(*calls: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": None, "tool_calls": list(calls), **more}


def result(identity: Any, content: Any) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": identity, "content": content}


def chat(*messages: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"messages": [ASKED, *messages], **more}


def atif(version: str, *steps: dict[str, Any], **more: Any) -> dict[str, Any]:
    agent = {"name": "terminus-2", "version": "2.0", "model_name": "gpt-5"}
    numbered = [{"step_id": number, **step} for number, step in enumerate(steps, start=1)]
    return {"schema_version": version, "session_id": "s", "agent": agent, "steps": numbered, "extra": {"k": 1}, **more}


def atif_calls(*results: dict[str, Any]) -> dict[str, Any]:
    calls = [{"tool_call_id": name, "function_name": "bash", "arguments": {"keys": name}} for name in ("c1", "c2")]
    return {"source": "agent", "message": "", "tool_calls": calls, "observation": {"results": list(results)}}


TOOL_USE = [
    {"type": "thinking", "thinking": "Where?", "signature": "c2ln"},
    {"type": "tool_use", "id": "1", "name": "look", "input": {"at": "."}},
    {"type": "tool_use", "id": "2", "name": "read", "input": {}},
]
TOOL_RESULTS = [
    {"type": "tool_result", "tool_use_id": "2", "content": "gone", "is_error": True},
    {"type": "tool_result", "tool_use_id": "1", "content": [{"type": "text", "text": "a b"}]},
    {"type": "text", "text": "And?"},
]
IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA", "detail": "low"}}
STEP = {"action": "ls\n", "observation": "a", "response": "I look.", "state": "{}", "thought": "Look."}
MINI_INFO = {"exit_status": "Submitted", "submission": "x", "mini_version": "1.0.0", "model_stats": {"api_calls": 2}}
SIMULATED: list[dict[str, Any]] = [
    {"role": "assistant", "content": "Hello.", "tool_calls": None, "turn_idx": 0, "raw_data": None},
    {"role": "user", "content": None, "tool_calls": [{"id": "u1", "name": "toggle", "arguments": {}}]},
    {"id": "u1", "role": "tool", "content": "on", "requestor": "user", "error": False},
    {"role": "user", "content": "It is on.", "tool_calls": None},
    {"role": "assistant", "content": None, "tool_calls": [{"id": "c", "name": "look", "arguments": {}}]},
    {"id": "c", "role": "tool", "content": None, "requestor": "assistant", "error": True},
    {"role": "assistant", "content": "Done.", "tool_calls": None},
]

WILD: dict[str, tuple[str, Any, Told]] = {
    "nulls for what an answer has not": (
        "openai-messages",
        chat(
            {**DONE, "tool_calls": None, "function_call": None, "refusal": None, "reasoning_content": None}, tools=None
        ),
        SAID,
    ),
    "an empty list of calls": ("openai-messages", chat({**DONE, "tool_calls": []}), SAID),
    "an answer of nothing": (
        "openai-messages",
        chat(DONE, {"role": "assistant", "content": None}),
        [*SAID, ("", None)],
    ),
    "no content at all": (
        "openai-messages",
        chat(
            {"role": "assistant", "tool_calls": [call("a")]},
            {"role": "tool", "tool_call_id": "a"},
            {"role": "user"},
            DONE,
        ),
        [("look", None), *SAID],
    ),
    "results in another order than calls": (
        "openai-messages",
        chat(calling(call("a"), call("b"), call("c")), result("c", "3"), result("a", "1"), result("b", "2"), DONE),
        [("look", "1"), ("look", "2"), ("look", "3"), *SAID],
    ),
    "reasoning under its newer name": (
        "openai-messages",
        chat({**DONE, "reasoning": "Hm.", "reasoning_details": [{"type": "reasoning.text", "text": "Hm."}]}),
        SAID,
    ),
    "calls and results as parts": (
        "openai-messages",
        chat({"role": "assistant", "content": TOOL_USE}, {"role": "user", "content": TOOL_RESULTS}, DONE),
        [("look", {"parts": [{"type": "text", "text": "a b"}]}), ("read", "gone"), *SAID],
    ),
    "a developer, an image and a refusal": (
        "openai-messages",
        {
            "messages": [
                {"role": "developer", "content": [{"type": "text", "text": "Be kind."}]},
                {"role": "user", "content": [{"type": "text", "text": "See?"}, IMAGE]},
                {"role": "assistant", "content": [{"type": "refusal", "refusal": "No."}], "audio": None},
            ]
        },
        [("", None)],
    ),
    "ids that are numbers or nothing": (
        "openai-messages",
        chat(calling(call(7)), result(7, "1"), calling(call(None)), result(None, "2"), DONE),
        [("look", "1"), ("look", "2"), *SAID],
    ),
    "a number as a result": (
        "openai-messages",
        chat(calling(call("a", "add", "{bad")), result("a", 5), DONE),
        [("add", {"parts": [5]}), *SAID],
    ),
    "nulls of tau-bench": (
        "tau-bench",
        {
            "task_id": 0,
            "reward": 0.0,
            "info": None,
            "traj": [
                ASKED,
                calling(call("a"), function_call=None),
                result("a", "Error: x"),
                {**DONE, "tool_calls": None},
            ],
        },
        [("look", "Error: x"), *SAID],
    ),
    "a user of tau2-bench with tools": (
        "tau-bench",
        {"id": "x", "task_id": "t", "termination_reason": "user_stop", "reward_info": None, "messages": SIMULATED},
        [("Hello.", None), ("look", None), *SAID],
    ),
    "steps of nulls": (
        "swe-agent",
        {
            "trajectory": [{**STEP, "observation": None, "thought": None, "query": None, "execution_time": None}],
            "history": None,
            "info": None,
            "replay_config": None,
        },
        [("bash", None)],
    ),
    "the first mini-swe-agent": (
        "swe-agent",
        {
            "info": MINI_INFO,
            "messages": [
                ASKED,
                {"role": "assistant", "content": "THOUGHT: Look.\n\n```bash\nls\n```", "reasoning_content": "Hm."},
                {"role": "user", "content": "<returncode>0</returncode>"},
                DONE,
            ],
        },
        [("bash", "<returncode>0</returncode>"), *SAID],
    ),
    "one screen after several commands": (
        "atif",
        atif("ATIF-v1.2", {"source": "user", "message": "Hi"}, atif_calls({"content": "$"}), {"source": "agent"}),
        [("bash", None), ("bash", "$"), ("", None)],
    ),
    "results without ids for each call": (
        "atif",
        atif(
            "ATIF-v1.0",
            {"source": "user", "message": "Hi"},
            atif_calls({"source_call_id": None, "content": "1"}, {"content": "2"}),
        ),
        [("bash", "1"), ("bash", "2")],
    ),
    "results of ATIF in another order": (
        "atif",
        atif(
            "ATIF-v1.8",
            {"source": "user", "message": "Hi"},
            atif_calls(
                {"content": None, "subagent_trajectory_ref": [{"session_id": "q"}]},
                {"source_call_id": "c2", "content": "2"},
                {"source_call_id": "c1", "content": "1"},
            ),
        ),
        [("bash", "1"), ("bash", "2")],
    ),
    "nulls of ATIF": (
        "atif",
        atif(
            "ATIF-v1.6",
            {
                "source": "user",
                "message": [{"type": "text", "text": "Hi"}, {"type": "image", "source": {"path": "a.png"}}],
            },
            {"source": "agent", "message": "Done.", "tool_calls": None, "observation": None, "metrics": None},
            {
                "source": "agent",
                "message": "",
                "tool_calls": [],
                "observation": {"results": []},
                "reasoning_content": None,
            },
            final_metrics=None,
            notes=None,
        ),
        [*SAID, ("", None)],
    ),
    "an action that nobody took": (
        "intercode",
        {
            "environment": "ic_sql",
            "task_id": 3,
            "query": "q",
            "turn_history": {"actions": [None, "SELECT"], "observations": [[["a", 1]], {"x": 1}], "rewards": [0, 1]},
        },
        [("sql", {"parts": [["a", 1]]}), ("sql", {"x": 1})],
    ),
    "a content of MassGen from nobody": (
        "massgen-traces",
        {
            "trace_id": "trace_1",
            "spans": [{"span_type": "content", "content": "Done.", "source": None}],
            "agent_id": "a",
        },
        SAID,
    ),
    **WILD_OTLP,
}
