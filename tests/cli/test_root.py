"""``snap root``, and directories that were renamed, as people meet them."""

from __future__ import annotations

import os

import pytest


@pytest.fixture
def moved(snap, root, tmp_path):
    """A root with one snapshot, renamed since."""
    (root / "file").write_text("content")
    snap("create", "--name", "one")
    target = tmp_path / "moved"
    root.rename(target)
    return target


@pytest.mark.needs("birth times")
def test_the_next_command_says_which_root_it_is(snap, run_snap, root, moved):
    below = moved / "below"
    below.mkdir()

    outcome = run_snap("list", cwd=below)

    assert (outcome.code, len(outcome.out.splitlines())) == (0, 1)
    assert str(root) in outcome.err
    assert str(moved) in outcome.err
    status = run_snap("status", "--json", cwd=below).json
    assert [item["path"] for item in status["changes"]] == ["below"]
    assert str(root) not in run_snap("list", cwd=moved).err


def test_roots_are_listed(snap, run_snap, root, moved, tmp_path):
    (line,) = run_snap("root", "list", cwd=tmp_path).out.splitlines()

    assert f"{root}  (no directory there)" in line
    (item,) = run_snap("root", "list", "--json", cwd=tmp_path).json["roots"]
    assert (item["path"], item["snapshots"], item["directory"]) == (str(root), 1, "absent")
    assert line.startswith(item["id"][:12])


def test_a_root_is_moved_by_hand(snap, run_snap, root, moved, tmp_path):
    outcome = run_snap("root", "move", root, moved, "--json", cwd=tmp_path)

    assert (outcome.code, outcome.json["path"]) == (0, str(moved))
    assert [item["path"] for item in outcome.json["earlier_paths"]] == [str(root)]
    assert run_snap("show", "one", cwd=moved).code == 0
    assert run_snap("root", "move", root, cwd=moved).code == 0  # it is there already
    unknown = run_snap("root", "move", tmp_path / "unknown", "--json", cwd=moved)
    assert (unknown.code, unknown.json["code"]) == (5, "unknown-root")


def test_a_root_is_forgotten(snap, run_snap, root, moved, tmp_path):
    refused = run_snap("root", "forget", root, cwd=tmp_path)
    assert refused.code == 3
    assert "1 of 1 snapshots" in refused.err
    assert "--force" in refused.err

    outcome = run_snap("root", "forget", root, "--force", cwd=tmp_path)

    assert (outcome.code, outcome.out) == (0, f"Forgot {root}: 1 snapshot\n")
    assert run_snap("root", "list", cwd=tmp_path).out == ""
    assert (moved / "file").read_text() == "content"
    assert os.listdir(moved) == ["file"]
