"""The redaction keys of an embedded stack: made at its first start, kept in its home, readable by its owner alone."""

import os
import secrets
from pathlib import Path

_FILES = {"redaction_key": "redaction.key", "edge_redaction_key": "redaction-edge.key"}


def make_redaction_keys(home: Path) -> None:
    """Make the keys that are missing; those that exist stay, because placeholders are only equal under one key."""
    for name in _FILES.values():
        path = home / name
        if path.exists():
            continue
        # Linked into place whole: a start that is killed here must not leave half a key.
        temporary = home / f".{name}.{os.getpid()}"
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(f"v1:{secrets.token_hex(32)}")
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)


def redaction_keys(home: Path) -> dict[str, str]:
    """The keys of the stack in `home`, as settings; nothing where there are none."""
    return {setting: path.read_text().strip() for setting, name in _FILES.items() if (path := home / name).is_file()}
