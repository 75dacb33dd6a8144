"""Files and directories as they are: mixed, damaged, packed; every record is imported or kept with its reason."""

import gzip
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from rl_pipeline.collection.formats import FORMATS, Importer, Refusal, RefusalFile
from rl_pipeline.collection.formats.format import Origin
from rl_pipeline.collection.formats.otlp_spans import located_spans
from rl_pipeline.collection.formats.refusals import RefusalsNotKept
from rl_pipeline.collection.formats.sources import NothingToImport
from rl_pipeline.contracts import serialize
from rl_pipeline_tests.collection.formats import otlp_records, records

CHAT = {"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Ho ☂"}]}


class Outcome:
    """What an import found and refused."""

    def __init__(self, *paths: Path, **how: Any) -> None:
        self.refused: list[Refusal] = []
        self.progress = 0
        importer = Importer(refuse=self.refused.append, progress=self._on, **how)
        self.found = list(importer.trajectories(paths))
        self.report = importer.report

    def _on(self, amount: int) -> None:
        self.progress += amount

    @property
    def ids(self) -> list[str]:
        return [found.trajectory.trajectory_id for found in self.found]

    @property
    def reasons(self) -> list[tuple[str, str]]:
        return [(refusal.origin.place, refusal.reason) for refusal in self.refused]


def lines(path: Path, *values: Any) -> Path:
    path.write_text("".join(f"{value if isinstance(value, str) else json.dumps(value)}\n" for value in values))
    return path


def test_a_bad_line_holds_up_no_other(tmp_path: Path) -> None:
    silent = {"messages": CHAT["messages"][:1]}
    strange = {"poem": "roses"}
    deep = '{"messages": [{"role": "assistant", "content": "x", "deep": ' + "[" * 70 + "]" * 70 + "}]}"
    file = lines(tmp_path / "chats.jsonl", CHAT, "{", silent, "", strange, deep, "[[[", CHAT | {"id": "2"})
    outcome = Outcome(file)
    assert len(outcome.found) == 2
    assert outcome.reasons == [
        ("line 2", "not_json"),
        ("line 3", "not_of_format"),
        ("line 5", "unknown_format"),
        ("line 6", "max_depth"),
        ("line 7", "not_json"),
    ]
    assert outcome.report.refused == Counter(not_json=2, not_of_format=1, unknown_format=1, max_depth=1)
    assert all(refusal.detail for refusal in outcome.refused)
    assert outcome.progress == file.stat().st_size


def test_halves_of_characters_and_numbers_that_are_none_are_mended_and_counted(tmp_path: Path) -> None:
    said = '{"role": "assistant", "content": "\\udc80 \\ud83d\\ude00 \\ud83d"}'
    outcome = Outcome(lines(tmp_path / "x.jsonl", f'{{"messages": [{said}], "score": NaN}}', CHAT))
    assert outcome.refused == []
    assert outcome.report.mended == 1
    mended = outcome.found[0].trajectory
    assert mended.turns[0].action.raw_response == "\ufffd 😀 \ufffd"
    assert mended.metadata.model_extra is not None
    assert mended.metadata.model_extra["source"]["score"] == "NaN"


SWE_RUN = {part: value for part, value in records.SWE_AGENT.items() if part != "replay_config"}
FILES = [*records.SINGLE, ("swe-agent", SWE_RUN, records.origin("gpt-4__SWE-bench__default__t-0.00__p-0.95/a.traj"))]


@pytest.mark.parametrize(("name", "record", "where"), FILES, ids=[where.file for _, _, where in FILES])
def test_a_file_imported_twice_has_the_same_ids_under_whatever_name(
    tmp_path: Path, name: str, record: Any, where: Origin
) -> None:
    file, copy = tmp_path / where.file, tmp_path / f"copy{Path(where.file).suffix}"
    file.parent.mkdir()
    content = [record] if FORMATS[name].layout == "array" else {where.key: record} if where.key else record
    for path in (file, copy):
        lines(path, *(content if name == "lightning-spans" else [content]))
    first = Outcome(file)
    assert first.ids == Outcome(file).ids == Outcome(copy).ids
    assert [found.format_name for found in first.found] == [name]
    assert Outcome(copy, model=where.file).ids != first.ids or records.names_itself(name, record)


