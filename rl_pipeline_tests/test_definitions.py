"""What the code location promises."""

import subprocess
import sys
from pathlib import Path

import dagster as dg
import pytest

from rl_pipeline.definitions import build_definitions
from rl_pipeline.settings import SettingsError

PROJECT = Path(__file__).parent.parent


def test_dagster_validates_the_code_location(tmp_path: Path) -> None:
    outcome = subprocess.run(
        [Path(sys.executable).with_name("dagster"), "definitions", "validate", "--workspace", "workspace.yaml"],
        cwd=PROJECT,
        env={"DAGSTER_HOME": str(tmp_path), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert outcome.returncode == 0, outcome.stderr
    assert "Validation successful" in outcome.stdout + outcome.stderr


def test_the_lineage_starts_at_the_stream_which_dagster_never_writes() -> None:
    [stream] = build_definitions().resolve_asset_graph().external_asset_keys
    assert stream == dg.AssetKey("trajectory_stream")


def test_tests_can_replace_any_resource() -> None:
    stand_in = object()
    assert build_definitions({"stream": stand_in}).resources["stream"] is stand_in


def test_secrets_of_the_environment_never_reach_what_the_ui_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NATS_USER", "ingest")
    monkeypatch.setenv("NATS_PASSWORD", "hunter2")
    monkeypatch.setenv("CLICKHOUSE_PASSWORD", "hunter2")
    resources = build_definitions().resources or {}
    shown = [str(resource) + str(resource._get_non_default_public_field_values()) for resource in resources.values()]
    assert "hunter2" not in "".join(shown)
    assert "NATS_PASSWORD" in "".join(shown)


def test_the_instance_file_at_the_root_is_the_one_that_up_uses() -> None:
    assert (PROJECT / "dagster.yaml").samefile(PROJECT / "rl_pipeline" / "embedded" / "dagster.yaml")


def test_a_person_is_asked_about_unprobed_rewards_unless_the_deployment_accepts_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert (build_definitions().resources or {})["deployment"].unprobed == "ask"
    monkeypatch.setenv("VALIDATION_UNPROBED", "accept")
    assert (build_definitions().resources or {})["deployment"].unprobed == "accept"
    monkeypatch.setenv("VALIDATION_UNPROBED", "never mind")
    with pytest.raises(SettingsError, match="VALIDATION_UNPROBED"):
        build_definitions()
