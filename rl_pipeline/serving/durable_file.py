"""Files that are there whole or not at all, and still there after a crash of the machine."""

import os
from pathlib import Path


def write_durably(path: Path, data: bytes) -> None:
    """Replace the file; it is on the disk when this returns. One writer at a time. Raises `OSError`."""
    unfinished = path.with_name(f".{path.name}.unfinished")
    with unfinished.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    unfinished.replace(path)
    directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
