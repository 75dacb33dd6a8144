"""The object store inside Dagster: an asset writes through the resource, to the disk and to S3."""

from pathlib import Path

import dagster as dg
import pytest

from rl_pipeline.resources.objects import ObjectsResource
from rl_pipeline.stores.disk import DiskObjects
from rl_pipeline.stores.object_addresses import InvalidObjectsUrl
from rl_pipeline_tests.fixtures.s3 import S3Server


@dg.asset
def stored(objects: ObjectsResource) -> dg.MaterializeResult[None]:
    with objects.open() as store:
        store.put("a", b"from an asset")
        assert store.get("a") == b"from an asset"
        return dg.MaterializeResult(metadata={"url": store.url("a")})


def _materialized_url(resource: ObjectsResource) -> object:
    result = dg.materialize([stored], resources={"objects": resource})
    return result.asset_materializations_for_node("stored")[0].metadata["url"].value


def test_an_asset_stores_on_disk_where_the_address_is_a_path(tmp_path: Path) -> None:
    assert _materialized_url(ObjectsResource(url=str(tmp_path))) == (tmp_path / "a").as_uri()
    assert DiskObjects(tmp_path).get("a") == b"from an asset"


def test_an_asset_stores_in_s3_where_the_address_is_a_bucket(
    s3_server: S3Server, s3_bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", s3_server.access_key)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", s3_server.secret_key)
    resource = ObjectsResource(url=f"s3://{s3_bucket}/models/", endpoint_url=s3_server.endpoint_url, region="us-east-1")
    assert _materialized_url(resource) == f"s3://{s3_bucket}/models/a"


def test_an_address_of_neither_kind_is_refused() -> None:
    with pytest.raises(InvalidObjectsUrl), ObjectsResource(url="gs://bucket").open():
        pass


def test_every_field_is_described_for_the_launchpad() -> None:
    assert all(field.description for field in ObjectsResource.model_fields.values())
