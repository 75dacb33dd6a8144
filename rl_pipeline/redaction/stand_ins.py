"""Tells secrets from what only stands where a secret could: placeholders, code, and names that hold none."""

import base64
import binascii
import re
from collections.abc import Mapping
from itertools import pairwise
from typing import TYPE_CHECKING

from rl_pipeline.redaction.randomness import surprise

if TYPE_CHECKING:
    from rl_pipeline.redaction.validators import Validator

_MARKS_OF_A_PLACEHOLDER = (b"***", b"xxxx", b"####", b"-----")
_WORDS_OF_A_PLACEHOLDER = (
    b"...", b"\xe2\x80\xa6", b"example", b"sample_", b"placeholder", b"changeme", b"change_me", b"change-me",
    b"replace", b"redacted", b"insert_", b"insert-", b"dummy_", b"dummy-", b"todo",
)  # fmt: skip
"""A password may hold one of them by chance: it counts alone, or beside what reads like words."""
_WORD_OF_A_PLACEHOLDER = re.compile(b"|".join(map(re.escape, _WORDS_OF_A_PLACEHOLDER)))
_STANDS_ALONE = re.compile(rb"(?:^|(?<=[^a-z0-9]))[a-z]+[_-]?[a-z]*(?:$|(?=[^a-z0-9]))|(?:\.\.\.|\xe2\x80\xa6)$")
_DOCUMENTED_EXAMPLE = re.compile(rb"EXAMPLE(?:KEY)?$")
_PLACEHOLDER = re.compile(
    rb"""
    [<\[{(%$\#@&!*.x_\-=+?0\s|/\\~,;:^'"`]*$                                                      # nothing but marks
    | <[^>]*>?$ | \[[^\]]*\]?$ | \(\(.*\)\)$ | \{[a-z_ .:\-]*\d?\}$ | @\w+@$ | __\w+__$ | %\w+%$ | (?:%[a-z]?[^\w%]*)+$
    | \$\{ | \$(?:[a-z_]+[0-9]?|\d)$ | \\?\$env: | !(?:ref|sub|vault|secret|env|getatt|reference)\b
    """,
    re.VERBOSE,
)
"""A value, in lower case, that is a placeholder from its beginning on."""
_TEMPLATE = re.compile(
    rb"[$#%<{](?:(?<=\$)\{\w[^{}]{0,80}\}|(?<=\$)\(|(?<=\{)\{[^{}]*\}\}|(?<=<)%|(?<=\#)\{|(?<=%)\(\w+\))"
)
_NAMED_FOR_ITS_USE = re.compile(
    rb"""
    your[_-]?(?:own|api|app|access|auth|client|secret|token|key|pass|user|service|account|project|super|\w*_)
    | (?:^|[^a-z])(?:your|my|some|the|our|fake|dummy|mock|sample|any|random)?[_-]?(?:super[_-]?)?
      (?:secret|private|api|access|auth|bot)?[_-]?(?:token|key|secret|password|passwd|pwd|value|string)[_-]?
      (?:here|value|goes|placeholder)?$
    | [_-](?:here|goes)(?:$|[^a-z])
    """,
    re.VERBOSE,
)
"""A value, in lower case, such as `your_token_here`."""
_WORDS_FOR_ITS_USE = (
    b"your", b"token", b"key", b"secret", b"passw", b"pwd", b"value", b"string", b"here", b"goes",
)  # fmt: skip
"""One of them is in everything that `_NAMED_FOR_ITS_USE` finds."""
_ENOUGH = 256
"""How much of a value is looked at: long ones tell by their beginning."""
_ONE_STEP = frozenset((byte, byte + step) for byte in range(256) for step in (-1, 1))
_DECIMAL = re.compile(rb"[-+]?\d+\.\d+(?:e[-+]?\d+)?")
_RUN = re.compile(rb"([^A])\1{5}")
_NO_VALUE = frozenset(
    b"""
    none null nil true false undefined nan yes no on off str string int integer bool boolean bytes float number object
    any text hidden required optional default unknown empty missing invalid valid enabled disabled password passwd
    passphrase pwd pass passw secret token key value credential credentials username user login email name test testing
    final self cls this func function lambda return await async const static public private void new char byte array
    list dict map set tuple type class interface struct enum env environ config settings options args input prompt
    stdin file path url uri id uuid hash digest base64 hex sha256 md5 bcrypt salt nonce oauth oauth2 bearer basic
    session cookie header body query param params get post put delete foo bar baz foobar qux lorem ipsum redacted
    masked filtered removed omitted blank sensitive secure plain current old confirm confirmation repeat again forgot
    reset change update create generate show hide toggle field label title placeholder icon error success failed
    incorrect wrong expired mypassword mysecret mytoken mypass yourpassword yourtoken apikey api_key access_token
    """.split()
)
_PASSPHRASE_NAME = re.compile(rb"(?i)(?:passw(?:or(?:d|t)|d)|passphrase|passcode|pwd|contrasena|senha)s?$")
_SPEECH = frozenset(
    b"""
    must at least most characters character letters digits digit your is are please the enter for to of with and or not
    password passwords should be in min max minimum maximum an new reset forgot change have has from if than as use this
    that it on by can cannot will was were between contain contains match more less only type your invalid
    """.split()
)
"""Words of sentences about passwords, which passphrases hardly hold."""
_EXPRESSION = re.compile(
    rb"""
    ^[A-Za-z_$][\w$.:]*[(\[{<] | ^[&*(!\[{] | => | \|\| | &&
    | ^(?:os|process|env|self|this|config|settings|args|options|request|req|ctx|params|var|local|data|secrets|module
        |each|props|state|window|document|System|Environment)[.\[(]
    | ^(?:str|int|bool|bytes|float|Optional|List|Dict)\b
    """,
    re.VERBOSE,
)
"""What code gives a value with: calls, subscripts, attributes of well-known objects, types."""
_NAME = re.compile(
    rb"""
    ^[A-Za-z_$][\w$]*(?:\??\.[A-Za-z_$][\w$]*|::[A-Za-z_]\w*|->\w+)+(?:\(\))?[;,]?$ | ^\w+(?:\|\w+)+$ | ^\w+\(\)?$
    | ^[\w./-]+\.(?:py|js|ts|go|rb|java|json|ya?ml|toml|txt|md|pem|crt|cer|key|p12|pub|html?|xml|cfg|conf|ini|env|sh|sql
        |csv|log|png|svg|jpe?g|keytab|jks)$
    | ^[\w-]+(?:\.[\w-]+)*\.(?:com|org|net|io|dev|local|internal)(?::\d+)?(?:/|$)
    """,
    re.VERBOSE,
)
"""The name of something: an attribute, a module, a choice of names, a file, a host."""
_CHECKS_OF_A_FORM = re.compile(rb"(?:bail|required|nullable|sometimes|present|string)(?:\|[a-z_]+(?::[\w,.]+)?)+$")
"""What Laravel asks of a field, as `required|string|min:8`."""
_PATH = re.compile(rb"^(?:[a-z][a-z0-9+.-]*://|\.{0,2}/|~/|[A-Za-z]:\\|arn:|file:|urn:|data:|s3:|mailto:)")
_WORDS = re.compile(rb"[A-Z]{2,}(?![a-z])|[A-Z]?[a-z]+|[A-Z]+|[0-9]+")
_IDENTIFIER = re.compile(rb"[A-Za-z_$][\w$]*(?:[.-][A-Za-z_]\w*)*$")
_DIGIT_AMONG_LETTERS = re.compile(rb"[A-Za-z][0-9]+[A-Za-z]")
_OPERATOR = re.compile(rb"[ ](?:[+*/%^]|<<|>>|-)[ ][\w(]")
_SETTER = re.compile(rb"(?i)(?:.*[._])?(?:set|with|use|put|change|update)_?[a-z_]*$")
_OPENED_CALL = re.compile(rb"""\(\s*["'`][\w.$#*^~=:"'\[-]*$""")
_SIGNS_OF_A_NAME = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz_.$-"
_SECRET_NAME = re.compile(
    rb"""(?i)token|secret|pass|pwd|credential|creds|bearer|(?:^|[^a-z])pat(?:$|[^a-z]) | (?:user|http|basic|proxy)_?auth
    | (?:api|access|auth|account|private|priv|service|client|encrypt(?:ion)?|sign(?:ing)?|master|shared|licen[cs]e|admin
        |consumer|deploy|webhook|app|application|subscription|storage|db|database|ssh|hmac|aes|crypto|cipher|write|read
        |ingest(?:ion)?|integration|rest|server|bot|session|instrumentation|sas|root|sdk|jwt|cookie|fernet|django|flask
        |rails|user|project|org|web|hook|data|primary|secondary)[_.\x20-]?keys?""",
    re.VERBOSE,
)
_HOLDS_NO_SECRET = frozenset(
    b"""
    to change request csrf xsrf csrftoken authenticity antiforgery public pub pubkey publishable foreign partition sort
    cache cached idempotency next continuation cursor page pagination turkey monkey donkey hotkey keyboard bypass
    lowpass highpass bandpass allpass compass compat checksum integrity digest sha sha1 sha256 sha512 md5 etag rev
    revision commit version fingerprint thumbprint pseudo special eos bos pad unk mask sep max min num total count
    """.split()
)
_LAST_WORD_FOR_ONE = re.compile(
    rb"""(?i)(?:.*(?:pass(?:w(?:or(?:d|t)|d)?|phrase|code|key|e)?|pwd|pswd|psw|contrasena|senha
                    |secret|token|key|cred(?:ential)?|auth|bearer|pat|salt)s?)
    (?:[_.-]?(?:value|val|plain|plaintext|raw|text|string|str|default|prod|production|dev|development|staging|stage|live
        |test|sandbox|local|main|admin|root|user|db|database|env|new|old|current|primary|secondary|base64|base|b64|encoded|hex
        |header|a|b|[0-9]{1,3}+)s?){0,4}""",
    re.VERBOSE,
)
"""A name whose last word for a secret is followed only by what says which one it is."""


