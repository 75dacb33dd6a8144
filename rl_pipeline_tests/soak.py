"""`make soak`: the fault and statistics suites at their full counts, written with the commit to docs/soak.md.

A soak test takes its counts from the fixture `soak_count` and says what it did with pytest's `record_property`. Named
suites (`make soak SUITES=rl_pipeline_tests/training`) replace their own lines of the page and leave the others.
"""

import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from xml.etree import ElementTree as ET

PROJECT = Path(__file__).parent.parent
PAGE = PROJECT / "docs" / "soak.md"
HEADER = """# Soak

The fault and statistics suites at their full counts. `make soak` wrote this page; the same suites run in `make test`
at small counts. A line speaks for its commit alone; one that the history does not have was tested before the work was
joined to it, and is to be run again.

| suite | what was done | result | commit |
|---|---|---|---|
"""


def main(suites: Sequence[str]) -> int:
    """Run the suites, or all of them, write the page, and pass on pytest's verdict."""
    tested = f"{commit()}, {datetime.now(UTC).date().isoformat()}"
    with tempfile.TemporaryDirectory() as directory:
        results = Path(directory) / "results.xml"
        command = [sys.executable, "-m", "pytest", "-m", "soak", "-q", "--timeout=9000", "-ojunit_family=xunit1"]
        command += [f"--junitxml={results}", *suites]
        verdict = subprocess.run(command, cwd=PROJECT, env={**os.environ, "RL_PIPELINE_SOAK": "1"}, check=False)
        # Whoever interrupts it leaves a case without a name.
        cases = ET.parse(results).getroot().findall(".//testcase[@name]")
    lines = (earlier(besides=suites) if suites else {}) | {name_of(case): line(case, tested) for case in cases}
    PAGE.write_text(HEADER + "".join(f"{each}\n" for _, each in sorted(lines.items())))
    return verdict.returncode


def earlier(besides: Sequence[str]) -> dict[str, str]:
    """The lines of the page as it is, by their tests, without those of the suites: of these some may be gone."""
    lines = [each for each in PAGE.read_text().splitlines() if each.startswith("| `")]
    own = tuple(suite.removesuffix("/").removesuffix(".py").replace("/", ".") for suite in besides)
    return {name: each for each in lines if not (name := each.split("`")[1]).startswith(own)}


def name_of(case: ET.Element) -> str:
    """The test's name."""
    return f"{case.get('classname')}::{case.get('name')}"


def line(case: ET.Element, tested: str) -> str:
    """One line of the page for one test."""
    done = ", ".join(f"{entry.get('name')} {entry.get('value')}" for entry in case.findall("./properties/property"))
    failed = case.find("failure") is not None or case.find("error") is not None
    result = "failed" if failed else "skipped" if case.find("skipped") is not None else "passed"
    return f"| `{name_of(case)}` | {done} | {result} | {tested} |"


def commit() -> str:
    """The commit that was tested, marked when the tree held more than it."""

    def git(*arguments: str) -> str:
        return subprocess.run(["git", *arguments], cwd=PROJECT, capture_output=True, text=True, check=True).stdout

    # The page itself is what an earlier soak has changed.
    changed = git("status", "--porcelain", "--untracked-files=no", "--", ".", f":!{PAGE.relative_to(PROJECT)}").strip()
    return f"`{git('rev-parse', '--short=12', 'HEAD').strip()}`" + (" with uncommitted changes" if changed else "")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
