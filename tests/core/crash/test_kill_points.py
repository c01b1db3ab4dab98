"""Killed at every point: the next commands find the old tree or the new one.

Every operation that writes runs in a child that dies just before its n-th call
that changes the disk, for every n until it lives. What a kill leaves on disk just
after a call is what it leaves just before the next, so that all moments between
calls are covered; writes that arrive by half are enumerated on their own. Then
fresh commands run: the tree is exactly as before or as after, the store verifies,
and nothing is left lying around.

Power cuts, where effects that were not synced get lost, are in test_power_cuts.
"""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from dataclasses import replace
from stat import S_ISDIR

import pytest

from background import as_command
from everywhere import POINTS_MAX, assert_turns_once, kill_everywhere
from power_cases import diverge, revert_step
from sampling import sized
from state import TreeState, tree_state
from treesnap.core.fs.base import Unsupported
from treesnap.core.model.errors import MergeConflict
from treesnap.core.ops.restore import transaction
from treesnap.testing.children import killed
from treesnap.testing.doubles import Fault, RecordingFileSystem, kill_at, kill_halfway

pytestmark = pytest.mark.sampled(12)

NO_EXCHANGE = Fault(
    methods=frozenset({"exchange"}), errno=errno.EINVAL, error=Unsupported, lasting=True
)

EDITED_NS = 2 * 10**9
"""A time that every file system keeps."""


def names_of(scene) -> list[str]:
    """Returns the names of the root's snapshots, sorted."""
    return sorted(str(item.name) for item in scene.handle().list())


class TestRestore:
    def test_leaves_the_old_tree_or_the_new_one(self, scene):
        outcomes = kill_everywhere(
            scene,
            "changed",
            lambda handle: handle.restore("before"),
            lambda: scene.recovered("after", "before"),
        )

        assert_turns_once(outcomes, "after", "before")

    def test_leaves_one_of_both_where_names_cannot_be_exchanged(self, scene):
        outcomes = kill_everywhere(
            scene,
            "changed",
            lambda handle: handle.restore("before"),
            lambda: scene.recovered("after", "before"),
            NO_EXCHANGE,
        )

        assert_turns_once(outcomes, "after", "before")

    def test_leaves_one_of_both_when_a_write_arrives_by_half(self, scene):
        assert kill_everywhere(
            scene,
            "changed",
            lambda handle: handle.restore("before"),
            lambda: scene.recovered("after", "before"),
            at=kill_halfway,
        )

    def test_leaves_one_of_both_where_displaced_files_wait(self, scene, monkeypatch):
        monkeypatch.setattr(transaction, "WAITING_FILES_MIN", 1)
        scene.reset("changed")
        scene.handle().config("background", "false")
        scene.keep("changed, without processes")

        outcomes = kill_everywhere(
            scene,
            "changed, without processes",
            lambda handle: as_command(handle).restore("before"),
            lambda: scene.recovered("after", "before"),
        )

        assert_turns_once(outcomes, "after", "before")

    def test_can_be_done_or_undone_after_every_kill(self, scene):
        def check() -> str:
            handle = scene.handle()
            handle.recover()
            if scene.name_of_state("after", "before") == "before":
                handle.undo()
                return scene.name_of_state("after")
            handle.restore("before")
            return scene.name_of_state("before")

        assert kill_everywhere(
            scene, "changed", lambda handle: handle.restore("before"), check, every=3
        )

    def test_of_some_paths_leaves_the_others_alone(self, scene):
        scene.reset("changed")
        scene.handle().restore("before", ["changes-0", "vanishes-too", "appears"])
        scene.note("partly")

        outcomes = kill_everywhere(
            scene,
            "changed",
            lambda handle: handle.restore("before", ["changes-0", "vanishes-too", "appears"]),
            lambda: recovered_but_for_root_time(scene),
        )

        assert_turns_once(outcomes, "after", "partly")

    def test_with_a_base_leaves_all_that_others_changed(self, scene):
        def restore(handle):
            return handle.restore("before", base="base")

        scene.reset("changed")
        scene.handle().create(name="base")
        (scene.root / "changes-1").write_bytes(b"edited")
        (scene.root / "appears-too/inner/added").write_bytes(b"added")
        (scene.root / "becomes-directory/added").write_bytes(b"added")
        (scene.root / "vanishes-too").write_bytes(b"a file now")
        scene.note("edited")
        scene.keep("edited")
        assert len(restore(scene.handle()).conflicts) == 4
        scene.note("merged")

        def check() -> str:
            scene.handle().recover()
            found = without_directory_times(tree_state(scene.root))
            return next(
                name
                for name in ("edited", "merged")
                if found == without_directory_times(scene.states[name])
            )

        assert_turns_once(kill_everywhere(scene, "edited", restore, check), "edited", "merged")

    def test_of_a_hunk_leaves_the_old_file_or_the_new_one(self, scene):
        def restore(handle):
            return handle.restore_hunks(handle.hunks("text", "text"), [1])

        scene.reset("changed")
        (scene.root / "text").write_bytes(b"one\ntwo\nthree\n")
        scene.handle().create(name="text")
        (scene.root / "text").write_bytes(b"ONE\ntwo\nTHREE\n")
        os.utime(scene.root / "text", ns=(EDITED_NS, EDITED_NS))
        scene.note("text edited")
        scene.keep("text edited")
        restore(scene.handle())
        scene.note("by hunk")

        def check() -> str:
            scene.handle().recover()
            assert scene.handle().verify(read_data=True).ok
            found = without_directory_times(tree_state(scene.root))
            is_restored = found[b"text"].mtime_ns != EDITED_NS
            if is_restored:
                found[b"text"] = replace(
                    found[b"text"], mtime_ns=scene.states["by hunk"][b"text"].mtime_ns
                )
            name = "by hunk" if is_restored else "text edited"
            assert found == without_directory_times(scene.states[name])
            return name

        assert_turns_once(
            kill_everywhere(scene, "text edited", restore, check), "text edited", "by hunk"
        )

    def test_of_a_root_that_was_removed_leaves_nothing_or_everything(self, scene):
        def check() -> str:
            scene.handle().recover()
            assert scene.handle().verify(read_data=True).ok
            return scene.name_of_state("absent", "before")

        outcomes = kill_everywhere(scene, "removed", lambda handle: handle.restore("before"), check)

        assert_turns_once(outcomes, "absent", "before")


