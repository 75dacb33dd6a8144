"""Second looks at what a pattern found: checksums, entropy, and whether it only stands for a secret.

A rule names its validators in order, as `luhn` or, with an argument, `entropy:3.0`. `stand_ins` and
`personal_validators` hold those that weigh words.
"""

import re
from collections.abc import Callable

from rl_pipeline.errors import PipelineError
from rl_pipeline.redaction.personal_validators import PERSONAL
from rl_pipeline.redaction.randomness import entropy, is_hash, is_uuid, surprise
from rl_pipeline.redaction.stand_ins import STAND_INS, names_a_secret

Validator = Callable[[bytes, re.Match[bytes]], bool]


class UnknownValidator(PipelineError):
    """A rule names a validator that does not exist."""


def validator_named(name: str) -> Validator:
    """The validator that a rule file calls `name`."""
    plain, _, argument = name.partition(":")
    if plain in _WITH_ARGUMENT and argument:
        return _WITH_ARGUMENT[plain](argument)
    if plain in _PLAIN and not argument:
        return _PLAIN[plain]
    raise UnknownValidator(
        f"no validator {name}: use one of {', '.join([*_PLAIN, *(f'{n}:…' for n in _WITH_ARGUMENT)])}"
    )


def _at_least_entropy(least: str) -> Validator:
    bound = float(least)
    return lambda value, _: entropy(value) >= bound


def _at_least_surprise(least: str) -> Validator:
    bound = float(least)
    return lambda value, _: surprise(value) >= bound


def _luhn(value: bytes, _: re.Match[bytes]) -> bool:
    digits = [byte - 48 for byte in value if 48 <= byte <= 57]
    doubled = (sum(divmod(2 * digit, 10)) for digit in digits[-2::-2])
    return bool(digits) and (sum(digits[-1::-2]) + sum(doubled)) % 10 == 0


def _has(*classes: bytes) -> Validator:
    """Every class occurs in the value."""
    searches = [re.compile(each).search for each in classes]
    return lambda value, _: all(search(value) for search in searches)


def _is_random(value: bytes, _: re.Match[bytes]) -> bool:
    return surprise(value) >= 0.25 and entropy(value) >= 2.8


def _is_drawn(value: bytes, match: re.Match[bytes]) -> bool:
    """Letters and digits that were drawn beyond doubt, and that name nothing as UUIDs and hashes do."""
    if is_uuid(value) or is_hash(value) or not _has_digit_and_letter(value, match):
        return False
    return len(value) >= 14 and surprise(value) >= 0.33 and entropy(value) >= 3.2


def _is_secret_value(value: bytes, match: re.Match[bytes]) -> bool:
    """What its name lets one expect: a UUID, a hash or what does not read like words under `api_key`, but under a mere
    `key` or `auth` only what is drawn beyond doubt.
    """
    if not names_a_secret(match):
        return _is_drawn(value, match) and not _NAMES_A_THING.search(value)
    if is_uuid(value) or is_hash(value):
        return True
    if value.isdigit():
        return len(value) >= 15
    if re.search(rb"[0-9]", value):
        if match["quote"] and b"secret" in match["name"].lower() and value.isalnum():
            return True
        return surprise(value) >= (0.2 if match["quote"] else 0.25) and entropy(value) >= 2.5
    return len(value) >= 14 and surprise(value) >= 0.27


def _is_service_value(value: bytes, match: re.Match[bytes]) -> bool:
    """What a service's name alone may hold: a UUID, a hash, though no checksum of a package, or what was drawn."""
    if is_uuid(value):
        return True
    if is_hash(value):
        return not (match["name"].istitle() and len(value) == 40) and entropy(value) >= 3
    return bool(re.search(rb"[0-9]", value)) and surprise(value) >= 0.3 and entropy(value) >= 3


_NAMES_A_THING = re.compile(rb"^[A-Za-z]{2,12}[_:./-]|(?:[a-z]|^)(?:Key|Token|Secret)s?$")
"""A value that says what it is a key of, as `row-…`, or that is a name itself, as `…PublicKey`."""
_has_digit_and_letter = _has(rb"[0-9]", rb"[A-Za-z]")

_PLAIN: dict[str, Validator] = {
    "luhn": _luhn,
    "random": _is_random,
    "drawn": _is_drawn,
    "secret_value": _is_secret_value,
    "service_value": _is_service_value,
    "mixed": _has_digit_and_letter,
    "all_classes": _has(rb"[0-9]", rb"[A-Z]", rb"[a-z]"),
    "not_uuid": lambda value, _: not is_uuid(value),
    "not_hash": lambda value, _: not is_hash(value),
    **STAND_INS,
    **PERSONAL,
}
_WITH_ARGUMENT: dict[str, Callable[[str], Validator]] = {
    "entropy": _at_least_entropy,
    "surprise": _at_least_surprise,
}
