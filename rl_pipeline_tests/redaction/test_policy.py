"""What a deployment decides about redaction, and how two decisions are told apart."""

import pickle
from typing import Any

import pytest

from rl_pipeline.errors import PipelineError
from rl_pipeline.redaction.policy import InvalidPolicy, RedactionKey, RedactionPolicy
from rl_pipeline.redaction.rule import packaged_rules

KEY = RedactionKey.parse("v1:" + "k" * 32)


def test_a_policy_can_be_sent_to_another_process() -> None:
    for policy in (RedactionPolicy(KEY), RedactionPolicy(KEY, {"Ada Lovelace": "NAME"})):
        assert pickle.loads(pickle.dumps(policy)) == policy


def test_keys_are_read_and_never_shown() -> None:
    assert RedactionKey.parse("v2:" + "ab" * 16) == RedactionKey("v2", bytes([0xAB]) * 16)
    assert RedactionKey.parse("v2:" + "z" * 32).secret == b"z" * 32
    assert "zzzz" not in repr(RedactionPolicy(RedactionKey.parse("v2:" + "z" * 32)))
    for wrong in ("", "v1", "v1:short", "k" * 40, ":" + "k" * 40):
        with pytest.raises(PipelineError):
            RedactionKey.parse(wrong)


def test_the_revision_tells_policies_apart() -> None:
    def revision(key: str = "v1:" + "k" * 32, **more: Any) -> str:
        return RedactionPolicy(RedactionKey.parse(key), **more).revision

    revisions = [
        revision(),
        revision(dictionary={"Ada": "NAME"}),
        revision(dictionary={"Ada": "IDENTIFIER"}),
        revision(allowed=frozenset({"x"})),
        revision(rules_on=frozenset({"email"})),
        revision(rules_off=frozenset({"email"})),
        revision("v2:" + "k" * 32),
        RedactionPolicy(KEY).revision_with(packaged_rules()[1:]),
    ]
    assert len(set(revisions)) == len(revisions)
    assert revision(dictionary={"A b": "NAME", "C d": "NAME"}) == revision(dictionary={"C d": "NAME", "A b": "NAME"})


def test_a_policy_that_cannot_be_meant_is_refused() -> None:
    for wrong in ({"dictionary": {"Ada": "EMAIL"}}, {"dictionary": {"a": "NAME"}}):
        with pytest.raises(InvalidPolicy):
            RedactionPolicy(KEY, **wrong)
