"""Which packs a collection lets go of, and what of them it copies, against dictionaries."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest

from sampling import sized
from treesnap.core.codec.index import encode_unsorted
from treesnap.core.codec.pack import Block, IndexEntry
from treesnap.core.model.entries import ObjectId, ObjectKind
from treesnap.remote import collector
from treesnap.remote.collector import NeededObjects, _usage
from treesnap.remote.protocol import IndexedPacks, View
from treesnap.remote.records import CommitEntry, Folder, HistoryName, RemoteName, RemoteState

IDS = [ObjectId(bytes([number]) * 32) for number in range(24)]
KINDS = [ObjectKind.CHUNK, ObjectKind.CHUNK, ObjectKind.TREE, ObjectKind.SNAPSHOT]


def part_of(names: list[RemoteName], random: Random) -> IndexedPacks:
    """Returns a part that lists some objects in each pack."""
    entries: list[IndexEntry] = []
    covered: dict[bytes, int] = {}
    for name in names:
        ids = random.sample(IDS, random.randrange(1, 9))
        covered[name.key] = random.choice([1000, 5 << 20])
        block = Block(name.key, 16, 400, 10 * len(ids))
        entries += (
            IndexEntry(each, block, 10 * number, 9, random.choice(KINDS))
            for number, each in enumerate(ids)
        )
    return IndexedPacks(names, bytes(encode_unsorted(entries, covered)), "a part")


def keepers(
    view: View, needed: set[ObjectId], kept: frozenset[bytes], gone: frozenset[RemoteName]
) -> tuple[dict[ObjectId, RemoteName], Counter[RemoteName], Counter[RemoteName]]:
    """Returns in which pack each needed object stays, and the bytes of packs, all and used."""
    rows = [
        (name in gone, kept.isdisjoint(part.packs), number, name, entry)
        for number, part in enumerate(view.all_packs)
        for entry in part.entries()
        for name in [part.packs[entry.pack_id]]
        if name not in gone or entry.kind != ObjectKind.SNAPSHOT
    ]
    rows.sort(key=lambda row: row[:3])
    stays: dict[ObjectId, RemoteName] = {}
    total, used = Counter[RemoteName](), Counter[RemoteName]()
    for *_, name, entry in rows:
        total[name] += entry.size_bytes
        if entry.id in needed and stays.setdefault(entry.id, name) == name:
            used[name] += entry.size_bytes
    return stays, total, used


@pytest.mark.parametrize("seed", range(sized(60, 3_000)))
def test_what_goes_and_what_is_copied(seed, monkeypatch):
    random = Random(seed)
    monkeypatch.setattr(collector, "SMALL_PACKS_MIN", random.choice([3, 16]))
    names = [
        RemoteName(Folder.PACKS, random.randrange(5), random.randbytes(16), b"machine.", number)
        for number in range(1, random.randrange(2, 10))
    ]
    index, left = [], names
    while left:
        cut = random.randrange(1, len(left) + 1)
        index.append(part_of(left[:cut], random))
        left = left[cut:]
    view = View(1, RemoteState(), {}, tuple(index), {}, {})
    wanted = [each for each in IDS if random.random() < 0.5]
    gone = frozenset(name for name in names if random.random() < 0.2)
    kept = frozenset(name.key for name in names if random.random() < 0.2)
    entry = CommitEntry(names[0], HistoryName(bytes(16), ""), (), tuple(kept))
    stays, total, used = keepers(view, set(wanted), kept, gone)
    small = [name for name, size in view.sizes.items() if size < collector.SMALL_PACK_SIZE]
    joined = small if len(small) >= collector.SMALL_PACKS_MIN else []
    needed = NeededObjects(view)
    assert [needed.add(each) for each in (*wanted, *wanted)] == [True] * len(wanted) + [
        False
    ] * len(wanted)
    assert [each for each in IDS if each in needed] == wanted

    usage = _usage(view, needed, [entry], gone)

    assert usage.condemned == {
        name
        for name in names
        if (name.key not in kept or name in gone)
        and (2 * used[name] <= total[name] or name in joined)
    }
    rows = [row for part in view.all_packs for row in part.entries()]
    by_key = {name.key: name for name in names}
    of_condemned = [row for row in rows if by_key[row.pack_id] in usage.condemned]
    assert sorted(usage.copied) == sorted(
        row for row in of_condemned if stays.get(row.id) == by_key[row.pack_id]
    )
    assert usage.elsewhere == {
        row.id: stays[row.id]
        for row in of_condemned
        if row.id in stays and stays[row.id] not in usage.condemned
    }
    monkeypatch.setattr(collector, "CONDEMNED_MAX", 2)
    few = _usage(view, needed, [entry], gone).condemned
    assert few == usage.condemned or (len(few) == 2 and few < usage.condemned)
