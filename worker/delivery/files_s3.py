"""Files in an S3-compatible bucket, for workers whose processes share no disk.

Small files are one PUT; large ones go up in parts while they are written, and become visible when the
last part is acknowledged. `AWS_ENDPOINT_URL_S3` and the usual AWS variables name another provider.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from datetime import datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import Any

from worker.delivery.files import (
    Chunks,
    Reading,
    Stat,
    check_key,
    check_start,
    file_not_found,
    storage_failed,
)
from worker.delivery.filewriter import MAX_SIZE, Data, FileRef, FileWriter, Sink, write_all
from worker.errors import NotFound

PART = 8 * 1024 * 1024
_ABSENT = {"NoSuchKey", "NoSuchUpload", "404", "NotFound"}


def s3_client() -> Any:
    """A client from the environment; boto3 is loaded only here."""
    try:
        import boto3
        from botocore.config import Config
    except ImportError as error:
        raise ValueError("FILES_URL is s3://, which needs the extra: pip install hire-worker[s3]") from error
    return boto3.client(
        "s3",
        config=Config(
            connect_timeout=5,
            read_timeout=30,
            retries={"mode": "standard", "max_attempts": 3},
            # Other providers do not know the newer checksums; Content-MD5 they all check.
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
            return Reading(_Nothing(), 0)
        with _errors():
            answer = self._client.get_object(**self._where(key), Range=f"bytes={start}-{end - 1}")
            return Reading(_Body(answer["Body"]), end - start)

    def stat(self, key: str) -> Stat | None:
        try:
            with _errors():
                head = self._client.head_object(**self._where(key))
        except NotFound:
            return None
        return Stat(int(head["ContentLength"]), round(head["LastModified"].timestamp()) * 1_000_000)

    def delete(self, key: str) -> None:
        with suppress(NotFound), _errors():
            self._client.delete_object(**self._where(key))

    def sweep(self, older_than: float) -> int:
        """Abort uploads nobody finished. `older_than` must exceed the longest run: a slow one looks alike."""
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
    """Collects bytes up to a part, then sends parts."""

    def __init__(self, client: Any, where: dict[str, str], mime: str, part_size: int) -> None:
        self._client, self._where, self._mime, self._part_size = client, where, mime, part_size
        self._buffer = bytearray()
        self._upload: str | None = None
        self._parts: list[dict[str, Any]] = []
        self._committing = False

    def write(self, data: memoryview) -> None:
        # Slices, so that one huge write does not lie in memory twice.
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
        # A commit whose answer was lost may have made the object after all.
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
    """The bytes of an answer; its faults get our names."""

    def __init__(self, body: Any) -> None:
        self._body = body

    def read(self, size: int = -1, /) -> bytes:
        with _errors():
            data: bytes = self._body.read(size)
            return data

    def close(self) -> None:
        self._body.close()


class _Nothing:
    """An empty range; S3 cannot ask for one."""

    def read(self, size: int = -1, /) -> bytes:
        return b""

    def close(self) -> None:
        return None


@contextmanager
def _errors(*, absent: bool = True) -> Iterator[None]:
    """NotFound for what is absent, where that is an answer; Unavailable for every other fault."""
    from botocore.exceptions import BotoCoreError, ClientError

    try:
        yield
    except ClientError as error:
        if absent and error.response.get("Error", {}).get("Code") in _ABSENT:
            raise file_not_found() from error
        raise storage_failed() from error
    except (BotoCoreError, OSError) as error:
        raise storage_failed() from error


def _server_time(answer: dict[str, Any]) -> datetime:
    """The bucket's clock, which also dates the uploads."""
    return parsedate_to_datetime(answer["ResponseMetadata"]["HTTPHeaders"]["date"])


def _md5(body: bytes) -> str:
    return base64.b64encode(hashlib.md5(body, usedforsecurity=False).digest()).decode()
