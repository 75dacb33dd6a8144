"""What the redactor replaces, what it leaves, and what it refuses; the rules are a few of the test's own."""

import copy
import json
import re
import sys
from typing import Any

import pytest

from rl_pipeline.errors import PipelineError
from rl_pipeline.redaction import scanner
from rl_pipeline.redaction.policy import InvalidPolicy, RedactionKey, RedactionPolicy
from rl_pipeline.redaction.redactor import PLACEHOLDER, Redactor, SensitiveKey
from rl_pipeline.redaction.resolution import Knowledge
from rl_pipeline.redaction.rule import Rule, parse_rules

KEY = RedactionKey.parse("v1:" + "k" * 32)
RULES = parse_rules(r"""
[[rule]]
id = "url-password"
kind = "PASSWORD"
description = "Password in a URL"
anchor = '://'
pattern = '://[a-z]{1,20}:(?P<value>[^@\s/]{1,40})@'
examples = []
counter_examples = []

[[rule]]
id = "hub-token"
kind = "API_KEY"
description = "Token of a hub"
anchor = 'hub_'
pattern = 'hub_[0-9A-Za-z]{20}'
examples = []
counter_examples = []

[[rule]]
id = "email"
kind = "EMAIL"
description = "E-mail address"
anchor = '[a-z]@[a-z]'
before = 30
pattern = '(?<![a-z.])[a-z.]{1,30}@[a-z.]{1,30}\.[a-z]{2,6}'
examples = []
counter_examples = []

[[rule]]
id = "card"
kind = "CREDIT_CARD"
description = "Number of a card"
anchor = '[0-9]{16}'
pattern = '(?<![0-9])[0-9]{16}(?![0-9])'
validators = ["luhn"]
examples = []
counter_examples = []

[[rule]]
id = "word-seven"
kind = "SECRET"
description = "Seven letters q, alone"
anchor = 'q{7}'
pattern = '(?<![A-Za-z0-9_])q{7}(?![A-Za-z0-9_])'
on = false
examples = []
counter_examples = []
""")
TOKEN = "hub_0123456789ABCDEFabcd"


def redactor(**policy: Any) -> Redactor:
    return Redactor(RedactionPolicy(KEY, **policy), RULES)


def test_a_found_value_becomes_a_placeholder_and_the_rest_stays() -> None:
    tool = redactor()
    redacted = tool.redact({"turns": [{"text": f"use {TOKEN} now", "n": 3, "ok": True, "none": None, "x": 1.5}]})
    expected = f"use {tool.placeholder('API_KEY', TOKEN)} now"
    assert redacted.tree == {"turns": [{"text": expected, "n": 3, "ok": True, "none": None, "x": 1.5}]}
    assert redacted.counts == {"hub-token": 1}


def test_the_given_tree_keeps_its_values() -> None:
    tree = {"a": [{"b": TOKEN}, {"c": "plain"}], "password": "hunter2"}
    before = copy.deepcopy(tree)
    redacted = redactor().redact(tree).tree
    assert tree == before
    assert redacted != before
    assert redacted["a"][1] is tree["a"][1], "what did not change is shared"


def test_a_tree_without_findings_comes_back_as_it_is() -> None:
    tree = {"a": ["nothing", {"b": ""}], "c": 12345678901}
    redacted = redactor().redact(tree)
    assert redacted.tree is tree
    assert redacted.counts == {}


@pytest.mark.parametrize("tree", [TOKEN, [TOKEN], [[[TOKEN]]], {"a": {"b": {"c": TOKEN}}}], ids=str)
def test_leaves_are_found_at_every_depth(tree: Any) -> None:
    assert TOKEN not in json.dumps(redactor().redact(tree).tree)


def test_a_tree_deeper_than_pythons_recursion_is_redacted() -> None:
    tree: Any = TOKEN
    for _ in range(5000):
        tree = [tree]
    redacted = redactor().redact(tree).tree
    for _ in range(5000):
        redacted = redacted[0]
    assert PLACEHOLDER.fullmatch(redacted)


