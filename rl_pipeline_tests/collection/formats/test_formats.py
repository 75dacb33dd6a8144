"""What each format says stands in the contract's own fields, where rewards, curation and people look for it."""

import json
from typing import Any

import pytest

from rl_pipeline.collection.formats import FORMATS, format_of
from rl_pipeline.collection.formats.format import NotOfFormat, Origin
from rl_pipeline.collection.formats.otlp_spans import located_spans
from rl_pipeline.collection.formats.otlp_values import plain_attributes
from rl_pipeline_tests.collection.formats import otlp_records, records
from rl_pipeline_tests.collection.formats.records import SINGLE, origin
from rl_pipeline_tests.collection.formats.test_round_trips import NAMES, plain, read, without_carried, written


def tree_of(name: str, record: Any, where: Origin | None = None) -> dict[str, Any]:
    (tree,) = read(name, record, where or next(place for known, _, place in SINGLE if known == name))
    return tree


@pytest.mark.parametrize(("name", "record", "where"), SINGLE, ids=NAMES)
def test_a_record_is_recognised_by_its_content(name: str, record: Any, where: Origin) -> None:
    known = format_of(record[0] if name == "lightning-spans" else record)
    assert known is not None
    assert known.name == name


@pytest.mark.parametrize(("name", "record", "where"), SINGLE, ids=NAMES)
def test_the_same_record_has_the_same_id_and_another_has_another(name: str, record: Any, where: Origin) -> None:
    (tree,) = read(name, record, where)
    assert read(name, record, where)[0]["trajectory_id"] == tree["trajectory_id"]
    if not records.names_itself(name, record):
        (other,) = read(name, record, Origin(where.file, where.modified, key=where.key, model="another"))
        assert other["trajectory_id"] != tree["trajectory_id"]


def test_a_conversation_has_a_turn_for_each_call_and_each_answer() -> None:
    tree = tree_of("openai-messages", records.OPENAI)
    rain, wind, answer = tree["turns"]
    assert rain["shown_before"] == records.CONVERSATION[:1]
    assert rain["observation"]["content"] == "Do I need an umbrella in Graz?"
    assert rain["observation"]["context"] == {"available_tools": ["rain"]}
    assert rain["thought_process"] == ["Two places to look."]
    assert (rain["action"]["tool_name"], rain["action"]["tool_args"]) == ("rain", {"place": "Graz"})
    assert rain["result"]["output"] == "3 mm"
    assert wind["action"]["is_parallel"] is True
    assert wind["result"]["output"] == {"parts": [{"type": "text", "text": "calm"}]}
    assert answer["observation"]["type"] == "tool_result"
    assert answer["action"] == {"type": "response", "raw_response": "Yes, take one."}
    assert answer["shown_after"] == [{"role": "user", "content": "Thanks!"}]
    assert tree["task_context"] == {
        "instructions": "Do I need an umbrella in Graz?",
        "task_status": "partial",
        "completion_percentage": 25.0,
        "reward": 0.25,
        "user_id": "user-19",
    }
    assert {name: tree["metadata"][name] for name in ("model", "temperature", "total_tokens")} == {
        "model": "gpt-4o-2024-08-06",
        "temperature": 0.5,
        "total_tokens": 49,
    }
    assert tree["start_timestamp"] == "2025-01-09T05:20:00Z"


def test_calls_of_every_kind_tell_their_names_and_what_came_back() -> None:
    tree = tree_of("openai-messages", records.ODD_CALLS)
    shell, rain, wind, sun, again, _ = tree["turns"]
    assert (shell["action"]["tool_name"], shell["action"]["tool_args"]) == ("shell", {"input": "ls -l\n"})
    assert rain["result"]["output"] == "3 mm"
    assert [turn["action"]["tool_name"] for turn in (rain, wind, sun, again)] == ["rain", "wind", "sun", "wind"]
    assert again["action"]["tool_args"] == {"place": "Graz"}


