"""All tests on a volume that a Mac may have: a plugin of pytest, for ``tox -e mac``.

``TREESNAP_TEST_VOLUME`` names one of ``libsystem.VOLUMES``. Then ``LocalFileSystem`` is that of a
Mac over the double of its C library, and what tests do by themselves is done as on that volume:
times have its steps, a second name of a file is a copy where files have one name each. It is
loaded before anything else, by ``-p volumes``, because modules keep the functions of ``os``.
Without the variable it changes nothing, and tests ask it what the volume can.
"""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any
from unicodedata import normalize

NAME = os.environ.get("TREESNAP_TEST_VOLUME", "")
_STEPS_NS = {"HFS+": 10**9, "exFAT": 10**7, "SMB": 2 * 10**9}
_WITHOUT_LINKS = frozenset({"exFAT", "SMB"})
STEP_NS = _STEPS_NS.get(NAME, 1)
"""How exact times are."""
HAS_LINKS = NAME not in _WITHOUT_LINKS
HAS_ATTRIBUTES = NAME not in _WITHOUT_LINKS
_APFS = ("APFS", "case-sensitive APFS")
THERE = frozenset(
    need
    for need, names in {
        "any names": ("",),
        "exchange": _APFS,
        "absent names": (*_APFS, "HFS+"),
        "own syncs": ("", *_APFS, "HFS+"),
    }.items()
    if NAME in names
)
"""What tests need that not every file system has, and the one that they run on has."""
_DECOMPOSES = NAME == "HFS+"
_PLAIN = (stat.S_IFREG, stat.S_IFLNK, stat.S_IFIFO)


def can_keep(name: bytes) -> bool:
    """Returns whether a name may be given to a file, and comes back as it was given."""
    try:
        text = name.decode()
    except UnicodeDecodeError:
        return not NAME
    return not _DECOMPOSES or normalize("NFD", text) == text


def _in_steps(found: os.stat_result) -> os.stat_result:
    """Returns what a volume says of a file of which another one says this."""
    values = {name: getattr(found, name) for name in dir(found) if name.startswith("st_")}
    for time in ("atime", "mtime", "ctime"):
        time_ns = values[f"st_{time}_ns"] // STEP_NS * STEP_NS
        values |= {f"st_{time}_ns": time_ns, f"st_{time}": time_ns / 10**9}
    shown = [*found[:7], *(int(values[f"st_{time}"]) for time in ("atime", "mtime", "ctime"))]
    return os.stat_result(shown, values)


def _stating(call: Callable[..., os.stat_result]) -> Callable[..., os.stat_result]:
    @wraps(call)
    def look(*arguments: Any, **options: Any) -> os.stat_result:
        return _in_steps(call(*arguments, **options))

    return look


class _Entry:
    """An entry of a listing, with the times of the volume."""

    def __init__(self, entry: os.DirEntry[str]) -> None:
        self._entry = entry
        self.name, self.path = entry.name, entry.path
        self.is_dir, self.is_file, self.is_symlink = entry.is_dir, entry.is_file, entry.is_symlink
        self.inode = entry.inode

    def stat(self, *, follow_symlinks: bool = True) -> os.stat_result:
        return _in_steps(self._entry.stat(follow_symlinks=follow_symlinks))

    def __fspath__(self) -> str:
        return self.path


@contextmanager
def _listing(names: Any) -> Iterator[Iterator[_Entry]]:
    with names as entries:
        yield map(_Entry, entries)


def _copy(source: Any, target: Any, *, follow_symlinks: bool = True, **at: int) -> None:
    """Gives a file another name where it can have one only, as programs do that fall back."""
    assert not at, "only the product has directories open, and asks for no link here"
    kind = stat.S_IFMT(os.lstat(source).st_mode)
    if kind not in _PLAIN:
        raise PermissionError(1, os.strerror(1), source)
    if os.path.lexists(target):
        raise FileExistsError(17, os.strerror(17), target)
    if kind == stat.S_IFIFO:
        os.mkfifo(target, stat.S_IMODE(os.lstat(source).st_mode))
    else:
        shutil.copy2(source, target, follow_symlinks=follow_symlinks)


def _setxattr(call: Callable[..., None]) -> Callable[..., None]:
    @wraps(call)
    def set_one(path: Any, name: str, *arguments: Any, **options: Any) -> None:
        if not (HAS_ATTRIBUTES and os.fsdecode(name).startswith("user.")):
            raise OSError(95, os.strerror(95), path)
        call(path, name, *arguments, **options)

    return set_one


def _replace(name: str, function: Callable[..., Any]) -> None:
    """Puts a function into ``os``, which says in sets of functions what each can do."""
    for known in (os.supports_dir_fd, os.supports_fd, os.supports_follow_symlinks):
        if getattr(os, name) in known:
            known.add(function)
    setattr(os, name, function)


def _use() -> None:
    """Makes this process one on the volume; before treesnap is imported."""
    os.environ["TREESNAP_FS"] = "posix"
    if STEP_NS > 1:
        for name in ("stat", "lstat", "fstat"):
            _replace(name, _stating(getattr(os, name)))
    if not HAS_LINKS:
        _replace("link", _copy)
    _replace("setxattr", _setxattr(os.setxattr))

    from libsystem import VOLUMES, MacFileSystem
    from treesnap.core.fs import local
    from treesnap.testing import children, doubles

    class VolumeFileSystem(MacFileSystem):
        """The file system that is found where none is given."""

        def __init__(self, path: str = "/") -> None:
            del path
            super().__init__("/", VOLUMES[NAME])

        def scan(self, directory: Any) -> Any:
            names = super().scan(directory)
            return _listing(names) if STEP_NS > 1 else names

    local.LocalFileSystem = VolumeFileSystem
    doubles.LocalFileSystem = doubles.UnsyncedFileSystem = VolumeFileSystem
    children.UnsyncedFileSystem = VolumeFileSystem
    local.for_store = VolumeFileSystem


if NAME:
    _use()
