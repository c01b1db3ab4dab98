"""Restoring some hunks of a file: only these lines change, all or nothing, and undo goes back."""

from __future__ import annotations

import os
import re
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import treesnap
from state import tree_state
from treesnap.core.diff.texts import hunks as unified_hunks
from treesnap.core.diff.texts import lines_of_hunk, split_lines
from treesnap.core.diff.three_way import TEXT_SIZE_MAX
from treesnap.core.handle import Handle
from treesnap.core.model.results import FileHunks
from treesnap.core.ops.context import context_at
from treesnap.core.ops.hunks import _compared, _with_restored
from treesnap.testing.doubles import UnsyncedFileSystem

OLD = b"one\ntwo\nthree\nfour\nfive\nsix\nseven\n"
LIVE = b"ONE\ntwo\nthree\nmore\nfour\nfive\nseven\n"
TEXTS = st.lists(st.sampled_from([b"a\n", b"b\n", b"c\r\n", b"\n", b"x"])).map(b"".join)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "root"
    (root / "below").mkdir(parents=True)
    (root / "below/text").write_bytes(OLD)
    (root / "beside").write_text("beside")
    return root


@pytest.fixture
def handle(root: Path, tmp_path: Path) -> Handle:
    fs = UnsyncedFileSystem()
    handle = Handle(context_at(root=root, store_path=str(tmp_path / "store"), fs=fs))
    handle.create(name="old")
    (root / "below/text").write_bytes(LIVE)
    (root / "beside").write_text("changed")
    return handle


def files_of(root: Path) -> dict[bytes, object]:
    """Returns all of a tree but the directory above the file, which gets a new time."""
    return {path: found for path, found in tree_state(root).items() if path != b"below"}


def by_slicing(live: bytes, found: FileHunks, numbers: list[int]) -> bytes:
    """Returns what restored hunks make of a text, from the last one to the first."""
    lines = [line for line in re.split(rb"(?<=\n)", live) if line]
    for hunk in reversed(found.hunks):
        if hunk.number in numbers:
            end = hunk.live_start + len(hunk.live_lines)
            lines[hunk.live_start : end] = hunk.snapshot_lines
    return b"".join(lines)


def test_hunks_name_the_lines_of_both_sides(handle):
    found = handle.hunks("old", "below/text")

    assert [(item.live_start, item.live_lines, item.snapshot_lines) for item in found.hunks] == [
        (0, (b"ONE\n",), (b"one\n",)),
        (3, (b"more\n",), ()),
        (6, (), (b"six\n",)),
    ]
    assert found.hunks[1].lines_before == (b"two\n", b"three\n")
    assert found.hunks[1].lines_after == (b"four\n", b"five\n")
    assert found.snapshot.record.name == "old"
    assert found.to_dict()["hunks"][0]["live_lines"] == "ONE\n"


def test_only_the_chosen_lines_are_restored(handle, root):
    found = handle.hunks("old", "below/text")

    result = handle.restore_hunks(found, [0, 2])

    assert (root / "below/text").read_bytes() == LIVE.replace(b"ONE", b"one").replace(
        b"five\n", b"five\nsix\n"
    )
    assert (root / "beside").read_text() == "changed"
    assert [change.path for change in result.changes] == [b"below/text"]
    assert result.snapshot.label == f"2 of 3 hunks as in {found.snapshot.id[:12]}"
    assert (
        b"".join(handle.cat(result.snapshot.id, "below/text")) == (root / "below/text").read_bytes()
    )


def test_undo_brings_every_byte_back_and_redo_the_hunks(handle, root):
    before = files_of(root)
    handle.restore_hunks(handle.hunks("old", "below/text"), [1])
    after = files_of(root)

    handle.undo()
    assert files_of(root) == before
    handle.redo()
    assert files_of(root) == after


@pytest.mark.needs("attributes")
def test_what_is_no_content_stays(handle, root):
    path = root / "below/text"
    path.chmod(0o610)
    os.setxattr(path, "user.note", b"mine")
    os.link(path, root / "other name")
    (root / "other name").touch()

    result = handle.restore_hunks(handle.hunks("old", "below/text"), [0, 1, 2])

    assert path.read_bytes() == OLD
    assert path.stat().st_mode & 0o7777 == 0o610
    assert os.getxattr(path, "user.note") == b"mine"
    assert path.samefile(root / "other name")
    assert result.links_broken == ()
    assert result.scope == (b"below/text", b"other name")


def test_a_name_outside_of_the_root_keeps_its_content_and_that_is_said(handle, root, tmp_path):
    os.link(root / "below/text", tmp_path / "outside")

    result = handle.restore_hunks(handle.hunks("old", "below/text"), [0])

    assert result.links_broken == (b"below/text",)
    assert (tmp_path / "outside").read_bytes() == LIVE


@pytest.mark.sampled(5)
@pytest.mark.parametrize(
    ("old", "live"),
    [
        (b"a\r\nb\r\nc\r\n", b"a\r\nB\r\nc\n"),
        (b"a\nb", b"a\nb\n"),
        (b"a\nb\n", b"A\nb"),
        (b"", b"new\n"),
        (b"old\nlast", b""),
        (b"\xff\xfe\n\x80", b"\xff\n\x80\n"),
    ],
)
def test_line_ends_and_empty_files(handle, root, old, live):
    path = root / "below/text"
    path.write_bytes(old)
    snapshot = handle.create()
    path.write_bytes(live)
    found = handle.hunks(snapshot.id, "below/text")

    handle.restore_hunks(found, range(len(found.hunks)))

    assert path.read_bytes() == old
    handle.undo()
    assert path.read_bytes() == live