def is_real(value: bytes, _: re.Match[bytes]) -> bool:
    """The value does not only stand for one: no `your_token_here`, no `xxxx`, no `${VARIABLE}`, no alphabet."""
    lowered = value[:_ENOUGH].lower()
    if _holds_one_of(_MARKS_OF_A_PLACEHOLDER, lowered) or _RUN.search(value, 0, _ENOUGH):
        return False
    if _holds_one_of(_WORDS_OF_A_PLACEHOLDER, lowered) and _speaks_of_a_placeholder(value, lowered):
        return False
    if value.startswith(b"$") and _IDENTIFIER.match(value, 1) and not _is_drawn_after_dollar(value[1:]):
        return False
    if _PLACEHOLDER.match(lowered) or _TEMPLATE.search(lowered) or _DECIMAL.fullmatch(lowered):
        return False
    # Nearly always none of the words: a look for them is far quicker than the expression.
    if _holds_one_of(_WORDS_FOR_ITS_USE, lowered) and _NAMED_FOR_ITS_USE.search(lowered):
        return False
    return not _counts_up(lowered)


def _holds_one_of(words: tuple[bytes, ...], text: bytes) -> bool:
    for word in words:  # noqa: SIM110  # a generator takes twice as long
        if word in text:
            return True
    return False


