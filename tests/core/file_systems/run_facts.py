"""What a system does of which treesnap takes something for granted: a line of JSON for each fact.

For macOS, where nothing of this was looked at yet. A directory may be named, whose volume is tried.
With a compiler it also compares the numbers and layouts of ``fs/darwin.py`` with the headers. On
Linux it says of most facts that they need a Mac. Exits 1 where a fact is another than what
treesnap takes for granted.
"""

from __future__ import annotations

import errno
import fcntl
import json
import mmap
import os
import platform
import shutil
import socket
import stat
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from treesnap.core.fs import darwin, record_locks
from treesnap.core.fs.base import NoAttribute, Unsupported
from treesnap.core.fs.darwin import DarwinFileSystem

IS_MAC = sys.platform == "darwin"
O_EVTONLY = 0x8000
DIRECTORY = os.O_RDONLY | os.O_DIRECTORY
NEW = os.O_RDWR | os.O_CREAT | os.O_EXCL
TIME_NS = 1_000_000_001_123_456_789
HEADERS = """
#include <stdio.h>
#include <stddef.h>
#include <fcntl.h>
#include <errno.h>
#include <sys/acl.h>
#include <sys/attr.h>
#include <sys/clonefile.h>
#include <sys/fsctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/stdio.h>
#include <sys/un.h>
#include <sys/xattr.h>
#define SHOW(name) printf("%s %lld\\n", #name, (long long)(name))
int main(void) {
    SHOW(RENAME_SWAP); SHOW(RENAME_EXCL); SHOW(O_SYMLINK); SHOW(O_EVTONLY);
    SHOW(F_PREALLOCATE); SHOW(F_GETPATH); SHOW(F_FULLFSYNC); SHOW(F_PUNCHHOLE);
    SHOW(F_ALLOCATEALL); SHOW(F_PEOFPOSMODE); SHOW(CLONE_NOFOLLOW); SHOW(CLONE_NOOWNERCOPY);
    SHOW(EPERM); SHOW(ENOENT); SHOW(EDEADLK); SHOW(EXDEV); SHOW(EINVAL); SHOW(ENOTTY);
    SHOW(ERANGE); SHOW(ENOTSUP); SHOW(ENOSYS); SHOW(ENOATTR); SHOW(EOPNOTSUPP); SHOW(EILSEQ);
    SHOW(IOPOL_TYPE_VFS_MATERIALIZE_DATALESS_FILES); SHOW(IOPOL_MATERIALIZE_DATALESS_FILES_OFF);
    SHOW(IOPOL_SCOPE_THREAD); SHOW(_FILESEC_REMOVE_ACL); SHOW(ACL_TYPE_EXTENDED);
    SHOW(UF_IMMUTABLE | UF_APPEND | SF_IMMUTABLE | SF_APPEND | SF_NOUNLINK);
    SHOW(UF_NODUMP); SHOW(UF_OPAQUE); SHOW(UF_HIDDEN); SHOW(SF_DATALESS);
    SHOW(ATTR_VOL_INFO | ATTR_VOL_UUID); SHOW(sizeof(struct attrlist));
    SHOW(sizeof(fstore_t)); SHOW(sizeof(struct fpunchhole)); SHOW(sizeof(struct flock));
    SHOW(offsetof(struct fstore, fst_length)); SHOW(offsetof(struct fpunchhole, fp_offset));
    SHOW(offsetof(struct flock, l_type)); SHOW(offsetof(struct flock, l_whence));
    SHOW(sizeof(((struct sockaddr_un *)0)->sun_path));
#ifdef FSIOC_SYNC_VOLUME
    SHOW(FSIOC_SYNC_VOLUME);
#endif
#ifdef FSCTL_SYNC_FULLSYNC
    SHOW(FSCTL_SYNC_FULLSYNC); SHOW(FSCTL_SYNC_WAIT);
#endif
    return 0;
}
"""
TAKEN = {
    **{name: getattr(darwin, name) for name in dir(darwin) if name.isupper()},
    "O_EVTONLY": O_EVTONLY,
    "EILSEQ": 92,
    "IOPOL_TYPE_VFS_MATERIALIZE_DATALESS_FILES": darwin.DATALESS_POLICY,
    "IOPOL_MATERIALIZE_DATALESS_FILES_OFF": darwin.NO_DOWNLOAD,
    "IOPOL_SCOPE_THREAD": darwin.OF_THREAD,
    "_FILESEC_REMOVE_ACL": darwin.NO_ACL,
    "ACL_TYPE_EXTENDED": 0x100,
    "UF_IMMUTABLE | UF_APPEND | SF_IMMUTABLE | SF_APPEND | SF_NOUNLINK": darwin.CLONED_FLAGS,
    "UF_NODUMP": 0x1,
    "UF_OPAQUE": 0x8,
    "UF_HIDDEN": 0x8000,
    "SF_DATALESS": darwin.DATALESS,
    "ATTR_VOL_INFO | ATTR_VOL_UUID": darwin.VOLUME_UUID,
    "sizeof(struct attrlist)": 24,
    "sizeof(fstore_t)": darwin.PREALLOCATE.size,
    "sizeof(struct fpunchhole)": darwin.PUNCH_HOLE.size,
    "sizeof(struct flock)": struct.calcsize("qqihh"),
    "offsetof(struct fstore, fst_length)": 16,
    "offsetof(struct fpunchhole, fp_offset)": 8,
    "offsetof(struct flock, l_type)": 20,
    "offsetof(struct flock, l_whence)": 22,
    "sizeof(((struct sockaddr_un *)0)->sun_path)": 104,
    "FSIOC_SYNC_VOLUME": darwin.SYNC_VOLUME,
    "FSCTL_SYNC_FULLSYNC": darwin.SYNC_FULL,
    "FSCTL_SYNC_WAIT": darwin.SYNC_WAIT,
}
"""What the headers are to say of each."""


