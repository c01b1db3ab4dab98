"""Files of a restore that processes have open: they go on with what was there before.

A restore puts another file in the place of the old one. A process that has that open still
reads and writes it, and nothing of that reaches the tree. A database whose log is replaced under it
breaks. So the processes are named; they are not waited for.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable
from contextlib import suppress

from treesnap import treepath
from treesnap.fs.process_files import descriptors, program_of
from treesnap.results import OpenFile
from treesnap.worktree.apply.step import Action, RestoreStep


def open_files(root: str, steps: Iterable[RestoreStep]) -> tuple[OpenFile, ...]:
    """Returns what processes have open of the files that steps replace or remove, by path.

    Those in a directory that is removed are found by the path under which they were opened.
    Costs nothing where the steps only make files; otherwise a look at each open file of the
    system, once.
    """
    files, directories = {}, set()
    for step in steps:
        if step.action in (Action.PUT, Action.REMOVE) and step.before is not None:
            if stat.S_ISREG(step.before.mode):
                files[step.before.identity] = step.path
            else:
                directories.add(step.path)
    found: dict[tuple[bytes, int], OpenFile] = {}
    if files or directories:
        prefix = os.fsencode(root).rstrip(b"/") + b"/"
        for process_id, link in descriptors():
            path = None
            with suppress(OSError):  # it was closed meanwhile
                status = os.stat(link)
                if stat.S_ISREG(status.st_mode):
                    path = files.get((status.st_dev, status.st_ino))
                    if path is None and directories:
                        path = _below(directories, os.readlink(os.fsencode(link)), prefix)
            if path is not None and (path, process_id) not in found:
                found[path, process_id] = OpenFile(path, process_id, program_of(process_id))
    return tuple(found[key] for key in sorted(found))


def _below(directories: set[bytes], target: bytes, prefix: bytes) -> bytes | None:
    if not target.startswith(prefix):
        return None
    path = target.removeprefix(prefix)
    return path if any(above in directories for above in treepath.parents(path)) else None
