"""Files that no machine of ours would write: by a server, or by a writer that has a key."""

from __future__ import annotations

import os
from random import Random
from unittest.mock import patch

import pytest

from blob_doubles import MemoryBlobs, WrappedBlobs
from machine_doubles import MemoryMachine, next_commit, put_commit
from remote_world import Objects, new_snapshot
from treesnap.core.codec.index import IndexPart, encode_index
from treesnap.core.codec.pack import Block, IndexEntry
from treesnap.core.codec.snapshot import snapshot_id
from treesnap.core.model.entries import ObjectId, ObjectKind
from treesnap.core.model.errors import Corrupt, GenerationMissing
from treesnap.remote import protocol as protocol_module
from treesnap.remote import push as push_module
from treesnap.remote.blobs.base import BlobMissing
from treesnap.remote.collector import PARTIAL_EPOCHS, Collector
from treesnap.remote.copies import Doubled
from treesnap.remote.files import SealedFiles
from treesnap.remote.histories import without_deleted
from treesnap.remote.keys import GenerationKeys, MasterKeys
from treesnap.remote.objects import RemoteObjects, Seen, needed_objects
from treesnap.remote.protocol import Push, Remote
from treesnap.remote.push import encoded_anew, push_snapshots
from treesnap.remote.records import (
    COMMIT,
    DELETION,
    HEAD,
    Deletion,
    Folder,
    Head,
    HistoryName,
    Marks,
    RemoteCommit,
    RemoteName,
    RemoteState,
    state_name,
)
from treesnap.remote.sealing import Encrypted
from treesnap.remote.verify import Verification

OTHER = HistoryName(b"o" * 16, "shed@tower")
KEYS = MasterKeys.new()
MACHINE = MemoryMachine()
SEALER = Encrypted(KEYS, b"r" * 16)
HISTORY = HistoryName.new(SEALER.signer(MACHINE.seed()).id, "garden@laptop")


def opened(blobs) -> Remote:
    return Remote(
        SealedFiles(Doubled(blobs), SEALER, machine=MACHINE), lambda count_read: count_read < 3
    )


@pytest.fixture
def blobs() -> MemoryBlobs:
    content = MemoryBlobs()
    assert opened(content).create_state(0, RemoteState())
    return content


@pytest.fixture
def objects() -> Objects:
    return Objects()


# ---------------------------------------------------------------- a server that goes on for ever


class Hiding(WrappedBlobs):
    """Lists a file, and says that there is none when it is asked for."""

    def __init__(self, inner, hidden: str) -> None:
        super().__init__(inner)
        self.hidden = hidden
        self.requests = 0

    def around(self, method, proceed, arguments):
        self.requests += 1
        assert self.requests < 1000, "it asks for ever"
        if method == "get" and arguments[0].startswith(self.hidden):
            raise BlobMissing(arguments[0])
        return proceed()


@pytest.mark.parametrize("hidden", ["state/", "commits/", "catalog/", "index/", "deletions/"])
def test_a_file_that_is_listed_and_not_there_is_damage(blobs, objects, hidden):
    snapshot = new_snapshot(objects, Random(1), 1)
    push_snapshots(opened(blobs), HISTORY, objects, [snapshot])
    opened(blobs).read()
    assert Collector(opened(blobs)).fold()
    push_snapshots(opened(blobs), HISTORY, objects, [new_snapshot(objects, Random(2), 2)])
    (entry, *_) = opened(blobs).read().visible.values()
    deletion = Deletion(entry.name, (bytes.fromhex(snapshot_id(snapshot)),))
    opened(blobs).files.put(Folder.DELETIONS, 1, DELETION.seal(deletion))
    remote = opened(Hiding(blobs, hidden))

    def read_all() -> None:
        remote.read()
        remote.read_deletions()

    with pytest.raises(Corrupt, match=hidden):
        read_all()


class Moving(WrappedBlobs):
    """Has collections go on while a machine reads: what it was told is gone when it asks."""

    def __init__(self, inner, times: int) -> None:
        super().__init__(inner)
        self.left = times

    def around(self, method, proceed, arguments):
        if method == "get" and arguments[0].startswith("state/") and self.left:
            self.left -= 1
            assert Collector(opened(self.inner)).collect() is not None
        return proceed()


