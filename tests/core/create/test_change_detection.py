"""A capture sees every change, however well it hides, and reads nothing that did not change.

No test waits for time to pass. Where the clock matters, captures are told the time;
where the exactness of file times matters, the file system rounds them down.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import trees
import treesnap
from oracle import difference, record
from treesnap.core.fs.local import LocalFileSystem
from treesnap.core.handle import Handle
from treesnap.core.model.results import CreateResult
from treesnap.core.ops.context import context_at
from treesnap.core.worktree.scan.statcache import load

TICK_NS = 3600 * 10**9
LONG_AGO_NS = 1_000_000_000 * 10**9
YEAR_NS = 365 * 24 * TICK_NS
IS_ROOT = os.geteuid() == 0


class Clock:
    """The time as the captures are told it."""

    def __init__(self, now_ns: int) -> None:
        self.now_ns = now_ns

    def __call__(self) -> int:
        return self.now_ns


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A tree of one file, one directory and one link."""
    path = tmp_path / "root"
    (path / "directory").mkdir(parents=True)
    (path / "file").write_text("content")
    (path / "directory" / "file").write_text("another")
    (path / "link").symlink_to("file")
    for item in (path / "file", path / "directory" / "file", path / "directory", path):
        os.utime(item, ns=(LONG_AGO_NS, LONG_AGO_NS))
    return path


@pytest.fixture
def handle(tmp_path: Path, root: Path) -> Handle:
    """Captures a year from now, when all times of today are old enough to be trusted."""
    now_ns = root.stat().st_ctime_ns + YEAR_NS
    return Handle(context_at(root=root, store_path=str(tmp_path / "store"), clock_ns=Clock(now_ns)))


def capture(handle: Handle, root: Path) -> CreateResult:
    """Takes a snapshot, and checks with the oracle that it holds the tree as it is."""
    result = handle.create()
    target = Path(handle.store_path).with_name(f"copy-{result.snapshot.sequence}")
    handle.restore(result.id, to=target)
    assert difference(record(root), record(target)) == []
    return result


def until_ctime_moves(path: Path, change: Callable[[], object]) -> None:
    """Makes a change, again and again until the kernel's clock has moved on since the last one."""
    before = path.lstat().st_ctime_ns
    while path.lstat().st_ctime_ns == before:
        change()


def edit_in_place(path: Path, content: str) -> None:
    """Writes content of the same size and puts the modification time back."""
    before = path.stat()
    path.write_text(content)
    assert path.stat().st_size == before.st_size
    os.utime(path, ns=(before.st_mtime_ns, before.st_mtime_ns))


def test_an_unchanged_tree_is_not_read_again(handle, root):
    first = capture(handle, root)
    second = handle.create()

    assert (first.stats.files_read, first.stats.read_bytes) == (2, 14)
    assert (second.stats.files_read, second.stats.read_bytes) == (0, 0)
    assert second.root_hash == first.root_hash
    assert second.id != first.id


@pytest.mark.sampled(5)
@pytest.mark.parametrize("seed", range(5))
def test_an_unchanged_awkward_tree_is_not_read_again_and_costs_4_kib(tmp_path, seed):
    root = tmp_path / "root"
    trees.build(root, seed)
    clock = Clock(root.stat().st_ctime_ns + TICK_NS)
    handle = Handle(context_at(root=root, store_path=str(tmp_path / "store"), clock_ns=clock))
    handle.create()
    before = size_below(tmp_path / "store")

    second = handle.create()

    assert (second.stats.files_read, second.stats.read_bytes) == (0, 0)
    assert size_below(tmp_path / "store") - before <= 4096
    assert second.stats.added_bytes <= 4096


def size_below(path: Path) -> int:
    """Returns the bytes of all files in a directory."""
    return sum(item.stat().st_size for item in path.rglob("*") if item.is_file())


def test_an_edit_of_the_same_size_with_its_old_time_is_seen(handle, root):
    capture(handle, root)
    until_ctime_moves(root / "file", lambda: edit_in_place(root / "file", "CONTENT"))

    second = capture(handle, root)

    assert second.stats.files_read == 1
    assert b"".join(handle.cat(second.id, "file")) == b"CONTENT"


def test_no_older_row_counts_in_place_of_a_damaged_one(handle, root, tmp_path, monkeypatch):
    """As a power cut may leave a write: the tree of the older row is an old one."""
    monkeypatch.setattr("treesnap.core.worktree.scan.statcache.BASE_ROWS_MIN", 1)
    monkeypatch.setattr("treesnap.core.worktree.scan.statcache.RECENT_SHARE_MAX", 1)
    capture(handle, root)
    path = root / "directory/file"
    until_ctime_moves(path, lambda: edit_in_place(path, "ANOTHER"))
    capture(handle, root)
    (recent,) = (tmp_path / "store").glob("roots/*/cache-recent")
    place = load(LocalFileSystem(), str(recent.with_name("cache"))).find(b"")[1]
    data = bytearray(recent.read_bytes())
    data[place.offset : place.offset + place.size] = bytes(place.size)
    recent.write_bytes(data)

    capture(handle, root)


