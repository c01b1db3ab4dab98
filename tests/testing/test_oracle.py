"""The oracle is not blind: it sees every kind of change that other tests rely on it to see."""

from __future__ import annotations

import os
from random import Random

import pytest

import trees
from mounting import mounting
from mutations import MUTATIONS
from oracle import PAGE_SIZE, copy_tree, difference, record, without
from trees import write_sparse


@pytest.mark.sampled(6)
@pytest.mark.parametrize("mutation", sorted({*MUTATIONS}, key=lambda item: item.__name__))
def test_the_oracle_sees_every_mutation(tmp_path, mutation):
    trees.build(tmp_path / "root", 0)
    before = record(tmp_path / "root")
    random = Random(0)

    for _ in range(5):
        try:
            mutation(os.fsencode(tmp_path / "root"), random)
        except PermissionError as error:
            pytest.skip(f"not permitted here: {error}")

    assert difference(before, record(tmp_path / "root")) != []


def test_zeros_may_become_holes_and_nothing_else(tmp_path):
    for name in ("sparse", "dense", "other"):
        (tmp_path / name).mkdir()
        write_sparse(os.fsencode(tmp_path / name / "file"), 3 * PAGE_SIZE - 1, (0, b"data"))
        os.utime(tmp_path / name / "file", (0, 0))
        os.utime(tmp_path / name, (0, 0))
    for name, last in (("dense", b"\0"), ("other", b"!")):
        with (tmp_path / name / "file").open("r+b") as file:
            file.seek(3 * PAGE_SIZE - 2)
            file.write(last)
        os.utime(tmp_path / name / "file", (0, 0))
    sparse, dense, other = (record(tmp_path / name) for name in ("sparse", "dense", "other"))

    assert difference(dense, sparse) == []
    assert [line.split()[1] for line in difference(sparse, dense)] == ["extents"]
    assert [line.split()[1] for line in difference(dense, other)] == ["digest"]


@pytest.mark.needs("mounts")
def test_space_behind_what_was_written_is_a_hole_however_it_was_read(tmp_path):
    """xfs shows such space as data where a read brought it into the cache."""
    with mounting() as mounter:
        mounted = mounter.image(tmp_path / "mounted", "xfs", 320)
        with (mounted / "file").open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, 40 * PAGE_SIZE)
            os.pwrite(file.fileno(), b"x" * PAGE_SIZE, 0)
            os.fsync(file.fileno())
        before = record(mounted)[b"file"]

        content = (mounted / "file").read_bytes()

        assert content == b"x" * PAGE_SIZE + bytes(39 * PAGE_SIZE)
        assert before.extents == ((0, PAGE_SIZE),)
        assert record(mounted)[b"file"] == before


def test_a_copy_is_the_same_but_for_sockets(tmp_path):
    trees.build(tmp_path / "root", 0)
    copy_tree(tmp_path / "root", tmp_path / "copy")

    original = without(record(tmp_path / "root"), b"still/socket")

    assert difference(original, record(tmp_path / "copy")) == []


def test_a_seed_always_makes_the_same_tree(tmp_path):
    trees.build(tmp_path / "one", 7, still=False)
    trees.build(tmp_path / "two", 7, still=False)

    assert difference(record(tmp_path / "one"), record(tmp_path / "two")) == []