def test_a_reader_goes_on_while_states_go_on(blobs, objects):
    snapshot = new_snapshot(objects, Random(1), 1)
    push_snapshots(opened(blobs), HISTORY, objects, [snapshot])

    view = opened(Moving(blobs, 40)).read()

    assert [entry.snapshots for entry in view.visible.values()] == [(snapshot,)]


# ---------------------------------------------------------------- a writer that has a key


def put_packs(blobs, packs, rows: bytes, commit: RemoteName) -> RemoteName:
    record = RemoteCommit(OTHER, (), tuple(packs), bytes(rows))
    return put_commit(opened(blobs), record, commit.number, commit.sequence)


def pack_of(blobs) -> RemoteName:
    (name,) = opened(blobs).names(Folder.PACKS)
    return name


def own_pack(commit: RemoteName) -> RemoteName:
    """Returns the name of a pack of a commit, which need not be there."""
    return commit._replace(folder=Folder.PACKS, id=b"p" * 16)


def require_collected(blobs, *snapshots: bytes) -> None:
    """Collects twice; then snapshots are whole, and no others are there."""
    for _ in range(2):
        assert Collector(opened(blobs)).collect() is not None
    visible = opened(blobs).read(skips_damaged=True).visible.values()
    assert {item for entry in visible for item in entry.snapshots} == set(snapshots)
    for snapshot in snapshots:
        read_all(blobs, snapshot)


@pytest.mark.parametrize("moves", [False, True])
def test_a_commit_says_nothing_of_the_pack_of_another_one(blobs, objects, moves):
    """Nor where it names that under another epoch: the index would name that."""
    snapshot = new_snapshot(objects, Random(1), 1)
    push_snapshots(opened(blobs), HISTORY, objects, [snapshot])
    victim = pack_of(blobs)
    commit = next_commit(opened(blobs), 7 if moves else 1)
    if moves:
        victim = victim._replace(number=7)
    liar = put_packs(blobs, [victim], encode_index([], {victim.key: 100}), commit)

    assert list(opened(blobs).read(skips_damaged=True).damaged) == [liar]
    require_collected(blobs, snapshot)


def test_a_commit_takes_no_place_of_another_one(blobs, objects):
    """One with the id of another would stand for it, and what that holds would be collected."""
    snapshot = new_snapshot(objects, Random(1), 1)
    push_snapshots(opened(blobs), HISTORY, objects, [snapshot])
    (victim,) = opened(blobs).names(Folder.COMMITS)
    commit = COMMIT.seal(RemoteCommit(OTHER, (), (), bytes(encode_index([], {}))))
    forged = victim._replace(number=7)
    blobs.content[str(forged)] = sealed_as(forged, commit)

    require_collected(blobs, snapshot)


@pytest.mark.parametrize("is_read_from_packs", [False, True])
def test_a_machine_pushes_nothing_into_the_history_of_another_one(
    blobs, objects, is_read_from_packs
):
    """Nor where its commit cannot be read, and its packs say what it was."""
    own, foreign = (new_snapshot(objects, Random(n), n) for n in (1, 2))
    push_snapshots(opened(blobs), HISTORY, objects, [own])
    push_snapshots(opened(blobs), HistoryName.new(b"stranger", "shed"), objects, [foreign])
    *_, liar = opened(blobs).names(Folder.COMMITS)
    if is_read_from_packs:
        blobs.content[str(liar)] = flipped(blobs.content[str(liar)])

    view = opened(blobs).read(skips_damaged=True)

    assert [entry.snapshots for entry in view.visible.values()] == [(own,), ()]
    assert list({**view.damaged, **view.recovered}) == [liar]
    require_collected(blobs, own)


def sealed_as(name: RemoteName, content: bytes) -> bytes:
    """Encrypts a file under a name that its writer chose, as no writer of ours does."""
    with patch.object(GenerationKeys, "token", return_value=name.id):
        statement = HEAD.payload(Head(0, bytes(16)))
        return SEALER.seal(name.prefix, content, SEALER.signer(MACHINE.seed()), statement).data


