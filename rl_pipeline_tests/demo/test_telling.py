"""How the story is told on a terminal, and into a file."""

from datetime import UTC, datetime, timedelta
from io import StringIO

import pytest

from rl_pipeline.demo.cycle import time_to_go
from rl_pipeline.demo.telling import Telling, attempts_in_words

NOW = datetime(2026, 2, 1, tzinfo=UTC)


class Terminal(StringIO):
    def isatty(self) -> bool:
        return True

    def shown(self) -> list[str]:
        """What stands on its lines; a carriage return goes back to the beginning of one."""
        lines = []
        for text in self.getvalue().split("\n"):
            line = ""
            for written in text.split("\r"):
                line = written + line[len(written) :]
            lines.append(line.rstrip())
        return lines


def test_on_a_terminal_one_line_is_rewritten_and_gives_way_to_what_stays() -> None:
    terminal = Terminal()
    tell = Telling(terminal)
    tell("it begins")
    tell.progress("9 of 10 attempts, about 5 s left")
    tell.progress("10 of 10 attempts")
    assert terminal.shown() == ["it begins", "10 of 10 attempts"]
    tell("it ends")
    assert terminal.shown() == ["it begins", "it ends", ""]
    tell.progress("and on")
    tell.progress("")
    assert terminal.shown() == ["it begins", "it ends", ""]


def test_a_line_that_is_rewritten_never_wraps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "20")
    terminal = Terminal()
    Telling(terminal).progress("x" * 100)
    assert terminal.shown() == ["x" * 19]


def test_into_a_file_only_long_silence_is_broken_and_nothing_is_rewritten() -> None:
    file, moments = StringIO(), iter([0.0, 1.0, 2.0, 17.0, 17.0, 18.0])
    tell = Telling(file, lambda: next(moments))
    tell("it begins")
    for done in range(1, 4):
        tell.progress(f"{done} of 10 attempts")
    tell.progress("")
    assert file.getvalue() == "it begins\n2 of 10 attempts\n"


@pytest.mark.parametrize(
    ("done", "words"),
    [(0, "0 of 480 attempts"), (120, "120 of 480 attempts, about 90 s left"), (480, "480 of 480 attempts")],
)
def test_the_time_left_goes_by_the_pace_so_far(done: int, words: str) -> None:
    assert attempts_in_words(done, 480, seconds=30.0) == words


@pytest.mark.parametrize(
    ("phase", "after", "words"),
    [
        ("ramping", 42, "about 42 s until the new model can have all of the traffic"),
        ("baking", 2, "about 2 s until the bake is over"),
        ("baking", -3, "about 0 s until the bake is over"),
        ("ramping", None, ""),
    ],
)
def test_a_rollout_tells_what_is_still_to_come(phase: str, after: int | None, words: str) -> None:
    finish = None if after is None else (NOW + timedelta(seconds=after)).isoformat()
    assert time_to_go(phase, finish, NOW) == words
