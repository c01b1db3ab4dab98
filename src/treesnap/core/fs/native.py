"""The module in C, where it was built: looks at directories, checks rows, makes system calls.

Nothing needs it: the modules that call it say what it does, and do the same without it. It
never decides what a capture holds. ``TREESNAP_PURE=1`` in the environment leaves it alone.
"""

from __future__ import annotations

import os
from importlib import import_module

from treesnap.core.fs import IS_LINUX
from treesnap.core.fs.base import FileSystem
from treesnap.core.model.type_names import Protocol, TypeVar, cast

_FileSystem = TypeVar("_FileSystem")

INTERFACE = 3
"""Which functions the module has. One that was built from other sources is not used."""
PURE_VARIABLE = "TREESNAP_PURE"

_Table = tuple[memoryview | bytes, int, int]
"""A file of the stat cache, where its table begins, and how many rows it has."""


class Native(Protocol):
    """The functions of the module in C; see ``native/_native.c``."""

    INTERFACE: int
    STATX: int
    RENAMEAT2: int
    SYNCFS: int
    """Numbers of system calls."""

    def observe(self, fd: int, ignore_file: bytes, reserved_prefix: bytes, /) -> bytes | None:
        """Returns the packed observations of an open directory; raises OSError, MemoryError.

        Returns None where something has to be looked at more closely: other links, an ignore
        file, a reserved name, a name at which the look failed.
        """

    def compare(
        self,
        root_fd: int,
        ignore_file: bytes,
        reserved_prefix: bytes,
        recent: _Table,
        base: _Table,
        inodes: bytes,
        threads: int,
        /,
    ) -> bytes:
        """Returns what each directory that may differ from its row needs; raises MemoryError.

        Rows of ``recent`` go before those of ``base``; ``inodes`` are sorted numbers of eight
        bytes, of files that count as changed. The answer is a run of ``kind u8 | length of the
        path u32 | length of the observations u32 | path | observations``, with numbers as the
        processor has them. Releases the interpreter, and runs the handlers of signals meanwhile.
        """

    def are_plain(self, rows: tuple[object, ...], width: int, /) -> bool:
        """Returns whether all decoded rows are plain: of an entry's width, or an observation's.

        Their names are valid and rise, and every field is one that a reader accepts. Where one is
        of another kind than a file of one chunk or a directory, or has attributes, the answer is
        no as well.
        """

    def call(self, number: int, /, *arguments: int | bytes | bytearray) -> int:
        """Makes a system call, which may fill a bytearray; raises OSError."""


def _imported() -> Native | None:
    if not IS_LINUX:
        return None
    if os.environ.get(PURE_VARIABLE, "0") not in {"", "0"}:
        return None
    try:
        module = import_module("treesnap.core._native")
    except ImportError:
        return None
    return cast(Native, module) if module.INTERFACE == INTERFACE else None


_kernels_own: set[type] = set()
module: Native | None = _imported()
"""The module, or None where it was not built, is another one's, or is not wanted."""


def kernels_own(cls: type[_FileSystem]) -> type[_FileSystem]:
    """Says of a class of file systems that it looks as the kernel does.

    Not what stands in front of one, as in tests.
    """
    _kernels_own.add(cls)
    return cls


def accelerator(fs: FileSystem) -> Native | None:
    """Returns the module for a file system, or None for one that it would go past."""
    return module if type(fs) in _kernels_own else None


def implementation() -> str:
    """Returns in which language directories are looked at: ``C`` or ``Python``."""
    return "C" if module is not None else "Python"
