"""Dead letters: one per refused sequence, redacted, listed while they are refused, and replayed after a fix."""

import json
import re
from hashlib import sha256
from typing import Any

import pytest

from rl_pipeline.ingestion.dead_letters import (
    NoDeadLetter,
    dead_letter_subject,
    list_dead_letters,
    sequence_of_dead_letter,
    show_dead_letter,
)
from rl_pipeline.ingestion.excerpts import EXCERPT_CHARACTERS, excerpt_of
from rl_pipeline.redaction.policy import RedactionPolicy
from rl_pipeline.redaction.redactor import PLACEHOLDER, Redactor
from rl_pipeline_tests.ingestion.ingesting import (
    KEY,
    NOW,
    POLICY,
    SECRET,
    STREAM,
    SUBJECT,
    Ingesting,
    document,
    documents,
    reference_to,
)
from rl_pipeline_tests.waiting import wait_until

REDACTOR = Redactor(POLICY)


def refused_sequences(ingesting: Ingesting, **options: Any) -> list[int]:
    return list_dead_letters(ingesting.warehouse, STREAM, **options)["sequence"].to_list()


def test_a_refused_message_has_a_letter_that_tells_all_but_its_content(ingesting: Ingesting) -> None:
    broken = json.dumps(document(instructions=f"Use {SECRET}.") | {"turns": []}).encode()
    ingesting.publish(document(2), broken)
    ingesting.drain()
    letter = show_dead_letter(ingesting.stream, STREAM, 2)
    assert (letter.stream, letter.sequence, letter.subject, letter.message_id) == (STREAM, 2, SUBJECT, "message-2")
    assert (letter.reason, letter.path, letter.revision) == ("min_items", "turns", 1)
    assert letter.advice
    assert letter.stream_time == ingesting.stream.get(STREAM, 2).time.isoformat()
    assert letter.refused_at == NOW.isoformat()
    assert (letter.size, letter.sha256) == (len(broken), sha256(broken).hexdigest())
    assert SECRET not in letter.excerpt
    assert PLACEHOLDER.search(letter.excerpt)
    assert json.loads(letter.excerpt)["turns"] == []
    with pytest.raises(NoDeadLetter, match=f"no dead letter for {STREAM} 1"):
        show_dead_letter(ingesting.stream, STREAM, 1)


def test_a_sequence_has_one_letter_however_often_and_late_it_is_refused(ingesting: Ingesting) -> None:
    configuration = ingesting.stream.request("STREAM.INFO.RL_DLQ")["config"]
    ingesting.stream.request("STREAM.UPDATE.RL_DLQ", configuration | {"duplicate_window": 10**8})
    ingesting.publish(b"{}", b"[]")
    ingesting.drain()
    ingesting.stream.publish("agent.rl.dlq.probe", b"{}", "probe")
    # The window in which the stream knows messages by their ids is over.
    wait_until(lambda: not ingesting.stream.publish("agent.rl.dlq.probe", b"{}", "probe").duplicate)
    ingesting.stream.request("STREAM.PURGE.RL_DLQ", {"filter": "agent.rl.dlq.probe"})
    write_ledger_of_nothing(ingesting)
    ingesting.drain()
    ingesting.replay([1, 2])
    assert [letter["sequence"] for letter in ingesting.letters()] == [1, 2]


def write_ledger_of_nothing(ingesting: Ingesting) -> None:
    """As if the ingest had been killed before it wrote the ledger."""
    ingesting.warehouse.execute("TRUNCATE TABLE trajectory_ledger")


def test_newer_rules_write_a_letter_of_their_own_and_that_one_is_shown(ingesting: Ingesting) -> None:
    made = document() | {"turns": []}
    made["metadata"]["note"] = "zanzibar launch"
    ingesting.publish(made, b"{}")
    ingesting.drain()
    assert "zanzibar launch" in show_dead_letter(ingesting.stream, STREAM, 1).excerpt
    for _ in range(2):
        ingesting.drain(policy=RedactionPolicy(KEY, {"zanzibar": "NAME"}))
    shown = show_dead_letter(ingesting.stream, STREAM, 1)
    assert (shown.sequence, shown.revision, "zanzibar" in shown.excerpt) == (1, 2, False)
    assert [(letter["sequence"], letter["revision"]) for letter in ingesting.letters()] == [
        (1, 1),
        (2, 1),
        (1, 2),
        (2, 2),
    ]


def test_the_subject_of_a_letter_tells_its_sequence() -> None:
    subject = dead_letter_subject(STREAM, 12, 3)
    assert subject == f"agent.rl.dlq.{STREAM}.12.3"
    assert sequence_of_dead_letter(STREAM, subject) == 12
    for other in (dead_letter_subject("OTHER", 12, 3), "agent.rl.dlq.trajectory", f"agent.rl.dlq.{STREAM}.12"):
        assert sequence_of_dead_letter(STREAM, other) is None


def test_letters_are_listed_by_reason_and_range_the_newest_first(ingesting: Ingesting) -> None:
    ingesting.publish(b"{}", document(), b"nonsense", b"{}")
    ingesting.drain()
    assert refused_sequences(ingesting) == [4, 3, 1]
    assert refused_sequences(ingesting, reason="not_json") == [3]
    assert refused_sequences(ingesting, first=2, last=3) == [3]
    assert refused_sequences(ingesting, limit=1) == [4]
    listed = list_dead_letters(ingesting.warehouse, STREAM, last=1).row(0, named=True)
    assert (listed["reason"], listed["message_id"], listed["size"]) == ("missing", "message-1", 2)


