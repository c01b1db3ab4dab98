"""Restores with a base: what others changed since then is kept, or overwritten, and listed.

The expected trees come from a naive model: dictionaries from paths to what is there.
"""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from sampling import sized
from state import tree_state
from treesnap.core.handle import Handle
from treesnap.core.model.entries import ChangeKind
from treesnap.core.model.errors import InvalidArgument, NotFound
from treesnap.core.model.results import RestoreResult
from treesnap.core.ops.context import context_at
from treesnap.core.ops.restore.plan import RestoreRequest
from treesnap.core.ops.undo import restore
from treesnap.testing.doubles import UnsyncedFileSystem

pytestmark = pytest.mark.sampled(10)

PATHS = ["a", "b", "a/a", "a/b", "b/a", "b/b", "a/a/a", "a/a/b", "b/a/a"]
PATHS += [".git", ".git/index", ".git/a", ".git/a/a", "b/.git", "b/.git/a", "b/.git/index"]
"""All paths that may exist; directories before what they hold."""


class Item(NamedTuple):
    """What is at a path of the model."""

    kind: str
    content: str = ""
    mode: int = 0o755
    mtime_ns: int = 0
    group: int = 0
    """Files of one group are one file; 0 is no group."""

    @property
    def work(self) -> tuple[str, str, int]:
        """What others may have made of it; the time at which they did does not count."""
        return self.kind, self.content, self.mode


Tree = dict[str, Item]
DIRECTORY = Item("directory")


def parents(path: str) -> list[str]:
    names = path.split("/")
    return ["/".join(names[:count]) for count in range(1, len(names))]


def is_directory(item: Item | None) -> bool:
    return item is not None and item.kind == "directory"


@st.composite
def trees(draw: st.DrawFn, near: Tree | None = None) -> Tree:
    """A tree, most of which is as in another one."""
    contents = {1: draw(st.sampled_from("xy")), 2: draw(st.sampled_from("xz"))}
    found: Tree = {}
    for path in PATHS:
        if not all(is_directory(found.get(parent)) for parent in parents(path)):
            continue
        if near is not None and draw(st.integers(0, 2)):
            item = near.get(path)
        else:
            kinds = ["", "file", "file", "link", "group"]
            if any(other.startswith(f"{path}/") for other in PATHS):
                kinds += ["directory"] * 6
            kind = draw(st.sampled_from(kinds))
            mode = draw(st.sampled_from([0o700, 0o755]))
            item = Item(kind, mode=mode) if kind == "directory" else None
            if kind == "file":
                item = Item(kind, draw(st.sampled_from("xyz")), mode, draw(st.integers(1, 2)))
            elif kind == "link":
                item = Item(kind, draw(st.sampled_from("xy")), 0o777, 3)
            elif kind == "group":
                item = Item("file", group=draw(st.integers(1, 2)))
        if item is not None and item.group:
            item = Item("file", contents[item.group], 0o700, item.group, item.group)
        if item is not None:
            found[path] = item
    return found


@st.composite
def sides(draw: st.DrawFn) -> tuple[Tree, list[Tree], Tree]:
    """The target, one base or two, and the live tree."""
    target = draw(trees())
    base = draw(trees(target))
    bases = [base, *draw(st.lists(trees(base), max_size=1))]
    return target, bases, draw(trees(bases[-1]))


def build(root: Path, tree: Tree) -> None:
    """Makes a root hold a tree and nothing else."""
    for item in root.iterdir():
        if item.is_dir() and not item.is_symlink():
            shutil.rmtree(item)
        else:
            item.unlink()
    first: dict[int, Path] = {}
    for path, item in tree.items():
        place = root / path
        if item.kind == "directory":
            place.mkdir()
        elif item.kind == "link":
            place.symlink_to(item.content)
        elif item.group in first:
            os.link(first[item.group], place)
            continue
        else:
            place.write_text(item.content)
            if item.group:
                first[item.group] = place
        if item.kind != "link":
            place.chmod(item.mode)
        os.utime(place, ns=(item.mtime_ns, item.mtime_ns), follow_symlinks=False)


