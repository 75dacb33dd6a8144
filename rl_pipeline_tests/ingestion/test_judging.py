"""One message and its fate; and that nothing raw leaves with it."""

import json
import pickle
from collections.abc import Mapping
from dataclasses import asdict
from datetime import timedelta
from hashlib import sha256
from typing import Any

import pytest

from rl_pipeline.contracts import (
    ClaimCheck,
    ContractError,
    parse_message,
    serialize,
    validate_trajectory,
)
from rl_pipeline.ingestion.judging import Judgement, judge, user_placeholders
from rl_pipeline.redaction.redactor import PLACEHOLDER, Redactor
from rl_pipeline.stores.stream import StoredMessage
from rl_pipeline_tests.ingestion.ingesting import KEY, NOW, OLD_KEY, POLICY, SECRET, SUBJECT, document, reference_to

REDACTOR = Redactor(POLICY)
KEYS = (KEY, OLD_KEY)
USER = "user-5f0c9d11"


def no_claim(_: ClaimCheck) -> bytes:
    raise ContractError("claim_missing", "claim_check.key", "absent", "publish it again")


def judged(
    content: Mapping[str, Any] | bytes,
    erasures: Mapping[str, Any] | None = None,
    claim: bytes | None = None,
    **message: Any,
) -> Judgement:
    data = content if isinstance(content, bytes) else json.dumps(content).encode()
    given = {"subject": SUBJECT, "message_id": "message-1", "headers": {}, "time": NOW} | message
    stored = StoredMessage(sequence=7, data=data, **given)
    judgement = judge(stored, REDACTOR, KEYS, erasures or {}, no_claim if claim is None else lambda _: claim)
    assert pickle.loads(pickle.dumps(judgement)) == judgement
    assert (judgement.sequence, judgement.size, judgement.stream_time) == (7, len(data), NOW)
    assert judgement.sha256 == sha256(data).hexdigest()
    return judgement


def everything_in(judgement: Judgement) -> str:
    return json.dumps(asdict(judgement), default=str)


def test_a_good_message_is_accepted_and_stored_as_it_would_be_serialized() -> None:
    made = document()
    judgement = judged(made, message_id=made["trajectory_id"])
    assert (judgement.verdict, judgement.reason, judgement.refusal) == ("accepted", "", None)
    assert judgement.message_id == judgement.trajectory_id == made["trajectory_id"]
    assert judgement.trajectory is not None
    assert judgement.trajectory.document.encode() == serialize(validate_trajectory(made))
    assert judgement.trajectory.user == ""


def test_a_secret_is_replaced_in_the_document_and_its_rule_counted() -> None:
    made = document(instructions=f"Use {SECRET} to log in.")
    made["session_id"] = "mail to ada.lovelace@analytical-engines.org"
    judgement = judged(made)
    assert judgement.trajectory is not None
    assert SECRET not in everything_in(judgement)
    assert "lovelace" not in everything_in(judgement)
    stored = parse_message(SUBJECT, judgement.trajectory.document.encode())
    assert PLACEHOLDER.search(stored.task_context.instructions or "")  # type: ignore[union-attr]
    assert PLACEHOLDER.search(judgement.trajectory.enrichment.session_id)
    assert sum(judgement.trajectory.counts) == 2
    assert len(judgement.trajectory.rules) == 2


def test_a_user_is_known_by_a_placeholder_alone() -> None:
    made = document(user_id=USER, instructions=f"I am {USER}, hello.")
    judgement = judged(made, message_id=f"of-{USER}", headers={"Publisher": USER})
    assert judgement.verdict == "accepted"
    assert judgement.trajectory is not None
    assert USER not in everything_in(judgement)
    assert judgement.users == user_placeholders(USER, KEYS)
    assert judgement.trajectory.user == judgement.users[0] == REDACTOR.placeholder("USER", USER)
    stored = json.loads(judgement.trajectory.document)["task_context"]
    assert stored["user_id"] == judgement.trajectory.user
    assert stored["instructions"] == f"I am {judgement.trajectory.user}, hello."


def test_a_user_that_the_edge_has_replaced_already_stays_as_it_is() -> None:
    at_the_edge = "[REDACTED:USER:0123456789ab]"
    judgement = judged(document(user_id=at_the_edge))
    assert judgement.trajectory is not None
    assert judgement.trajectory.user == at_the_edge
    assert judgement.users == (at_the_edge,)


@pytest.mark.parametrize("place", ["task_context", "metadata"])
@pytest.mark.parametrize("broken", [False, True])
def test_of_somebody_who_opted_out_nothing_is_kept(place: str, broken: bool) -> None:
    made = document(user_id=USER)
    made[place]["opt_out"] = True
    if broken:
        made["turns"] = []
    judgement = judged(made)
    assert (judgement.verdict, judgement.reason) == ("opted_out", "user_opted_out")
    assert_nothing_is_kept(judgement)


