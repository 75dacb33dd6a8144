"""The secrets of an embedded gateway."""

import stat
from pathlib import Path

from rl_pipeline.embedded.gateway_secrets import gateway_secrets, make_gateway_secrets
from rl_pipeline.redaction.policy import RedactionKey


def test_they_are_made_once_and_stay(tmp_path: Path) -> None:
    assert gateway_secrets(tmp_path) == {}
    make_gateway_secrets(tmp_path)
    made = gateway_secrets(tmp_path)
    make_gateway_secrets(tmp_path)
    assert gateway_secrets(tmp_path) == made
    assert len(made["tensorzero_admin_token"]) >= 32
    assert len(RedactionKey.parse(made["gateway_session_key"]).secret) == 32


def test_only_their_owner_may_read_them(tmp_path: Path) -> None:
    make_gateway_secrets(tmp_path)
    assert [stat.S_IMODE(file.stat().st_mode) for file in tmp_path.iterdir()] == [0o600, 0o600]
