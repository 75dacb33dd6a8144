"""Two conversations, one prompt."""

from typing import Any

from rl_pipeline.curation.conversations import Message
from rl_pipeline.curation.preferences import preference_of


def message(role: Any, content: str, *, trained: bool | None = None) -> Message:
    return {"role": role, "content": content, "trained": role == "assistant" if trained is None else trained}


def user(content: str) -> Message:
    return message("user", content)


def agent(content: str, *, trained: bool = True) -> Message:
    return message("assistant", content, trained=trained)


def tool(content: str) -> Message:
    return message("tool", content)


def contents(messages: Any) -> list[str]:
    return [one["content"] for one in messages]


def test_the_prompt_is_everything_that_both_have_in_common() -> None:
    common = [user("Goal"), agent("look"), tool("a door")]
    found = preference_of([*common, agent("open"), tool("free"), agent("go")], [*common, agent("wait")])
    assert found is not None
    assert contents(found.prompt) == ["Goal", "look", "a door"]
    assert contents(found.chosen) == ["open", "free", "go"]
    assert contents(found.rejected) == ["wait"]
    assert not any(one["trained"] for one in found.prompt), "what both did is learnt from neither"


def test_what_the_world_did_differently_is_no_choice_of_the_agent() -> None:
    same = [user("Goal"), agent("roll the dice")]
    assert preference_of([*same, tool("6"), agent("take it")], [*same, tool("1"), agent("take it")]) is None


def test_where_the_world_differs_first_both_go_on_from_the_action_before() -> None:
    same = [user("Goal"), agent("roll the dice")]
    found = preference_of([*same, tool("6"), agent("take it")], [*same, tool("1"), agent("leave it")])
    assert found is not None
    assert contents(found.prompt) == ["Goal"]
    assert contents(found.chosen) == ["roll the dice", "6", "take it"]


def test_one_that_stops_earlier_is_compared_from_its_last_action_on() -> None:
    short = [user("Goal"), agent("look")]
    found = preference_of([*short, tool("a door"), agent("open")], short)
    assert found is not None
    assert contents(found.rejected) == ["look"]
    assert contents(found.chosen) == ["look", "a door", "open"]


def test_who_was_asked_something_else_is_not_compared() -> None:
    assert preference_of([user("One"), agent("a")], [user("Two"), agent("b")]) is None
    assert preference_of([user("One"), agent("a")], [user("One"), user("more"), agent("b")]) is None


def test_who_wrote_the_same_or_nothing_to_learn_is_not_compared() -> None:
    assert preference_of([user("One"), agent("a")], [user("One"), agent("a")]) is None
    assert preference_of([user("One"), agent("a")], [user("One"), agent("b", trained=False)]) is None


def test_calls_are_part_of_what_was_done() -> None:
    def calling(city: str) -> Message:
        call = {"type": "function", "function": {"name": "weather", "arguments": {"city": city}}}
        return {**agent(""), "tool_calls": [call]}

    assert preference_of([user("?"), calling("Rome")], [user("?"), calling("Oslo")]) is not None
    assert preference_of([user("?"), calling("Rome")], [user("?"), calling("Rome")]) is None