@pytest.mark.parametrize("key", KEYS, ids=["current key", "earlier key"])
@pytest.mark.parametrize("broken", [False, True])
def test_of_somebody_who_was_erased_nothing_is_kept_whatever_the_key(key: Any, broken: bool) -> None:
    made = document(user_id=USER)
    if broken:
        made["turns"] = []
    (user,) = user_placeholders(USER, [key])
    judgement = judged(made, {user: NOW})
    assert (judgement.verdict, judgement.reason) == ("erased", "user_erased")
    assert_nothing_is_kept(judgement)


def test_a_user_who_is_named_only_in_the_metadata_is_a_user_too() -> None:
    made = document()
    made["metadata"]["user_id"] = USER
    judgement = judged(made)
    assert judgement.trajectory is not None
    assert judgement.trajectory.user == judgement.users[0]
    assert USER not in judgement.trajectory.document
    assert judged(made, erasures={judgement.users[0]: NOW}).verdict == "erased"


def test_a_user_whose_id_is_a_number_is_a_user_too() -> None:
    made = document()
    made["metadata"]["user_id"] = 4711234
    judgement = judged(made)
    assert judgement.trajectory is not None
    assert judgement.trajectory.user == REDACTOR.placeholder("USER", "4711234")
    assert json.loads(judgement.trajectory.document)["metadata"]["user_id"] == judgement.trajectory.user
    assert "4711234" not in everything_in(judgement)
    assert judged(made, erasures={judgement.users[1]: NOW}).verdict == "erased"


def test_a_second_user_is_replaced_too_and_the_tombstone_of_either_counts() -> None:
    made = document(user_id="alice-1", instructions="alice-1000 and bob-2-raw")
    made["metadata"]["user_id"] = ["bob-2-raw", {"also": 77}]
    judgement = judged(made)
    assert judgement.trajectory is not None
    assert judgement.trajectory.user == REDACTOR.placeholder("USER", "alice-1")
    stands = [REDACTOR.placeholder("USER", user) for user in ("bob-2-raw", "77")]
    stored = json.loads(judgement.trajectory.document)
    assert stored["metadata"]["user_id"] == [stands[0], {"also": stands[1]}]
    assert stored["task_context"]["instructions"] == f"alice-1000 and {stands[0]}"
    for user in ("alice-1", "bob-2-raw", "77"):
        for found in user_placeholders(user, KEYS):
            assert judged(made, erasures={found: NOW}).verdict == "erased"


def test_who_rated_or_spoke_is_replaced_too_and_their_tombstone_counts() -> None:
    made = document(user_id=USER)
    made["metadata"]["feedback"] = [{"kind": "thumbs_up", "user_id": "bob-smith"}, {"kind": "correction"}]
    made["turns"][0] |= {"user_id": "carol-jones"}
    made["turns"][0]["observation"] |= {"user_id": "dan-brown", "context": {"user_id": "eve-white"}}
    judgement = judged(made)
    assert judgement.trajectory is not None
    assert judgement.trajectory.user == REDACTOR.placeholder("USER", USER), "the trajectory is still its user's"
    stored = json.loads(judgement.trajectory.document)
    assert stored["metadata"]["feedback"][0]["user_id"] == REDACTOR.placeholder("USER", "bob-smith")
    for user in ("bob-smith", "carol-jones", "dan-brown", "eve-white"):
        assert user not in everything_in(judgement)
        for found in user_placeholders(user, KEYS):
            assert judged(made, erasures={found: NOW}).verdict == "erased"


