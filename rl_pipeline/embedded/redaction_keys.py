"""The redaction keys of an embedded stack: made at its first start, kept in its home, readable by its owner alone."""

import secrets
from pathlib import Path

from rl_pipeline.embedded.secret_files import make_once

_FILES = {"redaction_key": "redaction.key", "edge_redaction_key": "redaction-edge.key"}


def make_redaction_keys(home: Path) -> None:
    """Make the keys that are missing; those that exist stay, because placeholders are only equal under one key."""
    for name in _FILES.values():
        make_once(home / name, lambda: f"v1:{secrets.token_hex(32)}")


def redaction_keys(home: Path) -> dict[str, str]:
    """The keys of the stack in `home`, as settings; nothing where there are none."""
    return {setting: path.read_text().strip() for setting, name in _FILES.items() if (path := home / name).is_file()}
