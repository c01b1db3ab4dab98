"""The one seam to the operating system; what is picked for which system is said here."""

from __future__ import annotations

import os
import sys

IS_LINUX = sys.platform == "linux" and os.environ.get("TREESNAP_FS") != "posix"
"""Whether the calls of Linux are used, and ``/proc`` is read; not so in ``tox -e posix``."""
FOLLOWS_XDG = sys.platform == "linux"
"""Whether the files of a user lie where the XDG Base Directory Specification says."""