def test_numbers_that_are_found_become_placeholders_and_others_stay() -> None:
    tool = redactor()
    card = 4111111111111111
    redacted = tool.redact({"a": card, "b": -card, "c": [card, 7], "d": float(card), "e": 10**300, "f": str(card)}).tree
    placeholder = tool.placeholder("CREDIT_CARD", str(card))
    assert redacted == {
        "a": placeholder,
        "b": tool.placeholder("CREDIT_CARD", f"-{card}"),
        "c": [placeholder, 7],
        "d": placeholder,
        "e": 10**300,
        "f": placeholder,
    }


def test_whole_values_under_sensitive_names_are_replaced() -> None:
    tree = {
        "password": "hunter2",
        "API-Key": "x",
        "cvv": 123,
        "secrets": {"db": "one", "list": ["two", 3, True, None, ""], "deep": {"er": "four"}},
        "Authorization": "Bearer abc",
        "user": "ada",
    }
    tool = redactor()
    redacted = tool.redact(tree)
    assert redacted.tree == {
        "password": tool.placeholder("PASSWORD", "hunter2"),
        "API-Key": tool.placeholder("API_KEY", "x"),
        "cvv": tool.placeholder("SECRET", "123"),
        "secrets": {
            "db": tool.placeholder("SECRET", "one"),
            "list": [tool.placeholder("SECRET", "two"), tool.placeholder("SECRET", "3"), True, None, ""],
            "deep": {"er": tool.placeholder("SECRET", "four")},
        },
        "Authorization": f"Bearer {tool.placeholder('API_KEY', 'abc')}",
        "user": "ada",
    }
    assert redacted.counts == {"sensitive-field": 8}


def test_the_value_of_a_pair_is_sensitive_by_its_name() -> None:
    tool = redactor()
    tree = [
        {"name": "DB_PASSWORD", "value": "hunter2"},
        {"Key": "x-api-key", "Value": "abc"},
        {"name": "LOG_LEVEL", "value": "info"},
        {"value": "alone"},
        {"name": "DB_PASSWORD", "valueFrom": {"secretKeyRef": {"name": "db", "key": "password"}}},
    ]
    redacted = tool.redact(tree).tree
    assert redacted[0] == {"name": "DB_PASSWORD", "value": tool.placeholder("PASSWORD", "hunter2")}
    assert redacted[1] == {"Key": "x-api-key", "Value": tool.placeholder("API_KEY", "abc")}
    assert redacted[2:] == tree[2:]


def test_the_schema_of_a_sensitive_field_stays_but_for_its_values() -> None:
    schema = {"properties": {"password": {"type": "string", "description": "Of the user", "default": "hunter2"}}}
    tool = redactor()
    redacted = tool.redact(schema).tree["properties"]["password"]
    assert redacted == {**schema["properties"]["password"], "default": tool.placeholder("PASSWORD", "hunter2")}


def test_further_occurrences_are_replaced_by_the_same_placeholder() -> None:
    tool = redactor()
    secret = "correct-horse-7"
    tree = {"url": f"https://ada:{secret}@host/", "log": [f"tried {secret}, then", f"x{secret}", f"({secret})"]}
    redacted = tool.redact(tree)
    placeholder = tool.placeholder("PASSWORD", secret)
    assert redacted.tree == {
        "url": f"https://ada:{placeholder}@host/",
        "log": [f"tried {placeholder}, then", f"x{secret}", f"({placeholder})"],
    }
    assert redacted.counts == {"url-password": 1, "repeated": 2}


def test_a_long_secret_is_also_found_inside_of_words() -> None:
    secret = "Xy7Kq93hTb2LmZp0"
    tree = ["https://ada:" + secret + "@host/", f"%3A{secret}%40"]
    assert secret not in json.dumps(redactor().redact(tree).tree)


