"""The keys of an embedded stack."""

from pathlib import Path

from rl_pipeline.embedded.redaction_keys import make_redaction_keys, redaction_keys
from rl_pipeline.redaction.policy import RedactionKey


def test_keys_are_made_once_for_their_owner_alone(tmp_path: Path) -> None:
    assert redaction_keys(tmp_path) == {}
    make_redaction_keys(tmp_path)
    keys = redaction_keys(tmp_path)
    make_redaction_keys(tmp_path)
    assert redaction_keys(tmp_path) == keys
    assert set(keys) == {"redaction_key", "edge_redaction_key"}
    assert [path.stat().st_mode & 0o777 for path in tmp_path.iterdir()] == [0o600, 0o600]


def test_ingest_and_agents_have_different_keys_of_full_strength(tmp_path: Path) -> None:
    make_redaction_keys(tmp_path)
    ingest, edge = (RedactionKey.parse(key) for key in redaction_keys(tmp_path).values())
    assert ingest.secret != edge.secret
    assert (len(ingest.secret), len(edge.secret)) == (32, 32)
