"""The secrets of an embedded gateway: the token of its admin API, and the key under which it stores sessions.

Made at the stack's first start, for its owner alone.
"""

import secrets
from pathlib import Path

from rl_pipeline.embedded.secret_files import make_once

_FILES = {"tensorzero_admin_token": "gateway-admin.token", "gateway_session_key": "gateway-session.key"}


def make_gateway_secrets(home: Path) -> None:
    """Make those that are missing; a key that exists stays, because sessions are stored under it."""
    make_once(home / _FILES["tensorzero_admin_token"], lambda: secrets.token_urlsafe(32))
    make_once(home / _FILES["gateway_session_key"], lambda: f"v1:{secrets.token_hex(32)}")


def gateway_secrets(home: Path) -> dict[str, str]:
    """The secrets of the stack in `home`, as settings; nothing where there are none."""
    return {setting: path.read_text() for setting, name in _FILES.items() if (path := home / name).is_file()}
