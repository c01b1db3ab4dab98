"""Trees: the manifest of one directory, as canonical msgpack.

A stored tree is ``[version, totals, level, rows]``. At level 0 the rows are
entries, in the field order of :class:`treesnap.core.model.entries.Entry`, sorted by raw
name. A directory with more than 128 entries, or more than 1 MiB of them, is
stored as pages: trees of level 0 over runs of its entries, and one tree of
level 1 whose rows are ``[first name, page id, entry count]``. Where a page ends
is decided by the CRC-32 of the last name in it, so that a change writes one page
again, and the list of pages. A page has about as many entries as there are pages,
but 64 at least: that makes the two together as small as they can be.

Decoding trusts nothing: names, order, kinds, ranges and content are checked, so
that what comes out cannot point outside a root.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from operator import itemgetter, lt
from zlib import crc32

from treesnap.core.codec.chunklist import FILE_SIZE_MAX, check_content
from treesnap.core.codec.message import decode_time, pack_object, refused, require, unpack
from treesnap.core.fs import native
from treesnap.core.model.entries import (
    Entry,
    EntryKind,
    ObjectId,
    ObjectKind,
    SkipReason,
    Totals,
    Tree,
    TreePage,
)
from treesnap.core.model.errors import Corrupt, InvalidArgument, NewerVersion
from treesnap.core.model.ids import ID_SIZE
from treesnap.core.model.treepath import are_valid_names, is_valid_name
from treesnap.core.model.type_names import Any

VERSION = 1
ENTRIES_MAX = 4096
"""Entries of one stored tree object."""
UNPAGED_ENTRIES_MAX = 128
"""A directory with more is stored as pages."""
PAGE_ENTRIES_BITS_MIN = 6
"""The smallest pages have two to the power of this many entries on average."""
PAGE_SIZE_MAX = 1 << 20
"""Encoded bytes of the entries of one page."""
PAGES_MAX = 8192
TREE_SIZE_MAX = 4 << 20
"""Encoded bytes of one tree object; decoded it is several times as large."""
INLINE_XATTRS_SIZE_MAX = 4096
"""Larger extended attributes are stored as a chunk of their own."""
TARGET_SIZE_MAX = 65536

_DEVICE_NUMBER_MAX = (1 << 31) - 1
_OWNER_MAX = (1 << 32) - 2
"""One more means "leave it as it is" to the system."""
_ENTRY_LENGTH = len(Entry._fields)
_MTIME = Entry._fields.index("mtime_ns")
XATTRS_LENGTH_MAX = 1 << 14
"""Extended attributes of one file: more than 64 KiB of names, the kernel's bound, can be."""
_FILE = int(EntryKind.FILE)
_NEW_ENTRY = partial(tuple.__new__, Entry)
"""Makes an entry of a row that has as many fields."""

Put = Callable[[ObjectKind, bytes], ObjectId]
Keep = Callable[[ObjectId, Tree], object]


def _forget(_tree_id: ObjectId, _tree: Tree) -> None:
    """Caches no tree."""


def put_tree(entries: Sequence[Entry], totals: Totals, put: Put, keep: Keep = _forget) -> ObjectId:
    """Stores a directory and returns its id; ``entries`` are sorted by raw name.

    ``keep`` is given each tree that is stored. Raises InvalidArgument for more entries than a
    tree can hold, about ten million, and for entries that none can hold.
    """
    return put_entries(entries, len(entries), lambda: totals, put, keep)


def put_entries(
    entries: Iterable[Entry],
    count: int,
    totals: Callable[[], Totals],
    put: Put,
    keep: Keep = _forget,
) -> ObjectId:
    """Like :func:`put_tree` for entries that come in order, ``count`` of them.

    Memory is bounded by a page. ``totals`` is asked when all entries have come.
    """
    if count <= UNPAGED_ENTRIES_MAX:
        entries = tuple(entries)
        data = _pack_rows(totals(), entries)
        if len(data) <= PAGE_SIZE_MAX:
            return _put(Tree(totals(), entries), data, put, keep)
    pages = [
        TreePage(part[0].name, _put(Tree(Totals(), tuple(part)), data, put, keep), len(part))
        for run in _page_runs(entries, count)
        for part, data in _encoded_pages(run)
    ]
    return _put_pages(pages, totals(), put, keep)


