"""No error shows or carries what was in the message: not as a value, not as a key, not through what caused it."""

import json
import traceback
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rl_pipeline.contracts import ALL_TOPICS, ContractError, ParseLimits, Trajectory, parse_message, serialize
from rl_pipeline.contracts import parse_strict_json as parse
from rl_pipeline_tests.contracts.documents import at, examples, places, replaced
from rl_pipeline_tests.contracts.strategies import trees

SECRET = "hunter2-not-to-be-shown"


def everything_in(error: BaseException) -> Iterator[str]:
    """All that a log, a debugger's chain or a dead letter could take from an error, other errors behind it included."""
    seen: set[int] = set()
    waiting: list[BaseException | None] = [error]
    while waiting:
        current = waiting.pop()
        if current is None or id(current) in seen:
            continue
        seen.add(id(current))
        yield from (str(current), repr(current), repr(current.args), repr(vars(current)))
        yield repr(getattr(current, "__notes__", []))
        waiting += [current.__cause__, current.__context__]
    yield "".join(traceback.format_exception(error))


def check_refusal(subject: str, data: bytes, *, must_refuse: bool = False) -> None:
    try:
        parse_message(subject, data)
    except ContractError as error:
        kept = error
    else:
        assert not must_refuse
        return
    leaks = [text for text in everything_in(kept) if SECRET in text]
    assert leaks == []
    assert kept.__cause__ is None
    assert kept.__context__ is None
    assert "\n" not in str(kept)


@pytest.mark.parametrize(("subject", "example"), examples())
def test_a_secret_in_place_of_any_value_stays_out_of_the_error(subject: str, example: dict[str, Any]) -> None:
    for place in places(example):
        for value in (SECRET, [SECRET], {SECRET: SECRET}, {"type": {SECRET: [SECRET]}}, f"{SECRET}\n" * 2000):
            check_refusal(subject, json.dumps(replaced(example, place, value)).encode())


@pytest.mark.parametrize(("subject", "example"), examples())
def test_a_secret_as_a_further_key_of_any_object_stays_out_of_the_error(subject: str, example: dict[str, Any]) -> None:
    check_refusal(subject, json.dumps({**example, SECRET: SECRET}).encode(), must_refuse=True)
    for place in places(example):
        if not isinstance(at(example, place), dict):
            continue
        added = replaced(example, (*place, SECRET), {SECRET: SECRET})
        check_refusal(subject, json.dumps(added).encode())
        for broken in ("NaN", "1e999", "9" * 5000, f'{{"{SECRET}": 1, "{SECRET}": 2}}', f'"\\ud800{SECRET}"', SECRET):
            text = json.dumps(added).replace(f'{{"{SECRET}": "{SECRET}"}}', broken)
            check_refusal(subject, text.encode(), must_refuse=True)


@pytest.mark.parametrize("subject", ALL_TOPICS)
def test_a_secret_in_broken_json_stays_out_of_the_error(subject: str) -> None:
    secret = SECRET.encode()
    for data in (
        secret,
        b'"' + secret,
        b'{"' + secret,
        b'{"' + secret + b'": ' + secret,
        b'{"' + secret + b'": "' + secret + b'"',
        b'{"' + secret + b'": 1, "' + secret + b'": 2}',
        b'{"a": "' + secret + b'"} ' + secret,
        b'{"' + secret + b'": "\xff"}',
        b"\xef\xbb\xbf" + secret,
        b'["' + secret + b'\\ud800"]',
        b'{"' + secret + b'\\ud800": 1}',
        (b'{"' + secret + b'":') * 20_000,
        b'{"topic": "' + secret + b'", "payload": {"' + secret + b'": 1}}',
        b'{"id":"1","topic":"' + secret + b'","ts":"1","version":"1","source":"1","payload":{}}',
    ):
        check_refusal(subject, data, must_refuse=True)


@pytest.mark.parametrize("topic", ALL_TOPICS.values(), ids=lambda topic: topic.subject)
@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_a_secret_anywhere_in_any_message_stays_out_of_the_error(topic: Any, data: st.DataObject) -> None:
    message = data.draw(trees(topic.message))
    place = data.draw(st.sampled_from(list(places(message))))
    value = data.draw(st.sampled_from([SECRET, [SECRET], {SECRET: SECRET}]))
    cut = data.draw(st.integers(0, 400))

    text = json.dumps(replaced(message, place, value)).encode()

    check_refusal(topic.subject, text)
    check_refusal(topic.subject, text[:-1] if cut == 0 else text[:cut])


def test_a_secret_stays_out_of_the_errors_of_messages_made_in_code() -> None:
    example = next(example for _, example in examples() if "turns" in example)
    for value in (f"{SECRET}\ud800", {f"{SECRET}\ud800": 1}, [SECRET, float("nan")], {SECRET: {SECRET, b"\xff"}}):
        message = Trajectory.model_validate(replaced(example, ("metadata", SECRET), value))
        with pytest.raises(ContractError) as caught:
            serialize(message)
        assert [text for text in everything_in(caught.value) if SECRET in text] == []


def test_pydantic_itself_hides_the_input_of_code_that_builds_a_message() -> None:
    example = next(example for _, example in examples() if "turns" in example)
    with pytest.raises(ValueError, match="trajectory_id") as caught:
        Trajectory.model_validate(replaced(example, ("trajectory_id",), SECRET))

    assert SECRET not in str(caught.value)
    assert SECRET not in repr(caught.value)


def test_the_check_itself_would_notice_a_leak() -> None:
    with pytest.raises(ContractError) as caught:
        parse(json.dumps({SECRET: float("nan")}).encode(), ParseLimits(), frozenset({SECRET}))
    assert any(SECRET in text for text in everything_in(caught.value))

    try:
        try:
            json.loads(SECRET)
        except ValueError as error:
            raise ContractError("not_json", "$", "text", "send JSON") from error
    except ContractError as error:
        chained = list(everything_in(error))
    assert any(SECRET in text for text in chained)
