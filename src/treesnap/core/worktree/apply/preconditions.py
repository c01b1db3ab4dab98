"""What a walk observed at paths, compared with what is there before and after each step.

So a restore notices every change that another process makes meanwhile.
"""

from __future__ import annotations

import os
import stat as stat_module
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import contextmanager
from stat import S_ISDIR

from treesnap.core.codec.statcache import (
    Observation,
    PlainObservation,
    decode_observations,
    is_observed,
)
from treesnap.core.fs.base import FileSystem
from treesnap.core.fs.mounts import YoungTimes
from treesnap.core.model import treepath
from treesnap.core.model.errors import Conflict, Corrupt, quoted
from treesnap.core.model.named_tuple import NamedTuple
from treesnap.core.model.type_names import Any, Protocol
from treesnap.core.worktree.apply.protection import refuse_flags, refuse_flags_below
from treesnap.core.worktree.apply.step import (
    Action,
    FileIdentity,
    FileKey,
    RestoreStep,
    aside_name,
    key_of,
)
from treesnap.core.worktree.directory import NO_DIRECTORY, DirectoryChain, open_directory
from treesnap.core.worktree.scan.ignore import Exclusions, UnreadableRules
from treesnap.core.worktree.scan.listing import list_directory
from treesnap.core.worktree.scan.statcache import StatCache, observed_key
from treesnap.core.worktree.spellings import collision, one_name_of, spelled, with_one_name


class SecondLook(Protocol):
    """Reads a path again, content and metadata, and compares it with what the plan saw.

    Inode, change time and device prove less: they also change when a link comes or goes, when the
    restore itself moves a file, and unnoticed by a watcher.
    """

    def is_same(self, path: bytes) -> bool:
        """Returns whether the tree still has at a path what the plan saw, nothing included."""

    def is_same_aside(self, path: bytes, stage: bytes, name: bytes) -> bool:
        """Returns whether what was moved from a path to a staging directory is what the plan saw.

        ``stage`` holds the staging directory, ``name`` is the name in that.
        """


IsProven = Callable[[int, int, int], bool]
"""Whether a file with an inode number and times would show a change by them."""


def always_proven(_inode: int, _mtime_ns: int, _ctime_ns: int) -> bool:
    """Says that every change shows."""
    return True


class Expected(NamedTuple):
    """What a plan saw, with which the tree is compared."""

    observed: Observed
    second_look: SecondLook
    mapped: AbstractSet[int]
    """Inode numbers of files that can change without a sign."""
    young: YoungTimes
    """Times that a change may have left as they were."""

    def is_proven(self, inode: int, mtime_ns: int, ctime_ns: int) -> bool:
        """Returns whether what was observed of a file would show a change since the walk."""
        return inode not in self.mapped and not self.young.include(mtime_ns, ctime_ns)