def put_with_subtrees(
    old: Tree,
    subtrees: Mapping[bytes, ObjectId],
    totals: Totals,
    put: Put,
    keep: Keep,
    read: Callable[[ObjectId], Tree],
) -> ObjectId:
    """Stores a directory again in which only what some subdirectories hold is new.

    Names and sizes in bytes are as they were, so the pages are the same. Costs as much as those
    in which a subdirectory is new, which ``read`` returns, and the list of pages. Raises Corrupt
    where one of the subdirectories is missing.
    """
    if not old.pages:
        tree = Tree(totals, _with_subtrees(old.entries, subtrees))
        return _put(tree, _pack_rows(totals, tree.entries), put, keep)
    names = sorted(subtrees)
    pages = list(old.pages)
    begin = 0
    while begin < len(names):
        number = bisect_right(pages, names[begin], key=itemgetter(0)) - 1
        is_last = number + 1 == len(pages)
        end = len(names) if is_last else bisect_left(names, pages[number + 1].first_name)
        require(number >= 0, "tree", "it lacks a subdirectory")
        below = read(pages[number].id)
        require(not below.pages, "tree", "a page has pages")
        part = {name: subtrees[name] for name in names[begin:end]}
        page = Tree(Totals(), _with_subtrees(below.entries, part))
        page_id = _put(page, _pack_rows(Totals(), page.entries), put, keep)
        pages[number] = pages[number]._replace(id=page_id)
        begin = end
    return _put_pages(pages, totals, put, keep)


def _with_subtrees(
    entries: Sequence[Entry], subtrees: Mapping[bytes, ObjectId]
) -> tuple[Entry, ...]:
    changed = list(entries)
    for name, tree_id in subtrees.items():
        position = bisect_left(entries, name, key=itemgetter(0))
        is_there = position < len(entries) and entries[position].name == name
        require(is_there and entries[position].is_directory, "tree", "it lacks a subdirectory")
        changed[position] = entries[position]._replace(content=tree_id)
    return tuple(changed)


def _put_pages(pages: list[TreePage], totals: Totals, put: Put, keep: Keep) -> ObjectId:
    data = pack_object((VERSION, totals, 1, pages), "directory")
    if len(pages) > PAGES_MAX or len(data) > TREE_SIZE_MAX:
        count = sum(page.entry_count for page in pages)
        raise InvalidArgument(f"A directory with {count} entries is too large to store")
    return _put(Tree(totals, (), tuple(pages)), data, put, keep)


def _put(tree: Tree, data: bytes, put: Put, keep: Keep) -> ObjectId:
    tree_id = put(ObjectKind.TREE, data)
    keep(tree_id, tree)
    return tree_id


def _pack_rows(totals: Totals, entries: Sequence[Entry]) -> bytes:
    return pack_object(
        (VERSION, totals, 0, entries), "directory", lambda: (entry.mtime_ns for entry in entries)
    )


