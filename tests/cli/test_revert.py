"""``snap revert``: what it prints, as text and as JSON, and its exit codes."""

from __future__ import annotations

import os
import re

import pytest

TEXT = "".join(f"line {number}\n" for number in range(9))


@pytest.fixture
def diverged(snap, root):
    """A step that changed one line and made two files, and a line that changed since."""
    (root / "text").write_text(TEXT)
    snap("create", "--name", "before")
    (root / "text").write_text(TEXT.replace("line 2", "step"))
    (root / "made").write_text("made\n")
    (root / "edited").write_text("made\n")
    snap("create", "--name", "step")
    (root / "text").write_text(TEXT.replace("line 2", "step").replace("line 7", "since"))
    return root


def contents(root):
    return {path.name: path.read_text() for path in root.iterdir()}


AFTERWARDS = {"text": TEXT.replace("line 7", "since")}


def test_a_step_is_undone_and_what_came_since_stays(snap, diverged):
    result = snap("revert", "step")

    assert (result.code, contents(diverged)) == (0, AFTERWARDS)
    text, _, identity = result.out.rpartition(" ")
    names = "..".join(snap("show", name, "--json").json["id"][:12] for name in ("before", "step"))
    assert text == f"Reverted {names}: 3 paths changed, now"
    assert result.err == "To go back: snap undo\n"
    assert snap("status", identity.strip(), "--json").json["changes"] == []


def test_latest_stays_what_was_saved_last_and_undo_ends_there(snap, root):
    (root / "a").write_text("old")
    snap("create")
    (root / "a").write_text("new")
    identity = snap("create", "--json").json["id"]

    snap("revert", "latest")
    assert snap("show", "latest", "--json").json["id"] == identity
    assert "Restored to " in snap().out
    assert snap("revert", "latest").out.endswith(": the root has it already\n")
    snap("undo")
    assert snap("status", "--json").json["changes"] == []
    assert "Nothing changed since " in snap().out


def test_undo_goes_back(snap, diverged):
    before = contents(diverged)
    snap("revert", "step")

    snap("undo")

    assert contents(diverged) == before


def test_a_revert_as_json(snap, diverged):
    document = snap("revert", "before..step", "--json").json

    assert document["schema"] == "treesnap.revert/1"
    assert snap("status", document["id"], "--json").json["changes"] == []
    assert {item["path"]: item["change"] for item in document["changes"]} == {
        "text": "modified",
        "made": "removed",
        "edited": "removed",
    }
    assert (document["conflicts"], document["kept"], document["dry_run"]) == ([], [], False)
    assert len(document["safety_id"]) == 64


def test_a_dry_run_prints_what_a_real_one_changes(snap, diverged):
    before = contents(diverged)

    result = snap("revert", "step", "--dry-run")
    as_json = snap("revert", "step", "--dry-run", "--json").json

    names = "..".join(snap("show", name, "--json").json["id"][:12] for name in ("before", "step"))
    assert result.out == f"D  edited\nD  made\nM  text\nWould revert {names}: 3 paths\n"
    assert (result.code, result.err, contents(diverged)) == (0, "", before)
    assert (as_json["dry_run"], as_json["id"], as_json["safety_id"]) == (True, None, None)
    assert as_json["changes"] == snap("revert", "step", "--json").json["changes"]


def test_paths_are_relative_to_the_current_directory(run_snap, diverged):
    result = run_snap("revert", "step", "made", cwd=diverged)

    assert result.code == 0
    assert {*contents(diverged)} == {"text", "edited"}
    assert "step" in (diverged / "text").read_text()


def test_conflicts_change_nothing_and_are_named(snap, diverged):
    (diverged / "edited").write_text("since\n")
    before = contents(diverged)

    result = snap("revert", "step")

    assert (result.code, result.out, contents(diverged)) == (3, "", before)
    assert result.err.splitlines()[0] == (
        "snap: 1 path changed on both sides, nothing was changed: 'edited'"
    )
    assert "--mine" in result.err
    assert "--theirs" in result.err


def test_conflicts_as_json_are_all_named(snap, diverged):
    strange = os.fsdecode(b"\xff\n")
    (diverged / strange).write_text("1")
    snap("create", "--name", "other")
    for name in ("edited", strange):
        (diverged / name).write_text("since\n")

    result = snap("revert", "before..other", "--json")

    assert (result.code, result.err) == (3, "")
    assert result.json["code"] == "merge-conflict"
    assert result.json["path"] == "edited"
    assert result.json["paths"] == [
        {"path": "edited"},
        {"path": "\\xff\\n", "path_bytes": "/wo="},
    ]


def test_an_error_without_conflicts_has_no_list_of_them(snap, diverged):
    assert "paths" not in snap("revert", "missing", "--json").json


