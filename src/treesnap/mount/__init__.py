"""The history of a root as directories: to walk through, and mounted by FUSE.

:class:`HistoryView` knows nothing of FUSE, so a program can walk through it without a mount.

Read first: ``view``; then ``adapter``, what FUSE asks, and ``mount_point``.
"""

from treesnap.mount.mount_point import MountedHistory, mount, unmount
from treesnap.mount.view import HistoryView, Name, ReadableFile, ViewNode

__all__ = ["HistoryView", "MountedHistory", "Name", "ReadableFile", "ViewNode", "mount", "unmount"]
