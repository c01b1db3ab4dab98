"""Hypothesis strategies: values that a store may hold, and bytes that it should not.

Values are valid by construction, within small sizes; :func:`mutated` makes what a
damaged or crafted file may hold.
"""

from __future__ import annotations

from itertools import chain
from stat import S_IFREG

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from treesnap.core.codec.chunklist import INLINE_SIZE_MAX
from treesnap.core.codec.journal import STAGE_PREFIX, Commit, Finish, Journal, Subvolume
from treesnap.core.codec.message import TIME_MAX_NS, TIME_MIN_NS
from treesnap.core.codec.pack import Block, IndexEntry
from treesnap.core.codec.root_files import (
    EXPORT_STAGE_PREFIX,
    ExportMoves,
    ExportRecord,
    Gap,
    Moment,
    Move,
    NameTable,
    RestoreHistory,
)
from treesnap.core.codec.snapshot import PLAN_ATTACHMENT
from treesnap.core.codec.statcache import Observation, Row
from treesnap.core.model.entries import (
    Entry,
    EntryKind,
    FileContent,
    ObjectId,
    ObjectKind,
    SkipReason,
    Totals,
)
from treesnap.core.model.ids import ID_SIZE
from treesnap.core.model.snapshots import (
    Attachment,
    IgnoreRules,
    SnapshotId,
    SnapshotKind,
    SnapshotRecord,
    SnapshotState,
)
from treesnap.core.model.treepath import is_valid_name, without_nested

_INT64 = st.integers(-(1 << 63), (1 << 63) - 1)
_TIMES_NS = _INT64 | st.integers(TIME_MIN_NS, TIME_MAX_NS)
_UINT64 = st.integers(0, (1 << 64) - 1)
_SIZES = st.integers(0, (1 << 63) - 1)
_NUMBERS = st.integers(0, (1 << 32) - 1)
_OWNERS = st.integers(0, (1 << 32) - 2)
_MODES = st.integers(0, 0o7777)
_TEXT = st.text(st.characters(codec="utf-8"), max_size=20)


def object_ids() -> SearchStrategy[ObjectId]:
    """Identities; few different ones, so that equal ones occur."""
    return st.one_of(
        st.integers(0, 3).map(lambda number: bytes([number]) * 32),
        st.binary(min_size=32, max_size=32),
    ).map(ObjectId)


def snapshot_ids() -> SearchStrategy[SnapshotId]:
    return object_ids().map(lambda identity: SnapshotId(identity.hex()))


def names() -> SearchStrategy[bytes]:
    """Names of entries: any bytes that a file system allows, awkward ones often."""
    awkward = st.sampled_from([b"a", b"b", b"...", b" ", b"\n", b"\xff", b"-", b"a" * 255])
    return st.one_of(awkward, st.binary(min_size=1, max_size=12)).filter(is_valid_name)


def paths() -> SearchStrategy[bytes]:
    """Paths below a root, never the root itself."""
    return st.lists(names(), min_size=1, max_size=4).map(b"/".join)


def scopes() -> SearchStrategy[tuple[bytes, ...] | None]:
    """The paths of a path-scoped snapshot, or None."""
    return st.none() | st.lists(paths(), min_size=1, max_size=4).map(without_nested)


def contents() -> SearchStrategy[FileContent]:
    """Contents of files, as entries hold them."""
    in_place = st.binary(min_size=1, max_size=INLINE_SIZE_MAX)
    return st.one_of(in_place.map(lambda data: FileContent((data,))), segmented())


def segmented(segments_max: int = 16) -> SearchStrategy[FileContent]:
    """Contents of files that are more than a few bytes, and of chunk lists."""
    size = st.integers(1, 1 << 40)
    chunk_or_hole = st.tuples(st.none() | object_ids(), size)
    lists = st.tuples(object_ids(), size)
    return st.one_of(
        st.tuples(st.just(0), st.lists(chunk_or_hole, max_size=segments_max)),
        st.tuples(st.integers(1, 8), st.lists(lists, min_size=1, max_size=segments_max)),
    ).map(lambda pair: FileContent((pair[0], *chain.from_iterable(pair[1]))))


def xattrs() -> SearchStrategy[object]:
    """Extended attributes of an entry: none, in place, or apart."""
    attribute = st.binary(min_size=1, max_size=10).filter(lambda name: b"\0" not in name)
    pairs = st.dictionaries(attribute, st.binary(max_size=10), min_size=1, max_size=3)
    in_place = pairs.map(lambda found: tuple(sorted(found.items())))
    return st.one_of(st.none(), in_place, object_ids())


def _with_content(kind: EntryKind, content: SearchStrategy[object]) -> SearchStrategy[Entry]:
    return st.builds(
        Entry,
        names(),
        st.just(kind),
        _MODES,
        _OWNERS,
        _OWNERS,
        _TIMES_NS,
        st.just(0),
        content,
        xattrs(),
    )


