"""Create, restore, undo, kill and recover in a directory of any file system, without pytest.

``tox -e file-systems`` runs it in a virtual machine on file systems that its host has not: it
takes directories, and prints a line of JSON for each. Times and names are such as every file
system keeps, and a file that has two names is made only where it can have them.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
import traceback
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

from attributes import set_attribute
from sampling import evenly
from state import TreeState, differences, tree_state
from treesnap.core.fs.base import FileSystem
from treesnap.core.fs.local import LocalFileSystem
from treesnap.core.handle import Handle
from treesnap.core.model.errors import TreesnapError
from treesnap.core.ops.context import context_at
from treesnap.core.worktree.apply.capabilities import capabilities_of
from treesnap.testing.children import killed
from treesnap.testing.doubles import RecordingFileSystem, kill_at

TIME_NS = 1_600_000_000 * 10**9
KILLS = 12
NAMES = ("Gate", "Wide/Inner", "other", "caf\u00e9", "Wide/deep/er/file")


class Tried:
    """A root and its store in a directory, with a snapshot ``before``, and changed since."""

    def __init__(self, base: Path) -> None:
        self.base, self.root = base, base / "root"
        for name in NAMES:
            (self.root / name).parent.mkdir(parents=True, exist_ok=True)
            (self.root / name).write_text(name * 100)
        with suppress(OSError):
            (self.root / "link").symlink_to("other")
        with suppress(OSError):
            os.mkfifo(self.root / "pipe")
        with suppress(OSError):
            os.link(self.root / "other", self.root / "second name")
        with suppress(OSError, AttributeError):
            set_attribute(self.root / "other", "colour", b"red")
            (self.root / "other").chmod(0o444)  # which has to be writable for that
        self._settle()
        self.handle().create(name="before")
        self.before = tree_state(self.root)
        (self.root / "Gate").rename(self.root / "aside")
        (self.root / "aside").rename(self.root / "gate")
        (self.root / "Wide/Inner").unlink()
        (self.root / "Wide/Inner").mkdir()
        (self.root / "Wide/Inner/below").write_text("new")
        shutil.rmtree(self.root / "Wide/deep")
        (self.root / "Wide/deep").write_text("a file now")
        (self.root / "other").chmod(0o644)
        (self.root / "other").write_text("changed")
        (self.root / NAMES[3]).unlink()
        (self.root / "new").write_text("new")
        (self.root / "link").unlink(missing_ok=True)
        self._settle()
        self.after = tree_state(self.root)

    def _settle(self) -> None:
        """Gives all files times that each file system keeps."""
        for directory, _, files in os.walk(self.root, topdown=False):
            for path in (*(os.path.join(directory, name) for name in files), directory):
                with suppress(OSError, NotImplementedError):
                    os.utime(path, ns=(TIME_NS, TIME_NS), follow_symlinks=False)

    def handle(self, fs: FileSystem | None = None) -> Handle:
        """Returns a handle, as a new command has it."""
        store = str(self.base / "store")
        return Handle(context_at(root=self.root, store_path=store, fs=fs, wait_s=0))

    def look(self) -> str:
        """Returns which of both trees is there; raises where it is neither.

        Synced before, because vfat lists types as they are on the disk, and ``os.walk`` trusts it.
        """
        os.sync()
        found = tree_state(self.root)
        if not differences(found, self.before):
            return "before"
        against = differences(found, self.after)
        assert not against, against
        return "after"


def capabilities(base: Path) -> dict[str, Any]:
    """Returns what ``snap doctor --file-system`` says of a directory."""
    fs = LocalFileSystem()
    fd = fs.open(str(base), os.O_RDONLY | os.O_DIRECTORY)
    try:
        return capabilities_of(fs, fd).to_dict()
    finally:
        fs.close(fd)


def go_back_and_forth(base: Path) -> dict[str, Any]:
    """Restores, undoes and redoes; kills a restore at some of its calls, and recovers."""
    tried = Tried(base)
    for verb, words, expected in (
        ("restore", ("before",), "before"),
        ("undo", (), "after"),
        ("redo", (), "before"),
        ("undo", (), "after"),
    ):
        getattr(tried.handle(), verb)(*words)
        assert tried.look() == expected, verb
    recording = RecordingFileSystem(LocalFileSystem())
    tried.handle(recording).restore("before")
    tried.handle().undo()
    outcomes: Counter[str] = Counter()
    for number in evenly(len(recording.mutations), KILLS):
        ended = killed(lambda fs: tried.handle(fs).restore("before", force=True), kill_at(number))
        assert ended.error is None, ended.error
        try:
            tried.handle().recover()
        except TreesnapError as error:
            error.add_note(f"after a kill at call {number}")
            raise
        outcomes[tried.look()] += 1
        if tried.look() == "before":
            tried.handle().undo()
            assert tried.look() == "after"
    result = tried.handle().verify(read_data=True)
    assert result.ok, result.problems
    return {"calls": len(recording.mutations), "kills": outcomes}


def tree(state: TreeState) -> list[str]:
    """Returns the paths of a state, for people."""
    return sorted(os.fsdecode(path) for path in state)


def main(arguments: list[str]) -> int:
    """Tries each directory that is named; returns how many failed."""
    failures = 0
    for name in arguments:
        base, begun_s = Path(name), time.monotonic()
        document: dict[str, Any] = {"name": base.name}
        try:
            document["capabilities"] = capabilities(base)
            document |= go_back_and_forth(base)
        except Exception as error:  # noqa: BLE001 - the next one is tried all the same
            failures += 1
            document["problem"] = f"{type(error).__name__}: {error}"[:2000]
            traceback.print_exc()
        document["seconds"] = round(time.monotonic() - begun_s, 1)
        sys.stdout.write(f"RESULT {json.dumps(document)}\n")
        sys.stdout.flush()
    return failures


if __name__ == "__main__":
    sys.exit(min(main(sys.argv[1:]), 1))
