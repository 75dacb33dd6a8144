"""Sets that the project makes itself: every kind of sensitive value, drawn at random, and what only looks like one.

`generated_personal` and `generated_secrets` ask for every kind in plain company. `hard_negatives` puts a few of them
among SHAs, UUIDs, hashes, images, versions, identifiers, measurements and test cards, in snippets as agents see them.
"""

import base64
import json
import re
import string
import uuid
from collections.abc import Callable
from random import Random

from .sets import PERSONAL, SECRET, SecretRow, SecretSet, Span, SpanRow, SpanSet

Draw = Callable[[Random], str]


def generated_sets(size: int, seed: int = 7) -> tuple[SpanSet, SecretSet, SpanSet]:
    """`size` rows each; the same for the same seed."""
    chance = Random(seed)
    personal = SpanSet("generated_personal", [_personal_row(chance) for _ in range(size)])
    secrets = SecretSet("generated_secrets", [_secret_row(chance, number % 2 == 0) for number in range(size)])
    hard = SpanSet("hard_negatives", [_snippet(chance, number) for number in range(size)], (SECRET, *PERSONAL))
    return personal, secrets, hard


def _text_of(chance: Random, alphabet: str, length: int) -> str:
    return "".join(chance.choices(alphabet, k=length))


def _digits(chance: Random, length: int) -> str:
    return _text_of(chance, string.digits, length)


_HEX = "0123456789abcdef"
_ALNUM = string.ascii_letters + string.digits
_FIRST = ("jane", "omar", "mia", "yusuf", "ines", "lars", "aiko", "petr", "chloe", "tomas")
_LAST = ("doe", "rossi", "kim", "novak", "silva", "berg", "tanaka", "moreau", "kowalski", "larsen")
_WORDS = ("parser", "index", "worker", "schema", "cache", "tensor", "session", "router", "column", "batch")


# Personal values


def _email(chance: Random) -> str:
    first, last = chance.choice(_FIRST), chance.choice(_LAST)
    local = chance.choice((f"{first}.{last}", f"{first}{last}{chance.randint(1, 99)}", f"{first[0]}{last}+work"))
    return f"{local}@{chance.choice(_WORDS)}{chance.choice(('.com', '.co.uk', '.de', '.io', '.org', '-mail.net'))}"


_PHONE_FORMATS = (
    "+1-2##-5##-####", "(2##) 5##-####", "3##-5##-####", "3##.5##.#### x###", "+44 7### ######", "+49 (0)30 #######",
    "04## ## ## ##", "0##1 3## ## ##", "03.9#.9#.1#.8#", "07# 2### 1###", "+33 6 1# 2# 3# 4#", "(08) 8### 6###",
)  # fmt: skip


def _phone(chance: Random) -> str:
    shape = chance.choice(_PHONE_FORMATS)
    return "".join(chance.choice("123456789") if character == "#" else character for character in shape)


_ISSUERS = (("4", 16), ("51", 16), ("2319", 16), ("37", 15), ("6011", 16), ("3530", 16), ("36", 14), ("6221", 16))


def _card(chance: Random) -> str:
    prefix, length = chance.choice(_ISSUERS)
    body = prefix + _digits(chance, length - len(prefix) - 1)
    total = sum(sum(divmod(int(digit) * (2 - index % 2), 10)) for index, digit in enumerate(reversed(body)))
    number = body + str(-total % 10)
    return "-".join(number[at : at + 4] for at in range(0, 16, 4)) if length == 16 and chance.random() < 0.3 else number


def _ssn(chance: Random) -> str:
    return f"{chance.randint(100, 665)}-{chance.randint(10, 99)}-{chance.randint(1000, 9999)}"


def _iban(chance: Random) -> str:
    country, body = chance.choice(
        (("DE", _digits(chance, 18)), ("GB", _text_of(chance, string.ascii_uppercase, 4) + _digits(chance, 14)),
         ("FR", _digits(chance, 23)), ("NO", _digits(chance, 11)))
    )  # fmt: skip
    remainder = int("".join(str(int(character, 36)) for character in f"{body}{country}00")) % 97
    whole = f"{country}{98 - remainder:02d}{body}"
    return " ".join(whole[at : at + 4] for at in range(0, len(whole), 4)) if chance.random() < 0.3 else whole


def _ip(chance: Random) -> str:
    if chance.random() < 0.25:
        return ":".join(["2a02", *(f"{chance.randint(0x1000, 0xFFFF):x}" for _ in range(7))])
    return _filled(chance, chance.choice(("41", "52", "81", "93", "195")) + ".1<below99>.<below255>.<below255>")