def test_calls_without_the_frame_of_a_function_and_without_ids_are_calls() -> None:
    tree = tree_of("openai-messages", records.FLAT_CALLS)
    rain, wind, sun, now, _ = tree["turns"]
    assert [(turn["action"]["tool_name"], turn["action"].get("tool_args")) for turn in (rain, wind, sun, now)] == [
        *(("rain", {"place": "Graz"}), ("wind", {"place": "Graz"}), ("sun", None), ("now", {}))
    ]
    assert (rain["result"]["output"], wind["result"]["error"], now["result"]["output"]) == (
        "3 mm",
        "no such place",
        "noon",
    )
    (answered,) = [m for m in written("openai-messages", tree)["messages"] if m.get("id") == "b"]
    assert answered == records.FLAT_CALLS[2]


@pytest.mark.parametrize(
    ("name", "record"), [("tau-bench", records.TAU_UNJUDGED), ("fireact", records.FIREACT_UNJUDGED)]
)
def test_a_run_that_nobody_judged_has_neither_reward_nor_status(name: str, record: Any) -> None:
    tree = tree_of(name, record)
    assert not {"reward", "task_status"} & tree["task_context"].keys()
    assert {into: written(into, tree)["reward"] for into in ("tau-bench", "fireact")} == {
        "tau-bench": None,
        "fireact": None,
    }
    assert written("intercode", tree)["summary"]["max_reward"] is None


def test_an_answer_without_weight_is_not_trained_on() -> None:
    messages = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b", "weight": 0}]
    assert tree_of("openai-messages", messages)["turns"][0]["is_copied_context"] is True


def test_tau_bench_tells_task_trial_model_and_the_tool_that_failed() -> None:
    tree = tree_of("tau-bench", records.TAU)
    assert tree["task_context"]["task_id"] == tree["task_context"]["group_id"] == "tau-bench-retail-7"
    assert (tree["task_context"]["task_status"], tree["task_context"]["reward"]) == ("success", 1.0)
    assert tree["task_context"]["user_id"] == "mia_li_1"
    assert tree["task_context"]["instructions"] == "Cancel my order."
    assert tree["session_id"] == "tau-bench-retail-7-trial-2"
    assert (tree["metadata"]["model"], tree["metadata"]["temperature"]) == ("gpt-4o", 0.3)
    assert tree["turns"][0]["result"]["success"] is False
    assert tree["turns"][0]["result"]["error"] == "Error: order not found"


def test_simulations_of_tau2_bench_tell_task_model_tokens_cost_and_the_tool_that_failed() -> None:
    tree = tree_of("tau-bench", records.TAU_RESULTS)
    greeting, cancel, answer = tree["turns"]
    assert (cancel["action"]["tool_name"], cancel["action"]["tool_args"]) == ("cancel", {"id": "#1"})
    assert (cancel["result"]["success"], cancel["result"]["error"]) == (False, "not found")
    assert (greeting["action"]["raw_response"], answer["action"]["raw_response"]) == (
        *("Hi! How can I help?", "There is none."),
    )
    told = tree["task_context"]
    assert (told["task_id"], told["task_status"], told["instructions"]) == (
        *("tau-bench-telecom-12", "success", "Cancel my order."),
    )
    names = ("model", "temperature", "prompt_tokens", "completion_tokens", "total_cost_usd")
    assert [tree["metadata"][name] for name in names] == ["gpt-4.1", 0.5, 100, 14, 0.25]
    assert tree["trajectory_id"] == records.TAU_SIMULATION["id"]
    assert (tree["start_timestamp"], tree["end_timestamp"]) == (
        *("2025-06-01T10:00:00.250000Z", "2025-06-01T10:02:00.500000Z"),
    )
    alone = tree_of("tau-bench", records.TAU_SIMULATION)
    assert (alone["trajectory_id"], alone["metadata"]["model"]) == (tree["trajectory_id"], "unknown")


