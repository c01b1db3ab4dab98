"""The doubles of blobs themselves: how they fail, repeat, cut and list late."""

from __future__ import annotations

import pytest

from blob_doubles import BlobFault, BlobFaultKind, FaultyBlobs, LateListBlobs, MemoryBlobs
from treesnap.core.model.errors import RemoteFailed
from treesnap.remote.blobs.base import BlobMissing


@pytest.fixture
def memory():
    return MemoryBlobs()


def names_of(blobs) -> list[str]:
    return [item.name for item in blobs.list("packs/")]


@pytest.mark.parametrize(
    ("kind", "content"),
    [(BlobFaultKind.FAIL_BEFORE, {}), (BlobFaultKind.FAIL_AFTER, {"packs/00": b"one"})],
)
@pytest.mark.parametrize("method", ["put", "create"])
def test_a_write_that_fails_is_unclear_with_its_effect_or_without(memory, method, kind, content):
    blobs = FaultyBlobs(memory, BlobFault(kind=kind, methods=frozenset({method})))

    with pytest.raises(RemoteFailed) as caught:
        getattr(blobs, method)("packs/00", b"one")

    assert caught.value.is_unclear
    assert memory.content == content


def test_the_nth_call_of_some_is_treated(memory):
    fault = BlobFault(
        kind=BlobFaultKind.FAIL_BEFORE,
        number=2,
        methods=frozenset({"get", "delete"}),
        names=lambda name: name.startswith("packs/"),
    )
    blobs = FaultyBlobs(memory, fault)
    for name in ("packs/00", "state/00"):
        blobs.put(name, b"one")

    blobs.get("state/00")
    blobs.get("packs/00")
    blobs.delete(["state/00"])
    with pytest.raises(RemoteFailed) as caught:
        blobs.delete(["packs/00"])
    blobs.get("packs/00")

    assert not caught.value.is_unclear
    assert blobs.hits_of(fault) == 1


def test_a_lasting_fault_goes_on(memory):
    fault = BlobFault(kind=BlobFaultKind.FAIL_BEFORE, number=2, is_lasting=True)
    blobs = FaultyBlobs(memory, fault)

    blobs.put("packs/00", b"one")
    for _ in range(3):
        with pytest.raises(RemoteFailed):
            blobs.get("packs/00")

    assert blobs.hits_of(fault) == 3


def test_a_request_arrives_once_more_after_others(memory):
    fault = BlobFault(
        kind=BlobFaultKind.REPEAT_LATER, methods=frozenset({"put"}), number=1, delay=2
    )
    blobs = FaultyBlobs(memory, fault)

    blobs.put("packs/00", b"one")
    blobs.delete(["packs/00"])
    seen = [names_of(blobs), names_of(blobs)]

    assert seen == [[], ["packs/00"]]


def test_a_request_that_is_under_way_arrives_in_the_end(memory):
    fault = BlobFault(kind=BlobFaultKind.REPEAT_LATER, methods=frozenset({"delete"}), delay=100)
    blobs = FaultyBlobs(memory, fault)

    blobs.delete(["packs/00"])
    blobs.put("packs/00", b"one")
    before = names_of(blobs)
    blobs.settle()

    assert (before, names_of(blobs)) == (["packs/00"], [])


def test_what_is_read_lacks_its_second_half(memory):
    fault = BlobFault(kind=BlobFaultKind.CUT, methods=frozenset({"get", "get_ranges"}))
    memory.put("packs/00", b"content")

    assert FaultyBlobs(memory, fault).get("packs/00") == b"con"
    assert FaultyBlobs(memory, fault).get_ranges("packs/00", [(0, 4), (2, 2)]) == [b"co", b"n"]


def test_a_fault_after_a_call_that_fails_itself_is_that_failure(memory):
    blobs = FaultyBlobs(memory, BlobFault(kind=BlobFaultKind.FAIL_AFTER))

    with pytest.raises(BlobMissing):
        blobs.get("packs/00")


@pytest.mark.parametrize(
    ("lag", "listed"),
    [(0, ["packs/01"]), (1, ["packs/00", "packs/01"]), (2, ["packs/00"]), (9, [])],
)
def test_a_late_listing_lacks_the_last_changes_alone(memory, lag, listed):
    blobs = LateListBlobs(memory, lag, [])

    blobs.put("packs/00", b"one")
    blobs.put("packs/01", b"two")
    blobs.delete(["packs/00"])

    assert names_of(blobs) == listed
    assert blobs.get("packs/01") == b"two"
