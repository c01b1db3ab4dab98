"""Bytes that may never change: identities, cut points, encodings.

A change here is a change of the format: stores would no longer share what is
equal, or older ones could no longer be read.
"""

from __future__ import annotations

from typing import Any

import pytest

from treesnap.core.codec import envelope, journal, pack, root_files, snapshot, statcache, tree
from treesnap.core.codec.chunklist import fold
from treesnap.core.codec.envelope import FileKind
from treesnap.core.codec.index import encode_index
from treesnap.core.codec.journal import STAGE_PREFIX, Commit, Finish, Journal
from treesnap.core.codec.message import TIME_MAX_NS, TIME_MIN_NS
from treesnap.core.codec.message import pack as packed
from treesnap.core.model.entries import (
    Entry,
    EntryKind,
    ObjectId,
    ObjectKind,
    Segment,
    SkipReason,
    Totals,
)
from treesnap.core.model.ids import checksum, expanded, object_id
from treesnap.core.model.snapshots import (
    Attachment,
    IgnoreRules,
    SnapshotId,
    SnapshotKind,
    SnapshotRecord,
    SnapshotState,
)
from treesnap.core.worktree.scan import chunking

ID = ObjectId(bytes(range(32)))
OTHER_ID = ObjectId(bytes(range(1, 33)))
TOTALS = Totals(3, 1, 4, 1000, 1, 0)
ENTRIES = (
    Entry(b"file", EntryKind.FILE, 0o644, 100, 10, 1_700_000_000_123_456_789, 9, (0, ID, 9), None),
    Entry(b"dir", EntryKind.DIRECTORY, 0o1777, 0, 0, -1, 0, ID, ((b"user.a", b"\0"),)),
    Entry(b"link", EntryKind.SYMLINK, 0o777, 0, 0, 0, 0, b"\xff/target", None),
    Entry(b"fifo", EntryKind.FIFO, 0o600, 0, 0, 0, 0, None, None),
    Entry(b"null", EntryKind.CHARACTER_DEVICE, 0o666, 0, 0, 0, 0, (1, 3), None),
    Entry(b"disk", EntryKind.BLOCK_DEVICE, 0o660, 0, 6, 0, 0, (8, 0), ID),
    Entry(b"sock", EntryKind.SKIPPED, 0, 0, 0, 0, 0, int(SkipReason.SOCKET), None),
    Entry(b"note", EntryKind.FILE, 0o600, 100, 10, 0, 5, (b"few\n\0",), None),
)  # fmt: skip
RECORD = SnapshotRecord(
    root=Entry(b"", EntryKind.DIRECTORY, 0o755, 0, 0, 1, 0, ID, None),
    links=(0, ID, 40),
    root_path=b"/srv/\xff",
    created_at_ns=1_700_000_000_000_000_000,
    totals=TOTALS,
    kind=SnapshotKind.RUN,
    scope=(b"a", b"b/c"),
    rules=(IgnoreRules(b"", ("*.o", "\udcff")),),
    unstable=(b"log",),
    parent=SnapshotId("ab" * 32),
    host="host",
    label="before",
    step=7,
    tags={"b": "2", "a": "1"},
)
ATTACHMENT = Attachment("plan", "01ARZ3NDEKTSV4RRFFQ69G5FAV", b"payload")
JOURNAL = Journal(
    root_id="01" * 16,
    stage_name=STAGE_PREFIX + b"0011223344556677",
    root_before=RECORD.root,
    file_system=2049,
    device=66,
    inode=7,
    started_at_ns=1_700_000_000_000_000_000,
    commit=Commit(
        target_id=SnapshotId("01" * 32),
        safety_id=SnapshotId("02" * 32),
        paths=(b"a", b"b/c"),
        directories=(Finish(b"", RECORD.root, None),),
        history=b"history",
        touch=True,
    ),
)