@pytest.mark.parametrize("indent", [None, 2])
def test_json_of_every_shape_is_read(tmp_path: Path, indent: int | None) -> None:
    shapes = {
        "one.json": CHAT,
        "array.json": [CHAT, CHAT | {"id": "2"}],
        "conversation.json": CHAT["messages"],
        "members.json": {"1": records.INTERCODE, "2": records.INTERCODE},
        "fireact.json": {"1": records.FIREACT},
        "results.json": [records.TAU, records.TAU_REACT],
        "logs.json": {"meta": {"model": "gpt-4"}, "logs": {"1": records.INTERCODE, "2": records.INTERCODE}},
    }
    for name, value in shapes.items():
        (tmp_path / name).write_text(json.dumps(value, indent=indent))
    counts = {name: len(Outcome(tmp_path / name).found) for name in shapes}
    assert counts == {
        "one.json": 1,
        "array.json": 2,
        "conversation.json": 1,
        "members.json": 2,
        "fireact.json": 1,
        "results.json": 2,
        "logs.json": 2,
    }


def test_the_episodes_of_newer_scripts_of_intercode_tell_their_model(tmp_path: Path) -> None:
    meta = {"model": "gpt-4", "env": "sql"}
    logs = {"3": records.INTERCODE, "x": {"turn_history": {}}, "4": records.INTERCODE}
    outcome = Outcome(lines(tmp_path / "ic_sql_plan_solve.json", {"meta": meta, "logs": logs}))
    assert [refusal.detail.split(":")[0] for refusal in outcome.refused] == ['key "x"']
    first, second = outcome.found
    assert (first.trajectory.metadata.model, first.origin.key) == ("gpt-4", None)
    assert first.trajectory.trajectory_id != second.trajectory.trajectory_id
    tree = json.loads(serialize(first.trajectory))
    assert FORMATS["intercode"].name_of(tree) == "3"
    [again] = FORMATS["intercode"].write(tree)
    assert {part: again[part] for part in again if part != "rl_pipeline"} == {**records.INTERCODE, "meta": meta}


def test_packed_files_and_byte_order_marks_make_no_difference(tmp_path: Path) -> None:
    text = f"{json.dumps(CHAT)}\n{json.dumps(CHAT | {'id': '2'})}\n".encode()
    (tmp_path / "plain.jsonl").write_bytes(text)
    (tmp_path / "marked.jsonl").write_bytes(b"\xef\xbb\xbf" + text)
    (tmp_path / "packed.jsonl.gz").write_bytes(gzip.compress(text))
    ids = [Outcome(tmp_path / name).ids for name in ("plain.jsonl", "marked.jsonl", "packed.jsonl.gz")]
    assert ids[0] == ids[1] == ids[2]
    (tmp_path / "damaged.jsonl.gz").write_bytes(gzip.compress(text * 1000)[:-20])
    damaged = Outcome(tmp_path / "damaged.jsonl.gz")
    assert damaged.reasons[-1] == ("", "unreadable")


def test_a_file_that_cannot_be_read_holds_up_no_other(tmp_path: Path) -> None:
    packed = bytearray(gzip.compress(f"{json.dumps(CHAT)}\n".encode() * 1000))
    packed[40] ^= 255
    (tmp_path / "a.jsonl.gz").write_bytes(packed)
    (tmp_path / "b.jsonl.gz").write_bytes(b"\x1f\x8b not gzip")
    (tmp_path / "c.json").symlink_to(tmp_path / "gone.json")
    (tmp_path / "d.json").symlink_to(tmp_path / "d.json")
    lines(tmp_path / "e.jsonl", CHAT)
    outcome = Outcome(tmp_path)
    assert [found.origin.file.split("/")[-1] for found in outcome.found] == ["e.jsonl"]
    assert outcome.reasons == [("", "unreadable")] * 4
    told = [refusal.detail for refusal in outcome.refused]
    assert "damaged" in told[0]
    assert "No such file" in told[2]


