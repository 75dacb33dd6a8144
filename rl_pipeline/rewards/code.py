"""Python code that an agent wrote, found in the calls of tools and in answers.

**Files**: an argument such as `content` beside a path that ends in `.py`, and here-documents that a shell command sends
to such a path. Of several versions of a file the last one counts. **Fragments**: an argument such as `code` where the
runtime, the language or the tool's name says Python (without any of them, where the text reads and parses as Python),
here-documents for `python`, and fenced blocks of Python in responses. Replacements inside a file are not taken: a
passage is no program.

The last 20 pieces of a trajectory count; one of more than 64 KB is counted and not looked into.
"""

import ast
import re
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from rl_pipeline.rewards.document import JsonObject, Turn, as_text

MOST_SNIPPETS = 20
MOST_CHARACTERS = 64 * 1024

_FILE_KEYS = ("content", "contents", "file_text", "file_content", "source", "code")
_PASSAGE_KEYS = frozenset(
    {"start_line", "end_line", "insert_line", "line", "lines", "range", "old_str", "old_string", "search"}
)
_PATH_KEYS = ("path", "file_path", "filepath", "filename", "file", "file_name", "target_file", "absolute_path")
_CODE_KEYS = ("code", "source", "script", "program", "cell", "input", "command", "content")
_RUNTIME_KEYS = ("runtime", "language", "lang", "interpreter", "kernel")
_SHELL_KEYS = ("command", "cmd", "code", "input", "script", "keystrokes", "bash")
_BLOCKS = ("body", "orelse", "finalbody", "handlers", "cases")
_KEYS_OF_CODE = frozenset({*_FILE_KEYS, *_CODE_KEYS, *_SHELL_KEYS})

