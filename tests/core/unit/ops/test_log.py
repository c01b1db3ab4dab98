"""The log: which snapshots it yields, and what each is said to have changed."""

from __future__ import annotations

import os
import shutil
from itertools import pairwise
from pathlib import Path
from random import Random

import pytest

from treesnap.core.codec.root_files import GAPS, GAPS_FILE, Gap
from treesnap.core.handle import Handle
from treesnap.core.model.entries import ChangeKind
from treesnap.core.model.errors import ErrorCode, InvalidArgument, NotFound
from treesnap.core.model.results import HistoryGap
from treesnap.core.model.snapshots import SnapshotKind
from treesnap.core.ops.access import opened
from treesnap.core.ops.history.steps import EventPhase


def state_of(root: Path) -> dict[str, bytes | None]:
    """Returns what is below a directory: files with their bytes, directories with None."""
    found: dict[str, bytes | None] = {}
    for directory, names, files in os.walk(root):
        where = Path(directory)
        found |= {str((where / name).relative_to(root)): None for name in names}
        found |= {
            str((where / name).relative_to(root)): (where / name).read_bytes() for name in files
        }
    return found


def change_at_random(root: Path, random: Random) -> None:
    for _ in range(random.randrange(4)):
        path = root / random.choice("abc") / random.choice("xyz")
        if path.exists() and random.random() < 0.5:
            path.unlink()
        else:
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(random.randbytes(random.randrange(50)))


def expected(old: dict[str, bytes | None], new: dict[str, bytes | None]) -> tuple[int, ...]:
    both = old.keys() & new.keys()
    size = sum(len(data or b"") for data in new.values()) - sum(
        len(data or b"") for data in old.values()
    )
    changed = sum(old[path] != new[path] for path in both)
    return len(new.keys() - old.keys()), len(old.keys() - new.keys()), changed, size


@pytest.mark.sampled(5)
@pytest.mark.parametrize("seed", range(5))
def test_what_each_snapshot_changed_is_what_a_comparison_of_copies_says(handle, root, seed):
    random = Random(seed)
    states: list[dict[str, bytes | None]] = [{}]
    ids = []
    for _ in range(8):
        change_at_random(root, random)
        states.append(state_of(root))
        ids.append(handle.create().id)

    entries = list(handle.log())

    assert [entry.snapshot.id for entry in entries] == ids[::-1]
    assert [entry.older_id for entry in entries] == [*ids[-2::-1], None]
    found = [
        (entry.added, entry.removed, entry.modified, entry.size_change_bytes) for entry in entries
    ]
    assert found == [expected(*pair) for pair in pairwise(states)][::-1]
    assert [entry.is_position for entry in entries] == [True] + [False] * 7


@pytest.mark.sampled(5)
@pytest.mark.parametrize("seed", range(5))
def test_the_log_of_a_path_has_its_versions(handle, root, seed):
    random = Random(seed)
    versions: list[tuple[bytes | None, str]] = []
    before = None
    for _ in range(12):
        change_at_random(root, random)
        now = state_of(root).get("a/x")
        made = handle.create().id
        if now != before:
            versions.append((now, made))
        before = now

    entries = list(handle.log(root / "a" / "x"))

    assert [entry.snapshot.id for entry in entries] == [made for _, made in versions][::-1]
    for entry, (content, made) in zip(entries, versions[::-1], strict=True):
        assert entry.change is not None
        if content is None:
            assert entry.change.change == ChangeKind.REMOVED
        else:
            assert b"".join(handle.cat(made, root / "a" / "x")) == content


def test_a_new_directory_counts_with_all_that_it_holds(handle, root):
    handle.create()
    (root / "new" / "deep").mkdir(parents=True)
    (root / "new" / "deep" / "file").write_bytes(b"12345")
    handle.create()

    (entry,) = handle.log(root / "new")

    assert (entry.added, entry.removed, entry.modified, entry.size_change_bytes) == (3, 0, 0, 5)
    (first,) = (item for item in handle.log(".") if item.older_id is None)
    assert first.added == sum(1 for _ in handle.ls("latest~1", recursive=True))


def test_snapshots_of_paths_are_compared_within_these(handle, root):
    (root / "one").write_bytes(b"1")
    (root / "two").write_bytes(b"2")
    whole = handle.create().id
    (root / "one").write_bytes(b"11")
    (root / "two").write_bytes(b"22")
    partial = handle.create(paths=[root / "one"]).id

    entries = {entry.snapshot.id: entry for entry in handle.log()}

    assert (entries[partial].older_id, entries[partial].modified) == (whole, 1)
    assert [entry.snapshot.id for entry in handle.log(root / "two")] == [whole]
    assert [entry.is_position for entry in handle.log()] == [False, True]


def test_filters_choose_snapshots_and_leave_what_each_changed(handle, root):
    ids = []
    for number in range(4):
        (root / f"file {number}").write_bytes(b"x")
        label = f"Step {number}"
        kind = SnapshotKind.AUTOMATIC if number % 2 else SnapshotKind.MANUAL
        ids.append(handle.create(label=label, session="s", tags={"by": "me"}, kind=kind).id)
    (root / "last").write_bytes(b"x")
    last = handle.create(session="t", kind=SnapshotKind.MANUAL).id

    def found(**wanted):
        return [entry.snapshot.id for entry in handle.log(**wanted)]

    assert found(limit=2) == [last, ids[3]]
    assert found(limit=0) == []
    assert found(session="t") == [last]
    assert found(kind=SnapshotKind.AUTOMATIC) == [ids[3], ids[1]]
    assert found(grep="step [12]") == [ids[2], ids[1]]
    assert found(grep="^me$", limit=1) == [ids[3]]
    assert {entry.added for entry in handle.log(session="s", limit=3)} == {1}
    day_later = Handle(handle.context._replace(clock_ns=lambda: 4_000_000_000 * 10**9))
    assert list(day_later.log(since="1h")) == []
    assert len(list(day_later.log(since="1000000w"))) == 5


