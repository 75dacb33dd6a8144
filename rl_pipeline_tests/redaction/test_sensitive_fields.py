"""What the name of a field tells of its value, and how far: with all packaged rules."""

import json
from typing import Any

import pytest

from rl_pipeline.redaction.literals import tells_itself
from rl_pipeline.redaction.policy import RedactionKey, RedactionPolicy
from rl_pipeline.redaction.redactor import PLACEHOLDER, Redactor, SensitiveKey

KEY = RedactionKey.parse("v1:" + "k" * 32)
TOOL = Redactor(RedactionPolicy(KEY, {"bob.lovell": "NAME"}))


def redacted(tree: Any) -> Any:
    once = TOOL.redact(tree).tree
    assert TOOL.redact(once).tree == once
    return once


@pytest.mark.parametrize(
    ("tree", "secret"),
    [
        ({"pass": "hunter2"}, "hunter2"),
        ({"pass": "correct-horse"}, "correct-horse"),
        ({"db": {"pwd": "s3same"}}, "s3same"),
        ({"auth": {"username": "u", "pass": "s3same!"}}, "s3same!"),
        ({"username": "u", "pass": "sesame"}, "sesame"),
        ({"psk": "correct-horse-wifi"}, "correct-horse-wifi"),
        ({"bearer": "zq83hf92kd"}, "zq83hf92kd"),
        ({"mnemonic": "river stone cloud paper " * 2 + "river stone cloud paper"}, "river"),
        ({"text": '{"contraseña": "zorro"}'}, "zorro"),
    ],
    ids=str,
)
def test_passwords_are_found_under_names_that_also_mean_something_else(tree: Any, secret: str) -> None:
    assert secret not in json.dumps(redacted(tree))


@pytest.mark.parametrize(
    "tree",
    [
        *(
            {"pass": value}
            for value in (True, 12, "pass", "passed", "fail", "all 12 tests", "12/12", "100.00%", "green")
        ),
        *(
            {"pass": value}
            for value in ("test_login_3", "a.py::test_2", "120.5ms", "2026-01-31T10:00", "phase2", "run_1")
        ),
        *({"pwd": value} for value in ("/home/app", "C:\\Users\\ada1", "src/app2")),
        {"user": "ada", "pwd": "/home/app"},
        {"mnemonic": "mov", "psk": True, "bearer": "token"},
    ],
    ids=str,
)
def test_results_directories_and_instructions_stay(tree: Any) -> None:
    assert redacted(tree) == tree


@pytest.mark.parametrize("name", ["client_ip", "remote_addr", "ip", "ip_address", "x_forwarded_for", "X-Real-IP"])
def test_a_public_address_under_a_name_for_one_is_replaced(name: str) -> None:
    address = TOOL.placeholder("IP_ADDRESS", "5.9.10.11")
    assert redacted({name: "5.9.10.11"}) == {name: address}
    assert redacted([json.dumps({name: "5.9.10.11"})]) == [json.dumps({name: address})]
    several = redacted({name: "5.9.10.11:443, 10.0.0.1, 2a00:1450:4001:81b::200e"})[name]
    assert several == f"{address}:443, 10.0.0.1, {TOOL.placeholder('IP_ADDRESS', '2a00:1450:4001:81b::200e')}"


@pytest.mark.parametrize(
    "value", ["10.0.0.1", "127.0.0.1", "::1", "203.0.113.9", "8.8.8.8", "any", "5.9.10", "dhcp", 7]
)
def test_other_values_under_such_a_name_stay(value: Any) -> None:
    assert redacted({"ip": value, "ips": [value]}) == {"ip": value, "ips": [value]}


@pytest.mark.parametrize(
    ("tree", "kept"),
    [
        ({"content": 'call {"api_key": "OPENAI_API_KEY"}', "env": {"OPENAI_API_KEY": "x"}}, "content"),
        ({"secret": "db-credentials", "files": {"db-credentials": 1}}, "files"),
        ({"auth_token": "my_auth_token", "my_auth_token": "z"}, "auth_token"),
        ({"cookie": "session_preferences", "session_preferences": 1}, "session_preferences"),
    ],
)
def test_a_word_under_a_sensitive_name_does_not_refuse_the_tree(tree: Any, kept: str) -> None:
    assert redacted(tree)[kept] == tree[kept]


def test_a_drawn_value_under_a_sensitive_name_still_refuses_the_tree() -> None:
    with pytest.raises(SensitiveKey):
        TOOL.redact({"secret": "zq83hf92kd7x", "files": {"zq83hf92kd7x": 1}})


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("secret", "db-credentials", "kubectl get secret db-credentials"),
        ("storage_key", "uploads/2024/a.png", "see uploads/2024/a.png"),
        ("cookie", "session_preferences", "def session_preferences():"),
        ("password", "#password-input", "click #password-input"),
        ("password", "correct-horse-battery", "a correct-horse-battery"),
    ],
)
def test_what_reads_like_words_is_not_looked_for_elsewhere(name: str, value: str, text: str) -> None:
    assert redacted({name: value, "text": text})["text"] == text


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("password", "hunter2"),
        ("password", "Summer-2024"),
        ("password", "Tr!vial&Word"),
        ("secret", "zq83hf92kd7x"),
        ("client_secret", "0b1d6a9e-58c4-4a53-9d0e-6f2f4f1f7a11"),
        ("seed_phrase", "river stone cloud paper"),
    ],
)
def test_what_looks_like_a_secret_is_looked_for_elsewhere(name: str, value: str) -> None:
    assert value not in redacted({name: value, "text": f"with {value}, then"})["text"]


