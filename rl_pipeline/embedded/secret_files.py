"""Secrets of an embedded stack: each in a file of its home, made once, for its owner alone."""

import os
from collections.abc import Callable
from pathlib import Path


def make_once(path: Path, make: Callable[[], str]) -> None:
    """Write what `make` returns, unless the file is there: what was made with an earlier secret needs that one."""
    if path.exists():
        return
    # Moved into place whole: a start that is killed here must not leave half a secret.
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(make())
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
