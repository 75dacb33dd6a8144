"""Linters judge code the same in any company, survive what is hostile, and are asked once for the same text."""

import stat
import sys
from pathlib import Path

import pytest

from rl_pipeline.rewards.code import MOST_CHARACTERS, Snippet
from rl_pipeline.rewards.linters import Bandit, LinterFailed, LinterMissing, Ruff
from rl_pipeline.rewards.linting import CRITICAL_RULES, CodeChecker, Verdict, critical_findings, gate, lint_score

CLEAN = Snippet("def add(a, b):\n    return a + b\n", "adding.py")
FAULTY = Snippet("import os\n\n\ndef add(a, b):\n    return a + c\n", "faulty.py")

CRITICAL = {
    "exec": "exec(text)",
    "eval": "x = eval(text)",
    "pickle": "import pickle\nx = pickle.loads(data)",
    "yaml": "import yaml\nx = yaml.load(text)",
    "shell": "import subprocess\nsubprocess.run(text, shell=True, check=True)",
    "os.system": "import os\nos.system(text)",
    "SQL": "def f(c, name):\n    c.execute(f\"SELECT * FROM users WHERE name = '{name}'\")",
    "TLS": "import requests\nrequests.get(url, verify=False, timeout=1)",
    "tar": "import tarfile\ntarfile.open(path).extractall()",
}


@pytest.fixture(scope="module")
def checker() -> CodeChecker:
    return CodeChecker()


def test_the_score_counts_as_pylint_does(checker: CodeChecker) -> None:
    """Three statements, one error (an undefined name) and one other finding (an unused import): 10 - 10·(5+1)/3 < 0."""
    [faulty] = checker.check([FAULTY])
    assert faulty == Verdict(parses=True, statements=3, errors=1, others=1, critical=0)
    assert lint_score([faulty]) == 0.0
    padded = Verdict(parses=True, statements=20, errors=1, others=1)
    assert lint_score([padded]) == pytest.approx(10 - 10 * 6 / 20)
    assert lint_score([padded, Verdict(parses=True, statements=10, errors=0, others=0)]) == lint_score([padded])


def test_clean_code_has_the_best_score(checker: CodeChecker) -> None:
    assert lint_score(checker.check([CLEAN])) == 10.0


def test_code_without_a_statement_has_no_score(checker: CodeChecker) -> None:
    verdicts = checker.check([Snippet("# nothing but a comment")])
    assert (lint_score(verdicts), critical_findings(verdicts)) == (None, None)


def test_a_fragment_may_use_names_of_others_and_a_file_may_not(checker: CodeChecker) -> None:
    texts = ["import os\nprint(defined_before)", "await later()", "return 3", "value"]
    assert [(verdict.errors, verdict.others) for verdict in checker.check([Snippet(text) for text in texts])] == [
        (0, 0)
    ] * 4
    assert checker.check([Snippet(texts[0], "a.py")])[0].errors == 1


@pytest.mark.parametrize("text", CRITICAL.values(), ids=CRITICAL)
def test_what_lets_strangers_in_is_critical(text: str, checker: CodeChecker) -> None:
    assert critical_findings(checker.check([Snippet(text)])) == 1


def test_asserts_and_chance_are_not_critical(checker: CodeChecker) -> None:
    text = "import random\nimport hashlib\nassert random.random() < hashlib.md5(b'').digest_size"
    assert critical_findings(checker.check([Snippet(text)])) == 0


def test_suppressions_by_the_one_who_is_judged_are_not_honoured(checker: CodeChecker) -> None:
    text = "# ruff: noqa\nimport subprocess\nsubprocess.run(text, shell=True, check=True)  # noqa # nosec\n"
    for each in (checker, CodeChecker("bandit")):
        assert critical_findings(each.check([Snippet(text, "a.py")])) == 1


def test_syntax_newer_than_this_python_is_code(checker: CodeChecker) -> None:
    newer = checker.check([Snippet("type Pair[T] = tuple[T, T]\n"), Snippet("x = f'{names['first']}'\n")])
    assert [(verdict.parses, verdict.statements) for verdict in newer] == [(True, 1), (True, 1)]
    assert not checker.check([Snippet("print x")])[0].parses


