"""What agents read and write all day: code, diffs, shell output, logs, tables, prose. No secrets here."""

from base64 import b64encode
from collections.abc import Callable
from random import Random
from typing import Any
from uuid import UUID

from benchmarks.corpus.words import ADJECTIVES, FILLERS, NOUNS, PACKAGES, VERBS

Block = Callable[[Random], str]


def identifier(chance: Random) -> str:
    """A name in snake case."""
    return f"{chance.choice(VERBS)}_{chance.choice(NOUNS)}"


def path(chance: Random) -> str:
    """A file of some project."""
    folder = chance.choice(
        ("src", "lib", "app", "tests", "pkg/internal", "services/api", "rl/training", "web/components")
    )
    return (
        f"{folder}/{chance.choice(NOUNS)}/{identifier(chance)}.{chance.choice(('py', 'py', 'py', 'ts', 'go', 'yaml'))}"
    )


def sentence(chance: Random) -> str:
    """Something an agent could say."""
    words: list[str] = []
    for _ in range(chance.randrange(4, 12)):
        words += chance.choice(FILLERS), chance.choice((NOUNS, NOUNS, ADJECTIVES, VERBS))[chance.randrange(60)]
    return " ".join(words).capitalize() + chance.choice((".", ".", ".", ":", "?", "!"))


def prose(chance: Random) -> str:
    """A few paragraphs with some Markdown."""
    paragraphs = [
        " ".join(sentence(chance) for _ in range(chance.randrange(2, 6))) for _ in range(chance.randrange(1, 4))
    ]
    if chance.random() < 0.5:
        items = [
            f"{number}. **{identifier(chance)}**: {sentence(chance)}" for number in range(1, chance.randrange(3, 7))
        ]
        paragraphs.append("\n".join(items))
    if chance.random() < 0.3:
        paragraphs.append(
            f"See `{path(chance)}` and https://docs.example.org/{chance.choice(NOUNS)}/{identifier(chance)}."
        )
    return "\n\n".join(paragraphs)


def python_code(chance: Random) -> str:
    """A class or a few functions."""
    lines = [
        f"import {chance.choice(PACKAGES)}",
        f"from {chance.choice(NOUNS)}s.{chance.choice(NOUNS)} import {identifier(chance)}",
        "",
    ]
    for _ in range(chance.randrange(1, 5)):
        one, two, three, verb = (*chance.sample(NOUNS, 3), identifier(chance))
        lines += [
            f"def {verb}({one}: str, {two}: dict[str, Any], *, limit: float = {chance.random():.1f}) -> list[str]:",
            f'    """{sentence(chance)}"""',
            f"    if not {one} or len({two}) > {chance.randrange(2, 500)}:",
            f'        raise ValueError(f"{chance.choice(ADJECTIVES)} {one}: {{{one}!r}}")',
            f"    {one}_{two} = self._{identifier(chance)}({two}[{one!r}], key=lambda item: item.{three})",
            f"    for index, {three} in enumerate({one}_{two}):",
            f"        self.{two}s.setdefault({three}, []).append(index + {chance.randrange(9)})",
            f'        logger.debug("%s: %d of %d", {three}, index, len({two}))',
            f"    # {sentence(chance)}",
            f"    return [{two}_id for {two}_id in {one}_{two} if {two}_id != {chance.choice(NOUNS)!r}]",
            "",
        ]
    return "\n".join(lines)


def typescript_code(chance: Random) -> str:
    """A component or a client."""
    lines = [f"import {{ {identifier(chance)} }} from '@app/{chance.choice(NOUNS)}';", ""]
    for _ in range(chance.randrange(1, 4)):
        one, two = chance.choice(NOUNS), chance.choice(NOUNS)
        lines += [
            f"export const {one}{two.capitalize()} = async ({one}: string, options: {{ {two}?: number }} = {{}}) => {{",
            f"  const response = await fetch(`/api/v1/{one}s/${{{one}}}?limit=${{options.{two}}}`);",
            f"  if (!response.ok) throw new Error(`{sentence(chance)} ${{response.status}}`);",
            f"  const {{ data, {two}Token: nextToken }} = await response.json();",
            f"  return data.map((item: {two}Type) => ({{ ...item, {one}Id: item.id, on: item.{two} === '{one}' }}));",
            "};",
            "",
        ]
    return "\n".join(lines)


