"""The second looks at personal data, one by one."""

import re

import pytest

from rl_pipeline.redaction.personal_validators import PERSONAL


def accepts(name: str, text: str) -> bool:
    """Whether a validator takes the marked part of a text."""
    lead, value, tail = (part.encode() for part in re.split("[«»]", text))
    match = re.compile(re.escape(value)).search(lead + value + tail, len(lead))
    assert match is not None
    return PERSONAL[name](value, match)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("email", "«jane@example.com»"),
        ("email", "mail: «jane@intranet.corp»"),
        ("email", "ask «jane@acme.ventures» first"),
        ("email", "contact: «jane@corp.local»"),
        ("grouped_phone", "Jane Doe «06 12 34 56 78»"),
        ("grouped_phone", "Jane Doe «07700 900123»"),
        ("grouped_phone", "Jane Doe «415 555 2671»"),
        ("card", "1,«4454794511390933»,2027"),
        ("card", "VALUES(«4454794511390933»)"),
        ("card", "charge(«4454794511390933»)"),
        ("ssn", "applicant «123-45-6789»"),
        ("leads_to_somebody", "X-Forwarded-For: 10.0.0.1, «5.9.10.11»"),
        ("leads_to_somebody", "«5.9.10.11» - - [08/Dec/2025"),
        ("leads_to_somebody", "GET /v1 «52.75.75.75» 200"),
        ("street", "part of «12 Long Road»"),
        ("phone", "«467 3395»"),
        ("international_phone", "«+41 (0)96 471 07 95»"),
        ("international_phone", "«+1-903-140-4508x769»"),
        ("grouped_phone", "«0490 75 40 81»"),
        ("grouped_phone", "not answering at «78 651 450»"),
        ("grouped_phone", "Phone:\n«467 3395»"),
        ("bare_phone", "contact «9498777106»"),
        ("card", "«4454794511390933»"),
        ("card", "card «630427373398»"),
        ("card", "pay with «4242424242424242»"),
        ("iban", "«gb42nawi04454264788619»"),
        ("public_ipv6", "«2a00:1450:4001:81b::200e»"),
        ("leads_to_somebody", "«41.173.96.26»"),
        ("leads_to_somebody", "ip «5.9.10.11»"),
        ("street", "«90 Whitchurch Road»"),
        ("street", "«5521 Countess Close», London"),
        ("identifier", "«F162823540116»"),
        ("person", "«Ján M. Novák»"),
    ],
)
def test_the_real_thing_is_taken(name: str, text: str) -> None:
    assert accepts(name, text)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("email", "«git@github.com»"),
        ("email", "«icon@2x.png»"),
        ("email", "ssh «jane@corp.local»"),
        ("email", "(«query@keys.swapaxes»(0, 1))"),
        ("email", "«query@self.projection»"),
        ("international_phone", "«+2147483647»"),
        ("international_phone", "«+4294967295»"),
        ("card", "default_rng(«2435908729190400»)"),
        ("card", "[4454794511390934,«4454794511390933»]"),
        ("ssn", "order 17, part number «123-45-6789»"),
        ("ssn", '"invoice": "«123-45-6789»"'),
        ("leads_to_somebody", "clickhouse-server «26.7.2.59»"),
        ("leads_to_somebody", 'd="M4 «1.5.75.75»'),
        ("leads_to_somebody", "a.75.75 0 0 1 «1.5.75.75»"),
        ("street", "Chapter «3 The Long Road»"),
        ("person", "«Claude»"),
        ("person", "«Qwen2»"),
        ("email", "x = «grad@self.weight»"),
        ("email", "https://«deploy@example.com»/x"),
        ("phone", "«2025-12-08»"),
        ("phone", "«12345»"),
        ("phone", "«1429-1434»"),
        ("phone", "«1765195200»"),
        ("international_phone", "«+1577836800»"),
        ("international_phone", "«+10 20 30 40 50»"),
        ("grouped_phone", "«467 3395»"),
        ("grouped_phone", "call «467 3395»\x00"),
        ("grouped_phone", "call me\n\x00\nrows «78 651 450»"),
        ("bare_phone", "call product number «9498777106»"),
        ("card", "«630427373398»"),
        ("card", "order number «4454794511390933»"),
        ("card", "the test number «4242424242424242»"),
        ("iban", "«GB59IFUE40226315499138»"),
        ("iban", "«GB59IFUE4022631549913»"),
        ("public_ipv6", "«2001:db8::1»"),
        ("public_ipv6", "«fe80::1»"),
        ("public_ipv6", "«2a00:1:::2»"),
        ("iban", "«DE33A2345678901234567B»"),
        ("leads_to_somebody", "«1.2.3.4»"),
        ("leads_to_somebody", "version «41.173.96.26»"),
        ("leads_to_somebody", "«2.5.29.15»"),
        ("leads_to_somebody", "«8.8.8.8»"),
        ("street", "the «7 Supreme Court» judges"),
        ("identifier", "«AB12»"),
        ("person", "«The Django Team»"),
    ],
)
def test_what_only_looks_like_it_is_not(name: str, text: str) -> None:
    assert not accepts(name, text)
