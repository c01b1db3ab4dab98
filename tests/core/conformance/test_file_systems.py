"""The real file system and every double of it behave alike."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from types import SimpleNamespace

import pytest

from conformance import NEW, FileSystemTests, opened, put_file
from disk import load
from folding import without_form
from libsystem import VOLUMES, MacFileSystem
from power import PoweredFileSystem
from treesnap.core import own_program
from treesnap.core.fs import posix
from treesnap.core.fs.base import NoAttribute, Unsupported
from treesnap.core.fs.darwin import EDEADLK, F_FULLFSYNC, F_PREALLOCATE, RESOURCE_FORK
from treesnap.core.fs.local import LocalFileSystem
from treesnap.core.fs.posix import PosixFileSystem
from treesnap.core.worktree.apply.capabilities import capabilities_of
from treesnap.testing.doubles import (
    KINDS,
    Fault,
    FaultyFileSystem,
    RecordingFileSystem,
    UnsyncedFileSystem,
    WrappedFileSystem,
    error_at,
)

DENIED = b"!#acl 1\ngroup:ABCDEFAB-CDEF-ABCD-EFAB-CDEF0000000C:everyone:12:deny:write\n"
INHERITED = DENIED.replace(b":deny:", b":deny,file_inherit:")


@pytest.fixture
def directory(tmp_path):
    return str(tmp_path)


@pytest.mark.usefixtures("implementation")
class TestLocalFileSystem(FileSystemTests):
    @pytest.fixture
    def fs(self):
        return LocalFileSystem()


class TestPosixFileSystem(FileSystemTests):
    @pytest.fixture
    def fs(self):
        return PosixFileSystem()


@pytest.mark.parametrize("flag", [0x2, 0x4, 0x20000, 0x40000, 0x80000, 0x100000])
def test_a_flag_that_keeps_a_file_where_it_is_protects_it(monkeypatch, flag):
    """A Mac and the BSDs tell flags with the status of a file."""
    for found in (flag, 0x1 | 0x20):
        monkeypatch.setattr(os, "fstat", lambda _, found=found: SimpleNamespace(st_flags=found))
        assert PosixFileSystem().is_protected(0) == (found == flag)
    monkeypatch.undo()


class TestWrappedFileSystem(FileSystemTests):
    @pytest.fixture
    def fs(self):
        return WrappedFileSystem()


class TestRecordingFileSystem(FileSystemTests):
    @pytest.fixture
    def fs(self):
        return RecordingFileSystem()


class TestFaultyFileSystem(FileSystemTests):
    @pytest.fixture
    def fs(self):
        return FaultyFileSystem(error_at(1_000_000, errno.EIO))


class TestUnsyncedFileSystem(FileSystemTests):
    @pytest.fixture
    def fs(self):
        return UnsyncedFileSystem()


class TestPoweredFileSystem(FileSystemTests):
    @pytest.fixture
    def fs(self, directory):
        """Also asserts that the model of the disk is exact after every test."""
        powered = PoweredFileSystem(directory)
        yield powered
        assert powered.disk.contents() == load(directory).contents()


@pytest.mark.needs("linux")
@pytest.mark.sampled(3)
class TestVolumesOfAMac(FileSystemTests):
    """Over a double of its C library; what a volume cannot is refused as it is there."""

    @pytest.fixture(params=VOLUMES)
    def volume(self, request):
        return VOLUMES[request.param]

    @pytest.fixture
    def fs(self, directory, volume):
        return MacFileSystem(directory, volume)

    def test_any_bytes_make_a_name(self, fs, directory):
        with pytest.raises(OSError, match=os.strerror(92)):
            fs.open(f"{directory}/\udcff", NEW)

        put_file(fs, f"{directory}/a\n\x01")

        assert fs.list_names(directory) == ["a\n\x01"]

    def test_a_link_is_the_same_file(self, fs, directory, volume):
        if volume.links:
            super().test_a_link_is_the_same_file(fs, directory)
            return
        put_file(fs, f"{directory}/one")
        with pytest.raises(Unsupported):
            fs.link(f"{directory}/one", f"{directory}/two")

    def test_mode_and_time_are_set_by_name_and_descriptor(self, fs, directory, volume):
        if volume.time_step_ns == 1:
            super().test_mode_and_time_are_set_by_name_and_descriptor(fs, directory)
            return
        put_file(fs, f"{directory}/file")
        fs.change_times(f"{directory}/file", 1_600_000_003_123_456_789)

        kept_ns = fs.lstat(f"{directory}/file").st_mtime_ns
        assert kept_ns % volume.time_step_ns == 0
        assert 0 < 1_600_000_003_123_456_789 - kept_ns < volume.time_step_ns

    def test_what_it_does_is_found_out(self, fs, directory, volume):
        with opened(fs, directory) as fd:
            found = capabilities_of(fs, fd)

        assert (found.exchange, found.rename_to_absent) == (volume.swaps, volume.excludes)
        assert (found.hard_links, found.attributes) == (volume.links, volume.attributes)
        assert found.folds_case == (volume.fold is not without_form)
        assert found.folds_accents == (volume.fold is not str.casefold)
        assert found.keeps_spelling != volume.decomposes
        assert (found.any_bytes, found.time_step_ns) == (False, volume.time_step_ns)

    def test_what_is_synced_is_flushed_from_the_drive(self, fs, directory, volume):
        """fsync alone is for volumes that cannot; a directory is synced with its volume there."""
        with opened(fs, f"{directory}/file", NEW) as fd, opened(fs, directory) as directory_fd:
            fs.libc.made.clear()
            fs.sync(fd)
            fs.sync_data(fd)
            fs.sync(directory_fd)
            fs.sync_file_system(directory_fd)

        flush = f"fcntl {F_FULLFSYNC}"
        if volume.flushes:
            assert fs.libc.made == [flush, flush, flush, "ffsctl"]
        else:
            assert fs.libc.made == [*[flush, "fsync"] * 3, "ffsctl", "ffsctl"]

    def test_attributes_have_any_length(self, fs, directory, volume):
        put_file(fs, f"{directory}/file")
        with opened(fs, directory) as fd:
            place = (fd, b"file")
            if not volume.attributes:
                with pytest.raises(Unsupported):
                    fs.list_xattrs(place)
                return
            fs.set_xattr(place, "com.apple.FinderInfo", b"\0" * 32)
            fs.set_xattr(place, "empty", b"")
            fs.make_symlink(b"file", b"link", dir_fd=fd)

            assert sorted(fs.list_xattrs(place)) == ["com.apple.FinderInfo", "empty"]
            assert fs.get_xattr(place, "com.apple.FinderInfo") == bytes(32)
            assert fs.get_xattr(place, "empty") == b""
            assert fs.list_xattrs((fd, b"link")) == []

    def test_a_clone_has_the_content_alone(self, fs, directory, volume):
        """What else it takes over from its source is what the caller gives it."""
        put_file(fs, f"{directory}/source", b"content")
        with opened(fs, f"{directory}/source") as source, opened(fs, directory) as directory_fd:
            if volume.attributes:
                fs.set_xattr(source, "colour", b"red")
            fs.change_mode(source, 0o444)
            with opened(fs, f"{directory}/new", NEW) as fd:
                if not volume.clones:
                    with pytest.raises(Unsupported):
                        fs.share_content(fd, source, (directory_fd, b"new"))
                else:
                    fs.share_content(fd, source, (directory_fd, b"new"))
                    assert fs.list_xattrs(fd) == []
                    fs.write_at(fd, b"CON", 0)

        assert sorted(fs.list_names(directory)) == ["new", "source"]
        assert Path(directory, "source").read_bytes() == b"content"
        assert Path(directory, "new").read_bytes() == (b"CONtent" if volume.clones else b"")

    def test_what_is_reserved_is_there(self, fs, directory):
        with opened(fs, f"{directory}/file", NEW) as fd:
            fs.allocate(fd, 1 << 20)
            fs.allocate(fd, 1 << 16)
            found = fs.fstat(fd)

        assert (found.st_size, found.st_blocks) == (1 << 20, 1 << 11)
        assert fs.libc.made.count(f"fcntl {F_PREALLOCATE}") == 1

    def test_the_ends_of_a_hole_are_written(self, fs, directory, volume):
        put_file(fs, f"{directory}/file", b"x" * 20_000)
        with opened(fs, f"{directory}/file", os.O_RDWR) as fd:
            if not volume.holes:
                with pytest.raises(Unsupported):
                    fs.punch_hole(fd, 100, 15_000)
                return
            fs.punch_hole(fd, 100, 15_000)
            with pytest.raises(Unsupported):
                fs.punch_hole(fd, 100, 200)

        found = Path(directory, "file").read_bytes()
        assert found == b"x" * 100 + bytes(15_000) + b"x" * 4_900

    def test_a_file_that_cannot_be_written_fails_when_it_is_closed(self, fs, directory):
        """No later sync of the volume tells it."""
        fd = fs.open(f"{directory}/file", NEW)
        fs.write(fd, b"content")

        def fail(_: int) -> None:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

        fs.libc.fsync = fail
        with pytest.raises(OSError, match=os.strerror(errno.EIO)):
            fs.close(fd)
        with pytest.raises(OSError, match=os.strerror(errno.EBADF)):
            os.fstat(fd)
        fs.close(fs.open(f"{directory}/file", os.O_RDONLY))  # of which nothing was written

    def test_flags_and_access_lists_are_attributes(self, fs, directory, volume):
        """Those that protect a file are not, and none that the system has made."""
        if not volume.attributes:
            return
        fs.close(fs.open(f"{directory}/file", NEW))
        with opened(fs, f"{directory}/file", os.O_RDWR) as fd, opened(fs, directory) as top:
            fs.libc.fchflags(fd, 0x8000 | 0x2 | 0x20)
            fs.set_xattr(fd, "treesnap.darwin.acl", DENIED)

            names = ["treesnap.darwin.acl", "treesnap.darwin.flags"]
            assert sorted(fs.list_xattrs((top, b"file"))) == names
            assert fs.get_xattr(fd, names[0]) == DENIED
            assert fs.get_xattr(fd, names[1]) == b"0x8000"
            fs.set_xattr(fd, names[1], b"0x8003")
            assert fs.libc.fstat(fd).st_flags == 0x8000 | 0x1 | 0x2 | 0x20
            for name in names:
                fs.remove_xattr(fd, name)
                with pytest.raises(NoAttribute):
                    fs.get_xattr(fd, name)
            assert fs.list_xattrs(fd) == []
            lists = ((names[0], b"everyone"), (names[0], b"everyone\nelse\n\n"))
            for name, value in ((names[1], b"hidden"), *lists):
                with pytest.raises(OSError, match=os.strerror(errno.EINVAL)):
                    fs.set_xattr(fd, name, value)
            fs.set_xattr(fd, names[0], b"!#acl 1\n")  # as of a file that lost its last entry
            assert fs.list_xattrs(fd) == []
        assert not fs.libc.allocated

    def test_attributes_of_the_system_are_left_alone(self, fs, directory, volume):
        """It gives them to files by itself, and keeps others from changing them."""
        if volume.attributes:
            fs.close(fs.open(f"{directory}/file", NEW))
            names = ("system.Security", "macl", "provenance", "rootless")
            for name in names:
                os.setxattr(f"{directory}/file", f"user.com.apple.{name}", b"1")
            with opened(fs, f"{directory}/file") as fd:
                assert fs.list_xattrs(fd) == []
                for name in names:
                    with pytest.raises(Unsupported):
                        fs.set_xattr(fd, f"com.apple.{name}", b"2")
                    with pytest.raises(Unsupported):
                        fs.remove_xattr(fd, f"com.apple.{name}")

    def test_a_shorter_resource_fork_takes_the_place_of_a_longer_one(self, fs, directory, volume):
        if volume.attributes:
            fs.close(fs.open(f"{directory}/file", NEW))
            with opened(fs, f"{directory}/file") as fd:
                for value in (b"long", b"new"):
                    fs.set_xattr(fd, RESOURCE_FORK, value)
                assert fs.get_xattr(fd, RESOURCE_FORK) == b"new"

    def test_a_pipe_has_no_attributes(self, fs, directory):
        with opened(fs, directory) as fd:
            fs.make_node(b"pipe", stat.S_IFIFO | 0o600, dir_fd=fd)
            with pytest.raises(Unsupported):
                fs.list_xattrs((fd, b"pipe"))

    def test_a_file_is_read_and_not_mapped(self, fs, directory, monkeypatch):
        """Python has the drive flushed before it maps a file on a Mac."""
        put_file(fs, f"{directory}/file", b"content")
        monkeypatch.setattr(posix.PosixFileSystem, "map", None)
        with opened(fs, f"{directory}/file") as fd, fs.map(fd) as found:
            assert found[:] == b"content"
        with opened(fs, f"{directory}/file", os.O_RDWR) as fd:
            monkeypatch.setattr(fs._inner._inner, "read_at", lambda *_: b"")
            with pytest.raises(OSError, match=os.strerror(errno.EIO)):
                fs.map(fd)

    @pytest.mark.parametrize("flag", [0x2, 0x4, 0x20000, 0x40000, 0x100000])
    def test_a_file_that_a_flag_protects_is_not_cloned(self, fs, directory, volume, flag):
        """The clone would have the flag, and could not be removed."""
        put_file(fs, f"{directory}/source", b"content")
        with opened(fs, f"{directory}/source") as source, opened(fs, directory) as directory_fd:
            fs.libc.fchflags(source, flag)
            with (
                opened(fs, f"{directory}/new", NEW) as fd,
                pytest.raises(OSError, match=os.strerror(errno.EINVAL)) as raised,
            ):
                fs.share_content(fd, source, (directory_fd, b"new"))

        assert not isinstance(raised.value, Unsupported)
        assert sorted(fs.list_names(directory)) == ["new", "source"]

    def test_a_clone_inherits_nothing_and_takes_no_other_name(self, fs, directory, volume):
        if not volume.clones:
            return
        name = "\u00e9" * 127 + "x"
        put_file(fs, f"{directory}/{name}", b"content")
        put_file(fs, f"{directory}/new.clone", b"other")
        with opened(fs, f"{directory}/{name}") as source, opened(fs, directory) as top:
            fs.set_xattr(top, "treesnap.darwin.acl", INHERITED)
            for new in ("new", "\u00e8" * 127 + "x"):
                with opened(fs, f"{directory}/{new}", NEW) as fd:
                    fs.share_content(fd, source, (top, new.encode()))
                    assert fs.list_xattrs(fd) == []
                assert Path(directory, new).read_bytes() == b"content"

    @pytest.mark.parametrize("kind", [os.O_RDONLY, os.O_RDONLY | os.O_DIRECTORY])
    def test_what_a_service_holds_is_not_opened(self, fs, directory, kind):
        """To read it would bring it here, whatever the policy of the process is."""
        put_file(fs, f"{directory}/file", b"content")
        fs.make_directory(f"{directory}/directory")
        name = f"{directory}/directory" if kind & os.O_DIRECTORY else f"{directory}/file"
        found = os.lstat(name)
        fs.libc.dataless.add((found.st_dev, found.st_ino))

        with pytest.raises(OSError, match=os.strerror(EDEADLK)):
            fs.open(name, kind)

        assert fs.libc.downloads  # for what else this process does
        assert len(fs.libc.dataless) == 1

    def test_our_own_program_says_that_nothing_is_downloaded(self, fs, directory, monkeypatch):
        monkeypatch.setattr(own_program, "is_own", True)
        put_file(fs, f"{directory}/file", b"content")

        fs.close(fs.open(f"{directory}/file", os.O_RDONLY))

        assert not fs.libc.downloads

    def test_a_folder_that_is_protected_says_what_to_do(self, fs, directory, monkeypatch):
        def refuse(*_: object, **__: object) -> int:
            raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))

        monkeypatch.setattr(posix, "open_whole", refuse)
        with pytest.raises(PermissionError, match="Full Disk Access"):
            fs.open(directory, os.O_RDONLY)

    def test_a_pipe_is_made_where_no_call_takes_a_directory(self, fs, directory, monkeypatch):
        """Before macOS 13."""
        monkeypatch.setattr(os, "supports_dir_fd", os.supports_dir_fd - {os.mknod})
        with opened(fs, directory) as fd:
            fs.make_node(b"pipe", stat.S_IFIFO | 0o600, dir_fd=fd)

        assert stat.S_ISFIFO(os.lstat(f"{directory}/pipe").st_mode)


class TestStackedFileSystems(FileSystemTests):
    @pytest.fixture
    def fs(self):
        return RecordingFileSystem(FaultyFileSystem(inner=RecordingFileSystem()))


def test_where_attributes_fail_otherwise_their_test_fails(directory):
    fs = FaultyFileSystem(Fault(methods=frozenset({"set_xattr"}), errno=errno.EIO))

    with pytest.raises(OSError, match=os.strerror(errno.EIO)):
        FileSystemTests().test_attributes_come_and_go(fs, directory)


def test_every_method_of_the_seam_is_wrapped():
    methods = {name for name in dir(LocalFileSystem) if not name.startswith("_")}

    assert methods == set(KINDS)
