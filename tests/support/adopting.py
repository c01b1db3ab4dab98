"""An origin and a fork of it that both went on, for tests that break adoptions."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from power_checks import assert_healing, assert_sound
from state import tree_state
from treesnap.core.handle import Handle
from treesnap.core.ops.context import context_at
from treesnap.testing.doubles import UnsyncedFileSystem

NOW_NS = time.time_ns()
"""When each adoption happens, so that merged texts have the same time every time."""
TEXT = "1\n2\n3\n4\n5\n6\n7\n"

Scene = Any
"""What the fixture of that name is."""


def fork_of(scene: Scene) -> Path:
    return Path(scene.root.parent / "fork")


def prepare(scene: Scene) -> None:
    """Forks the root, and changes both in each way that a merge has to bring together."""
    origin, fork = scene.root, fork_of(scene)
    _write(origin / "text", TEXT)
    scene.handle().create(name="common")
    scene.handle().fork("common", [fork])
    _write(fork / "text", TEXT.replace("1", "fork"))
    _write(fork / "only-in-fork/deep/file", "deep")
    _write(fork / "changes-1", "by the fork" * 30)
    (fork / "appears").unlink()
    (fork / "mode").chmod(0o640)
    with suppress(OSError):  # not every file system has attributes
        os.setxattr(fork / "mode", "user.colour", b"green")
    os.link(fork / "text", fork / "text-too")
    os.rename(fork / "appears-too", fork / "moved")
    (fork / "becomes-file").unlink()
    (fork / "becomes-file").symlink_to("text")
    _write(origin / "text", TEXT.replace("7", "origin"))
    _write(origin / "only-in-origin", "origin")
    (origin / "apart-1").unlink()
    (origin / "touched").chmod(0o711)
    for name, tree in (("origin", origin), ("forked", fork)):
        scene.states[name] = tree_state(tree)
    assert scene.states["origin"] != scene.states["forked"]


def prepare_and_note(scene: Scene) -> None:
    """Prepares, and notes what an adoption makes of it, which is then undone."""
    prepare(scene)
    adopt(scene.handle())
    assert (scene.root / "text").read_text() == TEXT.replace("1", "fork").replace("7", "origin")
    scene.note("adopted")
    scene.handle().undo()
    scene.name_of_state("origin")


def adopt(handle: Handle) -> None:
    """Adopts the fork at the time at which every adoption happens."""
    fork = os.path.join(os.path.dirname(handle.root), "fork")
    # What is put back after each kill is a copy of the fork, which only force adopts.
    Handle(handle.context._replace(clock_ns=lambda: NOW_NS)).adopt(fork, force=True)


def settled(scene: Scene) -> str:
    """Lets the next commands run in both; returns which state the origin has.

    The fork is as it was. What was adopted can be undone, and else be adopted once more.
    """
    place = fork_of(scene)
    handle = scene.handle()
    handle.status()
    name = str(scene.name_of_state("origin", "adopted"))
    assert not list(scene.store.glob("roots/*/journal")), "there is a journal"
    assert tree_state(place) == scene.states["forked"], "the fork is another"
    assert_healing(scene)
    handle.create()
    context = context_at(root=place, store_path=str(scene.store), fs=UnsyncedFileSystem(), wait_s=0)
    fork = Handle(context)
    fork.create()
    assert fork.origin() is not None
    assert_sound(scene)
    assert scene.litter() == []
    assert scene.name_of_state("origin", "adopted") == name
    if name == "origin":
        adopt(scene.handle())
        scene.name_of_state("adopted")
    scene.handle().undo()
    scene.name_of_state("origin")
    scene.handle().redo()
    scene.name_of_state("adopted")
    assert tree_state(place) == scene.states["forked"], "the fork is another"
    return name


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
