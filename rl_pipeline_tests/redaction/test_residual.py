"""The independent check finds what was left behind, nothing in ordinary texts, and the same inside ClickHouse."""

import json

import polars as pl
import pytest

from rl_pipeline.redaction.residual import RESIDUAL_PATTERNS, residual_expressions, residual_findings
from rl_pipeline.stores.clickhouse import ClickHouseWarehouse

BODY = "MIIEpAIBAAKCAQEA7bq98Z1m3vGk5w2RfX8yTn4cUe6JdHs0LpQoWiBvNzKx"
LEFT_BEHIND = {
    "PRIVATE_KEY": f"-----BEGIN RSA PRIVATE KEY-----\n{BODY}\n-----END RSA PRIVATE KEY-----",
    "API_KEY": "export GITHUB_TOKEN=ghp_" + "9aZ3kLmQ8rT2vXw7YbN5cD4eF6gH1jK0pRsU",
    "JWT": "eyJhbGciOiJIUzI1NiJ9abcd.eyJzdWIiOiI5ODc2NTQzMjEwIn0.dozjgNryP4J3jVmNHl0w5N_XgL0n3I9PlFUP0THsR8U",
    "EMAIL": "write to jane.doe+work@mail-host.com, please",
    "CREDIT_CARD": "my credit card is 4454-7945-1139-0933, thanks",
    "SSN": 'SSN: "536-90-4399"',
    "IBAN": "IBAN GB59IFUE40226315499137",
    "PHONE": "call (415) 555-2671 now",
    "IP_ADDRESS": '{"remote_addr": "41.173.96.26"}',
}
BARE = {
    "API_KEY": "ghp_" + "9aZ3kLmQ8rT2vXw7YbN5cD4eF6gH1jK0pRsU",
    "EMAIL": "jane.doe@mail-host.com",
    "CREDIT_CARD": "visa 4454794511390933",
    "SSN": "536-90-4399",
    "IBAN": "GB59IFUE40226315499137",
    "PHONE": "(415) 555-2671",
    "IP_ADDRESS": "ip=41.173.96.26",
}
"""What `LEFT_BEHIND` shows in a sentence, alone."""
ORDINARY = [
    "",
    "commit 2fd4e1c67a2d28fced849ee1bb76e7391b93eb12",
    "f47ac10b-58cc-4372-a567-0e02b2c3d479",
    "2025-12-08T12:00:00Z INFO 127.0.0.1:8080 took 0.4454794511390933 s",
    "git@github.com:example/project.git, left-pad@1.3.0, @property",
    "AKIAIOSFODNN7EXAMPLE and ghp_" + "x" * 36,
    "the test card is visa 4242 4242 4242 4242 or card number 4454794511390934",
    "-----BEGIN RSA PRIVATE KEY-----\n...\n-----END RSA PRIVATE KEY-----",
    "IBAN GB59IFUE40226315499138, ip address 10.0.0.1, version 41.173.96.26",
    "sha512-" + "z4PhNX7vuL3xVChQ1m2AB9Yg5AULVxXcg/SpIdNs6c5H0NE8XYXysP+DGNKHfuwvY7kxvUdBeoGlODJ6+SfaPg==",
    *(f"card number [REDACTED:{kind}:0123456789ab] is [REDACTED:{kind}:012345678901]" for kind in RESIDUAL_PATTERNS),
]


def beside_escapes(text: str) -> list[str]:
    """The text where JSON writes a letter right before and behind it."""
    return [f"line\n{text}\nline", f"a\t{text}\r\n", f"\x1b[1;31m{text}\x1b[0m", json.dumps(f"line\n{text}\nline")]


def texts() -> list[str]:
    plain = [*LEFT_BEHIND.values(), *ORDINARY]
    plain += [beside for text in plain for beside in beside_escapes(text)]
    return [*plain, *map(json.dumps, plain), json.dumps({"turns": [{"content": text} for text in plain]})]


@pytest.mark.parametrize("kind", LEFT_BEHIND)
def test_what_was_left_behind_is_found_in_a_text_and_in_its_json(kind: str) -> None:
    assert residual_findings(LEFT_BEHIND[kind]) == {kind: 1}
    assert residual_findings(json.dumps({"turns": [{"content": LEFT_BEHIND[kind]}]})) == {kind: 1}


@pytest.mark.parametrize("kind", LEFT_BEHIND)
def test_what_was_left_behind_is_found_between_line_ends_and_colours(kind: str) -> None:
    value = BARE.get(kind, LEFT_BEHIND[kind])
    for text in beside_escapes(value):
        assert residual_findings(json.dumps({"turns": [{"content": text}]})) == {kind: 1}, text


@pytest.mark.parametrize("text", ORDINARY)
def test_nothing_is_found_in_ordinary_and_redacted_texts(text: str) -> None:
    assert residual_findings(text) == {}
    assert residual_findings(json.dumps({"turns": [{"content": text}]})) == {}


def test_every_kind_has_a_text_that_shows_it() -> None:
    assert set(LEFT_BEHIND) == set(RESIDUAL_PATTERNS)


def test_an_allowed_value_is_no_finding() -> None:
    text = "jane.doe@mail-host.com or omar@mail-host.com"
    assert residual_findings(text) == {"EMAIL": 2}
    assert residual_findings(text, frozenset({"omar@mail-host.com"})) == {"EMAIL": 1}


@pytest.mark.parametrize("allowed", [frozenset(), frozenset({"(415) 555-2671", "it's \\ quoted"})])
def test_clickhouse_counts_the_same(warehouse: ClickHouseWarehouse, allowed: frozenset[str]) -> None:
    warehouse.execute("CREATE TABLE texts (number UInt32, document String) ENGINE = MergeTree ORDER BY number")
    documents = texts()
    warehouse.insert("texts", pl.DataFrame({"number": range(len(documents)), "document": documents}))
    columns = ", ".join(f"{sql} AS {kind}" for kind, sql in residual_expressions("document", allowed).items())
    counted = warehouse.query(f"SELECT {columns} FROM texts ORDER BY number").to_dicts()
    inside = [{kind: count for kind, count in row.items() if count} for row in counted]
    assert inside == [residual_findings(document, allowed) for document in documents]


@pytest.mark.parametrize("piece", ["\\", "\\n", "\\\\n", "\\u001b[0;"])
def test_a_text_of_escapes_is_read_to_its_end(piece: str) -> None:
    """A pattern that goes astray on repetition would not end within the suite's time."""
    assert residual_findings(piece * (1 << 20)) == {}
