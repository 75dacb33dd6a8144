"""Secrets of every kind, made at random, inside trajectories that look like an agent's. None of them was ever real."""

import base64
import json
import string
from collections.abc import Callable, Iterator
from random import Random
from typing import Any
from uuid import UUID

LETTERS = string.ascii_letters + string.digits
HEX = "0123456789abcdef"


def draw(random: Random, alphabet: str, length: int) -> str:
    """A random text with at least one digit and one letter in it."""
    text = "".join(random.choices(alphabet, k=length - 2))
    return text[:1] + random.choice("345678") + random.choice("abcdef") + text[1:]


def luhn_complete(digits: str) -> str:
    """The digits with the check digit that makes them a card number."""
    total = sum(
        sum(divmod(2 * int(digit), 10)) if place % 2 == 0 else int(digit) for place, digit in enumerate(digits[::-1])
    )
    return digits + str(-total % 10)


def _iban(random: Random) -> str:
    account = "".join(random.choices(string.digits, k=18))
    check = 98 - int(account + "131400") % 97
    return f"DE{check:02}{account}"


def _jwt(random: Random) -> str:
    def part(content: dict[str, str]) -> str:
        return base64.urlsafe_b64encode(json.dumps(content).encode()).decode().rstrip("=")

    return (
        f"{part({'alg': 'HS256', 'typ': 'JWT'})}.{part({'sub': draw(random, LETTERS, 20)})}.{draw(random, LETTERS, 43)}"
    )


def _pem(random: Random) -> str:
    return "\n".join(draw(random, LETTERS + "+/", 64) for _ in range(6))


def _digits(random: Random, count: int) -> str:
    return "".join(random.choices("3456789", k=count))


def _name(random: Random) -> str:
    return "".join(random.choices(string.ascii_lowercase, k=9))


KINDS: dict[str, Callable[[Random], str]] = {
    "export AWS_ACCESS_KEY_ID={}": lambda r: "AKIA" + "".join(r.choices(string.ascii_uppercase + "234567", k=16)),
    "aws_secret_access_key = {}": lambda r: draw(r, LETTERS + "/+", 40),
    "git clone https://{}@github.com/a/b.git": lambda r: "ghp_" + draw(r, LETTERS, 36),
    "PRIVATE-TOKEN: {}": lambda r: "glpat-" + draw(r, LETTERS, 20),
    'client = OpenAI(api_key="{}")': lambda r: "sk-proj-" + draw(r, LETTERS, 48),
    "ANTHROPIC_API_KEY={}": lambda r: f"sk-ant-api03-{draw(r, LETTERS + '-_', 93)}AA",
    "huggingface-cli login --token {}": lambda r: "hf_" + "".join(r.choices(string.ascii_letters, k=34)),
    "SLACK_TOKEN: {}": lambda r: f"xoxb-{_digits(r, 12)}-{_digits(r, 12)}-{draw(r, LETTERS, 24)}",
    "stripe.api_key = '{}'": lambda r: "sk_live_" + draw(r, LETTERS, 24),
    "Authorization: Bearer {}": _jwt,
    "-----BEGIN RSA PRIVATE KEY-----\n{}\n-----END RSA PRIVATE KEY-----": _pem,
    "DATABASE_URL=postgres://app:{}@db.internal:5432/app": lambda r: draw(r, LETTERS, 18),
    '{{"client_secret": "{}", "grant": "code"}}': lambda r: draw(r, LETTERS, 32),
    "database:\n  user: app\n  password: {}\n": lambda r: draw(r, LETTERS, 16),
    "curl -H 'X-Api-Key: {}' https://api.example.org/v1": lambda r: draw(r, HEX, 40),
    '{{"arguments": "{{\\"text\\": \\"first\\\\n{}\\\\nlast\\"}}"}}': lambda r: "glpat-" + draw(r, LETTERS, 20),
    "arguments: first\\n{}\\nlast": lambda r: "AKIA" + "".join(r.choices(string.ascii_uppercase + "234567", k=16)),
    "\x1b[33mDB_PASSWORD\x1b[0m=\x1b[32m{}\x1b[0m": lambda r: draw(r, LETTERS, 18),
    "\x1b[31m{}\x1b[0m is not authorised": lambda r: "ghp_" + draw(r, LETTERS, 36),
    "送信先は{}です。": lambda r: f"{_name(r)}.{_name(r)}@{_name(r)}.org",
    "Please write to {} about it.": lambda r: f"{_name(r)}.{_name(r)}@{_name(r)}.org",
    "Call me back on {} tonight.": lambda r: f"+1 {r.randint(212, 989)} {r.randint(200, 999)} {r.randint(1000, 9999)}",
    "I paid with card {}.": lambda r: luhn_complete("4" + _digits(r, 14)),
    "My SSN is {}.": lambda r: f"{r.randint(100, 665)}-{r.randint(10, 99)}-{r.randint(1000, 9999)}",
    "Transfer it to {}, please.": _iban,
    "ssh admin@{}": lambda r: ".".join(str(r.randint(60, 90)) for _ in range(4)),
}
"""What is written around a value, and how the value is made."""


def planted_trajectories(count: int, each: int, marker: str, random: Random) -> Iterator[tuple[Any, list[str]]]:
    """Trajectories as JSON objects, each with the marker and with its secrets, in all the places where text can be."""
    kinds = list(KINDS.items())
    for number in range(count):
        chosen = [kinds[(number * each + place) % len(kinds)] for place in range(each)]
        values = [make(random) for _, make in chosen]
        texts = [around.format(value) for (around, _), value in zip(chosen, values, strict=True)]
        yield _trajectory(number, texts, marker, random), values


def _trajectory(number: int, texts: list[str], marker: str, random: Random) -> Any:
    ways: list[Callable[[str], dict[str, Any]]] = [
        lambda text: {"observation": {"type": "tool_result", "content": text}},
        lambda text: {"action": {"type": "tool_call", "tool_name": "shell", "tool_args": {"command": text}}},
        lambda text: {"result": {"success": False, "error": text}},
        lambda text: {"thought_process": ["Let me see.", text]},
        lambda text: {"result": {"success": True, "output": {"lines": [{"text": text}]}}},
    ]
    places = [ways[(number + place) % len(ways)](text) for place, text in enumerate(texts)]
    ordinary: dict[str, Any] = {
        "observation": {"type": "user_message", "content": f"Do the next step, {marker}."},
        "action": {"type": "response", "raw_response": "Done."},
        "result": {"success": True},
    }
    moment = "2026-01-01T10:00:00Z"
    turns = [{"turn_id": turn, "timestamp": moment, **ordinary, **place} for turn, place in enumerate(places, start=1)]
    return {
        "trajectory_id": str(UUID(int=random.getrandbits(128), version=4)),
        "session_id": f"session-{number}",
        "agent_id": "planter",
        "start_timestamp": moment,
        "end_timestamp": moment,
        "turns": turns,
        "task_context": {"instructions": f"Look into {marker}."},
        "metadata": {"model": "small"},
    }
