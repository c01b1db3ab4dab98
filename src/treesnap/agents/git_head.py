"""Where a git repository stands, read from two small files.

No process of git is asked: what a repository has for settings may make it run other programs.
"""

from __future__ import annotations

import os
import re

from treesnap.core.model.named_tuple import NamedTuple

_FILE_SIZE_MAX = 4096
_PACKED_SIZE_MAX = 8 << 20
_COMMIT = re.compile(rb"[0-9a-f]{40}([0-9a-f]{24})?")


class GitHead(NamedTuple):
    """A branch and its commit."""

    branch: str
    """Its short name; empty where none is checked out."""
    commit: str

    @property
    def text(self) -> str:
        """The fact of a step."""
        return f"{self.branch}@{self.commit}"


def parsed_head(text: str) -> GitHead | None:
    """Returns the head that a fact of a step says, or None."""
    branch, _, commit = text.rpartition("@")
    return GitHead(branch, commit) if _COMMIT.fullmatch(commit.encode()) else None


def repository_top(directory: str) -> str | None:
    """Returns the directory itself or the next one above it that has a ``.git``, or None."""
    here = directory
    while not os.path.lexists(os.path.join(here, ".git")):
        parent = os.path.dirname(here)
        if parent == here:
            return None
        here = parent
    return here


def git_head(directory: str) -> GitHead | None:
    """Returns where the repository of a working tree stands, or None where there is none.

    The repository is in the directory itself, or where its file ``.git`` says. Branches in a
    reftable are not read.
    """
    repository = os.path.join(directory, ".git")
    pointer = _read(repository, _FILE_SIZE_MAX)
    if pointer is not None and pointer.startswith(b"gitdir: "):
        path = os.fsdecode(pointer.removeprefix(b"gitdir: ").rstrip(b"\n"))
        repository = os.path.join(directory, path)
    head = _read(os.path.join(repository, "HEAD"), _FILE_SIZE_MAX)
    if head is None:
        return None
    if not head.startswith(b"ref: "):
        return _made("", head)
    reference = head.removeprefix(b"ref: ").strip()
    if not reference.startswith(b"refs/heads/") or b".." in reference or b"\0" in reference:
        return None
    common = _read(os.path.join(repository, "commondir"), _FILE_SIZE_MAX)
    shared = repository
    if common is not None:
        shared = os.path.join(repository, os.fsdecode(common.rstrip(b"\n")))
    branch = reference.removeprefix(b"refs/heads/").decode(errors="replace")
    commit = _read(os.path.join(shared, os.fsdecode(reference)), _FILE_SIZE_MAX)
    if commit is None:
        packed = _read(os.path.join(shared, "packed-refs"), _PACKED_SIZE_MAX) or b""
        lines = (line.split(b" ", 1) for line in packed.splitlines())
        commit = next((line[0] for line in lines if line[1:] == [reference]), b"")
    return _made(branch, commit)


def _made(branch: str, commit: bytes) -> GitHead | None:
    commit = commit.strip()
    return GitHead(branch, commit.decode()) if _COMMIT.fullmatch(commit) else None


def _read(path: str, size_bytes_max: int) -> bytes | None:
    """Returns the content of a regular file, or None for anything else; a link is none."""
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        fd = os.open(path, flags)
    except (OSError, ValueError):
        return None
    try:
        return os.read(fd, size_bytes_max)
    except OSError:  # a directory
        return None
    finally:
        os.close(fd)
