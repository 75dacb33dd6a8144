"""The rules for personal data, all together: what they find in sentences, and leave alone in code and logs."""

import random
from collections.abc import Iterator
from importlib.resources import files

import pytest

from rl_pipeline.redaction.passage import Passage
from rl_pipeline.redaction.rule import KINDS, Rule, parse_rules, read_example
from rl_pipeline.redaction.scanner import AnchorScanner, PlainScanner, Scanner

EVERY_RULE = parse_rules(files("rl_pipeline.redaction").joinpath("rules/personal.toml").read_text(encoding="utf-8"))
RULES = [rule for rule in EVERY_RULE if rule.on]
SCANNER = AnchorScanner(RULES, {})
PERSONAL_KINDS = {"EMAIL", "PHONE", "CREDIT_CARD", "SSN", "IBAN", "IP_ADDRESS", "ADDRESS", "NAME", "IDENTIFIER"}

SENSITIVE = [
    ("EMAIL", "Cc: «ann-marie.o'neil@uni.example.ac.uk»; thanks"),
    ("EMAIL", 'curl -d "{\\"email\\":\\"«omar_rossi5980@example.com»\\"}"'),
    ("PHONE", "Please have the manager call me at «0494 92 82 32» I'd like to join"),
    ("PHONE", "I would like to stop receiving messages to «699 956 915»"),
    ("PHONE", "Personal Info:\nPhone:\n«467 3395»\n\nE-mail:"),
    ("PHONE", "Desk: «+447700 921 916»\nFax: «345-899-3560x4587»"),
    ("PHONE", "office «(602)272-9781»"),
    ("PHONE", "I didn't get any message on my registered «668 5702». Could you"),
    ("PHONE", '{\\"phone_number\\": \\"«9498777106»\\"}'),
    ("PHONE", "Teléfono: «91 123 45 67»"),
    ("PHONE", "«0393 1144137» fax"),
    ("CREDIT_CARD", "Are there any charges applied to withdraw money from ATM with the card «3558331500082481»"),
    ("CREDIT_CARD", "for this card: «676222165679»"),
    ("CREDIT_CARD", "pay with «4454 7945 1139 0933»,"),
    ("CREDIT_CARD", "card «4273468222888969924»"),
    ("SSN", "applicant «832-13-6314»."),
    ("IBAN", "transfer to «NL91 ABNA 0417 1643 00» today"),
    ("IP_ADDRESS", "Dec 8 sshd[712]: Failed password from «179.177.214.91» port 51022"),
    ("IP_ADDRESS", "ssh root@«165.165.185.178»"),
    ("ADDRESS", "my office is at «137 Avenue Teboulbi»"),
    ("ADDRESS", '"address1": "«362 Spruce Street»", "address2": "«Suite 641»"'),
    ("IDENTIFIER", '{"first_name": "Mia", "dob": "«1965-06-09»"}'),
    ("NAME", "Co-authored-by: «Ana Hobden» <ana@hoverbear.org>"),
]
HARMLESS = [
    "commit 2fd4e1c67a2d28fced849ee1bb76e7391b93eb12",
    "uuid f47ac10b-5812-4372-8567-012345678901",
    "sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
    "2025-12-08T12:00:00Z 2025-12-08 12:00:00,123 08.12.2025 12/08/2025",
    "at 1765195200 and 1765195200123 and 1765195200123456",
    "numpy==2.1.3 torch-2.5.1+cu121 Chrome/120.0.6099.130 nvidia-cudnn-cu12==9.1.0.70",
    "127.0.0.1:8080 10.0.3.7 192.168.1.1 172.16.0.5 169.254.1.1 0.0.0.0/0 ::1 fe80::1 2001:db8::8a2e:370:7334",
    "1.3.6.1.4.1.311.21.20 2.5.29.15",
    "00000010: 4865 6c6c 6f20 776f 726c 6421 0a00 1234  Hello world!....",
    "[0.4454794511390933, -0.12345678, 3.141592653589793, 1e-05]",
    "12 34 56 78 90\n11 22 33 44 55\n123 456 789 012",
    "ISBN 978-3-16-148410-0, doi:10.1038/s41586-020-2649-2, arXiv:2305.12345v2, PMID 12345678",
    "order #W2378156, item 9523456873, flight HAT045, reservation 4WQ150",
    "src/app.py:123: error at line 4567, column 12 (1234567 bytes, port 65535)",
    "@app.route('/x')\n@pytest.mark.parametrize\nx = a @ b\ny = w@x.T",
    "git@github.com:org/repo.git pkg@1.2.3 logo@2x.png user@localhost",
    "@@ -123,7 +123,9 @@ def call(self, number: int) -> None:",
    "call(12, 345, 678) # phone book has 1234 entries",
    "def phone_number(self): return self.tel",
    "use the test card 4242 4242 4242 4242, exp 12/34, or the Stripe sandbox number 5555555555554444",
    "seed=4454794511390933 order_id: 4454794511390933",
    "std::vector<int>::iterator it; a::b::c; 12:34:56",
    "-rw-r--r-- 1 root root 4096 Dec  8 12:00 main.py\n 434 14 557 total",
    "Results: 12/15 passed, 3 failed in 4.56s (2025 Test Suite 5)",
    "The Supreme Court heard 7 cases; see Figure 3 Way and 10 Downing",
    "error TS2345: Argument of type 'string'; exit code 137; PID 12345; 0xdeadbeef",
    "My name is on the list. Dear team, From: the team",
    "Phone support is available 24/7. Contact 3 people. Call 911. Text 5 lines to 10 users.",
    "https://example.com/p/1234567890123/x?t=1765195200&v=41.2",
    "IBAN GB00IFUE40226315499137; the DE89 line",
    "+2147483647 +4294967295 clickhouse-server 26.7.2.59 default_rng(2435908729190400)",
    '<path d="M8 4a.75.75 0 0 1 1.5.75.75 0 0 1-1.5 0Z"/>',
    "Chapter 3 The Long Road, order 123-45-6789, My name is Claude",
    "415 555 2671 12 9\n312 444 1024 13 9\n",
    "birth of a process at 12:00; born to run; passport.js v0.6.0; license: MIT",
]


