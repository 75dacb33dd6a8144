"""What the profile of the `rl-trainer` names is there: its phases, its tools, its subjects, its endpoints."""

import re
from importlib.resources import files

import pytest

from rl_pipeline import trainer_tools
from rl_pipeline.contracts.registry import TOPICS
from rl_pipeline.service.app import build_app
from rl_pipeline.service_commands import configured
from rl_pipeline.settings import load_settings

ROLE = (
    files("rl_pipeline.collection.agent_zero")
    .joinpath("plugin/agents/rl-trainer/prompts/agent.system.main.role.md")
    .read_text()
)


def test_it_goes_through_six_phases() -> None:
    phases = re.findall(r"^#### (\d)\. (\w+) \w+ Phase$", ROLE, re.MULTILINE)
    assert [int(number) for number, _ in phases] == [1, 2, 3, 4, 5, 6]


def test_every_subject_it_names_has_a_contract() -> None:
    assert set(re.findall(r"agent\.rl\.[a-z.]+\.v1", ROLE)) == set(TOPICS)


def test_every_tool_it_calls_is_one_of_its_tools() -> None:
    section = ROLE[ROLE.index("### Tool Usage Specialization") : ROLE.index("### Integration Points")]
    called = set(re.findall(r"^(?:\w+ = )?(\w+)\(", section, re.MULTILINE))
    assert len(called) >= 7
    assert called <= set(trainer_tools.__all__)


def test_every_endpoint_of_the_service_that_it_calls_is_a_route(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENTGYM_RL_API_KEY", "key")
    document = build_app(configured(load_settings(), host="127.0.0.1", port=0)).openapi()
    called = set(re.findall(r"http://agentgym-rl:8100(/[\w/{}]+)", ROLE))
    assert called == {"/health", "/training/start", "/training/{job_id}/status", "/models"}
    assert called <= set(document["paths"])
