"""Brings trajectories from files into the stream, for the training jobs that ask for them: no file bypasses ingest."""

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path

import dagster as dg
from pydantic import Field

from rl_pipeline.ingestion.importing import ImportFailed, files_below, files_in_store
from rl_pipeline.ingestion.importing import import_trajectories as import_all
from rl_pipeline.resources.ingest import IngestResource
from rl_pipeline.resources.stream import StreamResource
from rl_pipeline.resources.training import TrainingResource
from rl_pipeline.resources.warehouse import WarehouseResource
from rl_pipeline.stores.lease import keep
from rl_pipeline.stores.object_addresses import InvalidObjectsUrl, ObjectsAddress, parse_objects_url
from rl_pipeline.stores.objects import CorruptObject
from rl_pipeline.training.jobs.advancing import import_lease
from rl_pipeline.training.jobs.rows import import_failed, imported
from rl_pipeline.training.jobs.silence import LEASE_SECONDS


class ImportConfig(dg.Config):
    """Which files, and for which job."""

    job_id: str = Field(description="The training job whose dataset is made of these files alone.")
    path: str = Field(description="s3://bucket/prefix where it is allowed, or a path below the directory of imports.")


@dg.op
def import_files(  # noqa: PLR0917 - Dagster passes them by name
    context: dg.OpExecutionContext,
    config: ImportConfig,
    stream: StreamResource,
    warehouse: WarehouseResource,
    ingest: IngestResource,
    training: TrainingResource,
) -> None:
    """Publish every trajectory of the files, and tell the job up to which sequence to wait for them."""
    with (
        stream.open_with_leases() as (messages, leases),
        warehouse.open() as tables,
        # An import without it is taken for lost.
        keep(leases, import_lease(config.job_id), owner=context.run_id, seconds=LEASE_SECONDS),
    ):
        try:
            report = import_all(
                _files(config.path, training, ingest.objects_endpoint_url),
                messages,
                tables,
                job_id=config.job_id,
                raw_objects=ingest.raw_objects().open,
                policy=ingest.policy(),
                previous_keys=ingest.previous_keys(),
                now=datetime.now(UTC),
            )
        except (ImportFailed, InvalidObjectsUrl, CorruptObject) as failed:
            # Another look at the same files finds the same; after anything else the sensor tries again, a few times.
            import_failed(messages, tables, config.job_id, str(failed), datetime.now(UTC))
            raise dg.Failure(str(failed)) from failed
        imported(tables, config.job_id, report.last_sequence, datetime.now(UTC))
    counts = {"files": report.files, "published": report.published, "repeated": report.repeated}
    context.add_output_metadata({**counts, "erased": report.erased, "refused": report.refused})
    if report.refused:
        context.log.warning(
            f"{report.refused} documents break the contract and were left out: `rl-pipeline dead-letters list --stream"
            " imports` says where they stand and why; mend them, and import them by another job"
        )


def _files(path: str, training: TrainingResource, endpoint_url: str | None) -> Iterator[tuple[str, bytes]]:
    if not path:
        raise ImportFailed("the request does not say where the files are: ask for another job")
    if not path.startswith("s3://"):
        return files_below(Path(training.import_directory), path)
    _check_allowed(path, training.import_prefixes)
    return files_in_store(ObjectsAddress(path, endpoint_url).open())


def _check_allowed(path: str, allowed: Sequence[str]) -> None:
    """A request comes from far away: it must not read all that the pipeline may."""
    asked = parse_objects_url(path)
    for each in map(parse_objects_url, allowed):
        if asked.container == each.container and asked.prefix.startswith(each.prefix):
            return
    raise ImportFailed(
        f"{path[:200]!r} is not below {' or '.join(allowed) or 'any place'} from which imports are allowed: put the "
        "files there, or name their place in TRAINING_IMPORT_PREFIXES"
    )


@dg.job(
    tags={"rl/stage": "import"},
    description="Publish the trajectories of files to the stream, to be redacted and scored like all others.",
)
def import_trajectories() -> None:
    """Read the files of one training job."""
    import_files()