def without_directory_times(state: TreeState) -> TreeState:
    """Returns a state without what changes when only some of a directory is restored."""
    return {
        path: replace(item, mtime_ns=0) if S_ISDIR(item.mode) else item
        for path, item in state.items()
    }


def recovered_but_for_root_time(scene) -> str:
    """Recovers; a restore of some paths gives the directories above them the present time."""
    scene.handle().recover()
    found = tree_state(scene.root)
    partly = scene.states["partly"]
    if found[b""].mtime_ns != scene.states["after"][b""].mtime_ns:
        found[b""] = partly[b""]
    return next(name for name in ("after", "partly") if found == scene.states[name])


class TestRevert:
    """Of a step, after more was done: in the same files, and in others."""

    @pytest.fixture(autouse=True)
    def diverged(self, scene):
        diverge(scene)

    def test_leaves_the_old_tree_or_the_new_one(self, scene):
        outcomes = kill_everywhere(
            scene, "diverged", revert_step, lambda: scene.recovered("diverged", "reverted")
        )

        assert_turns_once(outcomes, "diverged", "reverted")

    def test_leaves_one_of_both_when_a_write_arrives_by_half(self, scene):
        assert kill_everywhere(
            scene,
            "diverged",
            revert_step,
            lambda: scene.recovered("diverged", "reverted"),
            at=kill_halfway,
        )

    def test_can_be_done_or_undone_after_every_kill(self, scene):
        def check() -> str:
            handle = scene.handle()
            handle.recover()
            if scene.name_of_state("diverged", "reverted") == "reverted":
                handle.undo()
                return scene.name_of_state("diverged")
            revert_step(handle)
            return scene.name_of_state("reverted")

        assert kill_everywhere(scene, "diverged", revert_step, check, every=3)

    def test_leaves_the_tree_where_it_is_refused(self, scene):
        def refused(handle):
            with suppress(MergeConflict):
                handle.revert("before..step")

        def check() -> str:
            return scene.recovered("diverged")

        scene.reset("diverged")
        with pytest.raises(MergeConflict):
            scene.handle().revert("before..step")

        assert {*kill_everywhere(scene, "diverged", refused, check)} == {"diverged"}


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("start", "verb", "old", "new"),
    [("restored", "undo", "before", "after"), ("undone", "redo", "after", "before")],
)
def test_undo_and_redo_leave_the_old_tree_or_the_new_one(scene, start, verb, old, new):
    outcomes = kill_everywhere(
        scene,
        start,
        lambda handle: getattr(handle, verb)(),
        lambda: scene.recovered(old, new),
        every=2,  # they are restores
    )

    assert_turns_once(outcomes, old, new)


@pytest.mark.sampled(6)
@pytest.mark.parametrize("share", [0.3, 0.6, 0.8, 0.95])
def test_recovery_may_be_killed_too(scene, share):
    """Recovery of a restore that died after that share of its calls, at some points.

    The restore is done again each time: a copy of what it left would have other inodes.
    """
    scene.reset("changed")
    recording = RecordingFileSystem()
    scene.handle(recording).restore("before")
    first = kill_at(int(len(recording.mutations) * share))

    outcomes = []
    for number in range(1, POINTS_MAX, sized(31, 2)):
        scene.reset("changed")
        killed(lambda fs: scene.handle(fs).restore("before"), first)
        ended = killed(lambda fs: scene.handle(fs).recover(), kill_at(number))
        assert ended.error is None, ended.error
        outcomes.append(scene.recovered("after", "before"))
        if not ended.was_killed:
            break

    assert len(outcomes) > 1
    assert len(set(outcomes)) == 1


