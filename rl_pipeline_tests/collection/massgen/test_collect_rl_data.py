"""The sample collector of MassGen's documentation, with an agent that says what it is told to."""

import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from rl_pipeline.collection.massgen.collect_rl_data import TASKS, main
from rl_pipeline_tests.collection.massgen.scenes import chunks, kept
from rl_pipeline_tests.collection.massgen.stand_ins import Backend, SingleAgent, StreamChunk

SCRIPT = Path(__file__).parents[3] / "scripts" / "collect_rl_data.py"


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, dict[str, Any]]]:
    """A MassGen that remembers which backends it made; one named `silent` only fails."""
    made: list[tuple[str, dict[str, Any]]] = []

    def create_backend(backend_type: str, **kwargs: Any) -> Backend:
        made.append((backend_type, kwargs))
        return Backend([StreamChunk("error", error="no key")] if backend_type == "silent" else [*chunks(str)])

    massgen, agents, commands = (ModuleType(name) for name in ("massgen", "massgen.chat_agent", "massgen.cli"))
    vars(agents)["SingleAgent"], vars(commands)["create_backend"] = SingleAgent, create_backend
    for module in (massgen, agents, commands):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    return made


def test_the_sample_tasks_become_traces_where_the_documentation_looks_for_them(
    tmp_path: Path, made: list[tuple[str, dict[str, Any]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main([]) == 0
    assert made == [("openai", {"model": "gpt-4o"})]
    assert len(list((tmp_path / "rl_data" / "traces").glob("*/my_agent/trace_*.json"))) == len(TASKS)
    traces = kept(tmp_path / "rl_data")
    assert {trace.task for trace in traces} == set(TASKS)
    assert {trace.status for trace in traces} == {"completed"}


def test_tasks_place_agent_and_model_can_be_named_and_a_failure_is_said(
    tmp_path: Path, made: list[tuple[str, dict[str, Any]]], capsys: pytest.CaptureFixture[str]
) -> None:
    options = [
        "--path",
        str(tmp_path),
        "--agent-id",
        "a",
        "--backend",
        "silent",
        "--model",
        "m",
        "--base-url",
        "http://x",
    ]
    assert main(["Why?", *options]) == 1
    assert made == [("silent", {"model": "m", "base_url": "http://x"})]
    assert "traces of 1 tasks" in capsys.readouterr().out
    [trace] = kept(tmp_path)
    assert (trace.agent_id, trace.task, trace.status) == ("a", "Why?", "failed")


def test_without_massgen_the_script_says_what_to_install(tmp_path: Path) -> None:
    outcome = subprocess.run([sys.executable, SCRIPT], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (outcome.returncode, "pip install massgen" in outcome.stderr) == (2, True)
    assert list(tmp_path.iterdir()) == []
