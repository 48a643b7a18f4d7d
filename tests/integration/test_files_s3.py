"""Files in an S3 bucket: the same contract over real HTTP, and what is specific to buckets."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.config import Config
from moto.server import ThreadedMotoServer

from tests.integration.test_files import FilesContract
from worker.core.errors import Unavailable
from worker.files.s3 import S3Files
from worker.files.store import files_from

MIB = 1024 * 1024
# The test server dates every upload in 2010: older than an hour, younger than this.
AGES = 60 * 365 * 86400
CREDENTIALS = {"aws_access_key_id": "test", "aws_secret_access_key": "test", "region_name": "us-east-1"}
FAST = Config(connect_timeout=2, read_timeout=5, retries={"mode": "standard", "max_attempts": 1})


@pytest.fixture(name="endpoint", scope="module")
def _endpoint() -> Iterator[str]:
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture(name="client")
def _client(endpoint: str) -> Iterator[Any]:
    client = boto3.client("s3", endpoint_url=endpoint, config=FAST, **CREDENTIALS)
    yield client
    client.close()


@pytest.fixture(name="bucket")
def _bucket(client: Any) -> str:
    name = f"bucket-{uuid.uuid4().hex}"
    client.create_bucket(Bucket=name)
    return name


class TestS3Files(FilesContract):
    """The contract on a bucket."""

    @pytest.fixture(name="files")
    def _files(self, bucket: str, client: Any) -> S3Files:
        return S3Files(bucket, "deliver/ables", client, max_size=MIB)


class TestBucket:
    """Specific to buckets: prefixes, parts, network faults."""

    @pytest.fixture(name="files")
    def _files(self, bucket: str, client: Any) -> S3Files:
        return S3Files(bucket, "/deliver/ables/", client, part_size=5 * MIB)

    def test_files_lie_under_the_prefix(self, files: S3Files, client: Any, bucket: str) -> None:
        """Several workers can share a bucket; the object has the type."""
        ref = files.put(b"x", name="a", mime="image/png")
        head = client.head_object(Bucket=bucket, Key=f"deliver/ables/{ref.key}")
        assert head["ContentType"] == "image/png"
        assert S3Files(bucket, "other", client).stat(ref.key) is None

    def test_prefix_is_optional(self, client: Any, bucket: str) -> None:
        """Without a prefix the object name is the key itself."""
        ref = S3Files(bucket, "", client).put(b"x", name="a", mime="a/b")
        assert client.head_object(Bucket=bucket, Key=ref.key)["ContentLength"] == 1

    @pytest.mark.parametrize("size", [5 * MIB - 1, 5 * MIB, 5 * MIB + 1, 11 * MIB + 7])
    def test_large_files_are_uploaded_in_parts(
        self, files: S3Files, client: Any, bucket: str, size: int
    ) -> None:
        """For sizes around one part and beyond, all bytes arrive in order and no upload stays open."""
        data = os.urandom(size)
        ref = files.put((data[at : at + 700_001] for at in range(0, size, 700_001)), name="a", mime="a/b")
        assert b"".join(files.open(ref.key)) == data
        assert b"".join(files.open(ref.key, size - 3)) == data[-3:]
        tag = client.head_object(Bucket=bucket, Key=f"deliver/ables/{ref.key}")["ETag"].strip('"')
        parts = int(tag.partition("-")[2] or 0)
        assert parts == (0 if size < 5 * MIB else -(-size // (5 * MIB)))
        assert _uploads(client, bucket) == []

    def test_one_large_write_is_split_into_parts(self, files: S3Files) -> None:
        """A single write of several parts arrives complete."""
        data = os.urandom(12 * MIB)
        assert b"".join(files.open(files.put(data, name="a", mime="a/b").key)) == data

    def test_failed_upload_is_aborted(self, files: S3Files, client: Any, bucket: str) -> None:
        """An error after the first part aborts the upload."""
        with pytest.raises(KeyError), files.writer("a", "a/b") as out:
            out.write(b"x" * 6 * MIB)
            assert len(_uploads(client, bucket)) == 1
            raise KeyError("author")
        assert _uploads(client, bucket) == []
        assert files.stat(out.key) is None

    def test_sweep_aborts_only_old_uploads(self, files: S3Files, client: Any, bucket: str) -> None:
        """A dead writer's upload is aborted by age; other prefixes and finished files are untouched."""
        ref = files.put(b"x", name="a", mime="a/b")
        client.create_multipart_upload(Bucket=bucket, Key="deliver/ables/dead")
        client.create_multipart_upload(Bucket=bucket, Key="elsewhere/alive")
        assert files.sweep(AGES) == 0
        assert files.sweep(3600) == 1
        assert _uploads(client, bucket) == ["elsewhere/alive"]
        assert files.stat(ref.key) is not None

    def test_swept_writer_is_refused(self, files: S3Files) -> None:
        """If its upload is removed meanwhile, the write fails instead of being acknowledged."""
        with pytest.raises(Unavailable) as refusal, files.writer("a", "a/b") as out:
            out.write(b"x" * 6 * MIB)
            assert files.sweep(3600) == 1
            out.write(b"y" * 6 * MIB)
        assert refusal.value.code == "STORAGE_UNAVAILABLE"
        assert files.stat(out.key) is None

    def test_missing_bucket_is_unavailable(self, client: Any) -> None:
        """Writing to a bucket that does not exist is Unavailable, without the provider's words."""
        with pytest.raises(Unavailable) as refusal:
            S3Files("no-such-bucket", "p", client).put(b"x", name="a", mime="a/b")
        assert "no-such-bucket" not in str(refusal.value) and "NoSuchBucket" not in str(refusal.value)

    def test_unreachable_bucket_is_unavailable(self) -> None:
        """When nothing listens, every operation raises the same error."""
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            port = taken.getsockname()[1]
        client = boto3.client("s3", endpoint_url=f"http://127.0.0.1:{port}", config=FAST, **CREDENTIALS)
        files = S3Files("bucket", "", client)
        key = "0" * 40
        for act in (
            lambda: files.put(b"x", name="a", mime="a/b"),
            lambda: files.open(key),
            lambda: files.stat(key),
            lambda: files.delete(key),
            lambda: files.sweep(1),
        ):
            with pytest.raises(Unavailable):
                act()
        client.close()

    def test_truncated_response_is_an_error(self) -> None:
        """A connection that breaks in the middle of a file is reported, not treated as its end."""
        with _CutShort() as port:
            client = boto3.client("s3", endpoint_url=f"http://127.0.0.1:{port}", config=FAST, **CREDENTIALS)
            with pytest.raises(Unavailable):
                list(S3Files("bucket", "", client).open("0" * 40))
            client.close()


