"""Import, export, import: nothing that a format can carry is lost on the way."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rl_pipeline.collection.formats import FORMATS, Importer, export_trajectories
from rl_pipeline.collection.formats.format import CARRIED, Origin
from rl_pipeline.collection.formats.otlp_spans import located_spans
from rl_pipeline.contracts import CLAIMED_LIMITS, serialize, validate_trajectory
from rl_pipeline_tests.collection.formats.records import CONVERSATION, MOMENT, SINGLE, origin

NAMES = [f"{name}-{number}" for number, (name, _, _) in enumerate(SINGLE)]


def plain(value: Any) -> Any:
    """As JSON has it."""
    return json.loads(json.dumps(value))


def read(name: str, record: Any, where: Origin) -> list[dict[str, Any]]:
    trees = list(FORMATS[name].read(plain(record), where))
    return [json.loads(serialize(validate_trajectory(tree, limits=CLAIMED_LIMITS))) for tree in trees]


def written(name: str, tree: dict[str, Any]) -> Any:
    records = plain(list(FORMATS[name].write(tree)))
    return records if name == "lightning-spans" else records[0]


def without_carried(record: Any) -> Any:
    """The record as it was, without the field that is ours."""
    if isinstance(record, list):
        return [{name: value for name, value in span.items() if name != CARRIED} for span in record]
    if "resourceSpans" in record:
        return without_carried_attribute(record)
    if isinstance(record.get("extra"), dict):
        return {**record, "extra": {name: value for name, value in record["extra"].items() if name != CARRIED}}
    return {name: value for name, value in record.items() if name != CARRIED}


def without_carried_attribute(request: Any) -> Any:
    """Spans have their attributes as a list; the order of these tells nothing."""
    for _, span in located_spans(request):
        kept = [one for one in span["attributes"] if one["key"] != CARRIED]
        span["attributes"] = sorted(kept, key=lambda one: str(one["key"]))
    return request


@pytest.mark.parametrize(("name", "record", "where"), SINGLE, ids=NAMES)
def test_what_is_written_again_is_the_record_as_it_was(name: str, record: Any, where: Origin) -> None:
    (tree,) = read(name, record, where)
    again = without_carried(written(name, tree))
    assert again == without_carried(plain(record))


@pytest.mark.parametrize(("name", "record", "where"), SINGLE, ids=NAMES)
def test_what_was_written_again_is_the_same_trajectory_wherever_it_then_stands(
    name: str, record: Any, where: Origin
) -> None:
    (tree,) = read(name, record, where)
    elsewhere = Origin("other/place.json", MOMENT.replace(year=2026), key="another")
    assert read(name, written(name, tree), elsewhere) == [tree]


@pytest.mark.parametrize("into", sorted(FORMATS))
@pytest.mark.parametrize(("name", "record", "where"), SINGLE, ids=NAMES)
def test_every_format_takes_the_trajectories_of_every_other(name: str, record: Any, where: Origin, into: str) -> None:
    (tree,) = read(name, record, where)
    again = written(into, tree)
    assert FORMATS[into].fits(again[0] if into == "lightning-spans" else again)
    (back,) = read(into, again, origin("x.json"))
    kept = ("trajectory_id", "session_id", "agent_id", "start_timestamp", "end_timestamp")
    assert {part: back[part] for part in kept} == {part: tree[part] for part in kept}
    if into != name:
        assert (back["task_context"], back["metadata"]) == (tree["task_context"], tree["metadata"])
    assert acts(back) == acts(tree)


def acts(tree: dict[str, Any]) -> list[Any]:
    """What the agent did, in order."""
    actions = [turn["action"] for turn in tree["turns"]]
    return [
        (action["tool_name"], action.get("tool_args") or {}) if action["type"] != "response" else action["raw_response"]
        for action in actions
    ]


CALLS = [
    {"type": "tool_call", "tool_name": "bash", "tool_args": {"command": "bash run.sh"}},
    {"type": "tool_call", "tool_name": "bash", "tool_args": {"command": "ls", "timeout": 3}, "is_parallel": True},
    {"type": "response", "raw_response": 'rain {"place":"Graz"}'},
    {"type": "tool_call", "tool_name": "rain", "tool_args": {"place": "Graz"}, "raw_response": "I look."},
    {"type": "tool_call", "tool_name": "make clean", "tool_args": {"command": "all"}},
    {"type": "tool_call", "tool_name": "stop"},
    {"type": "response", "raw_response": "Done."},
]


@pytest.mark.parametrize("into", sorted(FORMATS))
def test_every_call_is_written_with_its_name_its_arguments_and_what_it_returned(into: str) -> None:
    answers = [{"role": "assistant", "content": ""}] * len(CALLS)
    (tree,) = read("openai-messages", [{"role": "user", "content": "a"}, *answers], origin())
    for number, (turn, action) in enumerate(zip(tree["turns"], CALLS, strict=True)):
        turn["action"] = dict(action)
        if action["type"] != "response":
            turn["result"] = {"success": True, "output": f"result {number}"}
    (back,) = read(into, written(into, tree), origin())
    assert acts(back) == acts(tree)
    assert [turn["result"].get("output") or None for turn in back["turns"]] == [
        turn["result"].get("output") for turn in tree["turns"]
    ]


def test_lists_of_intercode_have_nulls_where_a_turn_tells_nothing() -> None:
    (tree,) = read("openai-messages", CONVERSATION, origin())
    tree["turns"][1]["thought_process"], tree["turns"][2]["reward"] = None, 0.5
    assert written("intercode", tree)["turn_history"] == {
        "actions": ['rain {"place":"Graz"}', 'wind {"place": "Graz"}', "Yes, take one."],
        "observations": ["3 mm", [{"type": "text", "text": "calm"}]],
        "rewards": [None, None, 0.5],
        "valid_action": [True, True],
        "thoughts": ["Two places to look."],
    }


def test_the_files_of_a_format_are_read_by_its_importer(tmp_path: Path) -> None:
    trees = {name: read(name, record, where)[0] for name, record, where in SINGLE}
    for name, into in FORMATS.items():
        out = tmp_path / f"{name}{'' if into.layout == 'files' else into.suffix}"
        assert export_trajectories(trees.values(), into, out) == len(trees)
        refused: list[Any] = []
        importer = Importer(refuse=refused.append)
        back = {found.trajectory.trajectory_id for found in importer.trajectories([out])}
        assert refused == []
        assert back == {tree["trajectory_id"] for tree in trees.values()}
        assert set(importer.report.read) == {name}


texts = st.text(max_size=20)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=6,
)
arguments = st.dictionaries(texts, json_values, max_size=3).map(json.dumps) | json_values


@st.composite
def conversations(draw: st.DrawFn) -> list[dict[str, Any]]:
    """What a chat can hold: calls in parallel, calls without answers, parts, and fields that nobody has heard of."""
    messages: list[dict[str, Any]] = draw(
        st.lists(st.fixed_dictionaries({"role": st.sampled_from(["system", "user", "developer"]), "content": texts}))
    )
    for number in range(draw(st.integers(1, 4))):
        content = draw(st.none() | texts | st.just([{"type": "text", "text": "part"}]))
        answer: dict[str, Any] = {"role": "assistant", "content": content}
        answer |= draw(st.dictionaries(st.sampled_from(["name", "refusal", "x-note"]), texts))
        calls = [f"call-{number}-{place}" for place in range(draw(st.integers(0, 3)))]
        if calls:
            answer["tool_calls"] = [
                {"id": call, "type": "function", "function": {"name": draw(texts), "arguments": draw(arguments)}}
                for call in calls
            ]
        elif content is None:
            answer["content"] = ""
        messages.append(answer)
        for call in calls[: draw(st.integers(0, len(calls)))]:
            messages.append({"role": "tool", "tool_call_id": call, "content": draw(st.none() | texts)})
        messages += [{"role": "user", "content": text} for text in draw(st.lists(texts, max_size=2))]
    return messages


unhurried = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@unhurried
@given(conversations())
def test_any_conversation_survives(messages: list[dict[str, Any]]) -> None:
    (tree,) = read("openai-messages", {"messages": messages}, origin("chats.jsonl"))
    again = written("openai-messages", tree)
    assert again["messages"] == messages
    assert read("openai-messages", again, origin("other.jsonl")) == [tree]


@unhurried
@given(
    st.lists(
        st.tuples(texts, *(st.none() | value for value in (texts, st.floats(0, 1), st.booleans(), texts))),
        min_size=1,
        max_size=5,
    ),
    json_values,
)
def test_any_episode_of_intercode_survives(turns: list[tuple[Any, ...]], info: Any) -> None:
    names = ("actions", "observations", "rewards", "valid_action", "thoughts")
    lists = dict(zip(names, map(list, zip(*turns, strict=True)), strict=True))
    record = {"environment": "ic_bash", "task_id": 1, "query": "q", "turn_history": lists, "info": info}
    (tree,) = read("intercode", record, origin("ic_bash_multiturn_gpt-4_10_turns.json", key="1"))
    again = written("intercode", tree)
    assert without_carried(again) == record
    assert read("intercode", again, origin("x.json", key="1")) == [tree]
