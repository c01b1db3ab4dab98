"""A directory of which the disk is full: what makes room works there, and nothing is lost."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

import treesnap
from blob_doubles import MemoryBlobs, WrappedBlobs
from mounting import mounting
from treesnap.core.model.errors import ErrorCode, RemoteFailed
from treesnap.core.store.maintenance.retention import Policy
from treesnap.remote import Remotes
from treesnap.remote.blobs import wrappers
from treesnap.remote.blobs.wrappers import RESERVE_BYTES, RoomKept

RESERVE = "reserve/0"


@pytest.fixture
def disk(tmp_path) -> Iterator[Path]:
    with mounting() as mounter:
        yield mounter.tmpfs(tmp_path / "disk", "48m")


def fill(disk: Path) -> None:
    """Leaves no byte free."""
    with (disk / "junk").open("ab", buffering=0) as file, suppress(OSError):
        while True:
            file.write(bytes(1 << 16))
    with (disk / "junk").open("ab", buffering=0) as file, suppress(OSError):
        while True:
            file.write(bytes(1))


@pytest.mark.parametrize("is_shared", [True, False], ids=["a pack is rewritten", "packs go"])
def test_on_a_full_disk_a_prune_and_a_collection_make_room(tmp_path, disk, is_shared):
    garden, place = tmp_path / "garden", disk / "remote"
    garden.mkdir()
    handle = treesnap.open(garden, tmp_path / "store")
    remotes = Remotes(handle)
    remotes.add("disk", str(place))
    for number in range(4):
        (garden / "plant").write_bytes(os.urandom(1 << 20))
        (garden / f"tree{number}").write_bytes(os.urandom(100 if is_shared else 0))
        handle.create()
        remotes.push()
    assert (place / RESERVE).stat().st_size == RESERVE_BYTES
    fill(disk)
    (garden / "flowers").write_bytes(os.urandom(3 << 20))
    handle.create()
    with pytest.raises(RemoteFailed) as full:
        remotes.push()
    assert full.value.code == ErrorCode.REMOTE_FULL
    assert (place / RESERVE).exists()

    pruned = remotes.prune(policy=Policy(keep_last=1))
    assert not (place / RESERVE).exists()
    collected = remotes.collect()

    assert len(pruned.removed) == 3
    assert collected.freed_bytes > 2 << 20
    assert not remotes.verify(read_data=True).problems
    remotes.push()
    (disk / "junk").unlink()
    remotes.collect()
    assert (place / RESERVE).stat().st_size == RESERVE_BYTES
    assert [item.snapshots for item in remotes.histories()] == [2]


class Full(WrappedBlobs):
    """Has room for so many bytes."""

    def __init__(self, room_bytes: int) -> None:
        self.content: dict[str, bytes] = {}
        super().__init__(MemoryBlobs(self.content))
        self.room_bytes = room_bytes

    def around(self, method, proceed, arguments):
        if method in {"put", "create"}:
            used = sum(map(len, self.content.values()))
            if used + len(arguments[1]) > self.room_bytes:
                raise RemoteFailed("No room", code=ErrorCode.REMOTE_FULL)
        return proceed()


@pytest.fixture
def noise(monkeypatch):
    """Blocks that are made at once."""
    monkeypatch.setattr(wrappers.os, "urandom", bytes)


def test_as_much_room_is_kept_as_there_is(noise):
    for room_mib, kept_mib in ((9, 8), (5, 4), (3, 2), (1, 0)):
        blobs = Full(room_mib << 20)
        RoomKept(blobs).keep()
        assert len(blobs.content.get(RESERVE, b"")) == kept_mib << 20
        RoomKept(blobs).keep()
        assert len(blobs.content.get(RESERVE, b"")) == kept_mib << 20


def test_what_is_kept_is_for_what_is_written_last_and_not_for_large_packs(noise):
    blobs = Full(9 << 20)
    RoomKept(blobs).keep()
    reserve = RoomKept(blobs)

    with pytest.raises(RemoteFailed):
        reserve.put("packs/00", bytes(5 << 20))
    assert RESERVE in blobs.content
    reserve.put("packs/01", bytes(4 << 20))
    assert RESERVE not in blobs.content
    with pytest.raises(RemoteFailed, match="what was kept") as caught:
        reserve.put("packs/02", bytes(1))
    assert caught.value.code == ErrorCode.REMOTE_FULL
    assert reserve.create("state/00", bytes(4 << 20))
    with pytest.raises(RemoteFailed, match="No room"):
        reserve.put("index/00", bytes(2 << 20))


def test_who_may_not_write_there_keeps_nothing():
    class Denied(WrappedBlobs):
        def around(self, method, proceed, arguments):
            if method == "put":
                raise RemoteFailed("No", code=ErrorCode.REMOTE_DENIED)
            return proceed()

    RoomKept(Denied(MemoryBlobs())).keep()
