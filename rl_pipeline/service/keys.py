"""Who may call what: keys with scopes, an end, and a rate. Keys are stored as digests and compared in constant time.

A key is 256 random bits, so a plain SHA-256 of it can be turned back by nobody, and comparing costs a request nothing.
"""

import hashlib
import hmac
import logging
import math
import secrets
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, get_args

from rl_pipeline.errors import PipelineError

Scope = Literal["read", "traces", "feedback", "collect", "memory", "train", "deploy", "metrics", "admin"]
"""`read`: how things stand. `traces`: what a trajectory says. `feedback`, `collect`: hand in opinions; trajectories and
results. `memory`: what agents remember, to look up and to tell. `train`: start and cancel. `deploy`: approve, promote,
roll back. `metrics`: for Prometheus. `admin`: all."""

SCOPES: tuple[Scope, ...] = get_args(Scope)
OWN_NAME = "admin"
"""Of the key that stands in no file. Rates and audits go by names: nobody else may be called so."""
_PREFIX = "rlp_"

_log = logging.getLogger(__name__)


class KeyRefused(PipelineError):
    """No key, or one that nobody has."""


class KeyExpired(PipelineError):
    """A key whose time is over."""


class ScopeMissing(PipelineError):
    """A key that may not do this."""


class InvalidKeyFile(PipelineError):
    """The file of keys cannot be read."""


@dataclass(frozen=True, slots=True)
class ApiKey:
    """A key, without the key itself."""

    name: str
    """Of its holder: what jobs, orders and logs are signed with."""
    digest: bytes
    scopes: frozenset[Scope]
    expires: datetime | None = None
    requests_per_second: float | None = None
    """None: as the service grants everybody."""

    def check(self, scope: Scope, now: datetime) -> None:
        """Raise `KeyExpired` or `ScopeMissing`."""
        if self.expires is not None and now >= self.expires:
            raise KeyExpired(f"the key {self.name} has expired: ask for another (`rl-pipeline service-key`)")
        if scope not in self.scopes and "admin" not in self.scopes:
            raise ScopeMissing(f"the key {self.name} lacks the scope {scope}: use a key that has it")


def digest_of(key: str) -> bytes:
    """What is stored of a key."""
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()


def new_key() -> str:
    """A key that nobody has."""
    return _PREFIX + secrets.token_urlsafe(32)


def entry_of(key: str, name: str, scopes: Iterable[Scope], expires: datetime | None) -> str:
    """The lines of a file of keys for one of them."""
    until = [f"expires = {expires.astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}"] if expires else []
    listed = ", ".join(f'"{scope}"' for scope in scopes)
    lines = ["[[keys]]", f'name = "{name}"', f'sha256 = "{digest_of(key).hex()}"', f"scopes = [{listed}]", *until]
    return "\n".join(lines) + "\n"


class Keyring:
    """The keys that count: those of a file, read anew whenever it changes, and `own`, which may do everything."""

    def __init__(self, own: str | None, file: Path | None) -> None:
        """Raises `InvalidKeyFile`; where there is no key at all too, because a service that nobody may ask is a
        mistake."""
        self._own = (ApiKey(OWN_NAME, digest_of(own), frozenset({"admin"})),) if own else ()
        self._file = file
        self._seen = _stamp(file)
        self._keys = (*self._own, *(read_keys(file) if file else ()))
        if not self._keys:
            raise InvalidKeyFile(
                "there is no key to call the service with: set AGENTGYM_RL_API_KEY or SERVICE_KEYS_FILE"
            )

    def holder(self, presented: str | None) -> ApiKey:
        """Whose key this is. Raises `KeyRefused`. Every key is compared, whichever it is."""
        if not presented:
            raise KeyRefused("a key is needed: send it as `Authorization: Bearer <key>` or `X-API-Key: <key>`")
        digest = digest_of(presented)
        found: ApiKey | None = None
        for key in self._keys:
            if hmac.compare_digest(key.digest, digest):
                found = key
        if found is None:
            raise KeyRefused("nobody has this key: check it, or ask for one (`rl-pipeline service-key`)")
        return found

    def refresh(self) -> None:
        """Read the file again if it has changed. One that cannot be read changes nothing, and is logged."""
        stamp = _stamp(self._file)
        if self._file is None or stamp == self._seen:
            return
        self._seen = stamp
        try:
            self._keys = (*self._own, *read_keys(self._file))
        except InvalidKeyFile as invalid:
            _log.error("the keys stay as they were: %s", invalid)


def read_keys(file: Path) -> list[ApiKey]:
    """The keys of a TOML file. Raises `InvalidKeyFile`, which shows nothing of its content."""
    try:
        tables = tomllib.loads(file.read_text()).get("keys", [])
    except (OSError, ValueError, RecursionError) as unreadable:
        why = unreadable.strerror if isinstance(unreadable, OSError) else "it is no TOML"
        raise InvalidKeyFile(f"{file} cannot be read ({why}): make it with `rl-pipeline service-key`") from None
    if not isinstance(tables, list):
        raise InvalidKeyFile(f"{file} has no list of keys: begin each with [[keys]]")
    keys = [_key(file, number, table) for number, table in enumerate(tables, start=1)]
    names = [key.name for key in keys]
    if len({*names, OWN_NAME}) <= len(names):
        raise InvalidKeyFile(f"{file} has two keys of one name, or one called {OWN_NAME}: name each after its holder")
    return keys


def _key(file: Path, number: int, table: Any) -> ApiKey:
    def wrong(what: str) -> InvalidKeyFile:
        return InvalidKeyFile(f"key {number} of {file} is wrong: {what}")

    known = {"name", "sha256", "scopes", "expires", "requests_per_second"}
    if not isinstance(table, dict) or not {"name", "sha256", "scopes"} <= table.keys() <= known:
        raise wrong("give it name, sha256 and scopes, and besides them expires and requests_per_second alone")
    name, digest, scopes = table["name"], table["sha256"], table["scopes"]
    expires, rate = table.get("expires"), table.get("requests_per_second")
    if not isinstance(name, str) or not 0 < len(name) <= 128:
        raise wrong("name it after its holder")
    if not isinstance(digest, str) or not _is_digest(digest):
        raise wrong("sha256 is 64 hexadecimal digits, as `rl-pipeline service-key` prints them")
    if not isinstance(scopes, list) or not scopes or not all(scope in SCOPES for scope in scopes):
        raise wrong(f"its scopes are some of {', '.join(SCOPES)}")
    if expires is not None and not (isinstance(expires, datetime) and expires.tzinfo):
        raise wrong("expires is a time with its zone, such as 2027-01-31T00:00:00Z")
    if rate is not None and not (isinstance(rate, int | float) and 0 < rate < math.inf):
        raise wrong("requests_per_second is a number above 0")
    return ApiKey(name, bytes.fromhex(digest), frozenset(scopes), expires, rate)


def _is_digest(text: str) -> bool:
    return len(text) == 64 and all(character in "0123456789abcdefABCDEF" for character in text)


def _stamp(file: Path | None) -> tuple[int, int, int] | None:
    """By which a change of a file is noticed; None while it is not there."""
    try:
        found = file.stat() if file else None
    except OSError:
        return None
    return (found.st_mtime_ns, found.st_size, found.st_ino) if found else None