class Preconditions:
    """What is at the paths of some steps, and in the staging directory."""

    def __init__(
        self,
        fs: FileSystem,
        chain: DirectoryChain,
        stages: Mapping[bytes, int],
        steps: Sequence[RestoreStep],
        expected: Expected,
    ) -> None:
        self._fs = fs
        self._chain = chain
        self._stages = stages
        self._expected = expected
        self._second_look = expected.second_look
        self.note(steps)
        self.in_the_way: set[bytes] = set()
        """Paths to remove that a new path also matches, because they differ only in spelling."""
        self._open_directories: set[bytes] = set()
        """Directories that were found to be neither immutable nor append-only."""

    def note(self, steps: Sequence[RestoreStep]) -> None:
        """Finds files with several names that change: each change updates the ctime of all."""
        counts = Counter(step.before.identity for step in steps if step.before is not None)
        self._touched = counts.keys()
        self._shared = {identity for identity, count in counts.items() if count > 1}
        self._removed = {step.path for step in steps if step.action == Action.REMOVE}

    def staged(self, step: RestoreStep, name: bytes) -> os.stat_result | None:
        """Returns what has a name in the staging directory of a step, or None."""
        try:
            return self._fs.lstat(name, dir_fd=self._stages[step.stage])
        except FileNotFoundError:
            return None

    def look(self, step: RestoreStep) -> tuple[int, bytes, os.stat_result | None]:
        """Returns the directory of a path, its name there, and what is at it."""
        directory, name = treepath.split(step.path)
        fd = self._chain.find(directory)
        if fd is None:
            raise conflict(step.path)
        try:
            return fd, name, self._fs.lstat(name, dir_fd=fd)
        except FileNotFoundError:
            return fd, name, None

    def is_done(self, step: RestoreStep) -> bool:
        """Returns whether a step that moves something was done.

        What is put is no longer staged; what is removed is kept aside.
        """
        staged = self.staged(step, step.staged)
        if step.action == Action.PUT:
            return staged is None or staged.st_ino != step.inode
        return staged is not None

    def expect(
        self, step: RestoreStep, *, with_ctime: bool
    ) -> tuple[RestoreStep, tuple[int, bytes, os.stat_result | None]]:
        """Returns the step and what :meth:`look` does; raises Conflict for a changed path.

        A path that looks changed is read again: when it holds what the plan saw, the step
        expects it as it looks now. ``with_ctime`` holds for files with several names too, as
        long as no step was done.
        """
        fd, name, status = self.look(step)
        seen = key_of(status) if status is not None else None
        expected = step.before
        if (
            seen is not None
            and expected is not None
            and not with_ctime
            and expected.identity in self._shared
        ):
            seen = seen._replace(ctime_ns=expected.ctime_ns)
        if seen == expected:
            return step, (fd, name, status)
        if expected is None:
            self.in_the_way.add(self._alias(step, fd, name))
            return step, (fd, name, None)
        if not self._second_look.is_same(step.path):
            raise conflict(step.path)
        fd, name, again = self.look(step)
        seen = key_of(status) if status is not None else None
        if (key_of(again) if again is not None else None) != seen:
            raise conflict(step.path)
        return step._replace(before=seen), (fd, name, again)

    def _alias(self, step: RestoreStep, fd: int, name: bytes) -> bytes:
        """Returns the path that a look at an absent one finds because only the spelling differs.

        Raises Conflict when there is none, and Refused when that path stays.
        """
        other = spelled(self._fs, fd, name)
        if other is None:
            raise conflict(step.path)
        path = treepath.join(treepath.split(step.path)[0], other)
        if path not in self._removed:
            raise collision(path, step.path)
        return path

    def refuse_one_name(self, steps: Sequence[RestoreStep]) -> None:
        """Raises Refused for two new paths that are one name; tries it if there may be any."""
        new = [step.path for step in steps if step.action == Action.PUT and step.before is None]
        for group in with_one_name(new):
            stage = next(step.stage for step in steps if step.path == group[0])
            paths = {treepath.split(path)[1]: path for path in group}
            same = one_name_of(self._fs, self._stages[stage], list(paths))
            if same:
                raise collision(*(paths[name] for name in same))

    def refuse_protected(
        self, step: RestoreStep, fd: int, name: bytes, status: os.stat_result | None
    ) -> None:
        """Raises OperationFailed for what is immutable or append-only at a path or below it.

        The last three are what :meth:`look` has just returned. Each directory is asked for once.
        """
        directory = treepath.split(step.path)[0]
        if directory not in self._open_directories:
            refuse_flags(self._fs, fd, directory)
            self._open_directories.add(directory)
        if status is not None:
            refuse_flags_below(self._fs, name, step.path, fd, status.st_mode)

    def check_aside(self, step: RestoreStep, *, is_last: bool) -> None:
        """Raises Conflict if what was moved aside is not what was seen.

        What looks changed is read again. The last check also reads a file that can change without
        a sign, or was so young when it was seen that another change may have the same time.
        """
        before = step.before
        assert before is not None
        aside = step.staged
        status = self.staged(step, aside)
        if status is None:
            aside = aside_name(step.staged)
            status = self.staged(step, aside)
        if status is None:
            raise conflict(step.path)
        is_proven = self._expected.is_proven if is_last else always_proven
        same = _moved(key_of(status)) == _moved(before)
        if same and stat_module.S_ISDIR(before.mode):
            with open_directory(self._fs, aside, self._stages[step.stage]) as moved:
                same = self._expected.observed.is_unchanged_below(
                    self._fs, moved, step.path, self._touched, is_proven
                )
        elif same:
            same = is_proven(before.inode, before.mtime_ns, before.ctime_ns)
        if not same and not self._second_look.is_same_aside(step.path, step.stage, aside):
            raise conflict(step.path)


