"""Values that escapes, colours, JSON inside of strings or the shape of a tree would hide; with all packaged rules."""

import json
from typing import Any

import pytest

from rl_pipeline.redaction.literals import occurrences
from rl_pipeline.redaction.passage import Passage
from rl_pipeline.redaction.policy import InvalidPolicy, RedactionKey, RedactionPolicy
from rl_pipeline.redaction.redactor import PLACEHOLDER, Redactor

KEY = RedactionKey.parse("v1:" + "k" * 32)
TOOL = Redactor(RedactionPolicy(KEY, {"Ada Lovell": "NAME", "王芳": "NAME"}))
ACCESS_KEY = "AKIAQ3EG5TXQ7MZP2LXV"
VALUES = (ACCESS_KEY, "4454794511390933", "41.173.96.26", "jane.doe@mail-house.org")


def redacted(tree: Any) -> Any:
    once = TOOL.redact(tree).tree
    assert TOOL.redact(once).tree == once
    return once


@pytest.mark.parametrize("value", VALUES)
@pytest.mark.parametrize("space", ["\n", "\r\n", "\t"])
@pytest.mark.parametrize("depth", [1, 2, 3])
def test_a_value_after_an_escaped_line_end_has_the_placeholder_that_it_has_anywhere(
    value: str, space: str, depth: int
) -> None:
    document: Any = {"content": f"A:{space}{value}{space}then"}
    placeholder = redacted([f"A:\n{value}\nthen"])[0].split("\n")[1]
    assert PLACEHOLDER.fullmatch(placeholder)
    text: Any = document
    for _ in range(depth):
        text = json.dumps(text)
    text = redacted({"arguments": text})["arguments"]
    for _ in range(depth):
        text = json.loads(text)
    assert text == {"content": f"A:{space}{placeholder}{space}then"}


@pytest.mark.parametrize("value", VALUES)
@pytest.mark.parametrize("escape", ["\x1b", r"\u001b", r"\x1b", r"\033", r"\e"])
def test_a_coloured_value_is_found_without_its_colours(value: str, escape: str) -> None:
    text = f"see {escape}[1;32m{value}{escape}[0m there"
    left = redacted([text])[0]
    assert value not in left
    assert left.startswith(f"see {escape}[1;32m[REDACTED:")
    assert left.endswith(f"]{escape}[0m there")


@pytest.mark.parametrize("before", ["%22", "%3D", "%20", "%3a", r"\u0022", r"\u003d", r"\x27", r"\x3D"])
def test_an_escaped_sign_before_a_value_does_not_hide_it(before: str) -> None:
    assert redacted([f"x{before}{ACCESS_KEY}"])[0].startswith(f"x{before}[REDACTED:API_KEY")


def test_blanks_are_only_for_scanning_and_as_long_as_what_they_stand_for() -> None:
    texts = [r"a\nb \\t \u0022c", "\x1b[31mred", "%22x%2B"]
    passage = Passage(texts)
    assert len(passage.buffer) == len(passage.unblanked)
    assert passage.value(0, len(passage.buffer)).decode().split("\n\x00\n") == texts
    assert b"%2B" in passage.buffer


def test_a_known_value_is_found_where_it_is_written_like_an_escape() -> None:
    known = {r"ACME\nick.81723": "USER", "tobias-81723": "USER"}
    tree = TOOL.redact([r"by ACME\nick.81723 in C:\tobias-81723"], known).tree
    assert "81723" not in tree[0]


def test_values_that_overlap_themselves_take_no_longer_than_others() -> None:
    class Counted(bytes):
        searches = 0

        def find(self, *arguments: Any) -> int:
            Counted.searches += 1
            return super().find(*arguments)

    buffer = Counted(b"a1" * 4096)
    assert len(list(occurrences(buffer, [b"a1" * 512]))) == 8
    assert Counted.searches <= 16


def test_a_long_periodic_value_is_redacted_at_a_mebibyte() -> None:
    half = "a1" * (1 << 17)
    assert "a1" not in json.dumps(TOOL.redact({"password": half, "text": half * 4}).tree)
    TOOL.redact({"text": "ZXlK" * (1 << 18)})