def flipped(data: bytes) -> bytes:
    return data[:-1] + bytes([data[-1] ^ 1])


@pytest.mark.parametrize("change", [flipped, lambda _data: b"", lambda data: data + b"x"])
def test_a_damaged_commit_is_read_from_its_packs(blobs, objects, change):
    good, bad = (new_snapshot(objects, Random(n), n) for n in (1, 2))
    push_snapshots(opened(blobs), HISTORY, objects, [bad])
    (damaged,) = opened(blobs).names(Folder.COMMITS)
    whole, packs = opened(blobs).read().commits[damaged]
    blobs.content[str(damaged)] = change(blobs.content[str(damaged)])

    push_snapshots(opened(blobs), HISTORY, objects, [good])

    view = opened(blobs).read(skips_damaged=True)
    found, found_packs = view.commits[damaged]
    assert found._replace(rows=whole.rows) == whole
    assert list(found_packs.entries()) == list(packs.entries())
    assert (list(view.damaged), list(view.recovered)) == ([], [damaged])
    result = Verification(opened(blobs), view, lambda _objects, _bytes: None).run(read_data=True)
    assert [(problem.code, problem.where) for problem in result.problems] == [
        ("bad-commit", str(damaged))
    ]
    require_collected(blobs, good, bad)
    assert opened(blobs).read().commits == {}


def test_a_partial_commit_that_is_damaged_keeps_its_packs(blobs, objects):
    snapshot = new_snapshot(objects, Random(1), 1)
    push = Push(opened(blobs), HISTORY)
    push.begin()
    push.add_pack(encoded_anew(objects, needed_objects(objects, [snapshot], Seen())))
    assert push.commit()
    (damaged,) = opened(blobs).names(Folder.COMMITS)
    whole = opened(blobs).read().visible
    blobs.content[str(damaged)] = flipped(blobs.content[str(damaged)])

    (entry,) = opened(blobs).read(skips_damaged=True).visible.values()
    require_collected(blobs)

    assert [item.kept for item in whole.values()] == [entry.kept]
    assert entry.kept == (pack_of(blobs).key,)


def test_beside_what_no_member_signed_collections_go_on(blobs, objects):
    snapshot = new_snapshot(objects, Random(1), 1)
    push_snapshots(opened(blobs), HISTORY, objects, [snapshot])
    (commit,) = opened(blobs).names(Folder.COMMITS)
    forged = [commit._replace(machine=b"stranger"), commit._replace(id=b"i" * 16)]
    forged += [name._replace(number=number) for name in forged for number in (9, (1 << 64) - 1)]
    for name in forged:
        blobs.content[str(name)] = blobs.content[str(commit)]

    assert set(opened(blobs).read(skips_damaged=True).damaged) == set(forged)
    require_collected(blobs, snapshot)
    assert opened(blobs).names(Folder.COMMITS) == []


def test_what_is_swept_is_no_damaged_deletion(blobs, objects):
    snapshots = [new_snapshot(objects, Random(n), n) for n in (1, 2)]
    for snapshot in snapshots:
        push_snapshots(opened(blobs), HISTORY, objects, [snapshot])
    commits = opened(blobs).read().visible.values()
    (commit,) = (entry.name for entry in commits if entry.snapshots == (snapshots[0],))
    deletion = DELETION.seal(Deletion(commit, (bytes.fromhex(snapshot_id(snapshots[0])),)))
    opened(blobs).files.put(Folder.DELETIONS, 1, deletion)
    assert Collector(opened(blobs)).collect() is not None
    carried_out = opened(blobs).files.put(Folder.DELETIONS, 1, deletion)
    damaged = opened(blobs).files.put(Folder.DELETIONS, 1, deletion)
    blobs.content[str(damaged)] = flipped(blobs.content[str(damaged)])

    Collector(opened(blobs)).sweep()

    assert str(carried_out) not in blobs.content
    assert str(damaged) in blobs.content
    assert list(opened(blobs).read_deletions(skips_damaged=True).damaged) == [damaged]


