"""What other tools write is imported, with what was done in it, and written again as it was."""

import json
from pathlib import Path
from typing import Any

import pytest

from rl_pipeline.collection.formats import FORMATS, Importer
from rl_pipeline.collection.formats.format import Origin
from rl_pipeline.contracts import serialize
from rl_pipeline_tests.collection.formats.records import MOMENT, origin
from rl_pipeline_tests.collection.formats.test_round_trips import acts, plain, read, without_carried, written
from rl_pipeline_tests.collection.formats.wild_otlp_records import Told, request, span
from rl_pipeline_tests.collection.formats.wild_records import STEP, WILD

every_record = pytest.mark.parametrize("record_name", WILD)


def told(tree: dict[str, Any]) -> Told:
    """What was done and what came back."""
    found = []
    for turn in tree["turns"]:
        action, came = turn["action"], turn["result"]
        done = action["tool_name"] if action["type"] == "tool_call" else action["raw_response"]
        found.append((done, came.get("error") if came.get("output") is None else came["output"]))
    return found


@every_record
def test_it_is_recognised_and_tells_what_was_done_and_what_came_back(record_name: str, tmp_path: Path) -> None:
    name, record, expected = WILD[record_name]
    file = tmp_path / "record.json"
    file.write_text(json.dumps({"0": record} if name == "intercode" else record))
    refused: list[Any] = []
    (found,) = Importer(refuse=refused.append).trajectories([file])
    assert refused == []
    assert found.format_name == name
    assert told(json.loads(serialize(found.trajectory))) == expected


@every_record
def test_it_is_written_again_as_it_was_and_read_again_as_the_same(record_name: str) -> None:
    name, record, _ = WILD[record_name]
    (tree,) = read(name, record, origin())
    again = written(name, tree)
    assert read(name, again, Origin("other/place.json", MOMENT.replace(year=2026))) == [tree]
    assert without_carried(plain(again)) == without_carried(plain(record))


@every_record
@pytest.mark.parametrize("into", sorted(FORMATS))
def test_every_format_takes_it(record_name: str, into: str) -> None:
    name, record, _ = WILD[record_name]
    (tree,) = read(name, record, origin())
    (back,) = read(into, written(into, tree), origin("x.json"))
    assert acts(back) == acts(tree)


def test_thoughts_are_read_wherever_they_stand() -> None:
    names = ("reasoning under its newer name", "calls and results as parts", "the first mini-swe-agent")
    found = [read(WILD[name][0], WILD[name][1], origin())[0]["turns"][0]["thought_process"] for name in names]
    assert found == [["Hm."], ["Where?"], ["Hm.", "Look."]]


def test_a_conversation_that_is_a_list_is_the_same_trajectory_when_it_has_become_an_object() -> None:
    (tree,) = read("openai-messages", WILD["an answer of nothing"][1]["messages"], origin())
    assert read("openai-messages", written("openai-messages", tree), origin("other.json")) == [tree]


def test_attempts_of_which_none_was_chosen_are_a_trajectory_each() -> None:
    attempts = [{"trajectory": steps, "history": [], "info": {}} for steps in ([STEP], [STEP, STEP])]
    first, second = read("swe-agent", {"attempts": attempts, "environment": "swe_main"}, origin("a/a.traj"))
    assert (len(first["turns"]), len(second["turns"])) == (1, 2)
    assert first["trajectory_id"] != second["trajectory_id"]
    assert read("swe-agent", written("swe-agent", second), origin("x.traj")) == [second]


def test_spans_below_the_older_name_of_scopes_are_read_and_written_by_the_newer() -> None:
    asked = span(1, {"gen_ai.prompt": "Hi", "gen_ai.completion": "Done."})
    (tree,) = read(
        "otlp", request(asked, scopes="instrumentationLibrarySpans", scope="instrumentationLibrary"), origin()
    )
    assert told(tree) == [("Done.", None)]
    assert without_carried(written("otlp", tree)) == without_carried(request(asked))


def test_a_trace_in_base64_is_the_one_with_the_same_digits() -> None:
    (tree,) = read("otlp", WILD["ids in Base64"][1], origin())
    assert tree["trajectory_id"].replace("-", "") == "5b" * 16
