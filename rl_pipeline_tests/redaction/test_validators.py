"""What the validators of secrets take for one, and what for a stand-in."""

import re
import string
from random import Random

import pytest

from rl_pipeline.redaction.randomness import entropy, is_hash, is_uuid, surprise
from rl_pipeline.redaction.validators import UnknownValidator, validator_named

ASSIGNMENT = re.compile(
    rb"""(?P<name>[\w-]+)["']?\s*(?P<op>[=:,(])\s*(?P<quote>["'])?(?P<value>[^"'\s,;)]+)""",
)


def accepts(validator: str, text: str) -> bool:
    """Whether the validator takes the value that `text` assigns."""
    match = ASSIGNMENT.search(text.encode())
    assert match
    return validator_named(validator)(match["value"], match)


def test_a_validator_that_does_not_exist_is_refused_by_name() -> None:
    with pytest.raises(UnknownValidator, match="no validator entropi:3"):
        validator_named("entropi:3")


def test_a_validator_takes_an_argument_only_where_it_has_one() -> None:
    with pytest.raises(UnknownValidator):
        validator_named("real:3")
    with pytest.raises(UnknownValidator):
        validator_named("entropy")


def test_entropy_counts_bits_per_byte() -> None:
    assert entropy(b"aaaaaaaa") == 0
    assert entropy(b"abababab") == 1
    assert entropy(b"0123456789abcdef") == 4


@pytest.mark.parametrize(
    "alphabet",
    [
        string.ascii_letters + string.digits,
        string.ascii_lowercase + string.digits,
        string.ascii_uppercase + string.digits,
        "0123456789abcdef",
        string.ascii_letters + string.digits + "+/",
    ],
)
def test_drawn_values_surprise(alphabet: str) -> None:
    draw = Random(11)
    drawn = ["".join(draw.choices(alphabet, k=32)).encode() for _ in range(500)]
    assert sum(surprise(value) >= 0.25 for value in drawn) >= 498


@pytest.mark.parametrize(
    "name",
    [
        "get_current_user_from_request",
        "AbstractSingletonProxyFactoryBean",
        "kube-system/coredns-autoscaler",
        "settings.general.user-name.v2",
        "application/x-www-form-urlencoded",
        "team_announcements_of_2024",
        "MAX_NUMBER_OF_RETRIES_PER_HOST",
    ],
)
def test_names_do_not_surprise(name: str) -> None:
    assert surprise(name.encode()) < 0.2


def test_hashes_and_uuids_are_known_by_their_form() -> None:
    assert is_uuid(b"3b9f0e72-5d16-4c8a-b7e4-90a2d6f1c853")
    assert is_hash(b"7c2e9b4d1f8a3650e7d9c1b3a5f8e2d4b6a09c13")
    assert not is_hash(b"7c2e9b4d1f8a3650e7d9c1b3a5f8e2d4b6a09c1")
    assert not is_hash(b"7c2e9b4d1f8a3650E7D9c1b3a5f8e2d4b6a09c13")


@pytest.mark.parametrize(
    "value",
    [
        "your_api_key_here", "<token>", "xxxxxxxxxxxx", "changeme", "CHANGE_ME", "AKIAQWMZR3T27EXAMPLE", "***",
        "${VAR}", "$TOKEN", "prefix-${VAR}-suffix", "{{template}}", "{password}", "%s", "%s:%s", "%(password)s",
        "%PASSWORD%",
        "@PASSWORD@", "my-secret-key", "some_token", "sk-1234...", "!Ref", "abcdefghijklmnopqrstuvwxyz", "1234567890",
        "000000000000", "#{password}", "[PASSWORD]", "token_goes_here",
        "example_password1", "pass-example-7Kq92x", "replaceme123", "$oauth2Token", "$DB_PASS2x", "sk-Qm7Zp2Lx...",
    ],
)  # fmt: skip
def test_a_placeholder_is_not_real(value: str) -> None:
    assert not accepts("real", f'key = "{value}"')