TIMED = tuple(
    ENTRIES[3]._replace(name=b"%02d" % number, mtime_ns=time_ns)
    for number, time_ns in enumerate(
        [TIME_MIN_NS, -(1 << 63) - 1, -(1 << 63), (1 << 64) - 1, 1 << 64, TIME_MAX_NS]
    )
)


def paged() -> bytes:
    """Returns the tree of level 1 over 5000 names."""
    stored: list[bytes] = []

    def put(kind: ObjectKind, data: bytes) -> ObjectId:
        stored.append(data)
        return object_id(kind, data)

    fifos = [ENTRIES[3]._replace(name=b"%05d" % number) for number in range(5000)]
    tree.put_tree(fifos, TOTALS, put)
    return stored[-1]


def folded() -> bytes:
    """Returns everything that a long content is stored as."""
    stored: list[bytes] = []

    def put(kind: ObjectKind, data: bytes) -> ObjectId:
        stored.append(data)
        return object_id(kind, data)

    segments = [
        Segment(object_id(ObjectKind.CHUNK, b"%d" % n) if n % 9 else None, n + 1)
        for n in range(20_000)
    ]
    stored.append(packed(fold(segments, put)))
    return b"".join(stored)


RAW = b"\1abc\1"
ROWS = [(ID, 3, 1), (OTHER_ID, 0, 1)]
BLOCK = pack.encode_table(ROWS, 0, len(RAW), len(RAW)) + RAW
PLACE = pack.Block(bytes(16), 16, len(BLOCK), len(RAW))


ROW = statcache.Row(
    b"a/b", ID, TOTALS, b"rules", (b"x",), True, ((b"y", 1),),
    statcache.encode_observations([statcache.Observation(b"x", 1, 2, 3, 4, 5, 6)]),
)  # fmt: skip
MOMENT = root_files.Moment(SnapshotId("cd" * 32), (b"a",))
ENCODED: dict[str, bytes] = {
    "tree": packed((1, TOTALS, 0, sorted(ENTRIES))),
    "tree of odd times": packed((1, TOTALS, 0, TIMED)),
    "tree of pages": paged(),
    "lists": folded(),
    "snapshot": snapshot.encode_snapshot(RECORD),
    "snapshot with a plan": snapshot.encode_snapshot(RECORD._replace(attachment=ATTACHMENT)),
    "snapshot state": snapshot.encode_state(SnapshotState(pinned=True, tags={"a": "1"})),
    "history": root_files.HISTORY.encode(root_files.RestoreHistory((MOMENT,), ())),
    "journal": journal.encode_journal(JOURNAL),
    "journal with a plan": journal.encode_journal(
        JOURNAL._replace(commit=JOURNAL.commit._replace(attachment=ATTACHMENT, privileged=True))
    ),
    "row": statcache.frame(statcache.encode_row(ROW)),
    "meta": statcache.encode_meta(statcache.Meta("ef" * 32, ID)),
    "index": encode_index(
        [pack.IndexEntry(ID, PLACE, 0, 3, 1), pack.IndexEntry(OTHER_ID, PLACE, 4, 0, 1)],
        {bytes(16): 16 + len(BLOCK)},
    ),
    "block": BLOCK,
    "footer": pack.encode_footer([16, 16 + len(BLOCK)], 16 + 2 * len(BLOCK)),
    "sealed": envelope.seal(FileKind.ROOT, b"payload"),
}
GOLDEN = {
    "tree": (288, "b53b347a72396458614fd205396e78df"),
    "tree of odd times": (171, "997f190abf8a8961dcacf2d0395bc511"),
    "tree of pages": (4444, "88f79a92cb6787a3c8ba0a1db55e393b"),
    "lists": (668667, "fdcdd61a1fe87a290b38fa90ea76b6b9"),
    "snapshot": (335, "c62e35dd81d9531f0a1ebabaa2cee629"),
    "snapshot with a plan": (379, "507ab52b09a00fda8c90977cbd2aca40"),
    "snapshot state": (28, "8f354c6e684cc6abd29d4f1e121b1821"),
    "history": (93, "e5ff5b28a8d0907625c54a8a0da91cf9"),
    "journal": (542, "97abfe4989d7d395b878e05406f8e7ad"),
    "journal with a plan": (596, "0d26daa179cdadf2d1b5475b99f494e8"),
    "row": (97, "521ab8f77645488923e8bc7ca417d7ee"),
    "meta": (124, "0f3883be877e90649b68c1fe552652cb"),
    "index": (190, "6fc9e3bd1de8d83053173a7b823e8454"),
    "block": (103, "9626a5a0e013e94023fccc03a2fed1f1"),
    "footer": (24, "c14e274f07043bf37be2559c7bceb9c3"),
    "sealed": (63, "bb240aff898b3f44714024fb3e88ce37"),
}
"""Size and the first 16 bytes of BLAKE3."""


