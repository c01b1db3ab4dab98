"""Operations, and what may come of them when the power fails."""

from __future__ import annotations

import errno
import os
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import pytest

import adopting
from background import as_command
from cuts import Cut, cuts, cuts_at, moments
from disk import load, materialise
from power import PoweredFileSystem, Recording
from power_checks import (
    after_collection,
    after_create,
    after_delete,
    after_export,
    after_first_create,
    after_fork,
    after_pin,
    after_redo,
    after_restore,
    after_restore_of_removed,
    after_revert,
    after_undo,
    after_work,
)
from prepared import trust_stores
from sampling import sized
from treesnap.core.fs.base import FileSystem, Unsupported
from treesnap.core.handle import Handle
from treesnap.core.model.errors import TreesnapError
from treesnap.core.ops.context import context_at
from treesnap.testing.children import killed
from treesnap.testing.doubles import (
    Fault,
    FaultyFileSystem,
    Killed,
    Kind,
    RecordingFileSystem,
    kill_at,
)

NO_EXCHANGE = Fault(
    methods=frozenset({"exchange"}), errno=errno.EINVAL, error=Unsupported, lasting=True
)

RANDOM_NAME = re.compile("[0-9a-f]{16}")

Scene = Any
"""What the fixture of that name is."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """An operation, and what has to come of it."""

    name: str
    start: str
    operation: Callable[[Handle], object]
    check: Callable[[Scene], str]
    """Lets the next commands run, and returns what came of the operation."""
    old: str
    new: str
    """What has to come of it once it has returned."""
    prepare: Callable[[Scene], object] = id
    """What is done before."""
    afterwards: Callable[[FileSystem, Path], None] | None = None
    """Work in the root after the operation returned."""
    is_cut_at_end: bool = False
    """Whether only power cuts after the operation returned are tried."""
    faults: tuple[Fault, ...] = ()
    needless: frozenset[str] = frozenset()
    """Syncs that this case does not miss when they are left out."""
    needed: frozenset[str] = frozenset()
    """Syncs that it misses, where only some of them matter; all but the needless otherwise."""

    def __str__(self) -> str:
        return self.name


def recorded(scene, case: Case) -> Recording:
    """Runs an operation on what was kept, and returns what it did to the disk.

    The store counts as another file system, so that no sync of one covers for the other.
    """
    scene.reset(case.start)
    case.prepare(scene)
    directory = str(scene.root.parent)
    powered = PoweredFileSystem(directory, apart=[b"store"])
    fs = FaultyFileSystem(*case.faults, inner=powered) if case.faults else powered
    case.operation(scene.handle(fs))
    powered.note_return()
    if case.afterwards is not None:
        case.afterwards(powered, scene.root)
        scene.note("worked")
    assert powered.disk.contents() == load(directory).contents(), "This is not what happened"
    return powered.recording()


def names_of_syncs(recording: Recording) -> list[str]:
    """Returns method, place and number among its kind for each sync."""
    seen: Counter[str] = Counter()
    names = []
    for sync in recording.syncs:
        place = "/".join(part for part in sync.path.split("/") if not RANDOM_NAME.search(part))
        name = f"{sync.method} {'' if os.path.isabs(place) else place}".rstrip()
        seen[name] += 1
        names.append(f"{name} {seen[name]}")
    return names


def cuts_of(
    case: Case,
    recording: Recording,
    seed: int,
    *,
    more: int = 50,
    first: int = 0,
    is_each_new: bool = True,
) -> list[Cut]:
    """Returns the power cuts that are tried; times in the store make no difference.

    To leave out those that leave the same disk as another, all disks are made.
    """
    first = -1 if case.is_cut_at_end else first
    random = Random(seed)
    if not is_each_new:
        return [
            cut for moment in [*moments(recording)][first:] for cut in cuts_at(moment, random, more)
        ]
    return [*cuts(recording, random=random, more=more, untimed=b"store", first=first)]


def after(scene, cut: Cut, case: Case) -> str:
    """Returns what came of a power cut; fails, and says which, when that may not be."""
    materialise(cut.disk, str(scene.root.parent))
    trust_stores(scene.root.parent)  # a power cut gives no file another inode
    try:
        outcome = case.check(scene)
        assert outcome in {case.old, case.new}
        assert outcome == case.new or not cut.moment.is_after_return, "what was done is not there"
    except (TreesnapError, OSError, LookupError, AssertionError, pytest.fail.Exception) as error:
        raise Wrong(f"{error!r}\n{cut}") from error
    return outcome


class Wrong(AssertionError):
    """A power cut left what it may not leave."""


def work_on(fs: FileSystem, root: Path) -> None:
    """Makes a file in the root and changes the root itself, durably."""
    file = fs.open(str(root / "later"), os.O_WRONLY | os.O_CREAT)
    fs.write(file, b"later")
    fs.sync(file)
    fs.close(file)
    directory = fs.open(str(root), os.O_RDONLY | os.O_DIRECTORY)
    fs.change_mode(directory, 0o711)
    fs.sync(directory)
    fs.close(directory)


def kill_restore_at(share: float) -> Callable[[Scene], object]:
    """Returns what lets a restore die after that share of its calls."""

    def prepare(scene: Scene) -> None:
        recording = RecordingFileSystem()
        scene.handle(recording).restore("before")
        fault = kill_at(int(len(recording.mutations) * share))
        scene.reset("changed")
        assert killed(lambda fs: scene.handle(fs).restore("before"), fault).was_killed

    return prepare


def cut_restore_before(sync_name: str, seed: int) -> Callable[[Scene], object]:
    """Returns what lets the power fail during a restore, just before one of its syncs."""

    def prepare(scene: Scene) -> None:
        powered = PoweredFileSystem(str(scene.root.parent), apart=[b"store"])
        scene.handle(powered).restore("before")
        recording = powered.recording()
        moment = [*moments(recording)][names_of_syncs(recording).index(sync_name)]
        found = [*cuts_at(moment, Random(seed), 50)]
        materialise(Random(seed).choice(found).disk, str(scene.root.parent))
        trust_stores(scene.root.parent)

    return prepare


def create_after_kill(number: int) -> Callable[[Handle], object]:
    """Returns a create that comes after one that was killed at its n-th sync."""

    def operation(handle: Handle) -> None:
        fault = Fault(number=number, kinds=frozenset({Kind.SYNC}))
        dying = FaultyFileSystem(fault, inner=handle.context.fs)
        with pytest.raises(Killed):
            Handle(
                context_at(root=handle.root, store_path=handle.store_path, fs=dying, wait_s=0)
            ).create()
        handle.create(name="before")

    return operation


def diverge(scene: Scene) -> None:
    """Keeps "diverged": a step was captured, and more was done since; notes what a revert makes."""
    if "diverged" in scene.states:
        scene.reset("diverged")
        return
    scene.reset("changed")
    scene.handle().create(name="step")
    (scene.root / "changes-0").write_bytes(b"since")
    (scene.root / "since").write_bytes(b"since")
    (scene.root / "appears").unlink()
    (scene.root / "stays/0").write_bytes(b"since")
    for number, name in enumerate(("changes-0", "since", "stays/0", "stays", "")):
        os.utime(scene.root / name, ns=(LONG_AGO_NS, LONG_AGO_NS + number))
    scene.note("diverged")
    scene.keep("diverged")
    revert_step(scene.handle())
    scene.note("reverted")
    scene.reset("diverged")


def revert_step(handle: Handle) -> None:
    """Takes a step out; where its files changed since, they stay."""
    assert handle.revert("before..step", conflicts="mine").conflicts


LONG_AGO_NS = 1_600_000_000_000_000_000
FIRST_CREATE_SYNCS = 13
"""The last one makes the snapshot's own name durable."""
PROOF_IS_LOST = frozenset({"sync_data store/temporary 2"})
"""That of what proves where a store was made: each state is proven anew, for it has new inodes."""
JOURNAL_IS_GONE = frozenset({"sync store/roots 4"})
"""The last sync of a restore: a journal that comes back later disturbs only later work."""
RECOVERED_JOURNAL_IS_GONE = frozenset({"sync store/roots 1"})

