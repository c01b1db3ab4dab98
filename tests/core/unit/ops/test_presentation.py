"""Records show themselves: one line as ``repr``, JSON as commands print it, tables in notebooks."""

from __future__ import annotations

import json
import os
from html.parser import HTMLParser

import pytest

from treesnap.core.model import entries, results, snapshots
from treesnap.core.model.presentation import Record
from treesnap.core.model.snapshots import SnapshotList

HOSTILE = "<script>alert(1)</script>&\x1b[31m"
NOT_UTF8 = b"caf\xe9"
LINE_LENGTH_MAX = 160


@pytest.fixture
def taken(handle, root):
    """A snapshot with a hostile label, and a name that is not UTF-8, changed since."""
    (root / os.fsdecode(NOT_UTF8)).write_bytes(b"old")
    made = handle.create(label=HOSTILE, name="first", session="s", step=3)
    (root / os.fsdecode(NOT_UTF8)).write_bytes(b"new and longer")
    (root / "<b>bold").write_bytes(b"")
    return made


class Tags(HTMLParser):
    """Collects which tags a text has, and its words."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.names: set[str] = set()
        self.words = ""
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        assert not attrs
        self.names.add(tag)

    def handle_data(self, data):
        self.words += data


def all_results(handle):
    """Returns a result of every method that returns records, by the name of the method."""
    handle.restore("first", list_changes=True)
    return {
        "create": handle.create(),
        "list": handle.list(),
        "diff": handle.diff("first"),
        "status": handle.status(),
        "restore": handle.restore("first", dry_run=True),
        "undo": handle.undo(),
        "ls": handle.ls("first")[0],
        "find": handle.find("*")[0],
        "show": handle.show("first"),
        "prune": handle.prune(dry_run=True),
        "gc": handle.gc(dry_run=True),
        "verify": handle.verify(),
        "config": handle.config(),
        "doctor": handle.doctor(),
        "root_list": handle.root_list()[0],
        "stats": handle.stats(),
        "run": handle.run(["true"]),
    }


def test_a_snapshot_is_one_line_without_walls_of_hashes(taken):
    text = repr(taken.snapshot)

    assert text.startswith(f"<Snapshot {taken.id[:12]} ")
    assert taken.id not in text
    assert taken.root_hash not in text
    assert "automatic" in text
    assert "[first] <script>alert(1)</script>&\\x1b[31m (s step 3)>" in text
    assert len(text.splitlines()) == 1


def test_the_repr_of_every_result_is_short_and_printable(taken, handle):
    for name, record in all_results(handle).items():
        for line in repr(record).splitlines():
            assert line.isprintable(), name
        assert taken.id not in repr(record), name
        assert taken.root_hash not in repr(record), name
        assert len(repr(record)) < 2000, name


def test_long_fields_are_counted(handle, root):
    for number in range(50):
        (root / f"file-{number}").write_bytes(b"")
    handle.create()
    for path in root.glob("file-*"):
        path.unlink()

    assert "... 47 more)" in repr(handle.status())
    assert repr(handle.diff()).splitlines()[-1] == "... 30 more"


def test_every_result_is_json(taken, handle):
    for name, record in all_results(handle).items():
        fields = record.to_dict()

        assert json.loads(json.dumps(fields)) == fields, name


def test_a_change_as_json_has_path_and_both_sides(taken, handle):
    added, changed = (item.to_dict() for item in handle.diff())

    assert added["path"] == "<b>bold"
    assert (added["change"], added["old"]) == ("added", None)
    assert (changed["path"], changed["path_bytes"]) == ("caf\\xe9", "Y2Fm6Q==")
    assert (changed["old"]["size"], changed["new"]["size"]) == (3, 14)


def test_the_text_of_a_path_names_the_file(taken, handle, root):
    for change in handle.diff():
        assert os.fsencode(change.path_text) == change.path
        assert (root / change.path_text).exists()
    assert handle.find("two")[0].path_text == "directory/two"
    assert handle.root_list()[0].path_text == str(root)
    assert handle.show("first").path_text == str(root)


def test_the_text_of_the_root_itself_is_a_dot(handle, root):
    handle.create()
    root.chmod(0o700 if root.stat().st_mode & 0o77 else 0o755)

    assert [change.path_text for change in handle.diff()] == ["."]


@pytest.mark.parametrize("name", ["create", "list", "diff", "status", "restore", "show"])
def test_tables_escape_hostile_names(taken, handle, root, name):
    (root / "after").write_bytes(b"")
    record = {
        "create": lambda: handle.create(label=HOSTILE),
        "list": handle.list,
        "diff": handle.diff,
        "status": handle.status,
        "restore": lambda: handle.restore("first"),
        "show": lambda: handle.show("first"),
    }[name]()

    shown = Tags(record._repr_html_())

    assert shown.names <= {"p", "table", "thead", "tbody", "tr", "th", "td"}
    assert "\x1b" not in shown.words
    if name in {"list", "show"}:
        assert "<script>" in shown.words
    if name in {"diff", "status", "restore"}:
        assert "<b>bold" in shown.words


def test_a_long_table_is_cut(handle, root):
    handle.create()
    for number in range(300):
        (root / f"file-{number}").write_bytes(b"")

    table = handle.diff()._repr_html_()

    assert table.count("<tr>") == 201
    assert "and 100 more" in table


def test_a_list_names_what_is_damaged():
    found = SnapshotList((), [snapshots.SnapshotId("ab" * 32)])

    assert repr(found) == "<SnapshotList of 0>\ndamaged: abababababab"
    assert "damaged: abababababab" in found._repr_html_()
    assert found.to_dict() == {"snapshots": [], "damaged": ["ab" * 32], "newer": []}


def test_every_public_record_can_become_json():
    records = [
        kind
        for module in (results, snapshots, entries)
        for kind in vars(module).values()
        if isinstance(kind, type) and issubclass(kind, tuple) and kind.__module__ == module.__name__
    ]
    inner = {  # what only the engine sees, or what is part of another record's form
        "Attachment", "ChangedContent", "Device", "FileContent", "IgnoreRules", "Segment",
        "SnapshotRecord",
        "SnapshotState", "TextPart", "Totals", "Tree", "TreePage",
    }  # fmt: skip

    assert {kind.__name__ for kind in records if not hasattr(kind, "to_dict")} == inner


def test_json_names_fields_as_the_class_says_and_puts_properties_first(taken):
    class Shown(Record, json_names={"snapshot": "id", "older": "older_id"}, json_first=("size",)):
        snapshot: object
        older: object
        other: int

        @property
        def size(self):
            return 2 * self.other

    assert list(Shown(taken.snapshot, None, 3).to_dict().items()) == [
        ("size", 6),
        ("id", taken.id),
        ("older_id", None),
        ("other", 3),
    ]
