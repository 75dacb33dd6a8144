"""Which values under a sensitive name are the thing itself, and which part of them is."""

import ipaddress
import re
from collections.abc import Iterator

from rl_pipeline.redaction.field_names import FieldName, sensitive_name
from rl_pipeline.redaction.name_servers import PUBLIC_NAME_SERVERS
from rl_pipeline.redaction.placeholders import PLACEHOLDER
from rl_pipeline.redaction.stand_ins import is_real

_REFERENCE = re.compile(
    r"""
      \s*
    | \$\{?[A-Za-z_][\w.:-]*\}?                     # $NAME, ${NAME}, ${NAME:-default}
    | \$\([^()]*\) | \$\{\{[^{}]*\}\} | \{\{[^{}]*\}\} | %\w+% | \{\w*\}
    | <[^<>]{1,80}> | \[[A-Za-z _-]{1,40}\]         # <your key>, [FILTERED]
    | [*•.xX#_-]{2,} | [*•.?-]
    | (?:process\.env|os\.environ|os\.getenv|getenv|env|secrets|vars?|config|settings|self|args|options|opts|props|req
        |request|ctx|data|params)[.\[(].*
    | (?:arn:aws:secretsmanager:|arn:aws:ssm:|vault:|op://|secretref:|projects/[\w-]+/secrets/).*
    | (?:none|null|nil|undefined|true|false|yes|no|n/a|string|str|text|integer|number|boolean|object|optional|required
        |redacted|hidden|masked|filtered|omitted|unset|empty|missing|unknown|todo|tbd)
    | (?:your|enter|insert|replace|add|put|example|sample|dummy|fake|placeholder)[-_ ]
        [\w -]{0,60}?(?:key|token|secret|password|pass|here|value|credential|name|number|phone|address)s?(?:[-_ ]here)?
    """,
    re.VERBOSE | re.IGNORECASE,
)
# What documentation and schemas write in the place of a value.
_STAND_IN = re.compile(
    r"""
      [a-z]{0,8}(?:[-_][a-z]{1,8}){0,2}[-_]?(?:\.{3}|…)                        # sk-...
    | [a-z]{1,8}(?:[-_][a-z0-9]{1,8}){0,2}[-_]x{3,}                             # sk-xxx
    | [\w/+-]{8,60}(?-i:EXAMPLE)(?:KEY)?
    | (?:replace|change)[-_ ]?(?:me|this|it)(?:[-_ ]\w{1,20}){0,3}
    | (?:Y{2,4}|M{2}|D{2})(?:[-/. ]?(?:Y{2,4}|M{2,3}|D{2})){1,2}                # YYYY-MM-DD
    | (?:n?varchar2?|n?char|character\ varying|decimal|numeric|timestamp|datetime)(?:\s?\([0-9, ]{1,8}\))?
        (?:\ (?:not\ )?null|\ unique|\ primary\ key){0,3}
    """,
    re.VERBOSE | re.IGNORECASE,
)
_SEVERAL_WORDS = re.compile(r"[A-Za-z]+(?:[-_ ][A-Za-z]+)+")
_MESSAGE = re.compile(
    r"\b(?:required|invalid|incorrect|wrong|must|cannot|can't|at least|characters|blank|missing"
    r"|too (?:short|weak|common|long)|not found|does not|is not)\b",
    re.IGNORECASE,
)
_LOOKS_SECRET = re.compile(r"(?=\S*[0-9])(?=\S*[A-Za-z])\S{8,}|[A-Za-z0-9+/=_.~-]{24,}")
# As many short words as a wallet is restored from.
_SEED = re.compile(r"(?:[a-z]{3,8} ){11,23}[a-z]{3,8}")
_LOOKS_LIKE_A_PASSWORD = re.compile(r"(?=.*[A-Za-z])(?=.*[^A-Za-z_])[^\s/\\]{6,64}")
# What else stands under `pass`: results, the name of a test, a time, a date, a ratio.
_RESULT = re.compile(
    r"""
      (?:all|none|not|pass|passe[ds]|passing|fail(?:s|ed|ing|ure)?|okay|errors?|skip(?:s|ped)?|warn(?:ings?)?
        |success(?:ful)?|tests?|checks?|pending|running|partial|done|oauth2)(?:[^A-Za-z0-9].*)?
    | (?:pass|phase|stage|step|round|run|iteration)[-_]?[0-9]{1,3}
    | [0-9.,:]+[a-z%]{1,7} | [0-9]{4}-[0-9]{2}-.* | .*::.* | .*\([^()]*\)
    """,
    re.VERBOSE | re.IGNORECASE | re.DOTALL,
)
_PATH_OR_URL = re.compile(r"(?:[a-z][a-z0-9+.-]*://|~?/|\.{1,2}/|[A-Za-z]:\\).*", re.IGNORECASE | re.DOTALL)
_FILE = re.compile(r"(?:~|\.{1,2}|[A-Za-z]:)?[\w./\\-]{1,160}\.[a-z0-9]{2,4}", re.IGNORECASE)
_PHONE_NUMBER = re.compile(r"\+?[0-9 ()./-]{7,24}")
# A capital, a space, or a script without capitals: `numpy` and `pandas.core.frame` are no people.
_WRITTEN_AS_A_NAME = re.compile(r"[A-Z\s]|[^\x00-\x7f]")
_SECRET_PART = re.compile(
    r"\s*(?:(?:bearer|basic|token|digest|negotiate|apikey|api-key|bot)(?:\s+|\Z))?(?P<secret>.*?)\s*",
    re.IGNORECASE | re.DOTALL,
)
_ADDRESS = re.compile(r"(?P<v4>[0-9]{1,3}(?:\.[0-9]{1,3}){3})|[0-9A-Fa-f:]{3,39}(?:(?<=:)[0-9.]{7,15})?")
_ADDRESSES = re.compile(
    rf"(?:\s*\[?(?:{_ADDRESS.pattern.replace('?P<v4>', '?:')})\]?(?::[0-9]{{1,5}})?\s*(?:,|\Z)){{1,64}}"
)
_BACKSLASHES = re.compile(r"\\+")
_ANYTHING = re.compile(rb".*", re.DOTALL)
_SECRETS = frozenset({"API_KEY", "PASSWORD", "PRIVATE_KEY", "JWT", "SECRET"})

