"""``snap restore``, ``undo`` and ``redo``."""

import os
import time

import pytest

RESTORE_FIELDS = {"restored", "created", "deleted", "unchanged", "safety_id", "dry_run"}


@pytest.fixture
def damaged(snap, root):
    """A captured root, then an edit, a removal and a stray file."""
    (root / "sub").mkdir()
    for name in ("edited", "removed", "kept", "sub/deep"):
        (root / name).write_text(f"{name}\n")
        os.utime(root / name, ns=(0, 10**18))
    snap("create", "-m", "before")
    (root / "edited").write_text("damage\n")
    (root / "removed").unlink()
    (root / "stray").write_text("stray\n")
    return root


def contents(root):
    """Returns the content of every file by its path."""
    return {
        str(path.relative_to(root)): path.read_text()
        for path in sorted(root.rglob("*"))
        if path.is_file()
    }


WHOLE = {name: f"{name}\n" for name in ("edited", "kept", "removed", "sub/deep")}
DAMAGED = {"edited": "damage\n", "kept": "kept\n", "stray": "stray\n", "sub/deep": "sub/deep\n"}


def test_restore_brings_everything_back_and_says_how_to_undo_it(snap, damaged):
    identity = snap("show", "latest", "--json").json["id"]

    result = snap("restore", "latest")

    assert (result.code, contents(damaged)) == (0, WHOLE)
    assert result.out.startswith(f"Restored {identity[:12]} (before): ")
    assert "1 created, 1 deleted" in result.out
    assert result.err == "To undo this: snap undo\n"


def test_restore_as_json(snap, damaged):
    document = snap("restore", "latest", "--json").json

    assert document["schema"] == "treesnap.restore/1"
    assert set(document) >= RESTORE_FIELDS
    assert (document["created"], document["deleted"], document["dry_run"]) == (1, 1, False)
    assert len(document["safety_id"]) == 64
    changes = {item["path"]: item["change"] for item in document["changes"]}
    changes.pop("", None)
    assert changes == {"edited": "modified", "removed": "added", "stray": "removed"}
    assert document["untouched"] == []


def test_advice_names_root_and_store_where_they_were_given(run_snap, damaged, tmp_path):
    result = run_snap("-C", "root", "--store", "store", "restore", "latest", cwd=tmp_path)

    assert result.err == "To undo this: snap -C root --store store undo\n"


def test_restore_of_nothing_says_so(snap, root):
    (root / "a").write_text("a")
    snap("create")

    result = snap("restore", "latest")

    assert (result.code, result.err) == (0, "")
    assert result.out.startswith("Nothing to restore")
    assert snap("restore", "latest", "--json").json["safety_id"] is None


def test_dry_run_prints_the_plan_and_changes_nothing(snap, damaged):
    result = snap("restore", "latest", "--dry-run")

    lines = result.out.splitlines()
    assert {"M  edited", "A  removed", "D  stray"} <= set(lines)
    assert lines[-1].startswith("Would restore ")
    assert (contents(damaged), result.err) == (DAMAGED, "")
    assert snap("restore", "latest", "--dry-run", "--json").json["dry_run"] is True


def test_paths_restrict_the_restore(snap, damaged):
    snap("restore", "latest", "edited", "removed")

    assert contents(damaged) == WHOLE | {"stray": "stray\n"}


def test_to_writes_elsewhere(snap, damaged, tmp_path):
    result = snap("restore", "latest", "--to", "../copy")

    assert (contents(tmp_path / "copy"), contents(damaged)) == (WHOLE, DAMAGED)
    assert (result.code, result.err) == (0, "")


def test_to_is_relative_to_the_directory_of_c(run_snap, damaged, tmp_path):
    run_snap("-C", "root", "restore", "latest", "kept", "--to", "../copy", cwd=tmp_path)

    assert contents(tmp_path / "copy") == {"kept": "kept\n"}


@pytest.mark.needs("linux")
def test_to_a_place_where_nothing_can_be_made_names_the_directory(snap, damaged):
    result = snap("restore", "latest", "--to", "/proc/elsewhere", "--json")

    assert (result.code, result.json["path"]) == (1, "/proc")
    assert "Could not restore at '/proc': " in result.json["message"]


def test_to_a_directory_with_something_in_it_is_refused(snap, damaged, tmp_path):
    (tmp_path / "copy").mkdir()
    (tmp_path / "copy" / "a").touch()

    result = snap("restore", "latest", "--to", "../copy", "--json")

    assert (result.code, result.json["code"]) == (3, "target-not-empty")


