"""Any order of work in an origin and two forks, against a naive three-way merge.

The oracle shares no code with the product. It knows a tree as properties by path, merges each
property by itself, and texts between the lines that all three sides have; each line is unique.
"""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import NamedTuple

import pytest
from hypothesis import note
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

import treesnap
from machines import run
from oracle import Record, difference, record
from sampling import sized
from treesnap.core.ops.context import context_at
from treesnap.testing.doubles import UnsyncedFileSystem

FORKS = ("one", "two")
RULES = ("refuse", "mine", "theirs", "markers")
NAMES = ("a", "a/a1", "a/a2", "b", "b/b1", "b/c", "b/c/c1", "d", "e")
"""No two directories have equal names in them, so that none looks like another one that moved."""
PATH_CHOICES = ((), ("a",), ("b/c", "d"), ("b/b1",))


class Thing(NamedTuple):
    """What one path is."""

    kind: str
    mode: int
    content: bytes
    xattrs: tuple[tuple[str, bytes], ...]


Tree = dict[str, Thing]
"""Things by path; the top is the empty path."""


def look(root: Path) -> Tree:
    """Returns what is in a tree."""
    found = {"": _thing(root)}
    for path in root.rglob("*"):
        found[str(path.relative_to(root))] = _thing(path)
    return found


def _thing(path: Path) -> Thing:
    status = path.lstat()
    if path.is_symlink():
        return Thing("link", 0o777, os.fsencode(os.readlink(path)), ())
    kind = "directory" if path.is_dir() else "file"
    content = b"" if kind == "directory" else path.read_bytes()
    names = sorted(os.listxattr(path))
    xattrs = tuple((name, os.getxattr(path, name)) for name in names)
    return Thing(kind, stat.S_IMODE(status.st_mode), content, xattrs)


def below(tree: Tree, top: str) -> Tree:
    """Returns a path and all in it; nothing where it is not."""
    return {path: thing for path, thing in tree.items() if path == top or _is_in(path, top)}


def _is_in(path: str, directory: str) -> bool:
    return path.startswith(directory + "/") if directory else path != ""


class Merge:
    """A three-way merge in the most naive way."""

    def __init__(self, base: Tree, mine: Tree, theirs: Tree, rule: str = "mine") -> None:
        self.base, self.mine, self.theirs, self.rule = base, mine, theirs, rule
        self.result = dict(mine)
        self.conflicts: set[str] = set()
        self.marked: set[str] = set()
        self.decided: dict[str, bool] = {}
        """Paths that become other than mine, or are in conflict: whether with all below."""

    def run(self, paths: tuple[str, ...] = ()) -> Merge:
        self._paths = paths
        self._directory("")
        return self

    def _is_wanted(self, path: str) -> bool:
        return not self._paths or any(path == it or _is_in(path, it) for it in self._paths)

    def _directory(self, path: str) -> None:
        if self._is_wanted(path):
            self._properties_of_directory(path)
        names = {it for side in (self.mine, self.theirs) for it in side if _parent(it) == path}
        for name in sorted(names):
            self._path(name)

    def _path(self, path: str) -> None:
        base, mine, theirs = (it.get(path) for it in (self.base, self.mine, self.theirs))
        inside = [it for it in self._paths if _is_in(it, path)]
        wanted = self._is_wanted(path)
        if not wanted and not inside:
            return
        is_directory = [it and it.kind == "directory" for it in (base, mine, theirs)]
        if is_directory[1] and is_directory[2]:
            self._directory(path)
        elif not wanted and mine and not is_directory[1]:
            changed = [it for it in inside if below(self.theirs, it) != below(self.base, it)]
            if any(it in self.theirs for it in changed):
                self.conflicts.add(path)
        elif not wanted or (is_directory[0] and (is_directory[1:] in ([True, None], [None, True]))):
            self._directory_of_one_side(path, wanted=wanted)
        else:
            self._whole(path)

    def _directory_of_one_side(self, path: str, *, wanted: bool) -> None:
        """Decides on a directory by what is in it, and by itself where that is nothing."""
        for name in sorted({*self.mine, *self.theirs}):
            if _parent(name) == path:
                self._path(name)
        base, mine, theirs = (it.get(path) for it in (self.base, self.mine, self.theirs))
        is_empty = not any(_is_in(it, path) for it in self.result)
        stays = mine is not None and not wanted
        if is_empty and wanted and (mine or theirs) != base:
            self.conflicts.add(path)
            self.decided[path] = True
            stays = (self.rule == "theirs") == (mine is None)
        if is_empty and not stays:
            self.result.pop(path, None)
            if mine is not None:
                self.decided = {
                    it: whole for it, whole in self.decided.items() if not _is_in(it, path)
                }
                self.decided[path] = True
        elif mine is None:
            self.result[path] = theirs
            self.decided[path] = True

    def _properties_of_directory(self, path: str) -> None:
        old = self.base.get(path)
        merged = properties(old, self.mine[path], self.theirs[path])
        if merged is None:
            self.conflicts.add(path)
            self.decided[path] = False
            merged = self.theirs[path] if self.rule == "theirs" else self.mine[path]
        self.result[path] = merged
        if merged != self.mine[path]:
            self.decided[path] = False

    def _whole(self, path: str) -> None:
        base, mine, theirs = (below(it, path) for it in (self.base, self.mine, self.theirs))
        if theirs in (mine, base):
            return
        if mine == base:
            self._put(path, theirs)
            return
        old, own, new = base.get(path), mine.get(path), theirs.get(path)
        if old and own and new and old.kind == own.kind == new.kind != "directory":
            merged = properties(old, own, new)
            content = chosen(old.content, own.content, new.content)
            if merged is not None and content is None and own.kind == "file":
                content = lines_merged(old.content, own.content, new.content)
                if (
                    content is None
                    and self.rule == "markers"
                    and b"\0" not in (old.content + own.content + new.content)
                ):
                    self.conflicts.add(path)
                    self.decided[path] = True
                    self.marked.add(path)
                    self.result[path] = merged
                    return
            if merged is not None and content is not None:
                self._put(path, {path: merged._replace(content=content)})
                return
        self.conflicts.add(path)
        self.decided[path] = True
        if self.rule == "theirs":
            self._put(path, theirs)

    def _put(self, path: str, tree: Tree) -> None:
        was = below(self.mine, path)
        if tree != was:
            self.decided[path] = True
        for name in was:
            self.result.pop(name, None)
        self.result.update(tree)


