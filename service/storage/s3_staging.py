"""Unfinished uploads as multipart uploads of a bucket: clients send parts straight to it.

The joined file lies under a name of its own until its digest is known to be right; then the
server copies it to the object's name. The URLs of its parts are worth nothing by then.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from ..domain import Upload
from .port import CHUNK, ObjectMissing, StorageError
from .s3 import S3Store, s3_errors
from .spool import Spool
from .staging import Heartbeat, PartWriter, gone, wrong_length

if TYPE_CHECKING:
    from mypy_boto3_s3.type_defs import CompletedPartTypeDef

__all__ = ["S3Staging"]


class S3Staging:
    """Unfinished uploads in the bucket of a store.

    Args:
        store: where finished ones go.
        presign: whether clients send parts to the bucket themselves.
    """

    def __init__(self, store: S3Store, *, presign: bool) -> None:
        self._store = store
        self._client = store.client
        self._bucket = store.bucket
        self._presign = presign

    def begin(self, upload: Upload) -> str | None:
        """Open a multipart upload and return its name."""
        with s3_errors("open an upload"):
            made = self._client.create_multipart_upload(Bucket=self._bucket, Key=self._key(upload))
        return made["UploadId"]

    def part_url(self, upload: Upload, number: int, expires_s: int) -> str | None:
        """Return a URL to which the part is PUT; None where presigning is off."""
        if not self._presign or upload.staging is None:
            return None
        return self._store.public_client.generate_presigned_url(
            "upload_part",
            Params={
                "Bucket": self._bucket,
                "Key": self._key(upload),
                "UploadId": upload.staging,
                "PartNumber": number,
                "ContentLength": upload.size_of(number),
            },
            ExpiresIn=expires_s,
        )

    @contextmanager
    def part_writer(self, upload: Upload, number: int, scratch: Path) -> Iterator[PartWriter]:
        """Take a part to a scratch file, and pass it on when it is whole."""
        with Spool(scratch, limit=upload.size_of(number), what="the part") as spool:
            yield _S3Part(self, upload, number, spool)

    def pass_on(self, upload: Upload, number: int, path: Path) -> None:
        """Send a part from a file."""
        assert upload.staging is not None
        try:
            with s3_errors("store a part"), path.open("rb") as body:
                self._client.upload_part(
                    Bucket=self._bucket,
                    Key=self._key(upload),
                    UploadId=upload.staging,
                    PartNumber=number,
                    Body=body,
                )
        except ObjectMissing:
            raise gone(upload) from None

    def held(self, upload: Upload) -> dict[int, int]:
        """Return what the bucket says."""
        return {number: size for number, (size, _) in self._parts(upload).items()}

    def landed(self, upload: Upload, number: int, mark: str) -> None:
        """Do nothing: the bucket keeps the list."""

    def finish(self, upload: Upload, alive: Heartbeat) -> str:
        """Join the parts, read the whole, and copy it to its name when it is right."""
        key = self._key(upload)
        parts = self._parts(upload)
        if not parts and self._staged_size(upload) is None:
            raise StorageError(f"the parts of upload {upload.id} are missing")
        if parts:
            assert upload.staging is not None
            listed: list[CompletedPartTypeDef] = [
                {"PartNumber": number, "ETag": etag} for number, (_, etag) in sorted(parts.items())
            ]
            with s3_errors("join an upload"):
                self._client.complete_multipart_upload(
                    Bucket=self._bucket,
                    Key=key,
                    UploadId=upload.staging,
                    MultipartUpload={"Parts": listed},
                )
        digest = hashlib.sha256()
        with s3_errors("read an upload"):
            body = self._client.get_object(Bucket=self._bucket, Key=key)["Body"]
            with contextlib.closing(body):
                for chunk in body.iter_chunks(CHUNK):
                    digest.update(chunk)
                    alive()
        found = digest.hexdigest()
        if found == upload.sha256 and self._store.size(found) is None:
            self._store.copy_in(key, found)
        return found

    def discard(self, upload: Upload) -> None:
        """Remove parts and the joined file."""
        key = self._key(upload)
        if upload.staging is not None:
            with contextlib.suppress(ObjectMissing), s3_errors("remove an upload"):
                self._client.abort_multipart_upload(
                    Bucket=self._bucket, Key=key, UploadId=upload.staging
                )
        with contextlib.suppress(ObjectMissing), s3_errors("remove an upload"):
            self._client.delete_object(Bucket=self._bucket, Key=key)

    def _key(self, upload: Upload) -> str:
        return f"{self._store.prefix}uploads/{upload.id}"

    def _staged_size(self, upload: Upload) -> int | None:
        try:
            with s3_errors("look up an upload"):
                head = self._client.head_object(Bucket=self._bucket, Key=self._key(upload))
        except ObjectMissing:
            return None
        return head["ContentLength"]

    def _parts(self, upload: Upload) -> dict[int, tuple[int, str]]:
        """Return size and ETag by number; every part where the file is joined already: none."""
        if upload.staging is None:
            return {}
        found: dict[int, tuple[int, str]] = {}
        pages = self._client.get_paginator("list_parts").paginate(
            Bucket=self._bucket, Key=self._key(upload), UploadId=upload.staging
        )
        try:
            with s3_errors("list the parts of an upload"):
                for page in pages:
                    for part in page.get("Parts", []):
                        found[part["PartNumber"]] = (part["Size"], part["ETag"])
        except ObjectMissing:
            return {}
        return found

    def joined(self, upload: Upload) -> bool:
        """Say whether the parts were joined already, by a process that died after that."""
        # never by the object's name: whoever knows a digest would own the bytes without sending
        return self._staged_size(upload) == upload.size and not self._parts(upload)


class _S3Part:
    def __init__(self, staging: S3Staging, upload: Upload, number: int, spool: Spool) -> None:
        self._staging = staging
        self._upload = upload
        self._number = number
        self._spool = spool

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self._spool.size + len(data) > self._upload.size_of(self._number):
            raise wrong_length(self._upload, self._number, "more bytes")
        self._spool.write(data)

    def finish(self) -> None:
        if self._spool.size != self._upload.size_of(self._number):
            raise wrong_length(self._upload, self._number, f"{self._spool.size} bytes")
        self._spool.finish()
        self._staging.pass_on(self._upload, self._number, self._spool.path)
