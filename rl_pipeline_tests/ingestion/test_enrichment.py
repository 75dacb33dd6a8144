"""The columns that ingest adds, by the rules that the module documents."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rl_pipeline.contracts import Trajectory, validate_trajectory
from rl_pipeline.ingestion.enrichment import enrich, infer_complexity, infer_domain
from rl_pipeline_tests.ingestion.ingesting import document


def trajectory(instructions: str | None = None, tool: str = "act", **arguments: str) -> Trajectory:
    made = document(instructions=instructions, domain=None, task_type=None)
    for turn in made["turns"]:
        turn["action"] |= {"tool_name": tool, "tool_args": arguments}
        turn["observation"] = {"type": "user_message", "content": "."}
    return validate_trajectory(made)


@pytest.mark.parametrize(
    ("made", "domain"),
    [
        (trajectory("Implement a function that sorts."), "coding"),
        (trajectory("Please look at this.", "code_execution"), "coding"),
        (trajectory("Please look at this.", path="src/engine.rs"), "coding"),
        (trajectory("Why does it crash? Here is the traceback."), "debugging"),
        (trajectory("Please look at this.", "query_database"), "data_analysis"),
        (trajectory("Plot the mean of each column."), "data_analysis"),
        (trajectory("Who wrote this paper, and when?"), "research"),
        (trajectory("Please look at this.", "search"), "research"),
        (trajectory("Draft an essay."), "writing"),
        (trajectory("Please look at this."), "general"),
        (trajectory(), "general"),
    ],
)
def test_a_missing_domain_is_inferred_from_request_tools_and_files(made: Trajectory, domain: str) -> None:
    columns = enrich(made, 1000)
    assert (columns.domain, columns.domain_is_inferred) == (domain, True)
    assert columns.task_type == domain


def test_the_first_user_message_stands_in_for_missing_instructions() -> None:
    made = document(instructions=None, domain=None)
    made["turns"][0]["observation"] = {"type": "user_message", "content": {"parts": [{"text": "Draft an essay."}]}}
    made["turns"][0]["action"]["tool_name"] = "act"
    assert infer_domain(validate_trajectory(made)) == "writing"


def test_what_was_published_is_kept() -> None:
    made = document(domain="research", task_type="find", complexity_score=0.25, group_id="group-1", task_id="task-1")
    columns = enrich(validate_trajectory(made), 1000)
    assert (columns.domain, columns.domain_is_inferred, columns.task_type) == ("research", False, "find")
    assert (columns.complexity, columns.complexity_is_inferred) == (0.25, False)
    assert (columns.group_id, columns.task_id, columns.task_status) == (
        "group-1",
        "task-1",
        made["task_context"]["task_status"],
    )


def test_repeated_attempts_at_a_task_are_a_group_where_none_was_named() -> None:
    assert enrich(validate_trajectory(document(task_id="task-1")), 1).group_id == "task-1"


def test_a_complexity_is_what_its_formula_says() -> None:
    at_half = {"turns": 10, "tools": 4, "document_bytes": 32_000, "failed_turns": 3, "agents": 3}
    assert infer_complexity(**at_half) == pytest.approx(0.5)
    assert infer_complexity(turns=30, tools=0, document_bytes=0, failed_turns=0, agents=1) == pytest.approx(0.225)
    assert infer_complexity(turns=0, tools=0, document_bytes=0, failed_turns=0, agents=1) == 0


SIZES = st.fixed_dictionaries(
    {
        "turns": st.integers(1, 10**6),
        "tools": st.integers(0, 10**4),
        "document_bytes": st.integers(1, 64 * 2**20),
        "failed_turns": st.integers(0, 10**6),
        "agents": st.integers(1, 10**4),
    }
)


@given(SIZES, st.sampled_from(["turns", "tools", "document_bytes", "failed_turns", "agents"]), st.integers(1, 1000))
def test_a_complexity_is_a_share_and_never_falls(sizes: dict[str, int], rising: str, by: int) -> None:
    before = infer_complexity(**sizes)
    assert 0 <= before < 1
    assert infer_complexity(**{**sizes, rising: sizes[rising] + by}) >= before


def test_turns_failures_agents_and_tools_are_counted() -> None:
    made = document()
    (turn, *_) = made["turns"]
    tools = ["search", "code", "search", None]
    made["turns"] = [
        {**turn, "turn_id": number, "agent_id": agent, "result": {"success": success}}
        for number, (agent, success) in enumerate([("a", True), ("b", False), (None, False), ("b", True)], start=1)
    ]
    for number, tool in enumerate(tools):
        made["turns"][number]["action"] = {"type": "response"} | ({"tool_name": tool} if tool else {})
    columns = enrich(validate_trajectory(made), 1000)
    # The trajectory's own agent is the third.
    assert (columns.turns, columns.failed_turns, columns.agents) == (4, 2, 3)
    assert columns.tools == ("search", "code", "search")


def test_a_subordinates_trajectory_names_its_profile_and_its_superiors_trajectory() -> None:
    parent = "3f2b8c1e-5d4a-4b6f-9e7d-1a2b3c4d5e6f"
    made = document() | {"subordinate_profile": "researcher"}
    made["metadata"]["parent_trajectory_id"] = parent
    columns = enrich(validate_trajectory(made), 1000)
    assert (columns.subordinate_profile, columns.parent_trajectory_id) == ("researcher", parent)


@pytest.mark.parametrize(
    ("metadata", "sampling", "version", "tokens"),
    [
        ({"model_version": "v1", "total_tokens": 9, "prompt_tokens": 5}, {"model_version": "v2"}, "v1", 9),
        ({"prompt_tokens": 5, "completion_tokens": 2}, {"model_version": "v2"}, "v2", 7),
        ({"prompt_tokens": 5}, {}, "", 5),
        ({}, {"prompt_token_ids": [1, 2], "completion_token_ids": [3]}, "", 3),
        ({}, {}, "", None),
    ],
)
def test_version_and_tokens_come_from_the_metadata_else_from_the_turns(
    metadata: dict[str, Any], sampling: dict[str, Any], version: str, tokens: int | None
) -> None:
    made = document()
    made["metadata"] = {"model": "m", **metadata}
    made["turns"] = [made["turns"][0] | {"sampling": sampling}]
    columns = enrich(validate_trajectory(made), 1000)
    assert (columns.model_version, columns.total_tokens) == (version, tokens)
