"""The processes of this machine, by proc(5): who they are, and which files they use.

Shown are the processes of the user, for root those of all users, in some sandboxes none, and none
where the system is not Linux: then nothing is known, which is what all callers expect.
"""

from __future__ import annotations

import errno
import fcntl
import os
import struct
from array import array
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from functools import lru_cache, partial

from treesnap.core.fs import SHOWS_PROCESSES
from treesnap.core.fs.posix import open_whole, unsupported
from treesnap.core.model.late_regex import LateRegex
from treesnap.core.model.named_tuple import NamedTuple
from treesnap.core.model.type_names import TYPE_CHECKING, TypeVar

_DESCRIPTORS_MAX = 50_000
_QUERY = 0xC0686611
"""PROCMAP_QUERY of linux/fs.h, known to Linux 6.11 and later."""
_QUESTION = struct.Struct("<9Q4I2Q")
"""Size, what is asked for, from which address; start, end, flags, page size, offset, inode,
device; sizes and addresses of the buffers for a name and a build id."""
_NEXT_SHARED_FILE = 0x08 | 0x10 | 0x20
"""Asks for the first mapping at an address or after it that is shared and of a file."""
_WRITABLE = 0x02
_NAME_SIZE_MAX = 4096
_SHARED = LateRegex(
    rb"(?m)^([0-9a-f]+)-[0-9a-f]+ .([w-]).s [0-9a-f]+ ([0-9a-f]+):([0-9a-f]+) (\d+) *(.*)$",
)
"""Start, permissions, offset, then device, inode and path."""
_VERSION = LateRegex(r"[0-9]+")
_DETAIL = LateRegex(rb"(?m)^(?:([0-9a-f]+)-[0-9a-f]+ |VmFlags:(.*)$)")
"""Of a longer list, proc_pid_smaps(5): where a mapping starts, and its flags at the end."""
_MAY_WRITE = b"mw"
_OURS = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM})
"""Errors that are about this process; any other means that the other one is not shown."""
_READ_SIZE = 64 << 10
_SHOWN_SIZE_MAX = 8 << 20
"""More than any environment that a program starts with, which has 6 MiB at most; see execve(2)."""
_KERNEL_THREAD = 0x00200000
"""PF_KTHREAD, among the flags of a process; see proc_pid_stat(5)."""
_FLAGS_FIELD = 6
"""Of the status of a process, after its name."""
_THREADS_STAY = (5, 19)
"""The first Linux in which no thread of the kernel can run a program, by execve(2)."""
_LINKS_OF_ONE_THREAD = 3
"""Of the directory of a process's threads: one per thread, and two more."""
_CHANGE_OWNER = 1 << 0
"""CAP_CHOWN, see capabilities(7)."""
_ALL_IDS = 1 << 32
_RIGHTS = (b"Uid:", b"Gid:", b"Groups:", b"CapEff:")
"""Lines of a process's status that decide what it may read; see proc_pid_status(5)."""
_Shown = TypeVar("_Shown")


if TYPE_CHECKING or not SHOWS_PROCESSES:

    def open_file_identity(link: str) -> tuple[int, int, int]:
        """Returns type and permissions, device and inode of what a link in /proc leads to."""
        raise unsupported(errno.ENOSYS, link)

else:
    from treesnap.core.fs import linux

    open_file_identity = linux.open_file_identity


class Descriptor(NamedTuple):
    """A descriptor of a process."""

    process_id: int
    link: str
    """A path in /proc by which the kernel leads to the open file, whatever its name is now."""


def process_names() -> list[str]:
    """Returns the ids of the processes that are shown, as they are named in /proc."""
    return [] if not SHOWS_PROCESSES else [name for name in os.listdir("/proc") if name.isdigit()]


def descriptors() -> Iterator[Descriptor]:
    """Yields the first 50,000 descriptors of the processes that are shown, this one's included.

    Costs some 2 microseconds for each.
    """
    count = 0
    with suppress(OSError):
        for name in process_names():
            with suppress(OSError):  # the process has ended, or is not shown
                for number in os.listdir(f"/proc/{name}/fd"):
                    count += 1
                    if count > _DESCRIPTORS_MAX:
                        return
                    yield Descriptor(int(name), f"/proc/{name}/fd/{number}")


