"""Where demos live: each in a home of its own, so that none takes the jobs and models of an earlier one for its own."""

import re
import shutil
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

from rl_pipeline.embedded.home import HomeUnusable, hold, writing

REPORT, FIGURES = "report.html", "figures.json"
_NAME = "%Y%m%dT%H%M%SZ"
_NAMED = re.compile(r"\d{8}T\d{6}Z")


def home_of_run(demos: Path, started: datetime) -> Path:
    """The home of the demo that started then; `started` is in UTC."""
    return demos / started.strftime(_NAME)


def remove_earlier(demos: Path, tell: Callable[[str], None]) -> None:
    """Remove the homes of demos that do not run any more: each holds a warehouse and models, and a disk is finite."""
    for directory in sorted(demos.iterdir()) if demos.is_dir() else ():
        if not directory.is_dir() or not _NAMED.fullmatch(directory.name):
            continue
        try:
            with hold(directory) as home:
                for name in home.end_leftovers():
                    tell(f"{name:<12} was left behind by a killed demo and was ended")
                with writing(directory):
                    shutil.rmtree(directory)
        except HomeUnusable as held:
            tell(f"An earlier demo stays where it is: {held}")
        else:
            tell(f"The home of an earlier demo was removed: {directory}")


def show(home: Path) -> Path:
    """Put what a run has found where people look for it, over what an earlier one had found; the page."""
    for name in (REPORT, FIGURES):
        shutil.copyfile(home / name, home.parent / name)
    return home.parent / REPORT