def test_a_commit_that_needs_newer_keys_is_not_called_damaged(blobs, objects):
    push_snapshots(opened(blobs), HISTORY, objects, [new_snapshot(objects, Random(1), 1)])
    newer = Encrypted(KEYS.rotated(), b"r" * 16)
    opened(blobs).files.members.rotate(newer)
    rotated = Remote(
        SealedFiles(Doubled(blobs), newer, machine=MACHINE), lambda count_read: count_read < 3
    )
    push_snapshots(rotated, HISTORY, objects, [new_snapshot(objects, Random(2), 2)])

    with pytest.raises(GenerationMissing):
        opened(blobs).read(skips_damaged=True)


def foreign_rows(blobs, objects, change) -> RemoteName:
    """Publishes a commit with rows of its own pack, which is not there; returns its name."""
    push_snapshots(opened(blobs), HISTORY, objects, [new_snapshot(objects, Random(1), 1)])
    ((_, packs),) = opened(blobs).read().commits.values()
    commit = next_commit(opened(blobs), 1)
    own = own_pack(commit)
    some = next(packs.entries())
    rows = change(some._replace(block=some.block._replace(pack_id=own.key)))
    return put_packs(blobs, [own], encode_index(rows, {own.key: 100}), commit)


def descending(entry):
    """Returns the largest id first, and then many that are smaller than any."""
    yield entry._replace(id=b"\xff" * 32)
    for number in range(2000):
        yield entry._replace(id=number.to_bytes(4, "big") + bytes(28))


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(descending, id="in no order"),
        pytest.param(
            lambda entry: [entry._replace(block=entry.block._replace(raw_size=0))], id="empty block"
        ),
        pytest.param(
            lambda entry: [entry._replace(block=entry.block._replace(raw_size=(1 << 32) - 1))],
            id="block too large",
        ),
        pytest.param(
            lambda entry: [entry._replace(block=entry.block._replace(size=(1 << 32) - 1))],
            id="stored block too large",
        ),
        pytest.param(lambda entry: [entry._replace(start=1 << 20)], id="outside of its block"),
        pytest.param(lambda entry: [entry._replace(kind=77)], id="no kind"),
    ],
)
def test_rows_that_no_writer_makes_stop_no_collection(blobs, objects, change):
    """And hide nothing of what they are merged with."""
    foreign_rows(blobs, objects, change)
    (snapshot,) = (
        item
        for entry in opened(blobs).read(skips_damaged=True).visible.values()
        for item in entry.snapshots
    )

    assert Collector(opened(blobs)).fold()

    read_all(blobs, snapshot)
    require_collected(blobs, snapshot)


def test_a_commit_with_rows_in_no_order_is_read_from_its_packs(blobs, objects):
    """As one that is damaged: the packs of an honest machine say where everything is."""
    snapshot = new_snapshot(objects, Random(1), 1)
    with patch.object(protocol_module, "encode_unsorted", in_no_order):
        push_snapshots(opened(blobs), HISTORY, objects, [snapshot])

    view = opened(blobs).read(skips_damaged=True)

    assert [entry.snapshots for entry in view.visible.values()] == [(snapshot,)]
    assert list(view.recovered) == opened(blobs).names(Folder.COMMITS)
    require_collected(blobs, snapshot)
    assert opened(blobs).read().commits == {}


def in_no_order(entries, covered):
    return encode_index(sorted(entries, reverse=True), covered)


@pytest.mark.parametrize("is_last_alone", [True, False])
def test_the_order_of_rows_is_that_of_whole_ids(is_last_alone):
    block = Block(b"p" * 16, 0, 100, 100)
    first = b"i" * 31 if is_last_alone else b""
    ids = [first + bytes([n]) * (32 - len(first)) for n in (1, 2, 2, 3)]
    for listed in (ids, [ids[0], *ids[:0:-1]], ids[::-1]):
        rows = encode_index((IndexEntry(each, block, 0, 1, 1) for each in listed), {b"p" * 16: 9})
        assert IndexPart(rows, "").is_in_order() == (listed == ids)


# ---------------------------------------------------------------- a thief without a key