def test_a_verdict_does_not_depend_on_its_company() -> None:
    hostile = [Snippet("-" * 60_000 + "1"), Snippet("x = 1\0"), Snippet("(" * 30_000), Snippet("a" + ".b" * 30_000)]
    too_large = Snippet("x = 1\n" * MOST_CHARACTERS)
    checker = CodeChecker()
    verdicts = checker.check([FAULTY, *hostile, too_large, CLEAN])
    assert verdicts[0] == CodeChecker().check([FAULTY])[0]
    assert [verdict.parses for verdict in verdicts[1:5]] == [False] * 4
    assert verdicts[5] == gate(too_large) == Verdict(parses=True)
    assert lint_score(verdicts[6:]) == 10.0
    assert checker.failures == 0


class _Fragile(Ruff):
    """Ruff, but for a crash on every batch that holds a certain text; counts its calls."""

    calls = 0

    def findings(self, batch, timeout_seconds):  # type: ignore[no-untyped-def]
        self.calls += 1
        if any("crash" in snippet.text for snippet in batch):
            raise LinterFailed("crash")
        return super().findings(batch, timeout_seconds)


def test_a_snippet_that_crashes_the_linter_costs_the_others_nothing() -> None:
    checker = CodeChecker()
    checker._linter = _Fragile(["F", *CRITICAL_RULES])
    crash = Snippet("crash = 1")
    verdicts = checker.check([*(Snippet(f"x = {number}") for number in range(7)), crash])
    assert [verdict.errors for verdict in verdicts] == [0] * 7 + [None]
    assert (lint_score(verdicts[7:]), critical_findings(verdicts[7:])) == (None, None)
    assert checker.failures == 4, "the batch of 8, of 4, of 2 and the snippet alone"


def test_what_was_judged_is_remembered_and_a_failure_is_not() -> None:
    checker = CodeChecker(remembered=2)
    linter = checker._linter = _Fragile(["F"])
    checker.check([CLEAN, CLEAN])
    checker.check([CLEAN])
    assert linter.calls == 1
    for _ in range(2):
        checker.check([Snippet("crash = 1")])
    assert linter.calls == 3
    checker.check([FAULTY, Snippet("x = 1")])
    checker.check([CLEAN])
    assert linter.calls == 5, "the oldest of more than two was forgotten"


@pytest.mark.parametrize(
    "program",
    ["kill -9 $$", "echo '{not json'", 'echo \'{"filename": "other.py", "code": "F401"}\'', "exec sleep 60", "exit 2"],
)
def test_a_linter_that_fails_gives_no_score_and_no_error(program: str, tmp_path: Path) -> None:
    fake = tmp_path / "ruff"
    fake.write_text(f"#!/bin/sh\n{program}\n")
    fake.chmod(fake.stat().st_mode | stat.S_IEXEC)
    checker = CodeChecker(timeout_seconds=0.5)
    checker._linter._program = str(fake)  # type: ignore[attr-defined]
    assert checker.check([CLEAN]) == [Verdict(parses=True, statements=2, is_settled=False)]
    assert checker.failures == 1


def test_bandit_finds_what_it_holds_for_severe() -> None:
    checker = CodeChecker("bandit")
    severe = Snippet(CRITICAL["shell"])
    newer = Snippet("type Pair = int\n")
    verdicts = checker.check([severe, CLEAN, newer, Snippet("print x")])
    assert [verdict.critical for verdict in verdicts] == [1, 0, None, None]
    assert lint_score(verdicts[1:2]) == 10.0
    assert checker.fingerprint != CodeChecker().fingerprint


def test_a_missing_linter_is_named_with_the_way_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(LinterMissing, match="pip install bandit"):
        Bandit()
    monkeypatch.setitem(sys.modules, "ruff", None)
    with pytest.raises(LinterMissing, match="pip install ruff"):
        CodeChecker()
