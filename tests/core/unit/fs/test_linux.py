"""What the real file system does where kernel, C library or file system lack something."""

from __future__ import annotations

import errno
import mmap
import os

import pytest

from treesnap.core.fs import linux, native
from treesnap.core.fs.base import Unsupported
from treesnap.core.fs.local import LocalFileSystem

pytestmark = pytest.mark.needs("linux")


@pytest.fixture
def fs():
    return LocalFileSystem()


@pytest.fixture
def directory_fd(tmp_path):
    (tmp_path / "source").write_bytes(b"source")
    fd = os.open(tmp_path, os.O_RDONLY)
    yield fd
    os.close(fd)


@pytest.fixture
def old_kernel(monkeypatch):
    """A kernel, or C library, without renameat2, syncfs and statx."""

    def missing(name: str, *arguments: object) -> None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    monkeypatch.setattr(linux, "_call", missing)


def rename(fs, directory_fd) -> None:
    fs.rename_to_absent(
        b"source", b"target", source_dir_fd=directory_fd, target_dir_fd=directory_fd
    )


def test_renaming_to_an_absent_name_works_without_the_kernels_help(
    fs, directory_fd, tmp_path, old_kernel
):
    rename(fs, directory_fd)

    assert (tmp_path / "target").read_bytes() == b"source"


def test_renaming_replaces_nothing_without_the_kernels_help(fs, directory_fd, tmp_path, old_kernel):
    (tmp_path / "target").write_bytes(b"target")

    with pytest.raises(FileExistsError):
        rename(fs, directory_fd)

    assert (tmp_path / "target").read_bytes() == b"target"


def test_renaming_or_failing_looks_for_nothing_first(fs, directory_fd, tmp_path, old_kernel):
    with pytest.raises(Unsupported, match=os.strerror(errno.ENOSYS)):
        fs.rename_to_absent(
            b"source",
            b"target",
            source_dir_fd=directory_fd,
            target_dir_fd=directory_fd,
            or_fail=True,
        )

    assert not (tmp_path / "target").exists()


def test_syncing_a_file_system_falls_back_to_all_of_them(fs, directory_fd, old_kernel, monkeypatch):
    synced = []
    monkeypatch.setattr(os, "sync", lambda: synced.append(True))

    fs.sync_file_system(directory_fd)

    assert synced == [True]


def test_what_statx_alone_knows_is_not_known_without_it(fs, directory_fd, old_kernel):
    assert fs.mount_id(directory_fd) is None
    assert fs.is_protected(directory_fd) is False


@pytest.mark.usefixtures("implementation")
def test_other_errors_of_the_kernel_are_raised(fs, directory_fd, tmp_path):
    (tmp_path / "source").unlink()

    with pytest.raises(FileNotFoundError):
        rename(fs, directory_fd)
    with pytest.raises(OSError, match=os.strerror(errno.EBADF)):
        fs.sync_file_system(-1)


def test_both_ways_to_call_the_kernel_fill_the_same(tmp_path, monkeypatch):
    facts = [linux._statx(os.fsencode(tmp_path), None, 0xFFF)]
    monkeypatch.setattr(native, "module", None)
    facts.append(linux._statx(os.fsencode(tmp_path), None, 0xFFF))

    assert facts[0] == facts[1]
    assert facts[0] is not None
    assert any(facts[0])


@pytest.mark.skipif(native.module is None, reason="the module in C is not built")
def test_a_call_takes_no_other_values():
    for value in (None, "text", 1.5, memoryview(b"")):
        with pytest.raises(TypeError):
            native.module.call(native.module.SYNCFS, value)


def test_a_function_that_the_c_library_lacks_is_not_implemented():
    with pytest.raises(OSError, match=os.strerror(errno.ENOSYS)):
        linux._call("no_such_function")


def test_attributes_of_a_closed_descriptor_cannot_be_read(fs):
    with pytest.raises(FileNotFoundError):
        fs.list_xattrs(1 << 20)
    with pytest.raises(FileNotFoundError):
        fs.get_xattr(1 << 20, "user.x")


def test_a_page_that_the_disk_does_not_give_back_is_an_error_when_it_is_loaded(tmp_path):
    """Here of a file that was cut: to touch the page would kill this process, as a bad sector."""
    path = tmp_path / "file"
    path.write_bytes(os.urandom(8 * mmap.PAGESIZE))
    fd = os.open(path, os.O_RDWR)
    with mmap.mmap(fd, 0, access=mmap.ACCESS_READ) as mapping:
        try:
            mapping.madvise(22)
        except OSError:
            pytest.skip("this kernel cannot load pages")
        os.truncate(fd, mmap.PAGESIZE)

        with pytest.raises(OSError, match="Input/output error") as unreadable:
            linux.load_pages(mapping)

        assert unreadable.value.errno == errno.EIO
        assert len(mapping[: mmap.PAGESIZE]) == mmap.PAGESIZE
    os.close(fd)


def test_the_pages_of_a_mapping_are_loaded(tmp_path, fs, monkeypatch):
    loaded = []
    monkeypatch.setattr(linux, "load_pages", loaded.append)
    (tmp_path / "file").write_bytes(b"content")
    fd = os.open(tmp_path / "file", os.O_RDONLY)

    with fs.map(fd) as mapping:
        assert loaded == [mapping]
    os.close(fd)
