"""Files of a remote through every kind of blobs and sealer."""

from __future__ import annotations

import pytest

from blob_doubles import MemoryBlobs
from machine_doubles import MemoryMachine
from treesnap.core.fs.local import LocalFileSystem
from treesnap.core.model.errors import Corrupt
from treesnap.remote.blobs.base import Blobs
from treesnap.remote.blobs.directory import DirectoryBlobs
from treesnap.remote.copies import Doubled
from treesnap.remote.files import SealedFiles
from treesnap.remote.keys import MasterKeys
from treesnap.remote.records import Folder, state_name
from treesnap.remote.sealing import Encrypted, Plain, Sealer

CONTENT = bytes(range(256)) * 700
"""Three segments."""
KEYS = MasterKeys.new()


@pytest.fixture(params=["memory", "directory"])
def blobs(request, tmp_path) -> Blobs:
    if request.param == "memory":
        return MemoryBlobs()
    return DirectoryBlobs(LocalFileSystem(), str(tmp_path / "remote"), make=True)


@pytest.fixture(params=["plain", "encrypted"])
def sealer(request) -> Sealer:
    return Plain() if request.param == "plain" else Encrypted(KEYS, b"r" * 16)


@pytest.fixture
def files(blobs, sealer) -> SealedFiles:
    return SealedFiles(Doubled(blobs), sealer, machine=MemoryMachine())


def test_a_file_is_read_as_it_was_written(files):
    name = files.put(Folder.PACKS, 7, CONTENT)

    assert (name.folder, name.number) == (Folder.PACKS, 7)
    assert files.get(str(name)) == CONTENT
    assert list(files.list("packs/")) == [str(name)]


def test_equal_files_have_names_of_their_own(files):
    assert files.put(Folder.PACKS, 7, CONTENT) != files.put(Folder.PACKS, 7, CONTENT)


def test_ranges_are_parts_of_the_content(files):
    name = files.put(Folder.PACKS, 7, CONTENT)
    ranges = [(0, 10), (65_530, 20), (len(CONTENT) - 5, 5)]

    parts = files.get_ranges(str(name), len(CONTENT), ranges)

    assert parts == [CONTENT[start : start + size] for start, size in ranges]


def test_a_range_that_no_file_has_is_damage(files):
    name = files.put(Folder.PACKS, 7, CONTENT)

    with pytest.raises(Corrupt, match="part that its index names"):
        files.get_ranges(str(name), len(CONTENT), [(len(CONTENT) - 1, 2)])


def test_only_the_first_creates(files):
    assert files.create(state_name(3), b"first")
    assert not files.create(state_name(3), b"second")
    assert files.get(state_name(3)) == b"first"


def test_what_is_gone_is_no_failure(files):
    name = str(files.put(Folder.PACKS, 7, CONTENT))

    files.delete([name, name])

    assert files.get(name) is None
    assert files.get_ranges(name, len(CONTENT), [(0, 1)]) is None
    assert list(files.list("packs/")) == []
    files.delete([name])


def test_nothing_of_an_encrypted_file_is_readable_by_the_server(blobs):
    files = SealedFiles(Doubled(blobs), Encrypted(KEYS, b"r" * 16), machine=MemoryMachine())
    name = str(files.put(Folder.COMMITS, 1, b"garden on the laptop" * 50, sequence=1))

    stored = blobs.get(name)

    assert b"garden" not in stored
    assert b"garden" in (files.get(name) or b"")
