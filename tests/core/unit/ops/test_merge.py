"""Merges of two sides against a naive merge of paths and texts."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from frames import FRAMES, few_frames
from oracle import difference, record
from sampling import sized
from treesnap.core.handle import Handle
from treesnap.core.model.snapshots import Snapshot
from treesnap.core.ops.access import locked_root, opened
from treesnap.core.ops.context import context_at
from treesnap.core.ops.merge.trees import (
    MERGED,
    ConflictRule,
    MergeOutcome,
    MergeRequest,
    merge,
    merged_id,
)
from treesnap.testing.doubles import UnsyncedFileSystem

pytestmark = pytest.mark.sampled(10)

NAMES = ["a", "b", "d/a", "d/b", "d/e/a"]
Files = dict[str, str]
texts = st.sampled_from(["1", "2", "3"])
trees = st.dictionaries(st.sampled_from(NAMES), texts)


class World:
    """A root that is put into one state after the other, with a snapshot of each."""

    def __init__(self, base: Path) -> None:
        self.root = base / "root"
        (self.root / "d" / "e").mkdir(parents=True)
        context = context_at(self.root, str(base / "store"), fs=UnsyncedFileSystem())
        self.handle = Handle(context)

    def snapshot(self, files: Files) -> Snapshot:
        for name in NAMES:
            path = self.root / name
            if name in files:
                path.write_text(files[name])
            else:
                path.unlink(missing_ok=True)
        return self.handle.create().snapshot

    def merge(
        self,
        mine: Snapshot,
        theirs: Snapshot,
        *bases: Snapshot,
        overwrites: bool = False,
        takes_owners: bool = True,
    ) -> MergeOutcome:
        with (
            opened(self.handle.context, "merge", writing=True) as session,
            locked_root(session, "merge"),
        ):
            request = MergeRequest(
                label="merge",
                rule=ConflictRule.THEIRS if overwrites else ConflictRule.MINE,
                takes_owners=takes_owners,
                tags={MERGED: theirs.id},
                keeps_record=True,
            )
            return merge(session, mine, theirs, bases, request)

    def files_of(self, snapshot: Snapshot, to: Path) -> Files:
        self.handle.restore(snapshot.id, to=to)
        found = (path for path in to.rglob("*") if path.is_file())
        return {str(path.relative_to(to)): path.read_text() for path in found}


def naive(bases: list[Files], mine: Files, theirs: Files, *, overwrites: bool) -> tuple[Files, set]:
    merged, conflicts = {}, set()
    for name in NAMES:
        old, ours, new = [base.get(name) for base in bases], mine.get(name), theirs.get(name)
        if ours == new or new in old:
            text = ours
        elif ours in old:
            text = new
        else:
            conflicts.add(name.encode())
            text = new if overwrites else ours
        if text is not None:
            merged[name] = text
    return merged, conflicts


@settings(
    max_examples=sized(20, 60),
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    bases=st.lists(trees, min_size=1, max_size=2),
    mine=trees,
    theirs=trees,
    overwrites=st.booleans(),
)
def test_a_merge_is_that_of_every_path(tmp_path_factory, bases, mine, theirs, overwrites):
    place = tmp_path_factory.mktemp("merge")
    world = World(place)

    found = world.merge(
        world.snapshot(mine),
        world.snapshot(theirs),
        *map(world.snapshot, bases),
        overwrites=overwrites,
    )

    expected, conflicts = naive(bases, mine, theirs, overwrites=overwrites)
    assert world.files_of(found.snapshot, place / "merged") == expected
    assert set(found.conflicts) == conflicts
    assert found.snapshot.record.totals.files == len(expected)
    assert world.handle.verify(read_data=True).problems == ()


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_everything_comes_as_it_is_there(world, tmp_path):
    base = world.snapshot({"a": "1"})
    mine = world.snapshot({"a": "1", "b": "mine"})
    (world.root / "b").unlink()
    os.link(world.root / "a", world.root / "d" / "same")
    (world.root / "link").symlink_to("a")
    (world.root / "a").chmod(0o755)
    (world.root / "d" / "e").chmod(0o700)
    os.utime(world.root / "a", ns=(5, 5))
    theirs = world.handle.create().snapshot

    found = world.merge(mine, theirs, base)

    (world.root / "b").write_text("mine")
    world.handle.restore(found.snapshot.id, to=tmp_path / "merged")
    differences = difference(record(world.root), record(tmp_path / "merged"))
    assert [item for item in differences if "mtime_ns" not in item] == []
    assert os.stat(tmp_path / "merged" / "a").st_mtime_ns == 5
    assert os.path.samefile(tmp_path / "merged" / "a", tmp_path / "merged" / "d" / "same")
    assert os.stat(tmp_path / "merged" / "d" / "e").st_mode & 0o777 == 0o700


@pytest.mark.parametrize("overwrites", [False, True])
def test_the_metadata_of_a_directory_is_merged_like_a_file(world, overwrites):
    base = world.snapshot({"d/a": "1"})
    (world.root / "d").chmod(0o750)
    mine = world.snapshot({"d/a": "1"})
    (world.root / "d").chmod(0o700)
    world.root.chmod(0o711)
    theirs = world.snapshot({"d/a": "1"})

    found = world.merge(mine, theirs, base, overwrites=overwrites)

    assert found.conflicts == (b"d",)
    assert found.snapshot.record.root.mode == 0o711
    (directory,) = world.handle.ls(found.snapshot.id)
    assert directory.mode == (0o700 if overwrites else 0o750)


def test_a_repository_is_taken_whole_or_not_at_all(world):
    (world.root / ".git").mkdir()
    base = world.snapshot({"a": "1"})
    (world.root / ".git" / "mine").write_text("1")
    mine = world.snapshot({"a": "1", "b": "2"})
    (world.root / ".git" / "mine").unlink()
    (world.root / ".git" / "theirs").write_text("1")
    theirs = world.snapshot({"a": "2"})

    found = world.merge(mine, theirs, base)

    assert found.conflicts == (b".git",)
    assert world.handle.find(".git/mine", ref=found.snapshot.id) is not None


def test_a_merge_says_of_what_it_is_one(world):
    base, mine = world.snapshot({}), world.snapshot({"a": "1"})
    theirs = world.snapshot({"b": "1"})

    found = world.merge(mine, theirs, base)

    assert merged_id(found.snapshot) == theirs.id
    assert merged_id(theirs) is None
    assert found.snapshot.record.parent == mine.id


def test_deep_directories_are_merged(world, request):
    remove = ["rm", "-rf", world.root / "x"]  # Python's own removal recurses
    request.addfinalizer(lambda: subprocess.run(remove, check=True))
    path = world.root.joinpath(*["x"] * sized(FRAMES + 50, 1200))
    subprocess.run(["mkdir", "-p", path], check=True)
    base = world.snapshot({})
    (path / "mine").write_text("1")
    mine = world.snapshot({})
    (path / "mine").unlink()
    (path / "theirs").write_text("1")
    theirs = world.snapshot({})

    with few_frames():
        found = world.merge(mine, theirs, base)
        entries = world.handle.ls(found.snapshot.id, path)

    assert [entry.name for entry in entries] == [b"mine", b"theirs"]


def test_a_directory_that_was_only_touched_here_may_be_removed_there(world):
    base = world.snapshot({"d/e/a": "1", "a": "1"})
    os.utime(world.root / "d" / "e" / "a", ns=(5, 5))
    mine = world.snapshot({"d/e/a": "1", "a": "1"})
    shutil.rmtree(world.root / "d")
    theirs = world.handle.create().snapshot

    found = world.merge(mine, theirs, base)

    assert found.conflicts == ()
    assert [entry.name for entry in world.handle.ls(found.snapshot.id)] == [b"a"]


only_root = pytest.mark.skipif(os.geteuid() != 0, reason="only the superuser gives files away")


def give_away(root: Path, owner: int) -> None:
    for path in (root, *root.rglob("*")):
        os.chown(path, owner, owner)


@only_root
@pytest.mark.parametrize("takes_owners", [False, True])
def test_a_clone_that_has_another_owner_is_no_change(world, takes_owners):
    """A user who clones owns every file."""
    (world.root / ".git").mkdir()
    (world.root / ".git" / "config").write_text("1")
    give_away(world.root, 1000)
    base = world.snapshot({"a": "1", "b": "1", "d/a": "1", "d/e/a": "1"})
    give_away(world.root, 1001)
    mine = world.snapshot({"a": "1", "b": "mine", "d/a": "1", "d/e/a": "1"})
    (world.root / ".git" / "config").write_text("2")
    shutil.rmtree(world.root / "d")
    give_away(world.root, 1000)
    (world.root / "b").write_text("1")
    (world.root / "a").write_text("2")
    theirs = world.handle.create().snapshot

    found = world.merge(mine, theirs, base, takes_owners=takes_owners)

    assert found.conflicts == ()
    assert found.snapshot.record.root.uid == 1001
    entries = {entry.name: entry for entry in world.handle.ls(found.snapshot.id)}
    assert sorted(entries) == [b".git", b"a", b"b"]
    assert {(entry.uid, entry.gid) for entry in entries.values()} == {(1001, 1001)}
    texts = {
        name: b"".join(world.handle.cat(found.snapshot.id, name))
        for name in ("a", "b", ".git/config")
    }
    assert texts == {"a": b"2", "b": b"mine", ".git/config": b"2"}


@only_root
def test_an_owner_that_only_the_other_side_changed_is_taken_by_who_may_set_it(world):
    give_away(world.root, 1000)
    base = world.snapshot({"a": "1", "b": "1"})
    os.chown(world.root / "b", 1002, 1000)
    mine = world.snapshot({"a": "mine", "b": "1"})
    (world.root / "a").write_text("1")
    for name in ("a", "b", "d"):
        os.chown(world.root / name, 1001, 1001)
    theirs = world.handle.create().snapshot

    found = {takes: world.merge(mine, theirs, base, takes_owners=takes) for takes in (False, True)}

    assert {takes: result.conflicts for takes, result in found.items()} == {False: (), True: ()}
    owners = {
        takes: {entry.name: entry.uid for entry in world.handle.ls(result.snapshot.id)}
        for takes, result in found.items()
    }
    assert owners == {
        False: {b"a": 0, b"b": 1002, b"d": 1000},
        True: {b"a": 1001, b"b": 1002, b"d": 1001},
    }
    assert b"".join(world.handle.cat(found[True].snapshot.id, "a")) == b"mine"


@only_root
def test_files_that_became_one_there_stay_two_where_one_is_in_a_conflict(world):
    """The owner is taken of both, so both names come from there, but not the content of one."""
    give_away(world.root, 1000)
    base = world.snapshot({"a": "1", "b": "1"})
    mine = world.snapshot({"a": "mine", "b": "1"})
    (world.root / "b").unlink()
    os.link(world.root / "a", world.root / "b")
    (world.root / "a").write_text("2")
    give_away(world.root, 1001)
    theirs = world.handle.create().snapshot
    assert theirs.record.links is not None

    found = world.merge(mine, theirs, base)
    world.handle.restore(found.snapshot.id)

    assert found.conflicts == (b"a",)
    files = {name: (world.root / name).read_text() for name in ("a", "b")}
    assert files == {"a": "mine", "b": "2"}
    assert found.snapshot.record.links is None


def test_texts_that_both_changed_in_other_lines_are_merged(world, tmp_path):
    base = world.snapshot({"a": "1\n2\n3\n"})
    mine = world.snapshot({"a": "mine\n2\n3\n"})
    theirs = world.snapshot({"a": "1\n2\ntheirs\n"})

    found = world.merge(mine, theirs, base)

    assert found.conflicts == ()
    assert world.files_of(found.snapshot, tmp_path / "merged") == {"a": "mine\n2\ntheirs\n"}


@pytest.mark.needs("attributes")
def test_content_mode_and_attributes_are_merged_each_by_itself(world):
    (world.root / "a").write_text("1")
    os.setxattr(world.root / "a", "user.old", b"1")
    base = world.handle.create().snapshot
    (world.root / "a").write_text("2")
    os.setxattr(world.root / "a", "user.mine", b"1")
    mine = world.handle.create().snapshot
    (world.root / "a").write_text("1")
    os.removexattr(world.root / "a", "user.mine")
    os.removexattr(world.root / "a", "user.old")
    os.setxattr(world.root / "a", "user.theirs", b"1")
    (world.root / "a").chmod(0o750)
    theirs = world.handle.create().snapshot

    found = world.merge(mine, theirs, base)
    world.handle.restore(found.snapshot.id)

    assert found.conflicts == ()
    assert (world.root / "a").read_text() == "2"
    assert os.stat(world.root / "a").st_mode & 0o777 == 0o750
    assert sorted(os.listxattr(world.root / "a")) == ["user.mine", "user.theirs"]


def test_what_one_side_did_in_a_directory_follows_its_move_by_the_other(world, tmp_path):
    text = "a long text\n"
    base = world.snapshot({"d/a": text, "d/b": text + "b\n"})
    (world.root / "d").rename(world.root / "moved")
    mine = world.handle.create().snapshot
    shutil.rmtree(world.root / "moved")
    (world.root / "d" / "e").mkdir(parents=True)
    theirs = world.snapshot({"d/a": text + "theirs\n", "d/b": text + "b\n"})

    for one, other in ((mine, theirs), (theirs, mine)):
        found = world.merge(one, other, base)

        assert found.conflicts == ()
        assert world.files_of(found.snapshot, tmp_path / one.id) == {
            "moved/a": text + "theirs\n",
            "moved/b": text + "b\n",
        }


@pytest.mark.parametrize("overwrites", [False, True])
def test_a_directory_that_both_moved_elsewhere_is_a_conflict(world, tmp_path, overwrites):
    base = world.snapshot({"d/a": "a text\n"})
    (world.root / "d").rename(world.root / "mine")
    mine = world.handle.create().snapshot
    (world.root / "mine").rename(world.root / "theirs")
    theirs = world.handle.create().snapshot

    found = world.merge(mine, theirs, base, overwrites=overwrites)

    assert found.conflicts == (b"d",)
    name = "theirs" if overwrites else "mine"
    assert world.files_of(found.snapshot, tmp_path / "merged") == {f"{name}/a": "a text\n"}
