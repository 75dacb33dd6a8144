"""How erased trajectories leave the datasets that hold them: out of every file, the manifest and the provenance.

Which trajectories a dataset holds is known by its provenance, for as long as it exists; that they were erased is seen
by their rows, which bear a mark or are gone from every table that does not let them expire. What was trained on them
before stays listed: `checkpoint_datasets` and `dataset_trajectories` are not touched.
"""

import shutil
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

import orjson
import polars as pl

from rl_pipeline.curation.conversations import opening_of
from rl_pipeline.curation.datasets import (
    DatasetDamaged,
    DatasetMissing,
    fetch_files,
    manifest_of,
    store_files,
    store_row,
    stored_dataset,
)
from rl_pipeline.curation.files import CONVERSATIONS, PAIRS, PROMPTS, Row, WrittenFile, read_rows, write_rows
from rl_pipeline.curation.manifest import Manifest, ManifestUnreadable
from rl_pipeline.curation.scratch import scratch_below, sweep
from rl_pipeline.errors import PipelineError
from rl_pipeline.ingestion.ledger import ERASED_REVISION
from rl_pipeline.stores.objects import CorruptObject, ObjectMissing, Objects
from rl_pipeline.stores.warehouse import Warehouse

# The ids of a query travel in its address, which has a limit.
_IDS_PER_QUERY = 500
_SHOWN = ("trajectory_id", "messages", "environment", "environment_task")
_MUTATION = {"mutations_sync": 2}


@dataclass(frozen=True)
class Forgotten:
    """What was taken out of a dataset."""

    trajectories: int
    manifest_hash: str
    """Of what is left."""


class DatasetsNotForgotten(PipelineError):
    """Erased trajectories are left in some datasets, or these could not be made whole without them."""


def erased_of(warehouse: Warehouse, dataset_id: str) -> list[str]:
    """The trajectories of a dataset that were erased, or are being erased now."""
    return _erased(warehouse, dataset_id)["trajectory_id"].to_list()


def datasets_with_erased(warehouse: Warehouse) -> list[str]:
    """All datasets that hold trajectories which were erased, whenever that was."""
    return _erased(warehouse)["dataset_id"].unique().sort().to_list()


def _erased(warehouse: Warehouse, dataset_id: str = "") -> pl.DataFrame:
    """dataset_id, trajectory_id: of one dataset, or of all."""
    return warehouse.query(
        """
        SELECT DISTINCT dataset_id, trajectory_id FROM dataset_provenance
        WHERE {dataset:String} IN ('', dataset_id) AND trajectory_id NOT IN (
            SELECT trajectory_id FROM (
                SELECT trajectory_id, stream, sequence, stream_time, user FROM trajectories
                UNION ALL
                SELECT trajectory_id, stream, sequence, stream_time, user FROM trajectory_signals
            ) AS stored
            LEFT JOIN (SELECT user, max(covers_until) AS erased_until FROM erasures GROUP BY user) AS erasing
                USING (user)
            WHERE trajectory_id IN (
                    SELECT trajectory_id FROM dataset_provenance WHERE {dataset:String} IN ('', dataset_id)
                )
                AND (user = '' OR erased_until < stream_time)
                AND (stream, sequence) NOT IN (
                    SELECT stream, sequence FROM trajectory_ledger
                    WHERE verdict = 'erased' AND revision = {revision:UInt32}
                )
        )
        ORDER BY dataset_id, trajectory_id
        """,
        {"dataset": dataset_id, "revision": ERASED_REVISION},
    )


def forget_erased(warehouse: Warehouse, objects: Objects, now: datetime, *, copies: Path) -> None:
    """Take erased trajectories out of all datasets, and out of the copies that trainings keep below `copies/<job>`.

    Whoever was erased and when: what another erasure has left is taken out as well, and what curations left there that
    were killed. Raises `DatasetsNotForgotten` once all datasets were tried.
    """
    sweep(copies)
    damaged, unfinished = [], []
    for dataset_id in datasets_with_erased(warehouse):
        try:
            if not _is_forgotten(warehouse, objects, dataset_id, now, copies):
                # Nobody can read it as it is, or tell whose the rest of it is.
                _delete_files(objects, dataset_id)
                forget_provenance(warehouse, dataset_id, erased_of(warehouse, dataset_id))
                damaged.append(dataset_id)
        except PipelineError as broken:
            unfinished.append(f"{dataset_id} ({broken})")
    if unfinished:
        raise DatasetsNotForgotten(f"erased data is left in {', '.join(unfinished)}: mend that and run this again")
    if damaged:
        raise DatasetsNotForgotten(
            f"the datasets {', '.join(damaged)} were damaged, so that erased data could not be told from the rest of "
            "them, and all of their files were deleted: ask for their jobs again"
        )


def _is_forgotten(warehouse: Warehouse, objects: Objects, dataset_id: str, now: datetime, copies: Path) -> bool:
    """Whether erased trajectories could be taken out of a dataset: not if it is damaged."""
    # Twice, since whoever curates it anew at this moment removes files that were just listed.
    for _ in range(2):
        try:
            drop_erased(warehouse, objects, dataset_id, now, copies=copies)
        except DatasetMissing:
            # It was never finished; or it is being made, sees what was erased itself, and is made again.
            _delete_files(objects, dataset_id)
        except (ObjectMissing, CorruptObject, ManifestUnreadable, DatasetDamaged):
            continue
        return True
    return False