def test_what_a_fix_makes_acceptable_is_stored_once_by_a_replay(ingesting: Ingesting) -> None:
    # Refused for its missing claim; the fix is to store the object.
    message, stored = reference_to(document(), "claims/one.json")
    ingesting.publish(message, *documents(2, seed=9))
    ingesting.drain()
    assert ingesting.verdicts() == {1: "refused", 2: "accepted", 3: "accepted"}
    assert ingesting.letters()[0]["reason"] == "claim_missing"

    still = ingesting.replay([1])
    assert (still.report.verdicts, still.gone) == ({"refused": 1}, ())
    ingesting.address.open().put("claims/one.json", stored)
    for expected in ({"accepted": 1}, {}):
        assert ingesting.replay([1, 2]).report.verdicts == expected
    assert ingesting.verdicts() == dict.fromkeys((1, 2, 3), "accepted")
    assert ingesting.stored_sequences() == [1, 2, 3]
    assert refused_sequences(ingesting) == []


def test_a_replay_says_what_the_stream_no_longer_has_and_leaves_it_as_it_was(ingesting: Ingesting) -> None:
    ingesting.publish(b"{}", b"{}", document())
    ingesting.drain()
    before = ingesting.ledger(1)
    ingesting.stream.erase(STREAM, 1)
    replayed = ingesting.replay([1, 2])
    assert (replayed.gone, replayed.report.verdicts) == ((1,), {"refused": 1})
    assert ingesting.ledger(1) == before


HOSTILE = [
    pytest.param(f'{{"instructions": "{SECRET}"}}', id="value"),
    pytest.param(f'{{"{SECRET}": 1}}', id="key"),
    pytest.param(f'{{"a": {{"{SECRET}": {{"{SECRET}": "{SECRET}"}}}}, "b": NaN}}', id="nested keys"),
    pytest.param('{"password": "correct-horse-battery"}', id="field name"),
    pytest.param('{"\\u0070assword": "correct-horse-battery"}', id="escaped field name"),
    pytest.param('{"password": "correct-horse-battery", "a": [1, 2', id="broken off"),
    pytest.param('{"password": "correct-horse-batt', id="broken off within the value"),
    pytest.param('{"password": "correct-horse-battery", "\\ud800": 1}', id="half a character"),
    pytest.param(f'{{"x": "{SECRET}", "x": 2}}', id="repeated key"),
    pytest.param(f'}}{{ "token": "{SECRET}"', id="no JSON at all"),
    pytest.param('}{ "pass\\u0077ord": "correct-horse-battery" }', id="no JSON, escaped"),
    pytest.param("".join(f"\\u{ord(character):04x}" for character in SECRET), id="all escaped"),
    pytest.param("[" * 500 + f'"{SECRET}"' + "]" * 500, id="too deep for JSON readers"),
    pytest.param("[" * 100 + f'"{SECRET}"' + "]" * 100, id="too deep for the contract"),
    pytest.param("x" * (EXCERPT_CHARACTERS - 8) + f" {SECRET}", id="across the cut"),
    pytest.param(
        '"' + "x" * (EXCERPT_CHARACTERS - 30) + " ada.lovelace@analytical-engines.org", id="e-mail across the cut"
    ),
]


@pytest.mark.parametrize("content", HOSTILE)
def test_no_excerpt_shows_a_secret_however_it_was_written(content: str) -> None:
    for data in (content.encode(), content.encode() + b"\xff\xfe\x00"):
        shown = excerpt_of(data, REDACTOR, {})
        assert len(shown) <= EXCERPT_CHARACTERS
        for secret in (SECRET, "correct-horse-batt", "ada.lovelace"):
            assert secret not in shown
            assert secret[:10] not in shown


def test_an_excerpt_does_not_show_its_user_either() -> None:
    for content in (b'{"a": "by user-5f0c9d11"}', b"by user-5f0c9d11, broken"):
        assert "5f0c9d11" not in excerpt_of(content, REDACTOR, {"user-5f0c9d11": "USER"})


@pytest.mark.parametrize("user", ["erin-7", "e", "1", "REDACTED", "USER", "@erin", 'a"b', "true", "ada lovelace"])
def test_an_excerpt_does_not_show_its_user_however_short_the_id_is(user: str) -> None:
    stands = REDACTOR.placeholder("USER", user)
    contents = {
        "in a text": {"note": f"{user} wrote; ({user})."},
        "as a name": {user: {"n": 1.5}},
        "alone": [user],
    }
    for tree in contents.values():
        for content in (json.dumps(tree), json.dumps(tree) + ",}"):
            shown = excerpt_of(content.encode(), REDACTOR, {user: "USER", "somebody": "USER"})
            assert stands in shown
            rest = PLACEHOLDER.sub("", shown)
            assert not re.search(rf"(?<!\w){re.escape(user)}(?!\w)", rest)
    assert "note" in excerpt_of(json.dumps(contents["in a text"]).encode(), REDACTOR, {user: "USER"})


def test_an_excerpt_of_a_number_that_is_a_user_does_not_show_it() -> None:
    assert "4711" not in excerpt_of(b'{"user_id": 4711, "n": 47110}', REDACTOR, {"4711": "USER"}).replace("47110", "")


def test_nothing_is_shown_of_a_list_of_users_or_of_what_is_no_text() -> None:
    many = {f"user-{number}": "USER" for number in range(100)}
    assert excerpt_of(json.dumps(list(many)).encode(), REDACTOR, many) == ""
    assert excerpt_of(f"password {SECRET}".encode("utf-16"), REDACTOR, {}) == ""


def test_an_excerpt_of_something_harmless_is_readable() -> None:
    assert excerpt_of('{"a": ["grüße", 1]}'.encode(), REDACTOR, {}) == '{"a": ["grüße", 1]}'
    assert excerpt_of(b"plainly no JSON", REDACTOR, {}) == "plainly no JSON"
