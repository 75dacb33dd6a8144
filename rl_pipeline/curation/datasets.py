"""Datasets where they are kept: files and manifest in the object store, a row for each revision in the warehouse."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import orjson
import polars as pl

from rl_pipeline.curation.files import WrittenFile, sha256_of
from rl_pipeline.curation.manifest import MANIFEST, Manifest, read_manifest
from rl_pipeline.errors import PipelineError
from rl_pipeline.stores.objects import Objects
from rl_pipeline.stores.warehouse import Warehouse


class DatasetMissing(PipelineError):
    """A job has no dataset yet."""


class DatasetDamaged(PipelineError):
    """The files of a dataset are not those that its manifest lists."""


@dataclass(frozen=True)
class StoredDataset:
    """A dataset's row."""

    dataset_id: str
    job_id: str
    revision: int
    algorithm: str
    manifest_url: str
    manifest_hash: str
    trajectories: int
    holdout: int
    summary: Mapping[str, Any]
    """What `CurationReport.summary` says."""
    created_at: datetime

    @property
    def domains(self) -> dict[str, int]:
        """Trajectories by domain."""
        return {domain: count["kept"] for domain, count in self.summary["domains"].items()}

    @property
    def selection(self) -> dict[str, object]:
        """How the trajectories were chosen, for people."""
        left_out = {f"left out: {reason}": count for reason, count in self.summary["left_out"].items()}
        counts = {name: self.summary[name] for name in ("offered", "tasks", "pairs", "prompts")}
        # Not in the summaries of earlier releases.
        across = self.summary.get("pairs_across_requests")
        return counts | ({"pairs of different requests": across} if across else {}) | left_out

    @property
    def rewards(self) -> dict[str, object]:
        """How they were scored, for people."""
        told = {name: value for name, value in self.summary["rewards"].items() if value is not None}
        return told | {"configurations": ", ".join(told["configurations"])}

    @property
    def environment(self) -> str | None:
        """The one world in which all of its tasks can be played, if there is one."""
        worlds = self.summary["environments"]
        return worlds[0] if len(worlds) == 1 and not self.summary["unplayable"] else None


def dataset_name(job_id: str, revision: int) -> str:
    """The id of a dataset."""
    return f"{job_id}.r{revision}"


def newest_dataset(warehouse: Warehouse, job_id: str) -> StoredDataset:
    """The newest revision of a job's dataset. Raises `DatasetMissing`."""
    found = _rows(warehouse, "job_id", job_id)
    if not found:
        raise DatasetMissing(f"the job {job_id} has no dataset: materialize curated_datasets for it first")
    return found[0]


def stored_dataset(warehouse: Warehouse, dataset_id: str) -> StoredDataset:
    """A dataset by its id. Raises `DatasetMissing`."""
    found = _rows(warehouse, "dataset_id", dataset_id)
    if not found:
        raise DatasetMissing(f"there is no dataset {dataset_id}: name one of the table `datasets`")
    return found[0]


def store_files(objects: Objects, manifest: Manifest, directory: Path) -> str:
    """Put the files in place, then the manifest, and return its address: where it is, the dataset is whole.

    Files are named by their sums, so what an earlier manifest lists stays until this one has taken its place; then it
    is deleted, here or when this is done again.
    """
    wanted = {_key(manifest.dataset_id, file): file for file in manifest.files}
    for key, file in wanted.items():
        objects.upload(key, directory / file.name)
    place = f"{manifest.dataset_id}/{MANIFEST}"
    objects.put(place, manifest.encoded())
    for stale in [found.key for found in objects.list(f"{manifest.dataset_id}/")]:
        if stale not in wanted and stale != place:
            objects.delete(stale)
    return objects.url(place)


def store_row(warehouse: Warehouse, manifest: Manifest, url: str, now: datetime) -> None:
    """Note a dataset whose files are in place, in the place of what was noted of it before."""
    summary = manifest.summary
    known = _rows(warehouse, "dataset_id", manifest.dataset_id)
    row = {
        "dataset_id": manifest.dataset_id,
        "job_id": manifest.job_id,
        "revision": manifest.revision,
        "algorithm": manifest.content["asked"]["algorithm"],
        "manifest_url": url,
        "manifest_hash": manifest.hash,
        "trajectories": summary["kept"],
        "holdout": summary["splits"]["holdout"],
        "summary": orjson.dumps(summary).decode(),
        # Later than the row that it replaces, whatever the clock says.
        "created_at": max([now, *(row.created_at + timedelta(milliseconds=1) for row in known)]),
    }
    warehouse.insert("datasets", pl.DataFrame([row]))


def manifest_of(objects: Objects, dataset_id: str) -> Manifest:
    """The manifest of a dataset. Raises `ObjectMissing`, `CorruptObject`, `ManifestUnreadable`."""
    key = f"{dataset_id}/{MANIFEST}"
    return read_manifest(objects.get(key), objects.url(key))


def fetch_dataset(objects: Objects, dataset: StoredDataset, directory: Path) -> Manifest:
    """Bring manifest and files into the directory, and nothing else; what is there and whole is not fetched again.

    Raises `DatasetDamaged` where they are not what the dataset's row says.
    """
    manifest = manifest_of(objects, dataset.dataset_id)
    if manifest.hash != dataset.manifest_hash:
        raise DatasetDamaged(
            f"the manifest of {dataset.dataset_id} is not the one that was stored: curate the job again"
        )
    directory.mkdir(parents=True, exist_ok=True)
    # The manifest says that the files are whole, so it goes first and comes last.
    (directory / MANIFEST).unlink(missing_ok=True)
    fetch_files(objects, dataset.dataset_id, manifest.files, directory)
    for stale in directory.iterdir():
        if stale.name not in {file.name for file in manifest.files} and stale.is_file():
            stale.unlink()
    objects.download(f"{dataset.dataset_id}/{MANIFEST}", directory / MANIFEST)
    return manifest


def fetch_files(objects: Objects, dataset_id: str, files: Sequence[WrittenFile], directory: Path) -> None:
    """Bring these files into the directory. Raises `DatasetDamaged`, `ObjectMissing`, `CorruptObject`."""
    for file in files:
        path = directory / file.name
        if path.is_file() and sha256_of(path) == file.sha256:
            continue
        objects.download(_key(dataset_id, file), path)
        if sha256_of(path) != file.sha256:
            path.unlink()
            raise DatasetDamaged(f"{file.name} of {dataset_id} is not what its manifest says: curate the job again")


def _key(dataset_id: str, file: WrittenFile) -> str:
    return f"{dataset_id}/{file.sha256}/{file.name}"


def _rows(warehouse: Warehouse, column: str, value: str) -> list[StoredDataset]:
    """The rows with this value, the newest revision first."""
    found = warehouse.query(
        """
        SELECT
            dataset_id, job_id, revision, algorithm, manifest_url, manifest_hash, trajectories, holdout, summary,
            created_at
        FROM datasets FINAL WHERE {column:Identifier} = {value:String} ORDER BY revision DESC
        """,
        {"column": column, "value": value},
    )
    return [StoredDataset(**row | {"summary": orjson.loads(row["summary"])}) for row in found.iter_rows(named=True)]