def found(scanner: Scanner, text: str) -> set[tuple[int, int, str]]:
    return {(start, end, source.rule_id) for start, end, source in scanner.findings(Passage([text]))}


def values_found(text: str, kind: str) -> set[str]:
    passage = Passage([text])
    return {
        passage.value(start, end).decode() for start, end, source in SCANNER.findings(passage) if source.kind == kind
    }


@pytest.mark.parametrize(("kind", "example"), SENSITIVE)
def test_personal_data_is_found_in_the_sentences_that_people_write(kind: str, example: str) -> None:
    text, values = read_example(example)
    assert set(values) <= values_found(text, kind)


@pytest.mark.parametrize("text", HARMLESS)
def test_code_logs_and_numbers_are_left_alone(text: str) -> None:
    assert found(SCANNER, text) == set()


def test_a_long_number_is_a_phone_only_where_the_text_says_so() -> None:
    assert values_found("call me at 9498777106", "PHONE") == {"9498777106"}
    assert values_found("the product has id 9498777106", "PHONE") == set()


def test_a_word_of_another_text_lends_no_meaning() -> None:
    passage = Passage(["my card", "630427373398"])
    assert SCANNER.findings(passage) == []


@pytest.mark.parametrize("kind", sorted(KINDS))
@pytest.mark.parametrize("rule", EVERY_RULE, ids=lambda rule: rule.id)
def test_no_pattern_reaches_into_a_placeholder(rule: Rule, kind: str) -> None:
    for digits in ("012345678901", "630427373398", "0490754081ab", "905674379312"):
        mark = f"[REDACTED:{kind}:{digits}]"
        for text in (
            mark,
            f"{kind.lower()}: {mark}",
            f"call me at {mark} 12",
            f"card {mark}{mark}",
            f"+1 {mark}@example.com",
        ):
            marks = [(at, at + len(mark)) for at in range(len(text)) if text.startswith(mark, at)]
            for match in filter(rule.accepts, rule.pattern.finditer(text.encode())):
                assert not any(match.start() < end and start < match.end() for start, end in marks), (text, match)


def test_the_anchors_lead_to_everything_that_the_patterns_find() -> None:
    plain, anchored = PlainScanner(EVERY_RULE, {}), AnchorScanner(EVERY_RULE, {})
    examples = [read_example(example)[0] for rule in EVERY_RULE for example in rule.examples]
    for text in [*examples, *(read_example(example)[0] for _, example in SENSITIVE), *HARMLESS]:
        assert found(anchored, text) == found(plain, text), text


def mutations(text: str, count: int, chance: random.Random) -> Iterator[str]:
    """The text with one to three small changes, each time others."""
    for _ in range(count):
        characters = list(text)
        for _ in range(chance.randint(1, 3)):
            at = chance.randrange(len(characters))
            one = characters[at]
            changes = [one.upper(), one.lower(), one + one, one + chance.choice(" .,-_:'\"\n\u00a0é。1aZ")]
            if not one.isalnum():
                changes += ["", *" .-_/:"]
            characters[at] = chance.choice(changes + ([*"0123456789"] if one.isdigit() else [""]))
            characters = list("".join(characters)) or ["1"]
        yield "".join(characters)


@pytest.mark.parametrize("rule", EVERY_RULE, ids=lambda rule: rule.id)
def test_the_anchor_leads_to_what_the_pattern_finds_in_altered_examples(rule: Rule) -> None:
    plain, anchored, chance = PlainScanner([rule], {}), AnchorScanner([rule], {}), random.Random(rule.id)
    examples = [read_example(example)[0] for example in (*rule.examples, *rule.counter_examples)]
    passage = Passage([text for example in examples for text in mutations(example, 150, chance)])
    expected = set(plain.findings(passage))
    assert len(expected) > 50
    missed = sorted(expected ^ set(anchored.findings(passage)))
    assert [passage.value(max(0, start - 20), end + 10) for start, end, _ in missed] == []


@pytest.mark.parametrize(
    "piece", ["1", "a", "12 ", "1-", "a.", "a@", "+1 ", "Aa ", "phone ", "1 Rue ", "Aa Aa <a@", "ab:"]
)
def test_a_hostile_text_is_read_to_its_end(piece: str) -> None:
    """A pattern that goes astray on repetition would not end within the suite's time."""
    text = (piece * (1 + 65_536 // len(piece)))[:65_536].encode()
    for rule in EVERY_RULE:
        for match in rule.pattern.finditer(text):
            rule.accepts(match)


def test_only_kinds_of_personal_data_are_named() -> None:
    assert {rule.kind for rule in EVERY_RULE} <= PERSONAL_KINDS


def test_what_is_imprecise_is_off_by_default() -> None:
    assert {rule.id for rule in EVERY_RULE if not rule.on} == {
        "email-obfuscated",
        "mac-address",
        "coordinates",
        "name-with-title",
    }