def test_a_trace_is_gathered_from_all_requests_of_a_file_that_brought_its_spans(tmp_path: Path) -> None:
    spans = [span for _, span in located_spans(otlp_records.OTLP_FLAT)]
    other = [{**span, "traceId": "0" * 31 + "7"} for span in spans]
    lost = {**spans[0], "traceId": "none"}
    requests = [otlp_records.otlp_request(spans[3], *other[:2]), otlp_records.otlp_request(*spans[:3], lost)]
    outcome = Outcome(lines(tmp_path / "traces.jsonl", *requests, otlp_records.otlp_request(*other[2:])))
    assert [len(found.trajectory.turns) for found in outcome.found] == [2, 2]
    assert [refusal.reason for refusal in outcome.refused] == ["not_of_format"]
    assert len(set(outcome.ids)) == 2


def test_a_directory_is_read_in_order_and_what_is_of_no_format_is_passed_over(tmp_path: Path) -> None:
    traces = tmp_path / "rl_data" / "traces" / "20250109" / "agent_1"
    traces.mkdir(parents=True)
    (traces / "trace_abc123.json").write_text(json.dumps(records.MASSGEN_AS_SPECIFIED))
    (traces / "trace_b.json").write_text(json.dumps(records.MASSGEN, indent=2))
    index = tmp_path / "rl_data" / "metadata"
    index.mkdir()
    (index / "trace_index.json").write_text('{"traces": {}, "agents": {}}')
    (tmp_path / "preds.json").write_text('{"a__b-1": {"model_patch": "diff"}}')
    (tmp_path / "a.traj").write_text(json.dumps(records.SWE_AGENT))
    (tmp_path / "notes.txt").write_text("no JSON")
    (tmp_path / "refused.jsonl").write_text("{}\n")
    outcome = Outcome(tmp_path)
    assert [found.format_name for found in outcome.found] == ["swe-agent", "massgen-traces", "massgen-traces"]
    assert [name.split("/")[-1] for name in outcome.report.passed_over] == ["preds.json"]
    assert outcome.refused == []
    only = Outcome(tmp_path, wanted=FORMATS["swe-agent"])
    assert (len(only.found), len(only.report.passed_over), only.refused) == (1, 3, [])
    named = Outcome(tmp_path / "preds.json")
    assert named.reasons == [("", "unknown_format")]


@pytest.mark.parametrize(("name", "told"), [("reward.txt", "0.5\n"), ("reward.json", '{"reward": 0.5, "style": 1}')])
def test_the_verdict_of_harbors_verifier_is_read_beside_the_trajectory(tmp_path: Path, name: str, told: str) -> None:
    for directory in ("agent", "verifier"):
        (tmp_path / directory).mkdir()
    silent = {part: value for part, value in records.ATIF.items() if part != "extra"}
    (tmp_path / "agent" / "trajectory.json").write_text(json.dumps(silent))
    assert Outcome(tmp_path).found[0].trajectory.task_context.task_status is None
    (tmp_path / "verifier" / name).write_text(told)
    (found,) = Outcome(tmp_path).found
    assert (found.trajectory.task_context.task_status, found.trajectory.task_context.completion_percentage) == (
        "partial",
        50.0,
    )
    tree = json.loads(serialize(found.trajectory))
    assert json.loads(json.dumps(list(FORMATS["atif"].write(tree))))[0]["extra"]["reward"] == 0.5


