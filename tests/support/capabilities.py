"""What tests need that not every Unix has: the marker ``needs``, and what ``tox -e posix`` counts.

There the file system is that of ``fs.posix``, on Linux: nothing is simulated, and all that only
Linux has is not called. A test that needs such a thing is marked with its name, for example
``needs("attributes")``, and is left out. One that is left out for another reason than this
machine's fails. So the markers say what other systems lose.
"""

from __future__ import annotations

import errno
import os
import re
from collections import Counter
from collections.abc import Iterable

import pytest

import volumes
from treesnap.core.fs import IS_LINUX

CAPABILITIES = {
    "absent names": "a rename that replaces nothing which another process makes meanwhile",
    "any names": "names that are not UTF-8",
    "attributes": "extended attributes, access control lists among them",
    "birth times": "when a directory was made",
    "clones": "files that share their blocks",
    "companions": "who is at the other end of a socket: watchers and fork servers that answer",
    "devices": "permissions of device nodes, which nothing opens",
    "exit codes": "how a child ended while its id stays reserved: on a Mac from Python 3.13 on",
    "exact times": "how exact the times of a file system are",
    "exchange": "two names that change places in one step",
    "flags": "immutable and append-only files, by Linux's own call",
    "helpers": "processes that help with large trees",
    "holes": "blocks of a file that are given back",
    "linux": "the calls of Linux themselves, or /proc",
    "mappings": "which files are mapped for writing",
    "mounts": "which file systems are mounted below a root, and of which kind",
    "native": "the module in C",
    "notices": "changes that the kernel reports in order",
    "own syncs": "a sync of a directory that syncs nothing else",
    "path only": "files that are opened without a right to read them",
    "processes": "which processes there are, what they started and what they have open",
}
"""By the name that a test gives, what is missing where it is not there."""
HAS_DEVICES = IS_LINUX or os.chmod in os.supports_follow_symlinks
_MACHINE = re.compile(
    "not installed|superuser|only (?:root|the owner)|here|cannot (?:be|hold|keep)|no such|"
    "on one file system|systemd|setpriv|takes longer|extra|module"
)
"""In reasons that are about the machine of the tests, and would be the same on Linux."""


def hide_attributes() -> None:
    """Lets tests set no extended attributes, as on a file system that has none.

    Nor look at any where Python has no call for them, as on a Mac.
    """

    def refuse(path: object, *_: object, **__: object) -> None:
        number = errno.ENOTSUP
        raise OSError(number, os.strerror(number), path)

    if not IS_LINUX and not volumes.NAME:
        os.setxattr = refuse
        if not hasattr(os, "listxattr"):
            os.listxattr = lambda *_, **__: []


def require(*names: str) -> None:
    """Leaves a test out where something is not there; for fixtures, whose tests have no marker."""
    unknown = set(names) - CAPABILITIES.keys()
    assert not unknown, unknown
    missing = set() if IS_LINUX else set(names) - volumes.THERE - {"exit codes"}
    if "exit codes" in names and not hasattr(os, "waitid"):
        missing.add("exit codes")
    if missing:
        pytest.skip(f"needs {', '.join(sorted(missing))}")


def require_marked(item: pytest.Item) -> None:
    """Leaves a test out that is marked with what is not there."""
    names = {name for mark in item.iter_markers("needs") for name in mark.args}
    if names:
        require(*names)


def is_unexplained(report: pytest.TestReport) -> bool:
    """Returns whether a test was skipped for no reason of this machine and needs nothing."""
    if IS_LINUX or not report.skipped or hasattr(report, "wasxfail"):
        return False
    reason = _reason(report)
    return not reason.startswith("needs ") and _MACHINE.search(reason) is None


def counts_of(reports: Iterable[pytest.TestReport]) -> Counter[str]:
    """Returns how many tests were left out for each thing that they need."""
    reasons = map(_reason, reports)
    return Counter(
        name
        for reason in reasons
        if reason.startswith("needs ")
        for name in reason.removeprefix("needs ").split(", ")
    )


def _reason(report: pytest.TestReport) -> str:
    found = report.longrepr
    text = found[2] if isinstance(found, tuple) else str(found)
    return text.removeprefix("Skipped: ")