@pytest.mark.parametrize("number", [1, 2, 3, 5, (1 << 64) - 1])
@pytest.mark.parametrize("junk", [b"", b"junk" * 60, None])
def test_what_no_member_signed_among_the_states_stops_nothing(blobs, objects, number, junk):
    """With a copy or without, and where it is a state that was signed under another number."""
    first, second = (new_snapshot(objects, Random(n), n) for n in (1, 2))
    push_snapshots(opened(blobs), HISTORY, objects, [first])
    planted = blobs.content[state_name(0)] if junk is None else junk
    name = state_name(number)
    blobs.content[name] = blobs.content[name + "-c"] = planted

    push_snapshots(opened(blobs), HISTORY, objects, [second])

    view = opened(blobs).read()
    assert (view.number, list(view.unsigned)) == (0, [name])
    assert view.visible.keys() == opened(blobs).read(skips_damaged=True).visible.keys()
    assert Collector(opened(blobs)).collect() is not None
    is_passed = number < 5
    assert opened(blobs).read_state()[0] == (4 if is_passed else 3)
    assert (name in blobs.content) is not is_passed
    require_collected(blobs, first, second)


def test_a_copy_alone_among_the_states_is_no_state(blobs):
    blobs.content[state_name(7) + "-c"] = b"junk"

    assert opened(blobs).read().number == 0


@pytest.mark.parametrize("is_copy", [True, False])
def test_a_state_that_begins_as_signed_is_not_passed(blobs, is_copy):
    """It is the newest one, and an older one says less than what machines were told."""
    older = dict(blobs.content)
    assert opened(blobs).create_state(1, RemoteState(epoch=2))
    name = state_name(1)
    whole = blobs.content[name]
    blobs.content[name + "-c"] = whole[:-9] + bytes(9) if is_copy else b"junk"
    blobs.content[name] = b"junk" if is_copy else whole[:-9] + bytes(9)
    blobs.content |= older

    for work in (opened(blobs).read_state, Collector(opened(blobs)).collect):
        with pytest.raises(Corrupt, match=name):
            work()


def test_a_machine_that_saw_a_state_takes_no_older_one_beside_junk(blobs, objects):
    """A server, not a thief, puts junk in its place: what was pushed since says so."""
    older = dict(blobs.content)
    assert opened(blobs).create_state(1, RemoteState(epoch=2))
    push_snapshots(opened(blobs), HISTORY, objects, [new_snapshot(objects, Random(1), 1)])
    blobs.content |= older
    for name in (state_name(1), state_name(1) + "-c"):
        blobs.content[name] = b"junk"

    assert "state 0" in opened(blobs).read().contradiction


@pytest.mark.parametrize("is_of_a_stranger", [True, False])
def test_beside_a_damaged_deletion_collections_go_on(blobs, objects, is_of_a_stranger):
    """It deletes nothing, and others are carried out."""
    kept, gone = (new_snapshot(objects, Random(n), n) for n in (1, 2))
    deletions = []
    for snapshot in (kept, gone):
        push_snapshots(opened(blobs), HISTORY, objects, [snapshot])
        *_, entry = opened(blobs).read().visible.values()
        deletion = Deletion(entry.name, (bytes.fromhex(snapshot_id(snapshot)),))
        deletions.append(opened(blobs).files.put(Folder.DELETIONS, 1, DELETION.seal(deletion)))
    damaged = deletions[0]
    data = blobs.content.pop(str(damaged))
    if is_of_a_stranger:
        damaged = damaged._replace(machine=b"stranger")
    blobs.content[str(damaged)] = flipped(data)

    require_collected(blobs, kept)
    assert list(opened(blobs).read_deletions(skips_damaged=True).damaged) == [damaged]


def test_nothing_is_fetched_for_a_block_that_is_larger_than_any(blobs, objects):
    foreign_rows(
        blobs,
        objects,
        lambda entry: [
            entry._replace(id=b"i" * 32, block=entry.block._replace(size=(1 << 32) - 1))
        ],
    )

    assert not list(opened(blobs).read().find(ObjectId(b"i" * 32)))


