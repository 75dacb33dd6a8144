"""Checkpoints that are whole or not there. Kills, corruptions and full disks are in `test_checkpoint_faults.py`."""

import os
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rl_pipeline.training.checkpoints.manifest import (
    MANIFEST,
    SIGNATURE,
    CheckpointCorrupt,
    CheckpointFile,
    InvalidCheckpoint,
    parse_manifest,
    write_manifest,
)
from rl_pipeline.training.checkpoints.storage import (
    amend,
    begin,
    commit,
    newest_verified,
    prune,
    saving,
    staging_of,
    state_directory,
    states,
    verify,
)

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)


def meta(step: int = 1, **more: Any) -> dict[str, Any]:
    return {"job_id": "job-1", "step": step, "created": NOW, **more}


def save(checkpoints: Path, step: int, text: str = "weights") -> Path:
    target = state_directory(checkpoints, step)
    with saving(target, meta(step)) as staging:
        (staging / "optimizer").mkdir()
        (staging / "model.safetensors").write_text(f"{text} of {step}")
        (staging / "optimizer" / "rank_0.pt").write_text(f"moments of {step}")
    return target


def names(directory: Path) -> set[str]:
    return {path.name for path in directory.iterdir()}


def test_a_saved_state_is_found_and_verified_with_what_was_said_of_it(tmp_path: Path) -> None:
    target = state_directory(tmp_path / "checkpoints", 12)
    with saving(target, meta(12, metrics={"loss": 0.5, "kl": float("nan")}, dataset="d.r1")) as staging:
        (staging / "a").write_bytes(b"abc")
    manifest = verify(target)
    assert newest_verified(target.parent) == target
    assert (manifest.meta.job_id, manifest.meta.step, manifest.meta.created) == ("job-1", 12, NOW)
    assert manifest.meta.metrics == {"loss": 0.5, "kl": None}
    assert manifest.meta.model_extra == {"dataset": "d.r1"}
    assert manifest.files["a"].size == 3
    assert manifest.files["a"].sha256 == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    assert names(target.parent) == {"step-00000012"}


def test_nothing_is_to_be_seen_before_the_commit(tmp_path: Path) -> None:
    target = state_directory(tmp_path, 1)
    staging = begin(target)
    (staging / "a").write_text("a")
    assert states(tmp_path) == []
    assert staging == staging_of(target)
    commit(staging, target, meta())
    assert states(tmp_path) == [target]


def test_a_save_that_fails_leaves_what_was_there(tmp_path: Path) -> None:
    target = save(tmp_path, 1)
    with pytest.raises(ZeroDivisionError), saving(target, meta()) as staging:
        (staging / "a").write_text(str(1 / 0))
    assert newest_verified(tmp_path) == target
    assert names(tmp_path) == {target.name}


def test_a_state_saved_again_replaces_the_first(tmp_path: Path) -> None:
    save(tmp_path, 1, "first")
    target = save(tmp_path, 1, "second")
    assert (target / "model.safetensors").read_text() == "second of 1"
    assert verify(target)
    assert names(tmp_path) == {target.name}


def test_a_save_starts_without_what_a_killed_one_left(tmp_path: Path) -> None:
    staging = begin(state_directory(tmp_path, 1))
    (staging / "half").write_text("")
    assert list(begin(state_directory(tmp_path, 1)).iterdir()) == []


@pytest.mark.parametrize(
    "spoil",
    [
        lambda _: None,
        lambda staging: (staging / "link").symlink_to("/etc/passwd"),
        lambda staging: (staging / "directory").symlink_to("/etc"),
        lambda staging: os.mkfifo(staging / "pipe"),
        lambda staging: (staging / "two\nlines").write_text(""),
        lambda staging: (staging / "back\\slash").write_text(""),
        lambda staging: (staging / SIGNATURE).write_text(""),
    ],
    ids=["nothing", "link", "linked directory", "pipe", "line break", "backslash", "signature"],
)
def test_what_cannot_be_a_checkpoint_is_refused(tmp_path: Path, spoil: Callable[[Path], object]) -> None:
    target = state_directory(tmp_path, 1)
    with pytest.raises(InvalidCheckpoint), saving(target, meta()) as staging:
        spoil(staging)
    assert states(tmp_path) == []