def test_of_results_with_a_simulation_that_was_spoken_the_others_are_read() -> None:
    spoken = {**records.TAU_SIMULATION, "id": "x", "messages": None}
    found = FORMATS["tau-bench"].read(
        {**records.TAU_RESULTS, "simulations": [spoken, records.TAU_SIMULATION]}, origin()
    )
    assert next(found)["trajectory_id"] == records.TAU_SIMULATION["id"]
    with pytest.raises(NotOfFormat, match="simulation 1: it has no list `messages`"):
        next(found)


def test_calls_in_words_are_calls() -> None:
    find, respond = tree_of("tau-bench", records.TAU_REACT)["turns"]
    assert (find["action"]["tool_name"], find["action"]["tool_args"]) == ("find", {"id": 1})
    assert find["result"]["output"] == "API output: none"
    assert respond["action"]["type"] == "response"
    search, _ = tree_of("fireact", records.FIREACT)["turns"]
    assert (search["action"]["tool_name"], search["action"]["tool_args"]) == ("search", {"input": "Santa [Claus]"})
    assert search["thought_process"] == ["Look it up."]


def test_fireact_tells_the_reference_and_the_outcome_and_its_file_the_rest() -> None:
    tree = tree_of(
        "fireact",
        records.FIREACT_TEXT,
        origin("trajs/hotpotqa_dev_0_500_llama_models_lora_llama-2-7b-d_1000_0.7_2023-09-19-00-49-36.json", key="5"),
    )
    assert tree["task_context"]["reference_answer"] == "pole"
    assert tree["task_context"]["task_status"] == "success"
    assert tree["task_context"]["instructions"] == "Where does he live?"
    assert tree["task_context"]["task_id"] == "fireact-hotpotqa-5"
    assert tree["metadata"]["model"] == "llama_models_lora_llama-2-7b-d_1000"
    assert tree["end_timestamp"] == "2023-09-19T00:49:36Z"
    assert [turn["action"]["type"] for turn in tree["turns"]] == ["tool_call", "response"]


def test_a_file_of_any_name_is_not_taken_for_one_that_names_its_model() -> None:
    files = {"runs/my_trajs.json": "unknown", "runs/strategyqa_gpt-4.json": "gpt-4", "runs/fireact_out.json": "unknown"}
    assert {file: tree_of("fireact", records.FIREACT, origin(file))["metadata"]["model"] for file in files} == files


def test_intercode_tells_the_reward_of_every_turn() -> None:
    tree = tree_of("intercode", records.INTERCODE)
    assert [turn["reward"] for turn in tree["turns"]] == [0.2, 0.1, 0]
    assert [turn["result"]["success"] for turn in tree["turns"]] == [True, False, True]
    assert {turn["action"]["tool_name"] for turn in tree["turns"]} == {"sql"}
    assert tree["task_context"]["task_id"] == "ic_sql:ic_spider_dev:3"
    assert (tree["task_context"]["task_status"], tree["task_context"]["completion_percentage"]) == ("partial", 20.0)
    assert tree["metadata"]["model"] == "gpt-4"


def test_intercode_tells_thoughts_and_its_files_and_directories_the_model() -> None:
    react = tree_of("intercode", records.INTERCODE_REACT, origin("gpt-3.5/ic_bash_react_10_turns_fs_1.json"))
    assert [turn["thought_process"] for turn in react["turns"]] == [["I look."], ["That is all."]]
    human = tree_of("intercode", records.INTERCODE_HUMAN, origin("x/ic_sql_multiturn_human_10_turns.json"))
    assert [turn["result"].get("output") for turn in human["turns"]] == ["('city',)", ""]
    files = {
        "gpt-3.5/ic_bash_react_10_turns_fs_1.json": "gpt-3.5",
        "runs/ic_bash_react_10_turns_fs_1.json": "unknown",
        "runs/ic_sql_multiturn_gpt-3.5-1_turns.json": "gpt-3.5",
        "ctf/ic_ctf_gpt-4_25_turns.json": "gpt-4",
        "x/ic_bash_multiturn_starchat_10_turns_fs_2.json": "starchat",
        "x/ic_sql_plan_solve_refine_3_turns.json": "unknown",
    }
    told = {file: tree_of("intercode", records.INTERCODE, origin(file))["metadata"]["model"] for file in files}
    assert told == files


