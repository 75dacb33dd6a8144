"""Real public trajectories: all of them import, and a round trip loses nothing."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from rl_pipeline.collection.formats import FORMATS, Imported, Importer, export_trajectories
from rl_pipeline.contracts import serialize
from rl_pipeline_tests.collection.formats.test_round_trips import plain, without_carried, written


@pytest.fixture(scope="module")
def examples(test_data: Path) -> list[Imported]:
    refused: list[Any] = []
    importer = Importer(refuse=refused.append)
    found = list(importer.trajectories([test_data / "trajectories"]))
    assert refused == []
    assert importer.report.passed_over == []
    return found


def tree_of(found: Imported) -> dict[str, Any]:
    tree: dict[str, Any] = json.loads(serialize(found.trajectory))
    return tree


def test_all_of_them_import_each_under_its_own_id(examples: list[Imported]) -> None:
    counts = Counter(found.format_name for found in examples)
    assert counts >= Counter({"tau-bench": 60, "intercode": 177, "fireact": 120, "swe-agent": 5})
    assert len({found.trajectory.trajectory_id for found in examples}) == len(examples)


def test_they_tell_how_they_ended_and_who_played(examples: list[Imported]) -> None:
    for found in examples:
        if found.format_name != "swe-agent":
            assert found.trajectory.task_context.task_status is not None
            assert found.trajectory.metadata.model != "unknown"
        assert found.trajectory.task_context.instructions
        assert found.trajectory.task_context.group_id


def test_trials_of_one_task_are_a_group(examples: list[Imported]) -> None:
    groups = Counter(found.trajectory.task_context.group_id for found in examples if found.format_name == "tau-bench")
    assert set(groups.values()) == {4}


def test_what_is_written_again_is_the_record_as_it_was(examples: list[Imported]) -> None:
    for found in examples:
        assert without_carried(written(found.format_name, tree_of(found))) == plain(found.record)


@pytest.mark.parametrize("name", ["tau-bench", "intercode", "fireact", "swe-agent"])
def test_files_that_are_exported_import_as_the_same_trajectories(
    examples: list[Imported], name: str, tmp_path: Path
) -> None:
    trees = {found.trajectory.trajectory_id: tree_of(found) for found in examples if found.format_name == name}
    out = tmp_path / f"out{'' if FORMATS[name].layout == 'files' else FORMATS[name].suffix}"
    export_trajectories(trees.values(), FORMATS[name], out)
    again = Importer(refuse=lambda refusal: pytest.fail(refusal.detail)).trajectories([out])
    assert {found.trajectory.trajectory_id: tree_of(found) for found in again} == trees


@pytest.mark.parametrize("into", sorted(FORMATS))
def test_every_format_takes_all_of_them(examples: list[Imported], into: str, tmp_path: Path) -> None:
    trees = [tree_of(found) for found in examples]
    out = tmp_path / f"out{'' if FORMATS[into].layout == 'files' else FORMATS[into].suffix}"
    assert export_trajectories(trees, FORMATS[into], out) == len(trees)
    again = Importer(refuse=lambda refusal: pytest.fail(refusal.detail)).trajectories([out])
    assert {found.trajectory.trajectory_id for found in again} == {tree["trajectory_id"] for tree in trees}
