"""Whether a root holds more than a size, before anything of it is read."""

from __future__ import annotations

from contextlib import suppress
from stat import S_ISDIR

from treesnap.core.model import treepath
from treesnap.core.worktree.directory import DirectoryChain, open_root
from treesnap.core.worktree.scan.ignore import Exclusions
from treesnap.core.worktree.scan.listing import list_directory
from treesnap.core.worktree.scan.scanner import Scanner


def holds_more(walk: Scanner, size_bytes_max: int) -> bool:
    """Returns whether what a walk would capture is larger, by one look at each name.

    Stops where that is certain. What cannot be listed counts for nothing: the walk meets it again.
    Raises NotFound, Refused, OSError for the root.
    """
    root_fd = open_root(walk.fs, walk.settings.root)
    try:
        device = walk.fs.fstat(root_fd).st_dev
        pending = [(b"", Exclusions.of_request(walk.settings.request))]
        with DirectoryChain(walk.fs, root_fd) as chain:
            while pending and size_bytes_max >= 0:
                path, exclusions = pending.pop()
                with suppress(OSError):
                    fd = chain.open(path)
                    if path and _is_left_out(walk, fd, path, device):
                        continue
                    listing = list_directory(walk.fs, fd, path, exclusions)
                    hidden = dict(listing.hidden)
                    for name, mode, size, *_ in listing.observations:
                        if name in hidden:
                            continue
                        if S_ISDIR(mode):
                            pending.append((treepath.join(path, name), listing.exclusions))
                        else:
                            size_bytes_max -= size
    finally:
        walk.fs.close(root_fd)
    return size_bytes_max < 0


def _is_left_out(walk: Scanner, fd: int, path: bytes, device: int) -> bool:
    stat = walk.fs.fstat(fd)
    is_store = (stat.st_dev, stat.st_ino) in walk.settings.store
    other_device = stat.st_dev != device
    return is_store or walk.mounts.crosses(path, walk.mount_points, other_device=other_device)
