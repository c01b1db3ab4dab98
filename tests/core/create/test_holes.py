"""Zeros are zeros: what a file holds decides what is recorded, not how it is stored."""

from __future__ import annotations

import os
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import treesnap
from calling import Place
from mounting import mounting
from oracle import difference, record
from sampling import sized
from trees import write_sparse
from treesnap.core.fs.local import LocalFileSystem
from treesnap.core.model.ids import object_id
from treesnap.core.worktree.scan import file_reader
from treesnap.core.worktree.scan.file_reader import read_content

KIB = 1 << 10
SIZES_MIB = {"ext4": 64, "xfs": 320, "btrfs": 256}


@pytest.fixture(params=["ext4", "xfs", "btrfs", "tmpfs"])
def place(request, tmp_path: Path):
    with mounting() as mounter:
        mounted = tmp_path / "mounted"
        if request.param == "tmpfs":
            mounter.tmpfs(mounted, size="128m")
        else:
            mounter.image(mounted, request.param, SIZES_MIB[request.param])
        (mounted / "root").mkdir()
        yield Place(mounted / "root", mounted / "store")


@pytest.mark.sampled(6)
@pytest.mark.parametrize("size", [1 << 20, 70 * KIB, 5 * KIB, (3 << 20) + 7])
def test_reading_a_file_that_was_reserved_changes_nothing(place, size):
    """What was never written looks like a hole until it is read."""
    path = place.root / "file"
    with path.open("wb") as file:
        LocalFileSystem().allocate(file.fileno(), size)
    handle = treesnap.open(place.root, place.store)
    first = handle.create()
    path.read_bytes()
    path.chmod(0o600)
    path.chmod(0o644)

    assert handle.status().changes == ()
    assert handle.create().root_hash == first.root_hash


PARTS = st.lists(
    st.tuples(st.sampled_from(["hole", "zeros", "data"]), st.integers(1, 300 * KIB)), max_size=6
)


def recorded(path: Path) -> tuple[tuple, dict[bytes, bytes]]:
    kept: dict[bytes, bytes] = {}

    def put(kind, data):
        identity = object_id(kind, bytes(data))
        kept[identity] = bytes(data)
        return identity

    with path.open("rb") as file:
        held = read_content(LocalFileSystem(), file.fileno(), put, os.fstat(file.fileno()))
    assert held.size == path.stat().st_size
    return held.content, kept


@given(parts=PARTS)
@settings(max_examples=sized(8, 60), deadline=None)
def test_the_same_bytes_are_recorded_alike(parts, tmp_path_factory):
    directory = tmp_path_factory.mktemp("holes")
    sparse, dense = directory / "sparse", directory / "dense"
    position = 0
    with sparse.open("wb") as one, dense.open("wb") as other:
        for kind, size in parts:
            data = bytes(size) if kind != "data" else os.urandom(size)
            other.write(data)
            if kind != "hole":
                os.pwrite(one.fileno(), data, position)
            position += size
        one.truncate(position)

    assert sparse.read_bytes() == dense.read_bytes()
    assert recorded(sparse) == recorded(dense)


@given(parts=PARTS)
@settings(max_examples=sized(5, 30), deadline=None)
def test_the_size_of_a_window_changes_nothing(parts, tmp_path_factory):
    path = tmp_path_factory.mktemp("windows") / "file"
    with path.open("wb") as file:
        for kind, size in parts:
            file.write(bytes(size) if kind != "data" else os.urandom(size))
    whole = recorded(path)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(file_reader, "WINDOW_SIZE", 128 * KIB)
        assert recorded(path) == whole


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("size", "data"),
    [
        pytest.param(1, (), id="less than a page"),
        pytest.param(5 * KIB, (), id="a page and less than another"),
        pytest.param(9_000, ((0, 5_000),), id="data and less than a page"),
        pytest.param(20 << 20, tuple((at, 100) for at in range(0, 20 << 20, 20_000)), id="cut"),
    ],
)
def test_a_restored_file_has_data_in_no_page_that_was_a_hole(tmp_path, size, data):
    """Not at the end of the file either, and not where a hole lies across two chunks."""
    root = tmp_path / "root"
    root.mkdir()
    random = Random(0)
    pieces = ((start, random.randbytes(length)) for start, length in data)
    write_sparse(os.fsencode(root / "file"), size, *pieces)
    handle = treesnap.open(root, tmp_path / "store")
    before = record(root)
    first = handle.create()
    (root / "file").write_bytes(b"other")

    handle.restore(first.id)

    assert difference(before, record(root)) == []
    handle.undo()
    assert (root / "file").read_bytes() == b"other"


@pytest.mark.sampled(6)
@pytest.mark.parametrize("hole", [4 * KIB, 60 * KIB, 1 << 20])
def test_a_sparse_file_stays_sparse(place, hole):
    path = place.root / "file"
    with path.open("wb") as file:
        for number in range(5):
            file.seek(number * (hole + 4 * KIB))
            file.write(b"data" * KIB)
        file.truncate(file.tell() + hole)
    data, blocks = path.read_bytes(), path.stat().st_blocks
    place.done("create", "--name", "first")
    path.unlink()

    place.done("restore", "first")

    assert path.read_bytes() == data
    assert path.stat().st_blocks <= blocks + 16
