"""Private keys in text that nobody could parse: found whole or cut off, in one reading."""

import re

import pytest

from rl_pipeline.redaction import flat_text
from rl_pipeline.redaction.flat_text import named_values

OPENING, CLOSING = b"-----BEGIN PRIVATE KEY-----\n", b"-----END PRIVATE KEY-----"
BODY = b"x7Qm2Zp9Lx4vKtR8wN3bY6cH1jF5gD0sA2eU4iO7kPzW\n"


def private_keys(text: bytes) -> list[bytes]:
    return [text[start:end] for start, end, kind in named_values(text) if kind == "PRIVATE_KEY"]


def test_private_keys_are_found_whole_or_to_the_end_of_a_cut_text() -> None:
    key = OPENING + BODY + CLOSING
    assert private_keys(b"a " + key + b" b " + key + b" c") == [key, key]
    assert private_keys(b"a " + key + b" b " + OPENING + BODY) == [key, OPENING + BODY]


def test_what_is_no_private_key_does_not_hide_the_one_after_it() -> None:
    key = OPENING + BODY + CLOSING
    assert private_keys(OPENING + b"no key " * 4_000 + key) == [key]


def test_the_end_of_a_private_key_is_looked_for_once_for_all_that_begin_before_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Counted:
        pattern = flat_text._PRIVATE_KEY_CLOSES
        searches = 0

        def search(self, buffer: bytes, start: int) -> re.Match[bytes] | None:
            self.searches += 1
            return self.pattern.search(buffer, start)

    counted = Counted()
    monkeypatch.setattr(flat_text, "_PRIVATE_KEY_CLOSES", counted)
    text = OPENING * 5_000
    (key,) = private_keys(text)
    assert text.endswith(key)
    assert counted.searches == 1
