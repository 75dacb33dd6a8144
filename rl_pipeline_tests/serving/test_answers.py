"""The served model's id in whatever a backend answers."""

import itertools

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rl_pipeline.serving.answers import EventStream, Unreadable, answer_id, renamed
from rl_pipeline_tests.serving.stub_backend import event

STREAM = b": hello\r\n\n" + event("Gr\u00fc\u00dfe, ") + event("\u4e16\u754c") + b"data: [DONE]\n\n"


def read(stream: bytes) -> list[dict[str, object]]:
    return [orjson.loads(line[6:]) for line in stream.splitlines() if line.startswith(b"data: {")]


def test_an_answers_id_says_generation_and_model_and_is_new_each_time() -> None:
    assert answer_id(7, "agent-zero-rl-v2.4").startswith("chatcmpl-7-agent-zero-rl-v2.4-")
    assert answer_id(7, "m") != answer_id(7, "m")


def test_an_answer_is_changed_in_its_ids_alone() -> None:
    theirs = {"id": "x", "model": "y", "choices": [{"index": 0}], "usage": {"prompt_tokens": 1}, "more": [1.5, None]}
    content, usage = renamed(orjson.dumps(theirs), "model-1", "id-1")
    assert orjson.loads(content) == {**theirs, "id": "id-1", "model": "model-1"}
    assert usage == {"prompt_tokens": 1}


@pytest.mark.parametrize("answer", [b"", b"<html>", b"[]", b'"text"', b"{}"])
def test_what_is_no_answer_is_not_passed_on(answer: bytes) -> None:
    with pytest.raises(Unreadable):
        renamed(answer, "model-1", "id-1")


@given(cuts=st.lists(st.integers(0, len(STREAM)), max_size=8))
def test_a_stream_reads_the_same_however_it_is_cut(cuts: list[int]) -> None:
    events = EventStream("model-1", "id-1")
    places = [0, *sorted(cuts), len(STREAM)]
    passed = b"".join(events.feed(STREAM[start:end]) for start, end in itertools.pairwise(places))
    assert passed == EventStream("model-1", "id-1").feed(STREAM)
    assert [(each["id"], each["model"]) for each in read(passed)] == [("id-1", "model-1")] * 2
    assert [each["choices"] for each in read(passed)] == [each["choices"] for each in read(STREAM)]
    assert events.is_done
    assert not events.has_failed


def test_every_complete_event_passes_at_once() -> None:
    events = EventStream("model-1", "id-1")
    whole = event("a")
    assert read(events.feed(whole + event("b")[:20])) == read(EventStream("model-1", "id-1").feed(whole))


def test_an_error_within_a_stream_is_noticed() -> None:
    events = EventStream("model-1", "id-1")
    assert events.feed(b'data: {"error": {"message": "x"}}\n\n')
    assert events.has_failed


def test_rubbish_within_a_stream_is_not_passed_on() -> None:
    with pytest.raises(Unreadable):
        EventStream("model-1", "id-1").feed(b"data: {half\n")


def passed_and_ended(stream: bytes) -> tuple[bytes, EventStream]:
    events = EventStream("model-1", "id-1")
    return events.feed(stream) + events.finish(), events


def test_an_error_that_is_null_is_none() -> None:
    _, events = passed_and_ended(b'data: {"choices": [], "error": null}\n\ndata: [DONE]\n\n')
    assert (events.is_done, events.has_failed) == (True, False)


def test_an_event_without_data_is_left_out() -> None:
    passed, events = passed_and_ended(b"data:\n\n" + event("a") + b"data: \n\ndata: [DONE]\n\n")
    assert (events.is_done, events.has_failed) == (True, False)
    assert [line for line in passed.splitlines() if line][1:] == [b"data: [DONE]"]


@pytest.mark.parametrize("end", [b"", b"\n", b"\r\n", b"\n\n"])
def test_a_stream_whose_last_line_lacks_its_end_is_complete(end: bytes) -> None:
    passed, events = passed_and_ended(event("a") + b"data: [DONE]" + end)
    assert events.is_done
    assert read(passed)
    assert b"data: [DONE]" in passed


def test_a_stream_that_ends_within_an_event_is_not_complete() -> None:
    with pytest.raises(Unreadable):
        passed_and_ended(event("a") + b'data: {"choices"')


def test_an_answer_that_is_nested_too_deeply_is_not_passed_on() -> None:
    deep = b'{"choices":' + b"[" * 300 + b"]" * 300 + b"}"
    with pytest.raises(Unreadable):
        renamed(deep, "model-1", "id-1")
    with pytest.raises(Unreadable):
        passed_and_ended(b"data: " + deep + b"\n\n")
