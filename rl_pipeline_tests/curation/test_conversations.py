"""What an agent was shown and what it wrote, as messages; and what of it is learnt."""

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rl_pipeline.curation.conversations import Conversation, Message, Unusable, conversation_of, opening_of, text_of
from rl_pipeline_tests.curation.frames import PROPERTY
from rl_pipeline_tests.curation.real_trajectories import real_documents
from rl_pipeline_tests.rewards.documents import call, document, says, turn, user_says

LONGEST = 16_000


def told(one: Any, longest: int = LONGEST) -> list[tuple[str, str]]:
    """Roles and contents; a call is shown behind its message."""
    found = conversation_of(json.dumps(one), longest)
    assert isinstance(found, Conversation), found
    return [(message["role"], message["content"] + _calls(message)) for message in found.messages]


def _calls(message: Message) -> str:
    functions = [one["function"] for one in message.get("tool_calls", ())]
    return "".join(f" <{one['name']} {json.dumps(one['arguments'])}>" for one in functions)


def trained(one: Any) -> list[str]:
    found = conversation_of(json.dumps(one), LONGEST)
    assert isinstance(found, Conversation), found
    return [message["content"] + _calls(message) for message in found.messages if message["trained"]]


def reason(one: Any) -> str:
    found = conversation_of(one if isinstance(one, str) else json.dumps(one), LONGEST)
    assert isinstance(found, Unusable), found
    return found.reason


def test_a_request_calls_and_an_answer_become_a_conversation() -> None:
    one = document(
        [
            call("shell", {"command": "ls"}, observed="user_message", content="What is here?", output="a.txt"),
            says("There is a.txt.", content="a.txt"),
        ]
    )
    assert told(one) == [
        ("user", "What is here?"),
        ("assistant", ' <shell {"command": "ls"}>'),
        ("tool", "a.txt"),
        ("assistant", "There is a.txt."),
    ]


def test_the_prompt_before_an_imported_observation_is_told() -> None:
    asked = user_says("Hello", "Good day.") | {"shown_before": [{"role": "system", "content": "Be polite."}]}
    assert told(document([asked])) == [("system", "Be polite."), ("user", "Hello"), ("assistant", "Good day.")]


def test_only_what_the_agent_wrote_is_learnt() -> None:
    found = conversation_of(json.dumps(document([user_says("Hello"), user_says("Bye", "Farewell.")])), LONGEST)
    assert isinstance(found, Conversation)
    assert [message["trained"] for message in found.messages] == [False, True, False, True]
    assert all(message["trained"] == (message["role"] == "assistant") for message in found.messages)


def test_a_result_that_no_observation_tells_stands_between_the_call_and_what_was_said_next() -> None:
    one = document(
        [call("clock", observed="user_message", content="Time?", output="12:00"), user_says("Well?", "Noon.")]
    )
    assert told(one)[2:] == [("tool", "12:00"), ("user", "Well?"), ("assistant", "Noon.")]


def test_a_tool_that_returned_nothing_answers_all_the_same() -> None:
    raw = {"type": "tool_call", "tool_name": "bash", "tool_args": {"cmd": "mkdir new"}, "raw_response": "mkdir new"}
    for output in ("", None, []):
        one = document([turn(raw, observed="user_message", content="Make it", output=output), says("Made.")])
        assert told(one)[1:] == [("assistant", "mkdir new"), ("tool", ""), ("assistant", "Made.")]


def test_where_nobody_noted_a_result_what_is_shown_next_is_all_that_came_of_the_call() -> None:
    raw = {"type": "tool_call", "tool_name": "look", "tool_args": {"at": "sky"}, "raw_response": "look at the sky"}
    one = document([turn(raw, observed="user_message", content="Look"), user_says("Observation: blue", "It is blue.")])
    assert told(one)[1:] == [
        ("assistant", "look at the sky"),
        ("user", "Observation: blue"),
        ("assistant", "It is blue."),
    ]


def test_a_result_is_told_once_however_many_messages_come_after_it() -> None:
    for output, shown in (("blue", {"role": "tool", "content": "blue"}), ("", {"role": "user", "content": "Well?"})):
        asked = user_says("And now?", "It is blue.") | {"shown_before": [shown, {"role": "user", "content": "Hm."}]}
        one = document([call("look", observed="user_message", content="Look", output=output), asked])
        assert [(role, text) for role, text in told(one) if role == "tool"] == [("tool", output)]


def test_a_result_that_the_next_observation_tells_is_told_once() -> None:
    long = "twenty characters at least"
    one = document(
        [
            call("look", observed="user_message", content="Look", output=long),
            says("I see.", observed="user_message", content=f"Observation: {long}"),
        ]
    )
    assert told(one)[2:] == [("tool", f"Observation: {long}"), ("assistant", "I see.")]