@pytest.mark.parametrize(
    ("option", "content", "note"),
    [
        ("--mine", "kept", "kept as they are"),
        ("--theirs", "line 2", "taken from the other side"),
        (
            "--markers",
            "<<<<<<< now\nkept\n=======\nline 2\n>>>>>>> before {}\n",
            "texts have marks, all else is kept",
        ),
    ],
)
def test_a_rule_says_what_becomes_of_a_conflict(snap, diverged, option, content, note):
    (diverged / "text").write_text(TEXT.replace("line 2", "kept"))
    ids = [snap("show", name, "--json").json["id"][:12] for name in ("before", "step")]

    result = snap("revert", "step", option)

    assert result.code == 0
    content = content.format("..".join(ids)) if "{}" in content else f"{content}\n"
    assert contents(diverged) == {"text": TEXT.replace("line 2\n", content)}
    assert f"1 path changed on both sides, {note}:\n  C  text\n" in result.err


def test_a_dry_run_says_that_it_would_be_refused(snap, diverged):
    (diverged / "edited").write_text("since\n")

    result = snap("revert", "step", "--dry-run")

    assert result.code == 0
    assert "it would be refused:\n  C  edited\n" in result.err


def test_of_what_is_undone_already_nothing_is_left(snap, diverged):
    snap("revert", "step")
    count = len(snap("list", "--json").json["snapshots"])

    result = snap("revert", "step")

    assert (result.code, result.err) == (0, "")
    names = "..".join(snap("show", name, "--json").json["id"][:12] for name in ("before", "step"))
    assert result.out == f"Nothing to revert of {names}: the root has it already\n"
    assert len(snap("list", "--json").json["snapshots"]) <= count + 1


@pytest.mark.parametrize("options", [("--mine",), ("--dry-run",)])
def test_where_all_is_in_conflict_nothing_is_left_to_do(snap, root, options):
    for text in ("1", "2"):
        (root / "a").write_text(text)
        snap("create")
    (root / "a").write_text("since")

    result = snap("revert", "latest", *options)

    assert (result.code, contents(root)) == (0, {"a": "since"})
    assert re.fullmatch(r"Nothing to revert of \w{12}\.\.\w{12}\n", result.out)
    assert "  C  a\n" in result.err


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (("step", "--mine", "--theirs"), 2, "--mine and --theirs exclude each other"),
        (("..step",), 2, "'..step' names no snapshot before the dots"),
        (("missing",), 5, "This root has no snapshot 'missing'"),
        (("before",), 5, "There is no snapshot before "),
        (("step", "typo"), 5, "There is no 'typo', neither now nor before or after"),
        ((), 2, "Missing argument 'REF|A..B'"),
    ],
)
def test_what_cannot_be_reverted_is_refused(snap, diverged, words, code, message):
    before = contents(diverged)

    result = snap("revert", *words)

    assert (result.code, result.out, contents(diverged)) == (code, "", before)
    assert result.err.startswith(f"snap: {message}")


def test_without_a_store_there_is_nothing_to_revert(snap, root, store):
    result = snap("revert", "latest")

    assert (result.code, store.exists()) == (5, False)


class TestTooLargeTexts:
    @pytest.fixture
    def large(self, snap, root):
        """A text above the limit of merges, whose first and last line changed."""
        middle = "x" * 99 + "\n"
        for words in ("one|one", "two|one", "two|two"):
            first, last = words.split("|")
            (root / "text").write_text(f"{first}\n{middle * 43_000}{last}\n")
            if words != "two|two":
                snap("create", "--name", words.replace("|", "-"))
        return root

    def test_a_refusal_says_why_they_are_conflicts(self, snap, large):
        result = snap("revert", "two-one", "--json")

        assert result.code == 3
        assert "larger than 4 MiB, so not merged by lines: 'text'" in result.json["message"]

    def test_they_are_named_where_they_get_no_marks(self, snap, large):
        before = (large / "text").read_bytes()

        told = snap("revert", "two-one", "--markers")
        document = snap("revert", "two-one", "--markers", "--dry-run", "--json").json

        assert "C  text  (larger than 4 MiB, so not merged by lines)" in told.err
        assert document["conflicts"] == document["too_large"] == [{"path": "text"}]
        assert (large / "text").read_bytes() == before


def test_after_nothing_the_root_still_has_a_snapshot_that_it_equals(snap, root):
    (root / "a").write_text("one")
    snap("create", "--name", "one")
    (root / "a").write_text("two")
    snap("create", "--name", "two")
    snap("revert", "two")

    document = snap("revert", "two", "--json").json

    assert document["changes"] == []
    assert snap("status", document["id"], "--json").json["changes"] == []