def test_a_pack_has_a_possible_size(blobs):
    commit = next_commit(opened(blobs), 1)
    pack = own_pack(commit)
    put_packs(blobs, [pack], encode_index([], {pack.key: 1 << 62}), commit)

    with pytest.raises(Corrupt, match="larger"):
        opened(blobs).read()


# ---------------------------------------------------------------- random bytes that repeat


def test_of_two_machines_with_the_same_random_bytes_one_creates_a_state(blobs, monkeypatch):
    """They were restored from one memory image, and so their tokens are the same."""
    monkeypatch.setattr(os, "urandom", bytes)

    assert opened(blobs).create_state(1, RemoteState(epoch=2))
    assert not opened(blobs).create_state(1, RemoteState(epoch=2, removed=(b"c" * 16,)))


# ---------------------------------------------------------------- objects that were never stored


def claim(blobs) -> RemoteName:
    """Publishes a partial commit that lists all contents of others in a pack of nothing."""
    view = opened(blobs).read()
    epoch = view.state.epoch
    sequence = next_commit(opened(blobs), epoch).sequence
    pack = opened(blobs).files.put(Folder.PACKS, epoch, bytes(600), sequence=sequence)
    rows = sorted(
        entry._replace(block=entry.block._replace(pack_id=pack.key))
        for part in view.all_packs
        for entry in part.entries()
        if entry.kind == ObjectKind.CHUNK
    )
    commit = RemoteCommit(OTHER, (), (pack,), bytes(encode_index(rows, {pack.key: 600})))
    return put_commit(opened(blobs), commit, epoch, sequence)


@pytest.fixture
def small_packs(monkeypatch):
    """Each object is a pack of its own."""
    monkeypatch.setattr(push_module, "PACK_SIZE_TARGET", 1)
    monkeypatch.setattr(push_module, "_BATCH_SIZE", 1)


@pytest.mark.usefixtures("small_packs")
@pytest.mark.parametrize("is_folded", [False, True])
def test_what_a_writer_says_to_have_stored_replaces_nothing(blobs, objects, is_folded):
    snapshot = new_snapshot(objects, Random(1), 1)
    push_snapshots(opened(blobs), HISTORY, objects, [snapshot])
    if is_folded:
        assert Collector(opened(blobs)).fold()
    claim(blobs)

    for _ in range(PARTIAL_EPOCHS + 1):
        assert Collector(opened(blobs)).collect() is not None
        read_all(blobs, snapshot)


class Claiming(WrappedBlobs):
    """Has a machine push by what it had read, and then the liar, before an epoch is closed."""

    def __init__(self, inner, objects, snapshot: bytes) -> None:
        super().__init__(inner)
        self._objects = objects
        self._snapshot = snapshot
        self._view = opened(inner).read()

    def around(self, method, proceed, arguments):
        found = proceed()
        if method == "create" and arguments[0] == state_name(1):
            remote = opened(self.inner)
            push_snapshots(remote, HISTORY, self._objects, [self._snapshot], view=self._view)
            claim(self.inner)
        return found


@pytest.mark.usefixtures("small_packs")
def test_what_is_claimed_while_a_collection_goes_on_replaces_nothing(blobs, objects):
    """What a new commit needs of a condemned pack is not given up for a pack that was not read."""
    snapshot = new_snapshot(objects, Random(1), 1)
    push_snapshots(opened(blobs), HISTORY, objects, [snapshot])
    (commit,) = opened(blobs).names(Folder.COMMITS)
    deletion = Deletion(commit, (bytes.fromhex(snapshot_id(snapshot)),))
    opened(blobs).files.put(Folder.DELETIONS, 1, DELETION.seal(deletion))
    machines = Claiming(blobs, objects, snapshot)

    assert Collector(opened(machines)).collect() is not None

    (*_, entry) = (entry for entry in opened(blobs).read().visible.values() if entry.snapshots)
    assert entry.snapshots == (snapshot,)
    read_all(blobs, snapshot)


def read_all(blobs, snapshot: bytes) -> None:
    """Reads all that a snapshot needs, each object verified, wherever it is whole."""
    view = opened(blobs).read(skips_damaged=True)
    reader = RemoteObjects(SealedFiles(Doubled(blobs), SEALER), view)
    known = Seen()
    for reference in needed_objects(reader, [snapshot], known):
        reader.get(reference.kind, reference.id)