def test_a_request_that_is_repeated_beside_each_result_is_told_once() -> None:
    asked = {"observed": "user_message", "content": "Count them"}
    one = document([call("count", {"of": "sheep"}, output="3", **asked), call("count", {"of": "goats"}, **asked)])
    assert [role for role, _ in told(one)] == ["user", "assistant", "tool", "assistant"]


def test_an_error_is_part_of_what_a_tool_returned() -> None:
    one = document(
        [call("run", observed="user_message", content="Run", output="half", error="broke"), says("It broke.")]
    )
    assert told(one)[2] == ("tool", "half\nbroke")


def test_what_the_last_action_led_to_is_left_out() -> None:
    assert told(document([call("run", observed="user_message", content="Run", output="done")]))[-1][0] == "assistant"


def test_a_raw_response_that_tells_its_call_is_the_whole_message() -> None:
    raw = 'I look it up.\nAction: search["Ada Lovelace"]'
    one = document([turn({"type": "tool_call", "tool_name": "search", "tool_args": {"q": "Ada Lovelace"},
                          "raw_response": raw}, observed="user_message", content="Who?")])  # fmt: skip
    assert told(one)[1] == ("assistant", raw)


def test_a_call_whose_arguments_are_told_as_json_is_told() -> None:
    raw = json.dumps({"tool_name": "code_exe", "tool_args": {"code": 'print("x")\nprint(2)'}})
    action = {"type": "tool_call", "tool_name": "code_exe", "tool_args": {"code": 'print("x")\nprint(2)'}}
    assert told(document([turn(action | {"raw_response": raw}, content="Go")]))[1] == ("assistant", raw)


def test_a_call_beside_a_text_that_does_not_tell_it_is_added() -> None:
    action = {"type": "tool_call", "tool_name": "book", "tool_args": {"flight": "HAT136"}}
    one = document([turn(action | {"raw_response": "One moment."}, observed="user_message", content="Book it")])
    assert told(one)[1] == ("assistant", 'One moment. <book {"flight": "HAT136"}>')


def test_in_an_environment_the_raw_response_is_the_action() -> None:
    action = {"type": "tool_call", "tool_name": "act", "tool_args": {"verb": "craft", "thing": "table"}}
    task = {"environment": "crafting", "environment_task": {"start": 3, "goal": "table"}}
    one = document([turn(action | {"raw_response": "craft  TABLE"}, content="Goal: table.")], task)
    found = conversation_of(json.dumps(one), LONGEST)
    assert isinstance(found, Conversation)
    assert told(one) == [("user", "Goal: table."), ("assistant", "craft  TABLE")]
    assert (found.environment, found.environment_task) == ("crafting", '{"goal":"table","start":3}')


def test_saying_nothing_in_an_environment_is_an_action() -> None:
    action = {"type": "tool_call", "tool_name": "crafting", "tool_args": {"command": ""}, "raw_response": ""}
    one = document([turn(action, content="Goal: table.")], {"environment": "crafting"})
    assert told(one) == [("user", "Goal: table."), ("assistant", "")]


def test_thoughts_stand_for_a_raw_response_that_is_missing() -> None:
    one = call("shell", {"command": "ls"}, observed="user_message", content="What is here?")
    assert told(document([one | {"thought_process": ["Look first.", "Then tell."]}]))[1] == (
        "assistant",
        'Look first.\nThen tell. <shell {"command": "ls"}>',
    )


def test_an_answer_without_a_raw_response_is_its_result() -> None:
    one = document([turn({"type": "response"}, output={"text": "Done."}, observed="user_message", content="Do it")])
    assert told(one) == [("user", "Do it"), ("assistant", "Done.")]


def test_other_agents_are_not_learnt_from_and_not_part_of_the_view() -> None:
    one = document(
        [
            user_says("Ask the others", "I delegate."),
            says("I am the subordinate.", agent="helper", content="secret plan"),
            says("They answered.", observed="subordinate_response", content="42", agent="main"),
        ]
    )
    assert told(one) == [
        ("user", "Ask the others"),
        ("assistant", "I delegate."),
        ("tool", "42"),
        ("assistant", "They answered."),
    ]


@pytest.mark.parametrize("place", ["turn", "observation", "action", "result", "sampling", "extra", "metadata"])
def test_copied_context_is_shown_and_not_learnt(place: str) -> None:
    copied = user_says("Earlier", "Said before.")
    (copied if place == "turn" else copied.setdefault(place, {}))["is_copied_context"] = True
    one = document([copied, user_says("Now", "Said now.")])
    assert trained(one) == ["Said now."]
    assert ("assistant", "Said before.") in told(one)


def test_a_turn_that_is_marked_as_not_copied_is_learnt() -> None:
    assert trained(document([user_says("Hi", "Hello.") | {"is_copied_context": False}])) == ["Hello."]


def test_the_request_opens_the_conversation_unless_the_first_message_tells_it() -> None:
    task = {"instructions": "Solve it."}
    assert told(document([says("Done.", content="state: 1")], task)) == [
        ("user", "Solve it.\nstate: 1"),
        ("assistant", "Done."),
    ]
    assert told(document([user_says("Please: Solve it. Now")], task))[0] == ("user", "Please: Solve it. Now")


