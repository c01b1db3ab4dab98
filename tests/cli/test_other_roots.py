"""Every id that ``list --all`` shows can be looked at and restored from."""

from __future__ import annotations

import pytest


@pytest.fixture
def foreign(snap, run_snap, root, tmp_path):
    """The id of a snapshot of a root that is gone; this root has one of its own."""
    (root / "file").write_text("here")
    snap("create", "--name", "mine")
    other = tmp_path / "other"
    other.mkdir()
    (other / "file").write_text("there")
    identity = run_snap("create", "--name", "theirs", cwd=other).id
    (other / "file").unlink()
    other.rmdir()
    return identity


def test_it_can_be_looked_at(snap, foreign, tmp_path):
    (short, *_), _ = (line.split() for line in snap("list", "--all").out.splitlines())

    assert foreign.startswith(short)
    for ref in (short, foreign):
        shown = snap("show", ref, "--json").json
        assert (shown["id"], shown["root"]) == (foreign, str(tmp_path / "other"))
        assert snap("ls", ref).out == "file\n"
        assert snap("cat", ref, "file").out == "there"
        assert snap("find", "file", "--ref", ref).out == "file\n"
        changes = snap("diff", ref, "mine", "--json").json["changes"]
        assert "file" in [item["path"] for item in changes]


def test_it_can_be_restored_to_another_directory(snap, foreign, tmp_path):
    assert snap("restore", foreign[:12], "--to", tmp_path / "back").code == 0
    assert (tmp_path / "back/file").read_text() == "there"


@pytest.mark.parametrize("words", [["restore"], ["delete"], ["pin"], ["restore", "--dry-run"]])
def test_what_would_change_this_root_says_whose_it_is(snap, root, foreign, tmp_path, words):
    result = snap(*words, foreign)

    assert result.code == 5
    assert f"is of another root, '{tmp_path / 'other'}'" in result.err
    assert (
        "hint: name that root with -C, even if it is gone; 'snap restore ID --to DIR'" in result.err
    )
    assert (root / "file").read_text() == "here"


def test_names_and_a_few_digits_stay_within_the_root(snap, foreign):
    assert snap("show", "theirs").code == 5
    assert snap("show", foreign[:8]).code == 5
