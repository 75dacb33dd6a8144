"""Both scanners find the same, and nothing across the edges of a text."""

import threading
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rl_pipeline.redaction.passage import Passage
from rl_pipeline.redaction.rule import InvalidRule, Rule, packaged_rules, parse_rules, read_example
from rl_pipeline.redaction.scanner import AnchorScanner, Finding, PlainScanner, Scanner

RULES = packaged_rules()
DICTIONARY = {"Ada Lovell": "NAME", "Zoë": "NAME", "ACME-77": "IDENTIFIER", "a-a": "IDENTIFIER"}
ANCHORS = AnchorScanner(RULES, DICTIONARY)
ORACLE = PlainScanner(RULES, DICTIONARY)

EXAMPLES = sorted({read_example(text)[0] for rule in RULES for text in (*rule.examples, *rule.counter_examples)})
FRAGMENTS = [
    *("password", "token", "api_key", "secret", "Authorization", "Bearer", "key", "user", "phone", "-----BEGIN"),
    *(": ", "=", '"', "'", '": "', " ", "\n", "\t", "\\", "\\n", ",", ";", "@", "://", "/", ".", "-", "_", "+", "%3D"),
    *(
        "4111",
        "0",
        "12",
        "192.168",
        "2001:db8",
        "abc",
        "XYZ",
        "ff00",
        "é",
        "名",
        "\x00",
        "\n\x00\n",
        "ada lovell",
        "ZOË",
        "Lovell, Ada",
        "ada_lovell",
        "Ada%20",
        "Lovell",
    ),
    *("[REDACTED:EMAIL:0123456789ab]", "[REDACTED:NOTHING:0123456789ab]", "a-a-a", "ACME-77"),
]
TEXTS = st.lists(st.sampled_from(EXAMPLES) | st.sampled_from(FRAGMENTS) | st.text(max_size=8), max_size=8).map("".join)

RULE = """
[[rule]]
id = "{id}"
kind = "SECRET"
description = "A test"
anchor = '''{anchor}'''
pattern = '''{pattern}'''
{more}
examples = []
counter_examples = []
"""


def made_rule(anchor: str, pattern: str, rule_id: str = "made", more: str = "") -> Rule:
    (rule,) = parse_rules(RULE.format(id=rule_id, anchor=anchor, pattern=pattern, more=more))
    return rule


def found(scanner: Scanner, *texts: str) -> list[Finding]:
    return sorted(scanner.findings(Passage(texts)))


def values(rules: Sequence[Rule], *texts: str) -> list[str]:
    """What is found; both scanners agree."""
    passage = Passage(texts)
    findings = sorted(AnchorScanner(rules, {}).findings(passage))
    assert findings == sorted(PlainScanner(rules, {}).findings(passage))
    return [passage.buffer[finding.start : finding.end].decode() for finding in findings]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.id)
def test_the_anchor_of_a_rule_fires_wherever_its_pattern_matches(rule: Rule) -> None:
    texts = [read_example(text)[0] for text in (*rule.examples, *rule.counter_examples)]
    texts += [f"x{text}" for text in texts] + [f"{text}\nnext" for text in texts]
    assert found(AnchorScanner([rule], {}), *texts) == found(PlainScanner([rule], {}), *texts)


@settings(max_examples=150, deadline=None)
@given(st.lists(TEXTS, max_size=4))
def test_both_scanners_find_the_same(texts: list[str]) -> None:
    assert found(ANCHORS, *texts) == found(ORACLE, *texts)


def test_a_rule_does_not_match_from_one_text_into_the_next() -> None:
    rule = made_rule("key", r"key[\s\x00]*[a-z]+")
    assert values([rule], "the key", "hidden") == []
    assert values([rule], "the key hidden") == ["key hidden"]


def test_a_rule_does_not_match_into_or_across_a_placeholder() -> None:
    placeholder = "[REDACTED:EMAIL:0123456789ab]"
    assert values([made_rule("EMAIL", "EMAIL:[0-9a-f]+")], f"see {placeholder}") == []
    assert values([made_rule("key=", "key=.+x")], f"key=1{placeholder}2x") == []
    assert values([made_rule("key=", "key=.+x")], f"key=1x{placeholder}2x") == ["key=1x"]


def test_what_only_looks_like_a_placeholder_hides_nothing() -> None:
    rule = made_rule("ghp_", "ghp_[0-9a-z]{4}")
    for text in ("[REDACTED:NOTHING:ghp_ab12]", "[REDACTED:EMAIL:ghp_ab12]", "[REDACTED:EMAIL:0123456789AB] ghp_ab12"):
        assert values([rule], text) == ["ghp_ab12"]


