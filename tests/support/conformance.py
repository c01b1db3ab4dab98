"""What every file system behind the seam must do, as tests.

Subclass :class:`FileSystemTests` in a test module and give it the fixtures
``fs`` (the file system) and ``directory`` (an empty directory, as text). Each
test's docstring states what callers rely on. Nothing here depends on when
something becomes durable; every test holds with all power cuts left out.
"""

from __future__ import annotations

import errno
import os
import stat as stat_module
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial

import pytest

from treesnap.core.fs.base import FileSystem, NoAttribute, Place, Unsupported
from treesnap.core.fs.record_locks import opened_any

NEW = os.O_RDWR | os.O_CREAT | os.O_EXCL
DIRECTORY = os.O_RDONLY | os.O_DIRECTORY
MISSING = (FileNotFoundError, Unsupported)


@contextmanager
def opened(fs: FileSystem, path: str, flags: int = os.O_RDONLY) -> Iterator[int]:
    """Opens a file or directory through the file system under test."""
    fd = fs.open(path, flags)
    try:
        yield fd
    finally:
        fs.close(fd)


def put_file(fs: FileSystem, path: str, content: bytes = b"") -> None:
    """Makes a file through the file system under test."""
    with opened(fs, path, NEW) as fd:
        assert fs.write(fd, content) == len(content)


def _content(fs: FileSystem, path: str) -> bytes:
    with opened(fs, path) as fd:
        return fs.read(fd, 1 << 20)


