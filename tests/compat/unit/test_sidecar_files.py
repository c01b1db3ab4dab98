"""Files that an operation leaves in the root for other programs."""

from __future__ import annotations

import errno
import os
from random import Random

import pytest

from cuts import cuts
from power import PoweredFileSystem
from state import tree_state
from treesnap import CreateOptions
from treesnap.compat.sidecar_files import SidecarPlace, write_sidecar
from treesnap.core.fs.local import LocalFileSystem
from treesnap.core.model.entries import Change, ChangeKind
from treesnap.core.model.errors import ErrorCode, InvalidArgument, OperationFailed, Refused
from treesnap.testing.children import killed
from treesnap.testing.doubles import Fault, FaultyFileSystem, kill_at

PLACE = SidecarPlace(".tool/*/note.json")
PATH = b".tool/x/note.json"


def write(handle, text: bytes, is_sidecar=lambda content: content.startswith(b"ours")) -> None:
    """Writes the sidecar file."""
    write_sidecar(handle.context, PLACE, "x", lambda: text, is_sidecar=is_sidecar)


@pytest.fixture
def ready(handle):
    """A handle on a root with a snapshot."""
    handle.create()
    return handle


@pytest.fixture
def note(root):
    """Where the note is."""
    return root / os.fsdecode(PATH)


@pytest.mark.parametrize("varying", ["..", "../x", "a/../../x", "a\0b", ""])
def test_a_note_leads_nowhere_else(varying):
    with pytest.raises(InvalidArgument):
        PLACE.path(varying)


def test_a_note_is_made_with_its_directories(ready, root, note):
    write(ready, b"ours 1")

    assert note.read_bytes() == b"ours 1"
    assert os.listdir(note.parent) == ["note.json"]


def test_a_note_is_replaced(ready, note):
    write(ready, b"ours 1")
    write(ready, b"ours 2")

    assert note.read_bytes() == b"ours 2"
    assert os.listdir(note.parent) == ["note.json"]


def test_a_note_survives_a_power_cut_with_its_directories(ready, make_handle, root, note):
    powered = PoweredFileSystem(str(root))
    write(make_handle(fs=powered), b"ours 1")
    powered.note_return()

    found = [*cuts(powered.recording(), random=Random(0), first=-1)]

    assert found
    kept = [cut.disk.contents().get(PATH) for cut in found]
    assert all(item is not None and item[0].content == b"ours 1" for item in kept)


@pytest.mark.parametrize("kind", ["file", "symlink", "directory"])
def test_what_is_no_note_is_kept_beside_it(ready, root, note, kind):
    note.parent.mkdir(parents=True)
    if kind == "file":
        note.write_bytes(b"theirs")
    elif kind == "symlink":
        note.symlink_to(root / "one")
    else:
        note.mkdir()

    write(ready, b"ours")

    kept = note.with_name("note.json.before-treesnap")
    assert note.read_bytes() == b"ours"
    assert kept.is_symlink() == (kind == "symlink")
    assert kept.is_dir() == (kind == "directory")
    assert (root / "one").read_bytes() == b"one"


def test_two_that_are_no_notes_are_too_many(ready, note):
    note.parent.mkdir(parents=True)
    note.write_bytes(b"theirs")
    note.with_name("note.json.before-treesnap").write_bytes(b"theirs, older")

    with pytest.raises(Refused) as caught:
        write(ready, b"ours")

    assert caught.value.code == ErrorCode.NOT_OURS
    assert note.read_bytes() == b"theirs"
    assert os.listdir(note.parent.parent) == ["x"]


@pytest.mark.parametrize("where", [".tool", ".tool/x"])
@pytest.mark.parametrize("kind", ["symlink", "file"])
def test_nothing_is_written_through_what_is_no_directory(ready, root, tmp_path, where, kind):
    outside = tmp_path / "outside"
    outside.mkdir()
    (root / where).parent.mkdir(exist_ok=True)
    if kind == "symlink":
        (root / where).symlink_to(outside)
    else:
        (root / where).write_bytes(b"")

    with pytest.raises(Refused) as caught:
        write(ready, b"ours")

    assert caught.value.code == ErrorCode.NOT_A_DIRECTORY
    assert list(outside.iterdir()) == []