@pytest.mark.parametrize(
    "wrong",
    [{"step": -1}, {"created": datetime(2026, 3, 1)}, {"job_id": ""}, {"metrics": {"loss": "low"}}, {"more": object()}],  # noqa: DTZ001
    ids=lambda wrong: next(iter(wrong)),
)
def test_a_checkpoint_says_what_it_is_or_is_refused(tmp_path: Path, wrong: dict[str, Any]) -> None:
    with (
        pytest.raises(InvalidCheckpoint, match=r"meta needs other"),
        saving(tmp_path / "final", meta() | wrong) as staging,
    ):
        (staging / "a").write_text("a")


SPOILT: dict[str, tuple[Callable[[Path], object], str]] = {
    "truncated": (lambda state: os.truncate(state / "model.safetensors", 3), "'model.safetensors' does not have its"),
    "changed": (lambda state: (state / "model.safetensors").write_text("Weights of 1"), "does not match its sha256"),
    "missing": (lambda state: (state / "optimizer" / "rank_0.pt").unlink(), "'optimizer/rank_0.pt' is missing"),
    "added": (lambda state: (state / "pytorch_model.bin").write_text(""), "'pytorch_model.bin' is not in the manifest"),
    "hidden": (lambda state: (state / ".hidden").write_text(""), "'.hidden' is not in the manifest"),
    "linked": (lambda state: _link_outside(state / "model.safetensors"), "'model.safetensors' is not a plain file"),
    "no manifest": (lambda state: (state / MANIFEST).unlink(), "manifest.json is missing"),
    "not JSON": (lambda state: (state / MANIFEST).write_text("{"), "manifest.json cannot be read"),
    "no object": (lambda state: (state / MANIFEST).write_text("[]"), "manifest.json cannot be read"),
    "a step more": (lambda state: _replace(state / MANIFEST, '"step": 1', '"step": 2'), "manifest.json was changed"),
    "a space": (lambda state: _replace(state / MANIFEST, "{\n", "{ \n"), "manifest.json was changed"),
}


def _link_outside(path: Path) -> None:
    outside = path.parent.parent / "outside"
    path.rename(outside)
    path.symlink_to(outside)


