"""``restore --to``, killed or failing at every point: the target is whole or absent.

Nothing is left beside it, or in the store, when the next command has run.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from everywhere import assert_turns_once, fail_everywhere, kill_everywhere
from state import differences, tree_state
from treesnap.testing.doubles import error_at, kill_halfway


def target_of(scene) -> Path:
    return scene.root.parent / "target"


def keep_closed(scene) -> None:
    """Keeps "closed": a history with a snapshot of a root without write permission."""
    if (scene.directory / "closed").exists():
        return
    scene.reset("restored")
    scene.root.chmod(0o555)
    scene.note("closed")
    scene.handle().create(name="closed")
    scene.keep("closed")


def outcome(scene, name: str) -> str:
    """Returns whether the target is there; it has the whole state of that name, or is absent."""
    target = target_of(scene)
    if not os.path.lexists(target):
        return "absent"
    assert differences(tree_state(target), scene.states[name]) == []
    return "whole"


def litter(scene) -> list[str]:
    """Returns what an export may leave only while it runs."""
    beside = set(os.listdir(scene.root.parent)) - {"root", "store", "target"}
    records = [str(path) for path in scene.store.glob("roots/*/export-*")]
    return [*beside, *records]


class TestKilled:
    @pytest.mark.sampled(3)
    @pytest.mark.parametrize("name", ["before", "closed"])
    def test_leaves_the_whole_target_or_none_and_nothing_beside_it(self, scene, name):
        keep_closed(scene)

        def check() -> str:
            found = outcome(scene, name)
            scene.handle().status()
            assert outcome(scene, name) == found
            assert litter(scene) == []
            return found

        outcomes = kill_everywhere(
            scene,
            "closed",
            lambda handle: handle.restore(name, to=target_of(scene)),
            check,
        )

        assert_turns_once(outcomes, "absent", "whole")

    def test_can_be_repeated_at_once(self, scene):
        def check() -> str:
            if outcome(scene, "before") == "absent":
                scene.handle().restore("before", to=target_of(scene))
            scene.handle().create()
            assert litter(scene) == []
            assert scene.litter() == []
            return outcome(scene, "before")

        outcomes = kill_everywhere(
            scene,
            "restored",
            lambda handle: handle.restore("before", to=target_of(scene)),
            check,
            every=5,
        )

        assert set(outcomes) == {"whole"}

    def test_may_happen_while_a_write_arrives_by_half(self, scene):
        def check() -> str:
            scene.handle().status()
            assert litter(scene) == []
            return outcome(scene, "before")

        outcomes = kill_everywhere(
            scene,
            "restored",
            lambda handle: handle.restore("before", to=target_of(scene)),
            check,
            at=kill_halfway,
        )

        assert set(outcomes) == {"absent"}


class TestFailing:
    @pytest.mark.sampled(3)
    @pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC])
    def test_leaves_the_whole_target_or_none_at_once(self, scene, number):
        def check(error) -> str:
            found = outcome(scene, "before")
            assert found == "whole" or error is not None
            scene.handle().status()
            assert litter(scene) == []
            return found

        outcomes = fail_everywhere(
            scene,
            "restored",
            lambda handle: handle.restore("before", to=target_of(scene)),
            check,
            lambda point: error_at(point, number),
            every=2,
        )

        assert set(outcomes) == {"absent", "whole"}

    def test_for_good_leaves_nothing_when_the_next_command_has_run(self, scene):
        def check(_error) -> str:
            scene.handle().status()
            assert litter(scene) == []
            return outcome(scene, "before")

        outcomes = fail_everywhere(
            scene,
            "restored",
            lambda handle: handle.restore("before", to=target_of(scene)),
            check,
            lambda point: error_at(point, errno.EIO, lasting=True),
        )

        assert_turns_once(outcomes, "absent", "whole")
