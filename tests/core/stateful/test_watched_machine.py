"""Any order of changes to a watched tree: what the watcher knows against a walk of everything.

Each snapshot that looks at nothing but what the watcher reported is compared with one
that another store takes of the same tree, without a watcher.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import shutil
import tempfile
from contextlib import ExitStack
from pathlib import Path
from random import Random

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
)

import trees
import treesnap
from machines import run
from mutations import add_directory, mutate, pick
from sampling import sized
from treesnap.core.codec.snapshot import state_hash
from treesnap.core.model.results import CreateResult
from treesnap.core.ops.access import opened
from treesnap.core.worktree.scan.hard_links import load_groups
from treesnap.core.worktree.watcher import ReportsLost

SEEDS = st.integers(0, 2**32 - 1)


def state(result: CreateResult) -> tuple[object, ...]:
    """Returns everything that two snapshots of one tree have in common."""
    record = result.snapshot.record
    return (
        state_hash(record),
        record.totals,
        record.rules,
        record.unstable,
        sorted(result.skipped),
    )


def links(handle: treesnap.Handle, result: CreateResult) -> set[tuple[bytes, ...]]:
    """Returns the groups of names that are the same file."""
    with opened(handle.context, "test") as pair:
        return set(load_groups(result.snapshot.record.links, pair.store.get).values())


def has_content(path: bytes) -> bool:
    return trees.is_file(path) and os.path.getsize(path) > 0


DISK = "/var/tmp"
"""On tmpfs a second write through a mapping moves no time, which no whole walk sees either."""


class WatchedMachine(RuleBasedStateMachine):
    """One root that is watched, and two stores."""

    def __init__(self) -> None:
        super().__init__()
        self.directory = Path(tempfile.mkdtemp(prefix="watched-", dir=DISK))
        self.root = self.directory / "root"
        self.outside = self.directory / "outside"
        self.outside.mkdir()
        self.unwatched = treesnap.open(self.root, self.directory / "other")
        self.plain = treesnap.open(self.root, self.directory / "store")
        self.watches = ExitStack()
        self.opened = ExitStack()
        self.mapped: list[tuple[bytes, int, mmap.mmap]] = []
        self.linked = 0

    def teardown(self) -> None:
        self.opened.close()
        self.watches.close()
        shutil.rmtree(self.directory, ignore_errors=True)

    @initialize(seed=SEEDS)
    def build(self, seed: int) -> None:
        trees.build(self.root, seed)
        self.watched = self.watches.enter_context(self.plain.watch())

    def top(self) -> bytes:
        return os.fsencode(self.root)

    @rule(seed=SEEDS, count=st.integers(1, 4))
    def change(self, seed: int, count: int) -> None:
        mutate(self.root, Random(seed), count)

    @rule(seed=SEEDS)
    def fill_a_new_directory(self, seed: int) -> None:
        random = Random(seed)
        path = add_directory(self.top(), random)
        for _ in range(random.randrange(1, 6)):
            path = os.path.join(path, b"deeper-%d" % random.randrange(3))
            os.makedirs(path, exist_ok=True)
            trees.write(path + b"/file", random.randbytes(10))

    @rule(seed=SEEDS)
    def move_a_directory(self, seed: int) -> None:
        """Within the tree, out of it, or back into it."""
        random = Random(seed)
        source = pick(self.top(), random, trees.is_directory)
        target = pick(self.top(), random, trees.is_directory) or self.top()
        away = os.fsencode(self.outside)
        name = b"moved-%d" % random.randrange(5)
        kept = os.listdir(away)
        try:
            if kept and random.random() < 0.4:
                os.rename(os.path.join(away, random.choice(kept)), os.path.join(target, name))
            elif source is not None and random.random() < 0.3:
                os.rename(source, os.path.join(away, name))
            elif source is not None:
                os.rename(source, os.path.join(target, name))
        except OSError:  # into itself, or where something is
            return

    @rule(seed=SEEDS)
    def exchange(self, seed: int) -> None:
        """Puts each of two names in the other's place at once."""
        random = Random(seed)
        one, other = pick(self.top(), random), pick(self.top(), random)
        if one is None or other is None:
            return
        fd = os.open(self.top(), os.O_RDONLY)
        try:
            self.plain.context.fs.exchange(one, other, source_dir_fd=fd, target_dir_fd=fd)
        except OSError:  # one is below the other, or the same
            return
        finally:
            os.close(fd)

    @rule(seed=SEEDS, patterns=st.sampled_from(["*.tmp\n", "new-*\n", "a/\n", "", "!new-*\nb\n"]))
    def exclude(self, seed: int, patterns: str) -> None:
        directory = pick(self.top(), Random(seed), trees.is_directory) or self.top()
        path = os.path.join(directory, b".snapignore")
        if os.path.lexists(path) and not trees.is_file(path):
            return
        trees.write(path, patterns.encode())

    @rule(seed=SEEDS)
    def write_through_a_mapping(self, seed: int) -> None:
        """Leaves the file mapped, and closed otherwise: no report tells of the write."""
        path = pick(
            self.top(), Random(seed), lambda path: trees.is_file(path) and os.path.getsize(path) > 0
        )
        if path is None:
            return
        try:
            fd = os.open(path, os.O_RDWR)
        except OSError:
            return
        mapped = self.opened.enter_context(mmap.mmap(fd, 0))
        self.mapped.append((path, os.fstat(fd).st_ino, mapped))
        self.opened.callback(self.mapped.clear)
        os.close(fd)
        mapped[0] = (mapped[0] + 1) % 256

    @rule(seed=SEEDS)
    def write_again_through_a_mapping(self, seed: int) -> None:
        """Moves no time, unless the kernel has written the page meanwhile."""
        named = [
            mapped
            for path, inode, mapped in self.mapped
            if trees.is_file(path) and os.lstat(path).st_ino == inode and has_content(path)
        ]
        if named:
            mapped = Random(seed).choice(named)
            mapped[0] = (mapped[0] + 1) % 256

    @rule(seed=SEEDS)
    def write_to_what_stays_open(self, seed: int) -> None:
        path = pick(self.top(), Random(seed), trees.is_file)
        if path is not None:
            fd = os.open(path, os.O_WRONLY | os.O_APPEND)
            self.opened.callback(os.close, fd)
            os.write(fd, b"more")

    @rule()
    def close_files(self) -> None:
        self.opened.close()

    @rule(seed=SEEDS)
    def link_outside(self, seed: int) -> None:
        """A file with a name outside of the tree may be changed under that one."""
        path = pick(self.top(), Random(seed), trees.is_file)
        if path is None:
            return
        self.linked += 1
        os.link(path, os.path.join(os.fsencode(self.directory), b"link-%d" % self.linked))
        os.utime(path)  # or no report tells of the link

    @rule(seed=SEEDS)
    def change_through_a_link_outside(self, seed: int) -> None:
        links = sorted(self.directory.glob("link-*"))
        if links:
            with open(Random(seed).choice(links), "ab") as file:
                file.write(b"from outside")

    @rule(data=st.data())
    def restore(self, data: st.DataObject) -> None:
        ids = [snapshot.id for snapshot in self.plain.list()]
        if ids and not self.has_bad_pattern():
            which = data.draw(st.integers(0, len(ids) - 1))
            self.opened.close()
            with contextlib.suppress(
                treesnap.Refused
            ):  # what is left out, or a link, is in the way
                self.watched.restore(ids[which])

    @precondition(lambda self: len(self.plain.list()) > 1)
    @rule()
    def create_without_the_watcher(self) -> None:
        self.plain.create()

    def has_bad_pattern(self) -> bool:
        try:
            self.unwatched.create()
        except treesnap.InvalidArgument:
            return True
        return False

    @rule()
    def collect(self) -> None:
        self.plain.gc()

    @rule()
    def lose_track(self) -> None:
        def fail(_deadline: float) -> None:
            raise ReportsLost("on purpose")

        self.watched.context.watcher._tree.sync = fail

    @rule()
    def watch_anew(self) -> None:
        self.watches.close()
        self.watched = self.watches.enter_context(self.plain.watch())

    @rule(seed=SEEDS)
    def compare_paths(self, seed: int) -> None:
        random = Random(seed)
        path = pick(self.top(), random)
        if path is None or any(os.path.islink(above) for above in _above(path, self.top())):
            return
        self.compare_with_a_walk([path], ())

    @rule()
    def compare_status(self) -> None:
        if self.plain.list() and not self.has_bad_pattern():
            try:
                watched = self.watched.status()
            except treesnap.InvalidArgument:  # a link on the way to what was captured alone
                with pytest.raises(treesnap.InvalidArgument):
                    self.plain.status()
                return
            plain = self.plain.status()
            assert watched.changes == plain.changes
            assert sorted(watched.skipped) == sorted(plain.skipped)

    @rule(exclude=st.sampled_from([(), (), (), ("*.log",), ("a", "!b")]))
    def compare(self, exclude: tuple[str, ...]) -> None:
        self.compare_with_a_walk(None, exclude)

    def compare_with_a_walk(self, paths: list[bytes] | None, exclude: tuple[str, ...]) -> None:
        try:
            watched = self.watched.create(paths, options=treesnap.CreateOptions(exclude=exclude))
        except treesnap.InvalidArgument:  # a pattern that is none
            with pytest.raises(treesnap.InvalidArgument):
                self.unwatched.create(paths, options=treesnap.CreateOptions(exclude=exclude))
            return
        walked = self.unwatched.create(paths, options=treesnap.CreateOptions(exclude=exclude))
        here = self.watched.ls(watched.snapshot.id, recursive=True)
        there = self.unwatched.ls(walked.snapshot.id, recursive=True)
        assert sorted(set(here) ^ set(there)) == []
        assert watched.snapshot.record.root == walked.snapshot.record.root
        assert links(self.watched, watched) == links(self.unwatched, walked)
        assert state(watched) == state(walked)


def _above(path: bytes, top: bytes) -> list[bytes]:
    found = []
    while path != top:
        path = os.path.dirname(path)
        found.append(path)
    return found[:-1]


EXAMPLES = sized(3, 80)
STEPS = 50
"""In full size, 10,000 steps each."""


@pytest.mark.needs("notices")
def test_a_watched_tree_is_captured_as_a_whole_walk_would() -> None:
    run(WatchedMachine, EXAMPLES, STEPS)


class SmallWatchedMachine(WatchedMachine):
    """The same with a tree of few paths."""

    @initialize(seed=SEEDS)
    def build(self, seed: int) -> None:
        trees.build_small(self.root, seed)
        self.watched = self.watches.enter_context(self.plain.watch())


@pytest.mark.needs("notices")
def test_a_small_watched_tree_is_captured_as_a_whole_walk_would() -> None:
    run(SmallWatchedMachine, EXAMPLES, STEPS)
