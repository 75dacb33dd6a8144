"""The story as people read it: lines that stay, and below them what goes on now, rewritten where that can be done."""

import shutil
from collections.abc import Callable
from time import monotonic
from typing import TextIO

_SILENCE_SECONDS = 15.0
"""After which a reader who sees lines only is told what goes on."""


class Telling:
    """Tells on a terminal, or into a file or pipe."""

    def __init__(self, out: TextIO, clock: Callable[[], float] = monotonic) -> None:
        self._out, self._clock = out, clock
        self._rewrites = out.isatty()
        self._drawn = 0
        self._told = clock()

    def __call__(self, text: str) -> None:
        """A line that stays."""
        self._draw("")
        self._out.write(f"{text}\n")
        self._out.flush()
        self._told = self._clock()

    def progress(self, text: str) -> None:
        """What goes on now, in place of what went on before; an empty text takes it away."""
        if self._rewrites:
            self._draw(text[: shutil.get_terminal_size().columns - 1])
            self._out.flush()
        elif text and self._clock() - self._told >= _SILENCE_SECONDS:
            self(text)

    def _draw(self, text: str) -> None:
        """Over what was drawn; without escape sequences, which some terminals do not know."""
        if self._drawn or text:
            self._out.write(f"\r{text.ljust(self._drawn)}" if text else f"\r{' ' * self._drawn}\r")
        self._drawn = len(text)


def attempts_in_words(done: int, wanted: int, seconds: float) -> str:
    """How far the attempts are after so many seconds, and how long they will take if they go on so."""
    left = f", about {seconds / done * (wanted - done):.0f} s left" if 0 < done < wanted else ""
    return f"{done} of {wanted} attempts{left}"
