"""The dashboards are what their program makes of them, and hold what the specification asks for."""

import importlib.util
import json
import re
from types import ModuleType
from typing import Any

import pytest

from rl_pipeline_tests.observability.scraping import DEPLOY


@pytest.fixture(scope="module")
def build() -> ModuleType:
    spec = importlib.util.spec_from_file_location("build_dashboards", DEPLOY / "grafana" / "build.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def pages() -> dict[str, dict[str, Any]]:
    found = [json.loads(file.read_text()) for file in (DEPLOY / "grafana" / "dashboards").glob("*.json")]
    return {page["title"]: page for page in found}


def test_the_files_are_what_the_program_writes(build: ModuleType) -> None:
    written = dict(build.files())
    assert set(written) == set((DEPLOY / "grafana" / "dashboards").glob("*.json"))
    for path, text in written.items():
        assert path.read_text() == text, f"{path.name} was edited: run python deploy/grafana/build.py"


@pytest.mark.parametrize(
    ("title", "rows"),
    [
        ("RL Training Overview", {"Collection", "Rewards", "Training jobs", "Resources"}),
        ("Model Performance", {"Rewards", "A/B results", "Errors", "Users"}),
        ("Deployment Health", {"Canary rollout", "Traffic", "Rollback history", "Validation"}),
    ],
)
def test_each_dashboard_has_what_the_specification_names(
    pages: dict[str, dict[str, Any]], title: str, rows: set[str]
) -> None:
    assert {panel["title"] for panel in pages[title]["panels"] if panel["type"] == "row"} == rows


def test_the_two_panels_of_the_quick_reference_are_there_as_written(pages: dict[str, dict[str, Any]]) -> None:
    def targets(page: str, title: str) -> list[tuple[str, str]]:
        (panel,) = [each for each in pages[page]["panels"] if each["title"] == title]
        return [(target["expr"], target["legendFormat"]) for target in panel["targets"]]

    assert targets("RL Training Overview", "Trajectories Collected (24h)") == [
        ("sum(increase(agent_rl_trajectories_collected_total[24h]))", "")
    ]
    assert targets("Model Performance", "Model Reward Over Time") == [
        ("agent_rl_model_reward_mean", "{{model_version}}")
    ]


def test_panels_lie_beside_each_other_and_are_numbered(pages: dict[str, dict[str, Any]]) -> None:
    for page in pages.values():
        numbers = [panel["id"] for panel in page["panels"]]
        assert len(set(numbers)) == len(numbers)
        taken: set[tuple[int, int]] = set()
        for panel in page["panels"]:
            place = panel["gridPos"]
            cells = {
                (x, y)
                for x in range(place["x"], place["x"] + place["w"])
                for y in range(place["y"], place["y"] + place["h"])
            }
            assert not cells & taken, panel["title"]
            assert place["x"] + place["w"] <= 24
            taken |= cells


def test_every_legend_names_labels_that_its_query_keeps(pages: dict[str, dict[str, Any]]) -> None:
    for page in pages.values():
        for panel in page["panels"]:
            for target in panel.get("targets", ()):
                named = set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))
                grouped = re.search(r"^(?:sum|max) by \(([^)]*)\)", target["expr"])
                if grouped:
                    assert named <= set(grouped[1].split(", ")), panel["title"]