def drop_erased(warehouse: Warehouse, objects: Objects, dataset_id: str, now: datetime, *, copies: Path) -> Forgotten:
    """Take erased trajectories out of a dataset, and say how many there were. Doing it again finishes it.

    The dataset gets another manifest and another hash; where everything was erased, its files are left without rows.
    Raises `DatasetMissing`, `DatasetDamaged`, and what the object store and `manifest_of` do.
    """
    known = stored_dataset(warehouse, dataset_id)
    gone = erased_of(warehouse, dataset_id)
    if not gone:
        return Forgotten(0, known.manifest_hash)
    # Before anything that can break, and again below: a training may fetch it meanwhile.
    shutil.rmtree(copies / known.job_id / "dataset", ignore_errors=True)
    manifest = manifest_of(objects, dataset_id)
    with scratch_below(copies) as scratch:
        before, after = scratch / "before", scratch / "after"
        after.mkdir()
        fetch_files(objects, dataset_id, manifest.files, before)
        manifest = _rewritten(manifest, before, after, set(gone))
        url = store_files(objects, manifest, after)
    store_row(warehouse, manifest, url, now)
    shutil.rmtree(copies / known.job_id / "dataset", ignore_errors=True)
    # Last, because by it the dataset is found.
    forget_provenance(warehouse, dataset_id, gone)
    return Forgotten(len(gone), manifest.hash)


def forget_provenance(warehouse: Warehouse, dataset_id: str, trajectory_ids: Sequence[str], role: str = "") -> None:
    """Forget that the dataset uses these trajectories, in this role or in any."""
    for start in range(0, len(trajectory_ids), _IDS_PER_QUERY):
        warehouse.execute(
            """
            ALTER TABLE dataset_provenance DELETE
            WHERE dataset_id = {dataset:String} AND trajectory_id IN {ids:Array(String)}
                AND {role:String} IN ('', role)
            """,
            {"dataset": dataset_id, "ids": list(trajectory_ids[start : start + _IDS_PER_QUERY]), "role": role},
            _MUTATION,
        )


def _delete_files(objects: Objects, dataset_id: str) -> None:
    for found in list(objects.list(f"{dataset_id}/")):
        objects.delete(found.key)


def _rewritten(manifest: Manifest, before: Path, after: Path, gone: Set[str]) -> Manifest:
    """Write the files anew without what is gone, and the manifest of what is left."""
    files: dict[str, WrittenFile] = {}
    names = {file.name for file in manifest.files}
    if PAIRS in names:
        pairs = (row for row in read_rows(before / PAIRS) if gone.isdisjoint((row["chosen_id"], row["rejected_id"])))
        files[PAIRS] = write_rows(after / PAIRS, pairs)
    kept = (row for row in read_rows(before / CONVERSATIONS) if row["trajectory_id"] not in gone)
    files[CONVERSATIONS] = write_rows(after / CONVERSATIONS, kept)
    if PROMPTS in names:
        files[PROMPTS] = write_rows(after / PROMPTS, _prompts(before / PROMPTS, after / CONVERSATIONS, gone))
    content = manifest.content
    trajectories = [one for one in content["trajectories"] if one["trajectory_id"] not in gone]
    listed = [files[name].listed() for name in sorted(files)]
    summary = _summary(manifest.summary, after, files)
    return replace(manifest, content={**content, "trajectories": trajectories, "files": listed}, summary=summary)


def _prompts(prompts: Path, conversations: Path, gone: Set[str]) -> Iterator[Row]:
    """The prompts; one that showed what is gone shows another attempt at its task, if there is one, and best one that
    can be played."""
    wanted = {row["task"] for row in read_rows(prompts) if row["trajectory_id"] in gone}
    others: dict[str, Row] = {}
    for row in read_rows(conversations):
        known = others.get(row["task"])
        if row["task"] in wanted and (known is None or (row["environment"] and not known["environment"])):
            opening = orjson.dumps(opening_of(orjson.loads(row["messages"]))).decode()
            others[row["task"]] = {**row, "messages": opening}
    for row in read_rows(prompts):
        if row["trajectory_id"] not in gone:
            yield row
        elif other := others.get(row["task"]):
            yield {**row, **{name: other[name] for name in _SHOWN}}


def _summary(summary: Mapping[str, Any], directory: Path, files: Mapping[str, WrittenFile]) -> dict[str, Any]:
    """The summary of what is left."""
    splits: Counter[str] = Counter({"train": 0, "holdout": 0})
    domains: Counter[str] = Counter()
    tasks = set()
    for row in read_rows(directory / CONVERSATIONS):
        splits[row["split"]] += 1
        domains[row["domain"]] += 1
        tasks.add(row["task"])
    worlds = (
        Counter(row["environment"] or "" for row in read_rows(directory / PROMPTS)) if PROMPTS in files else Counter()
    )
    is_across = pl.scan_parquet(directory / PAIRS).select("across_requests").collect() if PAIRS in files else None
    kept = splits.total()
    erased = summary["left_out"].get("erased", 0) + summary["kept"] - kept
    return {
        **summary,
        "kept": kept,
        "left_out": {**summary["left_out"], "erased": erased},
        "splits": dict(splits),
        "domains": {
            domain: {**count, "kept": domains[domain], "shortage": count["quota"] - domains[domain]}
            for domain, count in summary["domains"].items()
        },
        "tasks": len(tasks),
        "pairs": files[PAIRS].rows if PAIRS in files else 0,
        "pairs_across_requests": is_across["across_requests"].sum() if is_across is not None else 0,
        "prompts": worlds.total(),
        "environments": sorted(worlds.keys() - {""}),
        "unplayable": worlds[""],
    }
