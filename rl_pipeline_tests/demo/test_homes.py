"""Each demo starts from nothing, and leaves what people look for where they look."""

import os
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from subprocess import Popen

import psutil
import pytest

from rl_pipeline.demo.homes import home_of_run, remove_earlier, show
from rl_pipeline.demo.profile import DemoProfile, settings_of_demo
from rl_pipeline.embedded.home import hold
from rl_pipeline.settings import Settings

NOW = datetime(2026, 2, 1, 12, 30, 5, tzinfo=UTC)


@pytest.fixture
def server() -> Iterator[Popen[bytes]]:
    """A process that a demo has started."""
    with Popen(["sleep", "600"]) as process:
        yield process
        process.kill()


def test_nothing_of_a_demo_lies_where_the_next_one_looks(tmp_path: Path) -> None:
    homes = [home_of_run(tmp_path, NOW + timedelta(seconds=passed)) for passed in (0, 1)]
    assert homes[0].name == "20260201T123005Z"
    first, second = (settings_of_demo(Settings(), DemoProfile(), home) for home in homes)
    for field in (
        *("rl_pipeline_home", "model_storage_path", "trajectory_storage_path"),
        "training_work_directory",
    ):
        places = [Path(getattr(settings, field)) for settings in (first, second)]
        assert [place.is_relative_to(home) for place, home in zip(places, homes, strict=True)] == [True, True], field


def test_the_homes_of_earlier_demos_are_removed_and_nothing_else(tmp_path: Path) -> None:
    earlier, notes = home_of_run(tmp_path, NOW), tmp_path / "notes"
    for directory in (earlier, notes):
        directory.mkdir()
        (directory / "data").write_text("x")
    (tmp_path / "report.html").write_text("yesterday's")
    told: list[str] = []
    remove_earlier(tmp_path, told.append)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["notes", "report.html"]
    assert (notes / "data").exists()
    assert [str(earlier) in line for line in told] == [True]


def test_the_home_of_a_demo_that_runs_is_left_alone(tmp_path: Path, server: Popen[bytes]) -> None:
    earlier = home_of_run(tmp_path, NOW)
    told: list[str] = []
    with hold(earlier) as home:
        home.write_record({}, {"nats": server.pid})
        remove_earlier(tmp_path, told.append)
        assert (earlier / "stack.json").exists()
        assert server.poll() is None
    assert [f"held by process {os.getpid()}" in line for line in told] == [True]


def test_what_a_killed_demo_left_running_is_ended_before_its_home_goes(tmp_path: Path, server: Popen[bytes]) -> None:
    earlier = home_of_run(tmp_path, NOW)
    with hold(earlier) as home:
        home.write_record({}, {"nats": server.pid})
        record = (earlier / "stack.json").read_text()
    (earlier / "stack.json").write_text(record)  # as if nobody had come to remove it
    told: list[str] = []
    remove_earlier(tmp_path, told.append)
    assert not earlier.exists()
    assert not psutil.pid_exists(server.pid) or psutil.Process(server.pid).status() == psutil.STATUS_ZOMBIE
    assert told[0].startswith("nats")


def test_where_no_demo_ran_there_is_nothing_to_remove(tmp_path: Path) -> None:
    remove_earlier(tmp_path / "demo", pytest.fail)


def test_the_page_and_the_figures_lie_where_the_readme_says(tmp_path: Path) -> None:
    home = home_of_run(tmp_path / "demo", NOW)
    home.mkdir(parents=True)
    for name in ("report.html", "figures.json"):
        (home / name).write_text(f"{name} of this run")
        (home.parent / name).write_text("of an earlier one")
    assert show(home) == tmp_path / "demo" / "report.html"
    assert (tmp_path / "demo" / "figures.json").read_text() == "figures.json of this run"
    assert (home / "report.html").exists()
