"""Watches, under all tests, that nothing is taken from a store without what keeps others out.

Each call of the file system that removes, replaces or shortens something below a store is looked
up in the table of this module. A row says what the process must hold. So a new sort of file needs
a row, on purpose. Children of ``fork`` are watched too; commands that are started anew are not.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from functools import wraps
from inspect import getattr_static

from treesnap.core.fs import posix
from treesnap.core.fs.local import LocalFileSystem
from treesnap.core.model.errors import TreesnapError
from treesnap.core.store.collector import CollectorState, read_state
from treesnap.core.store.index import ObjectIndex
from treesnap.core.store.layout import DIRECTORIES, Layout

EMPTY_PACK_MAX_BYTES = 64
"""A pack in which no writer has stored anything yet is no larger."""
_BELOW = re.compile(
    rf"/(?:{'|'.join([*DIRECTORIES, 'remotes', 'fork-server', 'quarantine'])})(?=/|$)"
)


class Taking:
    """A call that takes something away: where, how, and what this process holds."""

    def __init__(self, store: str, name: str, method: str) -> None:
        self.store, self.name, self.method = store, name, method
        self._held = {identity for fd, identity in list(posix._locked.items()) if _is(fd, identity)}

    def holds(self, *names: str) -> bool:
        """Returns whether this process has the lock of each of these files."""
        return all(self._identity(name) in self._held for name in names)

    def holds_collector(self) -> bool:
        """Returns whether it is the one that may collect."""
        return self.holds("collector/lock")

    def holds_root(self, root_id: str) -> bool:
        """Returns whether it has the lock of a root."""
        return self.holds(f"roots/{root_id}/lock")

    def holds_slot(self) -> bool:
        """Returns whether it is a writer."""
        return any(self.holds(f"slots/{name}") for name in self.names("slots"))

    def names(self, directory: str) -> list[str]:
        """Returns the names in a directory of the store."""
        try:
            return os.listdir(os.path.join(self.store, directory))
        except (FileNotFoundError, NotADirectoryError):
            return []

    def _identity(self, name: str) -> tuple[int, int] | None:
        try:
            found = os.lstat(os.path.join(self.store, name))
        except (FileNotFoundError, NotADirectoryError):
            return None
        return found.st_dev, found.st_ino

    def is_new(self) -> bool:
        """Returns whether nothing is at the name, so that nothing is replaced."""
        return not os.path.lexists(os.path.join(self.store, self.name))

    def is_allowed(self) -> bool:
        """Returns whether what the table asks for is held."""
        if self.name and self.holds(self.name):  # its own file, by its lock
            return True
        if self.name and self.holds(os.path.dirname(self.name) or "."):  # no regular file: aside
            return True
        for pattern, condition in ROWS:
            if found := re.fullmatch(pattern, self.name):
                return condition(self, *found.groups())
        return False


def _is(fd: int, identity: tuple[int, int]) -> bool:
    try:
        found = os.fstat(fd)
    except OSError:
        return False
    return (found.st_dev, found.st_ino) == identity


def _pack(taking: Taking, pack: str) -> bool:
    """A pack goes behind the fence; a writer shortens its own, or takes back one that is new.

    No process relies on a pack that no index part knows.
    """
    path = os.path.join(taking.store, taking.name)
    if taking.holds_collector():
        state = _state(taking.store)
        if state.epoch and bytes.fromhex(pack) in state.condemned:
            return True
    is_empty = not os.path.exists(path) or os.path.getsize(path) <= EMPTY_PACK_MAX_BYTES
    if not taking.holds_slot():
        return False
    return taking.method == "truncate" or is_empty or not _is_covered(taking.store, pack)


def _gaps(taking: Taking, root_id: str) -> bool:
    """Gaps are replaced under a lock of their own, and go with the whole root."""
    return taking.holds(f"roots/{root_id}/gaps-lock") or taking.holds_root(root_id)


def _plan(taking: Taking, root_id: str) -> bool:
    """A plan changes under the lock of the plans; a recovery puts back the one of its journal."""
    return taking.holds(f"roots/{root_id}/plans-lock") or taking.holds_root(root_id)


def _pending(taking: Taking, slot: str) -> bool:
    """A pending snapshot goes with its slot, or after a slot that a power cut took."""
    return taking.holds(f"slots/{slot}") or slot not in taking.names("slots")


def _cache(taking: Taking, root_id: str) -> bool:
    """A stat cache goes under the root's lock, and any while the index has no part."""
    is_known = ObjectIndex(LocalFileSystem(), Layout(taking.store)).parts
    return taking.holds_root(root_id) or not is_known


def _is_covered(store: str, pack: str) -> bool:
    return bytes.fromhex(pack) in ObjectIndex(LocalFileSystem(), Layout(store)).covered()


def _state(store: str) -> CollectorState:
    try:
        return read_state(LocalFileSystem(), Layout(store))
    except TreesnapError:
        return CollectorState()


def free(taking: Taking, *found: str) -> bool:
    """A hint, or a name of its own that no other process has."""
    return True


def root(taking: Taking, root_id: str) -> bool:
    """The root's lock."""
    return taking.holds_root(root_id)


def pushes(taking: Taking, root_id: str) -> bool:
    """The lock of pushes, or that of the root."""
    return taking.holds(f"roots/{root_id}/pushes-lock") or taking.holds_root(root_id)