def test_equal_contents_have_no_hunks(handle, root):
    (root / "below/text").write_bytes(OLD)
    (root / "below/text").chmod(0o600)

    found = handle.hunks("old", "below/text")

    assert found.hunks == ()
    with pytest.raises(treesnap.InvalidArgument, match="no hunk 0"):
        handle.restore_hunks(found, [0])


@pytest.mark.parametrize(
    ("old", "live"),
    [(b"", b"a\n"), (b"a", b""), (b"1\n2\n3\n4\n5\n", b"1\n2\n3\nx\n5\n"), (b"a\nb", b"a\nc\n")],
)
def test_a_hunk_alone_is_the_patch_from_the_live_file_to_the_snapshot(old, live):
    (hunk,) = _compared(split_lines(old), split_lines(live))

    assert list(lines_of_hunk(hunk)) == list(unified_hunks(live, old))


@given(TEXTS, TEXTS, st.data())
def test_any_choice_is_as_by_slicing(old, live, data):
    hunks = tuple(_compared(split_lines(old), split_lines(live)))
    found = FileHunks(None, b"text", "", hunks)
    numbers = data.draw(st.lists(st.sampled_from(range(len(hunks))))) if hunks else []

    assert _with_restored(live, found, set(numbers)) == by_slicing(live, found, numbers)
    assert _with_restored(live, found, range(len(hunks))) == old
    assert all(item.live_lines != item.snapshot_lines for item in hunks)
    for above, below in pairwise(hunks):
        assert above.live_start + len(above.live_lines) < below.live_start


@pytest.mark.parametrize("force", [False, True])
def test_another_content_is_a_conflict_and_nothing_changes(handle, root, force):
    found = handle.hunks("old", "below/text")
    (root / "below/text").write_bytes(LIVE + b"meanwhile\n")
    before, count = tree_state(root), len(handle.list())

    with pytest.raises(treesnap.Conflict, match="changed since its hunks were listed"):
        handle.restore_hunks(found, [0], force=force)

    assert tree_state(root) == before
    assert len(handle.list()) == count


@pytest.mark.parametrize("change", ["removed", "directory", "link", "moved"])
def test_another_thing_at_the_path_is_a_conflict(handle, root, change):
    found = handle.hunks("old", "below/text")
    path = root / "below/text"
    path.unlink()
    if change == "directory":
        path.mkdir()
    elif change == "link":
        path.symlink_to("../beside")
    elif change == "moved":
        (root / "below").rename(root / "elsewhere")
    before = tree_state(root)

    with pytest.raises(treesnap.TreesnapError):
        handle.restore_hunks(found, [0])

    assert tree_state(root) == before


def test_a_change_in_the_middle_of_the_restore_is_a_conflict(root, tmp_path):
    class Writes(UnsyncedFileSystem):
        """Changes the file once a snapshot of what it is to become is published."""

        is_armed = False

        def rename(self, source, target, **options):
            super().rename(source, target, **options)
            if self.is_armed and b"snapshots" in os.fsencode(target):
                self.is_armed = False
                (root / "below/text").write_bytes(b"meanwhile\n")

    fs = Writes()
    handle = Handle(context_at(root=root, store_path=str(tmp_path / "store"), fs=fs))
    handle.create(name="old")
    (root / "below/text").write_bytes(LIVE)
    found = handle.hunks("old", "below/text")
    fs.is_armed = True

    with pytest.raises(treesnap.Conflict):
        handle.restore_hunks(found, [0])

    assert not fs.is_armed
    assert (root / "below/text").read_bytes() == b"meanwhile\n"
    assert handle.ways_back().undo is None


def test_what_has_no_hunks_is_refused(handle, root):
    (root / "link").symlink_to("beside")
    (root / "binary").write_bytes(b"a\0b")
    (root / "large").write_bytes(b"x" * (TEXT_SIZE_MAX + 1))
    (root / "gone").write_bytes(b"")
    handle.create(name="more")
    (root / "gone").unlink()
    (root / "new").write_bytes(b"")

    for path, words in [
        ("binary", "not a text"),
        ("large", "larger than 4 MiB"),
        ("link", "not a file in that snapshot"),
        ("below", "not a file in that snapshot"),
        (".", "not a file in that snapshot"),
    ]:
        with pytest.raises(treesnap.InvalidArgument, match=words):
            handle.hunks("more", path)
    for path, words in [("gone", "The tree does not hold"), ("new", "does not hold 'new'")]:
        with pytest.raises(treesnap.NotFound, match=words):
            handle.hunks("more", path)


def test_a_file_that_is_excluded_since_is_restored_because_it_is_named(handle, root):
    (root / ".gitignore").write_text("below/\n")

    handle.restore_hunks(handle.hunks("old", "below/text"), [0, 1, 2])

    assert (root / "below/text").read_bytes() == OLD


@pytest.mark.parametrize(
    ("numbers", "words"), [([], "a hunk at least"), ([3], "no hunk 3"), ("0", "must be a list")]
)
def test_numbers_are_checked(handle, numbers, words):
    found = handle.hunks("old", "below/text")

    with pytest.raises(treesnap.InvalidArgument, match=words):
        handle.restore_hunks(found, numbers)
