"""Objects in a bucket of an S3-compatible server. boto3 blocks: call it from threads only."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import boto3
from boto3.exceptions import Boto3Error
from boto3.s3.transfer import TransferConfig
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from .port import CHUNK, ObjectMissing, StorageError, check_digest

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

__all__ = ["S3Options", "S3Store", "s3_errors"]

_MISSING = frozenset({"404", "NoSuchKey", "NoSuchUpload", "NotFound"})


@dataclass(frozen=True, slots=True)
class S3Options:
    """Where the bucket is, and the credentials (None: boto3's own chain)."""

    bucket: str
    endpoint_url: str | None = None
    public_endpoint_url: str | None = None
    region: str = "us-east-1"
    prefix: str = ""
    access_key_id: str | None = None
    secret_access_key: str | None = None
    presign: bool = True


class S3Store:
    """Objects in a bucket.

    The server shows an object only when its upload is complete, so there is no temporary name.
    """

    def __init__(self, options: S3Options) -> None:
        self._options = options
        self.bucket = options.bucket
        prefix = options.prefix.strip("/")
        self.prefix = f"{prefix}/" if prefix else ""
        self.client = _client(options, options.endpoint_url)
        public = options.public_endpoint_url
        # a signature covers the host, so a URL for clients is signed for the host they reach
        self.public_client = _client(options, public) if public else self.client
        self._transfer = TransferConfig(
            multipart_threshold=32 << 20, multipart_chunksize=32 << 20, max_concurrency=4
        )

    def put_file(self, path: Path, sha256: str) -> None:
        """Store a file; see :class:`~service.storage.port.ObjectStore`."""
        if self.size(sha256) is None:
            with s3_errors("store an object"):
                self.client.upload_file(
                    str(path), self.bucket, self._key(sha256), Config=self._transfer
                )
        path.unlink()

    def copy_in(self, key: str, sha256: str) -> None:
        """Give bytes of the bucket, whose digest the caller has computed, an object's name."""
        with s3_errors("store an object"):
            self.client.copy(
                {"Bucket": self.bucket, "Key": key},
                self.bucket,
                self._key(sha256),
                Config=self._transfer,
            )

    def local_path(self, sha256: str) -> Path | None:
        """Return None: objects are elsewhere."""
        return None

    def size(self, sha256: str) -> int | None:
        """Return an object's size, or None."""
        try:
            with s3_errors("look up an object"):
                head = self.client.head_object(Bucket=self.bucket, Key=self._key(sha256))
        except ObjectMissing:
            return None
        return head["ContentLength"]

    def read(self, sha256: str, start: int = 0, stop: int | None = None) -> Iterator[bytes]:
        """Yield a range of an object's bytes."""
        if stop is not None and stop <= start:
            return iter(())
        span = f"bytes={start}-{'' if stop is None else stop - 1}"
        with s3_errors("read an object", sha256):
            if start == 0 and stop is None:
                found = self.client.get_object(Bucket=self.bucket, Key=self._key(sha256))
            else:
                found = self.client.get_object(
                    Bucket=self.bucket, Key=self._key(sha256), Range=span
                )

        def chunks() -> Iterator[bytes]:
            body = found["Body"]
            try:
                with s3_errors("read an object", sha256):
                    yield from body.iter_chunks(CHUNK)
            finally:
                body.close()

        return chunks()

    def presign(
        self, sha256: str, *, disposition: str, media_type: str, expires_s: int
    ) -> str | None:
        """Return a URL that serves the object; None where presigning is off."""
        if not self._options.presign:
            return None
        return self.public_client.generate_presigned_url(
            "get_object",
            Params={
                "Bucket": self.bucket,
                "Key": self._key(sha256),
                "ResponseContentDisposition": disposition,
                "ResponseContentType": media_type,
            },
            ExpiresIn=expires_s,
        )

    def delete(self, sha256: str) -> bool:
        """Remove an object."""
        if self.size(sha256) is None:
            return False
        with s3_errors("delete an object"):
            self.client.delete_object(Bucket=self.bucket, Key=self._key(sha256))
        return True

    def digests(self) -> Iterator[str]:
        """Yield the digest of every object."""
        pages = self.client.get_paginator("list_objects_v2").paginate(
            Bucket=self.bucket, Prefix=f"{self.prefix}objects/"
        )
        with s3_errors("list objects"):
            for page in pages:
                for item in page.get("Contents", []):
                    name = item["Key"].rsplit("/", 1)[-1]
                    if len(name) == 64:
                        yield name

    def check(self) -> None:
        """Raise unless the bucket is there and ours."""
        try:
            with s3_errors("reach the bucket"):
                self.client.head_bucket(Bucket=self.bucket)
        except ObjectMissing as exc:
            raise StorageError(f"there is no bucket {self.bucket!r}") from exc

    def _key(self, sha256: str) -> str:
        check_digest(sha256)
        return f"{self.prefix}objects/{sha256[:2]}/{sha256[2:4]}/{sha256}"


def _client(options: S3Options, endpoint_url: str | None) -> S3Client:
    return boto3.client(
        "s3",
        endpoint_url=endpoint_url,
        region_name=options.region,
        aws_access_key_id=options.access_key_id,
        aws_secret_access_key=options.secret_access_key,
        config=Config(
            signature_version="s3v4",
            # a bucket name in the host needs a wildcard DNS entry that own servers rarely have
            s3={"addressing_style": "path" if endpoint_url else "auto"},
            retries={"max_attempts": 4, "mode": "standard"},
            connect_timeout=10,
            read_timeout=60,
            max_pool_connections=32,
        ),
    )


@contextmanager
def s3_errors(what: str, sha256: str = "") -> Iterator[None]:
    """Translate boto3's errors; the text keeps neither credentials nor the endpoint."""
    try:
        yield
    except ClientError as exc:
        code = str(exc.response.get("Error", {}).get("Code", ""))
        if code in _MISSING:
            raise ObjectMissing(sha256) from exc
        raise StorageError(
            f"cannot {what}: the object store answered {code or 'an error'}"
        ) from exc
    # the transfer manager has errors of its own
    except (BotoCoreError, Boto3Error) as exc:
        raise StorageError(f"cannot {what}: {type(exc).__name__}") from exc
