"""Which field names tell that their value is sensitive.

Names are compared by their last words, so `DB_PASSWORD`, `dbPassword` and `db-password` are one. What a name is not:
`password_policy` and `secret_name` end in another word; `next_page_token` is in the list of exceptions.
"""

import re
import unicodedata
from typing import NamedTuple


def _words(text: str) -> list[str]:
    return text.split()


class FieldName(NamedTuple):
    """What a sensitive name says about its value."""

    kind: str
    certain: bool
    """False: only a value that looks like a secret is one."""


_CERTAIN = {
    "PASSWORD": """
        password passwords passwd passphrase passcode password_hash password_digest password_confirmation
        password_confirm password_value password_again passwort kennwort contrasena senha mot_de_passe motdepasse
        db_pass user_pass smtp_pass mysql_pass ftp_pass redis_pass root_pass admin_pass login_pass proxy_pass mail_pass
        auth_pass http_pass pg_pass postgres_pass database_pass
    """,
    "API_KEY": """
        api_key api_keys api_token api_tokens api_secret access_key access_keys access_key_id secret_access_key
        secret_key secret_keys access_token access_tokens auth_token bearer_token refresh_token id_token session_token
        security_token oauth_token bot_token personal_access_token deploy_token authorization proxy_authorization
        subscription_key account_key shared_access_key storage_key consumer_key sas_token auth_key service_role_key
        secret_key_base master_key integration_key publishable_key
    """,
    "PRIVATE_KEY": "private_key private_keys private_key_pem private_key_data ssh_private_key",
    "JWT": "jwt jwt_token json_web_token",
    "SECRET": """
        secret secrets secret_value secret_string secret_text secret_data client_secret app_secret webhook_secret
        signing_key encryption_key decryption_key license_key connection_string cookie cookies set_cookie csrf_token
        xsrf_token otp_code mfa_code totp_code one_time_code verification_code security_answer secret_answer
        recovery_code recovery_codes backup_code backup_codes recovery_phrase seed_phrase mnemonic_phrase card_pin
        pin_number cvv cvc cvv2 cvc2 card_verification_value security_code kubeconfig
    """,
    "CREDIT_CARD": """
        credit_card credit_card_number creditcard debit_card debit_card_number card_number cc_number payment_card_number
    """,
    "SSN": "ssn social_security social_security_number social_security_no",
    "IBAN": "iban",
    "IDENTIFIER": """
        tax_id tax_number taxpayer_id national_id national_insurance_number passport_number passport_no driver_license
        drivers_license driver_license_number drivers_license_number driving_licence bank_account bank_account_number
        account_number routing_number medical_record_number date_of_birth birth_date birthdate birthday dob
    """,
    "NAME": """
        first_name last_name middle_name given_name family_name surname maiden_name real_name legal_name
        patient_name customer_name contact_name cardholder_name card_holder employee_name person_name account_holder
        passenger_name recipient_name
    """,
    "PHONE": "phone phone_number phone_no mobile_number mobile_phone cell_phone telephone telephone_number fax_number",
    "ADDRESS": """
        street_address home_address mailing_address billing_address shipping_address postal_address residential_address
        address_line address_line_1 address_line_2 address1 address2 street
    """,
    "IP_ADDRESS": """
        ip ips ipv ip_address ip_addresses ip_addr ip_addrs forwarded_for remote_addr remote_address client_addr
        client_address peer_addr peer_address source_address
    """,
}
_UNCERTAIN = {
    "PASSWORD": "pwd pass pw psk",  # also the working directory, the result of a test
    "NAME": "full_name author_name",  # also of a package, a class, a repository
    "PHONE": "mobile cell tel fax",  # also a device, a part of a table
    "SECRET": "token tokens auth mnemonic credential credentials otp dsn ssh_key gpg_key pgp_key session_key user_key",
    "API_KEY": "bearer "
    + " ".join(
        f"{owner}_key"
        for owner in _words("""
            openai anthropic gemini google maps stripe aws azure gcp sendgrid mailgun twilio github gitlab slack discord
            hf huggingface mapbox algolia datadog sentry segment mixpanel pinecone cohere groq mistral replicate serp
            serpapi tavily weather openweather server app application client service shared admin root host
        """)
    ),
}
# Names that end like a sensitive one, and are none.
_EXCEPTIONS = frozenset(
    _words("""
    page_token next_token previous_token prev_token continuation_token pagination_token sync_token cursor_token
    resume_token bos_token eos_token pad_token unk_token sep_token cls_token mask_token special_token special_tokens
    stop_token stop_tokens image_token image_tokens audio_token text_token end_token start_token begin_token
    added_token added_tokens additional_special_tokens total_tokens max_tokens min_tokens prompt_tokens
    completion_tokens input_tokens output_tokens cached_tokens reasoning_tokens num_tokens n_tokens new_tokens
    used_tokens remaining_tokens context_tokens generated_tokens usage_tokens per_token last_token first_token
    current_token lex_token parse_token top_tokens stopping_tokens thinking_tokens prediction_tokens billed_tokens
    first_pass second_pass last_pass single_pass multi_pass low_pass high_pass band_pass all_pass render_pass
    """)
)
# `reset_password: <link>`, `show_password: "yes"`: about a password, not one.
_DEEDS = frozenset(
    _words(
        "no not show hide has is needs need require requires required forgot reset change enable allow use with without"
    )
)
# Written as one word, these still end a longer name: `mydbpassword`, `OPENAIAPIKEY`.
_UNBROKEN = {
    "password": "PASSWORD",
    "passwd": "PASSWORD",
    "passphrase": "PASSWORD",
    "apikey": "API_KEY",
    "apitoken": "API_KEY",
    "secretkey": "API_KEY",
    "accesskey": "API_KEY",
    "accesstoken": "API_KEY",
    "authtoken": "API_KEY",
    "refreshtoken": "API_KEY",
    "clientsecret": "SECRET",
    "privatekey": "PRIVATE_KEY",
    "creditcard": "CREDIT_CARD",
    "cardnumber": "CREDIT_CARD",
}
_BY_WORDS = {
    tuple(name.split("_")): FieldName(kind, certain)
    for certain, table in ((True, _CERTAIN), (False, _UNCERTAIN))
    for kind, names in table.items()
    for name in names.split()
}
_LONGEST = max(map(len, _BY_WORDS))
_WORD = re.compile(r"[A-Z]+(?=[A-Z][a-z])|[A-Z]?[a-z]+|[A-Z]+|[0-9]+")
_SHORT_NUMBER = re.compile(r"[0-9]{1,2}|v[0-9]")
_LONGEST_NAME = 64


