"""`Objects` on S3 and what speaks its protocol. The only module that imports boto3.

An object's sha256 is kept in its user metadata, together with a `write-id` that no two writes share. Uploads that were
killed leave parts that no listing shows but that are paid for: give the bucket a lifecycle rule that aborts incomplete
multipart uploads.
"""

import hashlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any
from uuid import uuid4

import boto3
from boto3.exceptions import Boto3Error
from boto3.s3.transfer import TransferConfig, create_transfer_manager
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError, NoCredentialsError, PartialCredentialsError

from rl_pipeline.errors import PipelineError
from rl_pipeline.stores.disk import files_at, replacing
from rl_pipeline.stores.objects import (
    CorruptObject,
    InvalidKey,
    ObjectExists,
    ObjectMissing,
    ObjectsUnavailable,
    StoredObject,
    check_key,
    check_prefix,
    is_key,
)

# Four parts of 16 MiB at a time bound the memory of a transfer, whatever the size of the file.
_TRANSFER = TransferConfig(multipart_threshold=16 << 20, multipart_chunksize=16 << 20, max_concurrency=4)


def s3_client(
    endpoint_url: str | None = None,
    region: str | None = None,
    access_key: str | None = None,
    secret_key: str | None = None,
) -> Any:
    """A boto3 client that gives up on a dead server within seconds; what is None boto3 looks up itself."""
    return boto3.client(
        "s3",
        endpoint_url=endpoint_url,
        region_name=region,
        aws_access_key_id=access_key,
        aws_secret_access_key=secret_key,
        config=Config(
            connect_timeout=5,
            read_timeout=60,
            retries={"mode": "standard", "total_max_attempts": 3},
            # Servers other than Amazon's seldom have a host name per bucket.
            s3={"addressing_style": "path" if endpoint_url else "auto"},
        ),
    )


