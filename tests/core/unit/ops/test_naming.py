"""Names in a long history: found, refused and free again, whatever became of the name table."""

from __future__ import annotations

import os

import pytest

from treesnap.core.codec.envelope import FileKind, seal
from treesnap.core.codec.root_files import NameTable, decode_names, encode_names
from treesnap.core.codec.snapshot import encode_snapshot, snapshot_id
from treesnap.core.model.errors import Corrupt, ErrorCode, NotFound, Refused
from treesnap.core.ops.references import UNREAD_MAX
from treesnap.testing.doubles import RecordingFileSystem

MANY = 3 * UNREAD_MAX


@pytest.fixture
def named(handle, store_path):
    """A history of which every second snapshot has its number as its name."""
    first = handle.create(name="first").snapshot
    (directory,) = (store_path / "snapshots").iterdir()
    for number in range(2, MANY):
        name = f"number {number}" if number % 2 == 0 else None
        payload = encode_snapshot(first.record._replace(created_at_ns=number, name=name))
        path = directory / f"{number:016x}-{snapshot_id(payload)}"
        path.write_bytes(seal(FileKind.SNAPSHOT, payload))
    return directory


@pytest.fixture
def noted(handle, named, table):
    """The same, noted in the name table."""
    handle.create(name="last")
    assert table.exists()
    return named


@pytest.fixture
def table(store_path):
    class Table:
        @property
        def path(self):
            (directory,) = (store_path / "roots").glob("*/")
            return directory / "names"

        def exists(self) -> bool:
            return self.path.exists()

    return Table()


def is_taken(handle, name: str) -> bool:
    try:
        handle.create(name=name)
    except Refused as error:
        return error.code == ErrorCode.NAME_TAKEN
    return False


@pytest.mark.parametrize("name", ["first", "number 4", f"number {MANY - 2}", "last"])
def test_a_name_is_found_and_taken(handle, noted, name):
    assert handle.resolve(name).name == name
    assert is_taken(handle, name)


def test_another_name_is_free(handle, noted):
    assert not is_taken(handle, "number 5")
    assert handle.resolve("number 5").name == "number 5"


def test_a_deleted_snapshot_gives_its_name_back(handle, noted):
    old = handle.delete("number 4")[0].id

    with pytest.raises(NotFound):
        handle.resolve("number 4")
    assert not is_taken(handle, "number 4")
    assert handle.resolve("number 4").id != old


def test_the_table_is_not_needed(handle, noted, table):
    table.path.unlink()

    assert is_taken(handle, "number 4")
    assert not is_taken(handle, "number 5")


@pytest.mark.parametrize("content", [b"", b"x" * 200, seal(FileKind.NAMES, b"x")])
def test_a_damaged_table_is_not_believed(handle, noted, table, content):
    table.path.write_bytes(content)

    assert is_taken(handle, "number 4")
    assert not is_taken(handle, "number 5")


def test_a_table_that_comes_back_from_an_older_time_is_right(handle, noted, table):
    old = table.path.read_bytes()
    for number in range(UNREAD_MAX + 4):
        handle.create(name=f"later {number}")
    assert table.path.read_bytes() != old
    table.path.write_bytes(old)

    assert is_taken(handle, "number 4")
    assert is_taken(handle, "later 3")
    assert not is_taken(handle, "number 5")


def test_a_table_that_is_wrong_about_a_snapshot_finds_nothing(handle, noted, table):
    rows = decode_names(table.path.read_bytes()[24:-32]).rows
    assert rows
    wrong = tuple(("number 5", sequence, identity) for _, sequence, identity in rows)
    table.path.write_bytes(seal(FileKind.NAMES, encode_names(NameTable(MANY, wrong))))

    assert not is_taken(handle, "number 5")


def test_a_record_that_cannot_be_read_is_not_passed_over(handle, named, table):
    damaged = sorted(named.iterdir())[-2]
    content = damaged.read_bytes()
    damaged.write_bytes(content[:-1])
    handle.create(name="last")
    assert not table.exists()
    damaged.write_bytes(content)

    assert is_taken(handle, f"number {MANY - 2}")
    assert is_taken(handle, "number 4")


def test_a_table_forgets_what_is_gone(handle, noted, table):
    gone = handle.delete("number 4")[0].id
    for number in range(UNREAD_MAX + 4):
        handle.create(name=f"later {number}")

    assert bytes.fromhex(gone) not in table.path.read_bytes()


def test_looking_a_name_up_reads_few_records_and_writes_nothing(make_handle, noted, table):
    fs = RecordingFileSystem()
    before = table.path.read_bytes()

    assert make_handle(fs=fs).resolve("number 4").name == "number 4"

    opened = fs.calls("open", below=os.fspath(noted))
    assert len(opened) <= 2  # the newest, which the table does not know of, and the one
    assert fs.mutations == []
    assert table.path.read_bytes() == before


@pytest.mark.parametrize(
    "changed",
    [
        {"names": ("a",)},
        {"sequences": (1, 2, 3)},
        {"ids": b"x" * 33},
        {"names": (1, 2)},
        {"sequences": (-1, 2)},
        {"sequences": ("1", 2)},
        {"through": -1},
        {"version": 2},
    ],
    ids=str,
)
def test_a_table_whose_columns_do_not_fit_is_refused(changed):
    from treesnap.core.codec.message import pack, unpack

    whole = encode_names(NameTable(7, (("a", 1, b"x" * 32), ("b", 2, b"y" * 32))))
    assert decode_names(whole).rows == (("a", 1, b"x" * 32), ("b", 2, b"y" * 32))

    with pytest.raises(Corrupt):
        decode_names(pack(unpack(whole, "name table") | changed))
