"""From a request to the dataset of its job, stored and accounted for.

Curating the same job and revision again writes the same dataset over itself. A trajectory that is erased meanwhile is
taken out again: an erasure leaves its mark before it looks for datasets, so either the mark is seen here, or the
erasure sees the dataset. It sees it by its provenance, which is there before the files are, and until they are gone.
"""

from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import polars as pl

from rl_pipeline.contracts.training_request import Algorithm, TrainingRequest
from rl_pipeline.curation.candidates import offered
from rl_pipeline.curation.choosing import choose
from rl_pipeline.curation.datasets import dataset_name, store_files, store_row
from rl_pipeline.curation.forgetting import erased_of, forget_provenance
from rl_pipeline.curation.manifest import Manifest, content_of
from rl_pipeline.curation.policy import Criteria, CurationPolicy, criteria_of
from rl_pipeline.curation.reporting import CurationReport, report_of
from rl_pipeline.curation.scratch import scratch_below
from rl_pipeline.curation.writing import Written, write_files
from rl_pipeline.ingestion.holding import held_by, hold_for_dataset, release_from_dataset
from rl_pipeline.stores.objects import Objects
from rl_pipeline.stores.warehouse import Warehouse

# The ids of a query travel in its address, which has a limit.
_IDS_PER_QUERY = 500
_REWARD = ["trajectory_id", "configuration", "reward_revision"]
_REWARD_IDS = pl.Schema(
    dict.fromkeys(_REWARD, pl.String()) | {"reward_revision": pl.UInt32(), "reward_id": pl.String()}
)


@dataclass(frozen=True)
class CuratedDataset:
    """A dataset that was stored, and what is to be said of it."""

    dataset_id: str
    manifest: Manifest
    manifest_hash: str
    url: str
    report: CurationReport


def curate(
    warehouse: Warehouse,
    objects: Objects,
    *,
    job_id: str,
    request: TrainingRequest,
    accepted_at: datetime,
    algorithm: Algorithm,
    revision: int,
    now: datetime,
    watermark: int,
    policy: CurationPolicy,
    work: Path,
) -> CuratedDataset:
    """Choose, write and store the dataset of a job from what is stored and scored up to the watermark.

    Its files lie below the directory `work` until they are stored. A dataset in which nothing is left is stored as
    well: the report says why it is empty. Raises `InvalidFilter`.
    """
    criteria = criteria_of(
        request, job_id=job_id, accepted_at=accepted_at, algorithm=algorithm, watermark=watermark, policy=policy
    )
    while True:
        dataset = _curated(warehouse, objects, criteria, policy, revision=revision, now=now, work=work)
        if not erased_of(warehouse, dataset.dataset_id):
            return dataset


def _curated(
    warehouse: Warehouse,
    objects: Objects,
    criteria: Criteria,
    policy: CurationPolicy,
    *,
    revision: int,
    now: datetime,
    work: Path,
) -> CuratedDataset:
    dataset_id = dataset_name(criteria.job_id, revision)
    offer = offered(warehouse, criteria, policy)
    choice = choose(offer.candidates, criteria, policy)
    with scratch_below(work) as scratch:
        written = write_files(warehouse, choice, scratch, criteria, policy)
        report = report_of(offer, written, criteria)
        provenance = _provenance(warehouse, criteria.stream, written)
        content = content_of(criteria, policy, _listed(provenance), written.files)
        manifest = Manifest(dataset_id, criteria.job_id, revision, now.isoformat(), content, report.summary())
        provenance = provenance.with_columns(dataset_id=pl.lit(dataset_id))
        warehouse.insert("dataset_provenance", provenance)
        hold_for_dataset(warehouse, dataset_id, provenance["trajectory_id"])
        url = store_files(objects, manifest, scratch)
    store_row(warehouse, manifest, url, now)
    _forget_earlier(warehouse, dataset_id, provenance)
    return CuratedDataset(dataset_id, manifest, manifest.hash, url, report)


def _provenance(warehouse: Warehouse, stream: str, written: Written) -> pl.DataFrame:
    """The rows of `dataset_provenance`, in order of id and role, but for the name of the dataset."""
    rows = written.choice.rows.select(
        *("trajectory_id", "split", "task", "raw_total", "reward_revision"),
        pl.col("domain", "configuration").cast(pl.String),
    )
    # A reward that was withdrawn meanwhile has no id any more; the row was chosen by it all the same.
    named = rows.join(_reward_ids(warehouse, stream, rows), on=_REWARD, how="left").with_columns(
        pl.col("reward_id").fill_null("")
    )
    return written.roles.join(named, on="trajectory_id").sort("trajectory_id", "role")


def _reward_ids(warehouse: Warehouse, stream: str, rows: pl.DataFrame) -> pl.DataFrame:
    """The ids of the rewards by which the rows were chosen; rewards do not change, so they are those still."""
    ids: list[str] = rows["trajectory_id"].to_list()
    found = [pl.DataFrame(schema=_REWARD_IDS)]
    for start in range(0, len(ids), _IDS_PER_QUERY):
        found.append(
            warehouse.query(
                """
                SELECT DISTINCT trajectory_id, configuration, revision AS reward_revision, reward_id FROM rewards
                WHERE stream = {stream:String} AND trajectory_id IN {ids:Array(String)}
                """,
                {"stream": stream, "ids": ids[start : start + _IDS_PER_QUERY]},
            ).cast(_REWARD_IDS)
        )
    return pl.concat(found)


def _listed(provenance: pl.DataFrame) -> list[dict[str, Any]]:
    """The trajectories as the manifest lists them."""
    return provenance.select("trajectory_id", "role", "split", "task", "reward_id", "reward_revision").to_dicts()


def _forget_earlier(warehouse: Warehouse, dataset_id: str, provenance: pl.DataFrame) -> None:
    """Take back what an earlier curation of the same revision has noted, and nothing else."""
    noted = warehouse.query(
        "SELECT trajectory_id, role FROM dataset_provenance FINAL WHERE dataset_id = {dataset:String}",
        {"dataset": dataset_id},
    ).cast(pl.String)
    use = ["trajectory_id", "role"]
    for (role,), stale in noted.join(provenance, on=use, how="anti").group_by("role"):
        forget_provenance(warehouse, dataset_id, sorted(stale["trajectory_id"]), role=str(role))
    # An erasure that found the earlier dataset has forgotten of this one what it took out of that.
    missing = provenance.join(noted, on=use, how="anti")
    if missing.height:
        warehouse.insert("dataset_provenance", missing)
    stale_ids = sorted(set(held_by(warehouse, dataset_id)) - set(provenance["trajectory_id"]))
    if stale_ids:
        release_from_dataset(warehouse, dataset_id, stale_ids)