@pytest.mark.parametrize("name", ENCODED)
def test_encodings_are_what_they_were(name):
    data = ENCODED[name]

    assert GOLDEN[name] == (len(data), checksum(data, 16).hex())


def test_a_small_tree_byte_by_byte():
    data = packed((1, Totals(others=1), 0, (ENTRIES[3],)))

    expected = (
        "94 01"  # version 1
        "96 00 00 01 00 00 00"  # totals: one FIFO
        "00 91"  # level 0, one row
        "99 c4 04 66 69 66 6f"  # fifo
        "04 cd 01 80 00 00 00 00 c0 c0"  # kind, mode, owner, group, time, size, content, xattrs
    )
    assert bytes.fromhex(expected) == data


def test_a_small_block_byte_by_byte():
    objects = [(ObjectKind.CHUNK, ID, b"abc"), (ObjectKind.CHUNK, OTHER_ID, b"")]

    expected = (
        "5453424b 00 00 01 00"  # TSBK, not compressed, not encrypted, BLAKE3-256
        "02000000 05000000 05000000 02e7feca"  # objects, raw size, stored size, CRC
        f"{ID.hex()} 03000000 01"
        f"{OTHER_ID.hex()} 00000000 01"
        "01 616263 01"  # kind and bytes of each
    )
    assert bytes.fromhex(expected) == pack.encode_objects(objects).data == BLOCK


def test_a_compressed_block_is_still_read():
    block = bytes.fromhex(
        "5453424b 01 00 01 00 02000000 2e010000 17000000 a6d8401e"
        "fd479e427f389a7ece1d90d151bc683b6aba51c30d4ed86805d3fa4d69db410d 64000000 02"
        "5bdeea36bcb996e4d029148bf7dd8b9dd9a7c2a4ddeb7f79550d5e55a65bb09a c8000000 03"
        "28b52ffd602e006d00002002610362020044406190022c"
    )

    table = pack.decode_table(block, bytes(16), 16)

    assert table is not None
    opened = pack.OpenBlock(table, block)
    assert [opened.find(entry) for entry in table.entries] == [b"a" * 100, b"b" * 200]
    assert table.compression == 1


def test_a_snapshot_id_covers_its_payload():
    payload = snapshot.encode_snapshot(RECORD)

    assert snapshot.snapshot_id(payload) == object_id(ObjectKind.SNAPSHOT, payload).hex()
    assert (
        snapshot.state_hash(RECORD)
        == object_id(ObjectKind.STATE, packed((RECORD.root, RECORD.links))).hex()
    )


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (ObjectKind.CHUNK, "997ff08780d10def31f3de16d0462fdf5badfff8de3cead62973c77b6a1f1a01"),
        (ObjectKind.TREE, "6f3896513bd4b9ac3e5015ffadcbe6b59f6ab2af31a79eafcaad0a2fd44ab184"),
        (ObjectKind.CHUNK_LIST, "fefa9361932d0ddd6c8aacef58d6e7d827681b674519a01f887902ed07b253e0"),
        (ObjectKind.SNAPSHOT, "550909e94a578c92adfccc82d1f71dfeafcab651a701421fafaf72038bed5885"),
        (ObjectKind.STATE, "f95fa66edee2a4ae65e56d4dd268e80741875c7fac01b91ccb75e9ea8bc8b999"),
    ],
)
def test_identities_are_what_they_were(kind, expected):
    assert expected == object_id(kind, b"treesnap").hex()