def _page_runs(entries: Iterable[Entry], count: int) -> Iterator[Sequence[Entry]]:
    """Yields the entries of each page, half of an average page and then up to a chosen name."""
    bits = max(PAGE_ENTRIES_BITS_MIN, count.bit_length() // 2) - 1
    entries_min, mask = 1 << bits, (1 << bits) - 1
    run: list[Entry] = []
    for entry in entries:
        if type(entry) is not Entry or type(entry.name) is not bytes:
            raise InvalidArgument(f"A directory cannot hold this: {entry!r:.80}")
        run.append(entry)
        length = len(run)
        if length >= entries_min and (crc32(entry.name) & mask == 0 or length == ENTRIES_MAX):
            yield run
            run = []
    if run:
        yield run


def _encoded_pages(run: Sequence[Entry]) -> Iterator[tuple[Sequence[Entry], bytes]]:
    """Yields pages and their bytes; halves a page that would be too large."""
    data = _pack_rows(Totals(), run)
    if len(data) <= PAGE_SIZE_MAX or len(run) == 1:
        yield run, data
        return
    middle = len(run) // 2
    yield from _encoded_pages(run[:middle])
    yield from _encoded_pages(run[middle:])


def decode_tree(data: bytes) -> Tree:
    """Returns the tree of stored bytes, or raises Corrupt."""
    totals, rows, pages = _checked_tree(data)
    return Tree(totals, tuple(map(_NEW_ENTRY, rows)), pages)


def check_tree(data: bytes) -> None:
    """Raises Corrupt unless :func:`decode_tree` accepts the bytes; costs a third less."""
    _checked_tree(data)


def _checked_tree(data: bytes) -> tuple[Totals, tuple[Any, ...], tuple[TreePage, ...]]:
    require(len(data) <= TREE_SIZE_MAX, "tree", "it is too large")
    value = unpack(data, "tree", maps=False)
    require(type(value) is tuple and len(value) == 4, "tree", "it has no four fields")
    version, totals, level, rows = value
    if type(version) is int and version > VERSION:
        raise NewerVersion(f"Stored tree has version {version}, and this treesnap reads {VERSION}")
    require(type(version) is int and version == VERSION, "tree", f"version {version!r} is unknown")
    require(type(level) is int, "tree", "its level is not a number")
    require(type(rows) is tuple, "tree", "it has no rows")
    checked_totals = decode_totals(totals)
    if level == 1:
        return checked_totals, (), _decode_pages(rows)
    require(level == 0, "tree", "its level is unknown")
    require(len(rows) <= ENTRIES_MAX, "tree", "it has too many entries")
    if native.module is None or not native.module.are_plain(rows, _ENTRY_LENGTH):
        rows = _checked_rows(rows)
        _check_names([row[0] for row in rows])
    return checked_totals, rows, ()


def _check_names(names: list[bytes]) -> None:
    if not are_valid_names(names):
        bad = next(name for name in names if not is_valid_name(name))
        raise refused("tree", f"the name {bad!r} is not allowed")
    if not all(map(lt, names, names[1:])):
        raise refused("tree", "its names are not in order")


def decode_totals(value: Any) -> Totals:
    """Returns totals from a stored value, or raises Corrupt."""
    require(
        type(value) is tuple
        and len(value) == len(Totals._fields)
        and set(map(type, value)) == {int}
        and min(value) >= 0
        and max(value) <= FILE_SIZE_MAX,
        "totals",
        "they are not numbers",
    )
    return Totals._make(value)


def _decode_pages(rows: tuple[Any, ...]) -> tuple[TreePage, ...]:
    require(0 < len(rows) <= PAGES_MAX, "tree", "its number of pages is not possible")
    pages = []
    previous = b""
    for row in rows:
        require(type(row) is tuple and len(row) == 3, "tree", "a page has no three fields")
        page = TreePage._make(row)
        require(type(page.first_name) is bytes, "tree", "a page has no first name")
        require(is_valid_name(page.first_name), "tree", "a page's first name is not allowed")
        require(page.first_name > previous, "tree", "its pages are not in order")
        require(_is_id(page.id), "tree", "a page has no id")
        require(
            type(page.entry_count) is int and 0 < page.entry_count <= ENTRIES_MAX,
            "tree",
            "a page's entry count is not possible",
        )
        previous = page.first_name
        pages.append(page)
    return tuple(pages)


def decode_entry(row: Any) -> Entry:
    """Returns an entry from a stored row, or raises Corrupt. The name is checked by callers."""
    return decode_entries((row,))[0]


def decode_entries(rows: tuple[Any, ...]) -> tuple[Entry, ...]:
    """Returns entries from stored rows, or raises Corrupt. Names are checked by callers."""
    return tuple(map(_NEW_ENTRY, _checked_rows(rows)))


def _checked_rows(rows: tuple[Any, ...]) -> tuple[Any, ...]:
    """Returns the rows of entries with their times as integers, or raises Corrupt.

    Looks at one field of all rows after the other, which takes half as long as at one row
    after the other.
    """
    if not rows:
        return ()
    if set(map(type, rows)) != {tuple} or set(map(len, rows)) != {_ENTRY_LENGTH}:
        raise refused("entry", "bad field count")
    names, kinds, modes, uids, gids, mtimes_ns, sizes, contents, xattrs = zip(*rows, strict=True)
    if set(map(type, names)) != {bytes}:
        raise refused("entry", "its name is not a byte string")
    numbers_are_good = (
        set(map(type, chain(kinds, modes, uids, gids, sizes))) == {int}
        and 0 <= min(modes) <= max(modes) <= 0o7777
        and 0 <= min(uids) <= max(uids) <= _OWNER_MAX
        and 0 <= min(gids) <= max(gids) <= _OWNER_MAX
    )
    if not numbers_are_good:
        raise refused("entry", "its numbers are out of range")
    if set(map(type, mtimes_ns)) != {int}:
        rows = tuple(_with_time(row) for row in rows)
    for kind, size, content, row in zip(kinds, sizes, contents, rows, strict=True):
        if kind != _FILE:
            _check_no_file(_NEW_ENTRY(row))
        elif check_content(content) != size:
            raise refused("entry", "content and size differ")
    for value in xattrs:
        if value is not None:
            _check_xattrs(value)
    return rows


def _with_time(row: tuple[Any, ...]) -> tuple[Any, ...]:
    return (*row[:_MTIME], decode_time(row[_MTIME], "entry"), *row[_MTIME + 1 :])


def _check_no_file(entry: Entry) -> None:
    kind, content = entry.kind, entry.content
    require(entry.size == 0, "entry", "only files have a size")
    if kind == EntryKind.DIRECTORY:
        require(_is_id(content), "entry", "a directory has no tree")
    elif kind == EntryKind.SYMLINK:
        require(
            type(content) is bytes and 0 < len(content) <= TARGET_SIZE_MAX and b"\0" not in content,
            "entry",
            "a link's target is not possible",
        )
    elif kind in (EntryKind.CHARACTER_DEVICE, EntryKind.BLOCK_DEVICE):
        require(
            type(content) is tuple
            and len(content) == 2
            and all(type(part) is int and 0 <= part <= _DEVICE_NUMBER_MAX for part in content),
            "entry",
            "a device has no numbers",
        )
    elif kind == EntryKind.SKIPPED:
        require(
            type(content) is int and content in SkipReason._value2member_map_,
            "entry",
            "the reason for skipping is unknown",
        )
        metadata = (entry.mode, entry.uid, entry.gid, entry.mtime_ns, entry.xattrs)
        require(metadata == (0, 0, 0, 0, None), "entry", "a skipped name has metadata")
    else:
        require(kind == EntryKind.FIFO and content is None, "entry", "its kind is unknown")


def _check_xattrs(value: Any) -> None:
    if _is_id(value):
        return
    require(type(value) is tuple and value, "entry", "its attributes are not a list")
    previous = b""
    for pair in value:
        require(
            type(pair) is tuple
            and len(pair) == 2
            and type(pair[0]) is bytes
            and type(pair[1]) is bytes,
            "entry",
            "an attribute is not a pair",
        )
        name = pair[0]
        is_good = previous < name and len(name) <= 255 and b"\0" not in name
        require(is_good, "entry", "an attribute name is not possible")
        previous = name


def is_storable(entry: Entry) -> bool:
    """Returns whether a reader would accept an entry."""
    try:
        pack_entry(entry)
    except InvalidArgument:
        return False
    return True


def pack_entry(entry: Entry) -> bytes:
    """Returns the bytes of one entry alone, for :func:`unpack_entry`.

    Raises InvalidArgument for one that no reader would accept.
    """
    data = _pack_rows(Totals(), (entry,))
    try:
        check_tree(data)
    except Corrupt as error:
        raise InvalidArgument(f"A directory cannot hold this: {error}") from error
    return data


def unpack_entry(data: bytes) -> Entry:
    """Returns the entry of :func:`pack_entry`; raises Corrupt."""
    return decode_tree(data).entries[0]


def decode_xattrs(data: bytes) -> tuple[tuple[bytes, bytes], ...]:
    """Returns extended attributes that were stored as a chunk of their own."""
    value = unpack(data, "attributes", XATTRS_LENGTH_MAX, maps=False)
    _check_xattrs(value)
    require(type(value) is tuple, "attributes", "they are not a list")
    return value  # type: ignore[no-any-return]  # checked above


def _is_id(value: Any) -> bool:
    return type(value) is bytes and len(value) == ID_SIZE
