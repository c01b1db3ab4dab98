"""Trees: what a stored directory may hold, and how large ones become pages."""

from __future__ import annotations

import re
from itertools import count as count_up
from itertools import islice
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest

from treesnap.core.codec import tree
from treesnap.core.codec.message import pack
from treesnap.core.codec.reader import Reference, TreeCache, TreeReader
from treesnap.core.codec.tree import (
    decode_entry,
    decode_tree,
    decode_xattrs,
    put_tree,
    put_with_subtrees,
)
from treesnap.core.model.entries import (
    Entry,
    EntryKind,
    ObjectId,
    ObjectKind,
    SkipReason,
    Totals,
    TreePage,
)
from treesnap.core.model.errors import Corrupt, InvalidArgument
from treesnap.core.model.ids import object_id

ID = ObjectId(bytes(range(32)))
FIFO = Entry(b"pipe", EntryKind.FIFO, 0o644, 0, 0, 0, 0, None, None)
FILE = Entry(b"file", EntryKind.FILE, 0o644, 1, 2, 3, 7, (0, ID, 7), None)


class Objects:
    """Keeps objects in memory."""

    def __init__(self) -> None:
        self.kept: dict[ObjectId, bytes] = {}

    def put(self, kind: ObjectKind, data: bytes) -> ObjectId:
        identity = object_id(kind, data)
        self.kept[identity] = data
        return identity

    def get(self, kind: ObjectKind, identity: ObjectId) -> bytes:
        return self.kept[identity]


def stored(entries: Any, totals: Any = (0,) * 6, level: Any = 0, version: Any = 1) -> bytes:
    return pack((version, totals, level, entries))


def fifos(count: int, name: bytes = b"%06d") -> list[Entry]:
    return [FIFO._replace(name=name % number) for number in range(count)]


@pytest.mark.parametrize(
    "name", [b"", b".", b"..", b"a/b", b"/", b"a\0", b"\0", b"n" * 4096], ids=repr
)
def test_a_name_that_could_lead_elsewhere_is_refused(name):
    with pytest.raises(Corrupt, match=r"is not allowed|not in order"):
        decode_tree(stored([FIFO._replace(name=name)]))
    with pytest.raises(Corrupt, match=r"is not allowed|not in order"):
        decode_tree(stored(sorted([*fifos(3), FIFO._replace(name=name)])))


@pytest.mark.parametrize("name", [b"...", b"\xff", b"\n", b" ", b"-", b"n" * 4095], ids=repr)
def test_every_other_name_is_taken(name):
    assert decode_tree(stored([FIFO._replace(name=name)])).entries[0].name == name


def test_a_name_that_occurs_twice_is_refused():
    with pytest.raises(Corrupt, match="not in order"):
        decode_tree(stored([FIFO, FILE._replace(name=FIFO.name)]))


def test_names_out_of_order_are_refused():
    with pytest.raises(Corrupt, match="not in order"):
        decode_tree(stored([FIFO._replace(name=b"b"), FIFO._replace(name=b"a")]))


@pytest.mark.parametrize(
    "change",
    [
        {"name": "text"},
        {"kind": 0},
        {"kind": 8},
        {"kind": True},
        {"kind": b"\x01"},
        {"mode": 0o10000},
        {"mode": -1},
        {"mode": True},
        {"uid": (1 << 32) - 1},
        {"uid": -1},
        {"gid": (1 << 32) - 1},
        {"gid": None},
        {"mtime_ns": bytes(12)},
        {"mtime_ns": bytes(11)},
        {"mtime_ns": b"\x7f" + bytes(11)},
        {"mtime_ns": 1.0},
        {"mtime_ns": False},
        {"size": 8},
        {"size": -7},
        {"size": 7.0},
        {"content": None},
        {"content": ()},
        {"content": (0, ID)},
        {"content": (0, ID, 8)},
        {"content": (0, ID[:31], 7)},
        {"content": (1, None, 7)},
        {"content": (9, ID, 7)},
        {"content": (True, ID, 7)},
        {"content": (0, ID, 0, ID, 7)},
        {"content": (0, *(ID, 1) * 17), "size": 17},
        {"content": (0, ID, (1 << 63) - 1, ID, 1), "size": 1 << 63},
        {"xattrs": ()},
        {"xattrs": ID[:31]},
        {"xattrs": "user.a"},
        {"xattrs": ((b"user.a",),)},
        {"xattrs": (("user.a", b""),)},
        {"xattrs": ((b"user.a", ""),)},
        {"xattrs": ((b"", b""),)},
        {"xattrs": ((b"a\0", b""),)},
        {"xattrs": ((b"a" * 256, b""),)},
        {"xattrs": ((b"b", b""), (b"a", b""))},
        {"xattrs": ((b"a", b""), (b"a", b""))},
    ],
    ids=repr,
)
def test_a_file_that_breaks_a_rule_is_refused(change):
    bad = FILE._replace(**change)

    with pytest.raises(Corrupt):
        decode_tree(stored([bad]))
    with pytest.raises(Corrupt):
        decode_tree(stored([FILE._replace(name=b"a"), bad, FILE._replace(name=b"z")]))