@pytest.mark.slow
@pytest.mark.parametrize("kill", [kill_at, kill_halfway])
@pytest.mark.parametrize(
    ("start", "verb", "words", "states"),
    [
        ("changed", "restore", ("before",), ("after", "before")),
        ("removed", "restore", ("before",), ("absent", "before")),
        ("restored", "undo", (), ("before", "after")),
        ("undone", "redo", (), ("after", "before")),
        ("changed", "create", (), ("after",)),
        ("garbage", "gc", (), ("after",)),
        ("changed", "pin", ("before",), ("after",)),
        ("restored", "delete", ("before",), ("before",)),
    ],
)
def test_every_moment_of_every_call(scene, start, verb, words, states, kill):
    """Before each call, which is after the one before it, and in the middle of each write."""

    def check() -> str:
        handle = scene.handle()
        handle.recover()
        assert handle.verify(read_data=True).ok
        name = scene.name_of_state(*states)
        if name != "absent":
            assert scene.recovered(*states) == name
        return name

    assert kill_everywhere(
        scene,
        start,
        lambda handle: getattr(handle, verb)(*words),
        check,
        at=kill,
    )


class TestCreate:
    def test_publishes_a_whole_snapshot_or_none(self, scene):
        def check() -> str:
            count = len(scene.handle().list())
            scene.recovered("after")
            return f"{count} snapshots"

        outcomes = kill_everywhere(
            scene, "changed", lambda handle: handle.create(name="second"), check
        )

        assert_turns_once(outcomes, "1 snapshots", "2 snapshots")

    def test_the_first_one_of_a_store_can_be_repeated(self, scene):
        def check() -> str:
            scene.handle().create()
            return scene.recovered("before")

        assert kill_everywhere(scene, "populated", lambda handle: handle.create(), check)

    def test_publishes_nothing_that_arrived_by_half(self, scene):
        assert kill_everywhere(
            scene,
            "changed",
            lambda handle: handle.create(),
            lambda: scene.recovered("after"),
            at=kill_halfway,
        )


class TestGarbageCollection:
    def test_keeps_everything_that_is_needed(self, scene):
        def check() -> str:
            state = scene.recovered("after")
            handle = scene.handle()
            handle.gc()
            assert handle.gc(dry_run=True).removed_objects == 0
            assert handle.verify(read_data=True).ok
            handle.restore("before")
            return state + scene.name_of_state("before")

        assert kill_everywhere(scene, "garbage", lambda handle: handle.gc(), check)

    def test_repeated_after_a_kill_leaves_as_much_as_without(self, scene):
        scene.reset("garbage")
        scene.handle().gc()
        expected = scene.handle().stats().objects

        def check() -> str:
            scene.handle().gc()
            return str(scene.handle().stats().objects)

        outcomes = kill_everywhere(scene, "garbage", lambda handle: handle.gc(), check)

        assert set(outcomes) == {str(expected)}


class TestHistory:
    def test_delete_removes_a_snapshot_or_not(self, scene):
        def check() -> str:
            names = names_of(scene)
            scene.recovered("before")
            return " ".join(names)

        outcomes = kill_everywhere(scene, "restored", lambda handle: handle.delete("before"), check)

        assert set(outcomes) <= {"None", "None before"}

    def test_delete_leaves_no_state_without_its_snapshot(self, scene):
        if not (scene.directory / "pinned before").exists():
            scene.reset("restored")
            scene.handle().pin("before")
            scene.handle().unpin("before")
            scene.keep("pinned before")

        def check() -> str:
            states = {path.name for path in scene.store.glob("states/*")}
            assert states <= {item.id for item in scene.handle().list()}
            return f"{len(states)} states, {len(scene.handle().list())} snapshots"

        outcomes = kill_everywhere(
            scene, "pinned before", lambda handle: handle.delete("before"), check
        )

        assert set(outcomes) <= {"1 states, 2 snapshots", "0 states, 2 snapshots"}
        scene.reset("pinned before")
        at_the_snapshot = Fault(
            methods=frozenset({"unlink"}), where=lambda call: "/snapshots/" in call.path
        )
        assert killed(lambda fs: scene.handle(fs).delete("before"), at_the_snapshot).was_killed
        assert check() == "0 states, 2 snapshots"

    def test_a_label_and_tags_are_the_old_or_the_new_ones(self, scene):
        def change(handle) -> None:
            handle.describe("before", "new")
            handle.tag("before", {"a": "1", "b": "2"})

        def check() -> str:
            found = scene.handle().resolve("before")
            scene.recovered("after")
            assert found.tags in ({}, {"a": "1", "b": "2"})
            return f"{found.label} {len(found.tags)}"

        outcomes = kill_everywhere(scene, "changed", change, check)

        assert {"None 0", "new 0"} <= set(outcomes) <= {"None 0", "new 0", "new 2"}

    def test_pin_is_set_or_not(self, scene):
        def check() -> str:
            pinned = scene.handle().resolve("before").pinned
            scene.recovered("after")
            return str(pinned)

        outcomes = kill_everywhere(scene, "changed", lambda handle: handle.pin("before"), check)

        assert set(outcomes) <= {"False", "True"}