def test_a_system_message_opens_and_a_later_one_is_told_as_the_users() -> None:
    one = document(
        [
            says("Ready.", observed="system_message", content="Be brief."),
            says("Yes.", observed="system_message", content="Be briefer."),
        ],
        {"instructions": "Wait."},
    )
    assert told(one) == [
        ("system", "Be brief."),
        ("user", "Wait."),
        ("assistant", "Ready."),
        ("user", "Be briefer."),
        ("assistant", "Yes."),
    ]


def test_the_middle_of_a_huge_observation_is_left_out_and_what_was_written_is_not() -> None:
    one = document([user_says("x" * 50_000 + "end", "y" * 50_000)])
    (_, shown), (_, written) = told(one, 1000)
    assert len(shown) < 1100
    assert "49003 characters left out" in shown
    assert shown.endswith("end")
    assert len(written) == 50_000


def test_contents_that_are_objects_become_text() -> None:
    assert text_of({"parts": ["a", {"type": "text", "text": "b"}, {"type": "image_url", "url": "data:…"}]}) == (
        "a\nb\n[image_url]"
    )
    assert text_of({"text": "plain"}) == "plain"
    assert text_of({"exit_code": 1, "stdout": "é"}) == '{"exit_code":1,"stdout":"é"}'
    assert text_of(None) == ""
    assert text_of(3) == "3"


def test_nothing_is_learnt_from_who_does_not_want_it() -> None:
    assert reason(document([user_says("Hi")], {"opt_out": True})) == "opted_out"
    assert reason(document([user_says("Hi")], metadata={"opt_out": True})) == "opted_out"


def test_why_a_trajectory_teaches_nothing_is_told() -> None:
    assert reason(document([user_says("Hi", "")])) == "nothing_written"
    assert reason(document([user_says("Hi") | {"agent_id": "another"}])) == "nothing_written"
    assert reason(document([says("Hello?")])) == "nothing_asked"
    assert reason(document([])) == "nothing_written"
    assert reason("{not json") == reason("[]") == reason('"text"') == "unreadable"


_ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**40), 2**40) | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=12)
    | st.sampled_from(["response", "tool_call", "user_message", "tool_result", "system_message", "main", "out"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["parts", "text", "type"]), inner),
    max_leaves=5,
)  # fmt: skip


def _part(*names: str) -> st.SearchStrategy[Any]:
    return _ANYTHING | st.fixed_dictionaries({}, optional=dict.fromkeys(names, _ANYTHING))


_TURN = st.fixed_dictionaries(
    {},
    optional={
        "agent_id": _ANYTHING,
        "observation": _part("type", "content", "is_copied_context"),
        "action": _part("type", "tool_name", "tool_args", "raw_response"),
        "result": _part("output", "error"),
        "thought_process": _ANYTHING,
        "is_copied_context": _ANYTHING,
    },
)


@settings(PROPERTY, max_examples=300)
@given(st.lists(_TURN | _ANYTHING, max_size=5), _part("instructions", "environment", "environment_task", "opt_out"))
def test_whatever_open_objects_hold_the_messages_are_in_order(turns: list[Any], task: Any) -> None:
    found = conversation_of(json.dumps({"agent_id": "main", "turns": turns, "task_context": task}), LONGEST)
    if isinstance(found, Unusable):
        return
    roles = [message["role"] for message in found.messages]
    assert roles[0] in ("system", "user")
    assert found.messages[-1]["trained"]
    assert "system" not in roles[1:] or roles[:2] == ["system", "system"]
    for message in found.messages:
        assert isinstance(message["content"], str)
        assert not message["trained"] or message["role"] == "assistant"
        empty = not message["content"].strip()
        assert not empty or message.get("tool_calls") or message["role"] == "tool" or found.environment
    assert opening_of(found.messages)


def test_real_trajectories_become_conversations_that_can_be_learnt_from(test_data: Path) -> None:
    found = {one["trajectory_id"]: conversation_of(json.dumps(one), LONGEST) for one in real_documents(test_data)}
    unusable = [one.reason for one in found.values() if isinstance(one, Unusable)]
    assert len(found) - len(unusable) > 300
    assert unusable == ["nothing_written"], "one file has a history and no turns"
    for one in found.values():
        if isinstance(one, Unusable):
            continue
        roles = [message["role"] for message in one.messages]
        assert roles[0] == "user"
        assert roles[-1] == "assistant"
        assert all(message["trained"] == (message["role"] == "assistant") for message in one.messages)
        assert all(len(message["content"]) < 17_000 for message in one.messages if message["role"] != "assistant")
        for before, message in pairwise(one.messages):
            assert "tool_calls" not in before or message["role"] == "tool", "a call is answered"
            assert (before["role"], message["role"]) != ("user", "user")