_PERSONAL: dict[str, tuple[Draw, tuple[str, ...]]] = {
    "EMAIL_ADDRESS": (_email, ("Please write to {}.", '{{"email": "{}"}}', "From: <{}>", "user {} logged in")),
    "PHONE_NUMBER": (_phone, ("Call me at {} tomorrow.", "Phone: {}", '{{"phone": "{}"}}', "My number is {}, thanks")),
    "CREDIT_CARD": (_card, ("My card {} was declined.", "charge card {} please", '{{"card_number": "{}"}}')),
    "US_SSN": (_ssn, ("Her SSN is {}.", "ssn={}", "applicant {} was approved")),
    "IBAN_CODE": (_iban, ("Transfer it to {}.", "IBAN: {}", '{{"iban": "{}"}}')),
    "IP_ADDRESS": (_ip, ("blocked request from {} again", "client {} - GET /", '{{"remote_addr": "{}"}}')),
}


def _labelled(chance: Random, entity: str) -> SpanRow:
    draw, templates = _PERSONAL[entity]
    value, template = draw(chance), chance.choice(templates)
    start = len(template.partition("{}")[0].replace("{{", "{"))
    return SpanRow(template.format(value), (Span(start, start + len(value), entity),))


def _personal_row(chance: Random) -> SpanRow:
    if chance.random() < 0.3:
        return SpanRow(_harmless(chance), ())
    return _labelled(chance, chance.choice(PERSONAL))


# Secrets


def _url_safe(chance: Random, length: int) -> str:
    return base64.urlsafe_b64encode(chance.randbytes(length)).decode().rstrip("=")