def read(root: Path) -> Tree:
    """Returns what a root holds, without groups."""
    found: Tree = {}
    for place in sorted(root.rglob("*")):
        status = place.lstat()
        mode = stat.S_IMODE(status.st_mode)
        if place.is_symlink():
            item = Item("link", os.readlink(place), mode)
        elif place.is_dir():
            item = Item("directory", mode=mode)
        else:
            item = Item("file", place.read_text(), mode, status.st_mtime_ns)
        found[str(place.relative_to(root))] = item
    return found


def differ(one: Item | None, other: Item | None) -> bool:
    return (one and one.work) != (other and other.work)


def conflicts_of(
    target: Tree, bases: list[Tree], live: Tree
) -> tuple[set[str], set[str], set[str]]:
    """Returns what others changed and the target has in another way, and what to keep for that.

    A repository is kept whole, unless nothing of it changed but the index. That one is no conflict;
    it is kept where the target has it as a base has it. Last come the paths of all repositories
    that others changed: also as links they stay as they are.
    """
    paths = {*target, *live, *(path for base in bases for path in base)}
    theirs = {
        path for path in paths if all(differ(base.get(path), live.get(path)) for base in bases)
    }
    differing = {path for path in paths if differ(target.get(path), live.get(path))}
    repositories: dict[str, set[str]] = {}
    indexes: set[str] = set()
    for path in live:
        if path.endswith(".git") and is_directory(live[path]):
            inside = {other for other in paths if f"{other}/".startswith(f"{path}/")}
            index = f"{path}/index"
            if theirs & inside == {index}:
                theirs.remove(index)
                if index in target and any(
                    not differ(base.get(index), target[index]) for base in bases
                ):
                    indexes.add(index)
            elif theirs & inside:
                repositories[path] = inside
    kept = differing & theirs.union(*repositories.values()) | indexes
    theirs.difference_update(*repositories.values())
    whole = {top for top, inside in repositories.items() if inside & differing}
    return differing & theirs | whole, kept, set().union(*repositories.values())


def expected(target: Tree, live: Tree, kept: set[str]) -> Tree:
    """Returns the target, but for some paths which stay as they are, and what that implies."""
    result = {
        path: live[path] if path in kept else item
        for path, item in target.items()
        if path not in kept or path in live
    }
    for path in kept & live.keys():
        result[path] = live[path]
        for parent in parents(path):
            if not is_directory(result.get(parent)):
                result[parent] = live[parent]
    return {
        path: item
        for path, item in result.items()
        if all(is_directory(result.get(parent)) for parent in parents(path))
    }


def is_same_file(root: Path, one: str, other: str) -> bool:
    return os.path.samestat((root / one).lstat(), (root / other).lstat())


class Place:
    """A root that holds a tree, with snapshots "target", "base" and, if given, "base-2"."""

    def __init__(self, directory: Path, target: Tree, bases: list[Tree], live: Tree) -> None:
        self.root = directory / "root"
        self.root.mkdir()
        context = context_at(
            self.root, str(directory / "store"), fs=UnsyncedFileSystem(), wait_s=0.0
        )
        self.handle = Handle(context)
        for name, tree in zip(["target", "base", "base-2"], [target, *bases], strict=False):
            build(self.root, tree)
            self.handle.create(name=name)
        build(self.root, live)

    def restore(self, count: int, **options: Any) -> RestoreResult:
        """Restores the target with so many bases."""
        bases = ("base", "base-2")[:count]
        request = RestoreRequest(ref="target", bases=bases)._replace(**options)
        return restore(self.handle.context, request)

    def inodes(self, paths: set[str]) -> dict[str, int]:
        return {path: (self.root / path).lstat().st_ino for path in paths}


LINKED_INTO_A_REPOSITORY = (
    {
        "b": DIRECTORY,
        ".git": Item("file", "x", 0o700, 1, group=1),
        "b/.git": DIRECTORY,
        "b/.git/index": Item("file", "x", 0o700, 1, group=1),
    },
    [{"b": DIRECTORY}],
    {
        "b": DIRECTORY,
        "b/.git": DIRECTORY,
        "b/.git/index": Item("file", "x", 0o700, 1, group=1),
    },
)


