"""Packs and parts of the index become few, and nothing is written again and again for it."""

from __future__ import annotations

import math
import os

import pytest

from garbage import pack_files, use_new_pack
from oracle import difference, record
from sampling import sized
from treesnap.core.handle import Handle
from treesnap.core.ops.context import context_at
from treesnap.core.store.maintenance.pack_usage import MERGED_MIN
from treesnap.testing.doubles import MUTATING, RecordingFileSystem, UnsyncedFileSystem

pytestmark = pytest.mark.sampled(10)

CREATES = sized(64, 1000)
SMALL_CREATES = sized(160, 1000)


@pytest.fixture
def fs() -> RecordingFileSystem:
    return RecordingFileSystem(UnsyncedFileSystem())


@pytest.fixture
def handle(tmp_path, fs) -> Handle:
    (tmp_path / "root").mkdir()
    return Handle(
        context_at(root=tmp_path / "root", store_path=str(tmp_path / "store"), fs=fs, wait_s=0)
    )


def written(fs: RecordingFileSystem, handle: Handle, directory: str) -> int:
    return fs.written_bytes(below=f"{handle.store_path}/{directory}")


def collect_again(handle: Handle, fs: RecordingFileSystem) -> list[str]:
    """Collects; returns what was changed in the store, but for the note in the lock."""
    fs.clear()
    handle.gc()
    lock = f"{handle.store_path}/collector/lock"
    return [item.path for item in fs.calls(kinds=MUTATING) if item.path != lock]


@pytest.mark.parametrize("deleted_share", [0, 2], ids=["all stay", "half go"])
def test_many_small_packs_become_few_and_each_byte_is_rarely_copied(
    handle, fs, tmp_path, deleted_share
):
    """Every snapshot leaves a pack of its own, as a hundred writers at once would."""
    created_bytes = copied_bytes = 0
    for number in range(CREATES):
        (tmp_path / "root/changing").write_bytes(os.urandom(500 + number % 7 * 100))
        fs.clear()
        handle.create(name=f"snapshot-{number}")
        use_new_pack(tmp_path / "store")
        created_bytes += written(fs, handle, "packs")
        if deleted_share and number % deleted_share:
            handle.delete(f"snapshot-{number}")
        fs.clear()
        if number % 5 == 4:
            handle.gc()
        copied_bytes += written(fs, handle, "packs")
    handle.gc()
    copied_bytes += written(fs, handle, "packs")
    largest = max(path.stat().st_size for path in (tmp_path / "store/packs").iterdir())
    tiers = math.log(largest, MERGED_MIN)

    assert copied_bytes < created_bytes * tiers
    assert len(pack_files(tmp_path / "store")) < MERGED_MIN * tiers
    assert collect_again(handle, fs) == []
    assert handle.verify(read_data=True).problems == ()


def test_small_snapshots_in_one_pack_are_rarely_copied_to_join_their_blocks(handle, fs, tmp_path):
    """Half of the pack is small blocks before each copy, so copies double in size."""
    created_bytes = copied_bytes = collections = 0
    for number in range(SMALL_CREATES):
        (tmp_path / "root/changing").write_bytes(os.urandom(500))
        fs.clear()
        handle.create(name=f"snapshot-{number}")
        created_bytes += written(fs, handle, "packs")
        fs.clear()
        if number % 10 == 9:
            handle.gc()
        copied_bytes += written(fs, handle, "packs")
        collections += written(fs, handle, "packs") > 0

    assert 0 < copied_bytes < 2 * created_bytes
    assert collections <= SMALL_CREATES // 30
    assert len(pack_files(tmp_path / "store")) <= collections + 1
    handle.gc()
    assert collect_again(handle, fs) == []


def test_waste_is_not_chased_by_copying_everything(handle, fs, tmp_path):
    """A large tree that stays, a file that changes, and nothing but the last two states kept."""
    for number in range(200):
        (tmp_path / f"root/stays-{number}").write_bytes(os.urandom(1000))
    created_bytes = copied_bytes = 0
    for number in range(CREATES):
        (tmp_path / "root/changing").write_bytes(os.urandom(1000))
        fs.clear()
        handle.create(name=f"snapshot-{number}")
        created_bytes += written(fs, handle, "packs")
        if number > 1:
            handle.delete(f"snapshot-{number - 2}")
        fs.clear()
        if number % 4 == 3:
            handle.gc()
        copied_bytes += written(fs, handle, "packs")

    assert copied_bytes < created_bytes * 4
    assert handle.verify(read_data=True).problems == ()
    handle.gc()
    assert collect_again(handle, fs) == []


def test_merged_packs_hold_what_they_held(handle, tmp_path):
    states = {}
    for number in range(MERGED_MIN):
        (tmp_path / "root/changing").write_bytes(b"%d" % number * 1000)
        handle.create(name=f"snapshot-{number}")
        use_new_pack(tmp_path / "store")
        states[f"snapshot-{number}"] = record(tmp_path / "root")

    result = handle.gc()

    assert result.rewritten_packs == MERGED_MIN
    assert len(pack_files(tmp_path / "store")) == 1
    for name, state in states.items():
        handle.restore(name, to=tmp_path / "found" / name)
        assert difference(state, record(tmp_path / "found" / name)) == []


def test_fewer_packs_are_left_alone(handle, fs, tmp_path):
    for number in range(MERGED_MIN - 1):
        (tmp_path / "root/changing").write_bytes(b"%d" % number * 1000)
        handle.create(name=f"snapshot-{number}")
        use_new_pack(tmp_path / "store")
    fs.clear()

    handle.gc()

    assert written(fs, handle, "packs") == 0
    assert collect_again(handle, fs) == []
