"""Which names tell that their value is sensitive, and which values under such a name are none."""

import pytest

from rl_pipeline.contracts.fields import contract_field_names
from rl_pipeline.redaction.field_names import FieldName, sensitive_name
from rl_pipeline.redaction.field_values import is_sensitive_value

PASSWORD = FieldName("PASSWORD", certain=True)
TOKEN = FieldName("SECRET", certain=False)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("password", "PASSWORD"),
        ("Passwd", "PASSWORD"),
        ("DB_PASSWORD", "PASSWORD"),
        ("dbPassword", "PASSWORD"),
        ("db-password", "PASSWORD"),
        ("mydbpassword", "PASSWORD"),
        ("password2", "PASSWORD"),
        ("old_password", "PASSWORD"),
        ("passwordHash", "PASSWORD"),
        ("api_key", "API_KEY"),
        ("apiKey", "API_KEY"),
        ("APIKey", "API_KEY"),
        ("apikey", "API_KEY"),
        ("X-Api-Key", "API_KEY"),
        ("OPENAI_API_KEY", "API_KEY"),
        ("AWS_SECRET_ACCESS_KEY", "API_KEY"),
        ("accessToken", "API_KEY"),
        ("refresh_token", "API_KEY"),
        ("authorization", "API_KEY"),
        ("client_secret", "SECRET"),
        ("clientsecret", "SECRET"),
        ("secrets", "SECRET"),
        ("Set-Cookie", "SECRET"),
        ("cvv", "SECRET"),
        ("private_key", "PRIVATE_KEY"),
        ("ssn", "SSN"),
        ("socialSecurityNumber", "SSN"),
        ("credit_card", "CREDIT_CARD"),
        ("cardNumber", "CREDIT_CARD"),
        ("iban", "IBAN"),
        ("first_name", "NAME"),
        ("phoneNumber", "PHONE"),
        ("street_address", "ADDRESS"),
        ("date_of_birth", "IDENTIFIER"),
        ("token", "SECRET"),
        ("slack_token", "SECRET"),
        ("pw", "PASSWORD"),
        ("Passwort", "PASSWORD"),
        ("contraseña", "PASSWORD"),
        ("contrasen\u0303a", "PASSWORD"),
        ("mot_de_passe", "PASSWORD"),
        ("wifi_psk", "PASSWORD"),
        ("bearer", "API_KEY"),
        ("secret_key_base", "API_KEY"),
        ("secretAnswer", "SECRET"),
        ("security_answer", "SECRET"),
        ("mnemonic", "SECRET"),
        ("seed_phrase", "SECRET"),
        ("clientIp", "IP_ADDRESS"),
        ("X-Forwarded-For", "IP_ADDRESS"),
        ("REMOTE_ADDR", "IP_ADDRESS"),
        ("ipv4", "IP_ADDRESS"),
    ],
)
def test_sensitive_names_are_known_in_every_spelling(name: str, kind: str) -> None:
    found = sensitive_name(name)
    assert found is not None
    assert found.kind == kind


@pytest.mark.parametrize(
    "name",
    """
    total_tokens max_tokens maxTokens token_count prompt_tokens token_ids next_page_token nextPageToken tokenizer
    eos_token pad_token special_tokens completion_tokens_details key primary_key foreign_key sort_key public_key
    cache_key keyboard passed passing password_policy password_length passwordPolicy secret_name secretName secretKeyRef
    secret_id reset_password show_password author authority name username user_id session_id file_name address email
    street_view credit_card_4421486 number pinned compass tokens_used zip vip first_pass render_pass ip_count
    """.split(),  # noqa: SIM905  # a column of words reads better
)
def test_names_that_only_look_so_are_ordinary(name: str) -> None:
    assert sensitive_name(name) is None


def test_no_field_of_a_contract_is_sensitive() -> None:
    assert [name for name in sorted(contract_field_names()) if sensitive_name(name)] == []


@pytest.mark.parametrize(
    "text", ["hunter2", "x", "!@#$%^&*()", "correct horse battery staple", "/etc/Pa55", "12345", "Pa$$word"]
)
def test_a_password_is_a_password_whatever_it_looks_like(text: str) -> None:
    assert is_sensitive_value(PASSWORD, text)


@pytest.mark.parametrize(
    "text",
    [
        *(
            "",
            "  ",
            "***",
            "xxxx",
            "...",
            "$API_KEY",
            "${DB_PASSWORD}",
            "${{ secrets.KEY }}",
            "{{ password }}",
            "%PASS%",
        ),
        *(
            "<your key>",
            "<password>",
            "[FILTERED]",
            "your_api_key",
            "YOUR-TOKEN-HERE",
            "os.environ['X']",
            "process.env.X",
        ),
        *("null", "None", "string", "redacted", "vault:kv/db#password", "op://vault/item"),
        *("This field is required.", "password must be at least 8 characters", "is too short"),
    ],
)
def test_references_masks_and_messages_are_no_passwords(text: str) -> None:
    assert not is_sensitive_value(PASSWORD, text)


@pytest.mark.parametrize(
    ("text", "is_secret"),
    [("Hello", False), ("the", False), ("abc123def456", True), ("https://x.org/a1b2c3", False), ("a b c 1 2 3", False)],
)
def test_an_uncertain_name_needs_a_value_that_looks_like_a_secret(text: str, is_secret: bool) -> None:
    assert is_sensitive_value(TOKEN, text) is is_secret


def test_names_of_people_and_numbers_of_phones_look_like_such() -> None:
    assert is_sensitive_value(FieldName("NAME", certain=True), "Ada")
    assert not is_sensitive_value(FieldName("NAME", certain=True), "octocat/hello-world")
    assert is_sensitive_value(FieldName("PHONE", certain=True), "555 0123 44")
    assert not is_sensitive_value(FieldName("PHONE", certain=True), "iPhone 15")