@pytest.mark.parametrize(
    ("kind", "content"),
    [
        (EntryKind.DIRECTORY, None),
        (EntryKind.DIRECTORY, ID[:31]),
        (EntryKind.DIRECTORY, (0,)),
        (EntryKind.SYMLINK, b""),
        (EntryKind.SYMLINK, "text"),
        (EntryKind.SYMLINK, b"a\0b"),
        (EntryKind.SYMLINK, b"a" * 65537),
        (EntryKind.FIFO, b""),
        (EntryKind.CHARACTER_DEVICE, None),
        (EntryKind.CHARACTER_DEVICE, (1,)),
        (EntryKind.BLOCK_DEVICE, (1, 1 << 31)),
        (EntryKind.BLOCK_DEVICE, (1, -1)),
        (EntryKind.BLOCK_DEVICE, (True, 1)),
        (EntryKind.SKIPPED, 0),
        (EntryKind.SKIPPED, max(SkipReason) + 1),
        (EntryKind.SKIPPED, True),
        (EntryKind.SKIPPED, None),
    ],
)
def test_content_that_does_not_suit_its_kind_is_refused(kind, content):
    bare = Entry(b"a", int(kind), 0, 0, 0, 0, 0, content, None)

    with pytest.raises(Corrupt):
        decode_entry(tuple(bare))


@pytest.mark.parametrize("change", [{"mode": 1}, {"mtime_ns": 1}, {"size": 1}, {"xattrs": ID}])
def test_a_skipped_name_has_no_metadata(change):
    skipped = Entry(b"a", int(EntryKind.SKIPPED), 0, 0, 0, 0, 0, 1, None)
    assert decode_entry(tuple(skipped)) == skipped

    with pytest.raises(Corrupt):
        decode_entry(tuple(skipped._replace(**change)))


@pytest.mark.parametrize(
    "data",
    [
        stored([FIFO], version=2),
        stored([FIFO], version=True),
        stored([FIFO], level=2),
        stored([FIFO], level=False),
        stored([FIFO], level=-1),
        stored([FIFO], totals=(0,) * 5),
        stored([FIFO], totals=(-1, 0, 0, 0, 0, 0)),
        stored([FIFO], totals=(1 << 63, 0, 0, 0, 0, 0)),
        stored([FIFO], totals=(True, 0, 0, 0, 0, 0)),
        stored({}),
        stored(7),
        stored([FIFO[:8]]),
        stored([7]),
        pack((1, (0,) * 6, 0)),
        pack({}),
        pack(1),
    ],
)
def test_a_tree_of_another_shape_is_refused(data):
    with pytest.raises(Corrupt):
        decode_tree(data)


def test_a_tree_with_too_many_entries_is_refused():
    with pytest.raises(Corrupt, match="too many entries"):
        decode_tree(stored(fifos(4097)))


def test_a_tree_that_is_too_large_is_refused_before_it_is_decoded():
    with pytest.raises(Corrupt, match="too large"):
        decode_tree(bytes(tree.TREE_SIZE_MAX + 1))


