"""What is written can be read: every record of every kind, at and beyond every bound.

A valid record gets odd values in one or two places, however deep. Then the writer refuses
it with InvalidArgument, or what it would publish reads back as the same record.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

import strategies as ours
from sampling import sized
from treesnap.core.codec import statcache
from treesnap.core.codec.chunklist import fold
from treesnap.core.codec.envelope import Format, seal, unseal
from treesnap.core.codec.journal import JOURNAL
from treesnap.core.codec.message import TIME_MAX_NS, TIME_MIN_NS
from treesnap.core.codec.reader import TreeReader, check_object, read_segments
from treesnap.core.codec.root_files import EXPORT, EXPORT_MOVES, GAPS, HISTORY, NAMES
from treesnap.core.codec.snapshot import SNAPSHOT, state_format
from treesnap.core.codec.tree import decode_tree, put_tree
from treesnap.core.model.entries import ObjectId, ObjectKind, Segment
from treesnap.core.model.errors import InvalidArgument
from treesnap.core.model.ids import object_id
from treesnap.core.model.snapshots import SnapshotId
from treesnap.core.store.collector import COLLECTED_SIZE, COLLECTION, CollectorState
from treesnap.core.store.roots import ROOT, RootRecord

EXAMPLES = sized(8, 1_000)
"""Valid records, for each of the thirteen tests that take them; most of the time makes these."""
SPOILT = sized(3, 20)
"""How many others each of them becomes, with an odd value or two."""
MANY = settings(
    max_examples=EXAMPLES,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    phases=(Phase.explicit, Phase.reuse, Phase.generate),  # shrinking takes minutes
    print_blob=True,
)

_BOUNDS = [0, 16, 255, 256, 0o7777, 1 << 16, 1 << 20, 1 << 31, 1 << 32, 10**18, 1 << 62, 1 << 63]
_BOUNDS += [1 << 64, TIME_MAX_NS, TIME_MIN_NS, 1 << 95, 1 << 96, 1 << 128]
NUMBERS = [sign * bound + off for bound in _BOUNDS for sign in (1, -1) for off in (-1, 0, 1)]
SIZES = [0, 1, 11, 12, 13, 16, 31, 32, 33, 64, 255, 256, 4095, 4096, 65_536, 65_537]
ODD: list[list[Any]] = [
    NUMBERS,
    [Random(number).randint(TIME_MIN_NS - 10, TIME_MAX_NS + 10) for number in range(500)],
    [None, True, False, 1.5, float("nan"), object(), b"", "", (), [], {}],
    ["\udcff", "\ud800", "\0", ".", "..", "a/b", "0" * 64, "g" * 64],
    [b".", b"..", b"a/b", b"/", b"\0", b"\xff", bytearray(b"x")],
    [(b"x",), (1, b"x", 1)],
    [{"a": None}, {"a": True}, {1: "x"}, {"a": 1.5}, {b"a": "x"}, {"a": 1 << 64}],
    [b"x" * size for size in SIZES],
    ["x" * size for size in SIZES],
    [(), (b"",), (b"xyz",), (b"a", b""), (b"b", b"a"), (b"\0", b"\xff\xfe", b"c")],
]
SEEDS = st.integers(0, (1 << 32) - 1)


def spoiled(random: Random, value: Any) -> Any:
    """Returns a record with an odd value in one of the places that it has."""
    if is_dataclass(value) and not isinstance(value, type):
        name = random.choice([field.name for field in fields(value)])
        return replace(value, **{name: spoiled(random, getattr(value, name))})
    is_entered = random.randrange(3) > 0
    if isinstance(value, tuple) and value and is_entered:
        position = random.randrange(len(value))
        items = list(value)
        items[position] = spoiled(random, items[position])
        return type(value)(*items) if hasattr(value, "_fields") else tuple(items)
    if isinstance(value, Mapping) and value and is_entered:
        key = random.choice(sorted(value))
        return {**value, key: spoiled(random, value[key])}
    return random.choice(random.choice(ODD))


def variants(value: Any, seed: int) -> Iterator[Any]:
    """Yields a record, and what it becomes with an odd value, or two."""
    yield value
    random = Random(seed)
    for _ in range(SPOILT):
        once = spoiled(random, value)
        yield spoiled(random, once) if random.randrange(2) else once


def variants_of_items(values: Sequence[Any], seed: int) -> Iterator[tuple[Any, ...]]:
    """Yields a tuple of records, and what it becomes when one or two are odd."""
    yield tuple(values)
    random = Random(seed)
    for _ in range(SPOILT if values else 0):
        items = list(values)
        for _ in range(random.randrange(1, 3)):
            position = random.randrange(len(items))
            items[position] = spoiled(random, items[position])
        yield tuple(items)


IDENTITY = SnapshotId("ab" * 32)
PACK_IDS = st.frozensets(st.binary(min_size=16, max_size=16), max_size=3)
COLLECTOR_STATES = st.builds(
    CollectorState, epoch=st.integers(0, (1 << 63) - 1), condemned=PACK_IDS
)
FORMATS: dict[str, tuple[Format[Any], st.SearchStrategy[Any]]] = {
    "snapshot": (SNAPSHOT, ours.snapshot_records()),
    "snapshot state": (state_format(IDENTITY), ours.snapshot_states()),
    "history": (HISTORY, ours.histories()),
    "journal": (JOURNAL, ours.journals()),
    "name table": (NAMES, ours.name_tables()),
    "gaps": (GAPS, ours.gap_lists()),
    "export record": (EXPORT, ours.export_records()),
    "list of moves": (EXPORT_MOVES, ours.export_moves()),
    "root": (
        ROOT,
        st.builds(
            RootRecord,
            id=st.binary(min_size=16, max_size=16).map(bytes.hex),
            path=ours.paths().map(lambda path: b"/" + path),
            device=st.none() | st.integers(0, (1 << 64) - 1),
            inode=st.none() | st.integers(0, (1 << 64) - 1),
            birth_ns=st.none() | st.integers(TIME_MIN_NS, TIME_MAX_NS),
            earlier=st.lists(ours.paths().map(lambda path: b"/" + path), max_size=3).map(tuple),
        ),
    ),
    "collector state": (COLLECTION, COLLECTOR_STATES),
    "collected size": (COLLECTED_SIZE, st.integers(0, (1 << 63) - 1)),
}


@pytest.mark.sampled(5)
@pytest.mark.parametrize("kind", FORMATS)
@MANY
@given(data=st.data(), seed=SEEDS)
def test_a_file_that_is_written_reads_back_equal(kind, data, seed):
    form, valid = FORMATS[kind]
    for record in variants(data.draw(valid), seed):
        try:
            written = form.seal(record)
        except InvalidArgument:
            continue

        payload = unseal(written, form.kind, "here")

        found = form.decode(payload)
        assert found == record
        assert form.encode(found) == payload


@pytest.mark.parametrize("kind", FORMATS)
@settings(max_examples=sized(15, 100), deadline=None)
@given(data=st.data())
def test_a_valid_record_is_written(kind, data):
    form, valid = FORMATS[kind]
    record = data.draw(valid)

    assert form.decode(unseal(form.seal(record), form.kind, "here")) == record


class Objects:
    """Objects in memory, that pass what every sink asks."""

    def __init__(self) -> None:
        self.found: dict[ObjectId, bytes] = {}

    def put(self, kind: ObjectKind, data: bytes) -> ObjectId:
        check_object(kind, data)
        identity = object_id(kind, data)
        self.found[identity] = data
        return identity

    def get(self, kind: ObjectKind, identity: ObjectId) -> bytes:
        return self.found[identity]


@MANY
@given(entries=ours.directories(), totals=ours.totals(), seed=SEEDS)
def test_a_tree_that_is_stored_reads_back_equal(entries, totals, seed):
    for each in variants_of_items(entries, seed):
        check_tree(each, totals)
    for each in variants(totals, seed):
        check_tree(tuple(entries), each)


def check_tree(entries: tuple[Any, ...], totals: Any) -> None:
    """Checks that a tree is refused before anything is stored, or reads back equal."""
    objects = Objects()
    try:
        tree_id = put_tree(entries, totals, objects.put)
    except InvalidArgument:
        assert not objects.found
        return

    found = decode_tree(objects.found[tree_id])
    assert found.entries == entries
    assert found.totals == totals
    again = Objects()
    assert put_tree(found.entries, found.totals, again.put) == tree_id


@MANY
@given(
    segments=st.lists(st.builds(Segment, ours.object_ids(), st.sampled_from(NUMBERS)), max_size=3),
    seed=SEEDS,
)
def test_a_content_that_is_stored_reads_back_equal(segments, seed):
    for each in variants_of_items(segments, seed):
        objects = Objects()
        try:
            content = fold(each * 100, objects.put)
        except InvalidArgument:
            continue
        if objects.found:
            assert list(read_segments(content, objects.get)) == list(each * 100)


@pytest.mark.sampled(8)
@pytest.mark.parametrize(
    "value",
    [None, 1.5, 5, "x", b"x", object(), -1, 1 << 70],
    ids=lambda value: type(value).__name__,
)
@pytest.mark.parametrize("field", ["name", "mtime_ns", "content", "xattrs"])
def test_an_entry_that_no_page_can_hold_is_refused(field, value):
    """More entries than one tree object holds take another way to their pages."""
    valid = [
        ours.Entry(b"%05d" % number, 4, 0o600, 0, 0, 1, 0, None, None) for number in range(5000)
    ]
    assert put_tree(valid, ours.Totals(), Objects().put)
    spoilt = valid[2500]._replace(**{field: value})
    objects = Objects()

    try:
        tree_id = put_tree([*valid[:2500], spoilt, *valid[2501:]], ours.Totals(), objects.put)
    except InvalidArgument:
        return

    assert list(TreeReader(objects.get).entries(tree_id))[2500] == spoilt


@MANY
@given(ours.observations())
def test_what_was_observed_reads_back_equal(observations):
    found = statcache.decode_observations(statcache.encode_observations(observations))

    assert list(found.values()) == observations


TIMES = [TIME_MIN_NS, -(1 << 63) - 1, -(1 << 63), -1, 0, (1 << 63) - 1, 1 << 63, (1 << 64) - 1,
         1 << 64, 10_413_792_000_000_000_000, TIME_MAX_NS]  # fmt: skip


@pytest.mark.parametrize("mtime_ns", TIMES)
def test_every_time_of_the_kernel_has_one_encoding(mtime_ns):
    fifo = (b"name", 4, 0o600, 0, 0, mtime_ns, 0, None, None)
    objects = Objects()
    tree_id = put_tree([ours.Entry(*fifo)], ours.Totals(), objects.put)

    (entry,) = TreeReader(objects.get).entries(tree_id)

    assert entry.mtime_ns == mtime_ns
    assert put_tree([entry], ours.Totals(), objects.put) == tree_id


def test_a_wide_number_that_is_not_a_time_is_refused():
    """As bytes, which it would be stored as, it would read back as the value of an attribute."""
    spoilt = ours.Entry(b"name", 4, 0o600, 0, 0, 1 << 64, 0, None, ((b"user.note", 1 << 80),))

    with pytest.raises(InvalidArgument, match="out of range"):
        put_tree([spoilt], ours.Totals(), Objects().put)


def test_a_file_that_is_too_large_for_its_reader_is_not_written():
    small = Format(SNAPSHOT.kind, SNAPSHOT.encode, SNAPSHOT.decode, 100)

    with pytest.raises(InvalidArgument, match="too large"):
        small.seal(ours.SnapshotRecord(**_minimal()))


def _minimal() -> dict[str, Any]:
    root = ours.Entry(b"", 2, 0o755, 0, 0, 0, 0, bytes(32), None)
    return {
        "root": root,
        "links": None,
        "root_path": b"/somewhere",
        "created_at_ns": 1,
        "totals": ours.Totals(),
    }


def test_a_record_that_reads_back_as_another_is_not_written():
    def forget(payload: bytes) -> Any:
        return SNAPSHOT.decode(payload)._replace(label=None)

    lossy = Format(SNAPSHOT.kind, SNAPSHOT.encode, forget)

    with pytest.raises(InvalidArgument, match="another"):
        lossy.seal(ours.SnapshotRecord(**_minimal(), label="kept"))


def test_a_payload_is_framed_only_when_it_can_be_read():
    payload = SNAPSHOT.payload(ours.SnapshotRecord(**_minimal()))

    assert SNAPSHOT.frame(payload) == seal(SNAPSHOT.kind, payload)