def _is_drawn_after_dollar(value: bytes) -> bool:
    """Letters of both cases and digits among them: no variable is named so."""
    return (
        len(value) >= 8
        and bool(_DIGIT_AMONG_LETTERS.search(value))
        and _is_mixed_case(value)
        and surprise(value) >= 0.2
    )


def _is_mixed_case(value: bytes) -> bool:
    return value != value.lower() and value != value.upper()


def _speaks_of_a_placeholder(value: bytes, lowered: bytes) -> bool:
    """One of the words stands alone, or the value without it does not look drawn."""
    if _DOCUMENTED_EXAMPLE.search(value) or any(
        _STANDS_ALONE.match(lowered, word.start()) for word in _WORD_OF_A_PLACEHOLDER.finditer(lowered)
    ):
        return True
    rest = _WORD_OF_A_PLACEHOLDER.sub(b"", lowered)
    return len(rest) < 6 or rest.isdigit() or not _has_digit(rest) or surprise(rest) < 0.25


def _counts_up(value: bytes) -> bool:
    """Most of the value, or a long part of it, is an alphabet or a count."""
    pairs = sum(map(_ONE_STEP.__contains__, pairwise(value)))
    if pairs < 15 and 2 * (pairs + 1) <= len(value):
        return False  # too few for any of the three below
    longest = current = steps = 1
    for byte, after in pairwise(value):
        current = current + 1 if abs(after - byte) == 1 else 1
        steps += current > 1
        longest = max(longest, current)
    return longest >= 16 or longest > 0.5 * len(value) or steps > 0.85 * len(value)