def entries() -> SearchStrategy[Entry]:
    target = st.binary(min_size=1, max_size=20).filter(lambda text: b"\0" not in text)
    device = st.tuples(*[st.integers(0, (1 << 31) - 1)] * 2)
    skipped = st.builds(
        lambda name, reason: Entry(name, EntryKind.SKIPPED, 0, 0, 0, 0, 0, int(reason), None),
        names(),
        st.sampled_from(SkipReason),
    )
    return st.one_of(
        _with_content(EntryKind.FILE, contents()).map(
            lambda entry: entry._replace(size=entry.file_content.size_bytes)
        ),
        _with_content(EntryKind.DIRECTORY, object_ids()),
        _with_content(EntryKind.SYMLINK, target),
        _with_content(EntryKind.FIFO, st.none()),
        _with_content(EntryKind.CHARACTER_DEVICE, device),
        _with_content(EntryKind.BLOCK_DEVICE, device),
        skipped,
    )


def directories() -> SearchStrategy[tuple[Entry, ...]]:
    """The entries of one directory, in order."""
    by_name = st.lists(entries(), max_size=6, unique_by=lambda entry: entry.name)
    return by_name.map(lambda found: tuple(sorted(found)))


def root_entries() -> SearchStrategy[Entry]:
    return _with_content(EntryKind.DIRECTORY, object_ids()).map(
        lambda entry: entry._replace(name=b"")
    )


def totals() -> SearchStrategy[Totals]:
    return st.builds(Totals, *[_SIZES] * len(Totals._fields))


def snapshot_records() -> SearchStrategy[SnapshotRecord]:
    text = st.none() | _TEXT
    pattern = st.binary(max_size=8).map(lambda raw: raw.decode("utf-8", "surrogateescape"))
    rules = st.builds(IgnoreRules, st.just(b"") | paths(), st.lists(pattern, max_size=3).map(tuple))
    return st.builds(
        SnapshotRecord,
        root=root_entries(),
        links=st.none() | contents(),
        root_path=st.binary(max_size=20).filter(lambda path: 0 not in path),
        created_at_ns=_TIMES_NS,
        totals=totals(),
        kind=st.sampled_from(SnapshotKind),
        scope=scopes(),
        rules=st.lists(rules, max_size=2).map(tuple),
        unstable=st.lists(paths(), max_size=2).map(tuple),
        parent=st.none() | snapshot_ids(),
        host=_TEXT,
        label=text,
        name=text,
        session=text,
        step=st.none() | _INT64,
        added_bytes=st.none() | _SIZES,
        tags=st.dictionaries(_TEXT, _TEXT, max_size=2),
        attachment=st.none() | attachments(),
    )


def snapshot_states() -> SearchStrategy[SnapshotState]:
    """What may change about a snapshot."""
    return st.builds(
        SnapshotState,
        pinned=st.booleans(),
        tags=st.dictionaries(_TEXT, _TEXT, max_size=2),
        removed_tags=st.lists(_TEXT, max_size=2, unique=True).map(sorted).map(tuple),
        label=st.none() | _TEXT,
    )


def histories() -> SearchStrategy[RestoreHistory]:
    stack = st.lists(st.builds(Moment, snapshot_ids(), scopes(), st.booleans()), max_size=3).map(
        tuple
    )
    return st.builds(RestoreHistory, stack, stack)


def name_tables() -> SearchStrategy[NameTable]:
    numbers = st.integers(0, (1 << 64) - 1)
    rows = st.tuples(st.text(), numbers, st.binary(min_size=ID_SIZE, max_size=ID_SIZE))
    return st.builds(NameTable, numbers, st.lists(rows, max_size=3).map(tuple))


def gap_lists() -> SearchStrategy[tuple[Gap, ...]]:
    words = [st.text(max_size=8)] * 4
    gaps = st.builds(Gap, _TIMES_NS, *words, st.none() | st.text(max_size=8), st.text(max_size=8))
    return st.lists(gaps, max_size=3).map(tuple)


def attachments() -> SearchStrategy[Attachment]:
    """Plans, as they stood at a moment."""
    ids = st.text("0123456789ABCDEFGHJKMNPQRSTVWXYZ", min_size=25, max_size=25).map("7".__add__)
    return st.builds(Attachment, st.just(PLAN_ATTACHMENT), ids, st.binary(max_size=20))


