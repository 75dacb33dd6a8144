"""Brings trajectories from files into the stream, for the training jobs that ask for them: no file bypasses ingest."""

from collections.abc import Iterator
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
from rl_pipeline.stores.object_addresses import InvalidObjectsUrl, ObjectsAddress
from rl_pipeline.stores.objects import CorruptObject
from rl_pipeline.training.job_rows import import_failed, imported


class ImportConfig(dg.Config):
    """Which files, and for which job."""

    job_id: str = Field(description="The training job whose dataset is made of these files alone.")
    path: str = Field(description="s3://bucket/prefix, or a path below the directory of imports.")


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
    with stream.open() as messages, warehouse.open() as tables:
        try:
            report = import_all(
                _files(config.path, training, ingest.objects_endpoint_url),
                messages,
                tables,
                job_id=config.job_id,
                raw_objects=ingest.raw_objects().open,
            )
        except (ImportFailed, InvalidObjectsUrl, CorruptObject) as failed:
            # Another look at the same files finds the same; whatever else breaks it is tried again by the sensor.
            import_failed(messages, tables, config.job_id, str(failed), datetime.now(UTC))
            raise dg.Failure(str(failed)) from failed
        imported(tables, config.job_id, report.last_sequence, datetime.now(UTC))
    context.add_output_metadata({"files": report.files, "published": report.published, "repeated": report.repeated})


def _files(path: str, training: TrainingResource, endpoint_url: str | None) -> Iterator[tuple[str, bytes]]:
    if path.startswith("s3://"):
        return files_in_store(ObjectsAddress(path, endpoint_url).open())
    return files_below(Path(training.import_directory), path)


@dg.job(
    tags={"rl/stage": "import"},
    description="Publish the trajectories of files to the stream, to be redacted and scored like all others.",
)
def import_trajectories() -> None:
    """Read the files of one training job."""
    import_files()