def _of_words(words: tuple[str, ...]) -> FieldName | None:
    if words and _SHORT_NUMBER.fullmatch(words[-1]) and words not in _BY_WORDS:
        words = words[:-1]
    for size in range(min(len(words), _LONGEST), 0, -1):
        ending = words[-size:]
        if "_".join(words[-max(size, 2) :]) in _EXCEPTIONS:
            return None
        if found := _BY_WORDS.get(ending):
            return None if len(words) > size and words[-size - 1] in _DEEDS else found
    if words and words[-1] in {"token", "tokens"}:
        return FieldName("SECRET", certain=False)
    return next((FieldName(kind, True) for end, kind in _UNBROKEN.items() if words and words[-1].endswith(end)), None)


def sensitive_name(name: str) -> FieldName | None:
    """What the name of a field says about its value; None for an ordinary name."""
    if len(name) > _LONGEST_NAME:
        return None
    if not name.isascii():  # without its accents
        name = unicodedata.normalize("NFKD", name).encode("ascii", "ignore").decode()
    return _of_words(tuple(word.lower() for word in _WORD.findall(name)))


_SCHEMA_TYPES = frozenset({"string", "number", "integer", "boolean", "object", "array", "null"})
_SCHEMA_WORDS = frozenset({"$ref", "anyOf", "oneOf", "allOf", "enum", "properties"})
SCHEMA_VALUES = frozenset({"default", "const", "example", "examples", "value"})
"""Where a schema of a sensitive field may itself hold a value of it."""


def is_schema(value: dict[str, object]) -> bool:
    """Whether an object under a sensitive name only describes the field, as the parameters of a tool do."""
    kind = value.get("type")
    return (isinstance(kind, str) and kind in _SCHEMA_TYPES) or not _SCHEMA_WORDS.isdisjoint(value)


PAIR_NAMES = ("name", "key", "Name", "Key", "parameter", "header", "field", "variable", "ParameterKey", "id", "label")
PAIR_VALUES = frozenset({"value", "Value", "val", "ParameterValue"})
"""`{"name": "API_KEY", "value": "…"}`: the name of the value is itself a value."""
