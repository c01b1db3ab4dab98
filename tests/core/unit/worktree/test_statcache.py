"""The stat cache: kept rows, new rows, damage."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from treesnap.core.codec.statcache import Row, encode_observations
from treesnap.core.model.entries import ObjectId, Totals
from treesnap.core.worktree.scan.statcache import StatCacheBuilder, load
from treesnap.testing.doubles import RecordingFileSystem

SNAPSHOT = "a" * 64
TREE = ObjectId(b"t" * 32)


def row(path: bytes, number: int = 0) -> Row:
    return Row(
        path=path,
        tree_id=ObjectId(bytes([number]) * 32),
        totals=Totals(files=number),
        rules=b"",
        racy=(b"young",),
        linked=False,
        skipped=((b"left out", 1),),
        observations=encode_observations([(b"name", 0o100644, 3, 7, 8, 9, 10)]),
    )


@pytest.fixture
def fs():
    return RecordingFileSystem()


@pytest.fixture
def path(tmp_path):
    return str(tmp_path / "cache")


@pytest.fixture
def build(fs, tmp_path, path):
    """Writes a cache of new rows, and of rows kept from an old one."""
    temporary = tmp_path / "temporary"
    temporary.mkdir()

    def builder(
        *rows: Row,
        old=None,
        kept: tuple[bytes, ...] = (),
        removed: tuple[bytes, ...] = (),
        snapshot: str = SNAPSHOT,
        publish: bool = True,
        partial: bool = False,
    ) -> None:
        made = StatCacheBuilder(fs, str(temporary), old, is_partial=partial)
        for name in kept:
            made.keep(*old.find(name))
        for item in rows:
            made.add(item)
        for name in removed:
            made.remove(name)
        if publish:
            made.publish(path, snapshot, TREE)
        made.discard()
        assert os.listdir(temporary) == []

    return builder


def test_rows_are_found_by_path(fs, path, build):
    build(row(b""), row(b"a", 1), row(b"a/b", 2))

    cache = load(fs, path)

    assert [cache.find(name)[0] for name in (b"", b"a", b"a/b")] == [
        row(b""),
        row(b"a", 1),
        row(b"a/b", 2),
    ]
    assert cache.find(b"b") is None
    assert (cache.snapshot_id, cache.tree_id, cache.base.count) == (SNAPSHOT, TREE, 3)


def test_kept_rows_stay_and_the_others_go(fs, path, build):
    build(row(b"", 1), row(b"a", 2), row(b"gone", 3))

    build(row(b"", 9), old=load(fs, path), kept=(b"a",))

    cache = load(fs, path)
    assert cache.find(b"")[0] == row(b"", 9)
    assert cache.find(b"a")[0] == row(b"a", 2)
    assert cache.find(b"gone") is None


def test_nothing_is_written_when_every_row_was_kept(fs, path, build):
    build(row(b""), row(b"a"))
    fs.clear()

    build(old=load(fs, path), kept=(b"", b"a"))

    assert fs.mutations == []


def test_a_discarded_cache_leaves_no_file(fs, path, build):
    build(row(b""), publish=False)

    assert load(fs, path) is None


def test_publishing_costs_no_sync(fs, path, build):
    build(row(b""))

    assert fs.syncs == []


def test_many_rows_are_written_in_large_pieces(fs, path, build):
    build(*(row(b"directory %d" % number, number % 250) for number in range(10_000)))

    cache = load(fs, path)
    assert cache.base.count == 10_000
    assert cache.find(b"directory 7777")[0].totals.files == 7777 % 250
    assert fs.count("write")["write"] < 10


def test_an_absent_cache_is_none(fs, path):
    assert load(fs, path) is None


def test_a_cache_cut_anywhere_is_not_used(fs, path, build):
    build(row(b""), row(b"a"))
    size = os.path.getsize(path)
    for cut in range(size - 1, -1, -7):
        os.truncate(path, cut)

        assert load(fs, path) is None


def test_a_damaged_row_is_not_found_and_the_others_are(fs, path, build):
    build(row(b"", 1), row(b"a", 2))
    offset = load(fs, path).find(b"")[1].offset
    with open(path, "r+b") as file:
        file.seek(offset + 12)
        file.write(b"\xff\xff\xff\xff")

    cache = load(fs, path)

    assert cache is None or cache.find(b"") is None
    assert cache is None or cache.find(b"a")[0] == row(b"a", 2)


class TestRecentRows:
    """Rows that are added to a large cache, which is not written again for them."""

    @pytest.fixture(autouse=True)
    def small(self, monkeypatch):
        monkeypatch.setattr("treesnap.core.worktree.scan.statcache.BASE_ROWS_MIN", 8)

    @pytest.fixture
    def base(self, fs, path, build):
        build(row(b""), *(row(b"d%d" % number, number) for number in range(15)))
        fs.clear()
        return load(fs, path)

    @staticmethod
    def others(*names: bytes) -> tuple[bytes, ...]:
        every = {b"", *(b"d%d" % number for number in range(15))}
        return tuple(sorted(every - set(names)))

    def test_go_into_a_file_of_their_own(self, fs, path, build, base):
        before = os.stat(path)

        build(row(b"d3", 99), old=base, kept=self.others(b"d3"), snapshot="b" * 64)

        cache = load(fs, path)
        assert os.stat(path).st_mtime_ns == before.st_mtime_ns
        assert (cache.snapshot_id, cache.base.count, cache.recent.count) == ("b" * 64, 16, 1)
        assert cache.find(b"d3")[0] == row(b"d3", 99)
        assert cache.find(b"d4")[0] == row(b"d4", 4)
        assert fs.written_bytes() < 1000

    def test_add_up_and_become_one_file_again(self, fs, path, build, base):
        build(row(b"d3", 91), old=base, kept=self.others(b"d3"), snapshot="b" * 64)
        build(row(b"d4", 92), old=load(fs, path), kept=self.others(b"d4"), snapshot="c" * 64)
        two = load(fs, path)
        build(row(b"d5", 93), old=two, kept=self.others(b"d5"), snapshot="d" * 64)

        one = load(fs, path)
        assert (two.recent.count, one.recent, one.base.count) == (2, None, 16)
        assert not os.path.exists(path + "-recent")
        assert [one.find(b"d%d" % n)[0].totals.files for n in (2, 3, 4, 5)] == [2, 91, 92, 93]

    def test_that_replace_those_of_another_file_are_ignored(self, fs, path, build, base):
        build(row(b"d3", 99), old=base, kept=self.others(b"d3"), snapshot="b" * 64)
        os.rename(path + "-recent", path + "-kept")
        build(row(b""), row(b"d3", 7), snapshot="c" * 64)
        os.rename(path + "-kept", path + "-recent")

        cache = load(fs, path)

        assert (cache.snapshot_id, cache.recent) == ("c" * 64, None)
        assert cache.find(b"d3")[0] == row(b"d3", 7)

    def test_are_used_all_or_none(self, fs, path, build, base):
        build(row(b"d3", 99), old=base, kept=self.others(b"d3"), snapshot="b" * 64)
        data = Path(path + "-recent").read_bytes()
        for place in range(len(data)):
            damaged = bytearray(data)
            damaged[place] ^= 1
            Path(path + "-recent").write_bytes(damaged)

            cache = load(fs, path)

            assert (cache.snapshot_id, cache.recent) == (SNAPSHOT, None)
            assert cache.find(b"d3")[0] == row(b"d3", 3)

    def test_remove_directories(self, fs, path, build, base):
        build(
            row(b"", 9), old=base, kept=self.others(b"", b"d3"), snapshot="b" * 64, removed=(b"d3",)
        )
        cache = load(fs, path)
        assert cache.find(b"d3") is None
        assert cache.find(b"d3/below") is None
        assert cache.find(b"d33") is None
        assert cache.find(b"d4")[0] == row(b"d4", 4)

        build(row(b"d3", 5), old=cache, kept=self.others(b"d3"), snapshot="c" * 64)

        assert load(fs, path).find(b"d3")[0] == row(b"d3", 5)

    def test_replace_all_when_the_root_was_removed(self, fs, path, build, base):
        build(row(b"d3", 5), old=base, kept=self.others(b"d3"), removed=(b"",))

        cache = load(fs, path)

        assert cache.find(b"d3")[0] == row(b"d3", 5)
        assert cache.find(b"d4") is None

    def test_of_partial_walks_become_one_file_with_those_that_no_walk_saw(
        self, fs, path, build, base, monkeypatch
    ):
        monkeypatch.setattr("treesnap.core.worktree.scan.statcache.RECENT_ROWS_MIN", 3)
        below = (row(b"d1/x", 1), row(b"d2/x", 2))
        build(*below, old=base, partial=True, removed=(b"d0",))
        two = load(fs, path)
        build(row(b"d3", 93), old=two, partial=True, removed=(b"d1",), snapshot="c" * 64)

        one = load(fs, path)
        names = (b"", b"d0", b"d1", b"d1/x", b"d2/x", b"d3", b"d4")
        found = [one.find(name) for name in names]
        assert (two.recent.count, one.recent, one.snapshot_id) == (2, None, "c" * 64)
        assert [item and item[0].totals.files for item in found] == [0, None, None, None, 2, 93, 4]

    def test_become_one_file_when_much_was_removed(self, fs, path, build, monkeypatch):
        monkeypatch.setattr("treesnap.core.worktree.scan.statcache.RECENT_ROWS_MIN", 2)
        names = tuple(b"d%d" % number for number in range(32))
        build(row(b""), *map(row, names))
        for count, has_second in ((3, True), (4, False)):
            old = load(fs, path)
            build(row(b"", count), old=old, removed=names[:count], partial=True)

            cache = load(fs, path)
            assert (cache.recent is not None) == has_second
            assert [name for name in names if cache.find(name) is None] == list(names[:count])

    def test_are_not_used_without_the_first_file(self, fs, path, build, base):
        build(row(b"d3", 99), old=base, kept=self.others(b"d3"))
        os.unlink(path)

        assert load(fs, path) is None
        os.rename(path + "-recent", path)
        assert load(fs, path) is None