def test_a_word_that_a_rule_finds_is_looked_for_elsewhere() -> None:
    tree = {"secret": "open-sesame-street", "url": "https://ada:open-sesame-street@host/", "text": "open-sesame-street"}
    assert not tells_itself(b"open-sesame-street", "SECRET")
    assert "sesame" not in json.dumps(redacted(tree))


STAND_INS = [
    *(("api_key", value) for value in ("sk-...", "sk-xxx", "AKIAIOSFODNN7EXAMPLE", "OPENAI_API_KEY", "my-api-key")),
    *(("api_key", value) for value in ("REPLACE_ME", "replace-with-your-key", "change_me")),
    *(("password", value) for value in ("Wrong password", "Password", "New password")),
    ("date_of_birth", "YYYY-MM-DD"),
    ("birthday", "DD.MM.YYYY"),
    ("first_name", "varchar(255)"),
    ("last_name", "VARCHAR(80) NOT NULL"),
]


@pytest.mark.parametrize(("name", "value"), STAND_INS)
def test_what_documentation_writes_in_the_place_of_a_value_stays(name: str, value: str) -> None:
    tree = {name: value, "text": json.dumps({name: value}), "deeper": json.dumps(json.dumps({name: value}))}
    assert redacted(tree) == tree


@pytest.mark.parametrize("value", ["opensesame", "Baker-Street-221b", "TopSecret", "example7Kq93hTb2Lm", "x", "12345"])
def test_a_password_that_only_resembles_one_is_replaced_in_its_field(value: str) -> None:
    assert PLACEHOLDER.fullmatch(redacted({"password": value})["password"])


@pytest.mark.parametrize(
    "text",
    ['"secret"===i?"secret":"endpoint"===i', 'x ? "password" : "two words"', r"x ? \"password\" : \"two words\""],
)
def test_a_choice_between_texts_is_no_field(text: str) -> None:
    assert redacted([text]) == [text]


def test_the_text_of_json_is_judged_as_text_is() -> None:
    stays = json.dumps({"api_key": "prefix_your_token_here", "secret": "abcdefghijklmnop", "token": "xxxx-xxxx-1234"})
    assert redacted([stays]) == [stays]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["curl", "-u", "bob:hunter22", "x"], ["curl", "-u", "bob:{}", "x"]),
        (["/usr/bin/curl", "-s", "--user", "bob:hunter22"], ["/usr/bin/curl", "-s", "--user", "bob:{}"]),
        (["mysql", "-phunter22", "db"], ["mysql", "-p{}", "db"]),
        (["sudo", "mysqldump", "-u", "root", "-phunter22"], ["sudo", "mysqldump", "-u", "root", "-p{}"]),
        (["sshpass", "-p", "hunter22", "ssh", "host"], ["sshpass", "-p", "{}", "ssh", "host"]),
        (["mysql", "--password", "hunter22", "-phunter22"], ["mysql", "--password", "{}", "-p{}"]),
        (["password", "hunter22"], ["password", "{}"]),
    ],
)
def test_secrets_among_arguments_are_found(arguments: list[str], expected: list[str]) -> None:
    password = TOOL.placeholder("PASSWORD", "hunter22")
    tree = {"before": "é", "deep": [{"argv": arguments}], "after": ["x", "y"]}
    assert redacted(tree) == {**tree, "deep": [{"argv": [text.format(password) for text in expected]}]}


def test_what_stands_before_a_password_is_still_looked_at() -> None:
    assert redacted(["curl", "-u", "bob.lovell:hunter22"]) == [
        "curl",
        "-u",
        f"{TOOL.placeholder('NAME', 'bob.lovell')}:{TOOL.placeholder('PASSWORD', 'hunter22')}",
    ]


def test_the_scheme_of_a_header_in_a_pair_stays() -> None:
    header = ["Authorization", f"Bearer {TOOL.placeholder('API_KEY', 'abc123def')}"]
    assert redacted([["Authorization", "Bearer abc123def"]]) == [header]


@pytest.mark.parametrize(
    "arguments",
    [
        ["git", "push", "-u", "origin:main"],
        ["tar", "-phunter22"],
        ["mkdir", "-p", "hunter22"],
        ["docker", "run", "-u", "1000:1000"],
        ["curl", "-u", "bob:$PASSWORD"],
        ["curl", "-u", "https://host/"],
        ["password", "password2"],
        ["password", "remember-me"],
        ["Authorization", "Bearer authentication"],
    ],
)
def test_other_arguments_stay(arguments: list[str]) -> None:
    assert redacted(arguments) == arguments


def test_a_value_ends_before_a_nul() -> None:
    password = TOOL.placeholder("PASSWORD", "hunter22")
    text = "\x00password=hunter22\x00USER=x\x00db_password=hunter22\x00"
    expected = f"\x00password={password}\x00USER=x\x00db_password={password}\x00"
    assert redacted([text]) == [expected]
    assert TOOL.redact_text(text).text == expected


def test_small_numbers_under_sensitive_names_stay() -> None:
    tree = {"password": 12, "account_number": 0, "ssn": 3, "card_number": 2}
    assert redacted(tree) == tree
    left = redacted({"password": 4711, "account_number": 12345, "cvv": 123})
    assert all(PLACEHOLDER.fullmatch(value) for value in left.values())


@pytest.mark.parametrize("value", ['a"b\\c-9-long', "pâss-wörd-99", "line\nbreak-99"])
def test_a_value_and_its_spelling_in_json_have_the_same_digits(value: str) -> None:
    password = TOOL.placeholder("PASSWORD", value)
    left = redacted({"password": value, "text": f"see {json.dumps(value)}", "json": json.dumps({"password": value})})
    assert left == {"password": password, "text": f'see "{password}"', "json": json.dumps({"password": password})}
