"""The mixins with the classes and chunks of the released MassGen, in an environment of its own: it pins other versions.

`RL_PIPELINE_MASSGEN_PYTHON` names a Python in which MassGen and this project are installed; else the environment is
made, which takes minutes.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rl_pipeline.collection.formats import Importer
from rl_pipeline.collection.massgen import LightningStore, StoreConfig, Trace
from rl_pipeline_tests.collection.massgen.conftest import PYTHON_WITH_MASSGEN

PROJECT = Path(__file__).parents[3]
PROGRAM = Path(__file__).with_name("released_massgen_program.py")
RELEASE = "massgen==0.1.97"

pytestmark = [pytest.mark.soak, pytest.mark.timeout(3600)]


@pytest.fixture(scope="module")
def python_with_massgen(tmp_path_factory: pytest.TempPathFactory) -> Path:
    named = os.environ.get(PYTHON_WITH_MASSGEN)
    if named:
        return Path(named)
    directory = tmp_path_factory.mktemp("massgen")
    subprocess.run([sys.executable, "-m", "venv", directory], check=True)
    python = directory / "bin" / "python"
    subprocess.run([python, "-m", "pip", "install", "--quiet", RELEASE, PROJECT], check=True)
    return python


@pytest.fixture(scope="module")
def outcome(python_with_massgen: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], Path]:
    """What the program saw, and where its traces are."""
    work = tmp_path_factory.mktemp("work")
    command = [python_with_massgen, "-W", "ignore", PROGRAM, work / "rl_data"]
    ran = subprocess.run(command, cwd=work, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr[-4000:]
    return json.loads(ran.stdout.splitlines()[-1]), work / "rl_data"


def traces(directory: Path, agent: str) -> list[Trace]:
    return LightningStore(StoreConfig(path=str(directory))).query(agent_id=agent)


def test_the_released_agent_yields_what_it_yielded_and_is_recorded(
    outcome: tuple[dict[str, Any], Path], record_property: Callable[[str, object], None]
) -> None:
    told, directory = outcome
    record_property("massgen", told["version"])
    assert told["version"] == RELEASE.partition("==")[2]
    assert told["recorded"] == told["plain"]
    [trace] = traces(directory, "single")
    thought, prompt, search, reward, answer, _ = trace.to_dict()["spans"]
    assert thought["reasoning"] == "Look it up."
    assert (prompt["model"], prompt["input_tokens"]) == ("scripted-1", 30)
    assert (search["tool_name"], search["arguments"], search["result"]) == ("search", {"q": "moons"}, "two")
    assert (reward["reward"], answer["content"]) == (1.0, "It has two.")
    [early] = traces(directory, "early")
    assert early.status == "abandoned"


def test_the_released_orchestrator_is_recorded_through_its_tracker(outcome: tuple[dict[str, Any], Path]) -> None:
    told, directory = outcome
    assert {"new_answer", "vote_cast", "restart_triggered", "final_answer"} <= set(told["events"])
    [trace] = traces(directory, "orchestrator")
    spans = trace.to_dict()["spans"]
    acts = [one["action_type"] for one in spans if one["span_type"] == "coordination"]
    assert acts.count("answer") == told["events"].count("new_answer")
    assert acts.count("vote") == told["events"].count("vote_cast")
    assert acts.count("restart") == told["events"].count("restart_triggered")
    rewards = {one["reward_type"] for one in spans if one["span_type"] == "reward"}
    assert rewards == {"coordination", "voting", "restart"}
    assert (trace.metadata["winner"], trace.metadata["consensus"], trace.status) == ("a", True, "completed")
    for agent in ("a", "b"):
        assert {one.metadata["parent_trace_id"] for one in traces(directory, agent)} == {trace.trace_id}


def test_what_the_released_massgen_did_is_imported_whole(outcome: tuple[dict[str, Any], Path]) -> None:
    _, directory = outcome
    refused: list[Any] = []
    found = [one.trajectory for one in Importer(refuse=refused.append).trajectories([directory])]
    kept = LightningStore(StoreConfig(path=str(directory))).query()
    with_acts = {trace.trace_id for trace in kept if {span.span_type for span in trace.spans} - {"reasoning"}}
    assert {trajectory.trajectory_id for trajectory in found} == with_acts
    assert len(refused) == len(kept) - len(with_acts)
