"""Which suites a model is validated by."""

import shutil
from pathlib import Path

import pytest

from rl_pipeline.environments.crafting import CraftingWorld
from rl_pipeline.environments.reasoning import ReasoningGymWorld
from rl_pipeline.validation.suite import BENCHMARKS, SAFETY, UnknownSuite
from rl_pipeline.validation.suites.choosing import suites_for
from rl_pipeline.validation.suites.embedded import embedded_suites
from rl_pipeline.validation.suites.general_language import DIRECTORY, general_suites
from rl_pipeline.validation.suites.questions import question_suites


def items(suites: list) -> dict[str, list[str]]:  # type: ignore[type-arg]
    return {suite.name: [item.id for item in suite.items] for suite in suites}


def test_a_model_is_asked_about_what_it_can_know() -> None:
    assert items(suites_for(CraftingWorld(), None, items=40)) == items(embedded_suites(items=40))
    assert items(suites_for(None, None, items=40)) == items(general_suites())
    sums = ReasoningGymWorld("chain_sum", {"max_terms": 2})
    assert items(suites_for(sums, None, items=40)) == items(question_suites(sums, items=40))
    assert items(suites_for(CraftingWorld(), None, items=40)).keys() == {*BENCHMARKS, *SAFETY}


def test_a_file_of_ones_own_takes_the_place_of_the_suite_that_it_is_named_for(tmp_path: Path) -> None:
    lines = (DIRECTORY / "data_analysis.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "data_analysis.jsonl").write_text("".join(lines[:21]))
    (tmp_path / "README.md").write_text("not a suite")
    chosen, shipped = items(suites_for(CraftingWorld(), tmp_path, items=40)), items(general_suites())
    assert chosen.pop("data_analysis") == shipped.pop("data_analysis")[:21]
    assert chosen == shipped, "whatever the model is, the rest is general"


def test_a_file_that_is_named_for_no_suite_is_not_left_out_quietly(tmp_path: Path) -> None:
    shutil.copy(DIRECTORY / "data_analysis.jsonl", tmp_path / "data-analysis.jsonl")
    with pytest.raises(UnknownSuite, match=r"data-analysis.jsonl in .* is no suite: name files code_generation, "):
        suites_for(None, tmp_path, items=40)


def test_a_directory_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(UnknownSuite, match="correct VALIDATION_SUITES"):
        suites_for(None, tmp_path / "nowhere", items=40)
