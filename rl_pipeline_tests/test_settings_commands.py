"""The reference of settings says what the settings are, and nobody is shown a secret."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from rl_pipeline.cli import app
from rl_pipeline.settings import Settings
from rl_pipeline.settings_commands import reference_page, sections

REFERENCE = Path(__file__).parent.parent / "docs" / "settings.md"


def test_the_reference_in_the_docs_is_what_the_settings_make() -> None:
    assert REFERENCE.read_text() == reference_page(), "run `rl-pipeline settings --reference > docs/settings.md`"


def test_every_setting_is_in_the_reference_once_under_a_heading() -> None:
    named = [name for names in sections(Settings).values() for name in names]
    assert sorted(named) == sorted(Settings.model_fields)
    assert "" not in sections(Settings)


def test_values_and_bounds_are_told() -> None:
    lines = {line.split("`")[1]: line for line in reference_page().splitlines() if line.startswith("| `")}
    assert "`evidence`, `literal`" in lines["ROLLOUT_RULE"]
    assert "≥ 1; ≤ 65535" in lines["RL_PIPELINE_UI_PORT"]
    assert "secret" in lines["NATS_PASSWORD"]
    assert "| `500` | ≥ 1 |" in lines["INGEST_PENDING"]


def test_what_is_set_is_shown_and_no_secret_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("RL_PIPELINE_HOME", str(tmp_path))
    monkeypatch.setenv("INGEST_PENDING", "7")
    monkeypatch.setenv("TENSORZERO_ADMIN_TOKEN", "hunter2")
    shown = CliRunner().invoke(app, ["settings"])
    assert shown.exit_code == 0
    assert shown.output.splitlines() == [
        "INGEST_PENDING=7",
        f"RL_PIPELINE_HOME={tmp_path}",
        "TENSORZERO_ADMIN_TOKEN=(secret)",
    ]
