"""The key with which an embedded stack signs its checkpoints: made at its first start, kept in its home, for its owner
alone."""

import os
from pathlib import Path

from rl_pipeline.training.signing import SigningKey, new_signing_key

_FILE = "checkpoint-signing.key"


def make_signing_key(home: Path) -> None:
    """Make the key if there is none; one that exists stays, because checkpoints were signed with it."""
    path = home / _FILE
    if path.exists():
        return
    # Moved into place whole: a start that is killed here must not leave half a key.
    temporary = home / f".{_FILE}.{os.getpid()}"
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(new_signing_key().as_text())
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


def signing_keys(home: Path) -> dict[str, str]:
    """The key of the stack in `home` and its public half, as settings; nothing where there is none."""
    path = home / _FILE
    if not path.is_file():
        return {}
    key = SigningKey.parse(path.read_text())
    return {"checkpoint_signing_key": key.as_text(), "checkpoint_public_keys": key.public_text()}
