"""What must hold of a dataset is seen when it does not."""

import json
from typing import Any

from rl_pipeline.curation.checks import Leakage, leakage, missing_domains, residual_secrets


def conversation(asked: str, *said: str, **columns: Any) -> dict[str, Any]:
    """A row of a dataset's conversations."""
    messages = [{"role": "user", "content": asked}, *({"role": "assistant", "content": one} for one in said)]
    return {"environment": None, "environment_task": None, "messages": json.dumps(messages), **columns}


def dealt(*rows: dict[str, Any]) -> Leakage:
    """What leaks when the rows are on alternate sides, and each is of a task of its own unless it says otherwise."""
    return leakage(
        {"task": f"task-{number}", "split": ("train", "holdout")[number % 2], **row} for number, row in enumerate(rows)
    )


def test_each_way_to_leak_is_counted() -> None:
    assert dealt(conversation("a", "1", task="t"), conversation("b", "2", task="t")) == Leakage(1, 0, 0)
    assert dealt(conversation("Do it", "1"), conversation("do  it ", "2")) == Leakage(0, 1, 0)
    assert dealt(conversation("Do it", "Done"), conversation("do it", "done")) == Leakage(0, 1, 1)
    assert dealt(conversation("a", "1"), conversation("b", "1"), conversation("c", "1")).total == 0
    assert dealt(conversation("a", "1"), conversation("b", "1"), conversation("a", "1")).total == 0, "both on one side"


def test_two_setups_of_a_world_tell_the_same_opening_apart_and_one_does_not() -> None:
    one, other = ({"environment": "crafting", "environment_task": f'{{"start":{start}}}'} for start in (1, 2))
    assert dealt(conversation("a", "1", **one), conversation("a", "2", **other)).total == 0
    assert dealt(conversation("a", "1", **one), conversation("a", "1", **other)) == Leakage(0, 0, 1)
    assert dealt(conversation("a", "1", **one), conversation("a", "2")) == Leakage(0, 1, 0)
    assert dealt(conversation("a", "1", **one), conversation("b", "2", **one)) == Leakage(1, 0, 0)


def test_domains_that_should_be_there_and_are_not_are_named() -> None:
    assert missing_domains({"coding": 4, "general": 3, "writing": 0}, {"coding": 1}) == ("general",)


def test_sensitive_values_that_are_left_are_counted_by_kind() -> None:
    text = '[{"role":"user","content":"write to jane.doe@northwind.com now, and to jim@northwind.com "}]'
    assert residual_secrets([text, text]) == {"EMAIL": 4}
    assert residual_secrets([text], allowed={"jim@northwind.com"}) == {"EMAIL": 1}
    assert residual_secrets([text], tolerated={"EMAIL"}) == {}
    assert residual_secrets(['[{"content":"[REDACTED:EMAIL:0123456789ab]"}]']) == {}