_PYTHON_FILE = re.compile(r"\.pyi?$", re.IGNORECASE)
_PYTHON_NAME = re.compile(r"^i?py(thon)?[\d.]*$", re.IGNORECASE)
_PYTHON_TOOL = re.compile(r"(^|[^a-z])(i?python[\d.]*|jupyter)([^a-z]|$)", re.IGNORECASE)
_READS_AS_PYTHON = re.compile(
    r"^[ \t]*(?:(?:async )?def \w|class \w|import \w|from [\w.]+ import |assert[ (]|print\(|@\w"
    r"|(?:for|with) .+:\s*$|[\w.]+ = )",
    re.MULTILINE,
)
_FENCE = re.compile(r"[ \t]*(`{3,}|~{3,})[ \t]*([\w+-]*)")
_FENCED_LANGUAGES = frozenset({"python", "py", "python3", "ipython"})
_HERE_DOCUMENT = re.compile(r"<<-?[ \t]*(['\"]?)([A-Za-z_]\w*)\1")
_WRITTEN_FILE = re.compile(r"(?:>|\btee\b(?:[ \t]+-a)?)[ \t]*['\"]?([^\s'\"<>|;&]{1,300}\.pyi?)\b")
_PYTHON_PROGRAM = re.compile(r"\bpython[\d.]*\b")
_NOTEBOOK_COMMAND = re.compile(r"^([ \t]*)(?:![\w./]|%%?[a-z_]+(?=[ \t]|$))[^\n]*$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Snippet:
    """A piece of Python code."""

    text: str
    path: str = ""
    """Where the agent wrote it; empty for a fragment, which may stand on names that were defined elsewhere."""

    @property
    def is_file(self) -> bool:
        """Whether it is a whole module."""
        return bool(self.path)

    @property
    def is_readable(self) -> bool:
        """Whether it is small enough to look into."""
        return len(self.text) <= MOST_CHARACTERS


def find_code(turns: Sequence[Turn]) -> list[Snippet]:
    """The code of the trajectory in order: the last version of each file, each fragment once."""
    found: dict[str, Snippet] = {}
    for turn in turns:
        if turn.action == "tool_call":
            snippets = _in_call(turn.tool, turn.arguments)
        elif turn.action == "response":
            snippets = _in_answer(turn.answer)
        else:
            continue
        for snippet in snippets:
            if snippet.text.strip():
                key = f"file {snippet.path}" if snippet.is_file else f"text {snippet.text}"
                found.pop(key, None)  # the later place is the one it is remembered at
                found[key] = snippet
    return list(found.values())[-MOST_SNIPPETS:]


def parse(text: str) -> ast.Module | None:
    """The syntax tree, or None where this Python cannot read the text."""
    try:
        return ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def is_nested_too_deep(text: str) -> bool:
    """Whether a text that does not parse fails by its depth, which overflows the stacks of other parsers too."""
    try:
        ast.parse(text)
    except (RecursionError, MemoryError):
        return True
    except (SyntaxError, ValueError) as error:
        return "too many" in str(error)
    return False


def statements_of(tree: ast.Module) -> int:
    """How many statements there are, nested ones too. Goes by blocks alone: expressions are most of a tree."""
    count = 0
    blocks: list[list[Any]] = [tree.body]
    while blocks:
        for node in blocks.pop():
            count += isinstance(node, ast.stmt)
            blocks += [block for name in _BLOCKS if (block := getattr(node, name, None)) and isinstance(block, list)]
    return count


def path_of(arguments: JsonObject) -> str:
    """The file that a call is about."""
    return next((path for key in _PATH_KEYS if (path := as_text(arguments.get(key)))), "")


def commands_of(arguments: JsonObject) -> Iterator[str]:
    """Texts that a call may have given to a shell or an interpreter."""
    return (text for key in _SHELL_KEYS if (text := as_text(arguments.get(key))))


def _in_call(tool: str, arguments: JsonObject) -> Iterator[Snippet]:
    if _KEYS_OF_CODE.isdisjoint(arguments):
        return
    path = path_of(arguments)
    if _PYTHON_FILE.search(path):
        text = next((text for key in _FILE_KEYS if (text := as_text(arguments.get(key)))), "")
        if _PASSAGE_KEYS.isdisjoint(arguments):
            yield Snippet(text, path)
        return
    runtime = next((name for key in _RUNTIME_KEYS if (name := as_text(arguments.get(key)))), "")
    is_python = _PYTHON_NAME.match(runtime) if runtime else _PYTHON_TOOL.search(tool)
    if is_python:
        text = next((text for key in _CODE_KEYS if (text := as_text(arguments.get(key)))), "")
        yield _fragment(text)
        return
    for text in commands_of(arguments):
        if "<<" in text:
            yield from _here_documents(text)
    code = as_text(arguments.get("code"))
    if not (runtime or path) and _proves_python(code):
        yield Snippet(code)


def _proves_python(text: str) -> bool:
    """Whether code of an undeclared language is Python: `ls -la` parses too, so parsing is not enough."""
    if len(text) > MOST_CHARACTERS or not _READS_AS_PYTHON.search(text):
        return False
    return _parses(text)


@lru_cache(maxsize=4096)
def _parses(text: str) -> bool:
    return parse(text) is not None


def _in_answer(text: str) -> Iterator[Snippet]:
    """The fenced blocks of Python; sessions of an interpreter (`>>>`) are transcripts, not code."""
    if "```" not in text and "~~~" not in text:
        return
    fence, is_python, block = "", False, list[str]()
    for line in text.split("\n"):
        mark = _FENCE.match(line)
        if not fence and mark:
            fence, is_python, block = mark[1], mark[2].lower() in _FENCED_LANGUAGES, []
        elif fence and mark and mark[1].startswith(fence) and not mark[2]:
            if is_python and not any(each.lstrip().startswith(">>>") for each in block):
                yield _fragment("\n".join(block))
            fence = ""
        elif fence:
            block.append(line)


def _here_documents(command: str) -> Iterator[Snippet]:
    """Python in the here-documents of a shell command, read line by line so that no input takes long."""
    head, end, body = "", "", list[str]()
    for line in command.split("\n"):
        if end:
            if line.strip() != end:
                body.append(line)
                continue
            written = _WRITTEN_FILE.search(head)
            if written:
                yield Snippet("\n".join(body), written[1])
            elif _PYTHON_PROGRAM.search(head):
                yield _fragment("\n".join(body))
            end = ""
        elif opening := _HERE_DOCUMENT.search(line):
            head, end, body = line, opening[2], []


def _fragment(text: str) -> Snippet:
    """The text without the margin it was printed with and without a notebook's commands (`!pip`, `%time`)."""
    if len(text) <= MOST_CHARACTERS:
        text = textwrap.dedent(text) if text[:1] in {" ", "\t"} else text
        text = _NOTEBOOK_COMMAND.sub(r"\1pass", text) if "!" in text or "%" in text else text
    return Snippet(text)
