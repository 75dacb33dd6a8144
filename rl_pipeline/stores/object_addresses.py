"""From an address to the object store behind it."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple
from urllib.parse import unquote, urlsplit

from rl_pipeline.errors import PipelineError
from rl_pipeline.stores.objects import Objects, is_key

_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{1,61}[A-Za-z0-9]")


class InvalidObjectsUrl(PipelineError):
    """An address that names no object store."""


class ObjectsLocation(NamedTuple):
    """Where a store is. `container` is a bucket or an absolute directory; `prefix` is empty or ends with a slash."""

    scheme: Literal["s3", "file"]
    container: str
    prefix: str


@dataclass(frozen=True)
class ObjectsAddress:
    """Where objects lie, to be opened where they are needed: in another process, or not at all."""

    url: str
    endpoint_url: str | None = None
    """An S3 server other than Amazon's."""

    def below(self, prefix: str) -> "ObjectsAddress":
        """The store of the objects under a prefix."""
        return ObjectsAddress(f"{self.url.rstrip('/')}/{prefix}", self.endpoint_url)

    def open(self) -> Objects:
        """The store; for S3, boto3 looks for the credentials itself."""
        if parse_objects_url(self.url).scheme == "file":
            return open_objects(self.url)
        from rl_pipeline.stores.s3 import s3_client  # boto3 is paid for by those who use it

        return open_objects(self.url, s3_client=s3_client(endpoint_url=self.endpoint_url))


def parse_objects_url(url: str) -> ObjectsLocation:
    """Read `s3://bucket/prefix/`, `file:///absolute/directory` or a plain path. Raises `InvalidObjectsUrl`."""
    if "://" not in url:
        if not url or url.startswith("~") or re.match(r"(?:file|s3):", url):
            raise _not_an_address(url)
        return ObjectsLocation("file", str(Path(url).absolute()), "")
    try:
        parts = urlsplit(url)
    except ValueError as error:
        raise _not_an_address(url) from error
    if parts.scheme == "file" and not parts.netloc and parts.path.startswith("/") and not parts.query + parts.fragment:
        return ObjectsLocation("file", unquote(parts.path), "")
    if parts.scheme == "s3" and _BUCKET.fullmatch(parts.netloc) and not parts.query + parts.fragment:
        prefix = parts.path.strip("/")
        if not prefix or is_key(prefix):
            return ObjectsLocation("s3", parts.netloc, f"{prefix}/" if prefix else "")
    raise _not_an_address(url)


def open_objects(url: str, *, s3_client: Any = None) -> Objects:
    """The store at `url`. For S3, `s3_client` is the boto3 client to use; without it boto3 looks for credentials and
    endpoint itself."""
    location = parse_objects_url(url)
    if location.scheme == "file":
        from rl_pipeline.stores.disk import DiskObjects  # the port does not need its adapters

        return DiskObjects(Path(location.container))
    from rl_pipeline.stores import s3  # boto3 is paid for by those who use it

    return s3.S3Objects(s3_client or s3.s3_client(), location.container, location.prefix)


def _not_an_address(url: str) -> InvalidObjectsUrl:
    # An address with an @ may carry a password, which must not reach a log.
    shown = "This" if "@" in url else repr(url[:200])
    return InvalidObjectsUrl(
        f"{shown} is no object store: write s3://bucket/prefix/, file:///absolute/directory or a path;"
        " credentials are given apart."
    )
