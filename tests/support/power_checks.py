"""What the next commands make of what a power cut has left.

Each check lets them run, fails where something is lost or left over, and returns
what came of the operation. ``scene`` is what the tests in ``crash`` begin from.
"""

from __future__ import annotations

import os
from collections.abc import Iterable

from state import differences, tree_state
from treesnap.core.fs.local import LocalFileSystem
from treesnap.core.handle import Handle
from treesnap.core.model.errors import StoreMissing
from treesnap.core.ops.context import context_at
from treesnap.core.store.layout import Layout
from treesnap.core.store.roots import registered_roots


def assert_sound(scene) -> None:
    """Asserts that the store is whole."""
    assert scene.handle().verify(read_data=True).problems == ()


def assert_healing(scene) -> None:
    """Asserts that no more is wrong than an index part: a hint, which the next create heals."""
    problems = scene.handle().verify(read_data=True).problems
    assert {problem.code for problem in problems} <= {"bad-index"}, problems


def settled(scene, *states: str, snapshots: Iterable[str] = ("before",)) -> str:
    """Lets the next commands run, and returns which of the states the tree has.

    Each of the named snapshots has to be there, and to bring its state back.
    """
    handle = scene.handle()
    handle.status()
    name = scene.name_of_state(*states)
    assert not list(scene.store.glob("roots/*/journal")), "there is a journal"
    assert_healing(scene)
    handle.create()
    assert_sound(scene)
    assert scene.litter() == []
    assert scene.name_of_state(*states) == name
    for snapshot in snapshots:
        handle.restore(snapshot)
        scene.name_of_state("before" if snapshot == "before" else "after")
    return name


def names_of(scene) -> list[str]:
    return sorted(str(item.name) for item in scene.handle().list())


def after_create(scene) -> str:
    names = names_of(scene)
    settled(scene, "after", snapshots=names)
    return " ".join(names)


def after_first_create(scene) -> str:
    """The store may be there, in part or not at all. With a snapshot the root is known."""
    try:
        count = len(scene.handle().list())
    except StoreMissing:
        count = 0
    if count > 0:
        roots = registered_roots(LocalFileSystem(), Layout(str(scene.store)))
        assert roots == [os.fsencode(scene.root)]
        assert_healing(scene)
    scene.handle().create(name="before" if count == 0 else None)
    settled(scene, "before", snapshots=())
    scene.handle().restore("latest")
    scene.name_of_state("before")
    return f"{count} snapshots"


def after_delete(scene) -> str:
    names = names_of(scene)
    settled(scene, "before", snapshots=[name for name in names if name != "None"])
    return " ".join(names)


def after_pin(scene) -> str:
    pinned = scene.handle().resolve("before").pinned
    settled(scene, "after")
    return f"pinned: {pinned}"


def after_collection(scene) -> str:
    settled(scene, "after")
    handle = scene.handle()
    handle.gc()
    assert handle.gc(dry_run=True).removed_objects == 0
    assert handle.gc().postponed is None
    assert handle.verify(read_data=True).ok
    return "nothing lost"


def after_restore(scene) -> str:
    """The restore can be done again if need be, and undone."""
    name = settled(scene, "after", "before")
    scene.handle().undo()
    scene.name_of_state("after")
    return name


def after_undo(scene) -> str:
    """The undo can be undone if it was done, and what it undid is still there."""
    name = settled(scene, "before", "after", snapshots=())
    if name == "after":
        scene.handle().redo()
        scene.name_of_state("before")
    scene.handle().undo()
    scene.name_of_state("after")
    return name


def after_redo(scene) -> str:
    name = settled(scene, "before", "after", snapshots=())
    if name == "before":
        scene.handle().undo()
        scene.name_of_state("after")
    scene.handle().redo()
    scene.name_of_state("before")
    return name


def after_revert(scene) -> str:
    """The revert can be done again if need be, and undone."""
    name = settled(scene, "diverged", "reverted", snapshots=())
    handle = scene.handle()
    if name == "diverged":
        handle.revert("before..step", conflicts="mine")
        scene.name_of_state("reverted")
    handle.undo()
    scene.name_of_state("diverged")
    return name


def after_restore_of_removed(scene) -> str:
    scene.handle().recover()
    name = scene.name_of_state("absent", "before")
    assert_healing(scene)
    if name == "absent":
        scene.handle().restore("before")
    settled(scene, "before")
    return name


def after_export(scene) -> str:
    """Nothing is left beside the target when the next command has run."""
    scene.handle().status()
    target = scene.root.parent / "target"
    found = "whole" if target.exists() else "absent"
    if found == "whole":
        assert differences(tree_state(target), scene.states["before"]) == []
    assert set(os.listdir(target.parent)) <= {"root", "store", "target"}
    assert not list(scene.store.glob("roots/*/export-*"))
    settled(scene, "after")
    return found


def after_fork(scene) -> str:
    """The fork is a whole root with its base, or nothing is left of it anywhere."""
    scene.handle().status()
    place = scene.root.parent / "fork"
    found = "whole" if place.exists() else "absent"
    roots = {info.path_text: info for info in scene.handle().root_list()}
    if found == "whole":
        assert differences(tree_state(place), scene.states["before"]) == []
        fork = Handle(context_at(root=place, store_path=str(scene.store)))
        assert fork.resolve("forked").pinned
        assert not fork.status("forked").changes
        assert roots[str(place)].origin is not None
    assert set(roots) == {str(scene.root), *([str(place)] if found == "whole" else [])}
    assert set(os.listdir(place.parent)) <= {"root", "store", "fork"}
    assert not list(scene.store.glob("roots/*/export-*"))
    settled(scene, "after")
    return found


def after_work(scene) -> str:
    scene.handle().status()
    return str(scene.name_of_state("worked"))
