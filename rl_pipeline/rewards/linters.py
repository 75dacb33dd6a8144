"""The programs that judge code, each over many snippets in one process. What their findings mean belongs elsewhere."""

import importlib.metadata
import importlib.util
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any, Protocol

import orjson

from rl_pipeline.errors import PipelineError
from rl_pipeline.rewards.code import Snippet
from rl_pipeline.rewards.document import as_list, as_object, as_text

SYNTAX_ERROR = "invalid-syntax"
"""Ruff's name for code that it cannot read."""
UNREAD = "unread"
"""Our name for a file that bandit could not read."""

_NEWEST_SYNTAX = "py314"
_FRAGMENT_IGNORES = ("B018", "F401", "F704", "F706", "F821", "F822", "PLE1142")


class LinterMissing(PipelineError):
    """A linter that the configuration names is not installed."""

    def __init__(self, linter: str) -> None:
        super().__init__(f"{linter} is not installed: run `pip install {linter}` where rewards are computed.")


class LinterFailed(Exception):
    """A linter crashed, took too long or said what nobody can read; its batch has no verdict."""


class Linter(Protocol):
    """A program that reads Python files and names the rules they break."""

    @property
    def fingerprint(self) -> str:
        """Its version and rules: equal for linters that judge alike."""
        ...

    def findings(self, batch: Sequence[Snippet], timeout_seconds: float) -> list[Counter[str]]:
        """How often each rule was broken, for each snippet in order. Raises `LinterFailed`."""
        ...


class Ruff:
    """Ruff with the given rules and nobody's configuration; suppressions in the code are not honoured."""

    def __init__(self, rules: Sequence[str]) -> None:
        self._program = _find_ruff()
        self._rules = rules

    @property
    def fingerprint(self) -> str:
        """Its version and rules."""
        rules = f"{','.join(self._rules)} fragments without {','.join(_FRAGMENT_IGNORES)}"
        return f"ruff {importlib.metadata.version('ruff')} {_NEWEST_SYNTAX} {rules}"

    def findings(self, batch: Sequence[Snippet], timeout_seconds: float) -> list[Counter[str]]:
        """How often each rule was broken, for each snippet in order."""
        command = [
            *(self._program, "check", "--isolated", "--no-cache", "--ignore-noqa", "--exit-zero", "--quiet"),
            *("--no-respect-gitignore", "--config", "exclude = []", "--target-version", _NEWEST_SYNTAX),
            *("--select", ",".join(self._rules), "--output-format", "json-lines"),
            *("--per-file-ignores", ",".join(f"fragment_*.py:{rule}" for rule in _FRAGMENT_IGNORES), "."),
        ]
        return _count(batch, command, timeout_seconds, self._read)

    def _read(self, output: IO[bytes]) -> Iterator[tuple[str, str]]:
        for line in output:
            finding = as_object(_json(line))
            yield as_text(finding.get("filename")), as_text(finding.get("code")) or SYNTAX_ERROR


class Bandit:
    """Bandit with its own rules; a finding goes by its severity: LOW, MEDIUM or HIGH."""

    def __init__(self) -> None:
        if importlib.util.find_spec("bandit") is None:
            raise LinterMissing("bandit")

    @property
    def fingerprint(self) -> str:
        """Its version."""
        return f"bandit {importlib.metadata.version('bandit')}"

    def findings(self, batch: Sequence[Snippet], timeout_seconds: float) -> list[Counter[str]]:
        """How often each severity was found, for each snippet in order."""
        command = [
            *(sys.executable, "-I", "-m", "bandit", "--quiet", "--recursive", "--ignore-nosec", "--exit-zero"),
            *("--exclude", "none", "--format", "json", "."),
        ]
        return _count(batch, command, timeout_seconds, self._read)

    def _read(self, output: IO[bytes]) -> Iterator[tuple[str, str]]:
        report = as_object(_json(output.read()))
        for error in map(as_object, as_list(report.get("errors"))):
            yield as_text(error.get("filename")), UNREAD
        for finding in map(as_object, as_list(report.get("results"))):
            yield as_text(finding.get("filename")), as_text(finding.get("issue_severity"))


class _Reader(Protocol):
    def __call__(self, output: IO[bytes]) -> Iterator[tuple[str, str]]:
        """Pairs of file and rule."""
        ...


def _count(batch: Sequence[Snippet], command: list[str], timeout_seconds: float, read: _Reader) -> list[Counter[str]]:
    """Run the linter over the snippets in a directory of their own, with an environment that sets nothing."""
    with tempfile.TemporaryDirectory(prefix="rl_pipeline_lint_") as directory, tempfile.TemporaryFile() as output:
        found = {_write(Path(directory), place, snippet): Counter[str]() for place, snippet in enumerate(batch)}
        try:
            ended = subprocess.run(  # noqa: S603 - a fixed program; the code is in files, never in the arguments
                command,
                cwd=directory,
                env={},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.DEVNULL,
                timeout=timeout_seconds,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise LinterFailed(type(error).__name__) from error
        if ended.returncode != 0:
            raise LinterFailed(f"exit code {ended.returncode}")
        output.seek(0)
        for path, rule in read(output):
            name = Path(path).name
            if name not in found:
                raise LinterFailed("a finding in an unknown file")
            found[name][rule] += 1
        return list(found.values())


def _write(directory: Path, place: int, snippet: Snippet) -> str:
    name = f"{'module' if snippet.is_file else 'fragment'}_{place}.py"
    (directory / name).write_bytes(snippet.text.encode("utf-8", "replace"))
    return name


def _json(text: bytes) -> Any:
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise LinterFailed("output that is no JSON") from error


def _find_ruff() -> str:
    try:
        from ruff import find_ruff_bin  # type: ignore[import-untyped]  # ships no types

        return str(find_ruff_bin())
    except (ImportError, FileNotFoundError) as error:
        raise LinterMissing("ruff") from error
