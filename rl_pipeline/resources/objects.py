"""The object store as a Dagster resource."""

from collections.abc import Iterator
from contextlib import closing, contextmanager

import dagster as dg
from pydantic import Field

from rl_pipeline.stores.object_addresses import open_objects, parse_objects_url
from rl_pipeline.stores.objects import Objects


class ObjectsResource(dg.ConfigurableResource[Objects]):
    """Opens the disk adapter or, through dagster-aws, the S3 adapter, as the address says.

    Credentials for S3 are found by boto3 (`AWS_ACCESS_KEY_ID` and `AWS_SECRET_ACCESS_KEY`, a profile, the machine's
    role): they are no fields here, because the UI shows a resource's values.
    """

    url: str = Field(description="s3://bucket/prefix/, file:///absolute/directory or a path.")
    endpoint_url: str | None = Field(default=None, description="An S3 server other than Amazon's.")
    region: str | None = Field(default=None, description="The bucket's region, where boto3 does not find it by itself.")

    @contextmanager
    def open(self) -> Iterator[Objects]:
        """The store for the length of the block; raises `InvalidObjectsUrl` for an address that names none."""
        if parse_objects_url(self.url).scheme == "file":
            yield open_objects(self.url)
            return
        # Here, because it loads all of dagster-aws, which every run would wait for.
        from dagster_aws.s3 import S3Resource

        s3 = S3Resource(endpoint_url=self.endpoint_url, region_name=self.region, max_attempts=3)
        with closing(s3.get_client()) as client:
            yield open_objects(self.url, s3_client=client)