@pytest.mark.parametrize("ordinary", ["hunter", "production", "Production", "12345678", "--------"])
def test_ordinary_words_and_numbers_are_not_looked_for(ordinary: str) -> None:
    tree = {"password": ordinary, "text": f"the {ordinary} server"}
    assert redactor().redact(tree).tree["text"] == tree["text"]


def test_very_many_values_are_still_found_again() -> None:
    addresses = [f"{chr(97 + n % 26)}{chr(97 + n // 26 % 26)}{chr(97 + n // 676)}.person@mail.org" for n in range(3000)]
    tree = [" ".join(addresses), [f"<<{address}>>" for address in addresses]]
    redacted = json.dumps(redactor().redact(tree).tree)
    assert "person" not in redacted
    assert len(set(PLACEHOLDER.findall(redacted))) == 3000


def test_a_tree_that_comes_in_parts_is_redacted_as_a_whole_once_all_parts_are_known() -> None:
    parts: list[Any] = [
        "it is Zq91xHunter2 I hear",
        "try http://ada:Zq91xHunter2@host",
        {"token": "Zq91xHunter2 x"},
        "-",
    ]
    tool, memory = redactor(), Knowledge({})
    first = [tool.redact(part, memory=memory).tree for part in parts]
    assert "Zq91xHunter2" in first[0], "nothing has given it away yet"
    again = [tool.redact(part, memory=memory).tree for part in first]
    assert again == tool.redact(parts).tree
    assert tool.redact(parts[0]).tree == parts[0], "another tree knows nothing of it"


def test_one_value_has_one_kind_in_a_tree() -> None:
    redacted = json.dumps(redactor().redact({"a": f"https://ada:{TOKEN}@host", "b": TOKEN, "secret": TOKEN}).tree)
    assert len(set(PLACEHOLDER.findall(redacted))) == 1
    assert "PASSWORD" in redacted, "the earlier rule names the kind"


def test_the_digits_depend_on_value_and_key_alone() -> None:
    tool, other = redactor(), Redactor(RedactionPolicy(RedactionKey.parse("v1:" + "o" * 32)), RULES)
    assert tool.placeholder("EMAIL", "x")[-13:] == tool.placeholder("PHONE", "x")[-13:]
    assert tool.placeholder("EMAIL", "x") != tool.placeholder("EMAIL", "y")
    assert tool.placeholder("EMAIL", "x") != other.placeholder("EMAIL", "x")
    assert PLACEHOLDER.fullmatch(tool.placeholder("EMAIL", "x"))
    with pytest.raises(PipelineError, match="NOTHING"):
        tool.placeholder("NOTHING", "x")


def test_overlapping_findings_become_one() -> None:
    tool = redactor()
    # The password holds the token: the container wins. The address begins inside of it: the union is replaced.
    contained = tool.redact(f"https://ada:x{TOKEN}y@host/")
    assert contained.tree == f"https://ada:{tool.placeholder('PASSWORD', f'x{TOKEN}y')}@host/"
    partial = tool.redact("https://ada:1secret@mail.org/")
    assert partial.tree == f"https://ada:{tool.placeholder('PASSWORD', '1secret@mail.org')}/"
    assert partial.counts == {"url-password": 1}


def test_what_a_placeholder_uncovers_is_found_in_the_same_call() -> None:
    tool = redactor(rules_on=frozenset({"word-seven"}))
    text = f"qqqqqqq{TOKEN}qqqqqqq"
    redacted = tool.redact([text])
    assert "q" not in redacted.tree[0]
    assert tool.redact(redacted.tree).tree == redacted.tree


def test_placeholders_are_never_touched_or_extended() -> None:
    foreign = "[REDACTED:EMAIL:0123456789ab]"
    tree = {
        "password": foreign,
        "authorization": f"Bearer {foreign}",
        "secret": f"{foreign}, {foreign}",
        "text": f"x{foreign}y https://ada:{foreign}@host",
    }
    assert redactor().redact(tree).tree == tree