STORE_CASES = [
    Case(
        name="create",
        start="changed",
        operation=lambda handle: handle.create(name="second"),
        check=after_create,
        old="before",
        new="before second",
    ),
    Case(
        name="first create",
        start="populated",
        operation=lambda handle: handle.create(name="before"),
        check=after_first_create,
        old="0 snapshots",
        new="1 snapshots",
        needless=PROOF_IS_LOST,
    ),
    Case(
        name="delete",
        start="restored",
        operation=lambda handle: handle.delete("before"),
        check=after_delete,
        old="None before",
        new="None",
    ),
    Case(
        name="pin",
        start="changed",
        operation=lambda handle: handle.pin("before"),
        check=after_pin,
        old="pinned: False",
        new="pinned: True",
        needless=frozenset({"sync_data store/temporary 1"}),  # an unreadable one is a pin too
    ),
    Case(
        name="unpin",
        start="changed",
        prepare=lambda scene: scene.handle().pin("before"),
        operation=lambda handle: handle.unpin("before"),
        check=after_pin,
        old="pinned: True",
        new="pinned: False",
    ),
    Case(
        name="gc",
        start="garbage",
        operation=lambda handle: handle.gc(),
        check=after_collection,
        old="nothing lost",
        new="nothing lost",
        needless=frozenset(
            {
                # The index is a hint; without it everything is scanned, and right.
                "sync_data store/temporary 3",
                "sync store/index 1",
                # An old part that comes back makes captures read every file, and no more.
                "sync store/index 2",
            }
        ),
    ),
]
TREE_CASES = [
    Case(
        name="restore",
        start="changed",
        operation=lambda handle: handle.restore("before"),
        check=after_restore,
        old="after",
        new="before",
        needless=JOURNAL_IS_GONE,
    ),
    Case(
        name="restore and work",
        start="changed",
        operation=lambda handle: handle.restore("before"),
        afterwards=work_on,
        is_cut_at_end=True,
        check=after_work,
        old="worked",
        new="worked",
        needed=JOURNAL_IS_GONE,
    ),
    Case(
        name="restore with displaced files that wait",
        start="changed",
        prepare=lambda scene: scene.handle().config("background", "false"),
        operation=lambda handle: as_command(handle).restore("before"),
        check=after_restore,
        old="after",
        new="before",
        needless=JOURNAL_IS_GONE,
    ),
    Case(
        name="restore without exchange",
        start="changed",
        operation=lambda handle: handle.restore("before"),
        check=after_restore,
        old="after",
        new="before",
        faults=(NO_EXCHANGE,),
        needless=JOURNAL_IS_GONE,
    ),
    Case(
        name="restore of a root that was removed",
        start="removed",
        operation=lambda handle: handle.restore("before"),
        check=after_restore_of_removed,
        old="absent",
        new="before",
        needless=JOURNAL_IS_GONE,
    ),
    Case(
        name="restore to another directory",
        start="changed",
        operation=lambda handle: handle.restore(
            "before", to=os.path.join(os.path.dirname(handle.root), "target")
        ),
        check=after_export,
        old="absent",
        new="whole",
        needless=frozenset({"sync 1"}),  # that of the clean-up follows, unless that fails
    ),
    Case(
        name="fork",
        start="changed",
        operation=lambda handle: handle.fork(
            "before", [os.path.join(os.path.dirname(handle.root), "fork")]
        ),
        check=after_fork,
        old="absent",
        new="whole",
        needless=frozenset(
            {
                "sync 1",  # that of the clean-up follows, unless that fails
                "sync store 1",  # for the first snapshot of a store, which this one has
            }
        ),
    ),
    Case(
        name="undo",
        start="restored",
        operation=lambda handle: handle.undo(),
        check=after_undo,
        old="before",
        new="after",
        needless=JOURNAL_IS_GONE,
    ),
    Case(
        name="redo",
        start="undone",
        operation=lambda handle: handle.redo(),
        check=after_redo,
        old="after",
        new="before",
        needless=JOURNAL_IS_GONE,
    ),
    Case(
        name="revert",
        start="changed",
        prepare=diverge,
        operation=revert_step,
        check=after_revert,
        old="diverged",
        new="reverted",
        # The sync after the third snapshot, which comes before the journal, covers the first two.
        needless=JOURNAL_IS_GONE | {"sync store/snapshots 1", "sync store/snapshots 2"},
    ),
    Case(
        name="recovery forwards",
        start="changed",
        prepare=kill_restore_at(0.9),
        operation=lambda handle: handle.recover(),
        check=after_restore,
        old="before",
        new="before",
        needless=RECOVERED_JOURNAL_IS_GONE,
    ),
    Case(
        name="recovery backwards",
        start="changed",
        prepare=kill_restore_at(0.4),
        operation=lambda handle: handle.recover(),
        check=after_restore,
        old="after",
        new="after",
        needless=RECOVERED_JOURNAL_IS_GONE,
    ),
    Case(
        name="recovery and work",
        start="changed",
        prepare=kill_restore_at(0.9),
        operation=lambda handle: handle.recover(),
        afterwards=work_on,
        is_cut_at_end=True,
        check=after_work,
        old="worked",
        new="worked",
        needed=RECOVERED_JOURNAL_IS_GONE,
    ),
]
ADOPTION_CASES = [
    Case(
        name="adopt",
        start="changed",
        prepare=adopting.prepare_and_note,
        operation=adopting.adopt,
        check=adopting.settled,
        old="origin",
        new="adopted",
        needless=JOURNAL_IS_GONE
        | frozenset(
            {
                "sync store/snapshots 1",  # the fork's state, by which only conflicts are told
                "sync store/snapshots 2",  # the directory is synced again with the merge
            }
        ),
    ),
]
RECOVERY_CASES = [
    Case(
        name=f"recovery {name} {seed}",
        start="changed",
        prepare=cut_restore_before(sync_name, seed),
        operation=lambda handle: handle.recover(),
        check=after_restore,
        old=state,
        new=state,
    )
    for seed in range(sized(1, 3))
    for name, sync_name, state in (
        ("from a power cut while staging", "sync_file_system root 1", "after"),
        ("from a power cut while applying", "sync_file_system root 2", "before"),
    )
]
KILLED_CASES = [
    Case(
        name=f"first create after one that was killed at sync {number}",
        start="populated",
        operation=create_after_kill(number),
        check=after_first_create,
        old="1 snapshots",
        new="1 snapshots",
        is_cut_at_end=True,
    )
    for number in range(1, FIRST_CREATE_SYNCS)
]
"""What a killed process has made and not synced is durable when the next one returns."""
CASES = [*STORE_CASES, *TREE_CASES, *ADOPTION_CASES, *RECOVERY_CASES, *KILLED_CASES]
