"""How erased trajectories leave the datasets that hold them: out of every file, the manifest and the provenance.

Which trajectories a dataset holds is known by its provenance, for as long as it exists; that they were erased is seen
by their rows, which bear a mark or are gone from every table that does not let them expire. What was trained on them
before stays listed: `checkpoint_datasets` and `dataset_trajectories` are not touched.
"""

import contextlib
import shutil
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import orjson

from rl_pipeline.curation.conversations import opening_of
from rl_pipeline.curation.datasets import (
    DatasetMissing,
    fetch_files,
    manifest_of,
    store_files,
    store_row,
    stored_dataset,
)
from rl_pipeline.curation.files import CONVERSATIONS, PAIRS, PROMPTS, Row, WrittenFile, read_rows, write_rows
from rl_pipeline.curation.manifest import Manifest
from rl_pipeline.ingestion.ledger import ERASED_REVISION
from rl_pipeline.stores.objects import Objects
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


def erased_of(warehouse: Warehouse, dataset_id: str) -> list[str]:
    """The trajectories of a dataset that were erased, or are being erased now."""
    found = warehouse.query(
        """
        SELECT DISTINCT trajectory_id FROM dataset_provenance
        WHERE dataset_id = {dataset:String} AND trajectory_id NOT IN (
            SELECT trajectory_id FROM (
                SELECT trajectory_id, stream, sequence, stream_time, user FROM trajectories
                UNION ALL
                SELECT trajectory_id, stream, sequence, stream_time, user FROM trajectory_signals
            ) AS stored
            LEFT JOIN (SELECT user, max(covers_until) AS erased_until FROM erasures GROUP BY user) AS erasing
                USING (user)
            WHERE trajectory_id IN (SELECT trajectory_id FROM dataset_provenance WHERE dataset_id = {dataset:String})
                AND (user = '' OR erased_until < stream_time)
                AND (stream, sequence) NOT IN (
                    SELECT stream, sequence FROM trajectory_ledger
                    WHERE verdict = 'erased' AND revision = {revision:UInt32}
                )
        )
        ORDER BY trajectory_id
        """,
        {"dataset": dataset_id, "revision": ERASED_REVISION},
    )
    return list(found["trajectory_id"])


def forget_erased(
    warehouse: Warehouse, objects: Objects, dataset_ids: Sequence[str], now: datetime, *, copies: Path
) -> None:
    """Take erased trajectories out of the datasets, and out of the copies that trainings keep below `copies/<job>`.

    A dataset that is being made has no row yet: it looks for what was erased itself.
    """
    for dataset_id in dataset_ids:
        with contextlib.suppress(DatasetMissing):
            drop_erased(warehouse, objects, dataset_id, now)
            shutil.rmtree(copies / stored_dataset(warehouse, dataset_id).job_id / "dataset", ignore_errors=True)


def drop_erased(warehouse: Warehouse, objects: Objects, dataset_id: str, now: datetime) -> Forgotten:
    """Take erased trajectories out of a dataset, and say how many there were. Doing it again finishes it.

    The dataset gets another manifest and another hash; where everything was erased, its files are left without rows.
    Raises `DatasetMissing`.
    """
    known = stored_dataset(warehouse, dataset_id)
    gone = set(erased_of(warehouse, dataset_id))
    if not gone:
        return Forgotten(0, known.manifest_hash)
    manifest = manifest_of(objects, dataset_id)
    with TemporaryDirectory(prefix="rl-curation-") as scratch:
        before, after = Path(scratch) / "before", Path(scratch) / "after"
        after.mkdir()
        fetch_files(objects, dataset_id, manifest.files, before)
        manifest = _rewritten(manifest, before, after, gone)
        url = store_files(objects, manifest, after)
    store_row(warehouse, manifest, url, now)
    ids = sorted(gone)
    for start in range(0, len(ids), _IDS_PER_QUERY):
        warehouse.execute(
            """
            ALTER TABLE dataset_provenance DELETE
            WHERE dataset_id = {dataset:String} AND trajectory_id IN {ids:Array(String)}
            """,
            {"dataset": dataset_id, "ids": ids[start : start + _IDS_PER_QUERY]},
            _MUTATION,
        )
    return Forgotten(len(gone), manifest.hash)


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
    summary = _summary(manifest.summary, after / CONVERSATIONS, files)
    return replace(manifest, content={**content, "trajectories": trajectories, "files": listed}, summary=summary)


def _prompts(prompts: Path, conversations: Path, gone: Set[str]) -> Iterator[Row]:
    """The prompts; one that showed what is gone shows another attempt at its task, if there is one."""
    wanted = {row["task"] for row in read_rows(prompts) if row["trajectory_id"] in gone}
    others: dict[str, Row] = {}
    for row in read_rows(conversations):
        if row["task"] in wanted and row["task"] not in others:
            opening = orjson.dumps(opening_of(orjson.loads(row["messages"]))).decode()
            others[row["task"]] = {**row, "messages": opening}
    for row in read_rows(prompts):
        if row["trajectory_id"] not in gone:
            yield row
        elif other := others.get(row["task"]):
            yield {**row, **{name: other[name] for name in _SHOWN}}


def _summary(summary: Mapping[str, Any], conversations: Path, files: Mapping[str, WrittenFile]) -> dict[str, Any]:
    """The summary of what is left."""
    splits: Counter[str] = Counter({"train": 0, "holdout": 0})
    domains: Counter[str] = Counter()
    tasks = set()
    for row in read_rows(conversations):
        splits[row["split"]] += 1
        domains[row["domain"]] += 1
        tasks.add(row["task"])
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
        "prompts": files[PROMPTS].rows if PROMPTS in files else 0,
    }
