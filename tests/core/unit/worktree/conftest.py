"""The real file system, and descriptors of directories that close by themselves."""

from __future__ import annotations

import os

import pytest

from treesnap.core.fs.local import LocalFileSystem


@pytest.fixture
def fs():
    return LocalFileSystem()


@pytest.fixture
def open_directory():
    opened = []

    def opener(path) -> int:
        opened.append(os.open(path, os.O_RDONLY | os.O_DIRECTORY))
        return opened[-1]

    yield opener
    for fd in opened:
        os.close(fd)
