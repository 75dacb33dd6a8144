"""Whatever an agent handles can be recorded."""

import dataclasses
import json
import math
from datetime import UTC, datetime
from enum import Enum, IntEnum
from pathlib import Path
from typing import Any
from uuid import UUID

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from rl_pipeline.collection.plain_values import plain
from rl_pipeline.contracts import Trajectory, validate_trajectory


class Colour(Enum):
    RED = "red"


class Number(IntEnum):
    ONE = 1


class Model(BaseModel):
    when: datetime


@dataclasses.dataclass
class Pair:
    left: Any
    right: Any


class Hostile:
    def __repr__(self) -> str:
        raise RuntimeError("not for you")


class HostileMapping(dict[str, Any]):
    def items(self) -> Any:
        raise RuntimeError("not for you")


NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, None),
        (True, True),
        ("text", "text"),
        ("half \ud83d", "half ?"),
        (math.nan, "nan"),
        (-math.inf, "-inf"),
        (10**400, hex(10**400)),
        ((1, [2, {3}]), [1, [2, [3]]]),
        ([1, 10**400], [1, hex(10**400)]),
        ((0.5, math.inf), [0.5, "inf"]),
        ([1, True], [1, True]),
        ({1: "a", None: "b", ("x",): "c"}, {"1": "a", "None": "b", "('x',)": "c"}),
        (b"\x00\x01", "2 bytes"),
        (Colour.RED, "red"),
        (Number.ONE, 1),
        (Model(when=NOON), {"when": "2026-01-01T12:00:00+00:00"}),
        (Pair(NOON, Pair(1, 2)), {"left": "2026-01-01T12:00:00+00:00", "right": {"left": 1, "right": 2}}),
        (Path("/tmp/x"), "/tmp/x"),
        (UUID(int=1), "00000000-0000-0000-0000-000000000001"),
        (np.float32(0.5), 0.5),
        (np.array([[1, 2]]), [[1, 2]]),
        (Hostile(), "<Hostile>"),
        (HostileMapping(), "<HostileMapping>"),
        (print, "<built-in function print>"),
    ],
)
def test_a_value_is_told_in_plain_json(value: Any, expected: Any) -> None:
    assert plain(value) == expected
    json.dumps(plain(value), allow_nan=False).encode()


def test_what_the_agent_changes_later_is_recorded_as_it_was() -> None:
    arguments = {"rows": [1]}
    recorded = plain(arguments)
    arguments["rows"].append(2)
    assert recorded == {"rows": [1]}


def test_what_holds_itself_is_cut_off_and_still_fits_a_message() -> None:
    loop: list[Any] = []
    loop.append(loop)
    document = json.loads(json.dumps(Trajectory.model_json_schema()["examples"][0]))
    document["turns"][0]["action"]["tool_args"] = {"loop": plain(loop)}
    validate_trajectory(document)


@given(
    st.recursive(
        st.none() | st.floats() | st.integers() | st.text(st.characters()),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    )
)
def test_plain_values_stay_plain(value: Any) -> None:
    once = plain(value)
    assert plain(once) == once
    json.dumps(once, allow_nan=False, ensure_ascii=False).encode()
