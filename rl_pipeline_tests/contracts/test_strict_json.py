import contextlib
import json
import math
import pickle
import sys
from types import FrameType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rl_pipeline.contracts import ContractError, ParseLimits, parse_strict_json
from rl_pipeline_tests.contracts.strategies import JSON_VALUES

NAMES = frozenset({"turns", "action", "type", "metadata"})


def refusal(data: bytes, limits: ParseLimits | None = None) -> ContractError:
    with pytest.raises(ContractError) as caught:
        parse_strict_json(data, limits or ParseLimits(), NAMES)
    return caught.value


@settings(max_examples=200, deadline=None)
@given(JSON_VALUES, st.booleans(), st.sampled_from([None, 2]))
def test_ordinary_json_reads_as_python_reads_it(value: Any, ascii_only: bool, indent: int | None) -> None:
    data = json.dumps(value, ensure_ascii=ascii_only, indent=indent).encode()

    assert parse_strict_json(data) == json.loads(data)
    assert json.dumps(parse_strict_json(data)) == json.dumps(json.loads(data))


@settings(max_examples=300, deadline=None)
@given(
    st.binary(max_size=40)
    | st.text('{}[]",:\\u0dD8eE1+-.naN tf\ud800', max_size=40).map(lambda s: s.encode("utf-8", "surrogatepass"))
)
def test_any_bytes_are_read_as_python_reads_them_or_refused_with_a_contract_error(data: bytes) -> None:
    with contextlib.suppress(ContractError):
        assert parse_strict_json(data) == json.loads(data)


@pytest.mark.parametrize("count", [65, 201, 2_000, 1_000_000])
@pytest.mark.parametrize("opening", [b"[", b'{"turns":', b'[{"x":'])
def test_a_depth_bomb_is_refused_by_its_depth(count: int, opening: bytes) -> None:
    data = (opening * count)[: 1024 * 1024]

    assert refusal(data if count > 201 else _closed(data)).limit == "max_depth"


def _closed(data: bytes) -> bytes:
    return data + b"0" + data.translate(bytes.maketrans(b"[{", b"]}"), b' "turnsx:')[::-1]


def test_a_depth_bomb_cannot_overflow_the_stack_of_a_program_that_raised_its_recursion_limit() -> None:
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(10**6)
    try:
        assert refusal(b"[" * 1_000_000).limit == "max_depth"
    finally:
        sys.setrecursionlimit(before)


@pytest.mark.parametrize("innermost", [b"[]", b"{}", b"[1]", b'{"x": 1}'])
def test_the_depth_limit_counts_objects_and_arrays(innermost: bytes) -> None:
    assert parse_strict_json(b"[" * 63 + innermost + b"]" * 63) is not None
    assert refusal(b"[" * 64 + innermost + b"]" * 64).limit == "max_depth"
    assert refusal(b"[" + innermost + b"]", ParseLimits(max_depth=1)).limit == "max_depth"


def test_a_caller_with_hardly_any_stack_left_gets_a_contract_error() -> None:
    def descend(left: int) -> Any:
        return parse_strict_json(b"[" * 64 + b"]" * 64) if left == 0 else descend(left - 1)

    depth = 0
    frame: FrameType | None = sys._getframe()
    while frame:
        depth, frame = depth + 1, frame.f_back
    with pytest.raises(ContractError, match="max_depth"):
        descend(sys.getrecursionlimit() - depth - 30)
    assert descend(100)


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999", "-1e999", "9" * 400 + ".0"])
def test_a_number_that_is_not_finite_is_refused(number: str) -> None:
    error = refusal(f'{{"turns": [0, {{"action": {number}}}]}}'.encode())

    assert (error.limit, error.path, error.value_type) == ("not_finite", "turns[1].action", "number")


@pytest.mark.parametrize("digits", [309, 4_300, 4_301, 5_000, 900_000])
@pytest.mark.parametrize("sign", ["", "-"])
def test_an_absurdly_long_integer_is_refused(digits: int, sign: str) -> None:
    error = refusal(f'{{"turns": [1, {sign}{"9" * digits}]}}'.encode())

    assert (error.limit, error.path, error.value_type) == ("max_integer_digits", "turns[1]", "integer")


def test_a_long_integer_that_still_fits_a_double_is_kept_exactly() -> None:
    value = parse_strict_json(b"9" * 308)

    assert value == int("9" * 308)
    assert math.isfinite(float(value))


def test_an_interpreter_set_to_shorter_integers_gives_the_same_error() -> None:
    before = sys.get_int_max_str_digits()
    sys.set_int_max_str_digits(640)
    try:
        assert refusal(b"9" * 700, ParseLimits(max_integer_digits=1_000)).limit == "max_integer_digits"
    finally:
        sys.set_int_max_str_digits(before)


