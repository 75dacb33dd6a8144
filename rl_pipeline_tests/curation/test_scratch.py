"""What a curation that was killed leaves behind is found and removed; what is in use stays."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from rl_pipeline.curation.scratch import SCRATCH, scratch_below, sweep

AT_WORK = """
import sys, time
from pathlib import Path
from rl_pipeline.curation.scratch import scratch_below
with scratch_below(Path(sys.argv[1])) as scratch:
    (scratch / "conversations.parquet").write_text("what a user said")
    print("at work", flush=True)
    time.sleep(600)
"""


def said_below(work: Path) -> list[str]:
    return [path.name for path in work.rglob("*.parquet")]


def test_the_directory_is_empty_at_first_and_gone_at_the_end(tmp_path: Path) -> None:
    with scratch_below(tmp_path / "work") as scratch:
        assert list(scratch.iterdir()) == []
        (scratch / "conversations.parquet").write_text("what a user said")
    with pytest.raises(KeyError), scratch_below(tmp_path / "work") as scratch:
        raise KeyError
    assert list((tmp_path / "work" / SCRATCH).iterdir()) == []


def test_what_a_killed_curation_left_is_swept_and_not_what_is_in_use(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", AT_WORK, tmp_path], stdout=subprocess.PIPE) as other:
        try:
            assert other.stdout is not None
            assert other.stdout.readline() == b"at work\n"
            sweep(tmp_path)
            assert said_below(tmp_path) == ["conversations.parquet"], "it is at work"
        finally:
            os.kill(other.pid, signal.SIGKILL)
    assert said_below(tmp_path) == ["conversations.parquet"], "nobody could clean up"
    with scratch_below(tmp_path) as own:
        sweep(tmp_path)
        assert own.is_dir()
    assert list((tmp_path / SCRATCH).iterdir()) == []


def test_where_nothing_was_ever_made_there_is_nothing_to_sweep(tmp_path: Path) -> None:
    sweep(tmp_path / "nowhere")
    assert list(tmp_path.iterdir()) == []
