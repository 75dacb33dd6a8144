"""What holds for every tree, with all packaged rules."""

import json
import os
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from rl_pipeline.redaction.policy import RedactionKey, RedactionPolicy
from rl_pipeline.redaction.redactor import PLACEHOLDER, Redactor, SensitiveKey
from rl_pipeline.redaction.rule import packaged_rules, read_example

RULES = packaged_rules()
REDACTOR = Redactor(RedactionPolicy(RedactionKey.parse("v1:" + "k" * 32), {"Ada Lovell": "NAME"}))
OTHER = Redactor(RedactionPolicy(RedactionKey.parse("v1:" + "o" * 32), {"Ada Lovell": "NAME"}))

EXAMPLES = sorted({read_example(text)[0] for rule in RULES for text in (*rule.examples, *rule.counter_examples)})
PIECES = (
    st.sampled_from(EXAMPLES)
    | st.text(max_size=12)
    | st.sampled_from(
        ["[REDACTED:EMAIL:0123456789ab]", "[REDACTED:", "ada lovell", " ", "\n", "\x00", "\n\x00\n", "password: ", '"']
    )
)
TEXTS = st.lists(PIECES, max_size=4).map("".join)
NAMES = st.sampled_from(
    ["text", "password", "token", "api_key", "name", "value", "key", "items", "default", "type", "first_name", "cvv"]
)
NUMBERS = st.integers(-(10**20), 10**20) | st.just(4111111111111111) | st.floats(allow_nan=False, allow_infinity=False)
LEAVES = st.none() | st.booleans() | NUMBERS | TEXTS
TREES = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(NAMES, inner, max_size=5), max_leaves=12
)
# The same examples in every run of the tests; a soak draws new ones, and more of them.
SOAK = bool(os.environ.get("RL_PIPELINE_SOAK"))
PROPERTY = settings(
    max_examples=1500 if SOAK else 120,
    derandomize=not SOAK,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
pytestmark = pytest.mark.soak


def redacted(tree: Any, tool: Redactor = REDACTOR) -> Any:
    try:
        return tool.redact(tree).tree
    except SensitiveKey:  # a value that is also a name
        assume(False)


def same_skeleton(one: Any, two: Any) -> bool:
    """Whether names, their order and lengths are equal, and only texts and numbers differ."""
    if isinstance(one, dict):
        return (
            isinstance(two, dict) and list(one) == list(two) and all(same_skeleton(one[key], two[key]) for key in one)
        )
    if isinstance(one, list):
        return isinstance(two, list) and len(one) == len(two) and all(map(same_skeleton, one, two))
    if one is None or isinstance(one, bool):
        return one is two
    return type(one) is type(two) or (isinstance(one, int | float) and PLACEHOLDER.fullmatch(two) is not None)


@PROPERTY
@given(TREES)
def test_the_skeleton_stays(tree: Any) -> None:
    assert same_skeleton(tree, redacted(tree))


@PROPERTY
@given(TREES)
def test_redacting_twice_changes_nothing(tree: Any) -> None:
    once = redacted(tree)
    twice = REDACTOR.redact(once)
    assert twice.tree == once
    assert twice.counts == {}


@PROPERTY
@given(TREES)
def test_another_key_changes_only_the_digits(tree: Any) -> None:
    def without_digits(written: Any) -> str:
        return PLACEHOLDER.sub(lambda found: found[0][:-14], json.dumps(written))

    one, two = redacted(tree), redacted(tree, OTHER)
    assert without_digits(one) == without_digits(two)
    fresh = [
        set(PLACEHOLDER.findall(json.dumps(written))) - set(PLACEHOLDER.findall(json.dumps(tree)))
        for written in (one, two)
    ]
    assert not fresh[0] & fresh[1]


@PROPERTY
@given(st.lists(TEXTS, min_size=1, max_size=3))
def test_placeholders_of_the_input_stay(texts: list[str]) -> None:
    before = [PLACEHOLDER.findall(text) for text in texts]
    after = [PLACEHOLDER.findall(text) for text in redacted(texts)]
    assert all(set(old) <= set(new) for old, new in zip(before, after, strict=True))


@PROPERTY
@given(TEXTS)
def test_flat_text_redacted_twice_stays(text: str) -> None:
    once = REDACTOR.redact_text(text).text
    assert REDACTOR.redact_text(once).text == once


@PROPERTY
@given(st.sampled_from(RULES), st.data())
def test_the_same_secret_has_the_same_placeholder_in_every_trajectory(rule: Any, data: st.DataObject) -> None:
    text, values = read_example(data.draw(st.sampled_from(rule.examples)))
    one = REDACTOR.redact({"turns": [{"text": text}]}).tree["turns"][0]["text"]
    two = REDACTOR.redact(["something else", {"content": text}]).tree[1]["content"]
    assert one == two
    assert not rule.on or all(value not in one for value in values)