def test_another_file_in_the_place_of_one_is_seen(handle, root, tmp_path):
    capture(handle, root)
    before = (root / "file").stat()
    (tmp_path / "other").write_text("CONTENT")
    os.utime(tmp_path / "other", ns=(before.st_mtime_ns, before.st_mtime_ns))
    os.rename(tmp_path / "other", root / "file")

    second = capture(handle, root)

    assert second.stats.files_read == 1
    assert b"".join(handle.cat(second.id, "file")) == b"CONTENT"


def change_mode(path: Path) -> None:
    os.chmod(path, stat.S_IMODE(path.stat().st_mode) ^ 0o111)


def change_attribute(path: Path) -> None:
    value = os.urandom(4) if path.is_symlink() else b"%d" % path.stat().st_ctime_ns
    name = "trusted.note" if path.is_symlink() else "user.note"
    try:
        os.setxattr(path, name, value, follow_symlinks=False)
    except OSError as error:
        pytest.skip(f"no attributes here: {error}")


def change_owner(path: Path) -> None:
    if not IS_ROOT:
        pytest.skip("only the superuser gives files away")
    os.chown(path, path.lstat().st_uid + 1, 7, follow_symlinks=False)


def change_time(path: Path) -> None:
    os.utime(path, ns=(5, path.lstat().st_mtime_ns + 1), follow_symlinks=False)


@pytest.mark.sampled(5)
@pytest.mark.parametrize("name", ["file", "directory/file", "directory", "link", "."])
@pytest.mark.parametrize("change", [change_mode, change_attribute, change_owner, change_time])
def test_metadata_that_changed_alone_is_seen(handle, root, change, name):
    if change is change_mode and name == "link":
        pytest.skip("links have no mode here or elsewhere")
    first = capture(handle, root)
    until_ctime_moves(root / name, lambda: change(root / name))

    second = capture(handle, root)

    assert second.root_hash != first.root_hash


def test_a_hard_link_that_came_or_went_is_seen(handle, root):
    hashes = [capture(handle, root).root_hash]
    os.link(root / "file", root / "directory" / "again")
    hashes.append(capture(handle, root).root_hash)
    os.unlink(root / "directory" / "again")
    (root / "directory" / "again").write_text("content")
    os.utime(root / "directory" / "again", ns=(LONG_AGO_NS, LONG_AGO_NS))
    hashes.append(capture(handle, root).root_hash)

    assert len(set(hashes)) == 3


def test_directories_that_swapped_names_are_seen(handle, root):
    (root / "other").mkdir()
    (root / "other" / "file").write_text("of other")
    capture(handle, root)
    os.rename(root / "other", root / "aside")
    os.rename(root / "directory", root / "other")
    os.rename(root / "aside", root / "directory")

    second = capture(handle, root)

    assert b"".join(handle.cat(second.id, "directory/file")) == b"of other"


class RoundedFileSystem(LocalFileSystem):
    """A file system whose clock ticks once an hour, so that changes share their times."""

    def lstat(self, name: Any, *, dir_fd: int | None = None) -> Any:
        """Returns rounded metadata of a name."""
        return rounded(super().lstat(name, dir_fd=dir_fd))

    def fstat(self, fd: int) -> Any:  # type: ignore[override]  # static there
        """Returns rounded metadata of an open file."""
        return rounded(os.fstat(fd))

    @contextmanager
    def scan(self, directory: Any) -> Iterator[Iterator[Any]]:  # type: ignore[override]  # as used
        """Lists a directory, with rounded metadata."""
        with os.scandir(directory) as entries:
            yield (RoundedEntry(entry) for entry in entries)


class RoundedEntry:
    """A name of a directory, with rounded metadata."""

    def __init__(self, entry: os.DirEntry[str]) -> None:
        self.name = entry.name
        self._entry = entry

    def is_dir(self, *, follow_symlinks: bool) -> bool:
        """Returns whether it is a directory."""
        return self._entry.is_dir(follow_symlinks=follow_symlinks)

    def stat(self, *, follow_symlinks: bool) -> Any:
        """Returns rounded metadata."""
        return rounded(self._entry.stat(follow_symlinks=follow_symlinks))


def rounded(status: os.stat_result) -> Any:
    """Returns metadata with its times rounded down to the tick before."""
    facts = {name: getattr(status, name) for name in dir(status) if name.startswith("st_")}
    for name in ("st_mtime_ns", "st_ctime_ns"):
        facts[name] -= facts[name] % TICK_NS
    return SimpleNamespace(**facts)