def properties(old: Thing | None, mine: Thing, theirs: Thing) -> Thing | None:
    """Returns my thing with merged mode and attributes; None for a conflict."""
    mode = chosen(old and old.mode, mine.mode, theirs.mode)
    if mode is None:
        return None
    before, own, new = (dict(it.xattrs) if it else None for it in (old, mine, theirs))
    assert own is not None
    assert new is not None
    xattrs = {}
    for name in sorted({*own, *new}):
        pair = (own.get(name, b"-"), new.get(name, b"-"))
        value = chosen(None if before is None else before.get(name, b"-"), *pair)
        if value is None:
            return None
        if value != b"-":
            xattrs[name] = value
    return mine._replace(mode=mode, xattrs=tuple(xattrs.items()))


def chosen(old, mine, theirs):
    """Returns the value that one side gave, or None where both gave another one."""
    if theirs in (mine, old):
        return mine
    return theirs if mine == old else None


def lines_merged(old: bytes, mine: bytes, theirs: bytes) -> bytes | None:
    """Returns the merge of texts between the lines that all have; None for a conflict."""
    sides = [it.splitlines(keepends=True) for it in (old, mine, theirs)]
    if b"\0" in old + mine + theirs:
        return None
    common = [line for line in sides[0] if line in sides[1] and line in sides[2]]
    merged: list[bytes] = []
    for line in [*common, None]:
        parts = []
        for side in sides:
            end = len(side) if line is None else side.index(line)
            parts.append(side[:end])
            del side[: end + 1]
        found = chosen(*parts)
        if found is None:
            return None
        merged += found + ([line] if line is not None else [])
    return b"".join(merged)


def _parent(path: str) -> str | None:
    return os.path.dirname(path) if path else None