def test_the_header_of_a_pack_is_what_it_was():
    assert bytes.fromhex("5452454553 4e4150 01 01 00 01 00000000") == envelope.header(FileKind.PACK)


RANDOM_CUTS = [
    48494, 91684, 67532, 66248, 20442, 91500, 72443, 68219, 85423, 98062, 72050, 23518,
    68942, 81439, 70434, 67518, 22479, 113158, 113213, 81646, 65629, 47744, 70549, 69998,
    46425, 58555, 66180, 75170, 20617, 67726, 86986, 80391, 75206, 78373, 73249, 85122,
    65907, 67209, 91339, 32287, 65833, 66742, 21380, 75445, 70603, 66627, 126420, 100260,
    49701, 68624, 37573, 91762, 86454, 122929, 110022, 71879, 93389, 66376, 53179,
]  # fmt: skip
TEXT_CUTS = [
    70291, 170488, 94799, 102292, 92676, 72430, 184003, 71098, 26998, 168464, 82749,
    88894, 86819, 47038, 67392, 116907, 34596, 76823, 95258, 114653, 84222,
]  # fmt: skip
RANDOM = expanded(b"treesnap golden vector", 4 << 20)
TEXT = b"".join(b"line %d of a text that is the same everywhere\n" % n for n in range(40_000))


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        pytest.param(RANDOM, RANDOM_CUTS, id="random"),
        pytest.param(TEXT, TEXT_CUTS, id="text"),
        pytest.param(bytes(1 << 20), [262_144] * 4, id="zeros"),
        pytest.param(b"\xff" * 300_000, [262_144, 37_856], id="ones"),
        pytest.param(b"", [], id="empty"),
        pytest.param(b"a", [1], id="one byte"),
        pytest.param(RANDOM[:16_384], [16_384], id="the minimum"),
        pytest.param(RANDOM[:48_494], [48_494], id="the first chunk"),
        pytest.param(RANDOM[:48_496], [48_494, 2], id="two bytes more"),
    ],
)
def test_cut_points_are_what_they_were(data, expected):
    assert expected == list(chunking.cut(memoryview(data), is_last=True))


def test_cut_points_are_those_of_the_format_page():
    data = RANDOM[: 1 << 18]

    assert cuts_of_the_format_page(data) == list(chunking.cut(memoryview(data), is_last=True))


def cuts_of_the_format_page(data: bytes) -> list[int]:
    """Cuts as docs/reference/format.md says, byte by byte."""
    from hashlib import md5

    gear = [int.from_bytes(md5(bytes([b]) * 64).digest()[:8], "big") for b in range(256)]
    limit = (1 << 64) - 1
    sizes: list[Any] = []
    while data:
        end = min(len(data), 262_144) // 2 * 2
        center = min(len(data), 65_536) // 2 * 2
        size = min(len(data), 262_144)
        mixed = 0
        for position in range(16_384, end, 2) if len(data) > 16_384 else ():
            mask = 0x0000D90707537000 if position < center else 0x0000D90313530000
            mixed = ((mixed << 2) + (gear[data[position]] << 1)) & limit
            if not mixed & mask << 1:
                size = position
                break
            mixed = (mixed + gear[data[position + 1]]) & limit
            if not mixed & mask:
                size = position + 1
                break
        sizes.append(size)
        data = data[size:]
    return sizes
