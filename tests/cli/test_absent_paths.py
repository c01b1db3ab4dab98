"""Paths that are absent when they are captured, or below a link when they are compared."""

from __future__ import annotations

import shutil

import pytest


@pytest.fixture
def figs(root, snap):
    """A directory with a snapshot of the whole root, and one of a file in it alone."""
    (root / "figs" / "below").mkdir(parents=True)
    (root / "other").mkdir()
    (root / "figs" / "below" / "file").write_text("drawn\n")
    snap("create")
    snap("create", "figs/below/file")
    return root / "figs"


def become_link(figs) -> None:
    shutil.rmtree(figs)
    figs.symlink_to("other")


def test_a_snapshot_of_what_is_gone_says_so(figs, snap):
    shutil.rmtree(figs)

    made = snap("create", "figs")
    listed = snap("--json", "create", "figs", "other").json["absent"]

    assert made.code == 0
    assert "There is nothing at figs: restoring this snapshot removes" in made.err
    assert listed == [{"path": "figs"}]
    assert "Nothing to restore" in snap("restore", "latest", "figs").out
    assert not figs.exists()
    assert snap("restore", "latest~2", "figs").code == 0
    assert (figs / "below" / "file").read_text() == "drawn\n"


def test_what_is_there_is_not_absent(figs, snap):
    made = snap("create", "figs", "other")

    assert "nothing at" not in made.err
    assert snap("--json", "create", "figs").json["absent"] == []


def test_a_comparison_below_a_link_shows_what_is_gone(figs, snap):
    become_link(figs)

    shown = snap("diff", "--name-status", "newest")
    named = snap("diff", "--name-status", "newest", "--", "figs/below/file")

    assert (shown.code, shown.out) == (0, "D  figs/below/file\n")
    assert (named.code, named.out) == (0, "D  figs/below/file\n")


@pytest.mark.parametrize("options", [[], ["--dry-run"]])
def test_a_restore_below_a_link_is_refused_and_follows_nothing(figs, root, snap, options):
    become_link(figs)

    refused = snap("restore", *options, "newest")

    assert refused.code == 3
    assert "'figs' is no longer a directory" in refused.err
    assert figs.is_symlink()
    assert list((root / "other").iterdir()) == []


def test_a_path_below_a_link_is_refused_when_it_is_captured(figs, snap):
    become_link(figs)

    refused = snap("create", "figs/below/file")

    assert refused.code == 2
    assert "leads through the symbolic link 'figs'" in refused.err