class TestWithinOneTick:
    """Nothing but the moment of the capture tells these changes from none."""

    @pytest.fixture
    def clock(self, root: Path) -> Clock:
        """The tick in which everything happens."""
        now_ns = max(path.lstat().st_ctime_ns for path in [root, *root.rglob("*")])
        return Clock(now_ns - now_ns % TICK_NS)

    @pytest.fixture
    def handle(self, tmp_path: Path, root: Path, clock: Clock) -> Handle:
        """A handle that is told the rounded time, on a file system with rounded times."""
        for path in (root, *root.rglob("*")):
            os.utime(path, ns=(clock.now_ns, clock.now_ns), follow_symlinks=False)
        return Handle(
            context_at(
                root=root,
                store_path=str(tmp_path / "store"),
                clock_ns=clock,
                fs=RoundedFileSystem(),
            )
        )

    def held(self, handle: Handle) -> tuple[str, bytes]:
        """Takes a snapshot; returns its hash and the content of the file that changes."""
        result = handle.create()
        return result.root_hash, b"".join(handle.cat(result.id, "file"))

    def test_an_edit_is_seen(self, handle, root):
        contents = []
        for content in ("content", "CONTENT", "cOnTeNt"):
            (root / "file").write_text(content)
            contents.append(self.held(handle)[1])

        assert contents == [b"content", b"CONTENT", b"cOnTeNt"]

    def test_an_edit_is_seen_within_the_second_that_is_all_a_small_inode_tells(
        self, handle, root, clock
    ):
        clock.now_ns += 900 * 10**6
        self.test_an_edit_is_seen(handle, root)

    @pytest.mark.parametrize("name", ["file", "directory", "directory/file", "."])
    @pytest.mark.parametrize("change", [change_attribute, change_owner])
    def test_metadata_that_changed_alone_is_seen(self, handle, root, change, name):
        first = self.held(handle)
        change(root / name)

        assert self.held(handle)[0] != first[0]

    def test_a_young_file_is_read_until_it_is_old(self, handle, root, clock):
        while_young = [handle.create().stats.files_read for _ in range(3)]
        clock.now_ns += TICK_NS
        when_old = [handle.create().stats.files_read for _ in range(3)]

        assert (while_young, when_old) == ([2, 2, 2], [2, 0, 0])

    def test_a_change_after_the_tick_is_seen_at_once(self, handle, root, clock):
        handle.create()
        clock.now_ns += TICK_NS
        first = self.held(handle)
        (root / "file").write_text("CONTENT")
        os.utime(root / "file", ns=(clock.now_ns, clock.now_ns))

        assert self.held(handle) != first
        assert self.held(handle)[1] == b"CONTENT"

    @pytest.mark.parametrize("name", ["file", "directory/file"])
    def test_a_restore_removes_no_edit_that_nothing_tells(self, handle, root, tmp_path, name):
        """It comes after the look, just before the file or its directory is taken away."""
        top = root / name.split("/")[0]
        kept = tmp_path / "kept"
        top.rename(kept)
        handle.create(name="without")
        kept.rename(top)

        class Edited(RoundedFileSystem):
            def rename_to_absent(self, source: Any, *names: Any, **options: Any) -> None:
                if source == os.fsencode(top.name):
                    (root / name).write_text("CONTENT")
                super().rename_to_absent(source, *names, **options)

        context = handle.context
        with pytest.raises(treesnap.Conflict):
            Handle(
                context_at(root, context.store_path, clock_ns=context.clock_ns, fs=Edited())
            ).restore("without")

        assert (root / name).read_text() == "CONTENT"


def test_a_file_whose_time_lies_in_the_future_is_not_read_each_time(handle, root):
    os.utime(root / "file", ns=(trees.FUTURE_NS, trees.FUTURE_NS))
    capture(handle, root)

    assert handle.create().stats.files_read == 0
    until_ctime_moves(root / "file", lambda: edit_in_place(root / "file", "CONTENT"))
    assert handle.create().stats.files_read == 1


def test_a_clock_that_was_set_back_costs_time_and_nothing_else(root, tmp_path):
    clock = Clock(root.stat().st_ctime_ns - YEAR_NS)
    handle = Handle(context_at(root=root, store_path=str(tmp_path / "store"), clock_ns=clock))
    first = handle.create()

    second = handle.create()

    assert second.stats.files_read == 2
    assert second.root_hash == first.root_hash
    assert handle.create(options=treesnap.CreateOptions(skip_unchanged=True)).unchanged


def test_without_its_cache_a_capture_reads_everything_and_finds_the_same(handle, root, tmp_path):
    first = capture(handle, root)
    for path in (tmp_path / "store").rglob("cache"):
        path.write_bytes(b"no stat cache")

    second = treesnap.open(root, tmp_path / "store").create()

    assert second.stats.files_read == 2
    assert second.root_hash == first.root_hash


def test_a_directory_that_comes_back_is_stored_again_when_its_content_was_collected(
    handle, root, tmp_path, monkeypatch
):
    """It looks as it did, and so its row in the stat cache would do, if it were still there."""
    monkeypatch.setattr("treesnap.core.worktree.scan.statcache.BASE_ROWS_MIN", 1)
    for number in range(20):
        (root / f"other-{number}").mkdir()
    capture(handle, root)
    (root / "directory").rename(tmp_path / "aside")
    without = capture(handle, root)
    handle.delete("latest~1")
    assert handle.gc().removed_objects
    (tmp_path / "aside").rename(root / "directory")
    before = record(root)

    handle.create(name="again")

    assert handle.verify(read_data=True).ok
    handle.restore(without.id)
    handle.restore("again")
    assert difference(before, record(root)) == []
