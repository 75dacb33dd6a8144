"""How this deployment ingests, as a Dagster resource: when, on how many processes, under which redaction."""

from pathlib import Path

import dagster as dg
from pydantic import Field

from rl_pipeline.redaction.policy import RedactionKey, RedactionPolicy
from rl_pipeline.redaction.policy_file import read_keys, read_policy
from rl_pipeline.stores.object_addresses import ObjectsAddress


class IngestResource(dg.ConfigurableResource[None]):
    """The settings of the ingest; the keys come by variable, because the UI shows a resource's values."""

    redaction_key: str = Field("", description="<version>:<at least 32 characters>.")
    redaction_previous_keys: str = Field("", description="Keys of earlier versions, separated by commas.")
    redaction_policy_file: str | None = Field(None, description="Names, identifiers and exceptions of this deployment.")
    objects_url: str = Field(description="Where the archive and the large payloads lie.")
    objects_endpoint_url: str | None = Field(None, description="An S3 server other than Amazon's.")
    pending: int = Field(500, description="So many waiting trajectories start an ingest.")
    wait_seconds: float = Field(60, description="So long a trajectory waits at most before one starts.")
    stale_seconds: float = Field(900, description="A trajectory that waited longer fails the freshness check.")
    workers: int = Field(1, description="Processes that redact.")

    def policy(self) -> RedactionPolicy:
        """The redaction of this deployment. Raises `RedactionKeyMissing`, `InvalidPolicy` and `InvalidPolicyFile`."""
        return read_policy(self.redaction_key, Path(self.redaction_policy_file) if self.redaction_policy_file else None)

    def previous_keys(self) -> tuple[RedactionKey, ...]:
        """The keys under which older rows were stored."""
        return read_keys(self.redaction_previous_keys)

    def archive(self) -> ObjectsAddress:
        """Where archived days lie."""
        return ObjectsAddress(self.objects_url, self.objects_endpoint_url).below("archive")

    def raw_objects(self) -> ObjectsAddress:
        """Where payloads lie that were too large for a message."""
        return ObjectsAddress(self.objects_url, self.objects_endpoint_url).below("raw")
