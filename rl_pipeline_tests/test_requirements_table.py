"""docs/requirements.md names every requirement, and only places and tests that exist."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

PROJECT = Path(__file__).parent.parent
TABLE = PROJECT / "docs" / "requirements.md"
LAST = {"S0": 106, "S1": 57, "S2": 98, "S3": 45, "S4": 30, "DX": 18, "C": 33}
EVERY_ID = {f"{document}-{number:02d}" for document, last in LAST.items() for number in range(1, last + 1)} | {"C-11b"}


def rows() -> list[list[str]]:
    lines = [line for line in TABLE.read_text().splitlines() if re.match(r"\| (S[0-4]|DX|C)-", line)]
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]


@cache
def names_of_tests(path: Path) -> frozenset[str]:
    """The tests of a file as pytest names them: those of a class with their class, and the class itself."""
    return frozenset(_named(ast.parse(path.read_text()).body, ""))


def _named(body: list[ast.stmt], above: str) -> Iterator[str]:
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
            yield above + node.name
        elif isinstance(node, ast.ClassDef) and node.name.startswith("Test"):
            yield above + node.name
            yield from _named(node.body, f"{above}{node.name}::")


def wrong_references(cell: str) -> list[str]:
    """What a cell names and the project does not have: a file, or a test in it."""
    wrong = []
    for reference in re.findall(r"`([^`]+)`", cell):
        path, _, test = reference.partition("::")
        if not (PROJECT / path).exists() or (test and test not in names_of_tests(PROJECT / path)):
            wrong.append(reference)
    return wrong


def test_every_requirement_has_exactly_one_row() -> None:
    ids = [row[0] for row in rows()]
    assert sorted(ids) == sorted(EVERY_ID)


def test_the_table_names_only_places_and_tests_that_exist() -> None:
    wrong = {identifier: wrong_references(place + test) for identifier, _, place, test in rows()}
    assert {identifier: references for identifier, references in wrong.items() if references} == {}


def test_a_requirement_names_both_its_place_and_its_test_or_neither() -> None:
    assert [identifier for identifier, _, place, test in rows() if bool(place) != bool(test)] == []


def test_a_row_that_names_a_test_that_does_not_exist_is_noticed() -> None:
    here = f"rl_pipeline_tests/{Path(__file__).name}"
    assert wrong_references(f"`{here}::test_that_is_not_there`, `no/such/file.py`, `{here}`") == [
        f"{here}::test_that_is_not_there",
        "no/such/file.py",
    ]


def test_a_test_of_a_class_is_named_with_its_class() -> None:
    file = "rl_pipeline_tests/collection/massgen/test_rl_integration.py"
    test = "test_six_kinds_of_spans_are_kept_as_the_documentation_has_them"
    assert wrong_references(
        f"`{file}::{test}`, `{file}::TestRLAgent::{test}`, `{file}::TestTraceCollector::{test}`"
    ) == [
        f"{file}::{test}",
        f"{file}::TestRLAgent::{test}",
    ]
