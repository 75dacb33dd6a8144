"""The signing key of an embedded stack."""

from pathlib import Path

from rl_pipeline.embedded.signing_keys import make_signing_key, signing_keys
from rl_pipeline.settings import Settings
from rl_pipeline.training.checkpoints.signing import PublicKeys, SigningKey


def test_the_key_is_made_once_for_its_owner_alone(tmp_path: Path) -> None:
    assert signing_keys(tmp_path) == {}
    make_signing_key(tmp_path)
    keys = signing_keys(tmp_path)
    make_signing_key(tmp_path)
    assert signing_keys(tmp_path) == keys
    assert [path.stat().st_mode & 0o777 for path in tmp_path.iterdir()] == [0o600]


def test_the_stack_trusts_its_own_signatures_by_its_settings(tmp_path: Path) -> None:
    make_signing_key(tmp_path)
    settings = Settings(**signing_keys(tmp_path))
    assert settings.checkpoint_signing_key
    assert settings.checkpoint_public_keys
    key = SigningKey.parse(settings.checkpoint_signing_key.get_secret_value())
    assert PublicKeys.parse(settings.checkpoint_public_keys).verify(b"manifest", key.sign(b"manifest")) == key.key_id