@pytest.mark.parametrize(
    "value",
    [
        "hunter2", "K!tch3n$7", "!Qm7Zp2Lx", "Tr0ub4dor&3", "m{{h}o]p${e[nob", "7c2e9b4d1f8a3650e7d9c1b3a5f8e2d4",
        "3b9f0e72-5d16-4c8a-b7e4-90a2d6f1c853", "correcthorse",
        "Example7Kq92x", "Mytodo7Kq92", "aB...7Kq92x", "$uperS3cret9",
    ],
)  # fmt: skip
def test_a_literal_secret_is_real(value: str) -> None:
    assert accepts("real", f'key = "{value}"')


@pytest.mark.parametrize(
    "assignment",
    [
        'password = os.environ["X"]', "password = process.env.X", "token = self.token", "password: str",
        "token = get_token(user)", "password = settings.DB_PASSWORD", 'key = "/etc/ssl/server.key"', "token = token2,",
        "secret = None",
        'secret = "https://vault.acme.org/v1/kv2"', "password = userPassword", 'token = "tokens.json"',
    ],
)  # fmt: skip
def test_code_and_paths_are_no_literals(assignment: str) -> None:
    assert not accepts("literal", assignment)


@pytest.mark.parametrize(
    "assignment",
    ['password = "hunter2"', "password = hunter2", "POSTGRES_PASSWORD=orchid", "token: q7m2zp9lx4vktr8wn3by"],
)
def test_values_are_literals(assignment: str) -> None:
    assert accepts("literal", assignment)


@pytest.mark.parametrize(
    "name",
    [
        "api_key", "DB_PASSWORD", "serviceToken", "client-secret", "API_KEY_PROD", "token2", "secret_key_base",
        "mot_de_passe",
    ],
)  # fmt: skip
def test_a_name_that_holds_a_secret_is_known(name: str) -> None:
    assert accepts("secret_name", f"{name} = q7m2zp9lx4vktr8wn3by")


@pytest.mark.parametrize(
    "name",
    [
        "csrf_token", "public_key", "primary_key_name", "cache_key", "sortKey", "max_tokens", "tokenizer", "author",
        "token_count", "password_field", "secretName", "keyboard", "auth_token_url", "next_page_token",
    ],
)  # fmt: skip
def test_a_name_that_holds_no_secret_is_known(name: str) -> None:
    assert not accepts("secret_name", f"{name} = q7m2zp9lx4vktr8wn3by")


def test_a_mere_key_holds_a_secret_only_if_it_was_drawn() -> None:
    assert accepts("secret_value", 'key = "q7m2zp9lx4vktr8wn3by"')
    assert accepts("secret_value", 'api_key = "3b9f0e72-5d16-4c8a-b7e4-90a2d6f1c853"')
    assert not accepts("secret_value", 'key = "3b9f0e72-5d16-4c8a-b7e4-90a2d6f1c853"')
    assert not accepts("secret_value", 'key = "settings_of_user_2"')


def test_a_few_bytes_over_and_over_and_a_name_again_are_turned_away_first() -> None:
    assert not accepts("varied", "key = 1key=1key=1key=1")
    assert accepts("varied", "key = q7m2zp9lx4")
    assert not accepts("not_its_name", "password = Password=password=")
    assert accepts("not_its_name", "password = password7Kq")
    assert not accepts("not_its_name", "token = t1token=t1token=t1")
    assert accepts("not_its_name", "token = t1token7Kq")


def test_basic_credentials_are_recognised_by_what_they_encode() -> None:
    assert accepts("user_and_password", "Basic: YXBpOnczbGtvcnF+NTh6")
    assert not accepts("user_and_password", "Basic: understanding")


def test_luhn_accepts_a_check_digit_that_fits() -> None:
    assert accepts("luhn", "card: 4111111111111111")
    assert not accepts("luhn", "card: 4111111111111112")


@pytest.mark.parametrize("tail", ["1" * 80, "_value" * 12, "ab" * 40, "key1" * 20, "%" * 80, "a." * 40])
def test_a_hostile_name_or_value_is_judged_at_once(tail: str) -> None:
    assert not accepts("secret_name", f"token_{tail}-x = q7m2zp9lx4vktr8wn3by")
    accepts("real", f'key = "{tail}9Z"')
    accepts("literal", f'key = "{tail}9Z"')