def process_namespace() -> str | None:
    """Returns where the ids of processes count for this one, or None where that is not shown.

    That is a boot of a machine and, in it, a namespace; see pid_namespaces(7). Costs four calls.
    """
    if not SHOWS_PROCESSES:
        return None
    try:
        if os.readlink("/proc/self") != f"{os.getpid()}":
            return None  # this is the /proc of another namespace
        boot = read_shown("/proc/sys/kernel/random/boot_id").decode("ascii").strip()
        return f"{boot} {os.stat('/proc/self/ns/pid').st_ino}"
    except (OSError, UnicodeDecodeError):
        return None


def program_of(process_id: int) -> str:
    """Returns the name of the program that a process runs, or a question mark."""
    try:
        return read_shown(f"/proc/{process_id}/comm").decode("utf-8", "replace").strip()
    except OSError:
        return "?"


def read_shown(path: str) -> bytes:
    """Returns what a file in /proc shows, 8 MiB of it at most; raises OSError.

    A process of any user may say that all of its memory is its environment, by prctl(2).
    """
    if not SHOWS_PROCESSES:
        raise unsupported(errno.ENOSYS, path)
    fd = open_whole(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return _all_of(fd, _SHOWN_SIZE_MAX)
    finally:
        os.close(fd)


def parent_of(process_id: int) -> int | None:
    """Returns the parent of a process, or None where that is not shown."""
    try:
        return int(read_shown(f"/proc/{process_id}/stat").rpartition(b")")[2].split()[1])
    except (OSError, ValueError, IndexError):
        return None


def view() -> tuple[object, ...]:
    """Returns what decides which files this process sees and may read; raises OSError.

    In another mount namespace another directory may have the same path, and in another user
    namespace the same rights mean less.
    """
    if not SHOWS_PROCESSES:
        return os.geteuid(), os.getegid(), *sorted(os.getgroups())
    namespaces = [os.readlink(b"/proc/self/ns/" + kind) for kind in (b"mnt", b"user")]
    status = read_shown("/proc/self/status").splitlines()
    return *namespaces, tuple(line for line in status if line.startswith(_RIGHTS))


def may_give_owners() -> bool:
    """Returns whether this process may give a file to any user.

    This takes a capability that root may lack. In a user namespace in which most users are not
    mapped, the capability is not enough. Read once per process and user.
    """
    return _may_give_owners(os.getpid(), os.geteuid())


def unmapped_owner_id() -> int | None:
    """Returns who owns the files of users that this process's user namespace does not map.

    None where it maps all users. In a sandbox, that is often the owner of all directories but
    those of the user, root's too. Costs two small reads.
    """
    try:
        table = read_shown("/proc/self/uid_map")
        if _mapped(table) >= _ALL_IDS - 1:
            return None
        return int(read_shown("/proc/sys/kernel/overflowuid"))
    except (OSError, ValueError, IndexError):  # nothing is shown
        return None


def _mapped(table: bytes) -> int:
    """Returns how many ids a table of a user namespace maps."""
    return sum(int(row.split()[2]) for row in table.splitlines())


@lru_cache(maxsize=4)
def _may_give_owners(process_id: int, user_id: int) -> bool:
    try:
        status = read_shown(f"/proc/{process_id}/status")
        maps = [read_shown(f"/proc/{process_id}/{name}") for name in ("uid_map", "gid_map")]
        (line,) = [line for line in status.splitlines() if line.startswith(b"CapEff:")]
        capabilities = int(line.split()[1], 16)
        counts = list(map(_mapped, maps))
    except (OSError, ValueError, IndexError):  # nothing is shown
        return user_id == 0
    return bool(capabilities & _CHANGE_OWNER) and min(counts) >= _ALL_IDS - 1


class Mapping(NamedTuple):
    """A mapping that its process may write to, of a file that others see written."""

    device: tuple[int, int]
    """Major and minor number; on some file systems others than lstat(2) tells."""
    inode: int
    path: bytes
    """Empty, or as the kernel shows it: sometimes with a backslash and 012 for a newline, and with
    `` (deleted)`` at its end when the file no longer has that name."""


class KernelThreads:
    """The kernel's own processes, as far as they were met: they never map anything.

    For a process that looks at mappings again and again. On a machine that does little else, most
    processes are the kernel's. To meet one takes as long as two looks at it. Remembers none
    before Linux 5.19, where such a thread could become a program.
    """

    def __init__(self) -> None:
        major, minor, *_ = _VERSION.compiled.findall(os.uname().release)
        self._stay = SHOWS_PROCESSES and (int(major), int(minor)) >= _THREADS_STAY
        self._inodes: dict[str, int] = {}
        """By name in /proc. Another process of that name would have another inode number."""

    def present(self) -> Collection[str]:
        """Returns the names in /proc of those that are still there. Costs one listing."""
        met = self._inodes
        if met:
            with os.scandir("/proc") as entries:
                listed = [(entry.name, entry.inode()) for entry in entries if entry.name in met]
            self._inodes = {name: inode for name, inode in listed if met[name] == inode}
        return self._inodes.keys()

    def remember_process(self, name: str) -> None:
        """Remembers a process if it is a thread of the kernel; raises OSError."""
        inode = os.stat(f"/proc/{name}").st_ino  # before its flags, which another cannot have
        _, _, fields = read_shown(f"/proc/{name}/stat").rpartition(b")")
        if self._stay and int(fields.split()[_FLAGS_FIELD]) & _KERNEL_THREAD:
            self._inodes[name] = inode


class _Shared(NamedTuple):
    """All shared mappings that a process has of one file, which may be tens of thousands."""

    is_writable: bool
    """Whether one of them may be written to as it is."""
    others: list[int]
    """Where those start that may not."""


_SharedFiles = dict[Mapping, _Shared]


def writable_mappings(
    exactly_below: bytes = b"/", kernel: KernelThreads | None = None, *, asks: bool = True
) -> Iterator[Mapping]:
    """Yields the shared mappings of files that were opened for writing, of all processes shown.

    Whether the process may write to the mapping right now does not matter: a program can drop
    that right and get it back, by mprotect(2), and nothing shows that it did. Where a path does
    not begin with ``exactly_below``, a mapping may be of a file that was opened for reading, and
    the path is left out.

    Each file is yielded once for each process. Memory is that of the files that one process has
    mapped, 300 bytes for each. Costs an open and a query per process, about 5 microseconds, and a
    query per shared mapping. With an older kernel, or without ``asks``, the whole list is read, 8
    microseconds per KiB. For a process that may not write now to a mapping below
    ``exactly_below``, a longer list is read, which costs as much again for each MiB that the
    process uses. The threads of the ``kernel`` that were met before cost nothing. Raises OSError
    when there are too many open files, or no memory.
    """
    names = _shown(process_names, list[str]())
    passed: Collection[str] = _shown(kernel.present, ()) if kernel is not None else ()
    for name in names:
        if name in passed:
            continue
        look = partial(_shared_mappings, f"/proc/{name}", exactly_below, asks=asks)
        not_shown: tuple[str, _SharedFiles | None] = "", {}
        task, files = _shown(look, not_shown)
        if files is None and kernel is not None:
            _shown(partial(kernel.remember_process, name), None)
        read_only: set[int] | None = None
        for mapping, shared in (files or {}).items():
            if not shared.is_writable and mapping.path:
                if read_only is None:
                    read_only = _shown(partial(_never_writable, task), set[int]())
                if read_only.issuperset(shared.others):
                    continue
            yield mapping


def _shown(look: Callable[[], _Shown], otherwise: _Shown) -> _Shown:
    try:
        return look()
    except OSError as error:
        if error.errno in _OURS:
            raise
        return otherwise


def _shared_mappings(process: str, below: bytes, *, asks: bool) -> tuple[str, _SharedFiles | None]:
    """Returns what files a process has mapped, and the task that shows it.

    None stands for a process that has no memory.
    """
    files = _mapped_by(process, below, asks=asks)
    if files is not None:
        return process, files
    # It has no memory, or its first thread has ended and the others go on.
    if os.stat(f"{process}/task").st_nlink <= _LINKS_OF_ONE_THREAD:
        return process, None
    for thread in os.listdir(f"{process}/task"):
        task = f"{process}/task/{thread}"
        files = _mapped_by(task, below, asks=asks)
        if files is not None:
            return task, files
    return process, None


def _mapped_by(task: str, below: bytes, *, asks: bool) -> _SharedFiles | None:
    """Returns the files that a task's memory has shared mappings of, or None when it has none."""
    try:
        fd = open_whole(f"{task}/maps", os.O_RDONLY | os.O_CLOEXEC)
    except ProcessLookupError:
        return None
    try:
        if asks:
            try:
                return _asked(fd, below)
            except ProcessLookupError:
                return None
            except OSError:
                pass  # an older kernel, or too long a path
        return _read(fd, below)
    finally:
        os.close(fd)


def _add(
    files: _SharedFiles, start: int, mapping: Mapping, below: bytes, *, is_writable: bool
) -> None:
    shown = mapping.path, mapping.path.replace(rb"\012", b"\n")
    if not any(path.startswith(below) for path in shown):
        mapping = mapping._replace(path=b"")
    shared = files.setdefault(mapping, _Shared(is_writable=False, others=[]))
    if is_writable:
        files[mapping] = _Shared(is_writable=True, others=[])
    elif not shared.is_writable:
        shared.others.append(start)


def _asked(fd: int, below: bytes) -> _SharedFiles:
    """Returns what is mapped, where each mapping is a query to the kernel.

    A query goes over all mappings until it finds one, so none is asked twice.
    """
    files: _SharedFiles = {}
    name = array("B", bytes(_NAME_SIZE_MAX))
    name_address, _ = name.buffer_info()
    end = 0
    while True:
        question = bytearray(
            _QUESTION.pack(
                *(_QUESTION.size, _NEXT_SHARED_FILE, end, 0, 0, 0, 0, 0, 0),
                *(0, 0, _NAME_SIZE_MAX, 0, name_address, 0),
            )
        )
        try:
            fcntl.ioctl(fd, _QUERY, question)
        except FileNotFoundError:
            return files
        _, _, _, start, end, flags, _, _, inode, major, minor, name_size, *_ = _QUESTION.unpack(
            question
        )
        path = name[: max(0, name_size - 1)].tobytes()
        mapping = Mapping((major, minor), inode, path)
        _add(files, start, mapping, below, is_writable=bool(flags & _WRITABLE))


def _read(fd: int, below: bytes) -> _SharedFiles | None:
    """Returns what is mapped from a list of all mappings, or None when that is empty."""
    files: _SharedFiles = {}
    rest = b""
    is_empty = True
    while piece := os.read(fd, _READ_SIZE):
        is_empty = False
        lines, newline, rest = (rest + piece).rpartition(b"\n")
        for start, writable, major, minor, inode, path in _SHARED.compiled.findall(lines + newline):
            mapping = Mapping((int(major, 16), int(minor, 16)), int(inode), path)
            _add(files, int(start, 16), mapping, below, is_writable=writable == b"w")
    return None if is_empty else files


def _all_of(fd: int, size_bytes_max: int) -> bytes:
    pieces = []
    size_bytes = 0
    while size_bytes < size_bytes_max and (piece := os.read(fd, _READ_SIZE)):
        pieces.append(piece)
        size_bytes += len(piece)
    return b"".join(pieces)


def _never_writable(task: str) -> set[int]:
    """Returns the starts of the mappings that can never be made writable."""
    starts: set[int] = set()
    start = b""
    for begins, flags in _DETAIL.compiled.findall(read_shown(f"{task}/smaps")):
        if begins:
            start = begins
        elif _MAY_WRITE not in flags.split():
            starts.add(int(start, 16))
    return starts