def _moved(key: FileKey) -> FileKey:
    """Returns what moving leaves as it was.

    A directory may have got permissions for it, and its size is that of its names,
    which are compared on their own. XFS changes its time when it is exchanged.
    """
    if stat_module.S_ISDIR(key.mode):
        return key._replace(mode=key.mode | 0o700, size=0, mtime_ns=0, ctime_ns=0)
    return key._replace(ctime_ns=0)


@contextmanager
def blaming(path: bytes) -> Iterator[None]:
    """Makes errors of the system name the path in the tree.

    A path that disappears between two calls, or stops being a directory, was changed by another
    process: that raises Conflict.
    """
    try:
        yield
    except OSError as error:
        if error.errno in NO_DIRECTORY:
            raise conflict(path) from error
        error.filename = os.fsdecode(path)
        raise


def conflict(path: bytes) -> Conflict:
    """Returns the error for a path that another process changed."""
    return Conflict(f"{quoted(path)} was changed by another process meanwhile", path=path)


class Observed:
    """The observations of one walk: those it recorded, and those of unchanged cached rows."""

    def __init__(self, recorded: Mapping[bytes, bytes], cache: StatCache | None) -> None:
        self._recorded = recorded
        self._cache = cache
        self._decoded: tuple[bytes, dict[bytes, PlainObservation]] | None = None
        self._keys: dict[bytes, FileKey | None] = {}
        """What was asked for by path: what was compared before a restore is compared again."""

    def _packed(self, directory: bytes) -> bytes | None:
        packed = self._recorded.get(observed_key(directory))
        if packed is None and self._cache is not None:
            row = self._cache.find(directory)
            packed = row[0].observations if row is not None else None
        return packed

    def key(self, path: bytes) -> FileKey | None:
        """Returns what was seen at a path, or None when nothing was there."""
        if path not in self._keys:
            self._keys[path] = self._look_up(path)
        return self._keys[path]

    def _look_up(self, path: bytes) -> FileKey | None:
        directory, name = treepath.split(path)
        if self._decoded is None or self._decoded[0] != directory:
            packed = self._packed(directory)
            self._decoded = (directory, _decoded(packed) if packed else {})
        seen = self._decoded[1].get(name)
        return FileKey._make(seen[1:]) if seen is not None else None

    def is_unchanged_below(
        self,
        fs: FileSystem,
        fd: int,
        path: bytes,
        touched: AbstractSet[FileIdentity],
        is_proven: IsProven,
    ) -> bool:
        """Returns whether a directory, open as ``fd``, certainly holds what was seen at ``path``.

        ``touched`` has the files that the restore itself moves: their ctimes have changed under
        all of their names. ``is_proven`` says whether inode and times of a file prove that.
        """
        pending: list[tuple[list[bytes], bytes]] = [([], path)]
        with DirectoryChain(fs, fd) as chain:
            while pending:
                names, directory = pending.pop()
                try:
                    listing = list_directory(fs, chain.open_names(names), directory, Exclusions())
                except UnreadableRules:  # or else it would not have been seen
                    return False
                if not _are_same(listing.observations, self._packed(directory), touched):
                    return False
                for item in listing.observations:
                    if not is_proven(item[5], item[3], item[4]):
                        return False
                    if S_ISDIR(item[1]):
                        below = treepath.join(directory, item[0])
                        pending.append(([*names, item[0]], below))
        return True


def _decoded(packed: bytes) -> dict[bytes, PlainObservation]:
    """Returns what was seen, by name; nothing if a cached row is damaged."""
    try:
        return decode_observations(packed)
    except Corrupt:
        return {}


def _are_same(now: list[Any], packed: bytes | None, touched: AbstractSet[FileIdentity]) -> bool:
    """Returns whether observations are as before, except for ctimes of touched files."""
    if packed is None or is_observed(packed, now):
        return packed is not None
    before = list(_decoded(packed).values())
    return bool(before) and [_without_ctime(item, touched) for item in now] == [
        _without_ctime(item, touched) for item in before
    ]


def _without_ctime(item: Any, touched: AbstractSet[FileIdentity]) -> tuple[Any, ...]:
    seen = Observation._make(item)
    return seen._replace(ctime_ns=0) if (seen.device, seen.inode) in touched else seen
