"""Where conversations lie while a dataset is made: below the work directory of trainings, and not for longer.

Whoever is killed leaves files behind. `sweep` removes these, and nothing of whoever is still at work: a scratch
directory is locked by its owner, and the system takes a lock from the dead.
"""

import fcntl
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import NamedTemporaryFile

SCRATCH = ".curation"


@contextmanager
def scratch_below(work: Path) -> Iterator[Path]:
    """An empty directory that is gone at the end."""
    (work / SCRATCH).mkdir(parents=True, exist_ok=True)
    with NamedTemporaryFile(dir=work / SCRATCH, delete=False) as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        # It is seen by others only now that it is locked, and it outlives the directory.
        lock = Path(file.name).rename(f"{file.name}.lock")
        directory = lock.with_suffix("")
        try:
            directory.mkdir(mode=0o700)
            yield directory
        finally:
            shutil.rmtree(directory, ignore_errors=True)
            lock.unlink(missing_ok=True)


def sweep(work: Path) -> None:
    """Remove what was left by whoever has died."""
    for lock in sorted((work / SCRATCH).glob("*.lock")):
        # Somebody else may sweep at the same time, or be at work in it.
        with suppress(FileNotFoundError, BlockingIOError), lock.open("rb+") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(lock.with_suffix(""), ignore_errors=True)
            lock.unlink()
