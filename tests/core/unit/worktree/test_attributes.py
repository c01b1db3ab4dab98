"""Metadata of one file: read as far as it is there, put back as far as it is permitted."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

import pytest

from capabilities import require
from treesnap.core.fs.base import FileSystem, NoAttribute, Place, Unsupported
from treesnap.core.model.entries import Entry, EntryKind
from treesnap.core.worktree.attributes import apply_metadata, apply_xattrs, read_xattrs
from treesnap.testing.doubles import Call, Fault, FaultyFileSystem, WrappedFileSystem

ONE, TWO = (b"user.one", b"1"), (b"user.two", b"2")


@pytest.fixture
def path(tmp_path: Path) -> str:
    """A file with two attributes."""
    require("attributes")
    path = tmp_path / "file"
    path.write_bytes(b"content")
    for name, value in (ONE, TWO):
        os.setxattr(path, name, value)
    return str(path)


@pytest.fixture
def fd(path: str):
    fd = os.open(path, os.O_RDONLY)
    yield fd
    os.close(fd)


def failing(method: str, code: int, error: type[OSError] = OSError) -> FileSystem:
    return FaultyFileSystem(Fault(methods=frozenset({method}), errno=code, error=error))


def attributes(path: str) -> dict[str, bytes]:
    return {name: os.getxattr(path, name) for name in os.listxattr(path)}


class TestReading:
    def test_a_file_system_that_knows_no_attributes_has_none(self, fd):
        assert read_xattrs(failing("list_xattrs", errno.ENOTSUP, Unsupported), fd) is None

    @pytest.mark.parametrize("error", [NoAttribute, Unsupported])
    def test_one_that_goes_meanwhile_is_left_out(self, fd, error):
        """The first of the two that are listed; which that is, is up to the file system."""
        found = read_xattrs(failing("get_xattr", errno.EIO, error), fd)

        assert found in {(ONE,), (TWO,)}

    @pytest.mark.parametrize("method", ["list_xattrs", "get_xattr"])
    def test_other_errors_are_raised(self, fd, method):
        with pytest.raises(OSError, match=os.strerror(errno.EIO)):
            read_xattrs(failing(method, errno.EIO), fd)


def _is_writable(place: Place) -> bool:
    found = os.stat(place) if isinstance(place, int) else os.stat(place[1], dir_fd=place[0])
    return bool(found.st_mode & stat.S_IWUSR)


class Strict(WrappedFileSystem):
    """Changes attributes of writable files only, for root too, as the kernel does for others."""

    def around(self, call: Call) -> object:
        if call.method in {"set_xattr", "remove_xattr"} and not _is_writable(call.arguments[0]):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        return super().around(call)


class TestPuttingBack:
    def test_a_read_only_file_gets_them_and_stays_read_only(self, path, fd):
        os.chmod(path, 0o440)

        assert apply_xattrs(Strict(), fd, ((b"user.two", b"new"), (b"user.three", b"3")))

        assert attributes(path) == {"user.two": b"new", "user.three": b"3"}
        assert stat.S_IMODE(os.stat(path).st_mode) == 0o440

    def test_a_read_only_file_is_read_only_again_after_an_error(self, path, fd):
        os.chmod(path, 0o440)
        fault = Fault(methods=frozenset({"set_xattr"}), number=2, errno=errno.EDQUOT)

        with pytest.raises(OSError, match=os.strerror(errno.EDQUOT)):
            apply_xattrs(FaultyFileSystem(fault, inner=Strict()), fd, (ONE, (b"user.two", b"new")))

        assert attributes(path) == {"user.one": b"1", "user.two": b"2"}
        assert stat.S_IMODE(os.stat(path).st_mode) == 0o440

    def test_by_its_name_alone_a_read_only_file_is_not_made_writable(self, path):
        os.chmod(path, 0o440)
        directory = os.open(os.path.dirname(path), os.O_RDONLY)

        with pytest.raises(PermissionError):
            apply_xattrs(Strict(), (directory, os.path.basename(path).encode()), (ONE,))

        os.close(directory)

        assert attributes(path) == {"user.one": b"1", "user.two": b"2"}

    def test_one_that_is_gone_already_need_not_be_removed(self, path, fd):
        fs = failing("remove_xattr", errno.ENODATA, NoAttribute)

        assert apply_xattrs(fs, fd, (TWO,))

    @pytest.mark.parametrize(
        ("name", "code", "error"),
        [
            (b"user.new", errno.ENOTSUP, Unsupported),
            (b"security.new", errno.EPERM, OSError),
            (b"trusted.new", errno.EACCES, OSError),
        ],
    )
    def test_one_that_is_refused_is_reported_and_the_rest_put_back(
        self, path, fd, name, code, error
    ):
        fault = Fault(
            methods=frozenset({"set_xattr"}),
            where=lambda call: call.arguments[1] == os.fsdecode(name),
            errno=code,
            error=error,
        )

        assert not apply_xattrs(FaultyFileSystem(fault), fd, ((name, b""), (b"user.last", b"3")))

        assert attributes(path) == {"user.last": b"3"}

    def test_an_owner_that_is_refused_is_reported_and_the_rest_put_back(self, path, fd):
        entry = Entry(b"file", EntryKind.FILE, 0o604, os.getuid() + 1, 0, 5, 0, (0,), None)

        assert not apply_metadata(failing("change_owner", errno.EPERM), fd, entry, (ONE,))

        found = os.stat(path)
        assert (stat.S_IMODE(found.st_mode), found.st_mtime_ns) == (0o604, 5)
        assert found.st_uid == os.getuid()
        assert attributes(path) == {"user.one": b"1"}
