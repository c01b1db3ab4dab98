"""``fork``, killed or failing at every point: each directory is a whole fork, or absent.

After the next command in the origin, nothing is left of a fork that did not come to be: neither
beside its directory nor in the store.
"""

from __future__ import annotations

import errno
import os
from dataclasses import replace
from pathlib import Path

import pytest

from everywhere import assert_turns_once, fail_everywhere, kill_everywhere
from state import differences, tree_state
from treesnap.core.handle import Handle
from treesnap.core.model.errors import OperationFailed
from treesnap.core.ops.context import context_at
from treesnap.testing.doubles import (
    Fault,
    FaultyFileSystem,
    Kind,
    UnsyncedFileSystem,
    error_at,
    kill_halfway,
)

pytestmark = pytest.mark.sampled(10)


def fork_of(scene, name: str = "fork") -> Path:
    return scene.root.parent / name


def fork(handle: Handle) -> None:
    handle.fork("before", [os.path.join(os.path.dirname(handle.root), "fork")])


def state(scene, name: str = "fork") -> str:
    """Returns whether a fork is there, which then is whole and a root with its base."""
    place = fork_of(scene, name)
    if not os.path.lexists(place):
        return "absent"
    assert differences(tree_state(place), scene.states["before"]) == []
    context = context_at(root=place, store_path=str(scene.store), fs=UnsyncedFileSystem())
    handle = Handle(context)
    origin = handle.origin()
    assert origin is not None
    assert origin.path_text == str(scene.root)
    base = handle.resolve("forked")
    assert base.pinned
    assert not handle.status("forked").changes
    return "whole"


def litter(scene, *forks: str) -> list[str]:
    """Returns what a fork may leave only while it is made."""
    beside = set(os.listdir(scene.root.parent)) - {"root", "store", *forks}
    records = [str(path) for path in scene.store.glob("roots/*/export-*")]
    there = [name for name in forks if fork_of(scene, name).exists()]
    roots = {info.path_text for info in scene.handle().root_list()}
    expected = {str(scene.root), *(str(fork_of(scene, name)) for name in there)}
    return [*beside, *records, *(roots ^ expected)]


class TestKilled:
    @pytest.mark.sampled(3)
    def test_leaves_a_whole_fork_or_none(self, scene):
        def check() -> str:
            scene.handle().status()
            assert litter(scene, "fork") == []
            return state(scene)

        assert_turns_once(kill_everywhere(scene, "restored", fork, check), "absent", "whole")

    def test_can_be_repeated_at_once(self, scene):
        def check() -> str:
            if not fork_of(scene).exists():
                fork(scene.handle())
            scene.handle().create()
            assert litter(scene, "fork") == []
            assert scene.litter() == []
            return state(scene)

        assert set(kill_everywhere(scene, "restored", fork, check, every=5)) == {"whole"}

    def test_leaves_each_of_several_whole_or_not_at_all(self, scene):
        def check() -> str:
            scene.handle().status()
            assert litter(scene, "one", "two") == []
            return f"{state(scene, 'one')} {state(scene, 'two')}"

        outcomes = kill_everywhere(
            scene,
            "restored",
            lambda handle: handle.fork("before", [fork_of(scene, "one"), fork_of(scene, "two")]),
            check,
            every=3,
        )

        assert set(outcomes) <= {"absent absent", "whole absent", "whole whole"}
        assert sorted(outcomes) == outcomes

    def test_may_happen_while_a_write_arrives_by_half(self, scene):
        def check() -> str:
            scene.handle().status()
            assert litter(scene, "fork") == []
            return state(scene)

        outcomes = kill_everywhere(scene, "restored", fork, check, at=kill_halfway)

        assert "absent" in outcomes


class TestFailing:
    @pytest.mark.sampled(3)
    @pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC])
    def test_leaves_a_whole_fork_or_none(self, scene, number):
        def check(error) -> str:
            found = "whole" if fork_of(scene).exists() else "absent"
            assert found == "whole" or error is not None
            scene.handle().status()
            assert litter(scene, "fork") == []
            assert state(scene) == found
            return found

        def fault(point: int) -> Fault:
            made = error_at(point, number)
            if number == errno.EIO:
                return made
            # While there is room, it says that the file cannot have the attribute: setxattr(2).
            return replace(made, kinds=made.kinds - {Kind.ATTRIBUTE})

        outcomes = fail_everywhere(scene, "restored", fork, check, fault, every=2)

        assert set(outcomes) == {"absent", "whole"}

    def test_at_the_lock_of_the_new_root_leaves_no_root(self, scene):
        scene.reset("restored")
        new_lock = Fault(
            number=2,  # after that of the origin
            errno=errno.EIO,
            methods=frozenset({"open"}),
            where=lambda call: call.path.endswith("/lock") and "/roots/lock" not in call.path,
        )
        fs = FaultyFileSystem(new_lock, inner=UnsyncedFileSystem())

        with pytest.raises(OperationFailed, match="Input/output error"):
            fork(scene.handle(fs))

        assert fs.hits_of(new_lock) == 1
        assert litter(scene, "fork") == []
        assert state(scene) == "absent"
