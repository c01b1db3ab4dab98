"""Blobs that are only created: what is written twice is the same, or is refused."""

from __future__ import annotations

import pytest

from blob_doubles import BlobFault, BlobFaultKind, FaultyBlobs, MemoryBlobs
from treesnap.core.model.errors import RemoteFailed
from treesnap.remote.blobs.wrappers import CreateOnly

NAME = "packs/00-11"


@pytest.fixture
def content() -> dict[str, bytes]:
    return {}


def faulty(content: dict[str, bytes], kind: BlobFaultKind, *, is_lasting: bool = False):
    fault = BlobFault(kind=kind, methods=frozenset({"create"}), is_lasting=is_lasting)
    return CreateOnly(FaultyBlobs(MemoryBlobs(content), fault))


def test_the_same_blob_may_be_written_again(content):
    blobs = CreateOnly(MemoryBlobs(content))

    blobs.put(NAME, b"content")
    blobs.put(NAME, b"content")

    assert content == {NAME: b"content"}
    assert blobs.get(NAME) == b"content"
    assert blobs.get_ranges(NAME, [(1, 3)]) == [b"ont"]
    assert [item.name for item in blobs.list("packs/")] == [NAME]
    assert blobs.create(NAME, b"other") is False
    blobs.delete([NAME])
    blobs.close()
    assert content == {}


def test_another_blob_of_the_name_stays(content):
    content[NAME] = b"longer content"

    with pytest.raises(RemoteFailed, match="Another blob"):
        CreateOnly(MemoryBlobs(content)).put(NAME, b"content")

    assert content == {NAME: b"longer content"}


@pytest.mark.parametrize("kind", [BlobFaultKind.FAIL_BEFORE, BlobFaultKind.FAIL_AFTER])
def test_a_lost_answer_is_no_failure(content, kind):
    faulty(content, kind).put(NAME, b"content")

    assert content == {NAME: b"content"}


def test_a_server_that_goes_on_failing_is_not_asked_for_ever(content):
    with pytest.raises(RemoteFailed):
        faulty(content, BlobFaultKind.FAIL_BEFORE, is_lasting=True).put(NAME, b"content")

    assert content == {}