def test_a_match_may_begin_before_its_anchor() -> None:
    rule = made_rule("@[a-z]", r"(?<!\w)\w{1,9}@[a-z]+", more="before = 9")
    assert values([rule], "mail bob@host or eve@home") == ["bob@host", "eve@home"]


def test_a_rejected_match_does_not_hide_a_later_one() -> None:
    rule = made_rule("[0-9]{16}", "[0-9]{16}", more='validators = ["luhn"]')
    assert values([rule], "34111111111111111") == ["4111111111111111"]


def test_an_anchor_may_begin_with_a_choice_of_words() -> None:
    rule = made_rule("(?i)(?:sonar|sonarqube|snyk)[_=]{1,3}", "(?i)(?:sonar|sonarqube|snyk)[_=]+(?P<value>[a-z]+)")
    assert values([rule], "SONARQUBE=abc snyk__def sonar=ghi") == ["abc", "def", "ghi"]


def test_a_rule_that_fails_gives_the_whole_text(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: Rule, match: object) -> bool:
        raise ZeroDivisionError("with the value in its text")

    monkeypatch.setattr(Rule, "accepts", fail)
    assert values([made_rule("key", "key")], "first", "a key here", "last") == ["a key here"]


def test_the_dictionary_is_found_as_whole_words_whatever_their_case() -> None:
    passage = Passage(["ada LOVELL, Adas Lovells, zoë ZOË Zoëtrope", "xACME-77", "acme-77."])
    findings = sorted(ANCHORS.findings(passage))
    found_values = [
        passage.buffer[start:end].decode() for start, end, source in findings if source.rule_id == "dictionary"
    ]
    assert found_values == ["ada LOVELL", "zoë", "ZOË", "acme-77"]


@pytest.mark.parametrize(
    "written",
    [
        *("ada.lovell", "ada_lovell", "ADA-Lovell", "Ada+Lovell", "Ada%20Lovell", "Ada   Lovell", "Lovell, Ada"),
        *("lovell,ada", "Ada\r\nLovell", "Ada\n    Lovell", "Ada\n\tLovell", "Ada\\nLovell", "Ada\\r\\nLovell"),
        *("Ada\\n    Lovell", "O\u2019Brien", "o'brien", "D'Arcy", "d\u2019arcy"),
    ],
)
def test_the_dictionary_is_found_however_its_words_are_joined(written: str) -> None:
    entries = {"Ada Lovell": "NAME", "O'Brien": "NAME", "D\u2019Arcy": "NAME"}
    passage = Passage([f"see {written}: here", f"xx{written}xx"])
    for scanner in (AnchorScanner([], entries), PlainScanner([], entries)):
        assert [passage.value(start, end).decode() for start, end, _ in scanner.findings(passage)] == [written]


def test_only_names_of_the_dictionary_are_found_last_word_first() -> None:
    assert found(AnchorScanner([], {"Blue Heron": "IDENTIFIER"}), "Heron, Blue") == []
    assert found(AnchorScanner([], {"Blue Heron": "NAME"}), "Heron; Blue", "Blue, Heron", "Blue. Heron") == []


def test_an_anchor_that_vectorscan_cannot_compile_is_named() -> None:
    good, bad = made_rule("key", "key", "good"), made_rule("(?<!x)key", "key", "bad")
    with pytest.raises(InvalidRule, match="bad"):
        AnchorScanner([good, bad], {})
    with pytest.raises(InvalidRule, match="endless"):
        AnchorScanner([made_rule("a.*b", "a.*b", "endless")], {})


def test_a_text_that_is_made_to_be_matched_everywhere_is_given_as_a_whole() -> None:
    rule = made_rule("a:", r"a:\S+", more='validators = ["entropy:7.9"]')
    assert values([rule], "a:" * 40_000, "a:b") == ["a:" * 40_000]


def test_another_process_need_not_compile_again() -> None:
    copied = AnchorScanner(RULES, DICTIONARY, ANCHORS.compiled())
    assert copied.compiled() == ANCHORS.compiled()
    assert found(copied, *EXAMPLES) == found(ANCHORS, *EXAMPLES)
    with_other_rules = AnchorScanner(RULES[:1], {}, ANCHORS.compiled())
    assert found(with_other_rules, *EXAMPLES) == found(AnchorScanner(RULES[:1], {}), *EXAMPLES)


def test_no_rules_find_nothing() -> None:
    assert found(AnchorScanner([], {}), "anything") == []


def test_threads_share_a_scanner() -> None:
    expected = found(ANCHORS, *EXAMPLES)
    outcomes: list[bool] = []
    threads = [
        threading.Thread(target=lambda: outcomes.append(found(ANCHORS, *EXAMPLES) == expected)) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert outcomes == [True] * 4
