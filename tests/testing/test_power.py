"""The model of power cuts: what it loses, what it must keep, and that it is exact."""

from __future__ import annotations

import os
from random import Random

import pytest

from cuts import Cut, Torn, cuts, cuts_at, moments
from disk import (
    TOP,
    Disk,
    DiskPlace,
    Effect,
    Facts,
    Link,
    Naming,
    Node,
    Writing,
    load,
    materialise,
)
from power import PoweredFileSystem
from state import tree_state

NEW = os.O_RDWR | os.O_CREAT | os.O_EXCL


@pytest.fixture
def fs(tmp_path):
    """A file system that records what happens in the test's directory, in which "old" lies."""
    (tmp_path / "old").write_bytes(b"old")
    (tmp_path / "below").mkdir()
    return PoweredFileSystem(str(tmp_path))


def left(fs: PoweredFileSystem) -> list[dict[str, bytes]]:
    """Returns names and contents of every disk that a power cut at the end may leave."""
    *_, end = moments(fs.recording())
    disks = [held(cut.disk) for cut in cuts_at(end, Random(0), 50)]
    return in_order(*(disk for number, disk in enumerate(disks) if disk not in disks[:number]))


def held(disk: Disk) -> dict[str, bytes]:
    return {
        path.decode(): node.content
        for path, (node, _) in disk.contents().items()
        if path not in {b"", b"below", b"old"}
    }


def make(fs, path, content: bytes = b"") -> int:
    fd = fs.open(str(path), NEW)
    if content:
        fs.write(fd, content)
    return fd


def sync_names(fs, path) -> None:
    fd = fs.open(str(path), os.O_RDONLY | os.O_DIRECTORY)
    fs.sync(fd)
    fs.close(fd)


class TestWhatIsLost:
    def test_a_new_file_has_its_name_and_its_bytes_apart(self, fs, tmp_path):
        make(fs, tmp_path / "new", b"1234")

        assert left(fs) == in_order({}, {"new": b""}, {"new": b"1234"}, *torn("new"))

    def test_a_file_that_is_synced_may_lose_its_name(self, fs, tmp_path):
        fs.sync(make(fs, tmp_path / "new", b"1234"))

        assert left(fs) == in_order({}, {"new": b"1234"})

    def test_a_name_that_is_synced_may_lose_its_bytes(self, fs, tmp_path):
        make(fs, tmp_path / "new", b"1234")
        sync_names(fs, tmp_path)

        assert left(fs) == in_order({"new": b""}, {"new": b"1234"}, *torn("new"))

    @pytest.mark.parametrize("sync", ["sync", "sync_data"])
    def test_nothing_is_lost_of_what_is_synced(self, fs, tmp_path, sync):
        getattr(fs, sync)(make(fs, tmp_path / "new", b"1234"))
        sync_names(fs, tmp_path)

        assert left(fs) == [{"new": b"1234"}]

    def test_nothing_is_lost_after_the_file_system_was_synced(self, fs, tmp_path):
        fs.sync_file_system(make(fs, tmp_path / "new", b"1234"))

        assert left(fs) == [{"new": b"1234"}]

    def test_another_file_system_keeps_what_is_pending(self, tmp_path):
        (tmp_path / "below").mkdir()
        fs = PoweredFileSystem(str(tmp_path), apart=[b"below"])
        here, there = make(fs, tmp_path / "here"), make(fs, tmp_path / "below/there")

        fs.sync_file_system(here)
        assert left(fs) == in_order({"here": b""}, {"here": b"", "below/there": b""})
        fs.sync_file_system(there)
        assert left(fs) == [{"here": b"", "below/there": b""}]

    def test_what_comes_after_a_sync_is_lost(self, fs, tmp_path):
        fd = make(fs, tmp_path / "new", b"1234")
        fs.sync_file_system(fd)
        fs.truncate(fd, 1)

        assert left(fs) == in_order({"new": b"1234"}, {"new": b"1"})

    def test_later_bytes_may_arrive_without_earlier_ones(self, fs, tmp_path):
        fd = make(fs, tmp_path / "new")
        fs.sync_file_system(fd)
        fs.write_at(fd, b"a", 0)
        fs.write_at(fd, b"b", 1)

        assert {"new": b"\0b"} in left(fs)

    def test_a_removal_may_be_lost(self, fs, tmp_path):
        fs.sync_file_system(make(fs, tmp_path / "new"))
        fs.unlink(str(tmp_path / "new"))

        assert left(fs) == in_order({}, {"new": b""})

    def test_metadata_needs_a_sync_of_more_than_data(self, fs, tmp_path):
        fd = fs.open(str(tmp_path / "old"), os.O_RDWR)
        fs.change_mode(fd, 0o751)
        fs.sync_data(fd)

        (moment, *_) = reversed(list(moments(fs.recording())))
        assert len(moment.pending) == 1
        fs.sync(fd)
        (moment, *_) = reversed(list(moments(fs.recording())))
        assert moment.pending == ()

    def test_metadata_is_as_it_was_made_when_its_change_is_lost(self, fs, tmp_path):
        fd = make(fs, tmp_path / "new")
        sync_names(fs, tmp_path)
        fs.change_mode(fd, 0o751)

        *_, end = moments(fs.recording())
        modes = {
            cut.disk.contents()[b"new"][0].facts.mode & 0o777 for cut in cuts_at(end, Random(0), 50)
        }
        assert modes == {0o600, 0o751}

    def test_a_symbolic_link_has_its_target_at_once(self, fs, tmp_path):
        fd = fs.open(str(tmp_path), os.O_RDONLY)
        fs.make_symlink(b"target", b"new", dir_fd=fd)

        assert left(fs) == in_order({}, {"new": b"target"})