JUDGED_BY_LOOKS = frozenset({"NAME", "ADDRESS", "PHONE", "IP_ADDRESS"})
"""Kinds whose values must look like one whatever the name says."""


def is_sensitive_value(name: FieldName, text: str) -> bool:
    """Whether the text under such a name is the thing itself, and no reference, mask or message about it."""
    if _REFERENCE.fullmatch(text) or _stands_for_one(name, text):
        return False
    if (not name.certain or name.kind in JUDGED_BY_LOOKS) and PLACEHOLDER.search(text):
        return False  # it was judged before: what is left of it looks different now
    if name.kind in JUDGED_BY_LOOKS:
        return _looks_like(name, text)
    if name.kind == "PRIVATE_KEY" and _FILE.fullmatch(text):
        return False
    if " " in text and _MESSAGE.search(text):
        return False
    return name.certain or _looks_secret(name, text)


def is_sensitive_in_text(name: FieldName, text: str) -> bool:
    """The same where the text lies in JSON inside of a text: what no rule would take for a secret is none."""
    if not is_sensitive_value(name, text):
        return False
    if name.kind not in _SECRETS or not any(map(str.isalpha, text)):
        return True
    # A backslash that was escaped often is not a run of signs.
    value = _ANYTHING.fullmatch(_BACKSLASHES.sub(r"\\", text).encode("utf-8", "surrogatepass"))
    return value is None or is_real(value[0], value)


def sensitive_spans(kind: str, text: str) -> list[tuple[int, int]]:
    """Where the sensitive parts lie in a value: every public address; else all but the name of a scheme (`Bearer `)."""
    if kind == "IP_ADDRESS":
        return list(_public_addresses(text))
    found = _SECRET_PART.fullmatch(text)
    start, end = found.span("secret") if found else (0, len(text))
    return [(start, end)] if start < end else []


def _stands_for_one(name: FieldName, text: str) -> bool:
    """What stands in the place of a value in documentation, or is itself a name for one: `my-api-key`."""
    if name.kind in JUDGED_BY_LOOKS:  # most of them are names of people: one look is enough
        return "(" in text and _STAND_IN.fullmatch(text) is not None
    return _STAND_IN.fullmatch(text) is not None or (
        _SEVERAL_WORDS.fullmatch(text) is not None and sensitive_name(text) is not None
    )


def _looks_secret(name: FieldName, text: str) -> bool:
    if name.kind == "PASSWORD":
        return _LOOKS_LIKE_A_PASSWORD.fullmatch(text) is not None and not _RESULT.fullmatch(text)
    secret = "".join(text[start:end] for start, end in sensitive_spans(name.kind, text))
    if _SEED.fullmatch(secret):
        return True
    return _LOOKS_SECRET.fullmatch(secret) is not None and not _PATH_OR_URL.fullmatch(secret)


def _looks_like(name: FieldName, text: str) -> bool:
    if name.kind == "IP_ADDRESS":
        return next(_public_addresses(text), None) is not None
    if name.kind == "PHONE":
        digits = sum(character.isdigit() for character in text)
        return digits >= 5 if name.certain else digits >= 7 and _PHONE_NUMBER.fullmatch(text) is not None
    if name.kind == "NAME" and not name.certain and not _WRITTEN_AS_A_NAME.search(text):
        return False
    return any(character.isalpha() for character in text) and "/" not in text


def _public_addresses(text: str) -> Iterator[tuple[int, int]]:
    """The addresses that lead to somebody, in a text of nothing but addresses."""
    if not _ADDRESSES.fullmatch(text):
        return
    for found in _ADDRESS.finditer(text):
        try:
            address = ipaddress.ip_address(found[0])
        except ValueError:
            continue
        if address.is_global and not address.is_multicast and address not in PUBLIC_NAME_SERVERS:
            yield found.span()
