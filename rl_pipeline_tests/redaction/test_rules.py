"""Every rule finds what its examples mark, and leaves its counter-examples alone."""

import pytest

from rl_pipeline.redaction.policy import RedactionKey, RedactionPolicy
from rl_pipeline.redaction.redactor import Redactor
from rl_pipeline.redaction.rule import Rule, packaged_rules, read_example

RULES = packaged_rules()
EVERY_RULE_ON = RedactionPolicy(
    RedactionKey.parse("v1:" + "k" * 32), rules_on=frozenset(rule.id for rule in RULES if not rule.on)
)
REDACTOR = Redactor(EVERY_RULE_ON)


def values_found(rule: Rule, text: str) -> tuple[str, ...]:
    """What the rule alone finds, by its pattern and validators."""
    matches = rule.pattern.finditer(text.encode())
    return tuple(rule.value_of(match).decode() for match in matches if rule.accepts(match))


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.id)
def test_a_rule_finds_what_its_examples_mark(rule: Rule) -> None:
    assert rule.examples, "a rule needs an example"
    for example in rule.examples:
        text, values = read_example(example)
        assert values, f"mark the value in {example!r}"
        assert values_found(rule, text) == values, example


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.id)
def test_a_rule_leaves_its_counter_examples_alone(rule: Rule) -> None:
    assert rule.counter_examples, "a rule needs a counter-example"
    for text in rule.counter_examples:
        assert values_found(rule, text) == (), text


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.id)
def test_the_values_of_its_examples_are_gone_once_all_rules_have_run(rule: Rule) -> None:
    for example in rule.examples:
        text, values = read_example(example)
        left = REDACTOR.redact(["plain", text, "plain"]).tree[1]
        for value in values:
            assert left.count(value) < text.count(value), example


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.id)
def test_its_counter_examples_do_not_fire_it_among_all_rules(rule: Rule) -> None:
    for text in rule.counter_examples:
        assert rule.id not in REDACTOR.redact({"content": text}).counts, text