def test_only_exact_placeholders_hide_nothing() -> None:
    for forged in (
        f"[REDACTED:EMAIL:{TOKEN}]",
        f"[REDACTED:{TOKEN}:0123456789ab]",
        f"[redacted:EMAIL:012345678901]{TOKEN}",
    ):
        assert TOKEN not in redactor().redact(forged).tree


def test_a_field_that_holds_its_own_name_holds_nothing() -> None:
    form = {"first_name": "first_name", "password": "password", "fields": ["first_name", "password"]}
    assert redactor().redact(form).tree == form


def test_a_sensitive_name_refuses_the_tree_without_showing_it() -> None:
    for tree in ({TOKEN: 1}, [{"a": {"ada@mail.org": "x"}}], {"url": "https://ada:s3cret-99@host", "s3cret-99": 1}):
        with pytest.raises(SensitiveKey) as refusal:
            redactor().redact(tree)
        assert not re.search("hub_|mail|s3cret", str(refusal.value))


def test_a_sensitive_name_is_refused_each_time() -> None:
    tool = redactor()
    for _ in range(2):
        with pytest.raises(SensitiveKey):
            tool.redact({"fine": 1, TOKEN: 2})


def test_known_values_are_replaced_wherever_they_occur() -> None:
    tool = redactor()
    redacted = tool.redact(
        {"user_id": "user-81723", "text": "by user-81723: user-817234"}, known={"user-81723": "USER"}
    )
    placeholder = tool.placeholder("USER", "user-81723")
    assert redacted.tree == {"user_id": placeholder, "text": f"by {placeholder}: user-817234"}
    assert redacted.counts == {"known": 2}


def test_a_known_value_that_is_an_ordinary_word_is_replaced_only_where_it_is_the_whole_text() -> None:
    tool = redactor()
    redacted = tool.redact(
        {"user_id": "ada", "text": "ada is ada", "n": 3, "ada": 1}, known={"ada": "USER", "3": "USER"}
    )
    assert redacted.tree == {"user_id": tool.placeholder("USER", "ada"), "text": "ada is ada", "n": 3, "ada": 1}


def test_a_known_value_names_its_kind_before_any_rule() -> None:
    redacted = redactor().redact("ask ada.lovell@mail.org", known={"ada.lovell@mail.org": "USER"})
    assert redacted.counts == {"known": 1}
    with pytest.raises(SensitiveKey):
        redactor().redact({"user-81723": 1}, known={"user-81723": "USER"})
    with pytest.raises(PipelineError, match="PERSON"):
        redactor().redact("x", known={"y": "PERSON"})


def test_the_dictionary_is_replaced_and_counted() -> None:
    tool = redactor(dictionary={"Ada Lovell": "NAME", "PX-77": "IDENTIFIER"})
    redacted = tool.redact(["ADA LOVELL owns px-77"])
    assert redacted.tree == [f"{tool.placeholder('NAME', 'ADA LOVELL')} owns {tool.placeholder('IDENTIFIER', 'px-77')}"]
    assert redacted.counts == {"dictionary": 2}


def test_allowed_values_are_never_redacted() -> None:
    tool = redactor(allowed=frozenset({"help@mail.org", "hunter2"}))
    tree = {"text": "help@mail.org", "password": "hunter2", "other": "eve@mail.org"}
    redacted = tool.redact(tree).tree
    assert redacted == {**tree, "other": tool.placeholder("EMAIL", "eve@mail.org")}


def test_rules_can_be_switched_on_and_off() -> None:
    assert redactor().redact("qqqqqqq").counts == {}
    assert redactor(rules_on=frozenset({"word-seven"})).redact("qqqqqqq").counts == {"word-seven": 1}
    assert redactor(rules_off=frozenset({"hub-token"})).redact(TOKEN).counts == {}
    with pytest.raises(InvalidPolicy, match="no-such-rule"):
        redactor(rules_off=frozenset({"no-such-rule"}))
    with pytest.raises(InvalidPolicy, match="both"):
        redactor(rules_on=frozenset({"email"}), rules_off=frozenset({"email"}))


