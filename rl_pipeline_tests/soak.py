"""`make soak`: the fault and statistics suites at their full counts, written with the commit to docs/soak.md.

A soak test takes its counts from the fixture `soak_count` and says what it did with pytest's `record_property`.
"""

import os
import subprocess
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from xml.etree import ElementTree as ET

PROJECT = Path(__file__).parent.parent
HEADER = """# Soak

The fault and statistics suites at their full counts. `make soak` wrote this page; the same suites run in `make test`
at small counts.

Commit {commit}, {date}.

| suite | what was done | result |
|---|---|---|
"""


def main() -> int:
    """Run the suites, write the page, and pass on pytest's verdict."""
    with tempfile.TemporaryDirectory() as directory:
        results = Path(directory) / "results.xml"
        command = [sys.executable, "-m", "pytest", "-m", "soak", "-q", "--timeout=3600", "-ojunit_family=xunit1"]
        command += [f"--junitxml={results}"]
        verdict = subprocess.run(command, cwd=PROJECT, env={**os.environ, "RL_PIPELINE_SOAK": "1"}, check=False)
        cases = ET.parse(results).getroot().findall(".//testcase")
    page = HEADER.format(commit=commit(), date=datetime.now(UTC).date().isoformat())
    (PROJECT / "docs" / "soak.md").write_text(page + "".join(f"{row(case)}\n" for case in cases))
    return verdict.returncode


def row(case: ET.Element) -> str:
    """One line of the page for one test."""
    done = ", ".join(f"{entry.get('name')} {entry.get('value')}" for entry in case.findall("./properties/property"))
    failed = case.find("failure") is not None or case.find("error") is not None
    result = "failed" if failed else "skipped" if case.find("skipped") is not None else "passed"
    return f"| `{case.get('classname')}::{case.get('name')}` | {done} | {result} |"


def commit() -> str:
    """The commit that was tested, marked when the tree held more than it."""

    def git(*arguments: str) -> str:
        return subprocess.run(["git", *arguments], cwd=PROJECT, capture_output=True, text=True, check=True).stdout

    changed = git("status", "--porcelain", "--untracked-files=no").strip()
    return f"`{git('rev-parse', '--short=12', 'HEAD').strip()}`" + (" with uncommitted changes" if changed else "")


if __name__ == "__main__":
    sys.exit(main())