def test_a_snapshot_of_a_clock_before_1970_is_there(handle):
    long_ago = Handle(handle.context._replace(clock_ns=lambda: -(10**18)))
    made = long_ago.create()

    assert [entry.snapshot.id for entry in handle.log()] == [made.id]
    assert [entry.snapshot.id for entry in long_ago.log(since="1d")] == [made.id]
    assert list(handle.log(since="1d")) == []


@pytest.mark.parametrize("wanted", [{"grep": "("}, {"since": "soon"}, {"limit": -1}])
def test_a_wrong_filter_is_refused_at_once(handle, wanted):
    with pytest.raises(InvalidArgument):
        handle.log(**wanted)


def test_a_path_that_never_was_is_refused_at_once(handle, root):
    (root / "gone").write_bytes(b"1")
    handle.create()
    (root / "gone").unlink()
    (root / "new").write_bytes(b"1")

    with pytest.raises(NotFound, match="'never' exists neither now nor in a snapshot") as raised:
        handle.log(root / "never")
    assert raised.value.code == ErrorCode.PATH_NOT_FOUND
    assert list(handle.log(root / "new")) == []
    assert len(list(handle.log(root / "gone"))) == 1
    shutil.rmtree(root)
    assert len(list(handle.log("gone"))) == 1
    with pytest.raises(NotFound):
        handle.log("never")


def test_a_root_without_history_has_an_empty_log(handle):
    assert list(handle.log()) == []


def position(handle) -> str:
    (found,) = (entry.snapshot.id for entry in handle.log() if entry.is_position)
    return found


def test_the_position_is_the_one_of_two_alike_that_was_restored(handle, root):
    prompt, tool = handle.create().id, handle.create().id
    (root / "file").write_bytes(b"by the tool")
    last = handle.create().id

    for wanted in (prompt, tool):
        handle.restore(wanted)
        assert position(handle) == wanted
        handle.undo()
        assert position(handle) == last


def test_the_position_follows_restores_and_their_undoing(handle, root):
    ids = []
    for number in range(3):
        (root / "one").write_bytes(bytes([number]))
        ids.append(handle.create().id)
    assert position(handle) == ids[2]

    handle.restore(ids[0])
    assert position(handle) == ids[0]

    handle.undo()
    assert position(handle) == ids[2]

    handle.redo()
    assert position(handle) == ids[0]
    (root / "one").write_bytes(b"unsaved")
    handle.restore(ids[1])
    assert position(handle) == ids[1]
    handle.undo()
    (before_restore,) = (
        item.id for item in handle.list() if item.label == f"before restore {ids[1][:12]}"
    )
    assert position(handle) == before_restore


def test_the_ways_back_are_what_undo_and_redo_restore(handle, root):
    (root / "one").write_bytes(b"1")
    first = handle.create().id
    (root / "one").write_bytes(b"2")
    second = handle.create().id
    found = handle.ways_back()
    assert (found.undo, found.redo, found.position.id) == (None, None, second)

    handle.restore(first)

    found = handle.ways_back()
    assert (found.redo, found.position.id) == (None, first)
    assert found.undo.id == handle.undo().snapshot.id
    found = handle.ways_back()
    assert (found.undo, found.position.id) == (None, second)
    assert found.redo.id == handle.redo().snapshot.id


def test_a_gap_says_what_is_missing_before_a_snapshot(handle, root):
    day_ns = 86_400 * 10**9
    now = handle.context.clock_ns()

    def at(days: float) -> str:
        moment = now + int(days * day_ns)
        (root / "one").write_text(str(days))
        return Handle(handle.context._replace(clock_ns=lambda: moment)).create().id

    ids = [at(days) for days in (0, 0.1, 0.2, 0.3, 3.5, 4)]
    assert [entry.gap for entry in handle.log(limit=1)] == [None]
    handle.delete(ids[0], ids[2], ids[3])

    gaps = {entry.snapshot.id: entry.gap for entry in handle.log()}

    assert gaps == {
        ids[5]: None,
        ids[4]: HistoryGap(int(3.4 * 86_400), 2, 0, 0),
        ids[1]: HistoryGap(None, 1, 0, 0),
    }
    assert [entry.gap for entry in handle.log(root / "one")] == list(gaps.values())


def test_damaged_snapshots_and_lost_steps_are_gaps(handle, root):
    ids = [handle.create(label=str(number)).id for number in range(3)]
    (damaged,) = Path(handle.store_path).rglob(f"*-{ids[1]}")
    damaged.write_bytes(b"damaged")
    gap = Gap(handle.context.clock_ns(), "h", "s", "k", EventPhase.PRE.value, None, "no room")
    with opened(handle.context, "note a gap") as session:
        session.root.write(GAPS_FILE, GAPS, (gap,))
    last = handle.create().id

    gaps = {entry.snapshot.id: entry.gap for entry in handle.log()}

    assert gaps == {
        last: HistoryGap(None, 0, 0, 1),
        ids[2]: HistoryGap(None, 0, 1, 0),
        ids[0]: None,
    }