@pytest.mark.parametrize(
    "pages",
    [
        [],
        [(b"", ID, 1)],
        [(b"..", ID, 1)],
        [("a", ID, 1)],
        [(b"a", ID[:31], 1)],
        [(b"a", None, 1)],
        [(b"a", ID, 0)],
        [(b"a", ID, 4097)],
        [(b"a", ID, True)],
        [(b"a", ID)],
        [(b"b", ID, 1), (b"a", ID, 1)],
        [(b"a", ID, 1), (b"a", ID, 1)],
    ],
    ids=repr,
)
def test_pages_that_break_a_rule_are_refused(pages):
    with pytest.raises(Corrupt):
        decode_tree(stored(pages, level=1))


@pytest.mark.parametrize("count", [0, 1, 128, 129, 4096, 20_000])
def test_a_directory_of_any_size_comes_back(count):
    objects = Objects()
    entries = fifos(count)

    tree_id = put_tree(entries, Totals(others=count), objects.put)

    trees = TreeReader(objects.get)
    assert list(trees.entries(tree_id)) == entries
    assert trees.totals(tree_id) == Totals(others=count)
    assert bool(trees.tree(tree_id).pages) == (count > 128)
    pages = list(trees.references(Reference(ObjectKind.TREE, tree_id)))
    assert {tree_id, *(page.id for page in pages)} == set(objects.kept)
    assert all(page.is_page for page in pages)


def test_one_change_among_many_names_makes_one_page_anew():
    objects = Objects()
    entries = fifos(20_000)
    put_tree(entries, Totals(), objects.put)
    before = len(objects.kept)

    put_tree([*entries[:9_999], *entries[10_000:]], Totals(), objects.put)

    assert len(objects.kept) - before <= 3


@pytest.mark.parametrize(
    ("count", "least"), [(129, 32), (2500, 32), (8191, 32), (8192, 64), (40_000, 128)]
)
def test_pages_end_where_the_format_says(count, least):
    objects = Objects()
    tree_id = put_tree(fifos(count), Totals(), objects.put)
    trees = TreeReader(objects.get)

    pages = [trees.tree(page.id).entries for page in trees.tree(tree_id).pages]

    assert all(len(page) >= least for page in pages[:-1])
    for page in pages:
        ends = [number for number, entry in enumerate(page, 1) if crc32(entry.name) % least == 0]
        assert [number for number in ends if least <= number < len(page)] == []
    assert count / least / 4 < len(pages) <= count / least + 1


def test_a_page_ends_after_4096_entries():
    names = (name for number in count_up() if crc32(name := b"%09d" % number) % 32)
    entries = [FIFO._replace(name=name) for name in islice(names, 5000)]
    objects = Objects()

    tree_id = put_tree(entries, Totals(), objects.put)

    trees = TreeReader(objects.get)
    assert [page.entry_count for page in trees.tree(tree_id).pages] == [4096, 904]
    assert list(trees.entries(tree_id)) == entries


def test_one_change_in_a_directory_of_2500_costs_kilobytes():
    objects = Objects()
    entries = fifos(2500)
    put_tree(entries, Totals(), objects.put)
    before = set(objects.kept)

    put_tree([*entries[:999], *entries[1000:]], Totals(), objects.put)

    new = set(objects.kept) - before
    assert sum(len(objects.kept[each]) for each in new) < 10_000


def with_subdirectories(count: int) -> list[Entry]:
    """Returns entries of which every third is a subdirectory."""
    directory = FIFO._replace(kind=EntryKind.DIRECTORY, content=ID)
    return [
        (entry if number % 3 else directory._replace(name=entry.name))
        for number, entry in enumerate(fifos(count))
    ]