def _jwt(chance: Random) -> str:
    parts = ({"alg": "HS256", "typ": "JWT"}, {"sub": _digits(chance, 10), "iat": 1700000000 + chance.randint(0, 10**6)})
    head, body = (base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=") for part in parts)
    return f"{head}.{body}.{_url_safe(chance, 32)}"


def _private_key(chance: Random) -> str:
    body = base64.b64encode(chance.randbytes(600)).decode()
    lines = "\n".join(body[at : at + 64] for at in range(0, len(body), 64))
    kind = chance.choice(("RSA ", "EC ", "OPENSSH ", ""))
    return f"-----BEGIN {kind}PRIVATE KEY-----\n{lines}\n-----END {kind}PRIVATE KEY-----"


def _password(chance: Random) -> str:
    return _text_of(chance, _ALNUM + "!#%&*+-", chance.randint(10, 18)) + chance.choice("7x!Q")


_TOKENS: tuple[Draw, ...] = (
    lambda chance: "ghp_" + _text_of(chance, _ALNUM, 36),
    lambda chance: "AKIA" + _text_of(chance, "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567", 16),
    lambda chance: "xoxb-" + _digits(chance, 12) + "-" + _digits(chance, 12) + "-" + _text_of(chance, _ALNUM, 24),
    lambda chance: "sk_live_" + _text_of(chance, _ALNUM, 24),
    lambda chance: "AIza" + _text_of(chance, _ALNUM + "_-", 35),
    lambda chance: "glpat-" + _text_of(chance, _ALNUM, 20),
    lambda chance: "hf_" + _text_of(chance, string.ascii_letters, 34),
    lambda chance: "npm_" + _text_of(chance, _ALNUM, 36),
    lambda chance: "SG." + _text_of(chance, _ALNUM, 22) + "." + _text_of(chance, _ALNUM, 43),
    _jwt,
    _private_key,
)
_TOKEN_PLACES = (
    "export TOKEN={}",
    "token: {}",
    '{{"value": "{}"}}',
    "curl -H 'Authorization: Bearer {}' $URL",
    "use {} now",
)
_ASSIGNMENTS = (
    "DB_PASSWORD={}", 'password = "{}"', '{{"client_secret": "{}"}}', "postgres://app:{}@db.example.com:5432/main",
    "api_key: '{}'", "mysql -u root --password={} main",
)  # fmt: skip


def _secret(chance: Random) -> tuple[str, str]:
    """A text with a secret, and the secret."""
    if chance.random() < 0.65:
        token = chance.choice(_TOKENS)(chance)
        return chance.choice(_TOKEN_PLACES).format(token), token
    value = _password(chance) if chance.random() < 0.5 else _text_of(chance, _ALNUM, chance.randint(24, 40))
    value = (
        value.replace("#", "n").replace("&", "R").replace("%", "4")
    )  # they would end it or be escaped in a URL or shell
    return chance.choice(_ASSIGNMENTS).format(value), value


def _secret_row(chance: Random, holds_secret: bool) -> SecretRow:
    text = _secret(chance)[0] if holds_secret else _harmless(chance)
    return SecretRow("generated", text, holds_secret)


# What is harmless


_FIELD = re.compile(r"<(hex|digits|base64|below|float|word|version|uuid)-?(\d*)>")
_HARMLESS = (
    "commit <hex40>\n    Fix the <word>",
    '{"request_id": "<uuid>", "status": 200}',
    "sha256:<hex64>  <word>.tar.gz",
    "md5 <hex32>",
    "data:image/png;base64,iVBORw0KGgo<base64-300>",
    "<word>==<version>",
    "Chrome/1<below40>.0.<below7000>.<below200> Safari/537.36",
    "2025-12-1<below9>T12:0<below9>:00.<digits6>Z INFO started on 127.0.0.1:8080",
    "ts=17<digits11> level=info took=<float>s port=<below65535>",
    "def get_<word>_token(self, api_key: str) -> Token:\n    return self.tokens[api_key]",
    'password = os.environ["DB_PASSWORD"]',
    "api_key: ${API_KEY}\npassword: <your-password>\ntoken: xxxxxxxxxxxxxxxx",
    "use the test card 4242424242424242",
    "pay with 4111 1111 1111 1111, a test card, or with the test card 5555-5555-5555-4444",
    "git clone git@github.com:example/project.git && npm install left-pad@1.3.0",
    "@@ -<below900>,7 +<below900>,9 @@ class Parser:",
    " ".join(["<below999>"] * 12),
    "00000010: <hex4> <hex4> <hex4> <hex4> <hex4> <hex4> <hex4> <hex4>  ................",
    "[<float>, -<float>, <float>, <float>]",
    "ISBN 978-3-16-<digits6>-0, doi:10.1<digits3>/s<digits5>-020-<digits5>-x",
    "arXiv:2311.<digits5> pages 1<digits3>-1<digits3>",
    "order #W<digits7> item <digits10> total 1 <digits3> <digits3>.00",
    "-rw-r--r-- 1 root root <below999999999> Dec  8 12:00 <word>.bin",
    "listening on 0.0.0.0:<below9999>, peers 10.0.3.<below254> and 192.168.1.7",
    'File "/app/<word>.py", line <below4000>, in <word>',
    "seed <digits16> trace_id=<hex32> span_id=<hex16>",
    "OID 1.3.6.1.4.1.311.21.20 and 2.5.29.15 are extensions",
    "for i in range(10): secret_santa[i] = password_field.render(token_type='bearer')",
    '"integrity": "sha512-<base64-64>"',
)


def _harmless(chance: Random) -> str:
    return _filled(chance, chance.choice(_HARMLESS))


def _filled(chance: Random, template: str) -> str:
    """The template with every field drawn; its number is a length, or the bound of a number."""

    def draw(field: re.Match[str]) -> str:
        size = int(field[2] or 0)
        drawn: dict[str, Callable[[], str]] = {
            "hex": lambda: _text_of(chance, _HEX, size),
            "digits": lambda: _digits(chance, size),
            "base64": lambda: base64.b64encode(chance.randbytes(size)).decode(),
            "below": lambda: str(chance.randrange(size)),
            "float": lambda: f"{chance.random():.16f}",
            "word": lambda: chance.choice(_WORDS),
            "version": lambda: ".".join(str(chance.randrange(30)) for _ in range(chance.choice((3, 4)))),
            "uuid": lambda: str(uuid.UUID(int=chance.getrandbits(128))),
        }
        return drawn[field[1]]()

    return _FIELD.sub(draw, template)


def _snippet(chance: Random, number: int) -> SpanRow:
    """Harmless lines, among which every second snippet has one that is not."""
    lines = [SpanRow(_filled(chance, each), ()) for each in chance.sample(_HARMLESS, chance.randint(2, 5))]
    if number % 2 == 0:
        lines.insert(chance.randint(0, len(lines)), _sensitive_line(chance))
    text, labels = "", []
    for line in lines:
        labels += [Span(label.start + len(text), label.end + len(text), label.entity) for label in line.labels]
        text += line.text + "\n"
    return SpanRow(text, tuple(labels))


def _sensitive_line(chance: Random) -> SpanRow:
    if chance.random() < 0.5:
        return _labelled(chance, chance.choice(PERSONAL))
    text, secret = _secret(chance)
    start = text.index(secret)
    return SpanRow(text, (Span(start, start + len(secret), SECRET),))