def is_literal(value: bytes, match: re.Match[bytes]) -> bool:
    """The value names nothing and, unless it is quoted, is no code that gives one."""
    value = value[:_ENOUGH]
    reads_like_words = surprise(value) < 0.35
    if value.lower() in _NO_VALUE or (reads_like_words and (_NAME.search(value) or _PATH.search(value))):
        return False
    if match.groupdict().get("quote"):
        return True
    return not _EXPRESSION.search(value) and not (_IDENTIFIER.match(value) and _is_passed_by_name(value, match))


def _is_passed_by_name(value: bytes, match: re.Match[bytes]) -> bool:
    """An identifier without quotes stands for its value, but for what was drawn and for words in an environment."""
    if _is_part_of_a_sum(match):
        return True
    if surprise(value) >= 0.25:
        return False
    return _is_passed_on(match) or not (_has_digit(value) or name_of(match).isupper())


def _is_part_of_a_sum(match: re.Match[bytes]) -> bool:
    return bool(_OPERATOR.match(match.string, match.end()))


def _has_digit(value: bytes) -> bool:
    return any(48 <= byte <= 57 for byte in value)


def _is_passed_on(match: re.Match[bytes]) -> bool:
    return match.string[match.end() : match.end() + 1] in (b")", b",", b"(", b"[", b".", b";")


def is_plausible_password(value: bytes, match: re.Match[bytes]) -> bool:
    """The value can be a password: with a digit or a sign, or a word that is quoted or set in an environment."""
    words = [word.lower() for word in _WORDS.findall(value)]
    if not words or all(word in _NO_VALUE for word in words) or _CHECKS_OF_A_FORM.match(value):
        return False
    if not _takes_a_password(match):
        return False
    if value.lower() == name_of(match).lower():
        return False
    if b" " in value:
        return bool(_PASSPHRASE_NAME.search(name_of(match))) and _is_passphrase(value, words)
    if is_credential(value, match) or (value.isdigit() and len(value) >= 6) or re.search(rb"[^\w.-]", value):
        return True
    return _is_word_for_password(value, match)


def _is_passphrase(value: bytes, words: list[bytes]) -> bool:
    """Words with a digit or a sign among them, though no sentence about passwords."""
    return bool(re.search(rb"[^A-Za-z .?,!'-]", value)) and _SPEECH.isdisjoint(words)


def _takes_a_password(match: re.Match[bytes]) -> bool:
    """An argument is a password's if the function sets it, or if the one before it names it; `pass:` tells a result."""
    groups = match.groupdict()
    op = (groups.get("op") or b"").strip()
    if op == b":" and not groups.get("quote") and (name_of(match).lower() == b"pass" or _is_an_alternative(match)):
        return False
    if op == b"(":
        return bool(_SETTER.match(name_of(match)))
    return op != b"," or bool(_OPENED_CALL.search(match.string, max(0, match.start() - 60), match.start()))


def _is_an_alternative(match: re.Match[bytes]) -> bool:
    """The name is what `condition ? name : other` gives."""
    line = match.string[max(0, match.start() - 120) : match.start()].rpartition(b"\n")[2]
    return match["op"] != b":" and b"?" in line


def _is_word_for_password(value: bytes, match: re.Match[bytes]) -> bool:
    """One word that does not speak of passwords itself, in lower case in quotes, or set in an environment."""
    if not value.isalpha() or re.search(rb"(?i)passw|secret|token", value):
        return False
    groups = match.groupdict()
    if groups.get("quote"):
        return value.islower() and groups.get("op") not in {b",", b"("}
    return name_of(match).isupper()


