"""Every form of a restore: of some paths, elsewhere, of a root that is gone or is no root."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from random import Random

import pytest

import trees
import treesnap
from mutations import mutate
from oracle import difference, record, without
from treesnap.core.handle import Handle

LONG_AGO_NS = 1_000_000_000 * 10**9


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A small tree with hard links, in a directory of its own."""
    trees.build_small(tmp_path / "root", 0)
    return tmp_path / "root"


@pytest.fixture
def handle(tmp_path: Path, root: Path) -> Handle:
    """A handle on the tree."""
    return treesnap.open(root, tmp_path / "store")


class TestRoot:
    def test_a_root_that_was_removed_comes_back(self, handle, root):
        before = record(root)
        handle.create()
        trees.remove_tree(os.fsencode(root))

        result = handle.restore("latest")

        assert difference(before, record(root)) == []
        assert result.created == len(before) - 1

    def test_a_root_comes_back_with_the_directories_above_it(self, tmp_path):
        root = tmp_path / "above" / "it" / "root"
        root.parent.mkdir(parents=True)
        trees.build(root, 3, still=False)
        before = record(root)
        handle = treesnap.open(root, tmp_path / "store")
        identity = handle.create().id
        trees.remove_tree(os.fsencode(tmp_path / "above"))

        handle.restore(identity)

        assert difference(before, record(root)) == []

    def test_undo_of_a_root_that_came_back_removes_it_again(self, handle, root):
        before = record(root)
        identity = handle.create().id
        shutil.rmtree(root)
        handle.restore(identity)

        handle.undo()
        assert not root.exists()
        handle.redo()
        assert difference(before, record(root)) == []

    def test_a_dry_run_of_a_removed_root_makes_nothing(self, handle, root):
        handle.create()
        shutil.rmtree(root)

        result = handle.restore("latest", dry_run=True)

        assert result.dry_run
        assert result.created == 8
        assert not root.exists()

    @pytest.mark.parametrize("kind", ["file", "link", "dangling link"])
    def test_a_root_that_became_something_else_is_refused(self, handle, root, tmp_path, kind):
        handle.create()
        root.rename(tmp_path / "aside")
        if kind == "file":
            root.write_text("in the way")
        else:
            root.symlink_to(tmp_path / ("aside" if kind == "link" else "nowhere"))
        before = record(tmp_path / "aside")

        with pytest.raises(treesnap.Refused, match=r"(not|no longer) a directory"):
            handle.restore("latest")
        with pytest.raises(treesnap.TreesnapError):
            handle.create()

        assert not root.is_dir() or root.is_symlink()
        assert difference(before, record(tmp_path / "aside")) == []


class TestPaths:
    def test_only_the_given_paths_change(self, handle, root):
        before = record(root)
        identity = handle.create().id
        (root / "a/other").unlink()
        (root / "a/b/new").write_text("new")
        (root / "link").unlink()
        damaged = record(root)

        handle.restore(identity, ["a/b", "link"])

        now = record(root)
        assert "a/b/new" not in {os.fsdecode(path) for path in now}
        assert now[b"link"] == before[b"link"]
        assert now[b"a/b"] == before[b"a/b"]
        assert b"a/other" not in now
        handle.undo()
        assert record(root)[b"a/b/new"] == damaged[b"a/b/new"]

    def test_a_path_that_was_absent_is_removed_again(self, handle, root):
        result = handle.create(
            ["new", "a/new", "file"], options=treesnap.CreateOptions(allow_absent=True)
        )
        (root / "new").mkdir()
        (root / "new/inside").write_text("made by the step")
        (root / "a/new").write_text("made by the step")
        (root / "file").write_text("edited")
        (root / "a/mine").write_text("not of the step")

        restored = handle.restore(result.id)

        assert not (root / "new").exists()
        assert not (root / "a/new").exists()
        assert (root / "file").read_text() == "one of three names"
        assert (root / "a/mine").exists()
        assert restored.deleted == 3
        handle.undo()
        assert (root / "new/inside").read_text() == "made by the step"

    def test_a_snapshot_of_paths_knows_nothing_of_others(self, handle, root):
        identity = handle.create(["a"]).id
        (root / "file").unlink()

        with pytest.raises(treesnap.NotFound):
            handle.restore(identity, ["file"])

        assert handle.restore(identity).safety_id is None

    def test_a_directory_above_a_path_comes_back_with_it(self, handle, root):
        before = record(root)
        identity = handle.create().id
        shutil.rmtree(root / "a")

        handle.restore(identity, ["a/b/file"])

        assert set(record(root)) == set(without(before, b"a/file", b"a/other"))

    @pytest.mark.parametrize("act", ["chmod", "edit", "touch"])
    def test_other_names_of_a_file_stay_as_they_are(self, handle, root, tmp_path, act):
        os.link(root / "a/other", tmp_path / "outside")
        before = record(root)
        identity = handle.create().id
        if act == "chmod":
            (root / "a/other").chmod(0o600)
        elif act == "touch":
            os.utime(root / "a/other", ns=(1, 1))
        else:
            (root / "a/other").write_text("edited")
        outside = (tmp_path / "outside").stat()

        handle.restore(identity, ["a/other"])
        handle.restore(identity)

        assert difference(before, record(root)) == []
        now = (tmp_path / "outside").stat()
        assert (now.st_mode, now.st_mtime_ns) == (outside.st_mode, outside.st_mtime_ns)
        assert ((tmp_path / "outside").read_text() == "edited") == (act == "edit")

    def test_a_path_through_a_link_is_refused(self, handle, root):
        with pytest.raises(treesnap.InvalidArgument, match="symbolic link"):
            handle.create(["link/file"])

    def test_a_path_below_what_became_a_file_or_link_is_not_written_through(
        self, handle, root, tmp_path
    ):
        identity = handle.create().id
        shutil.rmtree(root / "a")
        (tmp_path / "outside").mkdir()
        for place in ("file", "link"):
            if place == "file":
                (root / "a").write_text("in the way")
            else:
                (root / "a").unlink()
                (root / "a").symlink_to(tmp_path / "outside")
            before = record(root)

            with pytest.raises(treesnap.TreesnapError):
                handle.restore(identity, ["a/b/file"])

            assert difference(before, record(root)) == []
            assert os.listdir(tmp_path / "outside") == []

    def test_paths_outside_of_the_root_are_refused(self, handle, root):
        handle.create()
        for path in ("..", "/etc", "a/../../b"):
            with pytest.raises(treesnap.InvalidArgument):
                handle.restore("latest", [path])

    def test_a_removed_directory_may_share_files_with_what_stays(self, handle, root):
        before = record(root)
        identity = handle.create().id
        (root / "new").mkdir()
        os.link(root / "file", root / "new/file")
        os.link(root / "a/other", root / "new/other")
        (root / "a/other").chmod(0o600)
        damaged = record(root)

        handle.restore(identity)
        assert difference(before, record(root)) == []
        handle.undo()
        assert difference(damaged, record(root)) == []


