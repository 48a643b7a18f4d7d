"""Files in an S3-compatible bucket, for workers whose processes share no disk.

Small files are one PUT. Large ones are uploaded in parts while they are written, and become visible when
the upload is completed. `AWS_ENDPOINT_URL_S3` and the usual AWS variables select another provider.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from datetime import datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import Any

from worker.core.errors import NotFound
from worker.files.failures import file_not_found, storage_failed
from worker.files.store import OK, Chunks, FileReader, FileStat, check_key, check_start
from worker.files.writer import MAX_SIZE, Data, FileRef, FileWriter, Sink, write_all

PART = 8 * 1024 * 1024
_ABSENT = {"NoSuchKey", "NoSuchUpload", "404", "NotFound"}


def s3_client() -> Any:
    """A client configured from the environment; boto3 is imported only here."""
    import boto3
    from botocore.config import Config

    return boto3.client(
        "s3",
        config=Config(
            connect_timeout=5,
            read_timeout=30,
            retries={"mode": "standard", "max_attempts": 3},
            # Other providers do not support the newer checksums; all of them check Content-MD5.
            request_checksum_calculation="when_required",
            response_checksum_validation="when_required",
        ),
    )


class S3Files:
    """Files under one prefix of one bucket."""

    def __init__(
        self, bucket: str, prefix: str, client: Any, *, max_size: int = MAX_SIZE, part_size: int = PART
    ) -> None:
        self.bucket = bucket
        self.prefix = f"{prefix.strip('/')}/" if prefix.strip("/") else ""
        self.max_size = max_size
        self._client, self._part_size = client, part_size

    def writer(self, name: str, mime: str) -> FileWriter:
        return FileWriter(self._begin, name, mime, max_size=self.max_size)

    def put(self, data: Data | Iterable[bytes], *, name: str, mime: str) -> FileRef:
        return write_all(self.writer(name, mime), data)

    def open(self, key: str, start: int = 0, end: int | None = None) -> Chunks:
        check_start(start)
        found = self.stat(key)
        if found is None:
            raise file_not_found()
        end = found.size if end is None else min(end, found.size)
        if start >= end:
            return FileReader(_EmptyRange(), 0)
        with _errors():
            answer = self._client.get_object(**self._where(key), Range=f"bytes={start}-{end - 1}")
            return FileReader(_Body(answer["Body"]), end - start)

    def stat(self, key: str) -> FileStat | None:
        try:
            with _errors():
                head = self._client.head_object(**self._where(key))
        except NotFound:
            return None
        return FileStat(int(head["ContentLength"]), round(head["LastModified"].timestamp()) * 1_000_000)

    def delete(self, key: str) -> None:
        with suppress(NotFound), _errors():
            self._client.delete_object(**self._where(key))

    def check(self) -> str:
        with _errors(absent=False):
            self._client.put_object(Bucket=self.bucket, Key=f"{self.prefix}probe", Body=b"")
        return OK

    def sweep(self, older_than: float) -> int:
        """Abort stale uploads. `older_than` must exceed the longest run: a slow upload looks the same."""
        removed = 0
        with _errors():
            pages = self._client.get_paginator("list_multipart_uploads")
            for page in pages.paginate(Bucket=self.bucket, Prefix=self.prefix):
                limit = _server_time(page) - timedelta(seconds=older_than)
                for upload in page.get("Uploads", ()):
                    if upload["Initiated"] <= limit:
                        removed += self._abandon(upload["Key"], upload["UploadId"])
        return removed

    def _abandon(self, key: str, upload: str) -> bool:
        try:
            with _errors():
                self._client.abort_multipart_upload(Bucket=self.bucket, Key=key, UploadId=upload)
        except NotFound:
            return False
        return True

    def _where(self, key: str) -> dict[str, str]:
        check_key(key)
        return {"Bucket": self.bucket, "Key": self.prefix + key}

    def _begin(self, key: str, mime: str) -> Sink:
        return _S3Sink(self._client, self._where(key), mime, self._part_size)


class _S3Sink:
    """Buffers bytes and uploads them part by part."""

    def __init__(self, client: Any, where: dict[str, str], mime: str, part_size: int) -> None:
        self._client, self._where, self._mime, self._part_size = client, where, mime, part_size
        self._buffer = bytearray()
        self._upload: str | None = None
        self._parts: list[dict[str, Any]] = []
        self._committing = False

    def write(self, data: memoryview) -> None:
        # Slices, so that one huge write is not held in memory twice.
        for start in range(0, data.nbytes, self._part_size):
            self._buffer += data[start : start + self._part_size]
            while len(self._buffer) >= self._part_size:
                self._send_part(bytes(self._buffer[: self._part_size]))
                del self._buffer[: self._part_size]

    def commit(self) -> None:
        self._committing = True
        if self._upload is None:
            body = bytes(self._buffer)
            with _errors(absent=False):
                self._client.put_object(
                    **self._where, Body=body, ContentType=self._mime, ContentMD5=_md5(body)
                )
            return
        if self._buffer:
            self._send_part(bytes(self._buffer))
        with _errors(absent=False):
            self._client.complete_multipart_upload(
                **self._where, UploadId=self._upload, MultipartUpload={"Parts": self._parts}
            )

    def abort(self) -> None:
        with suppress(Exception):
            if self._upload is not None:
                self._client.abort_multipart_upload(**self._where, UploadId=self._upload)
        # A commit whose answer was lost may still have created the object.
        with suppress(Exception):
            if self._committing:
                self._client.delete_object(**self._where)

    def _send_part(self, body: bytes) -> None:
        number = len(self._parts) + 1
        with _errors(absent=False):
            if self._upload is None:
                begun = self._client.create_multipart_upload(**self._where, ContentType=self._mime)
                self._upload = begun["UploadId"]
            sent = self._client.upload_part(
                **self._where, UploadId=self._upload, PartNumber=number, Body=body, ContentMD5=_md5(body)
            )
        self._parts.append({"ETag": sent["ETag"], "PartNumber": number})


class _Body:
    """The body of an answer; translates its errors to ours."""

    def __init__(self, body: Any) -> None:
        self._body = body

    def read(self, size: int = -1, /) -> bytes:
        with _errors():
            data: bytes = self._body.read(size)
            return data

    def close(self) -> None:
        self._body.close()


class _EmptyRange:
    """An empty range, which S3 cannot request."""

    def read(self, size: int = -1, /) -> bytes:
        return b""

    def close(self) -> None:
        return None


@contextmanager
def _errors(*, absent: bool = True) -> Iterator[None]:
    """Raises NotFound for a missing object if `absent`; Unavailable for every other error."""
    from botocore.exceptions import BotoCoreError, ClientError

    try:
        yield
    except ClientError as error:
        if absent and error.response.get("Error", {}).get("Code") in _ABSENT:
            raise file_not_found() from error
        raise storage_failed(error) from error
    except (BotoCoreError, OSError) as error:
        raise storage_failed(error) from error


def _server_time(answer: dict[str, Any]) -> datetime:
    """The bucket's clock, which also timestamps the uploads."""
    return parsedate_to_datetime(answer["ResponseMetadata"]["HTTPHeaders"]["date"])


def _md5(body: bytes) -> str:
    return base64.b64encode(hashlib.md5(body, usedforsecurity=False).digest()).decode()