MALFORMED = [
    pytest.param('{"task_context":{"opt_out":false,"user_id":"erin-7"},}', id="trailing comma"),
    pytest.param('{"task_context":{"opt_out":false,"user_id":"erin-7"}} trailing', id="trailing text"),
    pytest.param('{"task_context":{"opt_out":false,"user_id":"erin-7","y":tru},"z":1}', id="half a word"),
    pytest.param("{'task_context':{'opt_out':false,'user_id':'erin-7'}}", id="single quotes"),
    pytest.param('\ufeff{"task_context":{"opt_out":false,"user_id":"erin-7"}}', id="byte order mark"),
    pytest.param(f'{{"a":{"[" * 5000},"opt_out":false,"user_id":"erin-7"}}', id="depth bomb"),
    pytest.param('[{"task_context":{"opt_out":false,"user_id":"erin-7"}}]', id="list"),
    pytest.param('{"task_context":{"opt_out":false,"user_id":"erin-7"},"task_context":{}}', id="repeated key"),
    pytest.param('{"user_id":"erin-7","opt_out":false,"user_id":"another"}', id="repeated id"),
    pytest.param('{"payload":{"z":1},"task_context":{"opt_out":false,"user_id":"erin-7"}}', id="beside a payload"),
    pytest.param('{"task_context":"{\\"opt_out\\":false,\\"user_id\\":\\"erin-7\\"}"}', id="JSON in a string"),
    pytest.param(json.dumps(json.dumps(json.dumps({"opt_out": False, "user_id": "erin-7"}))), id="in two strings"),
    pytest.param('{"task_context":"{\\"opt_out\\":false,\\"user_id\\":\\"erin-7\\",}"}', id="broken JSON in a string"),
    pytest.param(
        '{"task_context":"{\\"opt_out\\":false,\\"user_id\\":\\"erin-7\\"}",}', id="in a string of broken JSON"
    ),
    pytest.param('{"opt_out":false,"user_id":"erin\\u002d7",}', id="escaped"),
    pytest.param('{"opt_out":false,"user_id":"erin-7, "y":2}', id="a quote that is missing"),
    pytest.param('{"opt_out":false,"user_id":["erin-7"]}', id="list of ids"),
    pytest.param("opt_out=false user_id=erin-7", id="no JSON at all"),
]


@pytest.mark.parametrize("content", MALFORMED)
@pytest.mark.parametrize("encoding", ["utf-8", "utf-16"])
def test_a_malformed_message_has_its_user_too(content: str, encoding: str) -> None:
    data = content.encode(encoding)
    judgement = judged(data, message_id="of-erin-7")
    assert (judgement.verdict, judgement.message_id) == ("refused", "")
    assert judgement.refusal is not None
    assert "erin" not in everything_in(judgement)
    assert "e r i n" not in everything_in(judgement)
    (user,) = user_placeholders("erin-7", [OLD_KEY])
    assert user in judgement.users
    erased = judged(data, {user: NOW})
    assert (erased.verdict, erased.reason) == ("erased", "user_erased")
    assert_nothing_is_kept(erased)


@pytest.mark.parametrize("content", MALFORMED)
@pytest.mark.parametrize("said", ["true", "True", "1"])
def test_of_a_malformed_message_that_opts_out_nothing_is_kept(content: str, said: str) -> None:
    opting_out = content.replace("false", said)
    judgement = judged(opting_out.encode())
    assert (judgement.verdict, judgement.reason) == ("opted_out", "user_opted_out")
    assert_nothing_is_kept(judgement)


def test_whom_a_valid_trajectory_only_mentions_is_not_its_user_but_in_no_excerpt_either() -> None:
    made = document(user_id=USER)
    made["turns"][0]["action"]["tool_args"] = {"user_id": "erin-7", "opt_out": True}
    tombstone = dict.fromkeys(user_placeholders("erin-7", KEYS), NOW)
    assert judged(made, tombstone).verdict == "accepted"
    made["metadata"][SECRET] = "as a key"
    refused = judged(made, tombstone)
    assert refused.reason == "sensitive_key"
    assert "erin-7" not in everything_in(refused)


@pytest.mark.parametrize("user", ["success", "coding", "user_message", "task_context", "thumbs_up", "e", "1", "true"])
def test_a_user_whose_id_is_a_word_of_the_contract_is_accepted(user: str) -> None:
    made = document(user_id=user, domain="coding", task_status="success")
    judgement = judged(made)
    assert judgement.verdict == "accepted"
    assert judgement.trajectory is not None
    stored = json.loads(judgement.trajectory.document)["task_context"]
    assert stored["user_id"] == judgement.trajectory.user == REDACTOR.placeholder("USER", user)
    assert (stored["domain"], stored["task_status"]) == ("coding", "success")


def assert_nothing_is_kept(judgement: Judgement) -> None:
    assert (judgement.message_id, judgement.trajectory_id, judgement.publisher, judgement.users) == ("", "", "", ())
    assert judgement.trajectory is None
    assert judgement.refusal is None


