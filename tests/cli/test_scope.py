"""Snapshots of paths pass for none of the root, and typing mistakes for no success."""

from __future__ import annotations

import os
import shutil

import pytest

UNKNOWN = (5, "unknown-path")


@pytest.fixture
def figures(root):
    """A root with a directory of figures."""
    (root / "figs").mkdir()
    (root / "figs/one").write_text("one")
    (root / "notes").write_text("notes")
    return root / "figs"


def listed(snap) -> list[dict]:
    return snap("list", "--json").json["snapshots"]


class TestPathThatNeverWas:
    def test_a_label_without_its_option_is_an_error_that_says_so(self, snap, figures, store):
        result = snap("create", "before cleaning")

        assert result.code == 5
        assert "'before cleaning' exists neither now nor in a snapshot" in result.err
        assert "did you mean -m" in result.err
        assert not store.exists()

    @pytest.mark.parametrize("word", ["typo", "figs/typo", "notes/below", "typo/below"])
    def test_no_such_path_beside_others_makes_no_snapshot(self, snap, figures, word):
        snap("create")

        result = snap("create", "figs", word, "--json")

        assert (result.code, result.json["code"]) == UNKNOWN
        assert result.json["path"] == word
        assert len(listed(snap)) == 1

    def test_a_path_of_the_history_may_be_absent_now(self, snap, figures):
        snap("create")
        shutil.rmtree(figures)

        assert snap("create", "figs", "figs/one").code == 0

    def test_a_path_that_was_only_ever_captured_as_absent_is_unknown(self, snap, figures):
        assert snap("create", "typo", "--allow-absent").code == 0

        assert snap("create", "typo", "--json").json["code"] == UNKNOWN[1]

    def test_absence_is_captured_when_it_is_asked_for(self, snap, figures, root):
        identity = snap("create", "new", "--allow-absent").id
        (root / "new").write_text("made by the step")

        assert snap("restore", identity).code == 0

        assert not (root / "new").exists()

    @pytest.mark.parametrize("kind", ["excluded", "link", "fifo", "below excluded"])
    def test_what_is_there_is_known_whatever_it_is(self, snap, figures, root, kind):
        path = "odd"
        if kind == "link":
            (root / path).symlink_to("nowhere")
        elif kind == "fifo":
            os.mkfifo(root / path)
        else:
            (root / ".snapignore").write_text("odd\n")
            (root / path).mkdir()
            (root / path / "file").touch()
            path = "odd/file" if kind == "below excluded" else path

        assert snap("create", path).code == 0


class TestWhatCounts:
    def test_status_after_a_snapshot_of_paths_still_sees_everything(self, snap, figures, root):
        whole = snap("create").id
        snap("create", "notes")
        shutil.rmtree(figures)

        document = snap("status", "--json").json

        assert document["id"] == whole
        assert [item["path"] for item in document["changes"]] == ["figs", "figs/one"]
        assert "D  figs/one" in snap("status").out

    def test_status_before_the_first_whole_snapshot_claims_nothing(self, snap, figures):
        snap("create", "notes")

        result = snap("status")

        assert "Nothing changed" not in result.err
        assert "No snapshot" in result.err
        assert snap("status", "--json").json["id"] is None

    def test_latest_is_whole_and_newest_is_any(self, snap, figures):
        whole = snap("create").id
        part = snap("create", "notes").id

        assert snap("show", "latest", "--json").json["id"] == whole
        assert snap("show", "newest", "--json").json["id"] == part
        assert snap("show", "newest~1", "--json").json["id"] == whole
        assert snap("show", "latest~1").code == 5

    def test_latest_without_a_whole_snapshot_names_what_there_is(self, snap, figures):
        snap("create", "notes")

        result = snap("restore", "latest")

        assert result.code == 5
        assert "'newest'" in result.err

    def test_latest_with_paths_is_the_newest_that_was_taken_of_them(self, snap, figures, root):
        snap("create")
        (root / "notes").write_text("later")
        part = snap("create", "notes").id
        (root / "notes").write_text("latest")
        (figures / "one").write_text("edited")

        assert snap("diff", "latest", "notes", "--json").json["old_id"] == part
        assert snap("diff", "--json", "--", "notes").json["old_id"] == part
        assert snap("diff", "--json", "--", "figs", "notes").json["old_id"] != part
        assert snap("cat", "latest", "notes").out == "later"
        assert snap("restore", "latest", "notes", "--json").json["id"] == part
        assert (root / "notes").read_text() == "later"
        assert snap("restore", "latest", "figs", "--json").json["id"] != part
        assert (figures / "one").read_text() == "one"

    def test_a_path_that_is_gone_is_a_path_of_diff_without_a_whole_snapshot(
        self, snap, figures, root
    ):
        part = snap("create", "notes").id
        (root / "notes").unlink()

        assert snap("diff", "notes", "--json").json["old_id"] == part

    def test_status_after_a_path_that_became_a_link(self, snap, figures, root):
        snap("create", "figs/one")
        figures.rename(root / "elsewhere")
        figures.symlink_to("elsewhere")

        assert snap("status").code == 0

    def test_status_says_that_a_captured_path_became_a_link(self, snap, figures, root):
        snap("create")
        snap("create", "figs/one")
        figures.rename(root / "elsewhere")
        figures.symlink_to("elsewhere")

        result = snap("status")

        assert result.code == 0
        assert "T  figs\n" in result.out

    def test_names_cannot_be_taken_for_words(self, snap, figures):
        assert snap("create", "--name", "newest").code == 2

    def test_snapshots_of_paths_push_no_whole_one_out(self, snap, figures, root):
        whole = snap("create").id
        for number in range(3):
            (root / "notes").write_text(str(number))
            snap("create", "notes")

        snap("prune", "--keep-last", "1")

        kept = listed(snap)
        assert whole in [item["id"] for item in kept]
        assert len(kept) == 2

    def test_the_newest_whole_snapshot_stays_when_there_is_no_room(self, snap, figures, root):
        whole = snap("create").id
        (root / "notes").write_bytes(os.urandom(100_000))
        snap("create", "notes")
        snap("create", "notes")

        snap("prune", "--max-size", "1")

        assert whole in [item["id"] for item in listed(snap)]


class TestScopeIsNamed:
    def test_where_it_is_made_listed_and_restored(self, snap, figures, root):
        made = snap("create", "figs")
        (figures / "one").write_text("edited")

        restored = snap("restore", "newest")

        assert "only figs" in made.err
        assert "(only figs)" in snap("list").out
        assert "only figs" in restored.out
        undone = snap("undo")
        assert "only figs" in undone.out
        assert (figures / "one").read_text() == "edited"

    def test_as_json(self, snap, figures, root):
        scope = [{"path": "figs"}]
        assert snap("create", "figs", "--json").json["snapshot"]["scope"] == scope
        (figures / "one").write_text("edited")

        assert listed(snap)[0]["scope"] == scope
        assert snap("restore", "newest", "--json").json["scope"] == scope
        assert snap("undo", "--json").json["scope"] == scope
        whole = snap("create", "--json").json["snapshot"]
        assert whole["scope"] is None

    def test_only_the_first_of_many_paths_are_named(self, snap, root):
        names = [f"{number:02}" for number in range(10)]
        for name in names:
            (root / name).touch()

        snap("create", *names)

        assert "(only 00, 01, 02 and 7 more)" in snap("list").out
