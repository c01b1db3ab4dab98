"""Reaching directories below a root."""

from __future__ import annotations

import os
from contextlib import suppress

import pytest

from descriptors import open_descriptors
from treesnap.core.worktree.directory import DirectoryChain
from treesnap.testing.doubles import RecordingFileSystem


@pytest.fixture
def fs():
    return RecordingFileSystem()


@pytest.fixture
def root(tmp_path):
    (tmp_path / "a/b/c").mkdir(parents=True)
    (tmp_path / "a/x").mkdir()
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to("a")
    return tmp_path


@pytest.fixture
def chain(fs, root, open_directory):
    with DirectoryChain(fs, open_directory(root)) as chain:
        yield chain


def inode(fd: int) -> int:
    return os.fstat(fd).st_ino


def test_a_path_is_opened_component_by_component(chain, root):
    assert inode(chain.open(b"a/b/c")) == (root / "a/b/c").stat().st_ino
    assert inode(chain.open(b"")) == root.stat().st_ino


def test_a_sibling_costs_one_open(chain, fs, root):
    chain.open(b"a/b")
    fs.clear()

    fd = chain.open(b"a/x")

    assert inode(fd) == (root / "a/x").stat().st_ino
    assert fs.count("open")["open"] == 1


@pytest.mark.parametrize("path", [b"link", b"link/b", b"file", b"file/b"])
def test_only_directories_are_entered(chain, path):
    with pytest.raises(OSError, match=r"Not a directory|symbolic links"):
        chain.open(path)


def test_an_absent_directory_is_not_found_and_the_chain_goes_on(chain, root):
    with pytest.raises(FileNotFoundError):
        chain.open(b"a/absent/c")

    assert inode(chain.open(b"a/b")) == (root / "a/b").stat().st_ino


def test_forgetting_closes_everything(chain, root):
    before = len(open_descriptors())
    chain.open(b"a/b/c")

    chain.forget()

    assert len(open_descriptors()) == before


def test_going_down_and_up_again_costs_a_few_opens_for_each_level(chain, fs, root):
    levels = 500
    for _ in range(2):
        names: list[bytes] = []
        fd = chain.open_names(names)
        for _ in range(levels):
            with suppress(FileExistsError):
                os.mkdir("d", dir_fd=fd)
            names.append(b"d")
            fd = chain.open_names(names)
        while names:
            names.pop()
            reached = inode(chain.open_names(names))
            assert len(fs.calls("open")) - len(fs.calls("close")) < 60
    assert reached == root.stat().st_ino

    assert len(fs.calls("open")) < 2 * 4 * levels


def test_depth_needs_few_descriptors_and_no_long_path(fs, tmp_path, open_directory):
    """500 directories of 20 letters: deeper than open files and PATH_MAX allow."""
    names = [b"d" * 20] * 500
    fd = os.open(tmp_path, os.O_RDONLY)
    for name in names:
        os.mkdir(name, dir_fd=fd)
        below = os.open(name, os.O_RDONLY, dir_fd=fd)
        os.close(fd)
        fd = below
    deepest = inode(fd)
    os.close(fd)

    with DirectoryChain(fs, open_directory(tmp_path)) as chain:
        reached = inode(chain.open_names(names))
        opened = len(fs.calls("open")) - len(fs.calls("close"))
        again = inode(chain.open_names(names[:10]))

    assert reached == deepest
    assert opened < 60
    assert again != deepest
