"""The placeholders: how one is made, and how those that a text already holds are kept out of every rule's sight."""

import hmac
import re
from functools import cache

from rl_pipeline.redaction.policy import RedactionKey
from rl_pipeline.redaction.rule import KINDS

_PATTERN = rf"\[REDACTED:(?:{'|'.join(sorted(KINDS))}):[0-9a-f]{{12}}\]"

PLACEHOLDER = re.compile(_PATTERN)
"""Exactly our placeholders, of any key; what only looks like one hides nothing."""

PLACEHOLDER_BYTES = re.compile(_PATTERN.encode())


def placeholder(key: RedactionKey, kind: str, value: bytes) -> str:
    """What stands for `value`: the same value has the same digits under the same key, whatever its kind."""
    code = _keyed(key).copy()
    code.update(value)
    return f"[REDACTED:{kind}:{code.digest()[:6].hex()}]"


@cache
def _keyed(key: RedactionKey) -> hmac.HMAC:
    """To be copied, never updated: setting up takes longer than the rest."""
    return hmac.new(key.secret, digestmod="sha256")