def test_what_a_user_sends_after_the_erasure_is_accepted() -> None:
    (user,) = user_placeholders(USER, [KEY])
    assert judged(document(user_id=USER), {user: NOW - timedelta(milliseconds=1)}).verdict == "accepted"
    assert judged(document(user_id="user-somebody-else"), {user: NOW}).verdict == "accepted"


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "not_json"),
        (b"\xff\xfe", "not_utf8"),
        (b"[" * 100_000, "max_depth"),
        (b'{"trajectory_id": NaN}', "not_finite"),
        (b'{"a": 1, "a": 2}', "duplicate_key"),
        (b'{"a": "\\ud800"}', "lone_surrogate"),
        (document() | {"turns": []}, "min_items"),
        (document() | {"trajectory_id": "../../etc/passwd"}, "pattern"),
        (document() | {"more": 1}, "unknown_field"),
        ({"reward_id": "x"}, "missing"),
        (json.dumps(document()).encode()[:-100], "not_json"),
    ],
)
def test_what_breaks_the_contract_is_refused_with_a_code(content: Any, reason: str) -> None:
    judgement = judged(content)
    assert (judgement.verdict, judgement.reason, judgement.trajectory) == ("refused", reason, None)
    assert judgement.refusal is not None
    assert judgement.refusal.subject == SUBJECT
    assert judgement.refusal.advice


def test_a_refused_message_keeps_its_trajectory_id_only_if_it_is_one() -> None:
    made = document()
    assert judged(made | {"turns": []}).trajectory_id == made["trajectory_id"]
    assert judged(made | {"turns": [], "trajectory_id": SECRET}).trajectory_id == ""
    assert judged({"payload": made, "id": "1"}).trajectory_id == made["trajectory_id"]


@pytest.mark.parametrize(
    ("subject", "reason"),
    [("agent.rl.reward.v1", "missing"), ("agent.rl.unknown.v1", "unknown_subject"), (f"a.{SECRET}", "unknown_subject")],
)
def test_a_message_on_another_subject_is_refused(subject: str, reason: str) -> None:
    judgement = judged(document(), subject=subject)
    assert (judgement.verdict, judgement.reason) == ("refused", reason)
    assert SECRET not in everything_in(judgement)


def test_a_message_of_another_kind_is_refused() -> None:
    feedback = {"feedback_id": "f", "trajectory_id": document()["trajectory_id"], "timestamp": "2026-01-02T03:04:05Z"}
    judgement = judged(feedback | {"kind": "thumbs_up"}, subject="agent.rl.feedback.v1")
    assert (judgement.verdict, judgement.reason) == ("refused", "not_a_trajectory")


def test_a_secret_in_the_name_of_a_field_is_refused_and_not_shown() -> None:
    made = document()
    made["metadata"][SECRET] = "as a key"
    judgement = judged(made)
    assert (judgement.verdict, judgement.reason) == ("refused", "sensitive_key")
    assert SECRET not in everything_in(judgement)


def test_what_redaction_makes_invalid_is_refused_and_not_stored() -> None:
    # A known user whose id is also the id of the trajectory's parent, which must remain a UUID.
    parent = "3f2b8c1e-5d4a-4b6f-9e7d-1a2b3c4d5e6f"
    made = document(user_id=parent)
    made["metadata"]["parent_trajectory_id"] = parent
    judgement = judged(made)
    assert (judgement.verdict, judgement.reason) == ("refused", "redaction_broke_contract")
    assert judgement.refusal is not None
    assert judgement.refusal.path == "metadata.parent_trajectory_id"
    assert parent not in everything_in(judgement)


@pytest.mark.parametrize(
    "header",
    [
        *(SECRET, "not an identifier", "ada@analytical-engines.org", "x" * 200, ""),
        # Without a form of their own: a password, the hexadecimal digits of a key, a card.
        *("08aj73wdGpB19LcpaC", "15f99807b4905fcb10913d422d3a527f15849fc6", "4339494839947636"),
    ],
)
def test_headers_are_kept_only_where_nothing_in_them_is_sensitive(header: str) -> None:
    for content in (document(), b"{}"):
        judgement = judged(content, message_id=header, headers={"Publisher": header})
        assert (judgement.message_id, judgement.publisher) == ("", "")
        assert judged(content, headers={"Publisher": "agent-7"}).publisher == "agent-7"


def test_a_claimed_trajectory_is_accepted_as_if_it_had_come_itself() -> None:
    made = document(instructions=f"Use {SECRET}.")
    message, stored = reference_to(made, "claims/one.json")
    judgement = judged(message, claim=stored)
    assert judgement.verdict == "accepted"
    assert judgement.trajectory == judged(made).trajectory


def test_a_claim_that_does_not_hold_is_refused() -> None:
    message, stored = reference_to(document(user_id=USER), "claims/one.json")
    assert judged(message).reason == "claim_missing"
    assert judged(message, claim=stored + b" ").reason == "claim_check"


def test_a_claim_of_somebody_who_opted_out_is_not_even_dead_lettered() -> None:
    message, stored = reference_to(document(opt_out=True), "claims/one.json")
    assert judged(message, claim=stored).verdict == "opted_out"
    # Even where the object is not the claimed one.
    assert judged(message, claim=stored + b" ").verdict == "opted_out"
