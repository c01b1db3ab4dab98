"""Sizes of a store."""

from __future__ import annotations

import os


def test_without_a_store_everything_is_zero(handle):
    stats = handle.stats()

    assert (stats.snapshots, stats.disk_bytes, stats.packs, stats.roots) == (0, 0, 0, 0)


def test_the_numbers_are_those_of_the_files(handle, root, store_path):
    (root / "big").write_bytes(os.urandom(10_000))
    handle.create()
    handle.create()

    stats = handle.stats()

    files = [path for path in store_path.rglob("*") if path.is_file()]
    assert stats.disk_bytes == sum(path.stat().st_size for path in files)
    assert stats.files == len(files)
    assert (stats.snapshots, stats.root_snapshots, stats.roots, stats.packs) == (2, 2, 1, 1)
    assert stats.logical_bytes == 2 * (10_000 + 3 + 3)
    assert stats.raw_bytes > 10_006
    assert stats.objects == 5  # three chunks, two directories


def test_other_roots_count_for_the_store_only(handle, make_handle, tmp_path):
    handle.create()
    (tmp_path / "other").mkdir()
    make_handle(root=tmp_path / "other").create()

    stats = handle.stats()

    assert (stats.roots, stats.snapshots, stats.root_snapshots) == (2, 2, 1)
