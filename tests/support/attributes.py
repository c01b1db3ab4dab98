"""Extended attributes of a path, as a test sets and reads them on any system.

Python has calls for them on Linux alone. Those of a Mac are made here once more, so that what is
tested is not asked. What the system gives to files by itself is not among them.
"""

from __future__ import annotations

import ctypes
import os
import sys

_OF_SYSTEM = ("com.apple.system.", "com.apple.macl", "com.apple.provenance", "com.apple.rootless")
_NOT_FOLLOWED = 1
"""XATTR_NOFOLLOW of sys/xattr.h."""


def attributes_of(path: bytes) -> tuple[tuple[str, bytes], ...]:
    """Returns all attributes of a path itself, by name; raises OSError."""
    if hasattr(os, "listxattr"):
        names = sorted(os.listxattr(path, follow_symlinks=False))
        return tuple((name, os.getxattr(path, name, follow_symlinks=False)) for name in names)
    if sys.platform != "darwin":
        return ()
    names = sorted(os.fsdecode(name) for name in _filled("listxattr", path).split(b"\0") if name)
    return tuple(
        (name, _filled("getxattr", path, name.encode(), position=True))
        for name in names
        if not name.startswith(_OF_SYSTEM)
    )


def set_attribute(path: str | os.PathLike[str], name: str, value: bytes) -> None:
    """Sets an attribute of the user's; raises OSError where there are none."""
    if hasattr(os, "setxattr"):
        os.setxattr(path, f"user.{name}", value)
        return
    call = ctypes.CDLL(None, use_errno=True).setxattr
    size = ctypes.c_size_t(len(value))
    if call(os.fsencode(path), name.encode(), value, size, ctypes.c_uint32(0), _NOT_FOLLOWED) < 0:
        raise _last_error()


def _filled(call: str, path: bytes, *names: bytes, position: bool = False) -> bytes:
    """Returns what a call fills a buffer with that is as long as it says."""
    function = getattr(ctypes.CDLL(None, use_errno=True), call)
    function.restype = ctypes.c_ssize_t
    where = (ctypes.c_uint32(0),) if position else ()
    size = function(path, *names, None, ctypes.c_size_t(0), *where, _NOT_FOLLOWED)
    buffer = ctypes.create_string_buffer(max(size, 1))
    if size >= 0:
        size = function(path, *names, buffer, ctypes.c_size_t(size), *where, _NOT_FOLLOWED)
    if size < 0:
        raise _last_error()
    return buffer.raw[:size]


def _last_error() -> OSError:
    return OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