class TestElsewhere:
    def test_a_whole_tree_is_written_into_a_new_directory(self, tmp_path):
        root = tmp_path / "root"
        trees.build(root, 1)
        mutate(root, Random(1), 30)
        before = without(record(root), *trees.LEFT_OUT)
        handle = treesnap.open(root, tmp_path / "store")
        identity = handle.create().id

        (tmp_path / "empty").mkdir(mode=0o700)
        for target in (tmp_path / "new", tmp_path / "empty", tmp_path / "not/yet"):
            handle.restore(identity, to=target)
            assert difference(before, record(target)) == []
        assert [name for name in os.listdir(tmp_path) if name.startswith(".")] == []

    def test_a_dry_run_writes_nothing(self, handle, root, tmp_path):
        handle.create()

        handle.restore("latest", to=tmp_path / "new", dry_run=True)

        assert not (tmp_path / "new").exists()

    @pytest.mark.parametrize("kind", ["full", "file", "link"])
    def test_a_target_that_is_taken_is_refused(self, handle, root, tmp_path, kind):
        handle.create()
        target = tmp_path / "target"
        if kind == "file":
            target.write_text("mine")
        elif kind == "full":
            target.mkdir()
            (target / "mine").write_text("mine")
        else:
            (tmp_path / "empty").mkdir()
            target.symlink_to(tmp_path / "empty")
        before = record(tmp_path / "root")

        with pytest.raises(treesnap.Refused, match="not an empty directory"):
            handle.restore("latest", to=target)

        assert difference(before, record(root)) == []

    def test_some_paths_are_written_alone(self, handle, root, tmp_path):
        before = record(root)
        handle.create()

        handle.restore("latest", ["a/b", "link"], to=tmp_path / "new")

        assert {*record(tmp_path / "new")} == {b"", b"a", b"a/b", b"a/b/file", b"link"}
        assert record(tmp_path / "new")[b"link"] == before[b"link"]


def test_restored_files_may_have_the_current_time(handle, root):
    before = record(root)
    identity = handle.create().id
    (root / "file").unlink()
    (root / "a/other").chmod(0o600)
    started_ns = (root / "a/other").stat().st_ctime_ns

    handle.restore(identity, touch=True)

    now = record(root)
    assert now[b"file"].mtime_ns >= started_ns
    assert now[b"link"].mtime_ns == before[b"link"].mtime_ns
    assert now[b"file"].digest == before[b"file"].digest
    handle.restore(identity)
    assert difference(before, record(root)) == []


def test_files_that_did_not_change_keep_inode_and_times(handle, root):
    identity = handle.create().id
    kept = {name: (root / name).lstat() for name in ("a/other", "link", "a/b")}
    (root / "file").write_text("edited")
    (root / "new").write_text("new")

    handle.restore(identity)

    for name, before in kept.items():
        now = (root / name).lstat()
        assert (now.st_ino, now.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    assert (root / "a/other").lstat().st_ctime_ns == kept["a/other"].st_ctime_ns


def test_a_restore_of_what_is_already_there_does_nothing(handle, root):
    identity = handle.create().id
    before = root.stat().st_ctime_ns

    result = handle.restore(identity)

    assert (result.restored, result.created, result.deleted) == (0, 0, 0)
    assert result.safety_id is None
    assert result.unchanged == 8
    assert root.stat().st_ctime_ns == before


class TestCountedChanges:
    """Without a list of what changed, a result says the same in numbers."""

    @pytest.mark.parametrize("paths", [None, ["sub"], ["sub/kept", "absent-now"]])
    @pytest.mark.parametrize("elsewhere", [True, False])
    def test_the_numbers_are_those_of_the_list(self, tmp_path, root, handle, paths, elsewhere):
        (root / "sub").mkdir(exist_ok=True)
        for name in ("sub/kept", "link-a", "absent-now"):
            (root / name).write_text(name)
        (root / ".snapignore").write_text("ignored\n")
        (root / "sub" / "ignored").write_text("not captured")
        identity = handle.create().id
        (root / "sub" / "kept").write_text("changed")
        (root / "sub" / "new").write_text("new")
        (root / "absent-now").unlink()
        to = tmp_path / "target" if elsewhere else None

        listed = handle.restore(identity, paths, to=to, dry_run=True)
        counted = handle.restore(identity, paths, to=to, dry_run=True, list_changes=False)

        assert len(listed.changes) == listed.created + listed.restored + listed.deleted > 0
        assert counted == listed._replace(changes=())