class TestRenames:
    @pytest.fixture
    def synced(self, fs, tmp_path):
        fs.sync_file_system(make(fs, tmp_path / "a", b"a"))
        fs.sync_file_system(make(fs, tmp_path / "below/b", b"b"))
        return fs

    def test_happen_whole_or_not(self, synced, tmp_path):
        synced.rename(str(tmp_path / "a"), str(tmp_path / "below/b"))

        assert left(synced) == in_order({"a": b"a", "below/b": b"b"}, {"below/b": b"a"})

    def test_are_durable_with_the_target(self, synced, tmp_path):
        synced.rename(str(tmp_path / "a"), str(tmp_path / "below/c"))

        sync_names(synced, tmp_path)
        assert len(left(synced)) == 2
        sync_names(synced, tmp_path / "below")
        assert left(synced) == [{"below/b": b"b", "below/c": b"a"}]

    @pytest.mark.needs("exchange")
    def test_that_exchange_are_durable_with_both(self, synced, tmp_path):
        top, below = (
            synced.open(str(path), os.O_RDONLY) for path in (tmp_path, tmp_path / "below")
        )
        synced.exchange("a", "b", source_dir_fd=top, target_dir_fd=below)

        synced.sync(top)
        assert left(synced) == in_order({"a": b"a", "below/b": b"b"}, {"a": b"b", "below/b": b"a"})
        synced.sync(below)
        assert left(synced) == [{"a": b"b", "below/b": b"a"}]

    def test_find_what_an_earlier_one_that_was_lost_has_left(self, synced, tmp_path):
        synced.rename(str(tmp_path / "a"), str(tmp_path / "c"))
        synced.rename(str(tmp_path / "c"), str(tmp_path / "d"))

        assert left(synced) == in_order(
            {"a": b"a", "below/b": b"b"}, {"c": b"a", "below/b": b"b"}, {"d": b"a", "below/b": b"b"}
        )

    def test_of_a_directory_take_along_what_is_in_it(self, synced, tmp_path):
        synced.rename(str(tmp_path / "below"), str(tmp_path / "moved"))
        synced.sync_file_system(synced.open(str(tmp_path), os.O_RDONLY))

        assert left(synced) == [{"a": b"a", "moved": b"", "moved/b": b"b"}]

    def test_onto_another_name_of_the_same_file_do_nothing(self, synced, tmp_path):
        synced.link(str(tmp_path / "a"), str(tmp_path / "c"))
        synced.rename(str(tmp_path / "a"), str(tmp_path / "c"))

        assert held(synced.disk) == {"a": b"a", "c": b"a", "below/b": b"b"}


