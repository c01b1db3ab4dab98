"""Fixtures of a real server that speaks S3, for tests in several directories."""

from __future__ import annotations

import itertools
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ceph import ACCESS_KEY, SECRET_KEY, Ceph, free_ports, missing_programs, running_ceph
from treesnap.remote.blobs.bucket import BucketBlobs, parse_bucket_url


@pytest.fixture(scope="session")
def ceph(tmp_path_factory) -> Iterator[Ceph]:
    """A server that speaks S3. Its sockets have long paths, which the system limits."""
    if missing := missing_programs():
        pytest.skip(f"Ceph is not installed: {', '.join(missing)}")
    with running_ceph(Path(tempfile.mkdtemp(prefix="ceph-"))) as cluster:
        cluster.make_bucket("tests")
        yield cluster


@pytest.fixture
def bucket_environment(monkeypatch) -> None:
    """Credentials of the tests' user, and nothing else that obstore would take from outside."""
    for name in os.environ:
        if name.startswith(("AWS_", "AZURE_", "GOOGLE_")) or name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", ACCESS_KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET_KEY)
    monkeypatch.setenv("AWS_METADATA_ENDPOINT", f"http://127.0.0.1:{free_ports(1)[0]}")


_numbers = itertools.count()


@pytest.fixture
def bucket_url(ceph, bucket_environment) -> str:
    """The address of an empty place in a bucket of a real server."""
    return f"s3://tests/below/{next(_numbers)}?endpoint={ceph.endpoint}"


@pytest.fixture
def new_bucket(bucket_url) -> Iterator[Callable[[], BucketBlobs]]:
    """Makes connections to one empty place in a bucket of a real server."""
    made = []

    def connect() -> BucketBlobs:
        made.append(BucketBlobs(parse_bucket_url(bucket_url)))
        return made[-1]

    yield connect
    for blobs in made:
        blobs.close()
