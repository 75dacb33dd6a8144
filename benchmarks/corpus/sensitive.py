"""Secrets and personal data, made up at run time, in the places where agents meet them."""

import string
from collections.abc import Callable
from random import Random

from benchmarks.corpus.words import FIRST_NAMES, LAST_NAMES, NOUNS


def _letters(chance: Random, count: int, alphabet: str = string.ascii_letters + string.digits) -> str:
    return "".join(chance.choices(alphabet, k=count))


def _person(chance: Random) -> tuple[str, str]:
    first, last = chance.choice(FIRST_NAMES), chance.choice(LAST_NAMES)
    return f"{first} {last}", f"{first.lower()}.{last.lower()}@{chance.choice(NOUNS)}-{chance.choice(NOUNS)}.com"


def _environment(chance: Random) -> str:
    return (
        f"DEBUG=false\nPORT={chance.randrange(1024, 65535)}\n"
        f"DATABASE_URL=postgresql://app:{_letters(chance, 18)}@db.internal:5432/app\n"
        f"OPENAI_API_KEY=sk-proj-{_letters(chance, 48)}\nLOG_LEVEL=info\n"
    )


def _cloud_keys(chance: Random) -> str:
    identity = _letters(chance, 16, string.ascii_uppercase + "234567")
    secret = _letters(chance, 40)
    return f"[default]\naws_access_key_id = AKIA{identity}\naws_secret_access_key = {secret}\nregion = eu-west-1\n"


def _clone(chance: Random) -> str:
    repository = f"{chance.choice(NOUNS)}/{chance.choice(NOUNS)}"
    return f"$ git clone https://x-access-token:ghp_{_letters(chance, 36)}@github.com/{repository}.git\n"


def _header(chance: Random) -> str:
    parts = ".".join(_letters(chance, size) for size in (36, 90, 43))
    return f"$ curl -s -H 'Authorization: Bearer eyJ{parts}' https://api.example.org/v1/{chance.choice(NOUNS)}\n"


def _private_key(chance: Random) -> str:
    lines = "\n".join(_letters(chance, 64) for _ in range(12))
    return f"-----BEGIN {'RSA'} PRIVATE KEY-----\n{lines}\n-----END {'RSA'} PRIVATE KEY-----\n"


def _settings(chance: Random) -> str:
    host = f"10.2.{chance.randrange(255)}.{chance.randrange(255)}"
    return f"config = {{'host': '{host}', 'password': '{_letters(chance, 14)}!'}}\n"


def _author(chance: Random) -> str:
    name, address = _person(chance)
    return f"commit {chance.getrandbits(160):040x}\nAuthor: {name} <{address}>\nDate:   Tue Mar 3 10:21:05 2026 +0100\n"


def _ticket(chance: Random) -> str:
    name, address = _person(chance)
    phone = f"+1 {chance.randrange(201, 989)}-{chance.randrange(200, 999)}-{chance.randrange(10000):04}"
    return f"Hi, this is {name}. Please call me at {phone} or write to {address} about the invoice.\n"


def _access_log(chance: Random) -> str:
    return "".join(
        f"{chance.randrange(11, 223)}.{chance.randrange(256)}.{chance.randrange(256)}.{chance.randrange(1, 255)} - - "
        f'[03/Mar/2026:10:21:{second:02} +0000] "GET /{chance.choice(NOUNS)} HTTP/1.1" 200 {chance.randrange(9999)}\n'
        for second in range(6)
    )


SECRETS: tuple[Callable[[Random], str], ...] = (_environment, _cloud_keys, _clone, _header, _private_key, _settings)
PERSONAL: tuple[Callable[[Random], str], ...] = (_author, _ticket, _access_log)
