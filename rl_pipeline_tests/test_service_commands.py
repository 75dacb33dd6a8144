"""The commands of the HTTP service."""

import tomllib
from pathlib import Path

import pytest
from typer.testing import CliRunner

from rl_pipeline.cli import app
from rl_pipeline.errors import PipelineError
from rl_pipeline.service.keys import Keyring


def test_a_key_is_shown_once_and_its_entry_is_what_the_file_takes(tmp_path: Path) -> None:
    made = CliRunner().invoke(app, ["service-key", "dashboard", "--scope", "read", "--scope", "traces", "--days", "30"])
    assert made.exit_code == 0
    key = made.stderr.strip()
    assert key not in made.stdout
    entry = tomllib.loads(made.stdout)["keys"][0]
    assert (entry["name"], entry["scopes"]) == ("dashboard", ["read", "traces"])
    file = tmp_path / "keys.toml"
    file.write_text(made.stdout)
    assert Keyring(None, file).holder(key).name == "dashboard"


@pytest.mark.parametrize(
    "arguments", [["a", "--scope", "everything"], ['a"b', "--scope", "read"], ["admin", "--scope", "read"]]
)
def test_a_key_that_no_file_could_hold_is_not_made(arguments: list[str]) -> None:
    refused = CliRunner().invoke(app, ["service-key", *arguments])
    assert isinstance(refused.exception, PipelineError)
    assert refused.stdout == ""


def test_a_service_without_a_key_does_not_start(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("RL_PIPELINE_HOME", str(tmp_path))
    refused = CliRunner().invoke(app, ["service", "--port", "0"])
    assert isinstance(refused.exception, PipelineError)
    assert "AGENTGYM_RL_API_KEY" in str(refused.exception)