def test_swe_agent_tells_calls_times_tokens_and_cost() -> None:
    tree = tree_of("swe-agent", records.SWE_AGENT)
    look, submit = tree["turns"]
    assert (look["action"]["tool_name"], look["action"]["tool_args"]) == ("open", {"path": "a.py"})
    assert look["observation"]["content"] == "Fix the bug in a.py."
    assert look["result"]["execution_time_ms"] == 500
    assert (submit["action"]["tool_name"], submit["action"]["tool_args"]) == ("bash", {"command": "submit"})
    assert submit["observation"]["content"] == "[File: a.py]"
    assert submit["step"]["query"] == {"same": 2, "then": [{"role": "assistant", "content": "Let us look."}]}
    assert tree["task_context"]["task_id"] == "a__b-1"
    assert tree["task_context"]["instructions"] == "There is a bug."
    assert "task_status" not in tree["task_context"]
    assert (tree["metadata"]["model"], tree["metadata"]["total_tokens"]) == ("claude-3", 980)
    assert tree["metadata"]["total_cost_usd"] == 0.75
    assert (tree["start_timestamp"], tree["end_timestamp"]) == ("2025-12-08T11:59:58.250000Z", "2025-12-08T12:00:00Z")


def test_mini_swe_agent_tells_its_commands_model_and_cost() -> None:
    tree = tree_of("swe-agent", records.SWE_MINI, origin("a__b-2/a__b-2.traj.json"))
    look, two, submit = tree["turns"]
    assert (look["action"]["tool_args"], look["thought_process"]) == ({"command": "cat a.py"}, ["I look."])
    assert look["result"]["output"].startswith("<returncode>0")
    assert (two["action"]["type"], submit["action"]["tool_args"]) == ("response", {"command": "submit"})
    assert (tree["metadata"]["model"], tree["metadata"]["temperature"]) == ("claude-4", 0.25)
    assert (tree["metadata"]["total_cost_usd"], tree["task_context"]["task_id"]) == (0.5, "a__b-2")
    assert "task_status" not in tree["task_context"]


def test_a_run_of_swe_agent_that_ran_out_of_money_has_failed() -> None:
    record = {**records.SWE_AGENT, "info": {"exit_status": "exit_cost"}}
    assert tree_of("swe-agent", record)["task_context"]["task_status"] == "failed"


def test_atif_tells_tokens_logprobs_and_what_must_not_be_trained_on() -> None:
    tree = tree_of("atif", records.ATIF)
    look, ask, none, summary, answer = tree["turns"]
    assert look["sampling"] == {
        "model_version": "gemini-2.5-flash",
        "prompt_token_ids": [1, 2, 3],
        "completion_token_ids": [4, 5],
        "logprobs": [-0.5, -0.25],
    }
    assert look["observation"]["content"]["parts"][1]["source"]["path"] == "images/1.png"
    assert ask["action"]["type"] == "subordinate_call"
    assert [turn.get("is_copied_context", False) for turn in (look, none, summary, answer)] == [
        False,
        True,
        True,
        False,
    ]
    assert tree["trajectory_id"] == records.ATIF["trajectory_id"]
    assert (tree["agent_id"], tree["session_id"]) == ("terminus", "run-1")
    assert (tree["metadata"]["total_tokens"], tree["metadata"]["total_cost_usd"]) == (1244, 0.5)
    assert tree["task_context"]["completion_percentage"] == 50
    assert (tree["start_timestamp"], tree["end_timestamp"]) == ("2025-10-11T10:30:00Z", "2025-10-11T10:30:02Z")


