"""Records of which what changed is written: durable, whole, and into no file of another."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from cuts import cuts
from disk import materialise
from power import PoweredFileSystem
from sampling import SEED
from treesnap.core.codec.changes import unseal_changed
from treesnap.core.codec.envelope import FileKind, Format
from treesnap.core.codec.message import pack, unpack
from treesnap.core.fs.base import FileSystem
from treesnap.core.store.layout import Layout
from treesnap.core.store.records import read_record, write_change, write_record
from treesnap.testing.doubles import (
    Fault,
    FaultMoment,
    FaultyFileSystem,
    Kind,
    RecordingFileSystem,
    UnsyncedFileSystem,
)

RECORD = Format(
    FileKind.PLAN, pack, lambda payload: unpack(payload, "record"), unframe=unseal_changed
)
TEXT = "text that never changes" * 100


def record(number: int) -> dict[str, object]:
    return {"text": TEXT, "number": number, "list": tuple(range(number))}


class Place:
    """A file of a record."""

    def __init__(self, directory: Path) -> None:
        self.layout = Layout(str(directory))
        self.path = directory / "record"
        os.makedirs(self.layout.temporary)
        self.write(0)

    def write(self, number: int, fs: FileSystem | None = None) -> None:
        """Writes the record anew."""
        fs = fs or UnsyncedFileSystem()
        write_record(fs, self.layout, str(self.path), RECORD, record(number))

    def change(self, number: int, fs: FileSystem | None = None) -> None:
        fs = fs or UnsyncedFileSystem()
        write_change(fs, self.layout, str(self.path), RECORD, record(number))

    def number(self) -> object:
        found = read_record(UnsyncedFileSystem(), str(self.path), RECORD)
        assert found is not None
        assert found == record(found["number"])
        return found["number"]


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    (directory := tmp_path / "store").mkdir()
    return Place(directory)


def test_a_change_costs_one_sync_and_what_changed(place):
    place.change(1)
    fs = RecordingFileSystem(UnsyncedFileSystem())

    place.change(2, fs)

    assert fs.count("sync", "sync_data") == {"sync_data": 1}
    assert fs.written_bytes() < 200 < len(TEXT)
    assert place.number() == 2


@pytest.mark.parametrize("earlier", [0, 1, 3])
def test_a_power_cut_leaves_the_record_before_or_after(place, earlier):
    """After the return always the one after it. So it is where the next change is written."""
    for number in range(1, earlier + 1):
        place.change(number)
    directory = str(place.path.parent)
    fs = PoweredFileSystem(directory)
    place.change(earlier + 1, fs)
    fs.note_return()

    found = set()
    for cut in cuts(fs.recording(), random=Random(SEED)):
        materialise(cut.disk, directory)
        number = place.number()
        assert number in {earlier, earlier + 1}
        assert not cut.moment.is_after_return or number == earlier + 1
        found.add(number)
        place.change(earlier + 2)
        assert place.number() == earlier + 2
    assert found == {earlier, earlier + 1}


def test_a_change_is_durable_where_the_record_has_its_name_from_a_process_that_did_not_sync_it(
    place,
):
    """A process that is killed between the two leaves the name as it is here."""
    directory = str(place.path.parent)
    fs = PoweredFileSystem(directory)
    unsynced = Fault(errno=errno.EIO, methods=frozenset({"sync"}))
    with pytest.raises(OSError, match="Input/output"):
        place.write(1, FaultyFileSystem(unsynced, inner=fs))

    place.change(2, fs)
    fs.note_return()
    place.change(3, fs)

    for cut in cuts(fs.recording(), random=Random(SEED)):
        materialise(cut.disk, directory)
        assert not cut.moment.is_after_return or place.number() in {2, 3}


@pytest.mark.parametrize("moment", FaultMoment)
@pytest.mark.parametrize("kind", [Kind.WRITE, Kind.SYNC])
def test_a_change_that_fails_leaves_the_record_as_it_was(place, kind, moment):
    """What was not acknowledged never lies before what will be."""
    place.change(1)
    before = place.path.read_bytes()
    fault = Fault(errno=errno.ENOSPC, kinds=frozenset({kind}), moment=moment)
    fs = FaultyFileSystem(fault, inner=UnsyncedFileSystem())

    with pytest.raises(OSError, match="space"):
        place.change(2, fs)

    assert fs.hits_of(fault) == 1
    assert place.path.read_bytes() == before
    place.change(3)
    assert place.number() == 3


def test_a_reader_beside_the_writer_sees_the_record_before_or_after(place):
    """At each point of the write, of which the kernel may have done any part."""
    start = place.path.stat().st_size
    place.change(1)
    whole = place.path.read_bytes()

    for size in range(start, len(whole) + 1):
        place.path.write_bytes(whole[:size])
        assert place.number() == (size == len(whole))


@pytest.mark.parametrize("left", [1, 20, 60])
def test_behind_a_torn_change_the_record_is_written_anew(place, left):
    place.change(1)
    place.path.write_bytes(place.path.read_bytes()[:-left])

    place.change(2)

    assert place.number() == 2
    assert TEXT.encode() in place.path.read_bytes()


@pytest.mark.parametrize("holes_mib", [1, 64])
def test_behind_holes_the_record_is_written_anew_and_few_of_them_are_read(place, holes_mib):
    os.truncate(place.path, holes_mib << 20)
    fs = RecordingFileSystem(UnsyncedFileSystem())

    place.change(1, fs)

    assert fs.read_bytes() < 18 << 20
    assert place.path.stat().st_size < 1 << 16
    assert place.number() == 1


@pytest.mark.parametrize("make", [os.link, os.symlink])
def test_a_file_that_has_other_names_is_not_written_into(place, make):
    other = place.path.with_name("other")
    place.path.rename(other)
    make(other, place.path)
    content = other.read_bytes()

    place.change(1)

    assert other.read_bytes() == content
    assert place.number() == 1


@pytest.mark.parametrize("make", [os.mkdir, os.mkfifo, Path.touch, Path.unlink])
def test_in_the_place_of_anything_else_there_is_a_record_afterwards(place, make):
    if make is not Path.unlink:
        place.path.unlink()
    make(place.path)

    place.change(1)

    assert place.number() == 1
