"""The text of an answer while it grows."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rl_pipeline.serving.spoken_text import SpokenText


def text_of(token_ids: Sequence[int]) -> str:
    """A tokenizer whose tokens are bytes."""
    return bytes(token_ids).decode(errors="replace")


@given(text=st.text(max_size=50))
def test_the_text_is_the_same_however_its_characters_are_cut_into_tokens(text: str) -> None:
    spoken = SpokenText(text_of, [])
    shown = ""
    for byte in text.encode():
        spoken.add(byte)
        assert spoken.safe.startswith(shown)
        shown = spoken.safe
    spoken.finish()
    assert spoken.text == text


@pytest.mark.parametrize(
    ("stops", "expected"), [(["END"], "say this "), (["zzz"], "say this END now"), ([" ", "E"], "say")]
)
def test_nothing_of_a_stop_is_ever_shown(stops: list[str], expected: str) -> None:
    spoken = SpokenText(text_of, stops)
    for byte in b"say this END now":
        spoken.add(byte)
        assert expected.startswith(spoken.safe)
        if spoken.is_stopped:
            break
    spoken.finish()
    assert spoken.text == spoken.safe == expected
    assert spoken.is_stopped == (expected != "say this END now")


def test_a_character_that_was_never_finished_is_shown_as_such() -> None:
    spoken = SpokenText(text_of, [])
    for byte in "é".encode()[:1]:
        spoken.add(byte)
    assert spoken.safe == ""
    spoken.finish()
    assert spoken.safe == "\ufffd"
