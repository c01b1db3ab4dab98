"""No bytes make a decoder do anything but return a valid value or refuse.

Every decoder is given arbitrary bytes, valid bytes that were changed, and valid
bytes with each byte cut off or flipped in turn.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import strategies as ours
from sampling import sized
from treesnap.core.codec import (
    changes,
    chunklist,
    compress,
    envelope,
    journal,
    pack,
    root_files,
    snapshot,
    statcache,
    tree,
)
from treesnap.core.codec import index as index_module
from treesnap.core.codec.envelope import FileKind
from treesnap.core.codec.message import pack as packed
from treesnap.core.model.entries import FileContent, ObjectKind, Totals
from treesnap.core.model.errors import Corrupt, InvalidArgument, UnsupportedFormat
from treesnap.core.model.ids import checksum, object_id
from treesnap.core.worktree.scan.hard_links import load_groups
from treesnap.core.worktree.scan.statcache import CacheFile

EXAMPLES = settings(max_examples=sized(15, 60), deadline=None, derandomize=True)


class Case(NamedTuple):
    """One decoder, what to feed it, and what makes its bytes again."""

    decode: Callable[[bytes], Any]
    valid: st.SearchStrategy[bytes]
    encode: Callable[[Any], bytes] | None = None


def encoded_tree(entries: Any) -> bytes:
    """Returns a stored directory of level 0."""
    return packed((1, Totals(), 0, entries))


def encoded_paged_tree(pages: list[Any]) -> bytes:
    """Returns a stored directory of level 1."""
    return packed((1, Totals(), 1, sorted(pages)))


def read_index(data: bytes) -> Any:
    """Uses everything of an index part."""
    part = index_module.IndexPart(memoryview(data), "here")
    part.verify()
    found = list(part)
    part.find(found[0].id if found else object_id(ObjectKind.CHUNK, b""))
    return found, part.covered


def read_unverified_index(data: bytes) -> Any:
    """Uses an index part that is too large to be verified when it is opened."""
    part = index_module.IndexPart(memoryview(data), "here")
    return list(part), part.find(object_id(ObjectKind.CHUNK, b"")), part.find(bytes(32))


def encoded_index(entries: list[pack.IndexEntry]) -> bytes:
    """Returns an index part."""
    return index_module.encode_index(sorted(entries), {entry.pack_id: 1 << 40 for entry in entries})


def read_pack(data: bytes) -> Any:
    """Uses everything of a pack."""
    view = memoryview(data)
    tables = list(pack.scan_blocks(view, bytes(16)))
    return list(found_in(data)), tables, pack.decode_footer(view, "here")


def found_in(data: bytes) -> Iterator[bytes]:
    """Yields the objects of a pack that can be read."""
    for table in pack.scan_blocks(memoryview(data), bytes(16)):
        block = pack.OpenBlock(table, data[table.block.offset : table.end])
        for entry in table.entries:
            try:
                yield block.find(entry)
            except Corrupt:
                continue


def encoded_pack(contents: list[bytes]) -> bytes:
    """Returns a sealed pack with a block for each content, and one of all."""
    objects = [
        (ObjectKind.CHUNK, object_id(ObjectKind.CHUNK, content), content) for content in contents
    ]
    data = envelope.header(FileKind.PACK)
    offsets = []
    for group in (*([each] for each in objects), objects):
        encoded = pack.encode_objects(group)
        offsets += [table.block.offset for table in encoded.tables_at(bytes(16), len(data))]
        data += encoded.data
    return data + pack.encode_footer(offsets, len(data))


def read_stat_cache(data: bytes) -> Any:
    """Looks a directory up."""
    cache = CacheFile(memoryview(data), "here")
    return cache.find(b""), cache.find(b"a")


def encoded_stat_cache(rows: list[statcache.Row]) -> bytes:
    """Returns a whole stat cache."""
    body = envelope.header(FileKind.STAT_CACHE, statcache.VERSION)
    table = []
    for row in rows:
        table.append((statcache.path_hash(row.path), len(body)))
        body += statcache.frame(statcache.encode_row(row))
    meta_offset = len(body)
    body += statcache.frame(
        statcache.encode_meta(statcache.Meta("0" * 64, object_id(ObjectKind.TREE, b"")))
    )
    table.sort()
    body += b"".join(struct.pack("<Q", item[0]) for item in table)
    body += b"".join(struct.pack("<Q", item[1]) for item in table)
    check = zlib.crc32(body)
    return body + statcache.TRAILER.pack(meta_offset, len(rows), check, statcache.TRAILER_MAGIC)


def read_links(data: bytes) -> Any:
    """Reads a table of hard links that is one chunk."""
    return load_groups(FileContent((0, bytes(32), max(1, len(data)))), lambda kind, identity: data)


def encoded_links(groups: list[list[bytes]]) -> bytes:
    """Returns the bytes of a table."""
    return b"".join(packed(group) for group in sorted(sorted(set(group)) for group in groups))


BEFORE = {"one": (1, 2, 3), "two": {"a": None, "b": ((),)}}
"""What a change is made of."""


def encoded_changes(records: list[dict[str, object]]) -> bytes:
    """Returns a record with what makes each of some others of it, where a change can."""
    data = envelope.seal(FileKind.PLAN, packed(BEFORE))
    for each in records:
        data += changes.next_change(data, FileKind.PLAN, packed(each), "here") or b""
    return data


def encoded_change(record: dict[str, object]) -> bytes:
    """Returns the payload of a change; one that changes nothing where none is possible."""
    before = envelope.seal(FileKind.PLAN, packed(BEFORE))
    change = changes.next_change(before, FileKind.PLAN, packed(record), "here")
    if change is None:
        return changes.CHANGE.encode(())
    return envelope.unseal(change, FileKind.CHANGE, "here")


def read_changes(data: bytes) -> Any:
    """Reads a record with changes."""
    return changes.unseal_changed(data, FileKind.PLAN, "here")


def read_change(payload: bytes) -> Any:
    """Reads a record with one change."""
    return read_changes(encoded_changes([]) + envelope.seal(FileKind.CHANGE, payload))


pages = st.lists(
    st.tuples(ours.names(), ours.object_ids(), st.integers(1, 4096)),
    min_size=1,
    max_size=3,
    unique_by=lambda page: page[0],
)

CASES = {
    "tree": Case(
        tree.decode_tree,
        ours.directories().map(encoded_tree) | pages.map(encoded_paged_tree),
        lambda tree: packed((1, tree.totals, int(bool(tree.pages)), tree.pages or tree.entries)),
    ),
    "attributes": Case(
        tree.decode_xattrs, ours.xattrs().filter(lambda x: type(x) is tuple).map(packed), packed
    ),
    "chunk list": Case(chunklist.decode_list, ours.segmented(20).map(packed), packed),
    "snapshot": Case(
        snapshot.decode_snapshot,
        ours.snapshot_records().map(snapshot.encode_snapshot),
        snapshot.encode_snapshot,
    ),
    "snapshot state": Case(
        snapshot.decode_state,
        ours.snapshot_states().map(snapshot.encode_state),
        snapshot.encode_state,
    ),
    "history": Case(
        root_files.HISTORY.decode,
        ours.histories().map(root_files.HISTORY.encode),
        root_files.HISTORY.encode,
    ),
    "name table": Case(
        root_files.decode_names,
        ours.name_tables().map(root_files.encode_names),
        root_files.encode_names,
    ),
    "gaps": Case(
        root_files.GAPS.decode,
        ours.gap_lists().map(root_files.GAPS.encode),
        root_files.GAPS.encode,
    ),
    "journal": Case(
        journal.decode_journal, ours.journals().map(journal.encode_journal), journal.encode_journal
    ),
    "export record": Case(
        root_files.EXPORT.decode,
        ours.export_records().map(root_files.EXPORT.encode),
        root_files.EXPORT.encode,
    ),
    "list of moves": Case(
        root_files.EXPORT_MOVES.decode,
        ours.export_moves().map(root_files.EXPORT_MOVES.encode),
        root_files.EXPORT_MOVES.encode,
    ),
    "sealed": Case(
        lambda data: envelope.unseal(data, FileKind.ROOT, "here"),
        st.binary(max_size=40).map(lambda payload: envelope.seal(FileKind.ROOT, payload)),
        lambda payload: envelope.seal(FileKind.ROOT, payload),
    ),
    "changes": Case(read_changes, st.lists(ours.plain_maps(), max_size=3).map(encoded_changes)),
    "change": Case(read_change, ours.plain_maps().map(encoded_change)),
    "index": Case(read_index, st.lists(ours.index_entries(), max_size=4).map(encoded_index)),
    "unverified index": Case(
        read_unverified_index, st.lists(ours.index_entries(), max_size=4).map(encoded_index)
    ),
    "pack": Case(
        read_pack,
        st.lists(st.binary(max_size=20) | st.just(bytes(200)), max_size=3).map(encoded_pack),
    ),
    "stat cache": Case(read_stat_cache, st.lists(ours.rows(), max_size=3).map(encoded_stat_cache)),
    "row": Case(
        lambda data: statcache.decode_row(memoryview(data)),
        ours.rows().map(statcache.encode_row),
        statcache.encode_row,
    ),
    "observations": Case(
        statcache.decode_observations, ours.observations().map(statcache.encode_observations)
    ),
    "hard links": Case(
        read_links,
        st.lists(st.lists(ours.paths(), min_size=2, max_size=3), max_size=3).map(encoded_links),
    ),
    "zstd": Case(
        lambda data: compress.decompress(compress.Compression.ZSTD, data, 200),
        st.binary(max_size=9).map(lambda seed: (seed + bytes(200))[:200]).map(
            lambda raw: bytes(compress.compress(raw, 1)[1])
        ),
    ),
}  # fmt: skip

MESSAGES = ["change", *(name for name, case in CASES.items() if case.encode is not None)]


def decodes_or_refuses(case: Case, data: bytes) -> Any:
    """Returns what was decoded, or None when it was refused in the one way that is allowed."""
    try:
        value = case.decode(data)
    except (Corrupt, UnsupportedFormat):
        return None
    if case.encode is not None:
        assert case.decode(case.encode(value)) == value
    return value


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", CASES)
@EXAMPLES
@given(data=st.data())
def test_valid_bytes_decode(name, data):
    case = CASES[name]
    valid = data.draw(case.valid)

    if name != "hard links":  # two groups may share a path, which is refused
        case.decode(valid)
    if case.encode is not None:
        assert case.encode(case.decode(valid)) == valid


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", CASES)
@EXAMPLES
@given(garbage=st.binary(max_size=200))
@example(garbage=b"")
@example(garbage=b"\x80")
@example(garbage=b"\x90")
@example(garbage=b"\x94\x01\x96\0\0\0\0\0\0\x01\x90")
@example(garbage=b"\x91" * 3000)
@example(garbage=b"\xc7\x00\x05")
@example(garbage=b"\xd6\xff\0\0\0\0")
def test_arbitrary_bytes_are_refused_or_valid(name, garbage):
    decodes_or_refuses(CASES[name], garbage)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", CASES)
@settings(EXAMPLES, max_examples=sized(20, 150))
@given(data=st.data())
def test_changed_bytes_are_refused_or_valid(name, data):
    case = CASES[name]

    decodes_or_refuses(case, data.draw(ours.mutated(case.valid)))


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", CASES)
@settings(EXAMPLES, max_examples=4)
@given(data=st.data())
def test_each_byte_cut_off_or_flipped_is_refused_or_valid(name, data):
    case = CASES[name]
    valid = data.draw(case.valid)

    for position in range(min(len(valid), 600)):
        decodes_or_refuses(case, valid[:position])
        for flip in (0x01, 0x80, 0xFF):
            changed = bytearray(valid)
            changed[position] ^= flip
            decodes_or_refuses(case, bytes(changed))


_WRONG = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(1 << 63), (1 << 64) - 1),
    st.floats(allow_nan=False),
    st.binary(max_size=33),
    st.text(max_size=3),
    st.just(()),
    st.just({}),
    st.just((1, 2, 3)),
    st.just((None,) * 9),
)


def replaced(value: Any, choose: Callable[[int], int], wrong: Any) -> Any:
    """Returns a value with one value inside it, at any depth, replaced by another."""
    if type(value) is dict and value:
        keys = list(value)
        place = choose(len(keys) + 1)
        if place < len(keys):
            return value | {keys[place]: replaced(value[keys[place]], choose, wrong)}
    elif type(value) is tuple and value:
        place = choose(len(value) + 1)
        if place < len(value):
            inner = replaced(value[place], choose, wrong)
            return (*value[:place], inner, *value[place + 1 :])
    return wrong


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", [name for name in MESSAGES if name not in {"sealed", "row"}])
@settings(EXAMPLES, max_examples=sized(30, 300))
@given(data=st.data())
def test_values_of_wrong_types_are_refused_or_valid(name, data):
    from treesnap.core.codec.message import unpack

    case = CASES[name]
    value = unpack(data.draw(case.valid), "example")
    wrong = data.draw(_WRONG)

    changed = replaced(value, lambda count: data.draw(st.integers(0, count - 1)), wrong)

    decodes_or_refuses(case, packed(changed))


@EXAMPLES
@given(payload=st.binary(max_size=20))
def test_sealed_files_notice_every_flipped_bit(payload):
    sealed = envelope.seal(FileKind.HISTORY, payload)

    for bit in range(8 * len(sealed)):
        changed = bytearray(sealed)
        changed[bit // 8] ^= 1 << bit % 8
        with pytest.raises((Corrupt, UnsupportedFormat)):
            envelope.unseal(bytes(changed), FileKind.HISTORY, "here")


@EXAMPLES
@given(contents=st.lists(st.binary(max_size=10), min_size=1, max_size=2), data=st.data())
def test_a_pack_never_yields_an_object_that_it_was_not_given(contents, data):
    changed = bytearray(encoded_pack(contents))
    changed[data.draw(st.integers(0, len(changed) - 1))] ^= data.draw(st.integers(1, 255))

    assert set(found_in(bytes(changed))) <= set(contents)


def test_the_invalid_argument_of_a_path_never_leaves_a_decoder():
    bad = packed({"version": 1, "undo": (("0" * 64, (b"..",)),), "redo": ()})

    with pytest.raises(Corrupt) as caught:
        root_files.HISTORY.decode(bad)

    assert not isinstance(caught.value, InvalidArgument)
    assert checksum(b"", 4) == checksum(b"", 32)[:4]
