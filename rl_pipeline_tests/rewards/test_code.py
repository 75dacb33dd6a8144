"""Code is found where an agent wrote it, and nothing else is taken for code."""

import ast
import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from rl_pipeline.rewards.code import (
    MOST_CHARACTERS,
    MOST_SNIPPETS,
    Snippet,
    find_code,
    is_nested_too_deep,
    parse,
    statements_of,
)
from rl_pipeline_tests.rewards.documents import call, read_turns, says

PROGRAM = "def add(a, b):\n    return a + b"


def found(*turns: dict[str, Any]) -> list[Snippet]:
    return find_code(read_turns(turns))


@pytest.mark.parametrize(
    ("tool", "arguments", "expected"),
    [
        ("code_exe", {"runtime": "python", "code": PROGRAM}, Snippet(PROGRAM)),
        ("code_exe", {"language": "Python3", "script": PROGRAM}, Snippet(PROGRAM)),
        ("ipython", {"code": PROGRAM}, Snippet(PROGRAM)),
        ("code_exe", {"code": PROGRAM}, Snippet(PROGRAM)),
        ("write_file", {"path": "src/adding.py", "content": PROGRAM}, Snippet(PROGRAM, "src/adding.py")),
        ("editor", {"command": "create", "path": "adding.py", "file_text": PROGRAM}, Snippet(PROGRAM, "adding.py")),
        ("bash", {"command": f"cat > adding.py <<'EOF'\n{PROGRAM}\nEOF\nls"}, Snippet(PROGRAM, "adding.py")),
        ("bash", {"command": f"cat <<EOF | tee lib/adding.py\n{PROGRAM}\nEOF"}, Snippet(PROGRAM, "lib/adding.py")),
        ("bash", {"command": f"python3 - <<EOF\n{PROGRAM}\nEOF"}, Snippet(PROGRAM)),
    ],
)
def test_code_is_found_in_the_arguments_of_tools(tool: str, arguments: dict[str, Any], expected: Snippet) -> None:
    assert found(call(tool, arguments)) == [expected]


@pytest.mark.parametrize(
    ("tool", "arguments"),
    [
        ("code_exe", {"runtime": "nodejs", "code": "const a = 1;"}),
        ("code_exe", {"runtime": "terminal", "code": "ls -la"}),
        ("code_exe", {"code": "ls"}),  # which parses as Python
        ("code_exe", {"code": "import { x } from 'y'"}),
        ("write_file", {"path": "notes.md", "content": "import this"}),
        ("editor", {"path": "adding.py", "old_str": "a", "new_str": "  return b"}),
        ("edit", {"path": "adding.py", "content": "    return b", "start_line": 2, "end_line": 2}),
        ("bash", {"command": "cat > notes.txt <<EOF\nimport this\nEOF"}),
        ("search", {"query": "import this"}),
        ("code_exe", {"runtime": ["python"], "code": {"text": PROGRAM}}),
        ("code_exe", {"runtime": "python", "code": "   \n"}),
    ],
)
def test_other_arguments_are_not_taken_for_python(tool: str, arguments: dict[str, Any]) -> None:
    assert found(call(tool, arguments)) == []


def test_fenced_python_in_an_answer_is_code_and_other_blocks_are_not() -> None:
    answer = f"""Here:
    ```python
    x = 1
    ```
```py
{PROGRAM}
```
```bash
rm -r .
```
```python
>>> 1 + 1
2
```
```python
unfinished = """
    assert found(says(answer)) == [Snippet("x = 1"), Snippet(PROGRAM)]


def test_the_users_and_the_tools_words_are_not_the_agents_code() -> None:
    fenced = f"```python\n{PROGRAM}\n```"
    assert found(call("search", {}, output=fenced), call("ask", {}, observed="user_message", content=fenced)) == []


def test_of_several_versions_of_a_file_the_last_counts_and_a_repeated_fragment_counts_once() -> None:
    write = [call("write_file", {"path": "a.py", "content": text}) for text in ("broken(", PROGRAM)]
    run = [call("python", {"code": "print(1)"})] * 3
    assert found(write[0], *run, write[1]) == [Snippet("print(1)"), Snippet(PROGRAM, "a.py")]


def test_commands_of_notebooks_do_not_make_code_unreadable() -> None:
    [snippet] = found(call("jupyter", {"code": "%matplotlib inline\n!pip install x\nif True:\n    !ls\nx = 7 % 2"}))
    assert parse(snippet.text) is not None


def test_at_most_the_last_twenty_pieces_are_kept_and_huge_ones_are_not_read() -> None:
    pieces = [call("python", {"code": f"x = {number}"}) for number in range(50)]
    kept = found(*pieces, call("python", {"code": "y = 1\n" * MOST_CHARACTERS}))
    assert len(kept) == MOST_SNIPPETS
    assert [snippet.text for snippet in kept[:2]] == ["x = 31", "x = 32"]
    assert [snippet.is_readable for snippet in kept[-2:]] == [True, False]


def test_every_statement_is_counted_however_it_is_nested() -> None:
    for file in (Path(ast.__file__), Path(json.decoder.__file__), Path(asyncio.tasks.__file__)):
        tree = ast.parse(file.read_text())
        assert statements_of(tree) == sum(isinstance(node, ast.stmt) for node in ast.walk(tree))
    nested = (
        "match x:\n    case 1:\n        try:\n            y = 1\n        except* E:\n            z = 2 if y else 3\n"
    )
    assert statements_of(ast.parse(nested)) == 4


HOSTILE = {
    "null byte": "x = 1\0",
    "parentheses": "(" * 30_000,
    "signs": "-" * 60_000 + "1",
    "attributes": "a" + ".b" * 30_000,
    "sum": "1" + "+1" * 30_000,
    "lone surrogate": "x = '\ud800",
    "Python 2": "print x",
}


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_hostile_code_does_not_parse_and_raises_nothing(text: str) -> None:
    assert parse(text) is None


def test_depth_that_overflows_parsers_is_told_from_plain_mistakes() -> None:
    deep = {name for name, text in HOSTILE.items() if is_nested_too_deep(text)}
    assert deep == {"parentheses", "signs", "attributes", "sum"}


def test_texts_made_to_be_slow_are_read_line_by_line() -> None:
    openings = "cat <<A > a.py\n" * 20_000
    fences = "```python\n" * 20_000
    assert found(call("bash", {"command": openings}), says(fences)) == []
    names = "tee." * 100_000 + " <<A\nx\nA"
    assert found(call("bash", {"command": names})) == []