def test_of_a_document_with_a_bad_subagent_everything_else_is_imported(tmp_path: Path) -> None:
    asked, good = records.ATIF_PARENT["steps"][0], records.ATIF_PARENT["subagent_trajectories"][0]
    deep: Any = "x"
    for _ in range(70):
        deep = [deep]
    bad = [{**good, "steps": [asked]}, 3, {**good, "trajectory_id": "deep", "extra": {"deep": deep}}]
    document = {**records.ATIF_PARENT, "subagent_trajectories": [*bad, {**good, "subagent_trajectories": [{}]}]}
    outcome = Outcome(lines(tmp_path / "x.jsonl", document))
    assert [found.trajectory.agent_id for found in outcome.found] == ["terminus", "asker"]
    assert [refusal.reason for refusal in outcome.refused] == ["max_depth", "not_of_format"]
    assert [part.split(":")[0] for part in outcome.refused[1].detail.split("; ")] == [
        *("subagent 1", "subagent 2", "subagent 4")
    ]
    assert outcome.report.read == Counter(atif=2)


def test_a_trajectory_of_the_contract_is_sent_to_publish(tmp_path: Path) -> None:
    (refusal,) = Outcome(lines(tmp_path / "x.jsonl", {"trajectory_id": "a", "turns": []})).refused
    assert "rl-pipeline publish" in refusal.detail


def test_spans_of_several_rollouts_are_told_apart_however_they_are_mixed(tmp_path: Path) -> None:
    other = [{**span, "rollout_id": "ro-2"} for span in records.LIGHTNING]
    mixed = [span for pair in zip(records.LIGHTNING, reversed(other), strict=True) for span in pair]
    outcome = Outcome(lines(tmp_path / "spans.jsonl", *mixed))
    assert [found.trajectory.session_id for found in outcome.found] == ["ro-1", "ro-2"]
    assert [len(found.trajectory.turns) for found in outcome.found] == [2, 2]


def test_a_named_format_is_believed_and_a_named_model_used(tmp_path: Path) -> None:
    file = lines(tmp_path / "x.jsonl", CHAT, records.TAU)
    outcome = Outcome(file, wanted=FORMATS["openai-messages"], model="my-model")
    assert [found.trajectory.metadata.model for found in outcome.found] == ["my-model"]
    assert outcome.reasons == [("line 2", "not_of_format")]


def test_structures_that_nobody_expects_are_refused_and_not_a_crash(tmp_path: Path) -> None:
    broken = [
        {"schema_version": "ATIF-v1.7", "agent": 3, "steps": [{"source": "agent", "tool_calls": [3], "metrics": []}]},
        {"trajectory": [{"action": 1, "observation": 2}], "history": [3, "x"]},
        {"turn_history": {"actions": {"a": 1}}, "summary": 3},
        {"task_id": {}, "reward": "much", "info": 3, "traj": [{"role": "assistant", "tool_calls": [[]]}]},
        {"trace_id": 3, "spans": [{"span_type": "tool", "arguments": 3}, 3]},
        {"messages": [{"role": "assistant", "content": {"a": [1]}, "tool_calls": [{"function": 3}]}, "x"]},
    ]
    outcome = Outcome(lines(tmp_path / "broken.jsonl", *broken, CHAT))
    assert len(outcome.found) + len(outcome.refused) == len(broken) + 1
    assert outcome.found[-1].format_name == "openai-messages"