@pytest.mark.sampled(5)
@pytest.mark.parametrize("count", [1, 128, 129, 2500, 20_000])
@pytest.mark.parametrize("step", [1, 97, 10_000], ids=["each", "some", "one"])
def test_a_directory_with_other_subtrees_is_the_one_that_is_stored_anew(count, step):
    before, after = Objects(), Objects()
    entries = with_subdirectories(count)
    trees = TreeReader(before.get)
    old = trees.tree(put_tree(entries, Totals(directories=count), before.put))
    new_id = ObjectId(b"new!" * 8)
    names = [entry.name for entry in entries[::3]][::step]
    kept: dict[ObjectId, Any] = {}

    found = put_with_subtrees(
        old,
        dict.fromkeys(names, new_id),
        Totals(files=7),
        before.put,
        kept.__setitem__,
        trees.tree,
    )

    expected = [item._replace(content=new_id) if item.name in names else item for item in entries]
    assert found == put_tree(expected, Totals(files=7), after.put)
    assert after.kept.items() <= before.kept.items()
    assert kept == {each: decode_tree(before.kept[each]) for each in kept}
    assert found in kept
    assert len(kept) <= 1 + len(names)


@pytest.mark.parametrize("count", [3, 2500])
@pytest.mark.parametrize("name", [b"", b"000001", b"~"], ids=["before", "a pipe", "behind"])
def test_a_directory_that_lacks_the_subdirectory_is_damaged(count, name):
    objects = Objects()
    trees = TreeReader(objects.get)
    old = trees.tree(put_tree(with_subdirectories(count), Totals(), objects.put))

    with pytest.raises(Corrupt, match="lacks a subdirectory"):
        put_with_subtrees(
            old, {name: ID}, Totals(), objects.put, lambda _id, _tree: None, trees.tree
        )


def test_few_entries_that_are_large_become_pages_too():
    objects = Objects()
    links = [
        Entry(b"%03d" % number, EntryKind.SYMLINK, 0o777, 0, 0, 0, 0, b"t" * 60_000, None)
        for number in range(40)
    ]

    tree_id = put_tree(links, Totals(), objects.put)

    trees = TreeReader(objects.get)
    assert list(trees.entries(tree_id)) == links
    assert max(map(len, objects.kept.values())) <= tree.PAGE_SIZE_MAX + 100


def test_a_directory_beyond_what_can_be_read_again_is_not_written(monkeypatch):
    monkeypatch.setattr(tree, "PAGES_MAX", 2)

    with pytest.raises(InvalidArgument, match="too large to store"):
        put_tree(fifos(20_000), Totals(), Objects().put)


@pytest.mark.parametrize("count", [1, 4096, 5000])
def test_a_name_is_looked_up_through_one_page(count):
    objects = Objects()
    entries = fifos(count)
    trees = TreeReader(objects.get)
    tree_id = put_tree(entries, Totals(), objects.put)

    assert [trees.lookup(tree_id, entry.name) for entry in entries[::97]] == entries[::97]
    assert trees.lookup(tree_id, b"") is None
    assert trees.lookup(tree_id, b"0") is None
    assert trees.lookup(tree_id, b"~") is None


def paged(*pages: list[Entry], first_names: list[bytes] | None = None) -> tuple[Objects, ObjectId]:
    objects = Objects()
    rows = []
    for number, page in enumerate(pages):
        first = first_names[number] if first_names else page[0].name
        rows.append(TreePage(first, objects.put(ObjectKind.TREE, stored(page)), len(page)))
    return objects, objects.put(ObjectKind.TREE, stored(rows, level=1))


def test_pages_that_overlap_are_refused():
    a, b, c = (FIFO._replace(name=name) for name in (b"a", b"b", b"c"))
    objects, tree_id = paged([a, c], [b])

    with pytest.raises(Corrupt, match="overlap"):
        list(TreeReader(objects.get).entries(tree_id))


def test_a_page_that_begins_with_another_name_is_refused():
    a, c = (FIFO._replace(name=name) for name in (b"a", b"c"))
    objects, tree_id = paged([a], [c], first_names=[b"a", b"b"])

    with pytest.raises(Corrupt, match="another name"):
        list(TreeReader(objects.get).entries(tree_id))


def test_a_page_with_another_count_is_refused():
    objects = Objects()
    page = objects.put(ObjectKind.TREE, stored([FIFO]))
    tree_id = objects.put(ObjectKind.TREE, stored([(FIFO.name, page, 2)], level=1))

    with pytest.raises(Corrupt, match="wrong count"):
        list(TreeReader(objects.get).entries(tree_id))


