"""The real file system and every double of it behave alike."""

from __future__ import annotations

import errno
import os

import pytest

from conformance import FileSystemTests
from disk import load
from power import PoweredFileSystem
from treesnap.core.fs.local import LocalFileSystem
from treesnap.core.fs.posix import PosixFileSystem
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