@pytest.mark.parametrize("mark", [{"is_copied_context": True}, {"extra": {"is_copied_context": True, "of": "run-0"}}])
def test_a_step_of_atif_that_was_copied_is_marked_wherever_it_says_so(mark: dict[str, Any]) -> None:
    *steps, last = records.ATIF["steps"][-2:]
    tree = tree_of("atif", {**records.ATIF, "steps": [*({**step, **mark} for step in steps), last]})
    assert [turn.get("is_copied_context") for turn in tree["turns"]] == [True]
    assert written("atif", tree)["steps"][0] == {**steps[0], **mark}


def test_subagents_of_atif_are_trajectories_of_their_own() -> None:
    parent, child = read("atif", records.ATIF_PARENT, origin())
    assert child["metadata"]["parent_trajectory_id"] == parent["trajectory_id"]
    assert child["session_id"] == parent["session_id"] == "run-1"
    assert read("atif", written("atif", child), origin("x.json")) == [child]


@pytest.mark.parametrize("version", [f"ATIF-v1.{minor}" for minor in range(9)])
def test_the_least_that_a_version_of_atif_demands_is_enough(version: str) -> None:
    steps = [{"step_id": 1, "source": "user", "message": "Hi"}, {"step_id": 2, "source": "agent", "message": "Ho"}]
    record = {"schema_version": version, "session_id": "s", "agent": {"name": "a", "version": "1"}, "steps": steps}
    tree = tree_of("atif", record)
    assert [turn["action"]["raw_response"] for turn in tree["turns"]] == ["Ho"]
    assert tree["metadata"]["model"] == "unknown"


def test_the_six_spans_of_massgen_are_turns_thoughts_and_rewards() -> None:
    tree = tree_of("massgen-traces", records.MASSGEN)
    prompt, search, count, vote, content = tree["turns"]
    assert prompt["thought_process"] == ["First think.", "Then answer."]
    assert (prompt["observation"]["content"], prompt["action"]["raw_response"]) == ("What?", "This.")
    assert search["result"] | {"said": None} == {
        "success": True,
        "output": {"parts": [1, 2]},
        "execution_time_ms": 500.0,
        "said": None,
    }
    assert search["rewards"][0]["reward"] == 1.0
    assert (count["result"]["success"], count["result"]["error"]) == (False, "timed out")
    assert (vote["action"]["tool_name"], vote["action"]["tool_args"]["voted_for"]) == ("vote", "agent_2")
    assert (content["agent_id"], content["action"]["raw_response"]) == ("agent_2", "The answer.")
    assert tree["metadata"]["coordination"] == {
        "rounds": 2,
        "restarts": 0,
        "votes": [{"vote_for": "agent_2", "agent_id": "agent_1"}],
    }
    assert tree["trajectory_id"] == records.MASSGEN["trace_id"]
    assert (tree["agent_id"], tree["metadata"]["total_tokens"]) == ("agent_1", 12)
    assert tree["task_context"]["reward"] == 0.0


@pytest.mark.parametrize(
    ("status", "told"),
    [("completed", None), ("failed", "failed"), ("running", "abandoned"), ("abandoned", "abandoned")],
)
def test_a_trace_of_massgen_that_merely_ended_is_no_success(status: str, told: str | None) -> None:
    metadata = {"winner": "agent_2", "consensus": True}
    tree = tree_of("massgen-traces", {**records.MASSGEN, "status": status, "metadata": metadata})
    assert tree["task_context"].get("task_status") == told
    assert tree["metadata"]["coordination"]["consensus"] is True