class FileSystemTests:
    """Content, then names, then metadata and locks."""

    def test_what_was_written_is_read(self, fs: FileSystem, directory: str) -> None:
        """A write is seen by every later read, through any descriptor."""
        put_file(fs, f"{directory}/file", b"content")

        assert _content(fs, f"{directory}/file") == b"content"

    def test_read_goes_on_where_it_ended(self, fs: FileSystem, directory: str) -> None:
        """``read`` moves the position; at the end it returns nothing."""
        put_file(fs, f"{directory}/file", b"abcdef")

        with opened(fs, f"{directory}/file") as fd:
            pieces = [fs.read(fd, 4), fs.read(fd, 4), fs.read(fd, 4)]

        assert pieces == [b"abcd", b"ef", b""]

    def test_read_at_and_write_at_leave_the_position(self, fs: FileSystem, directory: str) -> None:
        """Calls with an offset neither use nor move the position."""
        with opened(fs, f"{directory}/file", NEW) as fd:
            fs.write(fd, b"abcdef")
            fs.write_at(fd, b"XY", 1)
            middle = fs.read_at(fd, 3, 1)
            fs.write(fd, b"g")

        assert middle == b"XYd"
        assert _content(fs, f"{directory}/file") == b"aXYdefg"

    def test_exclusive_open_makes_a_file_once(self, fs: FileSystem, directory: str) -> None:
        """O_EXCL raises FileExistsError for whatever has the name."""
        put_file(fs, f"{directory}/file")

        with pytest.raises(FileExistsError):
            fs.open(f"{directory}/file", NEW)
        with pytest.raises(FileExistsError):
            fs.make_directory(f"{directory}/file")

    def test_a_new_file_is_private(self, fs: FileSystem, directory: str) -> None:
        """Files are made with mode 0600 unless the caller says otherwise."""
        put_file(fs, f"{directory}/file")

        assert stat_module.S_IMODE(fs.lstat(f"{directory}/file").st_mode) == 0o600

    def test_open_follows_no_link(self, fs: FileSystem, directory: str) -> None:
        """A symbolic link in the last component raises ELOOP."""
        with opened(fs, directory, DIRECTORY) as fd:
            fs.make_symlink(b"file", b"link", dir_fd=fd)

        with pytest.raises(OSError, match=os.strerror(errno.ELOOP)):
            fs.open(f"{directory}/link", os.O_RDONLY)

    def test_descriptors_are_not_inherited(self, fs: FileSystem, directory: str) -> None:
        """O_CLOEXEC is always set, so that commands that are started get no locks."""
        with opened(fs, f"{directory}/file", NEW) as fd:
            assert not os.get_inheritable(fd)

    def test_an_open_file_outlives_its_name(self, fs: FileSystem, directory: str) -> None:
        """A reader that has a pack open reads on after a collection removed it."""
        put_file(fs, f"{directory}/file", b"content")

        with opened(fs, f"{directory}/file") as fd:
            fs.unlink(f"{directory}/file")
            assert fs.read_at(fd, 100, 0) == b"content"

    def test_truncate_grows_with_zeros(self, fs: FileSystem, directory: str) -> None:
        """A file that is made longer reads as zeros behind its old end."""
        with opened(fs, f"{directory}/file", NEW) as fd:
            fs.write(fd, b"ab")

            fs.truncate(fd, 4)

            assert fs.fstat(fd).st_size == 4
            assert fs.read_at(fd, 10, 0) == b"ab\0\0"

    def test_allocate_takes_space_and_keeps_content(self, fs: FileSystem, directory: str) -> None:
        """What was not there before reads as zeros."""
        with opened(fs, f"{directory}/file", NEW) as fd:
            fs.write(fd, b"ab")

            fs.allocate(fd, 100_000)

            assert fs.fstat(fd).st_size == 100_000
            assert fs.fstat(fd).st_blocks * 512 >= 100_000
            assert fs.read_at(fd, 3, 0) == b"ab\0"

    def test_a_hole_gives_back_its_blocks_or_is_refused(
        self, fs: FileSystem, directory: str
    ) -> None:
        """The size stays, the range reads as zeros, and what is around it is as before."""
        content = b"x" * (256 << 10)
        put_file(fs, f"{directory}/file", content)
        hole = slice(64 << 10, 192 << 10)

        with opened(fs, f"{directory}/file", os.O_RDWR) as fd:
            fs.sync(fd)
            before = fs.fstat(fd).st_blocks
            refused = None
            try:
                fs.punch_hole(fd, hole.start, hole.stop - hole.start)
            except OSError as error:
                refused = error
            fs.sync(fd)
            after = fs.fstat(fd).st_blocks

        if refused is not None:
            assert isinstance(refused, Unsupported)
            return
        zeros = bytes(hole.stop - hole.start)
        assert _content(fs, f"{directory}/file") == (
            content[: hole.start] + zeros + content[hole.stop :]
        )
        assert before - after == len(zeros) // 512

    def test_shared_content_is_whole_or_refused(self, fs: FileSystem, directory: str) -> None:
        """Where blocks can be shared, a file has the other's content and size from then on."""
        put_file(fs, f"{directory}/source", b"content" * 2000)
        refused = None

        with (
            opened(fs, directory, DIRECTORY) as directory_fd,
            opened(fs, f"{directory}/source") as source,
            opened(fs, f"{directory}/new", NEW) as fd,
        ):
            try:
                fs.share_content(fd, source, (directory_fd, b"new"))
            except OSError as error:
                refused = error
            else:  # it is the open one that has the name
                assert os.path.samestat(fs.fstat(fd), fs.lstat(b"new", dir_fd=directory_fd))

        if refused is not None:
            assert isinstance(refused, Unsupported) or refused.errno == errno.EINVAL
            assert _content(fs, f"{directory}/new") == b""
            return
        assert _content(fs, f"{directory}/new") == b"content" * 2000
        with opened(fs, f"{directory}/new", os.O_RDWR) as fd:
            fs.write_at(fd, b"CONTENT", 0)
        assert _content(fs, f"{directory}/source") == b"content" * 2000

    def test_data_and_holes_take_turns(self, fs: FileSystem, directory: str) -> None:
        """The end of a file is a hole; behind the last data there is no data."""
        with opened(fs, f"{directory}/file", NEW) as fd:
            fs.write_at(fd, b"data", 1 << 20)
            fs.truncate(fd, 3 << 20)

            assert fs.next_data(fd, 0) in {0, 1 << 20}  # a file system may know no holes
            assert (1 << 20) + 4 <= fs.next_hole(fd, 1 << 20) <= 3 << 20
            assert fs.next_data(fd, 2 << 20) in {None, 2 << 20}
            assert (fs.next_data(fd, 4 << 20), fs.next_hole(fd, 4 << 20)) == (None, 4 << 20)

    def test_a_mapping_shows_the_whole_file(self, fs: FileSystem, directory: str) -> None:
        """``map`` outlives the descriptor and the name."""
        put_file(fs, f"{directory}/file", b"content")

        with opened(fs, f"{directory}/file") as fd:
            mapping = fs.map(fd)

        with mapping:
            fs.unlink(f"{directory}/file")
            assert mapping[:] == b"content"

    def test_syncs_change_nothing_that_is_seen(self, fs: FileSystem, directory: str) -> None:
        """All three take any descriptor, of a directory too, and return when done."""
        put_file(fs, f"{directory}/file", b"content")

        with opened(fs, f"{directory}/file", os.O_RDWR) as fd:
            fs.sync_data(fd)
        with opened(fs, directory, DIRECTORY) as fd:
            fs.sync(fd)
            fs.sync_file_system(fd)
            assert fs.free_bytes(fd) >= 0
            assert fs.name_size_max(fd) >= 143  # of eCryptfs, the shortest one that is usual
            assert not fs.is_read_only(fd)
            assert fs.file_system_id(fd) == fs.file_system_id(directory) != 0

        assert _content(fs, f"{directory}/file") == b"content"

    def test_names_are_listed_without_dots(self, fs: FileSystem, directory: str) -> None:
        """By path and by descriptor, in any order."""
        put_file(fs, f"{directory}/file")
        fs.make_directory(f"{directory}/below")

        with opened(fs, directory, DIRECTORY) as fd:
            by_path, by_descriptor = fs.list_names(directory), fs.list_names(fd)
            with fs.scan(fd) as entries:
                scanned = {entry.name: entry.is_dir(follow_symlinks=False) for entry in entries}

        assert sorted(by_path) == sorted(by_descriptor) == ["below", "file"]
        assert scanned == {"below": True, "file": False}

    def test_names_are_relative_to_a_directory(self, fs: FileSystem, directory: str) -> None:
        """``dir_fd`` means the directory itself, wherever it is by now."""
        fs.make_directory(f"{directory}/old")
        with opened(fs, f"{directory}/old", DIRECTORY) as fd:
            fs.rename(f"{directory}/old", f"{directory}/new")

            fs.close(fs.open(b"file", NEW, dir_fd=fd))

        assert fs.list_names(f"{directory}/new") == ["file"]

    def test_any_bytes_make_a_name(self, fs: FileSystem, directory: str) -> None:
        """Names need not be UTF-8 and may hold newlines."""
        name = b"\xff\n\x01"
        with opened(fs, directory, DIRECTORY) as fd:
            fs.close(fs.open(name, NEW, dir_fd=fd))

            assert [os.fsencode(item) for item in fs.list_names(fd)] == [name]

    def test_an_absent_name_is_not_found(self, fs: FileSystem, directory: str) -> None:
        """Every call on a name that is not there raises FileNotFoundError."""
        path = f"{directory}/absent"

        for call in (fs.lstat, fs.unlink, fs.remove_directory):
            with pytest.raises(FileNotFoundError):
                call(path)
        with pytest.raises(FileNotFoundError):
            fs.open(path, os.O_RDONLY)

    def test_lstat_describes_the_link(self, fs: FileSystem, directory: str) -> None:
        """A symbolic link is looked at itself, and its target is kept as it is."""
        with opened(fs, directory, DIRECTORY) as fd:
            fs.make_symlink(b"/no/\xff", b"link", dir_fd=fd)

            assert stat_module.S_ISLNK(fs.lstat(b"link", dir_fd=fd).st_mode)
            assert fs.read_link(b"link", dir_fd=fd) == b"/no/\xff"

    def test_only_an_empty_directory_is_removed(self, fs: FileSystem, directory: str) -> None:
        """``remove_directory`` raises ENOTEMPTY and leaves everything."""
        fs.make_directory(f"{directory}/below")
        put_file(fs, f"{directory}/below/file")

        with pytest.raises(OSError, match=os.strerror(errno.ENOTEMPTY)):
            fs.remove_directory(f"{directory}/below")

        assert fs.list_names(f"{directory}/below") == ["file"]

    def test_rename_replaces_a_file(self, fs: FileSystem, directory: str) -> None:
        """The target has the old content or the new at every instant; the inode moves."""
        put_file(fs, f"{directory}/new", b"new")
        put_file(fs, f"{directory}/old", b"old")
        inode = fs.lstat(f"{directory}/new").st_ino

        fs.rename(f"{directory}/new", f"{directory}/old")

        assert fs.list_names(directory) == ["old"]
        assert fs.lstat(f"{directory}/old").st_ino == inode

    def test_rename_to_absent_never_replaces(self, fs: FileSystem, directory: str) -> None:
        """An existing target raises FileExistsError and both names stay."""
        put_file(fs, f"{directory}/new", b"new")
        put_file(fs, f"{directory}/old", b"old")

        with opened(fs, directory, DIRECTORY) as fd:
            with pytest.raises(FileExistsError):
                fs.rename_to_absent(b"new", b"old", source_dir_fd=fd, target_dir_fd=fd)
            fs.rename_to_absent(b"new", b"free", source_dir_fd=fd, target_dir_fd=fd)

        assert _content(fs, f"{directory}/old") == b"old"
        assert _content(fs, f"{directory}/free") == b"new"

    def test_rename_to_absent_or_fail_is_atomic_or_fails(
        self, fs: FileSystem, directory: str
    ) -> None:
        """It replaces nothing either; some file systems cannot."""
        put_file(fs, f"{directory}/new", b"new")
        put_file(fs, f"{directory}/old", b"old")

        try:
            with opened(fs, directory, DIRECTORY) as fd:
                with pytest.raises(FileExistsError):
                    fs.rename_to_absent(
                        b"new", b"old", source_dir_fd=fd, target_dir_fd=fd, or_fail=True
                    )
                fs.rename_to_absent(
                    b"new", b"free", source_dir_fd=fd, target_dir_fd=fd, or_fail=True
                )
        except Unsupported:
            return

        assert _content(fs, f"{directory}/old") == b"old"
        assert _content(fs, f"{directory}/free") == b"new"

    def test_exchange_swaps_what_two_names_mean(self, fs: FileSystem, directory: str) -> None:
        """Types may differ; inodes move with their names. Some file systems cannot."""
        put_file(fs, f"{directory}/file")
        fs.make_directory(f"{directory}/below")
        inode = fs.lstat(f"{directory}/file").st_ino

        try:
            with opened(fs, directory, DIRECTORY) as fd:
                fs.exchange(b"file", b"below", source_dir_fd=fd, target_dir_fd=fd)
        except Unsupported:
            assert fs.lstat(f"{directory}/file").st_ino == inode
            return

        assert fs.lstat(f"{directory}/below").st_ino == inode
        assert stat_module.S_ISDIR(fs.lstat(f"{directory}/file").st_mode)

    def test_exchange_needs_both_names(self, fs: FileSystem, directory: str) -> None:
        """An absent name is an error and moves nothing, whether names can be exchanged or not."""
        put_file(fs, f"{directory}/file")

        with opened(fs, directory, DIRECTORY) as fd, pytest.raises(MISSING):
            fs.exchange(b"file", b"absent", source_dir_fd=fd, target_dir_fd=fd)

        assert fs.list_names(directory) == ["file"]

    def test_a_link_is_the_same_file(self, fs: FileSystem, directory: str) -> None:
        """Both names have one inode and count each other."""
        put_file(fs, f"{directory}/one", b"content")

        fs.link(f"{directory}/one", f"{directory}/two")

        first, second = fs.lstat(f"{directory}/one"), fs.lstat(f"{directory}/two")
        assert (first.st_ino, first.st_nlink) == (second.st_ino, 2)

    def test_an_ordinary_file_is_not_protected(self, fs: FileSystem, directory: str) -> None:
        """``is_protected`` takes names, links among them, and descriptors."""
        put_file(fs, f"{directory}/file", b"content")

        with opened(fs, directory, DIRECTORY) as fd:
            fs.make_symlink(b"nowhere", b"link", dir_fd=fd)

            assert not fs.is_protected(b"file", dir_fd=fd)
            assert not fs.is_protected(b"link", dir_fd=fd)
            assert not fs.is_protected(fd)
            with pytest.raises(FileNotFoundError):
                fs.is_protected(b"absent", dir_fd=fd)

    def test_a_directory_and_what_is_in_it_are_of_one_mount(
        self, fs: FileSystem, directory: str
    ) -> None:
        """``mount_id`` is the same for both, or None."""
        put_file(fs, f"{directory}/file", b"content")

        with opened(fs, directory, DIRECTORY) as fd, opened(fs, f"{directory}/file") as file_fd:
            known = fs.mount_id(fd)
            assert fs.mount_id(file_fd) == known

        if known is not None:
            with pytest.raises(OSError, match=os.strerror(errno.EBADF)):
                fs.mount_id(-1)

    def test_a_directory_keeps_its_birth_time_when_it_is_renamed(
        self, fs: FileSystem, directory: str
    ) -> None:
        """``birth_time_ns`` is the same before and after, or None."""
        fs.make_directory(f"{directory}/old")
        before = fs.birth_time_ns(f"{directory}/old")

        fs.rename(f"{directory}/old", f"{directory}/new")

        assert fs.birth_time_ns(f"{directory}/new") == before
        with pytest.raises(FileNotFoundError):
            fs.birth_time_ns(f"{directory}/old")

    def test_mode_and_time_are_set_by_name_and_descriptor(
        self, fs: FileSystem, directory: str
    ) -> None:
        """Nanoseconds are kept, of symbolic links too, which are not followed."""
        put_file(fs, f"{directory}/file")

        with opened(fs, directory, DIRECTORY) as directory_fd:
            fs.make_symlink(b"file", b"link", dir_fd=directory_fd)
            fs.make_node(b"fifo", stat_module.S_IFIFO | 0o600, dir_fd=directory_fd)
            fs.change_times(b"link", 1_500_000_000_000_000_001, dir_fd=directory_fd)
            link = fs.lstat(b"link", dir_fd=directory_fd)
            assert stat_module.S_ISFIFO(fs.lstat(b"fifo", dir_fd=directory_fd).st_mode)
        with opened(fs, f"{directory}/file") as fd:
            fs.change_mode(fd, 0o640)
            fs.change_owner(fd, os.geteuid(), os.getegid())
            fs.change_times(fd, 1_600_000_000_123_456_789)
            stat = fs.fstat(fd)

        assert stat_module.S_IMODE(stat.st_mode) == 0o640
        assert stat.st_mtime_ns == 1_600_000_000_123_456_789
        assert link.st_mtime_ns == 1_500_000_000_000_000_001

    def test_no_change_of_metadata_follows_a_link(self, fs: FileSystem, directory: str) -> None:
        """By name, and by a descriptor of the link itself: what it leads to stays as it is."""
        put_file(fs, f"{directory}/file")
        before = fs.lstat(f"{directory}/file")
        owner = os.geteuid(), os.getegid()

        with opened(fs, directory, DIRECTORY) as directory_fd:
            fs.make_symlink(b"file", b"link", dir_fd=directory_fd)
            fs.change_owner(b"link", *owner, dir_fd=directory_fd)
            fs.change_times(b"link", 1_500_000_000_000_000_001, dir_fd=directory_fd)
            with suppress(Unsupported), opened_any(fs, b"link", directory_fd) as fd:
                fs.change_owner(fd, *owner)
                fs.change_times(fd, 1_500_000_000_000_000_002)
                with suppress(OSError):  # a link has no permissions of its own
                    fs.change_mode(fd, 0o777)
            for change in (partial(fs.set_xattr, value=b"1"), fs.remove_xattr):
                with suppress(OSError):  # nor attributes of users
                    change((directory_fd, b"link"), "user.one")

        after = fs.lstat(f"{directory}/file")
        assert (after.st_mode, after.st_mtime_ns) == (before.st_mode, before.st_mtime_ns)
        assert after.st_ctime_ns == before.st_ctime_ns

    def test_attributes_come_and_go(self, fs: FileSystem, directory: str) -> None:
        """By name and by descriptor, however it was opened; an absent one is NoAttribute."""
        path = f"{directory}/file"
        put_file(fs, path)
        fd = fs.open(path, os.O_RDONLY)

        try:
            fs.set_xattr(fd, "user.one", b"1")
        except (Unsupported, PermissionError):
            fs.close(fd)
            return
        any_fd, directory_fd = fs.open_any(path), fs.open(directory, DIRECTORY)
        places: list[Place] = [(directory_fd, b"file"), fd, any_fd]
        values = [fs.get_xattr(place, "user.one") for place in places]
        names = [fs.list_xattrs(place) for place in places]
        fs.remove_xattr(any_fd, "user.one")
        fs.close(any_fd)
        fs.close(directory_fd)

        assert (values, names) == ([b"1"] * 3, [["user.one"]] * 3)
        with pytest.raises(NoAttribute):
            fs.get_xattr(fd, "user.one")
        with pytest.raises(NoAttribute):
            fs.remove_xattr(fd, "user.one")
        fs.close(fd)

    def test_what_is_opened_for_its_metadata_is_what_has_the_name(
        self, fs: FileSystem, directory: str
    ) -> None:
        """Files, directories and pipes everywhere; of a link, it is itself or Unsupported."""
        put_file(fs, f"{directory}/file")
        fs.make_directory(f"{directory}/below")
        with opened(fs, directory, DIRECTORY) as fd:
            fs.make_node(b"fifo", stat_module.S_IFIFO | 0o600, dir_fd=fd)
            fs.make_symlink(b"file", b"link", dir_fd=fd)

            for name in (b"file", b"below", b"fifo", b"link"):
                with suppress(Unsupported), opened_any(fs, name, fd) as any_fd:
                    found = fs.lstat(name, dir_fd=fd)
                    assert os.path.samestat(fs.fstat(any_fd), found)
            with opened_any(fs, b"fifo", fd) as any_fd:
                fs.change_mode(any_fd, 0o640)
            assert stat_module.S_IMODE(fs.lstat(b"fifo", dir_fd=fd).st_mode) == 0o640
            for name in (b"file", b"fifo", b"link"):
                with pytest.raises(NotADirectoryError):
                    fs.open_any(name, dir_fd=fd, is_directory=True)

    def test_a_file_without_a_name_is_in_no_listing(self, fs: FileSystem, directory: str) -> None:
        """It is written and read like others; some file systems have none."""
        try:
            fd = fs.open_unnamed(directory)
        except Unsupported:
            return
        fs.write(fd, b"content")

        assert (fs.read_at(fd, 10, 0), fs.list_names(directory)) == (b"content", [])
        fs.close(fd)

    def test_an_open_directory_says_where_it_is(self, fs: FileSystem, directory: str) -> None:
        """Wherever it was moved; None where the system does not say."""
        fs.make_directory(f"{directory}/old")

        with opened(fs, f"{directory}/old", DIRECTORY) as fd:
            fs.rename(f"{directory}/old", f"{directory}/new")
            assert fs.current_path(fd) in {None, f"{os.path.realpath(directory)}/new"}

    def test_an_exclusive_lock_keeps_others_out(self, fs: FileSystem, directory: str) -> None:
        """A lock belongs to an opening, so two of one process keep each other out."""
        first = fs.open(f"{directory}/lock", NEW)
        second = fs.open(f"{directory}/lock", os.O_RDWR)

        got = [fs.lock(first, exclusive=True), fs.lock(second, exclusive=True)]
        fs.unlock(first)
        got.append(fs.lock(second, exclusive=True))

        fs.close(first)
        fs.close(second)
        assert got == [True, False, True]

    def test_shared_locks_stand_together(self, fs: FileSystem, directory: str) -> None:
        """Any number of shared locks, and no exclusive one beside them."""
        fds = [fs.open(f"{directory}/lock", os.O_RDWR | os.O_CREAT) for _ in range(3)]

        got = [
            fs.lock(fds[0], exclusive=False),
            fs.lock(fds[1], exclusive=False),
            fs.lock(fds[2], exclusive=True),
        ]

        for fd in fds:
            fs.close(fd)
        assert got == [True, True, False]

    def test_closing_gives_a_lock_back(self, fs: FileSystem, directory: str) -> None:
        """However the holder ends, its locks end with its descriptors."""
        first = fs.open(f"{directory}/lock", NEW)
        fs.lock(first, exclusive=True)
        second = fs.open(f"{directory}/lock", os.O_RDWR)

        fs.close(first)

        assert fs.lock(second, exclusive=True)
        fs.close(second)
