"""Snapshot records, the state beside them, the restore history, gaps and the journal."""

from __future__ import annotations

from typing import Any

import pytest

from treesnap.core.codec import journal, root_files, snapshot
from treesnap.core.codec.journal import STAGE_PREFIX, Commit, Journal, Stage
from treesnap.core.codec.message import pack, unpack
from treesnap.core.model.entries import Entry, EntryKind, ObjectId, Totals
from treesnap.core.model.errors import Corrupt
from treesnap.core.model.snapshots import IgnoreRules, SnapshotKind, SnapshotRecord, SnapshotState

ID = ObjectId(bytes(range(32)))
ROOT = Entry(b"", EntryKind.DIRECTORY, 0o755, 0, 0, 0, 0, ID, None)
RECORD = SnapshotRecord(
    root=ROOT, links=None, root_path=b"/srv/data", created_at_ns=1, totals=Totals()
)


def changed(payload: bytes, **fields: Any) -> bytes:
    """Returns a payload with some fields replaced, or taken out where None."""
    value = unpack(payload, "example") | fields
    return pack({name: item for name, item in value.items() if item is not None})


def test_fields_without_a_value_are_left_out():
    assert list(unpack(snapshot.encode_snapshot(RECORD), "example")) == [
        "version",
        "root",
        "root_path",
        "created_at_ns",
        "totals",
        "kind",
        "host",
    ]


def test_fields_that_are_not_known_are_ignored():
    payload = changed(snapshot.encode_snapshot(RECORD), colour="green", nested={"a": (1, 2)})

    assert snapshot.decode_snapshot(payload) == RECORD


def test_the_state_hash_covers_what_a_restore_brings_back_and_nothing_else():
    later = RECORD._replace(created_at_ns=2, label="other", kind=SnapshotKind.RUN, parent=None)

    assert snapshot.state_hash(later) == snapshot.state_hash(RECORD)
    assert snapshot.state_hash(RECORD._replace(links=(0,))) != snapshot.state_hash(RECORD)
    assert snapshot.state_hash(
        RECORD._replace(root=ROOT._replace(mode=0o700))
    ) != snapshot.state_hash(RECORD)


def test_patterns_that_are_not_utf_8_come_back():
    rules = (IgnoreRules(b"a", ("caf\udce9*", "*.é")),)

    payload = snapshot.encode_snapshot(RECORD._replace(rules=rules))

    assert snapshot.decode_snapshot(payload).rules == rules


def test_a_scope_of_very_many_paths_comes_back():
    scope = tuple(b"%06d" % number for number in range(20_000))

    payload = snapshot.encode_snapshot(RECORD._replace(scope=scope))

    assert snapshot.decode_snapshot(payload).scope == scope


@pytest.mark.parametrize(
    "fields",
    [
        {"version": 2},
        {"version": True},
        {"version": None},
        {"root": None},
        {"root": ROOT[:8]},
        {"root": ROOT._replace(name=b"a")},
        {"root": ROOT._replace(kind=1, content=(0,))},
        {"root_path": "text"},
        {"root_path": None},
        {"root_path": b"/a\0b"},
        {"created_at_ns": None},
        {"created_at_ns": 1.5},
        {"totals": (0,) * 5},
        {"kind": "other"},
        {"kind": None},
        {"host": b"bytes"},
        {"links": (0, ID)},
        {"links": ID},
        {"scope": ()},
        {"scope": (b"..",)},
        {"scope": (b"a/../b",)},
        {"scope": (b"/a",)},
        {"scope": ("a",)},
        {"scope": (b"a", b"a/b")},
        {"scope": (b"b", b"a")},
        {"scope": (b"a", b"a")},
        {"scope": b"a"},
        {"rules": ((b"..", (b"*",)),)},
        {"rules": ((b"", ("*",)),)},
        {"rules": ((b"",),)},
        {"rules": ((b"", b"*"),)},
        {"rules": b""},
        {"unstable": (b"a//b",)},
        {"unstable": ("a",)},
        {"step": "1"},
        {"step": True},
        {"added_bytes": -1},
        {"added_bytes": "1"},
        {"label": b"bytes"},
        {"parent": "short"},
        {"parent": "g" * 64},
        {"tags": {"a": 1}},
        {"tags": {b"a": "1"}},
        {"tags": (("a", "b"),)},
    ],
    ids=repr,
)
def test_a_record_that_breaks_a_rule_is_refused(fields):
    with pytest.raises(Corrupt):
        snapshot.decode_snapshot(changed(snapshot.encode_snapshot(RECORD), **fields))


@pytest.mark.parametrize(
    "fields",
    [
        {"version": 2},
        {"pinned": 1},
        {"pinned": None},
        {"tags": {"a": 1}},
        {"tags": {b"a": "1"}},
        {"tags": (("a", "b"),)},
    ],
    ids=repr,
)
def test_a_state_that_breaks_a_rule_is_refused(fields):
    with pytest.raises(Corrupt):
        snapshot.decode_state(changed(snapshot.encode_state(SnapshotState()), **fields))


@pytest.mark.parametrize(
    "undo",
    [
        None,
        b"",
        (1,),
        ((),),
        (("0" * 64,),),
        (("0" * 64, None, False),),
        (("0" * 64, None, 1),),
        (("0" * 64, None, True, None),),
        (("0" * 63, None),),
        (("latest", None),),
        ((b"0" * 64, None),),
        (("0" * 64, b"a"),),
        (("0" * 64, ()),),
        (("0" * 64, ("a",)),),
        (("0" * 64, (b"..",)),),
        (("0" * 64, (b"a", b"a/b")),),
    ],
    ids=repr,
)
def test_a_history_that_breaks_a_rule_is_refused(undo):
    payload = root_files.HISTORY.encode(root_files.RestoreHistory())

    with pytest.raises(Corrupt):
        root_files.HISTORY.decode(changed(payload, undo=undo))