def test_what_was_refused_is_kept_and_can_be_mended_and_tried_again(tmp_path: Path) -> None:
    good = {"1": records.INTERCODE, "2": {**records.INTERCODE, "turn_history": {"actions": []}}}
    file = tmp_path / "ic_sql_multiturn_gpt-4_10_turns.json"
    file.write_text(json.dumps(good))
    kept = RefusalFile(tmp_path / "refused.jsonl")
    assert len(list(Importer(refuse=kept.add).trajectories([file]))) == 1
    assert kept.path == tmp_path / "refused.jsonl"
    assert kept.path.stat().st_mode & 0o077 == 0
    (line,) = map(json.loads, kept.path.read_text().splitlines())
    assert line["record"] == good["2"]
    assert line["source"]["key"] == "2"
    assert (line["format"], line["reason"]) == ("intercode", "not_of_format")
    assert Outcome(kept.path).reasons == [('key "2"', "not_of_format")]

    line["record"]["turn_history"] = records.INTERCODE["turn_history"]
    kept.path.write_text(json.dumps(line))
    (mended,) = Outcome(kept.path).found
    assert mended.trajectory.metadata.model == "gpt-4"
    file.write_text(json.dumps({"1": records.INTERCODE, "2": line["record"]}))
    assert Outcome(file).ids[1] == mended.trajectory.trajectory_id


def refused_of(path: Path, *paths: Path) -> list[dict[str, Any]]:
    """What a file of refusals lists after an import."""
    list(Importer(refuse=RefusalFile(path).add).trajectories(paths))
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_text_that_is_no_json_is_kept_as_it_is(tmp_path: Path) -> None:
    (line,) = refused_of(tmp_path / "refused.jsonl", lines(tmp_path / "x.jsonl", CHAT, '{"messages": ', CHAT))
    assert line["text"] == '{"messages":'


def test_imports_add_to_what_was_refused_and_list_nothing_twice(tmp_path: Path) -> None:
    kept, links = tmp_path / "refused.jsonl", tmp_path / "links"
    links.mkdir()
    (links / "gone.json").symlink_to(tmp_path / "nowhere.json")
    first = lines(tmp_path / "first.jsonl", "{", {"messages": []}, CHAT, {"poem": "roses"})
    second = lines(tmp_path / "second.jsonl", {"poem": "violets"}, "[1")
    one = refused_of(kept, first, links)
    assert [line["reason"] for line in one] == ["not_json", "unknown_format", "unknown_format", "unreadable"]
    kept.write_text(kept.read_text().rstrip("\n"))
    everything = [*one, *refused_of(tmp_path / "other.jsonl", second)]
    assert refused_of(kept, first, second) == everything
    assert refused_of(kept, kept) == refused_of(kept, kept) == refused_of(kept, first, links) == everything
    assert [refusal.line()["source"] for refusal in Outcome(kept).refused] == [line["source"] for line in everything]


def test_what_two_imports_refuse_at_once_and_others_add_is_all_kept(tmp_path: Path) -> None:
    path = tmp_path / "refused.jsonl"
    one, two = RefusalFile(path), RefusalFile(path)
    told = [Refusal(records.origin(), None, "not_json", "mend it", text=str(number)) for number in range(4)]
    one.add(told[0])
    two.add(told[1])
    with path.open("a") as file:
        file.write(json.dumps(told[2].line()) + "\n")
    for refusal in told:
        one.add(refusal)
        two.add(refusal)
    assert [json.loads(line)["text"] for line in path.read_text().splitlines()] == ["0", "1", "2", "3"]
    path.unlink()
    one.add(told[0])
    assert [json.loads(line)["text"] for line in path.read_text().splitlines()] == ["0"]


def test_without_refusals_there_is_no_file_and_no_place_for_them_is_told(tmp_path: Path) -> None:
    assert RefusalFile(tmp_path / "refused.jsonl").path is None
    assert not (tmp_path / "refused.jsonl").exists()
    with pytest.raises(RefusalsNotKept, match="--refused"):
        RefusalFile(tmp_path / "none" / "refused.jsonl").add(
            Refusal(records.origin(), None, "not_json", "mend it", text="")
        )


def test_a_path_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(NothingToImport, match="name files or directories"):
        Outcome(tmp_path / "nothing.json")
    (tmp_path / "empty.jsonl").touch()
    assert Outcome(tmp_path / "empty.jsonl").reasons == [("", "empty")]