@pytest.mark.parametrize(
    "piece", ["\\", '"password":"', r"\"password\":\"", r'"password":"\\', "\\u001b[", '"password', "%22a1"]
)
def test_a_mebibyte_of_escapes_is_redacted(piece: str) -> None:
    text = '"password": "' + piece * ((1 << 20) // len(piece))
    TOOL.redact([text])


@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize(
    ("name", "value"),
    [("password", "correct horse battery"), ("last_name", "Smith"), ("db-password", "a\\"), ("apiKey", 'quo"ted "')],
)
def test_json_inside_a_string_is_judged_by_its_names(depth: int, name: str, value: str) -> None:
    text: Any = {"user": "ada", name: value, "after": "it"}
    for _ in range(depth):
        text = json.dumps(text)
    text = redacted([text])[0]
    for _ in range(depth):
        text = json.loads(text)
    assert PLACEHOLDER.match(text[name])
    assert text == {"user": "ada", name: text[name], "after": "it"}


def test_json_inside_a_string_keeps_what_the_names_of_a_tree_would_keep() -> None:
    document = {"password": "password", "token": "the", "max_tokens": "12", "api_key": "${KEY}", "name": "x", "n": 1}
    assert redacted([json.dumps(document)]) == [json.dumps(document)]
    cut = '{"password": "never ends'
    assert redacted([cut, '"']) == [cut, '"']


@pytest.mark.parametrize(
    "tree",
    [
        {"token": {"value": "zq83hf92kd"}},
        [["X-Api-Key", "zq83hf92kd"]],
        {"args": ["mysql", "--password", "zq83hf92kd", "db"]},
        {"key": "password", "val": "zq83hf92kd"},
        {"id": "password", "value": "zq83hf92kd"},
        {"label": "Password", "value": "zq83hf92kd"},
        {"mobile": "0171 5550123"},
        {"fax": "+49 30 901820"},
        {"password": "hunter2", "text": "login with hunter2, then"},
        {"password": 'a"b\\c-9-long', "text": json.dumps('a"b\\c-9-long')},
    ],
    ids=str,
)
def test_sensitive_values_are_found_in_trees_of_many_shapes(tree: Any) -> None:
    left = json.dumps(redacted(tree))
    for value in ("zq83hf92kd", "5550123", "901820", "hunter2", "9-long"):
        assert value not in left


@pytest.mark.parametrize(
    "tree",
    [
        {"cookies": 12, "api_keys": 2, "secrets": 3, "passwords": 0, "id_token": 151643, "password": 0.25},
        {"private_key": "/etc/ssl/key.pem"},
        {"author_name": "numpy", "full_name": "pandas.core.frame"},
        {"required": ["password", "username"], "columns": ["First Name", "Last Name"]},
        {"args": ["--password", "--user"], "cell": "x = 1234567", "mobile": "Pixel 7"},
        {"token": {"text": "abc123def456", "id": 3}},
    ],
    ids=str,
)
def test_what_only_stands_under_such_names_stays(tree: Any) -> None:
    assert redacted(tree) == tree


def test_a_short_secret_in_a_name_does_not_refuse_the_tree() -> None:
    assert TOOL.redact({"password": "node18", "node18": 1}).tree["node18"] == 1


@pytest.mark.parametrize(
    "text", ["我叫王芳。", "「王芳」", "“Ada Lovell”", "Ada  Lovell", "Ada\nLovell", "Ada\u00a0Lovell"]
)
def test_names_of_the_dictionary_are_found_beside_any_sign(text: str) -> None:
    assert "[REDACTED:NAME:" in redacted([text])[0]


def test_a_number_too_long_to_be_written_is_replaced() -> None:
    left = redacted({"a": 10**5000, "password": -(10**5000), "b": [10**5000, 1], "passwords": 10**400})
    assert PLACEHOLDER.fullmatch(left["a"])
    assert PLACEHOLDER.fullmatch(left["password"])
    assert left["b"][1] == 1


def test_an_entry_of_the_dictionary_has_whole_characters_and_enough_of_them() -> None:
    for entry in ("\ud800abc", "ab", "王"):
        with pytest.raises(InvalidPolicy):
            RedactionPolicy(KEY, {entry: "NAME"})


@pytest.mark.parametrize("text", ["", "a plain line", '{"max_tokens": 5, "total_tokens": 7}', "the password is needed"])
def test_flat_text_without_sensitive_names_stays(text: str) -> None:
    assert TOOL.redact_text(text).text == text