@settings(max_examples=sized(15, 250), deadline=None)
@example(drawn=LINKED_INTO_A_REPOSITORY, overwrites=False)
@given(drawn=sides(), overwrites=st.booleans())
def test_the_tree_is_what_a_naive_model_expects(drawn, overwrites):
    target, bases, live = drawn
    conflicts, kept, repositories = conflicts_of(target, bases, live)
    kept = set() if overwrites else kept
    unlinked = set() if overwrites else kept | repositories
    with tempfile.TemporaryDirectory() as directory:
        place = Place(Path(directory), *drawn)
        root, handle = place.root, place.handle
        go_back = partial(
            place.restore, len(bases), conflicts="overwrite" if overwrites else "keep"
        )
        planned = go_back(dry_run=True)
        before = tree_state(root)
        files = {path for path in kept if path in live and not is_directory(live[path])}
        inodes = place.inodes(files)

        result = go_back()

        wanted = expected(target, live, kept)
        found = read(root)
        assert {path: item.work for path, item in found.items()} == {
            path: item.work for path, item in wanted.items()
        }
        for path, item in wanted.items():
            if item.kind == "file":
                assert found[path].mtime_ns == item.mtime_ns, path
        assert {os.fsdecode(change.path) for change in result.conflicts} == conflicts
        assert result == planned._replace(dry_run=False, safety_id=result.safety_id)
        assert result.created == len(wanted.keys() - live.keys())
        assert result.deleted == len(live.keys() - wanted.keys())
        assert result.unchanged == sum(
            live.get(path) is not None and live[path]._replace(group=0) == item._replace(group=0)
            for path, item in target.items()
        )
        assert place.inodes(files) == inodes
        restored = [path for path in wanted if path not in unlinked and wanted[path].group]
        for one in restored:
            for other in restored:
                is_linked = wanted[one].group == wanted[other].group
                assert is_same_file(root, one, other) == is_linked
        after = tree_state(root)
        if result.safety_id is not None:
            handle.undo()
            assert tree_state(root) == before
            handle.redo()
            assert tree_state(root) == after
        again = go_back()
        if not overwrites:
            assert {os.fsdecode(change.path) for change in again.conflicts} >= conflicts
            assert again.changes == ()


@pytest.fixture
def place(tmp_path: Path) -> Place:
    """The target has old files, the base new ones, and the live tree nothing else so far."""
    old = {name: Item("file", f"old {name}", 0o600, 1) for name in "abc"}
    new = {name: Item("file", f"new {name}", 0o600, 2) for name in "abc"}
    return Place(tmp_path, old, [new], new)


def test_each_conflict_says_what_others_did(place):
    (place.root / "a").write_text("edited")
    (place.root / "b").unlink()
    (place.root / "added").mkdir()
    (place.root / "added/file").write_text("mine")

    result = place.handle.restore("target", base="base")

    assert [(change.path, change.change) for change in result.conflicts] == [
        (b"a", ChangeKind.MODIFIED),
        (b"added", ChangeKind.ADDED),
        (b"added/file", ChangeKind.ADDED),
        (b"b", ChangeKind.REMOVED),
    ]
    assert result.base_ids == (place.handle.resolve("base").id,)
    assert (place.root / "a").read_text() == "edited"
    assert (place.root / "c").read_text() == "old c"
    assert not (place.root / "b").exists()
    assert (place.root / "added/file").exists()


def test_a_conflict_that_is_overwritten_comes_back_with_undo(place):
    (place.root / "a").write_text("edited")

    result = place.handle.restore("target", base="base", conflicts="overwrite")

    assert [change.path for change in result.conflicts] == [b"a"]
    assert (place.root / "a").read_text() == "old a"
    place.handle.undo()
    assert (place.root / "a").read_text() == "edited"


def test_what_others_made_as_it_was_before_is_no_conflict(place):
    (place.root / "a").write_text("old a")

    assert place.handle.restore("target", base="base").conflicts == ()


