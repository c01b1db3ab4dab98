"""Ways in which a tree may change: each changes one thing at random.

A mutation takes the top of a tree and a source of chance, and returns the path
that it changed, or None when there was nothing of the kind that it changes.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable
from random import Random

from capabilities import HAS_DEVICES
from trees import (
    FUTURE_NS,
    NAMES,
    PAST_NS,
    STEP_NS,
    is_directory,
    is_file,
    paths_below,
    remove_tree,
    write,
    write_sparse,
)
from treesnap.core.fs import IS_LINUX

HARMLESS = frozenset({errno.EACCES, errno.EPERM, errno.EEXIST, errno.ENAMETOOLONG})
"""Why a mutation may be impossible; another one is tried then."""


def pick(
    top: bytes, random: Random, suits: Callable[[bytes], bool] = lambda _: True
) -> bytes | None:
    """Returns one of the paths that suit, or None."""
    found = [path for path in paths_below(top) if suits(path)]
    return random.choice(found) if found else None


def new_path(top: bytes, random: Random) -> bytes:
    """Returns a path where nothing is yet, in a random directory."""
    directory = pick(top, random, is_directory) if random.random() < 0.8 else None
    name = random.choice(NAMES) if random.random() < 0.2 else b"new-%06d" % random.randrange(10**6)
    path = os.path.join(directory or top, name)
    return new_path(top, random) if os.path.lexists(path) else path


def some_bytes(random: Random) -> bytes:
    """Returns content, mostly short."""
    return random.randbytes(random.choice((0, 1, 100, 5000, 70_000, 900_000)))


def add_file(top: bytes, random: Random) -> bytes:
    """Makes a new file."""
    path = new_path(top, random)
    write(path, some_bytes(random))
    return path


def add_sparse_file(top: bytes, random: Random) -> bytes:
    """Makes a new file with holes."""
    path = new_path(top, random)
    write_sparse(path, 3_000_000, (random.randrange(2_000_000), some_bytes(random)))
    return path


def add_directory(top: bytes, random: Random) -> bytes:
    """Makes a new directory, with something in it or not."""
    path = new_path(top, random)
    os.mkdir(path)
    for number in range(random.randrange(4)):
        write(path + b"/%d" % number, some_bytes(random))
    os.chmod(path, random.choice((0o755, 0o700, 0o555, 0o1777, 0o2750)))
    return path


def add_symlink(top: bytes, random: Random) -> bytes:
    """Makes a new symlink."""
    path = new_path(top, random)
    os.symlink(random.choice((b"nowhere", b"..", b"/etc", b"\xff", path)), path)
    return path


def add_fifo(top: bytes, random: Random) -> bytes:
    """Makes a new FIFO."""
    path = new_path(top, random)
    os.mkfifo(path, 0o640)
    return path


def add_device(top: bytes, random: Random) -> bytes:
    """Makes a new device node."""
    path = new_path(top, random)
    os.mknod(path, stat.S_IFCHR | 0o600, os.makedev(1, random.randrange(1, 9)))
    return path


def add_link(top: bytes, random: Random) -> bytes | None:
    """Gives a file one more name."""
    source = pick(top, random, lambda path: not is_directory(path))
    if source is None:
        return None
    path = new_path(top, random)
    os.link(source, path, follow_symlinks=False)
    return path


def overwrite(top: bytes, random: Random) -> bytes | None:
    """Gives a file other content."""
    path = pick(top, random, is_file)
    if path is not None:
        write(path, some_bytes(random))
    return path


def edit_same_size(top: bytes, random: Random) -> bytes | None:
    """Changes one byte of a file, and puts its modification time back."""
    path = pick(top, random, lambda item: is_file(item) and os.path.getsize(item) > 0)
    if path is None:
        return None
    before = os.stat(path)
    with open(path, "r+b") as file:
        file.seek(random.randrange(before.st_size))
        old = file.read(1)
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([old[0] ^ 1]))
    os.utime(path, ns=(before.st_mtime_ns, before.st_mtime_ns))
    return path


def append(top: bytes, random: Random) -> bytes | None:
    """Makes a file longer."""
    path = pick(top, random, is_file)
    if path is not None:
        with open(path, "ab") as file:
            file.write(random.randbytes(random.randrange(1, 5000)))
    return path


def truncate(top: bytes, random: Random) -> bytes | None:
    """Makes a file shorter, or longer with a hole."""
    path = pick(top, random, is_file)
    if path is not None:
        os.truncate(path, random.randrange(2 * os.path.getsize(path) + 2))
    return path


def remove(top: bytes, random: Random) -> bytes | None:
    """Removes a name that is no directory."""
    path = pick(top, random, lambda item: not is_directory(item))
    if path is not None:
        os.unlink(path)
    return path


def remove_directory(top: bytes, random: Random) -> bytes | None:
    """Removes a directory with everything in it."""
    path = pick(top, random, is_directory)
    if path is not None:
        remove_tree(path)
    return path


def rename(top: bytes, random: Random) -> bytes | None:
    """Moves something elsewhere."""
    path = pick(top, random)
    if path is None:
        return None
    target = new_path(top, random)
    if (target + b"/").startswith(path + b"/"):
        return None
    os.rename(path, target)
    return path


def swap_type(top: bytes, random: Random) -> bytes | None:
    """Puts a directory in the place of a file, or something else in that of a directory."""
    path = pick(top, random)
    if path is None:
        return None
    was_directory = is_directory(path)
    remove_tree(path)
    if was_directory:
        random.choice((lambda: write(path, b"a file"), lambda: os.symlink(b".", path)))()
    else:
        os.mkdir(path)
        write(path + b"/inside", b"a directory")
    return path


def swap_names(top: bytes, random: Random) -> bytes | None:
    """Swaps two paths of any types."""
    one, other = pick(top, random), pick(top, random)
    if one is None or other is None or one == other:
        return None
    if (one + b"/").startswith(other + b"/") or (other + b"/").startswith(one + b"/"):
        return None
    aside = new_path(top, random)
    if any((aside + b"/").startswith(path + b"/") for path in (one, other)):
        return None
    os.rename(one, aside)
    os.rename(other, one)
    os.rename(aside, other)
    return one


def change_mode(top: bytes, random: Random) -> bytes | None:
    """Changes permission bits."""
    path = pick(top, random, lambda item: not os.path.islink(item))
    modes = (0o600, 0o755, 0o4711, 0o444, 0o1700) + ((0o000,) if os.geteuid() == 0 else ())
    if path is not None:
        os.chmod(path, random.choice(modes))
    return path


def change_mode_of_root(top: bytes, random: Random) -> bytes:
    """Changes the permission bits of the root."""
    os.chmod(top, random.choice((0o700, 0o755, 0o1777, 0o2755)))
    return top


def change_owner(top: bytes, random: Random) -> bytes | None:
    """Changes owner and group."""
    path = pick(top, random)
    if path is not None:
        os.chown(path, random.randrange(3000), random.randrange(3000), follow_symlinks=False)
    return path


def change_time(top: bytes, random: Random) -> bytes | None:
    """Changes a modification time."""
    path = pick(top, random)
    if path is not None:
        moment = random.choice((PAST_NS, FUTURE_NS, random.randrange(STEP_NS)))
        os.utime(path, ns=(moment, moment), follow_symlinks=False)
    return path


def change_attribute(top: bytes, random: Random) -> bytes | None:
    """Sets, changes or removes an extended attribute."""
    path = pick(top, random)
    if path is None:
        return None
    name = "user.note" if is_file(path) or is_directory(path) else "trusted.note"
    if name in os.listxattr(path, follow_symlinks=False) and random.random() < 0.5:
        os.removexattr(path, name, follow_symlinks=False)
    else:
        value = random.randbytes(random.choice((0, 5, 700)))
        os.setxattr(path, name, value, follow_symlinks=False)
    return path


def replace_inode(top: bytes, random: Random) -> bytes | None:
    """Puts another file with other content, and the same size and times, in a file's place."""
    path = pick(top, random, lambda item: is_file(item) and os.path.getsize(item) > 0)
    if path is None:
        return None
    before = os.stat(path)
    aside = new_path(top, random)
    write(aside, random.randbytes(before.st_size))
    os.chmod(aside, stat.S_IMODE(before.st_mode))
    os.utime(aside, ns=(before.st_mtime_ns, before.st_mtime_ns))
    os.rename(aside, path)
    return path


MUTATIONS = (
    add_file,
    add_sparse_file,
    add_directory,
    add_symlink,
    add_fifo,
    *([add_device] if HAS_DEVICES else []),
    add_link,
    add_link,
    overwrite,
    edit_same_size,
    append,
    truncate,
    remove,
    remove_directory,
    rename,
    rename,
    swap_type,
    swap_names,
    change_mode,
    change_mode_of_root,
    change_owner,
    change_time,
    *([change_attribute] if IS_LINUX else []),
    replace_inode,
)


def mutate(root: str | os.PathLike[str], random: Random, count: int = 1) -> list[str]:
    """Changes a tree in ``count`` random ways; returns what was done, for people."""
    top = os.fsencode(root)
    done: list[str] = []
    while len(done) < count:
        mutation: Callable[[bytes, Random], bytes | None] = random.choice(MUTATIONS)
        try:
            path = mutation(top, random)
        except OSError as error:
            if error.errno not in HARMLESS:
                raise
            continue
        if path is not None:
            done.append(f"{mutation.__name__} {path!r}")
    return done