def test_restored_files_have_their_old_time_or_the_current_one(snap, damaged):
    snap("restore", "latest")
    recorded = (damaged / "edited").stat().st_mtime_ns
    snap("undo")
    begin = time.time() - 5
    snap("restore", "latest~1", "--touch")

    assert recorded == 10**18
    assert (damaged / "edited").stat().st_mtime >= begin


def test_excluded_paths_are_left_alone_and_said(snap, root):
    (root / "a").write_text("a")
    (root / "b.log").write_text("b")
    before = snap("create").id
    (root / "a").write_text("changed")
    (root / "b.log").write_text("changed")
    (root / ".snapignore").write_text("*.log")

    result = snap("restore", "latest")

    assert contents(root) == {"a": "a", "b.log": "changed"}
    assert "1 path left alone:\n  b.log (excluded)\n" in result.err
    assert result.code == 0
    (root / ".snapignore").write_text("*.log")
    assert snap("restore", before, "b.log").code == 4
    assert contents(root)["b.log"] == "changed"


def test_paths_that_could_not_be_read_are_left_alone(ordinary_snap, root):
    (root / "a").write_text("a")
    (root / "secret").write_text("s")
    (root / "secret").chmod(0)
    ordinary_snap("create")
    (root / "a").write_text("changed")

    result = ordinary_snap("restore", "latest")

    assert (result.code, contents(root)) == (0, {"a": "a", "secret": "s"})


def test_dangerous_root_is_restored_with_force(run_snap, tmp_path):
    home = tmp_path / "home"
    (home / "a").write_text("a")
    run_snap("-C", home, "create", "--force", cwd=tmp_path)
    (home / "a").write_text("changed")

    refused = run_snap("-C", home, "restore", "latest", "--json", cwd=tmp_path)
    forced = run_snap("-C", home, "restore", "latest", "--force", cwd=tmp_path)

    assert (refused.code, refused.json["code"], forced.code) == (3, "dangerous-root", 0)
    assert (home / "a").read_text() == "a"


def test_mode_alone_is_restored(snap, root):
    (root / "a").write_text("a")
    (root / "a").chmod(0o640)
    snap("create")
    (root / "a").chmod(0o600)

    result = snap("restore", "latest")

    assert (result.code, result.err) == (0, "To undo this: snap undo\n")
    assert (root / "a").stat().st_mode & 0o777 == 0o640


def test_restore_in_a_session(snap, root):
    (root / "a").write_text("one")
    snap("create", "--session", "s", "--step", "1")
    (root / "a").write_text("two")

    assert snap("restore", "step:1", "--session", "s").code == 0
    assert (root / "a").read_text() == "one"


def test_undo_and_redo_go_back_and_forth(snap, damaged):
    snap("restore", "latest")

    undone = snap("undo")
    after_undo = contents(damaged)
    redone = snap("redo")

    assert (after_undo, contents(damaged)) == (DAMAGED, WHOLE)
    assert (undone.code, undone.err) == (0, "To undo this: snap redo\n")
    assert (redone.code, redone.err) == (0, "To undo this: snap undo\n")


def test_undo_and_redo_as_json(snap, damaged):
    snap("restore", "latest")

    for command in ("undo", "redo"):
        document = snap(command, "--json").json
        assert document["schema"] == f"treesnap.{command}/1"
        assert set(document) >= RESTORE_FIELDS


@pytest.mark.parametrize("command", ["undo", "redo"])
def test_nothing_to_take_back_is_not_found(snap, root, command):
    (root / "a").touch()
    snap("create")

    result = snap(command, "--json")

    assert (result.code, result.json["code"]) == (5, "nothing-to-undo")


def test_path_that_neither_state_holds_is_not_found(snap, root):
    (root / "a").write_text("a")
    snap("create")

    outcomes = [
        snap("restore", "latest", "nosuch").code,
        snap("restore", "latest", "nosuch", "--dry-run").code,
        snap("restore", "latest", "nosuch", "--to", "../elsewhere").code,
    ]

    assert outcomes == [5, 5, 5]


def test_restored_times_of_directories_are_said(snap, root):
    (root / "sub").mkdir()
    snap("create")
    os.utime(root / "sub", ns=(1, 1))

    result = snap("restore", "latest")

    assert "nothing but times of directories differed" in result.out
    assert "snap undo" in result.err


def test_empty_path_is_a_usage_error(snap, root):
    (root / "a").write_text("a")
    snap("create")

    assert snap("restore", "latest", "").code == 2


def test_path_through_a_file_is_refused(snap, root):
    (root / "s").mkdir()
    (root / "s" / "a").write_text("a")
    snap("create")
    (root / "s" / "a").unlink()
    (root / "s").rmdir()
    (root / "s").write_text("a file now")

    result = snap("restore", "latest", "s/a")

    assert (result.code, "is no longer a directory" in result.err) == (3, True)
