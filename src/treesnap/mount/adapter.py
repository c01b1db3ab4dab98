"""A view of history as a file system of FUSE; the only user of mfusepy.

libfuse calls one operation after the other: the view is for one thread, and Python would run
only one at a time anyway. Each answers with an error number; what the reason is, is reported.

A path such as ``latest/file`` leads to other bytes once there is a newer snapshot, while the
kernel keeps the pages of a path whatever it leads to. So only paths that never change are kept
in its page cache. Of others every read comes here, and goes to the file that was opened.
"""

from __future__ import annotations

import errno
import os
import signal
from collections.abc import Callable, Iterator
from functools import partial
from itertools import count
from typing import Any, TypeVar

import mfusepy

from treesnap.core.fs.os_errors import error_text
from treesnap.core.model.errors import NotFound, OperationFailed, TreesnapError, printable, quoted
from treesnap.mount.view import HistoryView, ReadableFile

_REPORTED_MAX = 1000
_SIGNALS = (signal.SIGTERM, signal.SIGHUP)
"""Beside SIGINT. libfuse ends at each, unless a program has a handler of its own."""
_ENDED = 8
"""What libfuse 3 returns when a signal ends it."""
_Result = TypeVar("_Result")


def serve(
    view: HistoryView,
    path: str,
    name: str,
    *,
    ready: Callable[[], None],
    report: Callable[[str], None],
) -> None:
    """Mounts a view at an empty directory, and serves it until it is unmounted.

    Raises OperationFailed if libfuse cannot mount it; it says why on standard error.
    """
    operations = _Operations(view, ready, report)
    old_handlers = {number: signal.getsignal(number) for number in _SIGNALS}
    for number, handler in old_handlers.items():
        if handler != signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)
    directory = os.open(".", os.O_RDONLY | os.O_DIRECTORY)  # libfuse goes to /
    try:
        _Fuse(
            operations,
            path,
            raw_fi=True,
            foreground=True,
            nothreads=True,
            ro=True,
            use_ino=True,
            fsname=name,
            subtype=name,
        )
    except RuntimeError as error:
        if operations.is_ready and error.args == (_ENDED,):
            return
        raise OperationFailed(f"libfuse could not mount {quoted(path)}", path=path) from error
    finally:
        os.fchdir(directory)
        os.close(directory)
        for number, handler in old_handlers.items():
            signal.signal(number, handler)


class _Fuse(mfusepy.FUSE):
    """The binding, with the one call that it declares and does not pass on."""

    def lseek(self, _: bytes | None, offset: int, whence: int, info: Any) -> int:
        """Answers SEEK_DATA and SEEK_HOLE, by which programs see where a file has holes."""
        position: int = self.operations.lseek(offset, whence, info.contents.fh)
        return position


class _Operations(mfusepy.Operations):
    """What libfuse asks for. Paths are text, in which any bytes are escaped."""

    use_ns = True

    def __init__(
        self, view: HistoryView, ready: Callable[[], None], report: Callable[[str], None]
    ) -> None:
        self._view = view
        self._ready = ready
        self._report = report
        self._reported: set[str] = set()
        self._files: dict[int, ReadableFile] = {}
        self._numbers = count(1)
        self.is_ready = False
        """Whether it was mounted."""

    def init(self, _path: str) -> None:
        self.is_ready = True
        self._ready()

    def getattr(self, path: str, _info: Any = None) -> dict[str, int]:
        view, where = self._view, _bytes(path)
        return self._answer(where, lambda: view.stat(view.node(where)))

    def readdir(self, path: str, _info: Any) -> Iterator[tuple[str, dict[str, int], int]]:
        where = _bytes(path)
        names = self._answer(where, lambda: list(self._view.names(where)))
        above = where.rpartition(b"/")[0] or b"/"
        for name, directory in ((".", where), ("..", above)):
            node = self._answer(directory, partial(self._view.node, directory))
            yield name, {"st_mode": node.file_type, "st_ino": node.inode}, 0
        for item in names:
            yield _text(item.name), {"st_mode": item.file_type, "st_ino": item.inode}, 0

    def readlink(self, path: str) -> str:
        where = _bytes(path)
        entry = self._answer(where, lambda: self._view.node(where)).entry
        if entry is None:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        return _text(entry.target)

    def listxattr(self, path: str) -> list[str]:
        where = _bytes(path)
        return [_text(name) for name, _ in self._answer(where, lambda: self._view.xattrs(where))]

    def getxattr(self, path: str, name: str, _position: int = 0) -> bytes:
        where = _bytes(path)
        attributes = dict(self._answer(where, lambda: self._view.xattrs(where)))
        try:
            return attributes[_bytes(name)]
        except KeyError:
            raise OSError(mfusepy.ENOATTR, os.strerror(mfusepy.ENOATTR)) from None

    def open(self, path: str, info: Any) -> int:
        where = _bytes(path)
        file = self._answer(where, lambda: self._view.open(where))
        info.fh = next(self._numbers)
        info.keep_cache = file.is_fixed
        info.direct_io = not file.is_fixed
        self._files[info.fh] = file
        return 0

    def release(self, _path: str, info: Any) -> int:
        del self._files[info.fh]
        return 0

    def read(self, _path: str, size: int, offset: int, info: Any) -> bytes:
        file = self._files[info.fh]
        return self._read(file, lambda: self._view.read(file, offset, size))

    def lseek(self, offset: int, whence: int, number: int) -> int:
        file, view = self._files[number], self._view
        if not 0 <= offset < file.entry.size:
            raise OSError(errno.ENXIO, os.strerror(errno.ENXIO))
        if whence == os.SEEK_HOLE:
            return self._read(file, lambda: view.next_hole(file, offset))
        position = self._read(file, lambda: view.next_data(file, offset))
        if position is None:
            raise OSError(errno.ENXIO, os.strerror(errno.ENXIO))
        return position

    def _read(self, file: ReadableFile, call: Callable[[], _Result]) -> _Result:
        """Returns what a call returns; what an open file lacks is an error, never an absence."""
        try:
            return call()
        except (TreesnapError, OSError) as error:
            raise self._failed(file.path, error) from error

    def _answer(self, path: bytes, call: Callable[[], _Result]) -> _Result:
        """Returns what a call returns; raises OSError with the number that says what is wrong."""
        try:
            return call()
        except NotFound as error:
            raise OSError(errno.ENOENT, os.strerror(errno.ENOENT)) from error
        except (TreesnapError, OSError) as error:
            raise self._failed(path, error) from error

    def _failed(self, path: bytes, error: Exception) -> OSError:
        """Reports why a path cannot be read, once; returns EIO."""
        line = f"{printable(path)} cannot be read: {error_text(error)}"
        if line not in self._reported:
            if len(self._reported) < _REPORTED_MAX:
                self._reported.add(line)
            self._report(line)
        return OSError(errno.EIO, os.strerror(errno.EIO))


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def _text(data: bytes) -> str:
    return data.decode("utf-8", "surrogateescape")
