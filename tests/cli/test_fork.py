"""``snap fork``, and what other commands say of forks."""

from __future__ import annotations

import stat

import pytest


@pytest.fixture
def place(snap, tmp_path):
    """A directory for forks beside a root with a snapshot."""
    snap("create", "--name", "first")
    (tmp_path / "forks").mkdir()
    return tmp_path / "forks"


def test_each_directory_is_named_with_what_became_of_its_files(snap, place):
    outcome = snap("fork", "first", str(place / "one"), str(place / "two"))

    assert outcome.code == 0
    lines = outcome.out.splitlines()
    assert [line.split()[0] for line in lines] == [str(place / "one"), str(place / "two")]
    assert all(" cloned, " in line and " copied (" in line for line in lines)


def test_what_a_fork_of_an_import_does_not_get_is_listed(snap, place, tmp_path):
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs" / "program").touch()
    (tmp_path / "theirs" / "program").chmod(0o4755)
    snap("import", str(tmp_path / "theirs"), "--name", "theirs")

    outcome = snap("fork", "theirs", str(place / "fork"))

    *left_out, way = outcome.err.splitlines()
    assert left_out == [
        "Left out, because the snapshot may come from elsewhere: 1 of",
        "  program (set-user-id)",
    ]
    assert not (place / "fork" / "program").stat().st_mode & stat.S_ISUID
    *_, identity, _, _, option = way.split()
    snap("restore", identity, "--to", str(place / "whole"), option)
    assert (place / "whole" / "program").stat().st_mode & stat.S_ISUID


def test_json_names_roots_and_bases(snap, place):
    document = snap("fork", "first", str(place / "fork"), "--json").json

    (made,) = document["forks"]
    assert document["schema"] == "treesnap.fork/1"
    assert document["snapshot_id"] == snap("show", "first", "--json").json["id"]
    roots = {root["id"]: root for root in snap("root", "list", "--json").json["roots"]}
    assert roots[made["root_id"]]["path"] == made["path"] == str(place / "fork")
    assert roots[made["root_id"]]["origin"]["snapshot_id"] == document["snapshot_id"]
    assert roots[made["root_id"]]["origin"]["base_id"] == made["base_id"]


def test_the_list_of_roots_says_what_is_a_fork_of_what(snap, root, place):
    snap("fork", "first", str(place / "fork"))

    (line,) = [line for line in snap("root", "list").out.splitlines() if "(fork of" in line]

    assert line.split("  ")[-2] == str(place / "fork")
    snap("root", "forget", str(root), "--force")
    assert "(fork of a root that was forgotten)" in snap("root", "list").out


def test_a_refusal_names_the_directory_and_what_to_do(snap, root, place):
    outcome = snap("fork", "first", str(root / "below"))

    assert outcome.code == 3
    assert "would be inside the directory that is forked" in outcome.err
    assert "hint: name a new directory" in outcome.err


def test_an_unknown_snapshot_is_not_found(snap, place):
    outcome = snap("fork", "unknown", str(place / "fork"))

    assert outcome.code == 5
    assert not (place / "fork").exists()


class TestDiff:
    @pytest.fixture
    def fork(self, snap, root, place):
        (root / "notes").write_text("one\n")
        snap("create")
        snap("fork", "latest", str(place / "fork"))
        return place / "fork"

    def test_of_a_fork_shows_what_it_has_that_differs(self, snap, root, fork):
        (fork / "notes").write_text("two\n")

        outcome = snap("diff", str(fork))

        assert outcome.code == 0
        assert outcome.out.splitlines()[-3:] == ["@@ -1 +1 @@", "-one", "+two"]
        assert snap("diff", str(fork), "--name-status").out == "M  notes\n"

    def test_in_json_names_the_directory_instead_of_snapshots(self, snap, fork):
        (fork / "notes").write_text("two\n")

        document = snap("diff", str(fork), "--json").json

        assert (document["old_id"], document["new_id"]) == (None, None)
        assert document["directory"] == str(fork)
        assert [change["path"] for change in document["changes"]] == ["notes"]

    def test_takes_paths_behind_dashes(self, snap, fork):
        (fork / "notes").write_text("two\n")
        (fork / "more").write_text("more\n")

        assert snap("diff", str(fork), "--name-status", "--", "more").out == "A  more\n"

    def test_in_a_fork_since_it_was_forked(self, snap, fork):
        (fork / "notes").write_text("two\n")
        snap("-C", str(fork), "create")

        assert snap("-C", str(fork), "diff", "forked", "--name-status").out == "M  notes\n"
        assert snap("-C", str(fork), "diff", "--name-status").out == ""

    def test_a_directory_in_the_root_is_a_path_all_the_same(self, snap, root):
        (root / "inner").mkdir()
        (root / "inner/notes").write_text("one\n")
        snap("create")
        snap("-C", str(root / "inner"), "create")
        (root / "inner/notes").write_text("two\n")

        assert snap("diff", "inner", "--name-status").out == "M  inner/notes\n"


def test_snap_alone_in_a_fork_that_was_adopted_promises_no_undo(snap, root, place):
    snap("fork", "first", str(place / "fork"))
    (place / "fork" / "better").write_text("better")
    assert snap("adopt", str(place / "fork")).code == 0

    here, there = snap().out, snap("-C", str(place / "fork")).out

    assert "(adoption of fork)" in here
    assert "snap undo goes back to before restore" in here
    assert "Stands at " in there
    assert f"(adopted into {root.name})" in there
    assert "undo" not in there


@pytest.mark.sampled(5)
@pytest.mark.parametrize("option", ["--as-it-is", "--dry-run", "--theirs"])
def test_what_an_adoption_leaves_out_is_named(snap, root, place, option):
    snap("create")
    snap("fork", "latest", str(place / "fork"))
    (place / "fork" / "out").write_text("of the fork")
    (root / "out").write_text("of the root")
    (root / ".snapignore").write_text("out\n")
    snap("create")

    document = snap("adopt", str(place / "fork"), option, "--json").json
    snap("undo")
    text = snap("adopt", str(place / "fork"), option)

    assert document["left_out"] == [{"path": "out", "reason": "excluded"}]
    assert "1 path left out:\n  out (excluded)\n" in text.out + text.err
    assert (root / "out").read_text() == "of the root"