def _replace(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


@pytest.mark.parametrize(("spoil", "problem"), SPOILT.values(), ids=SPOILT)
def test_verification_names_what_is_wrong(tmp_path: Path, spoil: Callable[[Path], object], problem: str) -> None:
    state = save(tmp_path / "checkpoints", 1)
    spoil(state)
    with pytest.raises(CheckpointCorrupt, match=problem) as caught:
        verify(state)
    assert str(state) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.fixture(scope="module")
def intact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save(tmp_path_factory.mktemp("checkpoints"), 1)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_no_changed_byte_goes_unseen(intact: Path, data: st.DataObject) -> None:
    path = data.draw(st.sampled_from(sorted(path for path in intact.rglob("*") if path.is_file())))
    content = path.read_bytes()
    position = data.draw(st.integers(0, len(content) - 1))
    flipped = content[position] ^ data.draw(st.integers(1, 255))
    path.write_bytes(content[:position] + bytes([flipped]) + content[position + 1 :])
    try:
        with pytest.raises(CheckpointCorrupt):
            verify(intact)
    finally:
        path.write_bytes(content)


@pytest.mark.parametrize("name", ["../a", "/etc/passwd", "a/../../b", "a//b", "./a", "a\\b", "", "a\0b", MANIFEST])
def test_a_manifest_that_names_a_file_elsewhere_is_not_believed(name: str) -> None:
    file = CheckpointFile(size=0, sha256="0" * 64)
    with pytest.raises(CheckpointCorrupt, match=r"which may lie elsewhere"):
        parse_manifest(write_manifest(meta(), {name: file}), "somewhere")
    assert parse_manifest(write_manifest(meta(), {"a/b..c": file}), "somewhere")


def test_the_same_content_gives_the_same_manifest(tmp_path: Path) -> None:
    first, second = save(tmp_path / "a", 1), save(tmp_path / "b", 1)
    assert (first / MANIFEST).read_bytes() == (second / MANIFEST).read_bytes()


def test_a_corrupt_state_is_set_aside_and_reported_and_the_one_before_is_used(tmp_path: Path) -> None:
    older, newer = save(tmp_path, 9), save(tmp_path, 10)
    (newer / "model.safetensors").write_text("torn")
    reports: list[CheckpointCorrupt] = []
    assert newest_verified(tmp_path, reports.append) == older
    assert [report.problem for report in reports] == ["'model.safetensors' does not have its 13 bytes"]
    assert names(tmp_path) == {older.name, "step-00000010.corrupt"}
    again = save(tmp_path, 10)
    (again / MANIFEST).unlink()
    assert newest_verified(tmp_path) == older
    assert names(tmp_path) == {older.name, "step-00000010.corrupt", "step-00000010.corrupt-2"}


def test_where_there_is_no_whole_state_there_is_none(tmp_path: Path) -> None:
    assert newest_verified(tmp_path / "missing") is None
    assert newest_verified(tmp_path) is None
    (save(tmp_path, 1) / MANIFEST).unlink()
    assert newest_verified(tmp_path) is None


def test_a_state_under_the_name_of_another_is_not_taken_for_it(tmp_path: Path) -> None:
    save(tmp_path, 1).rename(state_directory(tmp_path, 2))
    reports: list[CheckpointCorrupt] = []
    assert newest_verified(tmp_path, reports.append) is None
    assert [report.problem for report in reports] == ["manifest.json is that of another step"]


def test_the_newest_is_the_one_with_the_most_steps_however_many_digits_they_have(tmp_path: Path) -> None:
    saved = [save(tmp_path, step) for step in (99_999_999, 100_000_000, 5)]
    assert states(tmp_path) == [saved[1], saved[0], saved[2]]


def test_pruning_keeps_the_newest_and_the_best(tmp_path: Path) -> None:
    saved = {step: save(tmp_path, step) for step in (1, 2, 3, 4, 5)}
    assert prune(tmp_path, 2, best=saved[1]) == [saved[3], saved[2]]
    assert states(tmp_path) == [saved[5], saved[4], saved[1]]
    assert prune(tmp_path, 2, best=saved[1]) == []
    assert prune(tmp_path, 1) == [saved[4], saved[1]]
    assert names(tmp_path) == {saved[5].name}


def test_a_corrupt_state_is_kept_until_a_newer_one_is_saved(tmp_path: Path) -> None:
    save(tmp_path, 1)
    (save(tmp_path, 2) / MANIFEST).unlink()
    newest_verified(tmp_path)
    assert prune(tmp_path, 1) == []
    save(tmp_path, 3)
    prune(tmp_path, 1)
    assert names(tmp_path) == {"step-00000003"}


def test_a_training_keeps_at_least_one_state(tmp_path: Path) -> None:
    state = save(tmp_path, 1)
    with pytest.raises(InvalidCheckpoint, match="keep 1 or more"):
        prune(tmp_path, 0)
    assert states(tmp_path) == [state]


def test_a_file_is_added_without_copying_the_others(tmp_path: Path) -> None:
    final = save(tmp_path, 7)
    weights = (final / "model.safetensors").stat().st_ino
    before = verify(final)
    after = amend(final, {"MODEL_CARD.md": b"# A model"})
    assert verify(final) == after
    assert after.meta == before.meta
    assert after.files.keys() - before.files.keys() == {"MODEL_CARD.md"}
    assert (final / "model.safetensors").stat().st_ino == weights
    assert amend(final, {"MODEL_CARD.md": b"# Another"}).files["MODEL_CARD.md"].size == 9
    assert names(tmp_path) == {final.name}


def test_a_corrupt_checkpoint_is_not_amended(tmp_path: Path) -> None:
    final = save(tmp_path, 7)
    (final / "model.safetensors").write_text("torn")
    with pytest.raises(CheckpointCorrupt):
        amend(final, {"MODEL_CARD.md": b"# A model"})
    assert names(tmp_path) == {final.name}


def test_checkpoints_and_their_release_need_neither_torch_nor_mlflow() -> None:
    modules = [
        "training.checkpoints." + name for name in ("storage", "signing", "releasing", "retention", "model_card")
    ]
    program = "import sys, importlib\nfor name in sys.argv[1:]: importlib.import_module('rl_pipeline.' + name)\n"
    program += "assert not {'torch', 'transformers', 'mlflow', 'polars', 'boto3', 'dagster'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", program, *modules, "stores.tracker", "stores.mlflow_tracker"], check=True)
