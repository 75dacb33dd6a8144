"""The key of an embedded stack's HTTP service: made at its first start, in its home, for its owner alone."""

import secrets
from pathlib import Path

from rl_pipeline.embedded.secret_files import make_once

_FILE = "service-api.key"


def make_service_key(home: Path) -> None:
    """Make it if it is missing; one that exists stays, because callers have it."""
    make_once(home / _FILE, lambda: secrets.token_urlsafe(32))


def service_key(home: Path) -> dict[str, str]:
    """The key of the stack in `home`, as a setting; nothing where there is none."""
    path = home / _FILE
    return {"agentgym_rl_api_key": path.read_text().strip()} if path.is_file() else {}