def diff(chance: Random) -> str:
    """What git diff prints."""
    name = path(chance)
    lines = [
        f"diff --git a/{name} b/{name}",
        f"index {chance.getrandbits(28):07x}..{chance.getrandbits(28):07x} 100644",
        f"--- a/{name}",
        f"+++ b/{name}",
        f"@@ -{chance.randrange(400)},{chance.randrange(4, 30)} +{chance.randrange(400)},{chance.randrange(4, 30)} @@",
    ]
    signs = (" ", " ", " ", "-", "+")
    return "\n".join(lines + [chance.choice(signs) + line for line in python_code(chance).splitlines()])


def listing(chance: Random) -> str:
    """What ls -la prints."""
    rows = (
        f"-rw-r--r-- {chance.randrange(1, 4)} runner runner {chance.randrange(90, 99999):>8} "
        f"{chance.choice(('Jan', 'Mar', 'Jul', 'Nov'))} {chance.randrange(1, 29):>2} "
        f"{chance.randrange(24):02}:{chance.randrange(60):02} {identifier(chance)}.py"
        for _ in range(chance.randrange(5, 24))
    )
    return f"total {chance.randrange(20, 900)}\n" + "\n".join(rows)


def search_hits(chance: Random) -> str:
    """What grep -rn prints."""
    wanted = chance.choice(NOUNS)
    return "\n".join(
        f"{path(chance)}:{chance.randrange(1, 900)}:    self.{wanted}_{chance.choice(NOUNS)} = "
        f"{identifier(chance)}({wanted})"
        for _ in range(chance.randrange(4, 30))
    )


def test_run(chance: Random) -> str:
    """What pytest prints."""
    name, count = path(chance), chance.randrange(3, 60)
    lines = [
        "============================= test session starts ==============================",
        f"platform linux -- Python 3.11.{chance.randrange(14)}, pytest-9.{chance.randrange(4)}.0, pluggy-1.6.0",
        f"rootdir: /workspace/{chance.choice(NOUNS)}",
        f"collected {count} items",
        "",
    ]
    lines += [
        f"{name}::test_{identifier(chance)}_{chance.choice(ADJECTIVES)} PASSED [{n * 100 // count:3d}%]"
        for n in range(count)
    ]
    lines += ["", f"======================== {count} passed in {chance.random() * 20:.2f}s ========================"]
    return "\n".join(lines)


def traceback(chance: Random) -> str:
    """An exception with its frames."""
    lines = ["Traceback (most recent call last):"]
    for _ in range(chance.randrange(2, 9)):
        call = identifier(chance)
        lines += [
            f'  File "/workspace/{path(chance)}", line {chance.randrange(1, 900)}, in {identifier(chance)}',
            f"    return self.{call}({chance.choice(NOUNS)}, {chance.choice(NOUNS)}={chance.randrange(99)})",
            f"           {'^' * len(call)}",
        ]
    return "\n".join([*lines, f"{chance.choice(('KeyError', 'ValueError', 'TypeError'))}: {sentence(chance)}"])


def server_log(chance: Random) -> str:
    """A service's log with times, ids and durations."""
    return "\n".join(
        f"2026-0{chance.randrange(1, 10)}-{chance.randrange(1, 29):02}T{chance.randrange(24):02}:"
        f"{chance.randrange(60):02}:{chance.randrange(60):02}.{chance.randrange(1000):03}Z "
        f"{chance.choice(('INFO', 'INFO', 'DEBUG', 'WARN', 'ERROR'))} "
        f"[{chance.choice(NOUNS)}-{chance.randrange(9)}] {identifier(chance)}: {chance.choice(('GET', 'POST', 'PUT'))} "
        f"/api/v1/{chance.choice(NOUNS)}s/{UUID(int=chance.getrandbits(128), version=4)} "
        f"{chance.choice((200, 201, 404, 500))} "
        f"{chance.random() * 900:.1f}ms trace={chance.getrandbits(64):016x} bytes={chance.randrange(10**5)}"
        for _ in range(chance.randrange(4, 25))
    )


def install_log(chance: Random) -> str:
    """What pip prints."""
    lines: list[str] = []
    for name in chance.sample(PACKAGES, chance.randrange(3, 12)):
        version = f"{chance.randrange(9)}.{chance.randrange(30)}.{chance.randrange(12)}"
        lines += [
            f"Collecting {name}>={chance.randrange(5)}.{chance.randrange(9)}",
            f"  Downloading {name}-{version}-cp311-cp311-manylinux_2_17_x86_64.whl ({chance.random() * 20:.1f} MB)",
            f"     {'-' * 40} {chance.random() * 20:.1f}/20.0 MB {chance.random() * 90:.1f} MB/s",
        ]
    return "\n".join([*lines, f"Successfully installed {version} in {chance.random() * 30:.1f}s"])