def registry(taking: Taking, *found: str) -> bool:
    """The lock of the list of roots."""
    return taking.holds("roots/lock")


def collector(taking: Taking, *found: str) -> bool:
    """The collector's lock."""
    return taking.holds_collector()


_ROOT = r"roots/([0-9a-f]{32})"
ROWS: tuple[tuple[str, Callable[..., bool]], ...] = (
    (r"", lambda taking: taking.holds(".", "collector/lock")),
    (r"packs/([0-9a-f]{32})", _pack),
    (r"(?:index|quarantine|fork-server|temporary)/.*", free),
    (r"remotes/\.cache-[^/]*(?:/.*)?", free),
    (r"collector/(?:size|background)", free),
    (r"collector/reserve-\d", free),
    (r"collector/state", collector),
    (r"snapshots/([0-9a-f]{32})(?:/.*)?", root),
    (r"states/.*", registry),
    (r"pending/([0-9a-f]{16})", _pending),
    (r"roots/(?:hook|inode)-.*", free),
    (r"roots/path-.*", registry),
    (rf"{_ROOT}/(?:names|watch/.*)", free),
    (rf"{_ROOT}/cache", _cache),
    (rf"{_ROOT}/(?:cache-recent|journal|history|elsewhere|joined)", root),
    (rf"{_ROOT}/(?:gaps|marks)", _gaps),
    (rf"{_ROOT}/plan-.*", _plan),
    (
        rf"{_ROOT}/config\.toml",
        lambda taking, root_id: registry(taking) or taking.holds_root(root_id),
    ),
    (rf"{_ROOT}/root", registry),
    (rf"{_ROOT}/(?:hold|export)-.*", free),
    (rf"{_ROOT}/(?:pushed|delivered)-.*", pushes),
    (rf"{_ROOT}(?:/watch)?", registry),
    (r"remotes/(?:[^.]|\.machine-).*", lambda taking: taking.holds("remotes/.lock")),
    (r"config\.toml", registry),
    (r"made-here", free),
    (r"moving", lambda taking: taking.holds(".") or taking.holds_collector()),
    (r"links", lambda taking: taking.holds(".")),
    (r"format", lambda taking: taking.is_new() or taking.holds_collector()),
    (r".*\.aside-[0-9a-f]{8}", free),
)
"""What must be held, by where it is; the first row counts that fits."""


def store_of(method: str, path: str) -> tuple[str, str] | None:
    """Returns the store that a path is in, and where; None for a path outside of all stores."""
    places = [found.start() for found in _BELOW.finditer(path)]
    is_whole = method not in ("unlink", "truncate") and not os.path.islink(path)
    whole = (path,) if is_whole else ()  # a link to a store is a name of it, not the store
    for store in (*(path[:place] for place in places), path.rpartition("/")[0], *whole):
        if os.path.lexists(f"{store}/slots") and os.path.lexists(f"{store}/packs"):
            return store, path[len(store) :].strip("/")
    return None


def _path(name: object, dir_fd: int | None) -> str:
    text = os.fsdecode(name)  # type: ignore[arg-type]  # a name, which is str or bytes
    if dir_fd is not None and not text.startswith("/"):
        return os.path.join(_directory(dir_fd), text)
    return text


def _directory(fd: int) -> str:
    """Returns the path of an open directory; of one too deep for that, a path in no store."""
    try:
        return os.readlink(f"/proc/self/fd/{fd}")
    except OSError:
        return ""


def problem_of(method: str, path: str) -> str | None:
    """Returns what is wrong with taking away a path now; None where nothing is."""
    found = store_of(method, path)
    if found is None or found[0].endswith(".partial"):  # a copy that is not there yet
        return None
    taking = Taking(*found, method)
    return None if taking.is_allowed() else f"{method} of {taking.name or 'a store'} in {found[0]}"


def watch_takers(report: Callable[[str], None]) -> None:
    """Looks at each call of the local file system from now on that may take something away."""

    def watched(method: str, paths: Callable[..., tuple[str, ...]]) -> None:
        call = getattr(LocalFileSystem, method)
        is_static = isinstance(getattr_static(LocalFileSystem, method), staticmethod)

        @wraps(call)
        def around(self: LocalFileSystem, *arguments: object, **options: object) -> object:
            for path in paths(*arguments, **options):
                if problem := problem_of(method, path):
                    report(problem)
            return call(*arguments, **options) if is_static else call(self, *arguments, **options)

        setattr(LocalFileSystem, method, around)

    def one(name: object, dir_fd: int | None = None) -> tuple[str, ...]:
        return (_path(name, dir_fd),)

    def source(
        source: object, target: object, source_dir_fd: int | None = None, **_: object
    ) -> tuple[str, ...]:
        return (_path(source, source_dir_fd),)

    def two(
        source: object,
        target: object,
        source_dir_fd: int | None = None,
        target_dir_fd: int | None = None,
        **_: object,
    ) -> tuple[str, ...]:
        return _path(source, source_dir_fd), _path(target, target_dir_fd)

    def opened(fd: int, size_bytes: int) -> tuple[str, ...]:
        return (_directory(fd),)

    watched("unlink", one)
    watched("remove_directory", one)
    watched("rename", two)
    watched("rename_to_absent", source)  # the target is not there, or it fails
    watched("exchange", two)
    watched("truncate", opened)
