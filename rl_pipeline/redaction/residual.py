"""Looks for what redaction left behind, by rules of its own.

Nothing here is shared with the rule files: a blind spot of theirs must not be one of this check. It blocks the data
that it finds something in, so it asks only for what nobody writes by accident, and in places where the rules have no
reason to hesitate. The same patterns, in the syntax that RE2 and Python share, run over a text here and over a column
inside ClickHouse. A document is JSON: quotes and line ends in its strings are escaped.
"""

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from types import MappingProxyType

_EDGE = r"[\s\"'\\,;:=<>(\[{}]"
"""What may stand beside a value; texts are padded, so that one always does."""

_OCTET = "(?:25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])"

RESIDUAL_PATTERNS: Mapping[str, str] = MappingProxyType(
    {
        "PRIVATE_KEY": r"-----BEGIN (?:[A-Z0-9]+ ){0,3}PRIVATE KEY-----[\\\s]{0,8}([A-Za-z0-9+/]{48})",
        "API_KEY": r"\b((?:AKIA|ASIA)[A-Z2-7]{16}|gh[pousr]_[0-9A-Za-z]{36}|github_pat_[0-9A-Za-z]{22}_[0-9A-Za-z]{59}"
        r"|xox[bp]-[0-9]{10,13}-[0-9]{10,13}-[0-9A-Za-z-]{20,80}|[rs]k_live_[0-9A-Za-z]{24,99}|AIzaSy[0-9A-Za-z_-]{33}"
        r"|sk-ant-api03-[0-9A-Za-z_-]{93}|sk-proj-[0-9A-Za-z_-]{48,200}|npm_[0-9A-Za-z]{36}|hf_[A-Za-z]{34}"
        r"|SG\.[0-9A-Za-z_-]{22}\.[0-9A-Za-z_-]{43})\b",
        "JWT": r"\b(eyJ[0-9A-Za-z_-]{16,}\.eyJ[0-9A-Za-z_-]{16,}\.[0-9A-Za-z_-]{32,})\b",
        "EMAIL": r"[\s\"'<>(]([a-z][a-z0-9]{1,30}(?:[._+-][a-z0-9]{1,30}){0,4}@[a-z][a-z0-9-]{1,40}"
        r"(?:\.[a-z][a-z0-9-]{1,40}){0,3}\.(?:com|org|net|edu|gov|de|fr|co\.uk))[\s\"'\\<>,;)]",
        "CREDIT_CARD": r"(?i:credit card|card number|mastercard|visa)(?: is)?\W{1,4}"
        r"((?:4[0-9]{3}|5[1-5][0-9]{2})(?:[0-9]{12}|(?: [0-9]{4}){3}|(?:-[0-9]{4}){3}))[\s\"'\\,;)]",
        "SSN": _EDGE + r"([1-5][0-9]{2}-[1-9][0-9]-[1-9][0-9]{3})[\s\"'\\,;)]",
        "IBAN": _EDGE + r"(DE[0-9]{20}|GB[0-9]{2}[A-Z]{4}[0-9]{14}|NL[0-9]{2}[A-Z]{4}[0-9]{10}|ES[0-9]{22}|BE[0-9]{14}"
        r"|CH[0-9]{19}|AT[0-9]{18}|FR[0-9]{12}[0-9A-Z]{11}[0-9]{2})[\s\"'\\,;)]",
        "PHONE": r"[\s\"':]((?:\+1[ .-])?\([2-9][0-9]{2}\) [2-9][0-9]{2}-[0-9]{4}"
        r"|\+1-[2-9][0-9]{2}-[2-9][0-9]{2}-[0-9]{4}|\+44 7[0-9]{3} [0-9]{6}|\+33 [67](?: [0-9]{2}){4})[\s\"'\\,;)]",
        "IP_ADDRESS": r"(?i:\bip|\bip[ _]address|remote_addr|client_ip)[\"'\\]{0,3}[ :=]{1,3}[\"'\\]{0,3}"
        rf"((?:4[1-9]|[5-9][0-9])\.{_OCTET}\.{_OCTET}\.{_OCTET})[\s\"'\\,;)]",
    }
)
"""By kind, with the value as the only group."""