def test_the_history_of_a_restore_of_very_many_paths_comes_back():
    scope = tuple(b"%06d" % number for number in range(20_000))
    moment = root_files.Moment(snapshot.snapshot_id(b""), scope)

    found = root_files.RestoreHistory().restored(moment)

    assert root_files.HISTORY.decode(root_files.HISTORY.encode(found)) == found


def test_undo_and_redo_go_back_and_forth():
    a, b, c = (root_files.Moment(snapshot.snapshot_id(b"%d" % n), None) for n in range(3))

    restored = root_files.RestoreHistory().restored(a)
    undone = restored.undone(b)
    redone = undone.redone(c)

    assert (restored.undo, restored.redo) == ((a,), ())
    assert (undone.undo, undone.redo) == ((), (b,))
    assert (redone.undo, redone.redo) == ((c,), ())
    assert undone.restored(c) == root_files.RestoreHistory((c,), ())


def test_a_history_forgets_its_oldest_moments():
    found = root_files.RestoreHistory()
    for number in range(root_files.HISTORY_LENGTH_MAX + 5):
        found = found.restored(root_files.Moment(snapshot.snapshot_id(b"%d" % number), None))

    assert len(found.undo) == root_files.HISTORY_LENGTH_MAX
    assert found.undo[0].snapshot_id == snapshot.snapshot_id(b"5")


COMMIT = Commit(
    target_id=snapshot.snapshot_id(b"target"),
    safety_id=snapshot.snapshot_id(b"safety"),
    paths=(b"a", b"b/c"),
    directories=(),
    history=b"",
    touch=False,
)
JOURNAL = Journal(
    root_id="0" * 32,
    stage_name=STAGE_PREFIX + b"00",
    root_before=ROOT,
    file_system=1,
    device=2,
    inode=7,
    started_at_ns=0,
    commit=COMMIT,
)


@pytest.mark.parametrize(
    "fields",
    [
        {"version": 2},
        {"version": 6},
        {"root_id": None},
        {"stage": 0},
        {"stage": 3},
        {"stage": True},
        {"stage_name": b"documents"},
        {"stage_name": b""},
        {"stage_name": STAGE_PREFIX + b"/.."},
        {"stage_name": "text"},
        {"root_before": (1, 2)},
        {"touch": 1},
        {"removes_root": None},
        {"target_id": b"x"},
        {"target_id": "x"},
        {"safety_id": None},
        {"history": "x"},
        {"history": None},
        {"file_system": "x"},
        {"file_system": None},
        {"device": "x"},
        {"device": None},
        {"started_at_ns": None},
        {"paths": None},
        {"paths": (1,)},
        {"paths": ("a",)},
        {"paths": (b"",)},
        {"paths": (b"../a",)},
        {"paths": (b"/a",)},
        {"paths": (b"b", b"a")},
        {"paths": (b"a", b"a")},
        {"paths": (b"a", b"a/b")},
        {"subvolumes": None},
        {"subvolumes": (1,)},
        {"subvolumes": ((b"a",),)},
        {"subvolumes": ((b"", ROOT),)},
        {"subvolumes": ((b"..", ROOT),)},
        {"subvolumes": (("a", ROOT),)},
        {"subvolumes": ((b"a", None),)},
        {"directories": (1,)},
        {"directories": ((b"a", ROOT),)},
        {"directories": ((b"..", ROOT, None),)},
        {"directories": ((b"a", None, None),)},
    ],
    ids=repr,
)
def test_a_journal_that_breaks_a_rule_is_refused(fields):
    with pytest.raises(Corrupt):
        journal.decode_journal(changed(journal.encode_journal(JOURNAL), **fields))


def test_a_journal_before_the_commit_point_says_nothing_of_a_commit():
    staging = JOURNAL._replace(commit=None)

    found = journal.decode_journal(journal.encode_journal(staging))

    assert found == staging
    assert (found.stage, JOURNAL.stage) == (Stage.STAGING, Stage.APPLYING)


def test_a_journal_of_very_many_paths_comes_back():
    many = COMMIT._replace(paths=tuple(sorted(b"%d" % number for number in range(20_000))))

    found = journal.decode_journal(journal.encode_journal(JOURNAL._replace(commit=many)))

    assert found.commit == many


GAP = root_files.Gap(1, "host", "session", "key", "phase", None, "reason")


@pytest.mark.parametrize("tool", [None, "tool"])
@pytest.mark.parametrize("value", [None, b"x", 0])
@pytest.mark.parametrize("field", ["host", "session", "key", "phase", "reason"])
def test_a_gap_without_a_word_is_refused(field, value, tool):
    gap = GAP._replace(tool=tool)._replace(**{field: value})

    with pytest.raises(Corrupt, match="not of type str"):
        root_files.GAPS.decode(root_files.GAPS.encode((gap,)))


@pytest.mark.parametrize("tool", [b"", 0, False])
def test_the_tool_of_a_gap_is_text_or_nothing(tool):
    with pytest.raises(Corrupt, match="not of type str"):
        root_files.GAPS.decode(root_files.GAPS.encode((GAP._replace(tool=tool),)))
    assert root_files.GAPS.decode(root_files.GAPS.encode((GAP,))) == (GAP,)
