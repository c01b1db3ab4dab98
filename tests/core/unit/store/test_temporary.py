"""Temporary files, and sweeping those of the dead."""

from __future__ import annotations

import os

import pytest

from treesnap.core.fs.durable import Temporary, replace_file, sweep_temporary
from treesnap.core.store.writer import Writer
from treesnap.testing.children import in_child


@pytest.fixture
def directory(store):
    return store.layout.temporary


def test_a_live_writer_keeps_its_file(fs, directory, open_store):
    file = Temporary(fs, directory)

    with Writer(open_store()):
        kept = os.listdir(directory)

    file.discard()
    assert kept == [os.path.basename(file.path)]


def test_the_file_of_a_dead_writer_is_swept(fs, directory, open_store):
    def die_writing() -> None:
        Temporary(fs, directory)
        os._exit(0)

    in_child(die_writing)
    left = os.listdir(directory)

    with Writer(open_store()):
        pass

    assert len(left) == 1
    assert os.listdir(directory) == []


def test_a_file_that_was_swept_before_its_lock_is_written_again(fs, directory, tmp_path):
    """Between making a file and locking it a sweep may come; it is the first write here."""

    class Swept:
        def __init__(self) -> None:
            self.count = 0

        def __getattr__(self, name):
            return getattr(fs, name)

        def lock(self, fd, *, exclusive):
            self.count += 1
            if self.count == 1:
                sweep_temporary(fs, directory)
            return fs.lock(fd, exclusive=exclusive)

    replace_file(Swept(), str(tmp_path / "file"), b"content", temporary=directory)

    assert (tmp_path / "file").read_bytes() == b"content"
    assert os.listdir(directory) == []