def test_a_root_that_others_removed_gets_its_mode_back(place):
    place.root.chmod(0o750)
    place.handle.create(name="before")
    (place.root / "a").write_text("new again")
    place.handle.create(name="after")
    shutil.rmtree(place.root)
    planned = place.handle.restore("before", base="after", dry_run=True)

    result = place.handle.restore("before", base="after")

    assert [change.path for change in result.conflicts] == [b"a", b"b", b"c"]
    assert result.conflicts == planned.conflicts
    assert stat.S_IMODE(place.root.stat().st_mode) == 0o750


def test_where_nothing_but_conflicts_differ_nothing_is_done(place):
    for name in "abc":
        (place.root / name).write_text("edited")
    time_ns = place.handle.resolve("target").record.root.mtime_ns
    os.utime(place.root, ns=(time_ns, time_ns))

    result = place.handle.restore("target", base="base")

    assert (result.safety_id, result.unchanged, len(result.conflicts)) == (None, 0, 3)


def test_what_the_base_does_not_hold_is_kept(place):
    (place.root / ".snapignore").write_text("c\n")
    place.handle.create(name="without c")
    (place.root / ".snapignore").unlink()

    result = place.handle.restore("target", base="without c")

    assert b"c" in [change.path for change in result.conflicts]
    assert (place.root / "c").read_text() == "new c"
    assert (place.root / "a").read_text() == "old a"


class TestOfSomePaths:
    @pytest.fixture
    def place(self, tmp_path: Path) -> Place:
        old = {"a": Item("directory"), "a/b": Item("file", "old"), "b": Item("file", "old")}
        new = {"a": Item("directory"), "a/b": Item("file", "new"), "b": Item("file", "new")}
        return Place(tmp_path, old, [new], new)

    def test_others_are_neither_restored_nor_conflicts(self, place):
        (place.root / "b").write_text("edited")
        (place.root / "a").chmod(0o700)

        result = place.handle.restore("target", ["a/b"], base="base")

        assert (result.conflicts, result.restored) == ((), 1)
        assert (place.root / "a/b").read_text() == "old"

    def test_a_directory_above_them_that_became_a_file_stays_one(self, place):
        shutil.rmtree(place.root / "a")
        (place.root / "a").write_text("edited")

        result = place.handle.restore("target", ["a/b"], base="base")

        assert [change.path for change in result.conflicts] == [b"a", b"a/b"]
        assert (place.root / "a").read_text() == "edited"

    def test_a_base_of_other_paths_is_refused(self, place):
        place.handle.create(["b"], name="partial")

        with pytest.raises(InvalidArgument, match="not taken of all paths"):
            place.handle.restore("target", ["a/b"], base="partial")
        with pytest.raises(InvalidArgument, match="not taken of all paths"):
            place.handle.restore("target", base="partial")
        assert place.handle.restore("target", ["b"], base="partial").restored == 1


def test_a_kept_name_of_a_replaced_file_is_listed(tmp_path):
    """Another process linked a new name to it, which the snapshot does not have."""
    old, new = Item("file", "old", 0o600, 1), Item("file", "new", 0o600, 2)
    place = Place(tmp_path, {"a": old}, [{"a": new}], {"a": new})
    os.link(place.root / "a", place.root / "linked")

    result = place.handle.restore("target", base="base")

    assert result.links_broken == (b"a",)
    assert [change.path for change in result.conflicts] == [b"linked"]
    assert (place.root / "a").read_text() == "old"
    assert (place.root / "linked").read_text() == "new"


def test_metadata_is_not_changed_through_a_name_that_is_kept(tmp_path):
    """The target differs in nothing but the mode, and both names are one file."""
    old, new = Item("file", "same", 0o600, 1), Item("file", "same", 0o755, 1)
    place = Place(tmp_path, {"a": old}, [{"a": new}], {"a": new})
    os.link(place.root / "a", place.root / "linked")

    place.handle.restore("target", base="base")

    assert stat.S_IMODE((place.root / "a").stat().st_mode) == 0o600
    assert stat.S_IMODE((place.root / "linked").stat().st_mode) == 0o755


