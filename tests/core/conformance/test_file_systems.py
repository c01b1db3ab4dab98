"""The real file system and every double of it behave alike."""

from __future__ import annotations

import errno
import os

import pytest

from conformance import NEW, FileSystemTests, opened, put_file
from disk import load
from folding import without_form
from libsystem import VOLUMES, MacFileSystem
from power import PoweredFileSystem
from treesnap.core.fs.base import Unsupported
from treesnap.core.fs.darwin import F_FULLFSYNC
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
@pytest.mark.sampled(2)
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
