"""Secrets in lists of texts: the arguments of a command, and the two texts of a header."""

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from rl_pipeline.redaction.field_names import FieldName, sensitive_name
from rl_pipeline.redaction.field_values import JUDGED_BY_LOOKS

_MOST_TEXTS = 64
_PASSWORD = FieldName("PASSWORD", certain=True)
_TAKE_A_LOGIN = frozenset({"curl", "http", "https", "xh", "curlie"})
_OPTIONS_OF_A_LOGIN = frozenset({"-u", "-U", "--user", "--proxy-user", "-a", "--auth"})
_LOGIN = re.compile(r"[^:/\s]{1,64}:(?=[^/\s]\S*\Z)")
_TAKE_IT_JOINED = frozenset(
    {"mysql", "mysqldump", "mysqladmin", "mysqlimport", "mysqlcheck", "mariadb", "mariadb-dump", "sshpass"}
)
_TAKE_IT_NEXT = {"sshpass": "-p", "redis-cli": "-a", "mongo": "-p", "mongosh": "-p", "ldapsearch": "-w"}


class Argument(NamedTuple):
    """A text that may be a secret from `start` on."""

    at: int
    start: int
    name: FieldName


def secret_arguments(texts: Sequence[str]) -> Iterable[Argument]:
    """The texts that stand where a secret does: after `--password`, in `curl -u`, beside the name of a header."""
    if len(texts) > _MOST_TEXTS:
        return ()
    if "\n-" in "\n".join(texts) or texts[0][:1] == "-":
        return _of_command(texts)
    return _beside_name(*texts) if len(texts) == 2 else ()


def _beside_name(first: str, second: str) -> Iterator[Argument]:
    """Two words beside each other may be anything, also two names."""
    name = sensitive_name(first)
    if name is None or name.kind in JUDGED_BY_LOOKS or sensitive_name(second) is not None:
        return
    if name.kind != "PASSWORD" or any(map(str.isdigit, second)):
        yield Argument(1, 0, FieldName(name.kind, certain=False))


def _of_command(texts: Sequence[str]) -> Iterator[Argument]:
    program = ""
    for at, text in enumerate(texts):
        if text[:1] != "-":
            program = _program(text) or program
            continue
        after = texts[at + 1] if at + 1 < len(texts) else "-"
        if program in _TAKE_IT_JOINED and text[:2] == "-p" and len(text) > 2:
            yield Argument(at, 2, _PASSWORD)
        elif after[:1] == "-":
            continue
        elif program in _TAKE_A_LOGIN and text in _OPTIONS_OF_A_LOGIN:
            if login := _LOGIN.match(after):
                yield Argument(at + 1, login.end(), _PASSWORD)
        elif _TAKE_IT_NEXT.get(program) == text:
            yield Argument(at + 1, 0, _PASSWORD)
        elif text[:2] == "--" and (name := sensitive_name(text)):
            yield Argument(at + 1, 0, name)


def _program(text: str) -> str | None:
    """The program that a text names, if it is one that takes secrets."""
    name = text.rpartition("/")[2] if len(text) < 256 else ""
    return name if name in _TAKE_A_LOGIN or name in _TAKE_IT_JOINED or name in _TAKE_IT_NEXT else None