@pytest.mark.usefixtures("small_packs")
def test_an_object_is_read_where_it_is_whole(blobs, objects):
    snapshot = new_snapshot(objects, Random(1), 1)
    push_snapshots(opened(blobs), HISTORY, objects, [snapshot])
    claim(blobs)
    assert Collector(opened(blobs)).fold()

    read_all(blobs, snapshot)


@pytest.mark.parametrize("jobs", [1, 3])
def test_a_block_that_lacks_what_the_index_says_is_not_taken(blobs, objects, jobs):
    snapshot = new_snapshot(objects, Random(1), 1)
    push_snapshots(opened(blobs), HISTORY, objects, [snapshot])
    claim(blobs)
    assert Collector(opened(blobs)).fold()
    reader = RemoteObjects(SealedFiles(Doubled(blobs), SEALER), opened(blobs).read())

    found = list(reader.blocks(objects.by_id, jobs))

    assert {each for block in found for each in block.ids} == objects.by_id.keys()
    for block in found:
        assert block.whole is None or set(block.whole.table.ids) == block.ids


# ---------------------------------------------------------------- rebuilds beside other machines


def test_a_rebuild_leaves_garbage_to_the_machine_that_may_be_deleting_it(blobs, objects):
    kept, gone = (new_snapshot(objects, Random(n), n) for n in (1, 2))
    for snapshot in (kept, gone):
        push_snapshots(opened(blobs), HISTORY, objects, [snapshot])
    *_, entry = opened(blobs).read().visible.values()
    deletion = Deletion(entry.name, (bytes.fromhex(snapshot_id(gone)),))
    opened(blobs).files.put(Folder.DELETIONS, 1, DELETION.seal(deletion))
    before = dict(blobs.content)
    assert Collector(opened(blobs)).collect() is not None
    garbage = {name for name in before if name.startswith("packs/")} - blobs.content.keys()
    blobs.content |= {name: before[name] for name in garbage}  # not deleted yet

    assert Collector(opened(blobs)).rebuild(Marks()).found == 0

    assert garbage
    assert garbage.isdisjoint(map(str, opened(blobs).read().sizes))
    for name in garbage:
        del blobs.content[name]
    require_collected(blobs, kept)


def test_a_deletion_counts_for_what_a_rebuild_made_of_the_same_commit(blobs, objects):
    """Its file is on its way, and lands after the rebuild; a machine deletes what it saw of it."""
    snapshot = new_snapshot(objects, Random(1), 1)
    push_snapshots(opened(blobs), HISTORY, objects, [snapshot])
    (commit,) = opened(blobs).names(Folder.COMMITS)
    data = blobs.content.pop(str(commit))
    assert Collector(opened(blobs)).rebuild(Marks()).found == 1
    blobs.content[str(commit)] = data
    entries = [entry.snapshots for entry in opened(blobs).read().visible.values()]
    assert entries == [(snapshot,), (snapshot,)]

    deletion = Deletion(commit, (bytes.fromhex(snapshot_id(snapshot)),))
    opened(blobs).files.put(Folder.DELETIONS, 1, DELETION.seal(deletion))

    deletions = opened(blobs).read_deletions()
    left = without_deleted(opened(blobs).read(), deletions)
    assert [entry.snapshots for entry in left] == [(), ()]
    require_collected(blobs)
    assert opened(blobs).names(Folder.DELETIONS) == []


def test_a_rebuild_brings_nothing_back_that_was_removed(blobs, objects):
    """By a collection that was killed: the deletion may be swept already."""
    snapshot = new_snapshot(objects, Random(1), 1)
    push_snapshots(opened(blobs), HISTORY, objects, [snapshot])
    (commit,) = opened(blobs).names(Folder.COMMITS)
    (pack,) = opened(blobs).names(Folder.PACKS)
    assert opened(blobs).create_state(1, RemoteState(epoch=2, removed=(commit.key,)))

    assert Collector(opened(blobs)).rebuild(Marks()).found == 0

    assert pack in opened(blobs).read().sizes
    require_collected(blobs)