@pytest.mark.parametrize("how", ["symlink", "link", "litter"])
def test_what_has_the_unfinished_name_is_not_written_to(ready, root, note, how):
    note.parent.mkdir(parents=True)
    unfinished = note.parent.with_name(".treesnap-writing")
    if how == "symlink":
        unfinished.symlink_to(root / "one")
    elif how == "link":
        os.link(root / "one", unfinished)
    else:
        unfinished.write_bytes(b"of one that was killed, and longer than the note")

    write(ready, b"ours")

    assert (root / "one").read_bytes() == b"one"
    assert note.read_bytes() == b"ours"
    assert os.listdir(note.parent) == ["note.json"]
    assert os.listdir(note.parent.parent) == ["x"]


def test_a_kill_leaves_the_old_note_or_the_new_one_and_nothing_after_the_next_note(
    ready, make_handle, note
):
    write(ready, b"ours 1")
    found = []
    for number in range(1, 100):
        ended = killed(lambda fs: write(make_handle(fs=fs), b"ours 2"), kill_at(number))
        found.append(note.read_bytes())
        write_sidecar(ready.context, PLACE, "y", lambda: b"ours 3", is_sidecar=bool)
        assert os.listdir(note.parent) == ["note.json"]
        assert sorted(os.listdir(note.parent.parent)) == ["x", "y"]
        write(ready, b"ours 1")
        if not ended.was_killed:
            break

    assert not ended.was_killed
    assert set(found) == {b"ours 1", b"ours 2"}
    assert found == sorted(found)


def test_an_error_leaves_the_old_note(ready, make_handle, note):
    write(ready, b"ours 1")
    full = Fault(methods=frozenset({"write"}), errno=errno.EIO, lasting=True)
    failing = FaultyFileSystem(full, inner=LocalFileSystem())

    with pytest.raises(OperationFailed):
        write(make_handle(fs=failing), b"ours 2")

    assert note.read_bytes() == b"ours 1"
    assert os.listdir(note.parent.parent) == ["x"]
    assert os.listdir(note.parent) == ["note.json"]


def test_a_root_without_snapshots_gets_no_note(handle, root):
    before = tree_state(root)

    with pytest.raises(LookupError):
        write(handle, b"ours")

    assert tree_state(root) == before


class TestPlace:
    def test_has_a_path_for_each_note(self):
        assert PLACE.path("x") == PATH

    def test_keeps_notes_out_of_captures(self, handle, root, note):
        handle.create(options=CreateOptions(exclude=PLACE.excluded))
        write(handle, b"ours")
        note.parent.with_name(".treesnap-writing").write_bytes(b"")
        note.with_name("other.json").write_bytes(b"")

        made = handle.create(options=CreateOptions(exclude=PLACE.excluded))

        held = [entry.name for entry in handle.ls(made.id, ".tool/x") if not entry.is_skipped]
        assert held == [b"other.json"]

    @pytest.mark.parametrize(
        ("path", "change", "expected"),
        [
            (PATH, ChangeKind.MODIFIED, True),
            (PATH, ChangeKind.ADDED, True),
            (b".tool/.treesnap-writing", ChangeKind.ADDED, True),
            (b".tool/x/y/note.json", ChangeKind.ADDED, False),
            (b".tool/x/other.json", ChangeKind.ADDED, False),
            (b"note.json", ChangeKind.ADDED, False),
            (b"one", ChangeKind.MODIFIED, False),
        ],
    )
    def test_knows_changes_of_notes(self, path, change, expected):
        assert PLACE.holds(Change(path, change, None, None)) is expected

    def test_knows_new_directories_on_the_way(self, ready, root):
        (root / ".tool/x/deeper").mkdir(parents=True)
        (root / ".toolbox").mkdir()

        found = {change.path: PLACE.holds(change) for change in ready.status().changes}

        assert found == {
            b".tool": True,
            b".tool/x": True,
            b".tool/x/deeper": False,
            b".toolbox": False,
        }
