"""Files of items, and what is wrong with them."""

from pathlib import Path

import pytest

from rl_pipeline.validation.item_files import InvalidItems, Line, read_json_lines, read_table


class Question(Line):
    id: str
    weight: float = 1.0


def write(directory: Path, content: str | bytes) -> Path:
    path = directory / "items"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def test_lines_are_read_in_order_and_empty_ones_are_left_out(tmp_path: Path) -> None:
    path = write(tmp_path, '{"id": "a"}\n\n{"id": "b", "weight": 2}\n')
    assert [(one.id, one.weight) for one in read_json_lines(path, Question)] == [("a", 1.0), ("b", 2.0)]


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        pytest.param('{"id": "a"}\n{"id": \n', "line 2 is no JSON object", id="broken"),
        pytest.param('{"id": "a"}\n{"id": "b", "id": "c"}', "line 2 is no JSON object", id="a key twice"),
        pytest.param('{"id": "a", "weight": NaN}', "line 1 is no JSON object", id="no number"),
        pytest.param('{"id": "a"}\n["b"]', "line 2: the object", id="no object"),
        pytest.param('{"id": 7}', "line 1: id: ", id="another type"),
        pytest.param('{"weight": 1}', "line 1: id: Field required", id="missing"),
        pytest.param('{"id": "a", "wieght": 1}', "line 1: wieght: Extra inputs", id="misspelt"),
        pytest.param('{"id": "a"}\n{"id": "a"}', "item 2: id 'a' was there before", id="twice"),
        pytest.param("\n\n", "has no items", id="empty"),
        pytest.param(b'{"id": "\xff"}', "line 1 is no JSON object", id="not UTF-8"),
    ],
)
def test_what_is_wrong_is_said_with_its_line(content: str | bytes, complaint: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidItems) as raised:
        read_json_lines(write(tmp_path, content), Question)
    assert complaint in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_file_that_is_not_there_is_said_so(tmp_path: Path) -> None:
    with pytest.raises(InvalidItems, match=r"cannot be read \(No such file"):
        read_json_lines(tmp_path / "nothing", Question)


def test_tables_keep_line_breaks_within_a_field(tmp_path: Path) -> None:
    rows = read_table(write(tmp_path, 'id,text\n1,"one\ntwo"\n2,three\n'), ("id", "text"))
    assert [row["text"] for row in rows] == ["one\ntwo", "three"]


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ("id\n1\n", "has no column 'text'"),
        ("id,text\n1\n", "line 2: a column is missing"),
        ("id,text\n", "has no items"),
    ],
)
def test_what_is_wrong_with_a_table_is_said(content: str, complaint: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidItems, match=complaint):
        read_table(write(tmp_path, content), ("id", "text"))
