"""Locks between processes."""

from __future__ import annotations

import errno
import os

import pytest

from descriptors import open_descriptors
from treesnap.core.model.errors import Busy
from treesnap.core.store.lock import held
from treesnap.testing.children import in_child
from treesnap.testing.doubles import Fault, FaultyFileSystem


@pytest.fixture
def path(tmp_path):
    return str(tmp_path / "lock")


def take(fs, path, wait_s=0.0):
    return held(fs, path, operation="create", what="The root 'x'", wait_s=wait_s)


def test_a_second_holder_is_told_who_the_first_is(fs, path):
    with (
        take(fs, path),
        pytest.raises(Busy, match=rf"The root 'x' is in use by process {os.getpid()}: create"),
        take(fs, path),
    ):
        pass


def test_the_lock_is_free_afterwards(fs, path):
    with take(fs, path):
        pass

    with take(fs, path):
        pass


def test_the_lock_is_free_after_an_error(fs, path):
    with pytest.raises(ZeroDivisionError), take(fs, path):
        raise ZeroDivisionError

    with take(fs, path):
        pass


def test_the_lock_is_free_after_a_look_at_it_failed(path):
    looks = Fault(methods=frozenset({"lstat"}), errno=errno.EIO)
    with pytest.raises(OSError, match="Input/output"), take(FaultyFileSystem(looks), path):
        pass

    descriptors = open_descriptors()
    with take(FaultyFileSystem(), path):
        assert len(open_descriptors()) == len(descriptors) + 1


def test_the_lock_ends_with_its_holder(fs, path):
    def die_holding() -> None:
        take(fs, path).__enter__()
        os._exit(0)

    in_child(die_holding)

    with take(fs, path):
        pass


def test_a_child_that_was_forked_meanwhile_does_not_keep_it(fs, path):
    """The child has the descriptor still, but the lock was given back for both."""
    read_fd, write_fd = os.pipe()
    with take(fs, path):
        child = os.fork()
        if child == 0:
            os.close(write_fd)
            os.read(read_fd, 1)
            os._exit(0)

    with take(fs, path):
        pass

    os.close(write_fd)
    os.waitpid(child, 0)
    os.close(read_fd)


@pytest.mark.parametrize("note", [b"", b"\xff\xfe", b"\x1b[31m"])
def test_a_holder_that_cannot_be_read_is_called_another_process(fs, path, note):
    with take(fs, path):
        with open(path, "wb") as file:
            file.write(note)

        with pytest.raises(Busy, match=r"another process|\ufffd"), take(fs, path):
            pass
