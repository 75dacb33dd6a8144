"""`rl-pipeline import` and `export`, as people use them, on real servers."""

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from rl_pipeline.cli import main
from rl_pipeline.collection.formats import FORMATS, Importer
from rl_pipeline.embedded.nats_server import NatsServer
from rl_pipeline.stores.clickhouse import ClickHouseWarehouse
from rl_pipeline.stores.jetstream import JetStream
from rl_pipeline_tests.collection.formats import records
from rl_pipeline_tests.fixtures.ingest import REDACTION_KEY

STREAM = "RL_TRAJECTORIES"
CHAT = {
    "messages": [{"role": "user", "content": "Write to ann@mail.example."}, {"role": "assistant", "content": "Yes."}]
}

Run = Callable[..., "Outcome"]


@dataclass(frozen=True)
class Outcome:
    """How a command ended, and what it said."""

    returncode: int
    stdout: str
    stderr: str


@pytest.fixture
def run(
    *,
    tmp_path: Path,
    nats_server: NatsServer,
    stream: JetStream,
    clickhouse_url: str,
    warehouse: ClickHouseWarehouse,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Run:
    variables = {
        "RL_PIPELINE_HOME": str(tmp_path / "home"),
        "NATS_URL": nats_server.url,
        "CLICKHOUSE_URL": clickhouse_url,
        "CLICKHOUSE_DATABASE": warehouse.database,
        "TRAJECTORY_STORAGE_PATH": str(tmp_path / "objects"),
        "REDACTION_KEY": REDACTION_KEY,
        "EDGE_REDACTION_KEY": "v1:a-key-of-the-edge-that-protects-nothing",
    }

    def command(*arguments: object) -> Outcome:
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr(sys, "argv", ["rl-pipeline", *map(str, arguments)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main()
        return Outcome(int(ended.value.code or 0), *capsys.readouterr())

    return command


def written(path: Path, *values: Any) -> Path:
    path.write_text("".join(f"{value if isinstance(value, str) else json.dumps(value)}\n" for value in values))
    return path


def test_an_import_publishes_redacted_once_and_keeps_what_it_refuses(
    run: Run, stream: JetStream, tmp_path: Path
) -> None:
    file = written(tmp_path / "chats.jsonl", CHAT, {"messages": []}, records.TAU, "{")
    first = run("import", file)
    assert first.returncode == 0, first.stderr
    assert "published 2 trajectories; 0 were there already" in first.stdout
    assert "trajectories: 1 openai-messages, 1 tau-bench" in first.stdout
    assert "chats.jsonl, line 4: it is no JSON" in first.stdout
    assert len((tmp_path / "refused.jsonl").read_text().splitlines()) == 2
    assert "0 trajectories; 2 were there already" in run("import", file).stdout
    assert stream.state(STREAM).messages == 2
    message = stream.get(STREAM, 1)
    assert b"ann@mail.example" not in message.data
    assert b"Write to" in message.data


def test_a_dry_run_changes_nothing(run: Run, stream: JetStream, tmp_path: Path) -> None:
    file = written(tmp_path / "chats.jsonl", CHAT, "{")
    outcome = run("import", "--dry-run", file)
    assert (outcome.returncode, stream.state(STREAM).messages) == (0, 0)
    assert "would publish 1 trajectories" in outcome.stdout
    assert "refused: 1 not_json" in outcome.stdout
    assert not (tmp_path / "refused.jsonl").exists()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["import", "nothing.jsonl"], "name files or directories"),
        (["import", "--format", "cobol", "."], "name one of atif, fireact"),
        (["export", "out", "--format", "cobol", "--day", "2026-01-31"], "name one of atif, fireact"),
        (["export", "out", "--format", "atif", "--day", "2026-01-31"], "name other days or fewer conditions"),
    ],
)
def test_a_mistake_is_one_line_that_says_what_to_do(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    outcome = run(*arguments)
    assert outcome.returncode == 1
    assert outcome.stderr.startswith("rl-pipeline: ")
    assert len(outcome.stderr.splitlines()) == 1
    assert said in outcome.stderr


def test_nothing_imported_is_an_error(run: Run, tmp_path: Path) -> None:
    outcome = run("import", written(tmp_path / "chats.jsonl", "{"))
    assert outcome.returncode == 1
    assert "nothing was imported" in outcome.stderr


def test_what_was_ingested_is_exported_by_day_and_condition_and_imports_again(
    run: Run, warehouse: ClickHouseWarehouse, tmp_path: Path
) -> None:
    file = written(tmp_path / "mixed.jsonl", CHAT, records.TAU, records.ATIF)
    assert run("import", file).returncode == 0
    assert run("ingest").returncode == 0
    # The stream's day, also where midnight passes meanwhile.
    now = datetime.now(UTC)
    days = ["--day", f"{now - timedelta(days=1):%Y-%m-%d}", "--to", f"{now:%Y-%m-%d}"]
    ids = set(warehouse.query("SELECT trajectory_id FROM trajectories FINAL")["trajectory_id"])
    for name, known in FORMATS.items():
        out = tmp_path / f"{name}{'' if known.layout == 'files' else known.suffix}"
        outcome = run("export", out, "--format", name, *days)
        assert "wrote 3 trajectories" in outcome.stdout, outcome.stderr
        again = Importer(refuse=lambda refusal: pytest.fail(refusal.detail)).trajectories([out])
        assert {found.trajectory.trajectory_id for found in again} == ids
    taken = run("export", tmp_path / "tau-bench.json", "--format", "tau-bench", *days)
    assert "is there already" in taken.stderr
    for condition, value, count in (("agent", "terminus", 1), ("status", "success", 1), ("limit", "2", 2)):
        outcome = run("export", tmp_path / condition, "--format", "atif", *days, f"--{condition}", value)
        assert f"wrote {count} trajectories" in outcome.stdout


def test_suspicious_trajectories_are_not_exported(run: Run, warehouse: ClickHouseWarehouse, tmp_path: Path) -> None:
    run("import", written(tmp_path / "chats.jsonl", CHAT))
    run("ingest")
    warehouse.execute(
        "INSERT INTO suspicious_trajectories (trajectory_id, version, problem) "
        "SELECT trajectory_id, version, 'EMAIL' FROM trajectories FINAL"
    )
    now = datetime.now(UTC)
    days = ["--day", f"{now - timedelta(days=1):%Y-%m-%d}", "--to", f"{now:%Y-%m-%d}"]
    assert run("export", tmp_path / "out", "--format", "atif", *days).returncode == 1