def journals() -> SearchStrategy[Journal]:
    none = st.none()
    finishes = st.builds(Finish, st.just(b"") | paths(), entries(), none | entries())
    commits = st.builds(
        Commit,
        target_id=snapshot_ids(),
        safety_id=snapshot_ids(),
        paths=st.lists(paths(), max_size=3).map(without_nested),
        directories=st.lists(finishes, max_size=2).map(tuple),
        history=st.binary(max_size=20),
        touch=st.booleans(),
        removes_root=st.booleans(),
        is_way_back=st.booleans(),
        removes_first=st.booleans(),
        keeps_nothing=st.booleans(),
        attachment=none | attachments(),
    )
    return st.builds(
        Journal,
        root_id=st.binary(min_size=16, max_size=16).map(bytes.hex),
        stage_name=st.integers(0, 1 << 30).map(lambda number: STAGE_PREFIX + b"%x" % number),
        root_before=none | root_entries(),
        file_system=_UINT64,
        device=_UINT64,
        inode=none | _UINT64,
        started_at_ns=_TIMES_NS,
        subvolumes=st.lists(st.builds(Subvolume, paths(), entries()), max_size=2).map(tuple),
        commit=none | commits,
    )


def export_records() -> SearchStrategy[ExportRecord]:
    """Records of restores to other directories."""
    stages = st.binary(min_size=8, max_size=8).map(lambda seed: seed.hex().encode())
    return st.builds(
        lambda path, digits, in_place, fork: ExportRecord(
            b"/%s/%s%s" % (path, EXPORT_STAGE_PREFIX, digits), in_place=in_place, fork=fork
        ),
        paths(),
        stages,
        st.booleans(),
        st.none() | paths().map(lambda path: b"/" + path),
    )


def export_moves() -> SearchStrategy[ExportMoves]:
    """What restores to directories that cannot be replaced move."""
    return st.builds(
        ExportMoves,
        moves=st.lists(st.builds(Move, names(), _UINT64), max_size=4).map(tuple),
        mode=st.integers(0, 0o7777),
        uid=_NUMBERS,
        gid=_NUMBERS,
        mtime_ns=_TIMES_NS,
    )


def plain_maps() -> SearchStrategy[dict[str, object]]:
    """Maps of the same keys, as records are whose changes are written."""
    leaves = st.none() | st.booleans() | st.integers(0, 3) | st.text(max_size=2)
    values = st.recursive(
        leaves | st.binary(max_size=2),
        lambda inner: (
            st.lists(inner, max_size=4).map(tuple)
            | st.dictionaries(st.sampled_from("abc"), inner, max_size=3)
        ),
        max_leaves=12,
    )
    return st.fixed_dictionaries({"one": values, "two": values})


def index_entries() -> SearchStrategy[IndexEntry]:
    """Entries of index parts, in a handful of packs."""
    pack_ids = st.integers(0, 3).map(lambda number: bytes([number]) * 16)
    kinds = st.sampled_from([ObjectKind.CHUNK, ObjectKind.TREE, ObjectKind.CHUNK_LIST]).map(int)
    blocks = st.builds(Block, pack_ids, _NUMBERS, _NUMBERS, _NUMBERS)
    return st.builds(IndexEntry, object_ids(), blocks, _NUMBERS, _NUMBERS, kinds)


def observations() -> SearchStrategy[list[Observation]]:
    """What was seen of one directory."""
    one = st.builds(Observation, names(), _NUMBERS, _SIZES, _TIMES_NS, _TIMES_NS, _UINT64, _UINT64)
    return st.lists(one, max_size=4, unique_by=lambda item: item.name).map(sorted)


def rows() -> SearchStrategy[Row]:
    skipped = st.tuples(names(), st.sampled_from(SkipReason).map(int))
    return st.builds(
        Row,
        path=st.just(b"") | paths(),
        tree_id=object_ids(),
        totals=totals(),
        rules=st.binary(max_size=16),
        racy=st.lists(names(), max_size=2).map(tuple),
        linked=st.booleans(),
        skipped=st.lists(skipped, max_size=2).map(tuple),
        observations=st.binary(max_size=20),
        hidden=st.lists(st.tuples(names(), st.just(S_IFREG)), max_size=2).map(tuple),
    )


@st.composite
def mutated(draw: st.DrawFn, valid: SearchStrategy[bytes]) -> bytes:
    """Valid bytes with a few bytes changed, put in, taken out, doubled or cut off."""
    data = bytearray(draw(valid))
    for _ in range(draw(st.integers(1, 3))):
        start = draw(st.integers(0, len(data)))
        end = draw(st.integers(start, min(len(data), start + 8)))
        change = draw(st.sampled_from(["replace", "double", "cut", "zero"]))
        if change == "replace":
            data[start:end] = draw(st.binary(max_size=8))
        elif change == "double":
            data[end:end] = data[start:end]
        elif change == "cut":
            del data[start:]
        else:
            data[start:end] = bytes(end - start)
    return bytes(data)