def test_a_trace_is_written_where_massgen_looks_for_it() -> None:
    name_of = FORMATS["massgen-traces"].name_of
    assert name_of(tree_of("massgen-traces", records.MASSGEN)) == (
        "traces/20250109/agent_1/trace_0d9a2a5e-9f0e-4f43-8f4c-9d1c2b3a4d5e"
    )
    stray = tree_of("massgen-traces", {**records.MASSGEN_AS_SPECIFIED, "agent_id": "../../etc"})
    assert ".." not in name_of(stray).split("/")


def test_spans_tell_calls_tokens_and_the_reward_of_the_last_call() -> None:
    tree = tree_of("lightning-spans", records.LIGHTNING)
    call, answer = tree["turns"]
    assert call["sampling"] == {"model_version": "qwen", "prompt_token_ids": [1, 2], "completion_token_ids": [3, 4]}
    assert (call["action"]["tool_name"], call["action"]["tool_args"]) == ("sql", {"q": "select 1"})
    assert call["result"]["output"] == "42"
    assert (answer["action"]["raw_response"], answer["reward"]) == ("There are 42.", 1.0)
    assert (tree["agent_id"], tree["session_id"]) == ("sql-writer", "ro-1")
    assert (tree["task_context"]["task_status"], tree["metadata"]["temperature"]) == ("success", 0.7)


@pytest.mark.parametrize("record", [otlp_records.OTLP_TEXT, otlp_records.OTLP_MESSAGES], ids=["as text", "as values"])
def test_messages_with_parts_tell_calls_thoughts_results_and_scores(record: Any) -> None:
    tree = tree_of("otlp", record)
    call, answer = tree["turns"]
    assert call["shown_before"][0]["content"] == "Help with the weather."
    assert call["observation"]["content"] == "Rain in Graz?"
    assert (call["thought_process"], call["action"]["raw_response"]) == (["Look."], "One moment.")
    assert (call["action"]["tool_name"], call["action"]["tool_args"]) == ("rain", {"place": "Graz"})
    assert (call["result"]["output"], call["result"]["execution_time_ms"]) == ({"mm": 3}, 500.0)
    assert (answer["action"]["raw_response"], answer["reward"]) == ("3 mm.", 1.0)
    assert tree["trajectory_id"] == "5b8efff7-9803-8103-d269-b633813fc60c"
    assert (tree["agent_id"], tree["session_id"], tree["metadata"]["model"]) == ("weather-agent", "s-2", "claude")
    assert tree["task_context"]["task_status"] == "success"


def test_flat_spans_of_a_trace_tell_agent_session_user_tokens_and_what_failed() -> None:
    tree = tree_of("otlp", otlp_records.OTLP_FLAT)
    call, answer = tree["turns"]
    assert (tree["agent_id"], tree["session_id"], tree["task_context"]["user_id"]) == ("weather", "s-1", "user-19")
    assert (call["result"]["success"], call["result"]["error"]) == (False, "no such place")
    assert (tree["metadata"]["temperature"], tree["metadata"]["total_tokens"]) == (0.5, 13)
    assert answer["sampling"]["model_version"] == "gpt-4o-2024"


def test_openinference_tells_messages_and_the_tool_what_it_returned() -> None:
    [call] = tree_of("otlp", otlp_records.OTLP_OPENINFERENCE)["turns"]
    assert call["observation"]["content"] == {"parts": [{"type": "text", "text": "Rain in Graz?"}]}
    assert (call["action"]["tool_name"], call["action"]["tool_args"]) == ("rain", {"place": "Graz"})
    assert (call["result"]["output"], call["sampling"]["model_version"]) == ("3 mm", "gpt-4o")