class S3Objects:
    """A bucket, or what is below one prefix of it, as an object store. The bucket must exist.

    `client` is a boto3 client; `prefix` is empty or ends with a slash; `page_size` is how many keys a request lists.
    """

    def __init__(self, client: Any, bucket: str, prefix: str = "", *, page_size: int = 1000) -> None:
        self._client = client
        self._bucket = bucket
        self._prefix = prefix
        self._page_size = page_size

    def put(self, key: str, data: bytes) -> StoredObject:
        check_key(key)
        sha256 = hashlib.sha256(data).hexdigest()
        with self._answers(key):
            answer = self._client.put_object(**self._named(key), Body=data, Metadata=_metadata(sha256))
        return StoredObject(key, len(data), sha256, _date_of(answer))

    def create(self, key: str, data: bytes) -> StoredObject:
        check_key(key)
        sha256 = hashlib.sha256(data).hexdigest()
        metadata = _metadata(sha256)
        with self._answers(key):
            try:
                answer = self._put_if_absent(key, data, metadata)
            except ClientError as error:
                if _code(error) != "PreconditionFailed":
                    raise
                # The client repeats a request whose answer was lost: what is in the way may be this very write.
                answer = error.response
                if not self._has_metadata(key, metadata):
                    raise ObjectExists(self.url(key)) from None
        return StoredObject(key, len(data), sha256, _date_of(answer))

    def get(self, key: str) -> bytes:
        check_key(key)
        with self._answers(key):
            answer = self._client.get_object(**self._named(key))
            data: bytes = answer["Body"].read()
        sha256 = hashlib.sha256(data).hexdigest()
        if sha256 != answer["Metadata"].get("sha256", sha256):
            raise CorruptObject(self.url(key))
        return data

    def upload(self, key: str, path: Path) -> StoredObject:
        check_key(key)
        with files_at(path):
            size = path.stat().st_size
            with path.open("rb") as file:
                sha256 = hashlib.file_digest(file, "sha256").hexdigest()
            extra = {"Metadata": _metadata(sha256)}
            # The manager, because the client's `upload_file` hides the server's answer in a text of its own.
            with self._answers(key), create_transfer_manager(self._client, _TRANSFER) as transfers:
                transfers.upload(str(path), self._bucket, self._prefix + key, extra).result()
        return StoredObject(key, size, sha256, self.stat(key).modified)

    def download(self, key: str, path: Path) -> None:
        check_key(key)
        with self._answers(key), replacing(path) as temporary:
            while True:
                head = self._client.head_object(**self._named(key))
                try:
                    self._client.download_file(**self._named(key), Filename=str(temporary), Config=_TRANSFER)
                except ClientError as error:
                    if _code(error) == "PreconditionFailed":
                        continue  # replaced while its parts were read
                    raise
                with temporary.open("rb") as file:
                    sha256 = hashlib.file_digest(file, "sha256").hexdigest()
                if sha256 == head["Metadata"].get("sha256", sha256):
                    return
                if self._has_metadata(key, head["Metadata"]):
                    raise CorruptObject(self.url(key))  # otherwise it was replaced before its parts were read

    def stat(self, key: str) -> StoredObject:
        check_key(key)
        with self._answers(key):
            head = self._client.head_object(**self._named(key))
        return StoredObject(key, head["ContentLength"], head["Metadata"].get("sha256"), head["LastModified"])

    def exists(self, key: str) -> bool:
        try:
            self.stat(key)
        except ObjectMissing:
            return False
        return True

    def list(self, prefix: str = "") -> Iterator[StoredObject]:
        check_prefix(prefix)
        pages = self._client.get_paginator("list_objects_v2").paginate(
            Bucket=self._bucket, Prefix=self._prefix + prefix, PaginationConfig={"PageSize": self._page_size}
        )
        with self._answers(prefix):
            for page in pages:
                for found in page.get("Contents", ()):
                    key = found["Key"].removeprefix(self._prefix)
                    if is_key(key):
                        yield StoredObject(key, found["Size"], None, found["LastModified"])

    def delete(self, key: str) -> None:
        check_key(key)
        with self._answers(key):
            self._client.delete_object(**self._named(key))

    def url(self, key: str) -> str:
        check_key(key)
        return f"s3://{self._bucket}/{self._prefix}{key}"

    def _named(self, key: str) -> dict[str, str]:
        return {"Bucket": self._bucket, "Key": self._prefix + key}

    def _put_if_absent(self, key: str, data: bytes, metadata: Mapping[str, str], attempts: int = 5) -> Any:
        try:
            return self._client.put_object(**self._named(key), Body=data, Metadata=metadata, IfNoneMatch="*")
        except ClientError as error:
            # S3's answer to writes that meet in the same instant; it asks for another attempt.
            if _code(error) == "ConditionalRequestConflict" and attempts > 1:
                return self._put_if_absent(key, data, metadata, attempts - 1)
            raise

    def _has_metadata(self, key: str, metadata: Mapping[str, str]) -> bool:
        try:
            return bool(self._client.head_object(**self._named(key))["Metadata"] == metadata)
        except ClientError as error:
            if _status(error) == 404:
                return False
            raise

    @contextmanager
    def _answers(self, key: str) -> Iterator[None]:
        """Turn what the server or the way to it refuses into the errors of the port."""
        try:
            yield
        except ClientError as error:
            raise self._refusal(key, error) from error
        except (NoCredentialsError, PartialCredentialsError) as error:
            raise ObjectsUnavailable(
                f"There are no credentials for S3 at {self._endpoint}: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY."
            ) from error
        except (BotoCoreError, Boto3Error) as error:
            raise ObjectsUnavailable(
                f"S3 at {self._endpoint} cannot be reached ({type(error).__name__}): start it, or correct the endpoint."
            ) from error

    def _refusal(self, key: str, error: ClientError) -> PipelineError:
        code = _code(error)
        if code == "NoSuchBucket" or (code == "404" and self._bucket_is_missing()):
            return ObjectsUnavailable(
                f"There is no bucket {self._bucket} at {self._endpoint}: create it, or correct the address."
            )
        if _status(error) == 404:
            return ObjectMissing(self.url(key))
        if code == "KeyTooLongError":
            return InvalidKey(f"The key {key[:80]!r} is too long below {self._prefix!r}: shorten one of them.")
        if _status(error) in (401, 403):
            return ObjectsUnavailable(
                f"S3 at {self._endpoint} refuses access to the bucket {self._bucket} ({code}): check the access key,"
                " the secret key and what they may do."
            )
        return ObjectsUnavailable(
            f"S3 at {self._endpoint} answered {code} for the bucket {self._bucket}: check endpoint and region, or try"
            " again later."
        )

    def _bucket_is_missing(self) -> bool:
        # The answer to a HEAD has no body and so does not say what is missing.
        try:
            self._client.head_bucket(Bucket=self._bucket)
        except ClientError as error:
            return _status(error) == 404
        return False

    @property
    def _endpoint(self) -> str:
        return str(self._client.meta.endpoint_url)


def _metadata(sha256: str) -> dict[str, str]:
    return {"sha256": sha256, "write-id": uuid4().hex}


def _code(error: ClientError) -> str:
    return str(error.response.get("Error", {}).get("Code", "no code"))


def _status(error: ClientError) -> int:
    return int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))


def _date_of(answer: Mapping[str, Any]) -> datetime:
    return parsedate_to_datetime(answer["ResponseMetadata"]["HTTPHeaders"]["date"])
