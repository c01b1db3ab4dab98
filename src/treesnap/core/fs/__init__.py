"""The one seam to the operating system; what is picked for which system is said here."""

from __future__ import annotations

import os
import sys

IS_LINUX = sys.platform == "linux" and os.environ.get("TREESNAP_FS") != "posix"
"""Whether the calls of Linux are used, and ``/proc`` is read; not so in ``tox -e posix``."""
HAS_COMPANIONS = IS_LINUX
"""Whether a socket says who is at its other end: then watchers answer commands, and fork servers
carry them out."""
HAS_HELPERS = IS_LINUX
"""Whether a process may fork for help with large trees, whatever libraries it has loaded."""
HAS_NOTICES = IS_LINUX
"""Whether the kernel reports all changes of a directory, in order."""
LISTS_MOUNTS = IS_LINUX
"""Whether the system says what is mounted where, and of which type."""
SHOWS_PROCESSES = IS_LINUX
"""Whether the system shows what processes run, what they have open, and what they have mapped."""
FOLLOWS_XDG = sys.platform == "linux"
"""Whether the files of a user lie where the XDG Base Directory Specification says."""


def system_parts() -> dict[str, bool]:
    """Returns what depends on the system and not on a file system, and whether it is there.

    The one place that switches it off elsewhere. Who asks has a way without, or says so.
    """
    return {
        "companions": HAS_COMPANIONS,
        "helpers": HAS_HELPERS,
        "mounts": LISTS_MOUNTS,
        "notices": HAS_NOTICES,
        "processes": SHOWS_PROCESSES,
    }