class Machine(RuleBasedStateMachine):
    """An origin, two forks of it, and one store."""

    def __init__(self) -> None:
        super().__init__()
        self.directory = Path(tempfile.mkdtemp(prefix="adoptions-"))
        self.origin = self.directory / "origin"
        self.lines = 0
        self.moves = 0

    def teardown(self) -> None:
        shutil.rmtree(self.directory, ignore_errors=True)

    def handle(self, root: Path | None = None) -> treesnap.Handle:
        place = root or self.origin
        store = str(self.directory / "store")
        return treesnap.Handle(context_at(place, store, fs=UnsyncedFileSystem(), wait_s=0))

    def fork(self, number: int) -> Path:
        return self.directory / FORKS[number]

    @initialize(seed=st.integers(0, 2**32))
    def build(self, seed: int) -> None:
        self.origin.mkdir()
        for name in ("a", "b", "b/c"):
            (self.origin / name).mkdir()
        for name in ("a/a1", "a/a2", "b/b1", "b/c/c1", "d"):
            self.write_text(self.origin / name)
        self.undo_stack: list[Record] = []
        self.redo_stack: list[Record] = []
        self.pruned_below = {"undo": 0, "redo": 0}
        """Of how many steps, the oldest ones, a prune may have removed the snapshot."""
        self.bases: list[Tree] = []
        self.adopted: list[list[tuple[str, str, Tree]]] = []
        self.handle().create()
        for number in range(len(FORKS)):
            self.bases.append({})
            self.adopted.append([])
            self.make_fork(number)
        for number in (-1, 0, 1):
            self.edit(number, seed + number, 3)

    def make_fork(self, number: int) -> None:
        made = self.handle().create()
        self.handle().fork(made.id, [self.fork(number)])
        self.bases[number] = look(self.fork(number))
        self.adopted[number] = []
        assert difference(record(self.origin), record(self.fork(number))) == []

    def line(self) -> bytes:
        self.lines += 1
        return b"line %d\n" % self.lines

    def write_text(self, path: Path) -> None:
        path.write_bytes(b"".join(self.line() for _ in range(7)))

    # ------------------------------------------------------------------------ work

    @rule(
        number=st.integers(-1, len(FORKS) - 1), seed=st.integers(0, 2**32), count=st.integers(1, 4)
    )
    def edit(self, number: int, seed: int, count: int) -> None:
        root = self.origin if number < 0 else self.fork(number)
        random = Random(seed)
        for _ in range(count):
            path = root / random.choice(NAMES)
            if not path.parent.is_dir() or path.parent.is_symlink():
                continue
            self.change(path, random)

    def change(self, path: Path, random: Random) -> None:
        is_file = path.is_file() and not path.is_symlink()
        action = random.choice(("lines", "lines", "lines", "mode", "xattr", "swap", "bytes"))
        note(f"{action} {path.relative_to(self.directory)}")
        if action == "lines" and is_file and b"\0" not in path.read_bytes():
            lines = path.read_bytes().splitlines(keepends=True)
            at = random.randrange(len(lines) + 1)
            new = [self.line() for _ in range(random.randrange(3))]
            lines[at : at + random.randrange(2)] = new
            path.write_bytes(b"".join(lines))
        elif action == "mode" and path.exists() and not path.is_symlink():
            path.chmod(random.choice((0o700, 0o755, 0o711)))
        elif action == "xattr" and path.exists() and not path.is_symlink():
            with suppress(OSError):  # not every file system has attributes
                os.setxattr(path, random.choice(("user.one", "user.two")), self.line())
        elif action == "bytes" and (is_file or not os.path.lexists(path)):
            path.write_bytes(b"\0" + self.line())
        elif action == "swap":
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            elif os.path.lexists(path):
                path.unlink()
            making = (self.write_text, Path.mkdir, lambda it: it.symlink_to("d"), lambda it: None)
            random.choice(making)(path)

    @rule(number=st.integers(-1, len(FORKS) - 1))
    def create(self, number: int) -> None:
        self.handle(None if number < 0 else self.fork(number)).create()

    # -------------------------------------------------------------------- adoptions

    def base_of(self, number: int, mine: Tree) -> Tree:
        """Returns the common state: of each path the last that was adopted and is still here."""
        base = self.bases[number]
        here = {item.id for item in self.handle().list()}
        there = {item.id for item in self.handle(self.fork(number)).list()}
        newest_first: dict[str, Tree] = {}
        for merged, identity, tree in reversed(self.adopted[number]):
            if merged in here and identity in there:
                newest_first.setdefault(identity, tree)
        for later in reversed(newest_first.values()):
            again = Merge(base, mine, later).run()
            advanced = dict(later)
            for path, is_whole in again.decided.items():
                if is_whole:
                    for name in below(later, path):
                        advanced.pop(name, None)
                    advanced.update(below(base, path))
                elif path in base and base[path].kind == "directory":
                    advanced[path] = base[path]
            for path in list(advanced):  # what stays in a removed directory keeps that
                for above in map(str, Path(path).parents):
                    if above not in {".", *advanced}:
                        advanced[above] = base[above]
            base = advanced
        return base

    @rule(
        number=st.integers(0, len(FORKS) - 1),
        conflicts=st.sampled_from(RULES),
        paths=st.sampled_from(PATH_CHOICES),
        as_it_is=st.sampled_from((False, False, False, True)),
    )
    def adopt(self, number: int, conflicts: str, paths: tuple[str, ...], as_it_is: bool) -> None:
        fork = self.fork(number)
        before, before_fork = record(self.origin), record(fork)
        mine, theirs = look(self.origin), look(fork)
        base = mine if as_it_is else self.base_of(number, mine)
        expected = Merge(base, mine, theirs, conflicts).run(paths)
        asked = {"conflicts": conflicts, "as_it_is": as_it_is}
        known = {*mine, *theirs, *(mine if as_it_is else self.bases[number])}
        if not known.issuperset(paths):
            with pytest.raises(treesnap.NotFound):
                self.handle().adopt(fork, list(paths), **asked)
            assert difference(before, record(self.origin)) == []
            return

        would = self.handle().adopt(fork, list(paths) or None, **asked, dry_run=True)

        assert difference(before, record(self.origin)) == []
        assert difference(before_fork, record(fork)) == []
        assert would.conflicts == tuple(sorted(map(os.fsencode, expected.conflicts)))
        if expected.conflicts and conflicts == "refuse":
            with pytest.raises(treesnap.MergeConflict) as raised:
                self.handle().adopt(fork, list(paths) or None, **asked)
            assert raised.value.paths == would.conflicts
            assert difference(before, record(self.origin)) == []
            assert difference(before_fork, record(fork)) == []
            return
        done = self.handle().adopt(fork, list(paths) or None, **asked)
        assert difference(before_fork, record(fork)) == []
        assert done.conflicts == would.conflicts
        assert done.kept == ()
        assert [item.path for item in done.changes] == [item.path for item in would.changes]
        found = look(self.origin)
        for path in expected.marked:
            found[path] = self.without_marks(path, found[path], mine[path], theirs[path])
        assert found == expected.result
        if as_it_is and not paths:
            assert difference(before_fork, record(self.origin)) == []
        if done.safety_id is None:
            assert difference(before, record(self.origin)) == []
        else:
            self.undo_stack.append(before)
            self.redo_stack.clear()
            self.pruned_below["redo"] = 0
        identity = done.snapshot.record.tags.get("treesnap.adopted")
        if identity is None:  # nothing was merged: the root is at its own snapshot
            assert found == mine
            return
        self.adopted[number].append((done.snapshot.id, identity, theirs))

    @staticmethod
    def without_marks(path: str, found: Thing, mine: Thing, theirs: Thing) -> Thing:
        """Returns a text as it is here, after a look at what else is in it."""
        lines = found.content.splitlines(keepends=True)
        assert any(line.startswith(b"<<<<<<<") for line in lines), path
        known = {*mine.content.splitlines(keepends=True), *theirs.content.splitlines(keepends=True)}
        marks = (b"<<<<<<<", b"=======", b">>>>>>>")
        assert all(line in known or line.startswith(marks) for line in lines), path
        return found._replace(content=mine.content)

    @rule()
    def resolve_marks(self) -> None:
        for path, thing in look(self.origin).items():
            if b"<<<<<<<" in thing.content:
                self.write_text(self.origin / path)

    @rule()
    def undo(self) -> None:
        self.step(self.undo_stack, self.redo_stack, "undo")

    @rule()
    def redo(self) -> None:
        self.step(self.redo_stack, self.undo_stack, "redo")

    def step(self, source: list[Record], target: list[Record], verb: str) -> None:
        before = record(self.origin)
        if not source:
            with pytest.raises(treesnap.NotFound):
                getattr(self.handle(), verb)()
            return
        try:
            getattr(self.handle(), verb)()
        except treesnap.NotFound:
            assert len(source) <= self.pruned_below[verb]
            assert difference(before, record(self.origin)) == []
            return
        assert difference(source.pop(), record(self.origin)) == []
        self.pruned_below[verb] = min(self.pruned_below[verb], len(source))
        target.append(before)

    # ------------------------------------------------------------------------ space

    @rule(number=st.integers(-1, len(FORKS) - 1), keep=st.integers(1, 3))
    def prune(self, number: int, keep: int) -> None:
        handle = self.handle(None if number < 0 else self.fork(number))
        handle.prune(treesnap.Policy(keep_last=keep))
        if number < 0:
            for verb, stack in (("undo", self.undo_stack), ("redo", self.redo_stack)):
                self.pruned_below[verb] = max(self.pruned_below[verb], len(stack) - 1)
        handle.gc()
        assert handle.verify(read_data=True).problems == ()

    @rule(number=st.integers(0, len(FORKS) - 1))
    def begin_anew(self, number: int) -> None:
        shutil.rmtree(self.fork(number))
        with pytest.raises(treesnap.NotFound):
            self.handle().adopt(self.fork(number))
        self.handle().root_forget(self.fork(number), force=True)
        self.make_fork(number)

    @rule()
    def move_the_origin(self) -> None:
        self.moves += 1
        was, self.origin = self.origin, self.directory / f"origin-{self.moves}"
        os.rename(was, self.origin)
        self.handle().root_move(was)

    @invariant()
    def each_fork_has_its_base(self) -> None:
        for number in range(len(getattr(self, "bases", ()))):
            origin = self.handle(self.fork(number)).origin()
            assert origin is not None
            assert origin.path_text == str(self.origin)


def test_adoptions_in_any_order_agree_with_a_naive_merge() -> None:
    run(Machine, sized(3, 100), sized(20, 40))
