"""The key with which an embedded stack signs its checkpoints: made at its first start, kept in its home, for its owner
alone."""

from pathlib import Path

from rl_pipeline.embedded.secret_files import make_once
from rl_pipeline.training.checkpoints.signing import SigningKey, new_signing_key

_FILE = "checkpoint-signing.key"


def make_signing_key(home: Path) -> None:
    """Make the key if there is none; one that exists stays, because checkpoints were signed with it."""
    make_once(home / _FILE, lambda: new_signing_key().as_text())


def signing_keys(home: Path) -> dict[str, str]:
    """The key of the stack in `home` and its public half, as settings; nothing where there is none."""
    path = home / _FILE
    if not path.is_file():
        return {}
    key = SigningKey.parse(path.read_text())
    return {"checkpoint_signing_key": key.as_text(), "checkpoint_public_keys": key.public_text()}