@pytest.mark.parametrize(
    "kind",
    [
        {"gen_ai.operation.name": "invoke_agent"},
        {"gen_ai.operation.name": "create_agent"},
        {"gen_ai.operation.name": "invoke_workflow"},
        {"openinference.span.kind": "AGENT"},
        {"openinference.span.kind": "CHAIN"},
    ],
    ids=str,
)
@pytest.mark.parametrize("record", [otlp_records.OTLP_FLAT, otlp_records.OTLP_TEXT], ids=["flat", "messages"])
def test_an_agents_span_that_repeats_its_messages_is_a_call_only_where_no_other_is(
    record: Any, kind: dict[str, str]
) -> None:
    root, first, *others, last = [span for _, span in located_spans(record)]
    repeated = {**plain_attributes(last["attributes"]), "gen_ai.usage.input_tokens": 900, **kind}
    agent = {**root, "attributes": otlp_records.listed_attributes(repeated)}
    alone = tree_of("otlp", otlp_records.otlp_request(agent))
    assert [turn.get("is_copied_context", False) for turn in alone["turns"]] == [True, False]
    whole, tree = otlp_records.otlp_request(agent, first, *others, last), tree_of("otlp", record)
    told = tree_of("otlp", whole)
    assert [turn["action"] for turn in told["turns"]] == [turn["action"] for turn in tree["turns"]]
    assert told["metadata"].get("total_tokens") == tree["metadata"].get("total_tokens")
    assert without_carried(written("otlp", told)) == without_carried(plain(whole))


def test_a_trajectory_from_elsewhere_is_written_as_spans_of_an_agent_its_chats_and_its_tools() -> None:
    request = written("otlp", tree_of("openai-messages", records.OPENAI))
    spans = [span for _, span in located_spans(request)]
    names = [span["name"] for span in spans]
    model = records.OPENAI["model"]
    assert names == [
        *("invoke_agent openai-messages", f"chat {model}", "execute_tool rain", "execute_tool wind", f"chat {model}")
    ]
    assert {span["parentSpanId"] for span in spans[1:]} == {spans[0]["spanId"]}
    told = plain_attributes(spans[1]["attributes"])
    assert told["gen_ai.operation.name"] == "chat"
    [answer] = json.loads(told["gen_ai.output.messages"])
    assert [part["type"] for part in answer["parts"]] == ["reasoning", "tool_call", "tool_call"]
    assert plain_attributes(spans[2]["attributes"])["gen_ai.tool.call.result"] == "3 mm"
    score = plain_attributes(spans[0]["events"][0]["attributes"])
    assert score["gen_ai.evaluation.score.value"] == 0.25


def test_answers_that_a_prompt_brings_along_are_copied_context() -> None:
    attributes = dict(records.LIGHTNING[3]["attributes"])
    tree = tree_of("lightning-spans", [records.lightning_span(1, "openai.chat.completion", attributes)])
    assert [turn.get("is_copied_context", False) for turn in tree["turns"]] == [True, False]


@pytest.mark.parametrize(
    "attributes",
    [
        {"agentlightning.reward.primary": 0.5},
        {"reward": 0.5},
        {"agentlightning.reward.0.value": 0.5, "agentlightning.reward.1.value": 0.1},
    ],
)
def test_rewards_are_read_in_the_words_of_every_version(attributes: dict[str, Any]) -> None:
    spans = [*records.LIGHTNING[:4], records.lightning_span(9, "agentlightning.reward", attributes)]
    assert tree_of("lightning-spans", spans)["task_context"]["reward"] == 0.5


@pytest.mark.parametrize("name", sorted(FORMATS))
@pytest.mark.parametrize("record", [None, 3, "text", [], {}, [1], {"traj": [], "steps": [], "spans": []}])
def test_what_is_no_record_of_a_format_is_refused_with_words(name: str, record: Any) -> None:
    with pytest.raises(NotOfFormat, match=r".{20}"):
        list(FORMATS[name].read(record, origin()))


def test_a_conversation_in_which_nobody_answers_is_refused() -> None:
    with pytest.raises(NotOfFormat, match="nothing in it that an agent wrote"):
        list(FORMATS["openai-messages"].read({"messages": records.CONVERSATION[:2]}, origin()))