_HARMLESS: Mapping[str, str] = MappingProxyType(
    {
        "API_KEY": r"(?i:example|sample|dummy|placeholder|change|replace|redacted|insert|todo|your|fake|test|xxxx|0000"
        r"|1111|aaaa|abcdef|123456|secret|token)",
        "JWT": r"(?i:example|xxxx|your)|aaaaaa|AAAAAA",
        "PRIVATE_KEY": r"(?i:example|xxxx|your)|AAAAAAAAAAAAAAAA",
        "EMAIL": r"^(?:git|hg|svn)@",
        "CREDIT_CARD": r"^(?:4242|4111|4012|4000|4222|5555|5105|5200)",
    }
)
"""Values that stand for one, or belong to nobody."""

_ESCAPED = r"\\(?:[nrt]|u001[bB]\[[0-9;]*m)"
"""White space and colours as JSON writes them: their letters would hide what they stand beside."""

_PLACEHOLDER = r"\[REDACTED:[A-Z_]{3,20}:[0-9a-f]{12}\]"
_BLANK = "\x01"
"""Neither an edge nor part of a value: nothing begins or ends beside what was redacted."""


def residual_findings(text: str, allowed: Collection[str] = frozenset()) -> dict[str, int]:
    """How many sensitive values of each kind are left in a text; the allowed ones do not count."""
    blanked = f" {_BLANKED.sub(_BLANK, _SPACES.sub(' ', text))} "
    counts = {kind: _count(kind, values.findall(blanked), allowed) for kind, values in _COMPILED.items()}
    return {kind: count for kind, count in counts.items() if count}


def residual_expressions(column: str, allowed: Iterable[str] = ()) -> dict[str, str]:
    """For each kind an expression of ClickHouse that counts in a column's texts what `residual_findings` counts."""
    spaced = f"replaceRegexpAll({column}, {_quoted(_ESCAPED)}, ' ')"
    blanked = f"concat(' ', replaceRegexpAll({spaced}, {_quoted(_PLACEHOLDER)}, {_quoted(_BLANK)}), ' ')"
    exempt = f"[{', '.join(map(_quoted, sorted(allowed)))}]"
    expressions = {}
    for kind, pattern in RESIDUAL_PATTERNS.items():
        conditions = [_SQL_CHECKS[kind]] if kind in _SQL_CHECKS else []
        conditions += [f"NOT match(value, {_quoted(_HARMLESS[kind])})"] if kind in _HARMLESS else []
        conditions += [f"NOT has({exempt}, value)"] if exempt != "[]" else []
        found = f"extractAll({blanked}, {_quoted(pattern)})"
        expressions[kind] = f"arrayCount(value -> {' AND '.join(conditions) or '1'}, {found})"
    return expressions


def _count(kind: str, values: Iterable[str], allowed: Collection[str]) -> int:
    harmless = _COMPILED_HARMLESS.get(kind)
    check = _CHECKS.get(kind, bool)
    return sum(
        value not in allowed and check(value) and not (harmless is not None and harmless.search(value))
        for value in values
    )


def _has_check_digit(value: str) -> bool:
    """Luhn's formula for the 16 digits of a card."""
    digits = [int(character) for character in value if character.isdigit()]
    return sum(sum(divmod(2 * digit, 10)) for digit in digits[::2]) % 10 == -sum(digits[1::2]) % 10


def _leaves_remainder_one(value: str) -> bool:
    """The check of ISO 13616."""
    return int("".join(str(int(character, 36)) for character in value[4:] + value[:4])) % 97 == 1


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


_CHECKS: Mapping[str, Callable[[str], bool]] = {"CREDIT_CARD": _has_check_digit, "IBAN": _leaves_remainder_one}
_SQL_CHECKS = {
    "CREDIT_CARD": "arraySum((digit, place) -> if(place % 2 = 1, intDiv(2 * digit, 10) + 2 * digit % 10, digit),"
    " arrayMap(one -> toUInt32(one), extractAll(value, '[0-9]')), range(1, 17)) % 10 = 0",
    "IBAN": "toUInt256(arrayStringConcat(arrayMap(one -> if(one >= 'A', toString(ascii(one) - 55), one),"
    " extractAll(concat(substring(value, 5), substring(value, 1, 4)), '.')))) % 97 = 1",
}
_BLANKED = re.compile(_PLACEHOLDER)
_SPACES = re.compile(_ESCAPED)
_COMPILED = {kind: re.compile(pattern, re.ASCII) for kind, pattern in RESIDUAL_PATTERNS.items()}
_COMPILED_HARMLESS = {kind: re.compile(pattern, re.ASCII) for kind, pattern in _HARMLESS.items()}