def test_s3_url_selects_the_bucket(
    endpoint: str, client: Any, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`s3://bucket/prefix` and the usual variables are the only settings needed, on a dyno too."""
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", endpoint)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    ref = files_from(f"s3://{bucket}/some/where/", dyno=True).put(b"x", name="a", mime="a/b")
    assert client.head_object(Bucket=bucket, Key=f"some/where/{ref.key}")["ContentLength"] == 1


def test_disk_needs_no_boto3() -> None:
    """Importing and using files on disk imports no AWS code."""
    code = (
        "import sys, tempfile\n"
        "from worker.files.store import files_from\n"
        "files_from(tempfile.mkdtemp()).put(b'x', name='a', mime='a/b')\n"
        "import worker.files.s3\n"
        "assert 'boto3' not in sys.modules and 'botocore' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parents[2], check=True, timeout=60)


def _uploads(client: Any, bucket: str) -> list[str]:
    return [upload["Key"] for upload in client.list_multipart_uploads(Bucket=bucket).get("Uploads", ())]


class _CutShort:
    """A server that promises 100 kB twice and closes after 10 bytes of the second response."""

    def __enter__(self) -> int:
        self._listener = socket.create_server(("127.0.0.1", 0))
        threading.Thread(target=self._serve, daemon=True).start()
        return int(self._listener.getsockname()[1])

    def _serve(self) -> None:
        head = (
            b"HTTP/1.1 %b\r\nContent-Length: 100000\r\nConnection: close\r\n"
            b"Last-Modified: Wed, 21 Oct 2026 07:28:00 GMT\r\n\r\n"
        )
        for status, body in ((b"200 OK", b""), (b"206 Partial Content", b"0123456789")):
            connection, _ = self._listener.accept()
            with connection:
                connection.recv(65536)
                connection.sendall(head % status + body)

    def __exit__(self, *_: object) -> None:
        self._listener.close()
