"""Values out of files that are larger than memory, broken off, or damaged in one place."""

import io
import json
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rl_pipeline.collection.formats import Importer, json_values
from rl_pipeline.collection.formats.json_values import RawValue, raw_values, shape_of
from rl_pipeline_tests.collection.formats.records import INTERCODE

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text('ab"\\\n{}[],: é😀', max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text('a"\\é', max_size=3), inner, max_size=3),
    max_leaves=8,
)


def file_of(value: Any, **how: Any) -> io.BytesIO:
    return io.BytesIO(json.dumps(value, **how).encode())


def loaded(found: list[RawValue]) -> list[Any]:
    return [json.loads(raw.text) for raw in found]


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture]
)
@given(st.lists(values, max_size=5), st.sampled_from([None, 1]), st.booleans(), st.sampled_from([1, 2, 7, 1 << 20]))
def test_items_and_members_are_those_of_the_whole(
    monkeypatch: pytest.MonkeyPatch, items: list[Any], indent: int | None, ascii_only: bool, chunk: int
) -> None:
    monkeypatch.setattr(json_values, "_CHUNK", chunk)
    how = {"indent": indent, "ensure_ascii": ascii_only}
    assert loaded(list(raw_values(file_of(items, **how), "items"))) == items
    members = {f'é"{number}\\': item for number, item in enumerate(items)}
    found = list(raw_values(file_of(members, **how), "members"))
    assert {raw.key: json.loads(raw.text) for raw in found} == members


@pytest.mark.parametrize(
    ("text", "shape"),
    [
        (b'{"a": 1}', "whole"),
        (b'{\n "a": [1]\n}\n', "whole"),
        (b'{"a": 1}\n{"a": 2}\n', "lines"),
        (b'{"a": "\\"{"}\n{"a": 2}\n', "lines"),
        (b'\xef\xbb\xbf\n{"a": "}{"}\n\n[1]', "lines"),
        (b'[{"a": 1},\n {"a": 2}]', "items"),
        (b"[1]\n[2]\n", "lines"),
        (b"", "whole"),
    ],
)
def test_the_shape_of_a_file_is_seen_from_its_brackets(text: bytes, shape: str) -> None:
    assert shape_of(io.BytesIO(text)) == shape


def test_a_byte_order_mark_and_empty_lines_are_passed_over() -> None:
    found = list(raw_values(io.BytesIO(b'\xef\xbb\xbf{"a": 1}\r\n\r\n{"a": 2}'), "lines"))
    assert [(raw.place, raw.text) for raw in found] == [("line 1", b'{"a": 1}'), ("line 3", b'{"a": 2}')]


@pytest.mark.parametrize("shape", ["items", "lines", "members"])
def test_a_value_that_is_too_large_is_told_and_the_next_ones_follow(shape: Any) -> None:
    large = {"text": "x" * 5_000_000}
    content = {
        "items": json.dumps([large, {"a": 1}]),
        "members": json.dumps({"big": large, "small": {"a": 1}}),
        "lines": f'{json.dumps(large)}\n{{"a": 1}}\n',
    }[shape]
    first, second = raw_values(io.BytesIO(content.encode()), shape, largest=1000)
    assert (first.fault, first.text) == ("max_bytes", b"")
    assert json.loads(second.text) == {"a": 1}


def test_of_a_file_that_is_broken_off_the_whole_values_are_read() -> None:
    content = json.dumps([{"a": 1}, {"a": 2}, {"a": 3}])
    *whole, last = raw_values(io.BytesIO(content[:-5].encode()), "items")
    assert loaded(whole) == [{"a": 1}, {"a": 2}]
    assert (last.fault, last.place) == ("not_json", "after 3 values")


LONG = {"text": "}{" * 700_000}


@pytest.mark.parametrize(
    ("values", "between", "shape"),
    [
        ([LONG, LONG], "\n", "lines"),
        ([LONG, {"a": 1}], " \n\n ", "lines"),
        ([[LONG], [LONG]], "\n", "lines"),
        ([LONG], "\n", "whole"),
        ([[LONG, LONG]], "\n", "items"),
    ],
)
def test_the_shape_of_a_file_whose_first_line_is_long_is_seen_from_where_it_ends(
    values: list[Any], between: str, shape: str
) -> None:
    text = between.join(json.dumps(value) for value in values) + between
    assert shape_of(io.BytesIO(text.encode())) == shape
    assert shape_of(file_of([LONG, LONG], separators=(",\n", ":"))) == "items"
    assert shape_of(file_of({"a": LONG, "b": LONG}, separators=(",\n", ":"))) == "whole"


@pytest.mark.parametrize("shape", ["items", "lines", "members"])
def test_memory_does_not_grow_with_the_file(tmp_path: Path, shape: str) -> None:
    chat = {"messages": [{"role": "user", "content": "x" * 100_000}, {"role": "assistant", "content": "Ho"}]}
    record = json.dumps({**INTERCODE, "query": "x" * 100_000} if shape == "members" else chat)
    begin, between, end = {"items": ("[", ",", "]"), "lines": ("", "\n", "\n"), "members": ("{", ",", "}")}[shape]
    file = tmp_path / "many.json"
    with file.open("w") as out:
        for number in range(400):
            key = f'"{number}":' if shape == "members" else ""
            out.write(f"{between if number else begin}{key}{record}")
        out.write(end)
    assert file.stat().st_size > 40_000_000
    importer = Importer(refuse=lambda refusal: pytest.fail(refusal.detail))
    tracemalloc.start()
    count = sum(1 for _ in importer.trajectories([file]))
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert count == 400
    assert most < 16_000_000, "a few records, and what other threads of the tests hold"
