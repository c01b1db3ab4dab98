"""``snap grep``."""

from __future__ import annotations

import os
from random import Random

import pytest

import treesnap
from treesnap.core.handle import Handle
from treesnap.core.ops.context import context_at
from treesnap.testing.doubles import RecordingFileSystem

pytestmark = pytest.mark.sampled(10)


@pytest.fixture
def history(snap, root):
    """Two snapshots; a directory is the same in both."""
    (root / "same").mkdir()
    (root / "same" / "a.txt").write_text("alpha\nbeta\nalphabet\n")
    (root / "b.txt").write_text("Alpha\n")
    (root / "c.bin").write_bytes(b"\0alpha\n")
    snap("create", "--name", "one")
    (root / "b.txt").write_text("gamma")
    snap("create", "--name", "two")
    return root


def test_lines_have_snapshot_path_and_number(snap, history):
    assert snap("grep", "alpha").out.splitlines() == [
        "Binary file latest:c.bin matches",
        "latest:same/a.txt:1:alpha",
        "latest:same/a.txt:3:alphabet",
    ]
    assert snap("grep", "^alpha$", "one", "two", "-N").out.splitlines() == [
        "one:same/a.txt:alpha",
        "two:same/a.txt:alpha",
    ]


def test_last_lines_without_a_newline_are_searched(snap, history):
    assert snap("grep", "gam+a", "two").out == "two:b.txt:1:gamma\n"


def test_options_change_what_matches_and_what_is_printed(snap, history):
    assert snap("grep", "-i", "ALPHA", "one", "--", "b.txt").out == "one:b.txt:1:Alpha\n"
    assert snap("grep", "-l", "alpha", "--", "same").out == "latest:same/a.txt\n"
    assert snap("grep", "-c", "alpha").out.splitlines() == [
        "latest:c.bin:binary",
        "latest:same/a.txt:2",
    ]
    assert snap("grep", "-F", "a.p").out == ""
    assert snap("grep", "a.p", "--", "same/a.txt").out.count("\n") == 2


def test_all_snapshots_show_the_same_once(snap, history):
    one = snap("show", "one", "--json").json["id"][:12]
    two = snap("show", "two", "--json").json["id"][:12]

    assert snap("grep", "--all", "-i", "^alpha").out.splitlines() == [
        f"{two}:same/a.txt:1:alpha",
        f"{two}:same/a.txt:3:alphabet",
        f"{one}:b.txt:1:Alpha",
    ]


def test_exit_code_says_whether_anything_matched_if_asked(snap, history):
    assert snap("grep", "absent").code == 0
    assert snap("grep", "absent", "--exit-code").code == 1
    assert snap("grep", "absent", "--exit-code", "--json").json == {
        "schema": "treesnap.grep/1",
        "files": [],
    }
    assert snap("grep", "alpha", "--exit-code").code == 0


def test_wrong_words_are_errors(snap, history):
    assert snap("grep", "(").code == 2
    assert "not a regular expression" in snap("grep", "(").err
    assert snap("grep", "x", "absent").code == 5
    assert snap("grep", "x", "--", "absent").code == 5
    assert snap("grep", "x", "one", "--all").code == 2
    assert snap("grep", "x", "-l", "-c").code == 2


def test_json_has_exact_bytes_and_places(snap, root):
    (root / "a").write_bytes(b"x \xff y x\n")
    snap("create")

    (found,) = snap("grep", "x", "--json").json["files"]

    assert (found["ref"], found["path"], found["is_binary"]) == ("latest", "a", False)
    (line,) = found["lines"]
    assert line["spans"] == [[0, 1], [6, 7]]
    assert line["text_bytes"] == "eCD/IHkgeA=="
    assert snap("grep", "x").raw == b"latest:a:1:x \xff y x\n"


def test_a_terminal_gets_colours_and_no_control_characters(snap, root):
    (root / "a").write_bytes(b"one \x1b[2J two\n")
    snap("create")

    told = snap("grep", "two", "--color", "always").out

    assert "\x1b[32;7mtwo\x1b[0m" in told
    assert "\\x1b[2J" in told


def test_equal_contents_are_read_once(tmp_path):
    root, fs = tmp_path / "root", RecordingFileSystem()
    for name in ("a", "b"):
        (root / name).mkdir(parents=True)
        (root / name / "file").write_bytes(Random(1).randbytes(1 << 20) + b"\nneedle\n")
    handle = Handle(context_at(root=root, store_path=str(tmp_path / "store"), fs=fs))
    for number in range(5):
        (root / "number").write_text(f"{number}")
        handle.create()
    packs = str(tmp_path / "store" / "packs")
    fs.clear()

    found = list(handle.grep("needle", [f"latest~{back}" for back in range(5)]))

    assert [os.fsdecode(item.path) for item in found] == ["a/file", "b/file"] * 5
    assert fs.read_bytes(below=packs) < 2 << 20


def test_long_lines_and_large_files_are_searched_in_pieces(tmp_path):
    root = tmp_path / "root"
    root.mkdir()
    (root / "large").write_bytes((b"x" * 1000 + b"\n") * 2000 + b"needle\n" + b"y" * (17 << 20))
    handle = treesnap.open(root, tmp_path / "store")
    handle.create()

    (found,) = handle.grep("needle")
    (last,) = handle.grep("^y+$", first_only=True)

    assert [line.number for line in found.lines] == [2001]
    assert [line.number for line in last.lines] == [2002]


@pytest.mark.parametrize("pattern", ["needle", "need+le", "^n", "."])
def test_the_zeros_of_a_hole_are_searched_once(tmp_path, pattern):
    """Reading them all would take hours."""
    root = tmp_path / "root"
    root.mkdir()
    with (root / "sparse").open("wb") as file:
        file.write(b"needle\n" * 2000)
        file.truncate(8 << 40)
        file.seek(0, os.SEEK_END)
        file.write(b"\nneedle\n")
    handle = treesnap.open(root, tmp_path / "store")
    handle.create()

    (found,) = handle.grep(pattern)

    assert [line.number for line in found.lines if line.text == b"needle"] == [
        *range(1, 2001),
        2002,
    ]
    assert all(len(line.spans) <= 1000 for line in found.lines)
