"""Keys: who has one, what it may do, and until when."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from rl_pipeline.service.keys import (
    SCOPES,
    ApiKey,
    InvalidKeyFile,
    KeyExpired,
    KeyRefused,
    Keyring,
    Scope,
    ScopeMissing,
    digest_of,
    entry_of,
    new_key,
    read_keys,
)
from rl_pipeline.service.limits import RateLimiter, TooManyRequests

NOW = datetime(2026, 2, 1, 12, tzinfo=UTC)
DIGEST = "0" * 64


def a_key(*scopes: Scope, **more: object) -> ApiKey:
    return ApiKey("tests", digest_of("key"), frozenset(scopes), **more)  # type: ignore[arg-type]


def test_a_key_of_the_file_is_known_by_its_digest_alone(tmp_path: Path) -> None:
    key, file = new_key(), tmp_path / "keys.toml"
    file.write_text(entry_of(key, "dashboard", ("read",), NOW))
    assert key not in file.read_text()
    holder = Keyring(None, file).holder(key)
    assert holder == ApiKey("dashboard", digest_of(key), frozenset({"read"}), NOW)


@pytest.mark.parametrize("presented", [None, "", "nobodys", "schlüssel", "\udcff", "key "])
def test_what_is_nobodys_key_is_refused(presented: str | None) -> None:
    with pytest.raises(KeyRefused):
        Keyring("key", None).holder(presented)


def test_a_key_does_what_its_scopes_say_and_admin_does_everything() -> None:
    a_key("read").check("read", NOW)
    with pytest.raises(ScopeMissing, match="lacks the scope train"):
        a_key("read", "deploy").check("train", NOW)
    for scope in SCOPES:
        a_key("admin").check(scope, NOW)


def test_a_key_counts_until_its_end() -> None:
    key = a_key("admin", expires=NOW)
    key.check("read", NOW - timedelta(seconds=1))
    with pytest.raises(KeyExpired):
        key.check("read", NOW)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("keys = 1", "begin each with"),
        ("[[keys]]\nname = 'a'", "give it name, sha256 and scopes"),
        (f"[[keys]]\nname = 'a'\nsha256 = '{DIGEST}'\nscopes = ['everything']", "its scopes are some of"),
        (f"[[keys]]\nname = 'a'\nsha256 = '{DIGEST}'\nscopes = []", "its scopes are some of"),
        ("[[keys]]\nname = 'a'\nsha256 = 'the key itself'\nscopes = ['read']", "64 hexadecimal digits"),
        (f"[[keys]]\nname = 'a'\nsha256 = '{DIGEST}'\nscopes = ['read']\nexpires = 2026-01-01T00:00:00", "its zone"),
        (f"[[keys]]\nname = 'a'\nsha256 = '{DIGEST}'\nscopes = ['read']\nrequests_per_second = 0", "above 0"),
        (f"[[keys]]\nname = 'a'\nsha256 = '{DIGEST}'\nscopes = ['read']\n" * 2, "two keys of one name"),
        (f"[[keys]]\nname = 'a'\nsha256 = '{DIGEST}'\nscopes = [['read']]", "its scopes are some of"),
        (f"[[keys]]\nname = 'a'\nsha256 = '{DIGEST}'\nscopes = [{{a = 1}}]", "its scopes are some of"),
        (f"[[keys]]\nname = 'a'\nsha256 = '{DIGEST}'\nscopes = ['read']\nrequests_per_second = inf", "above 0"),
        (f"[[keys]]\nname = 'admin'\nsha256 = '{DIGEST}'\nscopes = ['read']", "called admin"),
        ("this is no TOML", "it is no TOML"),
        ("keys = " + "[" * 3000, "it is no TOML"),
    ],
)
def test_a_file_that_is_wrong_says_what_is_wrong_about_it(tmp_path: Path, content: str, says: str) -> None:
    file = tmp_path / "keys.toml"
    file.write_text(content)
    with pytest.raises(InvalidKeyFile, match=says) as refused:
        read_keys(file)
    assert "the key itself" not in str(refused.value)


def test_a_service_without_any_key_does_not_start(tmp_path: Path) -> None:
    with pytest.raises(InvalidKeyFile, match="AGENTGYM_RL_API_KEY"):
        Keyring(None, None)
    with pytest.raises(InvalidKeyFile, match="cannot be read"):
        Keyring("key", tmp_path / "missing.toml")


def test_a_file_that_changes_is_read_again_and_one_that_breaks_changes_nothing(tmp_path: Path) -> None:
    file = tmp_path / "keys.toml"
    file.write_text(entry_of("first", "first", ("read",), None))
    ring = Keyring(None, file)
    file.write_text(entry_of("second one", "second", ("read",), None))
    ring.refresh()
    assert ring.holder("second one").name == "second"
    with pytest.raises(KeyRefused):
        ring.holder("first")
    file.write_text("broken")
    ring.refresh()
    assert ring.holder("second one").name == "second"


def test_each_key_has_its_own_rate_and_gets_it_back_as_time_passes() -> None:
    seconds = [0.0]
    limiter = RateLimiter(2, lambda: seconds[0])
    slow, fast = a_key("read"), ApiKey("other", b"", frozenset(), requests_per_second=5)
    for _ in range(2):
        limiter.take(slow)
    with pytest.raises(TooManyRequests) as refused:
        limiter.take(slow)
    assert refused.value.retry_after == pytest.approx(0.5)
    for _ in range(5):
        limiter.take(fast)
    seconds[0] = 0.5
    limiter.take(slow)
    with pytest.raises(TooManyRequests):
        limiter.take(slow)