@pytest.mark.parametrize(
    ("data", "path"),
    [
        (b'{"turns": 1, "turns": 2}', "turns"),
        (b'{"turns": [{"action": {"type": 1, "x": {}, "type": 1}}]}', "turns[0].action.type"),
        (b'[{"a": 1, "\\u0061": 2}]', "[0].*"),
        (b'{"metadata": {"x": {"y": 1, "y": 1}}, "z": 1, "z": 2}', "*"),
    ],
)
def test_a_key_that_an_object_has_twice_is_refused(data: bytes, path: str) -> None:
    error = refusal(data)

    assert (error.limit, error.path) == ("duplicate_key", path)


@pytest.mark.parametrize(
    "escape", [r"\ud800", r"\udce9", r"\uDFFF", r"\ud800\u0041", r"\udc00\ud800", r"\ud800\ud800\udc00", r"a\ud83d"]
)
@pytest.mark.parametrize("template", ['{"turns": [{"action": "%s"}]}', '{"turns": [{"action": "so: %s !"}]}'])
def test_an_escaped_lone_surrogate_is_refused(escape: str, template: str) -> None:
    error = refusal((template % escape).encode())

    assert (error.limit, error.path, error.value_type) == ("lone_surrogate", "turns[0].action", "string")


def test_a_raw_lone_surrogate_is_refused() -> None:
    assert refusal(b'{"turns": "\xed\xa0\x80"}').limit == "lone_surrogate"


def test_an_escaped_pair_of_surrogates_is_one_character() -> None:
    assert parse_strict_json(rb'["\ud83d\ude00", "\\ud800"]') == ["\N{GRINNING FACE}", r"\ud800"]


@pytest.mark.parametrize(
    ("data", "limit"),
    [
        (b"\xef\xbb\xbf{}", "byte_order_mark"),
        (b'"\xff"', "not_utf8"),
        (b'"\xc3"', "not_utf8"),
        ('{"turns": 1}'.encode("utf-16"), "not_utf8"),
        (b"", "not_json"),
        (b"   ", "not_json"),
        (b'{"turns": [1, 2', "not_json"),
        (b'{"turns": "unterminated', "not_json"),
        (b"{} {}", "not_json"),
        (b"{}\x00", "not_json"),
        (b"{'turns': 1}", "not_json"),
        (b'{"turns": 1,}', "not_json"),
        (b'{"turns": 01}', "not_json"),
        (b'{"turns": +1}', "not_json"),
        (b'{"turns": .5}', "not_json"),
        (b'"\x01"', "not_json"),
        (rb'"\x41"', "not_json"),
        (rb'"\u12"', "not_json"),
        (b"nan", "not_json"),
        (b"// comment\n{}", "not_json"),
    ],
)
def test_what_is_not_one_utf8_json_text_is_refused(data: bytes, limit: str) -> None:
    assert refusal(data).limit == limit


@pytest.mark.parametrize(
    ("data", "path", "place"),
    [
        (b'{"turns": [{"action": {"type": bad}}]}', "turns[0].action.type", "line 1 column 32"),
        (b'{\n "turns": [\n  1,\n  {"action": tru }]}', "turns[1].action", "line 4 column 17"),
        (b'{"turns": [1, 2, {"action": "cut', "turns[2].action", "line 1 column 32"),
        (b'{"turns": [1]} trailing', "$", "line 1 column 16"),
    ],
)
def test_a_syntax_error_says_where(data: bytes, path: str, place: str) -> None:
    error = refusal(data)

    assert (error.limit, error.path) == ("not_json", path)
    assert place in str(error)


def test_the_size_limit_is_inclusive() -> None:
    assert parse_strict_json(b'"' + b"a" * 6 + b'"', ParseLimits(max_bytes=8)) == "aaaaaa"
    assert refusal(b'"' + b"a" * 7 + b'"', ParseLimits(max_bytes=8)).limit == "max_bytes"
    assert refusal(b" " * (1024 * 1024 + 1)).limit == "max_bytes"


def test_a_path_shows_no_key_outside_the_contract_and_stays_short() -> None:
    assert refusal(b'{"turns": [{"hunter2": {"type": NaN}}]}').path == "turns[0].*.type"
    assert refusal(b'{"turns":' * 60 + b"NaN" + b"}" * 60).path == ".".join(["turns"] * 16) + "..."


def test_a_hundred_thousand_equal_and_different_keys_are_refused_promptly() -> None:
    keys = ",".join(f'"{number:05d}":0' for number in range(90_000))

    assert refusal(f'{{{keys},"00000":1}}'.encode(), ParseLimits(max_bytes=10**7)).limit == "duplicate_key"


def test_a_contract_error_survives_pickling() -> None:
    error = refusal(b'{"turns": NaN}')
    again = pickle.loads(pickle.dumps(error))

    assert (str(again), again.limit, again.path, again.value_type) == (str(error), "not_finite", "turns", "number")
