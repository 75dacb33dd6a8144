"""Messages from files, all checked before any is used."""

import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

from rl_pipeline.contracts import ContractError, Message, UnknownSubject, parse_message
from rl_pipeline.errors import PipelineError

_SHOWN = 3


class MessagesRefused(PipelineError):
    """Some messages break their contract; the text names the first of them by file and line."""


def read_messages(subject: str, files: Iterable[Path]) -> list[Message]:
    """The messages of the files: one in a `.json` file, one a line in any other; `-` is standard input.

    Raises `MessagesRefused` when any breaks the contract of the subject, and `UnknownSubject` when there is none.
    """
    messages: list[Message] = []
    refused: list[str] = []
    for place, data in _raw_messages(files):
        try:
            messages.append(parse_message(subject, data))
        except UnknownSubject:
            raise
        except ContractError as error:
            refused.append(f"{place}: {error}")
    if refused:
        more = f"; and {len(refused) - _SHOWN} more" if len(refused) > _SHOWN else ""
        raise MessagesRefused(
            f"{len(refused)} of {len(refused) + len(messages)} messages break their contract and none was used: "
            f"{'; '.join(refused[:_SHOWN])}{more}"
        )
    if not messages:
        raise MessagesRefused("there is no message in what was given: a .json file holds one, other files one a line")
    return messages


def _raw_messages(files: Iterable[Path]) -> Iterator[tuple[str, bytes]]:
    for file in files:
        if str(file) == "-":
            yield from _lines("standard input", sys.stdin.buffer)
            continue
        try:
            with file.open("rb") as content:
                if file.suffix == ".json":
                    yield str(file), content.read()
                else:
                    yield from _lines(str(file), content)
        except OSError as error:
            raise MessagesRefused(f"{file} cannot be read ({error.strerror}): name a file that can") from None


def _lines(name: str, content: BinaryIO) -> Iterator[tuple[str, bytes]]:
    for number, line in enumerate(content, start=1):
        if line.strip():
            yield f"{name}:{number}", line
