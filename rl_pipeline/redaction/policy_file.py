"""The deployment's own part of the redaction: a TOML file with its names, its identifiers, and what it allows.

```toml
names = ["Ada Lovelace"]                  # people, wherever they are mentioned
identifiers = ["PRJ-4711"]                # anything else that must not be stored
allowed = ["support@example.com"]         # values that are never replaced
rules_on = ["mac-address"]                # rules that are off unless asked for
rules_off = ["ipv4"]                      # rules that are on unless told otherwise
```
"""

import tomllib
from pathlib import Path

from rl_pipeline.errors import PipelineError
from rl_pipeline.redaction.policy import RedactionKey, RedactionPolicy

_LISTS = ("names", "identifiers", "allowed", "rules_on", "rules_off")


class InvalidPolicyFile(PipelineError):
    """The file cannot be used; the text says which part of it. It never shows a value: they are what must stay in."""


class RedactionKeyMissing(PipelineError):
    """Nothing is redacted without a key, and nothing is stored that is not redacted."""


def read_policy(key: str | None, path: Path | None = None) -> RedactionPolicy:
    """The policy with this key (`v1:…`) and, where there is a file, what the file says.

    Raises `RedactionKeyMissing`, `InvalidPolicy` and `InvalidPolicyFile`.
    """
    if not key:
        raise RedactionKeyMissing("set REDACTION_KEY to v1:<at least 32 random characters>, and keep it")
    lists = _read_lists(path) if path else {name: [] for name in _LISTS}
    return RedactionPolicy(
        key=RedactionKey.parse(key),
        dictionary={
            **dict.fromkeys(lists["identifiers"], "IDENTIFIER"),
            **dict.fromkeys(lists["names"], "NAME"),
        },
        allowed=frozenset(lists["allowed"]),
        rules_on=frozenset(lists["rules_on"]),
        rules_off=frozenset(lists["rules_off"]),
    )


def read_keys(text: str | None) -> tuple[RedactionKey, ...]:
    """The keys in a list separated by commas; none where there is no text."""
    return tuple(RedactionKey.parse(key) for key in (text or "").split(",") if key.strip())


def _read_lists(path: Path) -> dict[str, list[str]]:
    try:
        found = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as refused:
        raise InvalidPolicyFile(f"{path}: {refused.strerror}: set REDACTION_POLICY_FILE to a file") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError):
        raise InvalidPolicyFile(f'{path} is no TOML: write lists such as names = ["…"]') from None
    if unknown := sorted(found.keys() - set(_LISTS)):
        raise InvalidPolicyFile(f"{path} has {unknown[0]}: it may have {', '.join(_LISTS)}")
    for name, values in found.items():
        if not isinstance(values, list) or not all(isinstance(value, str) and value.strip() for value in values):
            raise InvalidPolicyFile(f"{path}: {name} must be a list of texts that are not empty")
    return {name: found.get(name, []) for name in _LISTS}