class TestCuts:
    def test_many_pending_effects_are_sampled_with_the_extremes(self, fs, tmp_path):
        for number in range(12):
            fs.make_directory(str(tmp_path / f"{number:02}"))

        found = [frozenset(item) for item in left(fs)]

        names = [f"{number:02}" for number in range(12)]
        assert frozenset() in found
        assert frozenset(names) in found
        for number, name in enumerate(names):
            assert frozenset({name}) in found
            assert frozenset(names) - {name} in found
            assert frozenset(names[:number]) in found
        assert len(found) == len(set(found)) < 2**12

    def test_a_seed_gives_the_same_again(self, fs, tmp_path):
        for number in range(12):
            fs.make_directory(str(tmp_path / f"{number}"))
        recording = fs.recording()

        first, second, other = (
            [cut.lost for cut in cuts(recording, random=Random(seed))] for seed in (1, 1, 2)
        )

        assert first == second != other

    def test_what_is_done_later_is_not_there_earlier(self, fs, tmp_path):
        fd = make(fs, tmp_path / "new")
        fs.sync(fd)
        fs.make_directory(str(tmp_path / "later"))

        before = [cut for cut in cuts(fs.recording(), random=Random(0)) if "sync 0" in str(cut)]

        assert in_order(*(held(cut.disk) for cut in before)) == in_order({}, {"new": b""})

    def test_those_after_the_return_are_told_apart(self, fs, tmp_path):
        fs.sync(make(fs, tmp_path / "new"))
        fs.note_return()

        found = list(cuts(fs.recording(), random=Random(0)))

        assert [cut.moment.is_after_return for cut in found] == [False, False, True, True]

    def test_a_sync_can_be_left_out(self, fs, tmp_path):
        fs.sync_file_system(make(fs, tmp_path / "new", b"1234"))

        recording = fs.recording().without_sync(0)

        assert recording.syncs == ()
        assert {"new": b""} in [held(cut.disk) for cut in cuts(recording, random=Random(0))]

    def test_a_cut_says_what_it_loses(self, fs, tmp_path):
        make(fs, tmp_path / "new", b"1234")
        (moment,) = moments(fs.recording())

        text = str(Cut(moment=moment, lost=frozenset({0}), torn=(1, Torn.HALF)))

        assert text.splitlines() == [
            "power cut at the end, 1 of 2 pending lost",
            "  lost: open 'new'",
            "  torn: write 'new': half of its bytes",
        ]


class TestDisk:
    FACTS = Facts(mode=0o100600, uid=0, gid=0, mtime_ns=0, device=0, xattrs=())

    def test_a_directory_is_read_and_written_back(self, tmp_path):
        case = tmp_path / "case"
        fill(case)
        before = tree_state(case)
        disk = load(str(case))
        (case / "directory/file").write_bytes(b"changed")
        (case / "more").mkdir(mode=0o500)
        (case / "directory").chmod(0o500)

        materialise(disk, str(case))

        assert tree_state(case) == before
        assert load(str(case)).digest() == disk.digest()

    def test_every_difference_makes_another_digest(self, tmp_path):
        case = tmp_path / "case"
        fill(case)
        disk = load(str(case))
        changes = [
            lambda: (case / "directory/file").write_bytes(b"xyz"),
            lambda: (case / "directory/file").chmod(0o604),
            lambda: os.utime(case / "directory", ns=(0, 7)),
            (case / "other").unlink,
            lambda: (case / "other").write_bytes(b"abc"),
        ]

        digests = [disk.digest()]
        for change in changes:
            change()
            digests.append(load(str(case)).digest())

        assert len(set(digests)) == len(digests)

    def test_times_need_not_count(self, tmp_path):
        (tmp_path / "in").mkdir()
        (tmp_path / "out").mkdir()
        before = load(str(tmp_path))

        os.utime(tmp_path / "in", ns=(0, 1))
        inner = load(str(tmp_path))
        os.utime(tmp_path / "out", ns=(0, 1))
        outer = load(str(tmp_path))

        assert before.digest(b"in") == inner.digest(b"in") != outer.digest(b"in")

    def test_a_name_is_only_in_one_place(self):
        disk = Disk()
        disk.add(directory())
        node = disk.add(Node(facts=self.FACTS))
        link = Link(1, node)

        for name in (b"a", b"b"):
            disk.apply(Effect(label="", namings=(Naming(place=DiskPlace(TOP, name), link=link),)))

        assert [path for path, _ in disk.walk()] == [b"", b"b"]

    @pytest.mark.parametrize(
        ("offset", "data", "content"),
        [(0, b"xy", b"xyc"), (2, b"xy", b"abxy"), (5, b"x", b"abc\0\0x"), (1, None, b"a")],
    )
    def test_writes_go_where_they_belong(self, offset, data, content):
        disk = Disk()
        node = disk.add(Node(facts=self.FACTS, content=b"abc"))

        disk.apply(Effect(label="", writing=Writing(node=node, offset=offset, data=data)))

        assert disk.nodes[node].content == content


def directory() -> Node:
    return Node(facts=Facts(mode=0o40700, uid=0, gid=0, mtime_ns=0, device=0, xattrs=()))


def fill(case) -> None:
    """Makes one of every kind."""
    (case / "directory").mkdir(parents=True)
    (case / "directory/file").write_bytes(b"abc")
    (case / "directory/file").chmod(0o640)
    os.link(case / "directory/file", case / "other")
    (case / "link").symlink_to("nowhere")
    os.mkfifo(case / "fifo", 0o600)
    os.utime(case / "directory", ns=(0, 5))
    (case / "closed").mkdir(mode=0o500)


def in_order(*disks: dict[str, bytes]) -> list[dict[str, bytes]]:
    return sorted(disks, key=repr)


def torn(name: str) -> list[dict[str, bytes]]:
    return [{name: b"12"}, {name: b"\0\0\0\0"}]