def test_pages_of_pages_are_refused_at_any_depth():
    objects = Objects()
    tree_id = objects.put(ObjectKind.TREE, stored([FIFO]))
    for _ in range(3000):
        tree_id = objects.put(ObjectKind.TREE, stored([(FIFO.name, tree_id, 1)], level=1))
    trees = TreeReader(objects.get)

    with pytest.raises(Corrupt, match="a page has pages"):
        list(trees.entries(tree_id))
    with pytest.raises(Corrupt, match="a page has pages"):
        trees.lookup(tree_id, FIFO.name)


def test_attributes_come_back_wherever_they_are_stored():
    objects = Objects()
    pairs = ((b"user.a", b"1"), (b"user.b", b""))
    apart = objects.put(ObjectKind.CHUNK, pack(pairs))
    trees = TreeReader(objects.get)

    assert trees.xattrs(FILE) == ()
    assert trees.xattrs(FILE._replace(xattrs=pairs)) == pairs
    assert trees.xattrs(FILE._replace(xattrs=apart)) == pairs


@pytest.mark.parametrize("value", [None, ID, (), {}, ((b"b", b""), (b"a", b""))], ids=repr)
def test_attributes_that_were_stored_apart_are_checked(value):
    with pytest.raises(Corrupt):
        decode_xattrs(pack(value))


def test_the_reader_keeps_no_more_than_a_few_hundred_trees():
    objects = Objects()
    asked = []
    trees = TreeReader(lambda kind, identity: asked.append(identity) or objects.get(kind, identity))
    ids = [put_tree(fifos(1, b"%%d-%d" % number), Totals(), objects.put) for number in range(600)]
    for tree_id in [*ids, *reversed(ids)]:
        trees.tree(tree_id)

    assert asked == [*ids, *reversed(ids[: 600 - 512])]


def test_a_cache_serves_several_readers():
    objects = Objects()
    cache = TreeCache()
    ids = [put_tree(fifos(1, b"%%d-%d" % number), Totals(), objects.put) for number in range(3)]
    expected = [TreeReader(objects.get, cache).tree(tree_id) for tree_id in ids]
    objects.kept.clear()

    assert [TreeReader(objects.get, cache).tree(tree_id) for tree_id in ids] == expected


def test_a_reader_keeps_the_first_trees_while_there_is_room():
    objects = Objects()
    ids = [put_tree(fifos(3, b"%%d-%d" % number), Totals(), objects.put) for number in range(5)]
    first = TreeReader(objects.get, TreeCache(0))
    first.keep_first(8)
    expected = [first.tree(tree_id) for tree_id in ids]
    asked = []
    other = TreeReader(lambda kind, identity: asked.append(identity) or objects.get(kind, identity))
    other.share(first)

    assert [other.tree(tree_id) for tree_id in ids] == expected
    assert asked == ids[2:]


def test_a_reader_decodes_trees_again_that_it_did_not_keep():
    objects = Objects()
    ids = [put_tree((), Totals(files=number), objects.put) for number in range(3)]
    asked = []

    def get(kind, identity):
        asked.append(identity)
        return objects.get(kind, identity)

    trees = TreeReader(get, TreeCache(1))
    for tree_id in [*ids, *ids]:
        trees.tree(tree_id)

    assert asked == [*ids, *ids]


def test_the_reader_keeps_fewer_trees_where_they_are_large():
    objects = Objects()
    asked = []
    trees = TreeReader(lambda kind, identity: asked.append(identity) or objects.get(kind, identity))
    ids = []
    for number in range(20):
        data = pack((1, Totals(), 0, fifos(4000, b"%%04d-%d" % number)))
        ids.append(objects.put(ObjectKind.TREE, data))
    for tree_id in [*ids, *reversed(ids)]:
        trees.tree(tree_id)

    assert asked == [*ids, *reversed(ids[: 20 - 8])]


def test_the_format_names_each_reason_why_a_path_is_skipped():
    text = (Path(__file__).parents[4] / "docs/reference/format.md").read_text()
    table = text.partition("| reason | word | why |\n")[2].partition("\n\n")[0]
    rows = re.findall(r"^\| (\d+) \| `([a-z-]+)` \| \S", table, re.MULTILINE)

    assert rows == [(str(int(reason)), reason.word) for reason in SkipReason]