def history(chance: Random) -> str:
    """What git log --oneline --stat prints."""
    return "\n".join(
        f"{chance.getrandbits(160):040x} {sentence(chance)}\n"
        f" {path(chance)} | {chance.randrange(1, 90)} {'+' * chance.randrange(1, 20)}"
        for _ in range(chance.randrange(3, 12))
    )


def configuration(chance: Random) -> str:
    """A YAML file."""
    lines = [
        "apiVersion: apps/v1",
        "kind: Deployment",
        "metadata:",
        f"  name: {chance.choice(NOUNS)}-{chance.choice(NOUNS)}",
        "spec:",
    ]
    for _ in range(chance.randrange(4, 16)):
        lines += [
            f"  - name: {chance.choice(NOUNS).upper()}_{chance.choice(NOUNS).upper()}",
            f"    value: {chance.choice((chance.choice(NOUNS), chance.randrange(9000), 'true', path(chance)))!s}",
        ]
    lines += [f"  image: registry.example.org/{chance.choice(NOUNS)}:v{chance.randrange(9)}.{chance.randrange(40)}.0"]
    lines += [f"  digest: sha256:{chance.getrandbits(256):064x}"]
    return "\n".join(lines)


def table(chance: Random) -> str:
    """Rows of CSV."""
    head = ["id", *chance.sample(NOUNS, 5)]
    rows = (
        f"{chance.randrange(10**6)},{chance.choice(ADJECTIVES)},{chance.random() * 1000:.2f},{chance.randrange(900)},"
        f"2025-{chance.randrange(1, 13):02}-{chance.randrange(1, 29):02},{chance.choice(NOUNS)}"
        for _ in range(chance.randrange(6, 50))
    )
    return ",".join(head) + "\n" + "\n".join(rows)


def page(chance: Random) -> str:
    """A piece of HTML."""
    rows = (
        f'<li class="{chance.choice(ADJECTIVES)} {chance.choice(NOUNS)}" data-id="{chance.randrange(10**6)}">'
        f'<a href="https://www.example.org/{chance.choice(NOUNS)}/{chance.randrange(999)}">{sentence(chance)}</a></li>'
        for _ in range(chance.randrange(3, 15))
    )
    return (
        f"<html><head><title>{sentence(chance)}</title></head><body><ul>\n" + "\n".join(rows) + "\n</ul></body></html>"
    )


def image(chance: Random) -> str:
    """A picture, as a browser tool returns it."""
    return "data:image/png;base64," + b64encode(chance.randbytes(chance.randrange(300, 3000))).decode()


def foreign_prose(chance: Random) -> str:
    """Text beyond ASCII."""
    words = (
        "größer",
        "Änderung",
        "naïve",
        "façade",
        "データ",
        "処理",
        "проверка",
        "значение",
        "→",
        "“quoted”",
        "…",
        "✅",
    )
    return " ".join(
        chance.choice((chance.choice(words), chance.choice(FILLERS), chance.choice(NOUNS))) for _ in range(80)
    )


def answer(chance: Random) -> dict[str, Any]:
    """What an API returns, decoded."""
    return {
        "status": chance.choice(("ok", "ok", "partial")),
        "next_page_token": None,
        "usage": {"prompt_tokens": chance.randrange(4000), "completion_tokens": chance.randrange(900)},
        "items": [
            {
                "id": str(UUID(int=chance.getrandbits(128), version=4)),
                "name": f"{chance.choice(ADJECTIVES)}-{chance.choice(NOUNS)}",
                "created_at": f"2025-{chance.randrange(1, 13):02}-{chance.randrange(1, 29):02}T08:00:00Z",
                "updated": chance.randrange(1_700_000_000_000, 1_790_000_000_000),
                chance.choice(NOUNS): chance.random(),
                "tags": chance.sample(NOUNS, 3),
                "description": sentence(chance),
            }
            for _ in range(chance.randrange(1, 9))
        ],
    }


BLOCKS: tuple[tuple[Block, int], ...] = (
    (prose, 14),
    (python_code, 16),
    (typescript_code, 5),
    (diff, 10),
    (listing, 3),
    (search_hits, 7),
    (test_run, 7),
    (traceback, 7),
    (server_log, 6),
    (install_log, 3),
    (history, 3),
    (configuration, 4),
    (table, 4),
    (page, 4),
    (image, 1),
    (foreign_prose, 2),
)
"""With how often each is met."""