class Facts:
    """Tries things in a directory of its own, and prints what came of each."""

    def __init__(self, place: Path, fs: DarwinFileSystem | None = None) -> None:
        self.place = place
        self.fs = fs or DarwinFileSystem()
        self.wrong: list[str] = []

    def tell(self, fact: str, found: Callable[[], Any], expected: Any = None) -> None:
        """Prints a fact; notes it where something else is taken for granted.

        That a volume has no such thing is not: the program finds it out where it needs it.
        """
        try:
            value = found()
        except Exception as error:  # noqa: BLE001 - that is what came of it
            number = getattr(error, "errno", None)
            if isinstance(error, Unsupported) or number in {errno.ENOTSUP, errno.EOPNOTSUPP}:
                expected = None
            known = errno.errorcode.get(number or 0, number)
            value = f"{type(error).__name__} {known or error}"
        line = {"fact": fact, "found": value}
        if expected is not None:
            line["expected"] = expected
            if value != expected:
                self.wrong.append(fact)
        sys.stdout.write(json.dumps(line) + "\n")
        sys.stdout.flush()

    def new(self, name: str, content: bytes = b"content") -> Path:
        """Makes a file."""
        path = self.place / name
        path.write_bytes(content)
        return path

    # ------------------------------------------------------------- any Unix

    def time_step(self) -> int:
        path = self.new("time")
        os.utime(path, ns=(TIME_NS, TIME_NS))
        kept_ns = path.lstat().st_mtime_ns
        steps = (1, 100, 1000, 10**7, 10**9, 2 * 10**9)
        return next(step for step in steps if TIME_NS // step * step == kept_ns)

    def spelling(self, name: str, other: str) -> bool:
        self.new(name)
        return (self.place / other).exists()

    def written_name(self) -> list[str]:
        directory = self.place / "names"
        directory.mkdir()
        (directory / "caf\u00e9").touch()
        return [ascii(name) for name in os.listdir(directory)]

    def name_of_bytes(self) -> str:
        os.close(os.open(os.fsencode(self.place) + b"/\xff", NEW))
        return "taken"

    def mapped_write(self) -> str:
        """Whether a write through a mapping changes the time before the mapping is closed."""
        path = self.new("mapped", bytes(4096))
        os.utime(path, ns=(TIME_NS, TIME_NS))
        with path.open("r+b") as file, mmap.mmap(file.fileno(), 4096) as mapping:
            mapping[0] = 1
            time.sleep(0.1)
            is_early = path.lstat().st_mtime_ns != TIME_NS
            mapping.flush()
            is_flushed = path.lstat().st_mtime_ns != TIME_NS
        is_late = path.lstat().st_mtime_ns != TIME_NS
        return f"at once {is_early}, after msync {is_flushed}, after close {is_late}"

    def own_record_lock(self) -> bool:
        """Whether the question of an open file description names a lock of this process."""
        path = self.new("locked")
        with path.open("r+b") as file, path.open("r+b") as other:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return record_locks.has_own_locks(other.fileno())

    def directory_lock(self) -> bool:
        fd = os.open(self.place, DIRECTORY)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        finally:
            os.close(fd)
        return True

    def pipe(self, mode: int = stat.S_IFIFO | 0o600) -> bool:
        os.mknod(self.place / "pipe", mode)
        return stat.S_ISFIFO(os.lstat(self.place / "pipe").st_mode)

    def peer(self) -> str:
        left, right = socket.socketpair(socket.AF_UNIX)
        with left, right:
            record = left.getsockopt(0, 1, 128)  # SOL_LOCAL, LOCAL_PEERCRED
            version, uid = struct.unpack_from("Ii", record)
            peer = left.getsockopt(0, 2, 4)  # LOCAL_PEERPID
        is_own = (uid, struct.unpack("i", peer)[0]) == (os.geteuid(), os.getpid())
        return f"version {version}, own {is_own}"

    def tell_of_any(self) -> None:
        """Facts that each Unix has."""
        self.tell("step of modification times, ns", self.time_step)
        self.tell("another case is the same name", lambda: self.spelling("Case", "cASE"))
        self.tell("another form is the same name", lambda: self.spelling("e\u0301", "\u00e9"))
        self.tell("ss is the same as sharp s", lambda: self.spelling("stra\u00dfe", "strasse"))
        self.tell("a composed name comes back as", self.written_name)
        self.tell("a name that is not UTF-8", self.name_of_bytes)
        self.tell("a write through a mapping shows in the time", self.mapped_write)
        self.tell("an own record lock is named", self.own_record_lock, expected=True)
        self.tell("a directory can be locked", self.directory_lock)
        self.tell("mknod makes a pipe without rights", self.pipe, expected=True)
        self.tell("os.mknod takes a directory", lambda: os.mknod in os.supports_dir_fd)
        self.tell("os.chmod takes a link", lambda: os.chmod in os.supports_follow_symlinks)
        self.tell("os.waitid is there", lambda: hasattr(os, "waitid"))
        self.tell("os.statvfs names the file system", lambda: os.statvfs(self.place).f_fsid != 0)
        self.tell("st_birthtime", lambda: repr(os.stat(self.place).st_birthtime))
        self.tell("inode is kept by a rename", self.kept_inode, expected=True)

    def kept_inode(self) -> bool:
        path = self.new("renamed")
        inode = path.lstat().st_ino
        path.rename(self.place / "renamed too")
        return (self.place / "renamed too").lstat().st_ino == inode

    # ---------------------------------------------------------------- a Mac

    def with_open(self, name: str, flags: int, call: Callable[[int], Any]) -> Any:
        """Returns what a call says of an open file, or of the directory with an empty name."""
        fd = os.open(self.place / name, flags)
        try:
            return call(fd)
        finally:
            os.close(fd)

    def duration_ms(self, call: Callable[[int], object]) -> float:
        """Returns how long a sync of a small new file takes, as the median of nine."""
        took = []
        for number in range(9):
            self.new(f"synced {number}")
            began = time.perf_counter()
            self.with_open(f"synced {number}", os.O_RDWR, call)
            took.append(time.perf_counter() - began)
        return round(sorted(took)[4] * 1000, 2)

    def clone(self) -> str:
        """What a clone takes over from its source."""
        path = self.new("source")
        with_open = self.with_open
        with suppress(Unsupported):
            with_open("source", os.O_RDONLY, lambda fd: self.fs.set_xattr(fd, "colour", b"red"))
        with_open("source", os.O_RDONLY, lambda fd: self.fs.set_xattr(fd, darwin.FLAGS, b"0x8000"))
        path.chmod(0o440)
        flags = darwin.CLONE_NOFOLLOW | darwin.CLONE_NOOWNERCOPY
        top = os.open(self.place, DIRECTORY)
        try:
            source = os.open(path, os.O_RDONLY)
            done = self.fs._libc.fclonefileat(source, top, b"clone", flags)
            os.close(source)
        finally:
            os.close(top)
        if done < 0:
            return "refused"
        made = os.lstat(self.place / "clone")
        names = with_open("clone", os.O_RDONLY, self.fs.list_xattrs)
        return f"mode {stat.S_IMODE(made.st_mode):o}, {sorted({*names} - {darwin.ACL})}"

    def protected_clone(self) -> str:
        """What flags a clone has of a file that its owner may not change."""
        path, other = self.new("kept"), self.place / "clone of kept"
        top = os.open(self.place, DIRECTORY)
        fd = os.open(path, os.O_RDONLY)
        try:
            if self.fs._libc.fchflags(fd, stat.UF_IMMUTABLE) < 0:
                return "no flags"
            options = darwin.CLONE_NOFOLLOW | darwin.CLONE_NOOWNERCOPY
            done = self.fs._libc.fclonefileat(fd, top, os.fsencode(other.name), options)
            return "refused" if done < 0 else hex(os.lstat(other).st_flags)
        finally:
            for item in (path, other):
                with suppress(OSError):
                    os.chflags(item, 0)
            os.close(fd)
            os.close(top)

    def attribute_of(self, name: str, mode: int, attribute: str = "colour") -> str:
        """What comes of an attribute that is set and removed."""
        path = self.new(name)
        path.chmod(mode)

        def change(fd: int) -> str:
            libc, key = self.fs._libc, attribute.encode()
            before = _number(libc.fgetxattr(fd, key, None, 0, 0, 0))
            done = _number(libc.fsetxattr(fd, key, b"red", 3, 0, 0))
            return f"before {before}, set {done}, removed {_number(libc.fremovexattr(fd, key, 0))}"

        return self.with_open(name, os.O_RDONLY, change)

    def attributes_of_pipe(self) -> str:
        os.mkfifo(self.place / "fifo")
        return self.with_open("fifo", os.O_RDONLY | os.O_NONBLOCK, self.fs.list_xattrs)

    def shorter_fork(self) -> bool:
        """Whether the seam leaves nothing of a longer resource fork."""
        self.new("forked")

        def replace(fd: int) -> bool:
            for value in (b"longer", b"new"):
                self.fs.set_xattr(fd, darwin.RESOURCE_FORK, value)
            return self.fs.get_xattr(fd, darwin.RESOURCE_FORK) == b"new"

        return self.with_open("forked", os.O_RDWR, replace)

    def case_only(self) -> list[str]:
        """Names after a rename to the same name in another case that may replace nothing."""
        directory = self.place / "cases"
        directory.mkdir()
        (directory / "Name").touch()
        fd = os.open(directory, DIRECTORY)
        try:
            self.fs.rename_to_absent(b"Name", b"name", source_dir_fd=fd, target_dir_fd=fd)
        finally:
            os.close(fd)
        return os.listdir(directory)

    def birth_after_old_time(self) -> str:
        """Whether a time of modification before that of birth moves it."""
        directory = self.place / "born"
        directory.mkdir()
        before = self.fs.birth_time_ns(os.fspath(directory))
        os.utime(directory, ns=(TIME_NS, TIME_NS))
        return "stays" if self.fs.birth_time_ns(os.fspath(directory)) == before else "moves"

    def policy_of_command(self) -> str:
        """What a command inherits from a thread that downloads nothing."""
        libc = self.fs._libc
        words = "import ctypes; get = ctypes.CDLL(None).getiopolicy_np; print(get(3, 0), get(3, 1))"

        def told() -> str:
            command = [sys.executable, "-c", words]
            return subprocess.run(command, check=True, capture_output=True, text=True).stdout

        before = told()
        libc.setiopolicy_np(darwin.DATALESS_POLICY, darwin.OF_THREAD, darwin.NO_DOWNLOAD)
        try:
            return "the same" if told() == before else "another one"
        finally:
            libc.setiopolicy_np(darwin.DATALESS_POLICY, darwin.OF_THREAD, 0)

    def shared(self) -> bool:
        """Whether the seam's clone is complete and plain."""
        top = os.open(self.place, DIRECTORY)
        fd = os.open(self.place / "target", NEW)
        source = os.open(self.new("shared"), os.O_RDONLY)
        try:
            self.fs.share_content(fd, source, (top, b"target"))
            same = os.path.samestat(os.fstat(fd), os.lstat(self.place / "target"))
            return same and os.pread(fd, 100, 0) == b"content"
        finally:
            for item in (top, fd, source):
                os.close(item)

    def swap(self, other: str = "swapped too") -> bool:
        """Whether an exchange moves inodes, and does not only report success."""
        first, second = self.new("swapped", b"1"), self.new(other, b"2")
        before = first.lstat().st_ino, second.lstat().st_ino
        fd = os.open(self.place, DIRECTORY)
        try:
            self.fs.exchange(b"swapped", os.fsencode(other), source_dir_fd=fd, target_dir_fd=fd)
        finally:
            os.close(fd)
        return (second.lstat().st_ino, first.lstat().st_ino) == before

    def allocated(self) -> int:
        self.new("reserved", b"")
        self.with_open("reserved", os.O_RDWR, lambda fd: self.fs.allocate(fd, 1 << 20))
        return os.lstat(self.place / "reserved").st_blocks

    def hole(self) -> int:
        self.new("hole", b"x" * (1 << 20))
        before = os.lstat(self.place / "hole").st_blocks
        self.with_open("hole", os.O_RDWR, lambda fd: self.fs.punch_hole(fd, 0, 1 << 19))
        return before - os.lstat(self.place / "hole").st_blocks

    def link_itself(self, flags: int) -> str:
        path = self.place / "a link"
        if not path.is_symlink():
            path.symlink_to("nowhere")
        return self.with_open("a link", flags, lambda fd: oct(stat.S_IFMT(os.fstat(fd).st_mode)))

    def deny_deletion(self, name: str) -> None:
        subprocess.run(["chmod", "+a", "everyone deny delete", self.place / name], check=True)

    def denied_rename(self) -> bool:
        """Whether a file can be put in place whose list denies that it is deleted."""
        path = self.new("denied")
        self.deny_deletion("denied")
        try:
            path.rename(self.place / "denied too")
        finally:
            subprocess.run(["chmod", "-R", "-N", self.place], check=False)
        return True

    def access_list(self) -> str:
        self.new("listed")
        self.deny_deletion("listed")
        text = self.with_open("listed", os.O_RDWR, lambda fd: self.fs.get_xattr(fd, darwin.ACL))
        return text.decode()

    def list_is_removed(self) -> bool:
        """Whether a list is as it was set, and a file without one as before."""
        text = b"!#acl 1\ngroup:ABCDEFAB-CDEF-ABCD-EFAB-CDEF0000000C:everyone:12:deny:write\n"
        self.new("listed too")

        def take_over(fd: int) -> bool:
            self.fs.set_xattr(fd, darwin.ACL, text)
            is_there = self.fs.get_xattr(fd, darwin.ACL) == text
            is_there &= darwin.ACL in self.fs.list_xattrs(fd)
            self.fs.remove_xattr(fd, darwin.ACL)
            try:
                self.fs.get_xattr(fd, darwin.ACL)
            except NoAttribute:
                return is_there
            return False

        return self.with_open("listed too", os.O_RDWR, take_over)

    def tell_of_mac(self) -> None:
        """Facts that take calls of a Mac."""
        fs, full = self.fs, lambda fd: fcntl.fcntl(fd, darwin.F_FULLFSYNC)
        self.tell("ms for fsync", lambda: self.duration_ms(os.fsync))
        self.tell("ms for F_FULLFSYNC", lambda: self.duration_ms(full))
        self.tell("ms for a sync of the volume", lambda: self.duration_ms(fs.sync_file_system))
        asked = darwin.c_uint32(darwin.SYNC_FULL | darwin.SYNC_WAIT)
        call = fs._libc.ffsctl
        self.tell(
            "ffsctl syncs a volume without rights",
            lambda: self.with_open(
                "",
                DIRECTORY,
                lambda fd: call(fd, darwin.SYNC_VOLUME, darwin.ctypes.byref(asked), 0),
            ),
            expected=0,
        )
        self.tell("F_FULLFSYNC of a directory", lambda: self.with_open("", DIRECTORY, full))
        self.tell("fsync of a directory", lambda: self.with_open("", DIRECTORY, os.fsync))
        self.tell("an exchange moves inodes", self.swap)
        self.tell("a clone takes over", self.clone)
        self.tell("the seam clones", self.shared)
        self.tell("blocks of a MiB that is reserved", self.allocated, expected=2048)
        self.tell("blocks of half a MiB that is a hole", self.hole)
        self.tell("O_SYMLINK", lambda: self.link_itself(darwin.O_SYMLINK), expected="0o120000")
        self.tell(
            "O_SYMLINK with O_NOFOLLOW",
            lambda: self.link_itself(darwin.O_SYMLINK | os.O_NOFOLLOW),
        )
        self.new("closed").chmod(0)
        self.tell(
            "O_EVTONLY opens what may not be read",
            lambda: self.with_open("closed", O_EVTONLY, lambda fd: oct(os.fstat(fd).st_mode)),
        )
        self.tell("an access control list", self.access_list)
        self.tell("an access control list is set and removed", self.list_is_removed, expected=True)
        self.tell("a clone of what is immutable", self.protected_clone)
        self.tell("an attribute", lambda: self.attribute_of("own", 0o600))
        self.tell("an attribute of what is read-only", lambda: self.attribute_of("shut", 0o400))
        for name in ("provenance", "macl", "quarantine", "lastuseddate#PS"):
            key = f"com.apple.{name}"
            self.tell(key, lambda key=key: self.attribute_of(key, 0o600, key))
        self.tell("attributes of a pipe", self.attributes_of_pipe)
        self.tell("a shorter resource fork replaces a longer one", self.shorter_fork, expected=True)
        self.tell("names after a rename to another case alone", self.case_only)
        self.tell("birth after an older time of modification", self.birth_after_old_time)
        self.tell("ms to map a file", lambda: self.duration_ms(_map))
        self.tell("ms to map a file by the seam", lambda: self.duration_ms(fs.map))
        self.tell(
            "the file system is named by its device",
            lambda: os.statvfs(self.place).f_fsid == self.place.stat().st_dev & 0xFFFFFFFF,
        )
        self.tell(
            "the volume is named by its UUID",
            lambda: (
                self.with_open("", DIRECTORY, fs.file_system_id) != os.statvfs(self.place).f_fsid
            ),
        )
        self.tell("a command downloads as before", self.policy_of_command, expected="the same")
        self.tell("a file is renamed whose list denies deletion", self.denied_rename)
        self.tell("who is at the other end of a socket", self.peer)
        self.tell(
            "path of an open directory",
            lambda: self.with_open("", DIRECTORY, fs.current_path) == os.path.realpath(self.place),
            expected=True,
        )
        self.tell("nothing is downloaded", lambda: fs._libc.setiopolicy_np(3, 1, 1), expected=0)
        for variable in ("TREESNAP_DATALESS_FILE", "TREESNAP_PROTECTED_DIRECTORY"):
            if path := os.environ.get(variable):
                self.tell(f"to read ${variable}", lambda path=path: _first_byte(path))

    def tell_of_headers(self) -> None:
        """Compares numbers and layouts with those of the headers, where there is a compiler."""
        source, program = self.new("facts.c", HEADERS.encode()), self.place / "facts"
        subprocess.run(["cc", "-o", program, source], check=True)
        said = subprocess.run([program], check=True, capture_output=True, text=True).stdout
        for line in said.splitlines():
            name, _, number = line.rpartition(" ")
            self.tell(name, lambda number=number: int(number), expected=TAKEN[name])


def _number(result: int) -> str:
    """Returns what came of a call of the library."""
    failed = darwin.ctypes.get_errno()
    return errno.errorcode.get(failed, str(failed)) if result < 0 else str(result)


def _map(fd: int) -> None:
    mmap.mmap(fd, 0, access=mmap.ACCESS_READ).close()


def _first_byte(path: str) -> str:
    fs = DarwinFileSystem()
    fd = fs.open(path, os.O_RDONLY)
    try:
        names = os.listdir(fd) if stat.S_ISDIR(os.fstat(fd).st_mode) else fs.read(fd, 1)
        return f"{len(names)} read"
    finally:
        fs.close(fd)


def main(arguments: list[str]) -> int:
    """Tries one directory, or a temporary one."""
    above = arguments[0] if arguments else None
    place = Path(tempfile.mkdtemp(prefix="facts-", dir=above))
    facts = Facts(place)
    try:
        facts.tell("system", platform.platform)
        facts.tell("machine and Python", lambda: f"{platform.machine()}, {sys.version}")
        facts.tell_of_any()
        if IS_MAC:
            facts.tell_of_mac()
            if shutil.which("cc"):
                facts.tell_of_headers()
        else:
            facts.tell("what takes calls of a Mac", lambda: "needs a Mac")
    finally:
        shutil.rmtree(place, ignore_errors=True)
    sys.stdout.write(f"Other than taken for granted: {', '.join(facts.wrong) or 'nothing'}\n")
    return 1 if facts.wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
