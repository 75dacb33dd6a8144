"""The deployment's own part of the redaction, as a file."""

from pathlib import Path

import pytest

from rl_pipeline.redaction.policy import InvalidPolicy
from rl_pipeline.redaction.policy_file import InvalidPolicyFile, RedactionKeyMissing, read_keys, read_policy

KEY = "v1:a-key-for-tests-that-protects-nothing"


def write(directory: Path, text: str) -> Path:
    path = directory / "policy.toml"
    path.write_text(text)
    return path


def test_a_file_gives_names_identifiers_exceptions_and_rules(tmp_path: Path) -> None:
    policy = read_policy(
        KEY,
        write(
            tmp_path,
            'names = ["Ada Lovelace"]\nidentifiers = ["PRJ-4711"]\nallowed = ["a@example.com"]\nrules_off = ["x"]\n',
        ),
    )
    assert dict(policy.dictionary) == {"Ada Lovelace": "NAME", "PRJ-4711": "IDENTIFIER"}
    assert (policy.allowed, policy.rules_off, policy.rules_on) == (frozenset({"a@example.com"}), {"x"}, frozenset())


def test_without_a_file_the_rules_are_as_they_come() -> None:
    policy = read_policy(KEY)
    assert (dict(policy.dictionary), policy.allowed, policy.key.version) == ({}, frozenset(), "v1")


def test_without_a_key_the_text_says_what_to_set() -> None:
    for nothing in (None, ""):
        with pytest.raises(RedactionKeyMissing, match="set REDACTION_KEY"):
            read_policy(nothing)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("names = [", "is no TOML"),
        ('nmaes = ["Ada"]', "has nmaes: it may have names"),
        ('names = "Ada Lovelace"', "names must be a list"),
        ("names = [7]", "names must be a list"),
        ('allowed = [" "]', "allowed must be a list"),
    ],
)
def test_a_file_that_cannot_be_used_is_refused_without_showing_its_values(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(InvalidPolicyFile, match=said) as refused:
        read_policy(KEY, write(tmp_path, text))
    assert "Lovelace" not in str(refused.value)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidPolicyFile, match=r"nowhere\.toml: No such file"):
        read_policy(KEY, tmp_path / "nowhere.toml")


def test_keys_are_read_from_a_list_and_a_bad_one_is_not_shown() -> None:
    assert [key.version for key in read_keys(f"{KEY}, v0:another-key-for-tests-of-enough-length,")] == ["v1", "v0"]
    assert read_keys(None) == ()
    with pytest.raises(InvalidPolicy) as refused:
        read_keys("v1:short")
    assert "v1:short" not in str(refused.value)