def is_assigned_to_a_secret_name(_: bytes, match: re.Match[bytes]) -> bool:
    """The name, with what stands before the match, is one that holds secrets, not `csrf_token` or `key_name`."""
    name = name_of(match)
    words = {word.lower() for word in _WORDS.findall(name)}
    return bool(_LAST_WORD_FOR_ONE.fullmatch(name)) and _HOLDS_NO_SECRET.isdisjoint(words)


def is_varied(value: bytes, _: re.Match[bytes]) -> bool:
    """Not a few bytes over and over: the cheapest look, which spares texts made to be slow the others."""
    return len(set(value[:_ENOUGH])) >= 6


def is_not_its_own_name(value: bytes, match: re.Match[bytes]) -> bool:
    """Not `password=password=…` nor `token=t1token=…`: as cheap, and for the same texts."""
    name = match["name"]
    if name + b"=" in value or name + b":" in value:
        return False
    return value[len(name) : len(name) + 1] not in (b"=", b":") or value[: len(name)].lower() != name.lower()


def is_set_by_command(value: bytes, match: re.Match[bytes]) -> bool:
    """The command sets what only a secret can be, or a variable that is named for one."""
    return match["name"] is None or (is_assigned_to_a_secret_name(value, match) and names_a_secret(match))


def is_not_the_word(value: bytes, _: re.Match[bytes]) -> bool:
    """A password where nothing but one can stand: anything but a word for one."""
    return value.lower() not in _NO_VALUE and len(set(value)) > 1 and not value.startswith((b"$", b"%", b"["))


def is_credential(value: bytes, _: re.Match[bytes]) -> bool:
    """Not a word or a name: it holds a digit and a letter, or does not read like words, or is a long number."""
    if _has_digit(value):
        return len(value) >= 15 or bool(re.search(rb"[A-Za-z]", value))
    return len(value) >= 14 and surprise(value) >= 0.27


def is_user_and_password(value: bytes, _: re.Match[bytes]) -> bool:
    """The base64 of `user:password`."""
    try:
        plain = base64.b64decode(value + b"=" * (-len(value) % 4), validate=True)
    except binascii.Error:
        return False
    return b":" in plain and plain.isascii() and plain.decode().isprintable()


def is_given_to_curl(_: bytes, match: re.Match[bytes]) -> bool:
    """The same command names curl or a program like it."""
    command = match.string[max(0, match.start() - 400) : match.start()]
    return bool(re.search(rb"\b(?:curl|wget|httpie|http|https|xh|curlie)\b", command))


def is_no_error_report_key(_: bytes, match: re.Match[bytes]) -> bool:
    """The host is none that takes a public key in the place of the user, as Sentry does."""
    return not re.match(rb"[\w.-]*(?:sentry|bugsink|glitchtip)", match.string[match.end() : match.end() + 80])


def has_certain_name(_: bytes, match: re.Match[bytes]) -> bool:
    """The name leaves no doubt that it holds a secret."""
    return names_a_secret(match)


def names_a_secret(match: re.Match[bytes]) -> bool:
    """The name leaves no doubt: a token, a secret, or a key or credential of a kind that is kept secret."""
    return bool(_SECRET_NAME.search(name_of(match)))


def is_flag(_: bytes, match: re.Match[bytes]) -> bool:
    """The name is a command line's flag."""
    return name_of(match).startswith(b"-")


def name_of(match: re.Match[bytes]) -> bytes:
    """The whole name that a value is assigned to: the pattern may begin in its middle."""
    earlier = match.string[max(0, match.start() - 60) : match.start()]
    begins = len(earlier.rstrip(_SIGNS_OF_A_NAME))
    return earlier[begins:] + (match["name"] if "name" in match.re.groupindex else b"")


STAND_INS: Mapping[str, "Validator"] = {
    "real": is_real,
    "literal": is_literal,
    "password": is_plausible_password,
    "url_password": is_not_the_word,
    "credential": is_credential,
    "user_and_password": is_user_and_password,
    "varied": is_varied,
    "not_its_name": is_not_its_own_name,
    "set_by_command": is_set_by_command,
    "secret_name": is_assigned_to_a_secret_name,
    "certain_name": has_certain_name,
    "flag": is_flag,
    "curl": is_given_to_curl,
    "not_a_dsn": is_no_error_report_key,
}
"""What the rules for secrets may name."""