def test_a_value_that_cannot_be_scanned_is_replaced_as_a_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: Rule, match: re.Match[bytes]) -> bool:
        raise ZeroDivisionError(match[0])

    monkeypatch.setattr(Rule, "accepts", fail)
    tool = redactor()
    redacted = tool.redact({"a": f"see {TOKEN} there", "b": "plain"})
    assert redacted.tree == {"a": tool.placeholder("SECRET", f"see {TOKEN} there"), "b": "plain"}
    assert redacted.counts == {"unscannable": 1}


def test_the_plain_scanner_serves_where_vectorscan_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    tree = {"a": f"{TOKEN} ada", "b": ["ada@mail.org", 4111111111111111], "password": "x"}
    quick = redactor(dictionary={"Ada": "NAME"})
    expected = quick.redact(tree)
    monkeypatch.setitem(sys.modules, "hyperscan", None)
    plain = redactor(dictionary={"Ada": "NAME"})
    assert isinstance(plain._scanner, scanner.PlainScanner)
    assert not isinstance(quick._scanner, scanner.PlainScanner)
    assert plain.redact(tree) == expected


def test_half_characters_and_nul_bytes_survive() -> None:
    tree = ["\ud800 lone", f"a\x00{TOKEN}\x00b\n\x00\nc", f"é{TOKEN}名"]
    tool = redactor()
    placeholder = tool.placeholder("API_KEY", TOKEN)
    assert tool.redact(tree).tree == ["\ud800 lone", f"a\x00{placeholder}\x00b\n\x00\nc", f"é{placeholder}名"]


def test_what_is_no_json_is_refused_without_showing_it() -> None:
    for tree in ({"a": TOKEN.encode()}, {1: "x"}, [(1, 2)]):
        with pytest.raises(PipelineError, match="decode the message first"):
            redactor().redact(tree)


def test_nothing_that_was_found_is_kept() -> None:
    tool = redactor()
    tool.redact({"a": TOKEN, "password": "hunter2-and-more", "plain": "kept?"}, known={"user-81723": "USER"})
    kept = repr([vars(tool), vars(tool._names)])
    assert not re.search("hub_0123|hunter2|kept|81723", kept)
    assert {"a", "plain", "password"} <= tool._names.ordinary | tool._names.telling


@pytest.mark.parametrize(
    ("text", "secrets"),
    [
        ('{"password": "hunter2", "n": 1}', ["hunter2"]),
        ('{"a": 1, "password": "hunter2 and mo', ["hunter2 and mo"]),
        (r"{\"api_key\": \"abc\", \"x\": \"y\"}", ["abc"]),
        ('{"pass\\u0077ord": "hunter2"}', ["hunter2"]),
        ("password=hunter2&user=ada", ["hunter2"]),
        ("Authorization: Bearer abc.def\nHost: x", ["abc.def"]),
        ("run --token xyz now", ["xyz"]),
        ('{"secrets": {"db": "one", "list": ["two"', ["one", "two"]),
        ('[{"name": "DB_PASSWORD", "value": "hunter2"}]', ["hunter2"]),
        ("-----BEGIN RSA PRIVATE KEY-----\nMIIEow", ["MIIEow"]),
        ('{"cvv": 123, "x": 4}', ["123"]),
    ],
)
def test_flat_text_loses_all_that_follows_a_sensitive_name(text: str, secrets: list[str]) -> None:
    tool = redactor()
    redacted = tool.redact_text(text)
    assert not any(secret in redacted.text for secret in secrets), redacted.text
    assert sum(redacted.counts.values()) >= 1
    assert tool.redact_text(redacted.text).text == redacted.text