def test_a_linked_file_is_put_once_where_another_name_has_no_place(tmp_path):
    """Others made a file of the directory in which the target has the other name."""
    linked = Item("file", "x", 0o600, 1, group=1)
    base = {"a": DIRECTORY, "b": DIRECTORY, "b/a": linked._replace(group=0)}
    target = {**base, "a/a": linked, "b/a": linked}
    place = Place(tmp_path, target, [base], {**base, "a": Item("file", "theirs")})
    place.handle.restore("target", base="base")
    inodes = place.inodes({"b/a"})

    again = place.handle.restore("target", base="base")

    assert again.safety_id is None
    assert place.inodes({"b/a"}) == inodes
    assert [change.path for change in again.conflicts] == [b"a"]


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"base": "base", "conflicts": "merge"}, InvalidArgument, "'keep' or 'overwrite'"),
        ({"base": "base", "to": "elsewhere"}, InvalidArgument, "cannot be combined with to"),
        ({"base": "unknown"}, NotFound, "no snapshot 'unknown'"),
    ],
)
def test_what_cannot_be_is_refused(place, options, error, words):
    before = tree_state(place.root)

    with pytest.raises(error, match=words):
        place.handle.restore("target", **options)

    assert tree_state(place.root) == before


class TestOfARepository:
    """Another process may be in the middle of it, and each of its files refers to others."""

    @pytest.fixture
    def place(self, tmp_path: Path) -> Place:
        """The program made a commit."""
        git, file = Item("directory"), partial(Item, "file", mode=0o644, mtime_ns=1)
        old = {".git": git, ".git/HEAD": file("1"), ".git/index": file("1"), "code": file("old")}
        new = {**old, ".git/HEAD": file("2"), ".git/object": file("2"), "code": file("new")}
        return Place(tmp_path, old, [new], new)

    def test_it_is_kept_whole_where_others_changed_any_of_it(self, place):
        (place.root / ".git/log").write_text("3")

        result = place.handle.restore("target", base="base")

        assert [(change.path, change.change) for change in result.conflicts] == [
            (b".git", ChangeKind.MODIFIED)
        ]
        assert (place.root / "code").read_text() == "old"
        names = {path.name: path.read_text() for path in (place.root / ".git").iterdir()}
        assert names == {"HEAD": "2", "index": "1", "object": "2", "log": "3"}

    def test_it_is_overwritten_whole(self, place):
        (place.root / ".git/log").write_text("3")

        result = place.handle.restore("target", base="base", conflicts="overwrite")

        assert [change.path for change in result.conflicts] == [b".git"]
        assert sorted(os.listdir(place.root / ".git")) == ["HEAD", "index"]

    @pytest.mark.parametrize(("conflicts", "index"), [("keep", "staged"), ("overwrite", "1")])
    def test_an_index_that_the_program_did_not_change_is_no_conflict(self, place, conflicts, index):
        """Others may have staged something, or only looked at the repository."""
        (place.root / ".git/index").write_text("staged")

        result = place.handle.restore("target", base="base", conflicts=conflicts)

        assert result.conflicts == ()
        assert (place.root / ".git/HEAD").read_text() == "1"
        assert (place.root / ".git/index").read_text() == index

    def test_an_index_that_the_program_changed_is_restored(self, place):
        (place.root / ".git/index").write_text("2")
        place.handle.create(name="after")
        (place.root / ".git/index").write_text("looked at")

        assert place.handle.restore("target", base="after").conflicts == ()
        assert (place.root / ".git/index").read_text() == "1"

    def test_an_index_that_was_removed_stays_so(self, place):
        (place.root / ".git/index").unlink()

        assert place.handle.restore("target", base="base").conflicts == ()
        assert sorted(os.listdir(place.root / ".git")) == ["HEAD"]

    def test_it_is_kept_where_all_that_others_did_was_to_delete(self, tmp_path):
        """The target does not even have the directory that holds it."""
        git = {"a": Item("directory"), "a/.git": Item("directory"), "a/.git/HEAD": Item("file")}
        branch = {"a/.git/branch": Item("file")}
        place = Place(tmp_path, {}, [{**git, **branch, "a/b": Item("file")}], git)

        result = place.handle.restore("target", base="base")

        assert [change.path for change in result.conflicts] == [b"a/.git"]
        assert read(place.root).keys() == git.keys()
