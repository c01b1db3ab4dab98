"""Collecting garbage on a disk without a free byte and without a free inode."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import count
from pathlib import Path
from random import Random

import pytest

from garbage import pack_files, use_new_pack
from mounting import Mounter, mounting
from oracle import difference, record
from treesnap.core.handle import Handle
from treesnap.core.model.snapshots import SnapshotKind
from treesnap.core.ops.context import context_at
from treesnap.core.store.reserve import RESERVE_SIZE
from treesnap.testing.doubles import Fault, FaultyFileSystem

pytestmark = pytest.mark.sampled(12)

FIRST, SECOND = "first", "second"


@pytest.fixture
def mounter() -> Iterator[Mounter]:
    with mounting() as mounter:
        yield mounter


@pytest.fixture(params=["ext4", "tmpfs"])
def disk(request, tmp_path, mounter) -> Path:
    if request.param == "ext4":
        return mounter.image(tmp_path / "disk", "ext4", 12)
    return mounter.tmpfs(tmp_path / "disk", "12m,nr_inodes=200")


@pytest.fixture
def handle(disk, tmp_path) -> Handle:
    (tmp_path / "root").mkdir()
    return Handle(context_at(root=tmp_path / "root", store_path=str(disk / "store"), wait_s=0))


def write(handle: Handle, name: str, seed: int, size_bytes: int = 100_000) -> None:
    """Writes a file that cannot be compressed."""
    (Path(handle.root) / name).write_bytes(Random(seed).randbytes(size_bytes))


def fill_up(disk: Path) -> None:
    """Takes every block and every inode."""
    subprocess.run(["sync", "-f", disk], check=True)
    taken = disk / "taken"
    taken.mkdir()
    with suppress(OSError):
        for number in count():
            (taken / str(number)).touch()
    (taken / "0").rename(disk / "ballast")
    with (disk / "ballast").open("wb", buffering=0) as file:
        for size in (1 << 20, 1 << 12, 1):
            with suppress(OSError):
                while file.write(bytes(size)):
                    pass
    subprocess.run(["sync", "-f", disk], check=True)
    with pytest.raises(OSError, match="No space left"):
        (disk / "more").write_bytes(b"more")


def collect(handle: Handle, disk: Path, prepare: Callable[[], object]):
    """Prepares, fills the disk and collects; every snapshot has to come back."""
    prepare()
    expected = {}
    for snapshot in handle.list():
        handle.restore(snapshot.name, to=Path(handle.root).parent / "expected" / snapshot.name)
        expected[snapshot.name] = record(Path(handle.root).parent / "expected" / snapshot.name)
    fill_up(disk)

    result = handle.gc()

    for name, state in expected.items():
        target = Path(handle.root).parent / "found" / name
        handle.restore(name, to=target)
        assert difference(state, record(target)) == []
    assert handle.verify(read_data=True).problems == ()
    assert not [*(disk / "store/temporary").iterdir(), *(disk / "store/pending").iterdir()]
    return result


class TestFullDisk:
    def test_dead_packs_go(self, handle, disk):
        def prepare() -> None:
            write(handle, "file", 1)
            handle.create(name=FIRST)
            use_new_pack(disk / "store")
            write(handle, "file", 2)
            handle.create(name=SECOND)
            handle.delete(SECOND)

        result = collect(handle, disk, prepare)

        assert (result.removed_packs, result.postponed) == (1, None)
        assert result.freed_bytes > 100_000

    def test_dead_packs_make_room_to_rewrite_others(self, handle, disk):
        def prepare() -> None:
            write(handle, "stays", 1)
            write(handle, "goes", 2)
            handle.create(name=FIRST)
            (Path(handle.root) / "goes").unlink()
            handle.create(name=SECOND)
            for number in range(4):
                use_new_pack(disk / "store")
                write(handle, "dead", 3 + number)
                handle.create(name=f"dead-{number}")
            handle.delete(FIRST, *(f"dead-{number}" for number in range(4)))

        result = collect(handle, disk, prepare)

        assert (result.removed_packs, result.rewritten_packs) == (4, 1)
        assert result.postponed is None
        assert result.freed_bytes > 500_000
        assert reserved(disk / "store") == [RESERVE_SIZE] * 2
        handle.create(name="another")

    def test_without_room_to_rewrite_it_says_so(self, handle, disk):
        def prepare() -> None:
            write(handle, "stays", 1)
            write(handle, "goes", 2)
            handle.create(name=FIRST)
            (Path(handle.root) / "goes").unlink()
            handle.create(name=SECOND)
            handle.delete(FIRST)

        result = collect(handle, disk, prepare)

        assert result.freed_bytes == 0
        assert result.postponed == "there is no room to rewrite 1 pack"
        before = pack_files(disk / "store")
        (disk / "ballast").unlink()
        for number in range(1, 10):
            (disk / "taken" / str(number)).unlink()

        again = handle.gc()

        assert (again.rewritten_packs, again.postponed) == (1, None)
        assert pack_files(disk / "store") != before


@pytest.mark.parametrize("has_begun", [True, False], ids=["behind others", "in a new pack"])
def test_copies_that_exceed_a_quota_are_undone(tmp_path, has_begun, monkeypatch):
    """Free space says nothing about a quota: the copy runs into it."""
    monkeypatch.setattr(
        "treesnap.core.store.writer.BATCH_OBJECTS_MAX", 1
    )  # a write for each object
    (tmp_path / "root").mkdir()
    packs = tmp_path / "store/packs"
    handle = Handle(
        context_at(root=tmp_path / "root", store_path=str(tmp_path / "store"), wait_s=0)
    )
    for number in range(10):
        write(handle, f"stays-{number}", number)
    write(handle, "goes", 10, 900_000)
    handle.create(name=FIRST)
    (tmp_path / "root/goes").unlink()
    handle.create(name=SECOND)
    expected = record(tmp_path / "root")
    handle.delete(FIRST)
    use_new_pack(tmp_path / "store")
    if has_begun:
        write(handle, "other", 11)
        handle.create(name="other")
    sizes = {path: path.stat().st_size for path in packs.iterdir()}
    exceeded = Fault(
        number=4,
        errno=errno.EDQUOT,
        methods=frozenset({"write_at"}),
        where=lambda call: call.path.startswith(str(packs)),
        lasting=True,
    )
    limited = Handle(
        context_at(
            root=tmp_path / "root",
            store_path=str(tmp_path / "store"),
            fs=FaultyFileSystem(exceeded),
            wait_s=0,
        )
    )

    result = limited.gc()

    assert result.postponed == "there is no room to rewrite 1 pack"
    assert {path: path.stat().st_size for path in packs.iterdir()} == sizes
    assert handle.verify(read_data=True).problems == ()
    handle.gc()
    handle.restore(SECOND, to=tmp_path / "found")
    assert difference(expected, record(tmp_path / "found")) == []


def test_a_snapshot_makes_what_is_missing_of_the_reserve(tmp_path):
    (tmp_path / "root").mkdir()
    handle = Handle(context_at(root=tmp_path / "root", store_path=str(tmp_path / "store")))
    handle.create()
    assert reserved(tmp_path / "store") == [RESERVE_SIZE] * 2
    (tmp_path / "store/collector/reserve-1").unlink()

    handle.create()

    assert reserved(tmp_path / "store") == [RESERVE_SIZE] * 2


def reserved(store: Path) -> list[int]:
    """Returns the bytes that the files of the reserve take on the disk."""
    return [path.stat().st_blocks * 512 for path in (store / "collector").glob("reserve-*")]


@pytest.mark.needs("holes")
def test_dead_blocks_of_a_pack_that_cannot_be_rewritten_are_given_back(handle, disk):
    """Six sevenths of the only pack are dead, and there is no room for the rest of it."""
    for number in range(7):
        write(handle, f"file-{number}", number, 1 << 20)
    handle.create(name=FIRST)
    for number in range(6):
        (Path(handle.root) / f"file-{number}").unlink()
    kept = handle.create(name=SECOND).id
    fill_up(disk)
    handle.delete(FIRST)
    before = disk_bytes_free(disk)

    result = handle.gc()

    assert result.freed_bytes > 5 << 20
    assert disk_bytes_free(disk) - before > 5 << 20
    assert handle.verify(read_data=True).problems == ()
    assert b"".join(handle.cat(kept, "file-6")) == Random(6).randbytes(1 << 20)
    shutil.rmtree(disk / "taken")  # all inodes
    write(handle, "file-0", 0, 1 << 20)  # what was collected is stored again
    again = handle.create().id
    assert b"".join(handle.cat(again, "file-0")) == Random(0).randbytes(1 << 20)
    assert handle.gc().postponed is None


def test_a_copy_of_the_store_that_has_the_same_packs_loses_no_block(handle, disk):
    for number in range(7):
        write(handle, f"file-{number}", number, 1 << 20)
    first = handle.create(name=FIRST).id
    copy = disk / "copy"
    subprocess.run(["cp", "-al", str(disk / "store"), str(copy)], check=True)
    for path in (copy / "collector").glob("reserve-*"):
        path.unlink()  # as a collection there does that needs it, and makes new ones
    for number in range(6):
        (Path(handle.root) / f"file-{number}").unlink()
    handle.create(name=SECOND)
    fill_up(disk)
    handle.delete(FIRST)

    result = handle.gc()

    assert result.freed_bytes == 0
    (disk / "ballast").unlink()
    shutil.rmtree(disk / "taken")
    kept = Handle(context_at(root=handle.root, store_path=str(copy)))
    assert kept.verify(read_data=True).problems == ()
    assert b"".join(kept.cat(first, "file-1")) == Random(1).randbytes(1 << 20)


def disk_bytes_free(disk: Path) -> int:
    """Returns the bytes of free blocks."""
    subprocess.run(["sync", "-f", disk], check=True)
    status = os.statvfs(disk)
    return status.f_bfree * status.f_frsize


@pytest.mark.needs("holes")
def test_a_restore_gives_automatic_snapshots_up_before_it_fails(handle, disk):
    """Whatever the policy keeps of them; but not the one that it goes to."""
    ids = []
    for number in range(5):
        write(handle, "file", number, 1 << 20)
        ids.append(handle.create(kind=SnapshotKind.AUTOMATIC).id)
    write(handle, "file", 99, 3 << 20)
    fill_up(disk)
    shutil.rmtree(disk / "taken")  # all inodes

    result = handle.restore(ids[0])

    assert (Path(handle.root) / "file").read_bytes() == Random(0).randbytes(1 << 20)
    left = {snapshot.id for snapshot in handle.list()}
    assert {ids[0], result.safety_id} <= left
    assert len(left) < 6
    handle.undo()
    assert (Path(handle.root) / "file").read_bytes() == Random(99).randbytes(3 << 20)
