"""What people do with remotes: add, push, clone, collect; and what may go wrong meanwhile."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from itertools import count
from pathlib import Path
from threading import Barrier

import pytest

import treesnap
from blob_doubles import (
    BlobFault,
    BlobFaultKind,
    FaultyBlobs,
    LateListBlobs,
    MemoryBlobs,
    RacingBlobs,
    WrappedBlobs,
    packs_of,
)
from oracle import difference, record, without
from sampling import sized
from treesnap.core.codec.pack import scan_blocks
from treesnap.core.model.entries import ObjectKind
from treesnap.core.model.errors import (
    Busy,
    Corrupt,
    ErrorCode,
    InvalidArgument,
    KeysRotated,
    NotFound,
    Refused,
    RemoteFailed,
    RemoteLocked,
    StorageFull,
    WarningCode,
)
from treesnap.core.model.events import NullMonitor, Phase
from treesnap.core.model.ids import object_id
from treesnap.core.model.snapshots import SnapshotKind
from treesnap.core.ops.maintenance.roots import list_roots
from treesnap.core.store.maintenance.retention import Policy
from treesnap.remote import Remotes
from treesnap.remote import remotes as remotes_module
from treesnap.remote.blobs.base import Blobs
from treesnap.remote.blobs.directory import DirectoryBlobs
from treesnap.remote.collector import PARTIAL_EPOCHS
from treesnap.remote.connection import open_blobs
from treesnap.remote.copies import Doubled
from treesnap.remote.format import decode_format, encode_format
from treesnap.remote.keys import MasterKeys, Secret, new_slot
from treesnap.remote.records import REMOTE_STATE, MemberRole, RoleLimit, state_name
from treesnap.remote.sealing import generation_of
from treesnap.testing.doubles import Fault, FaultyFileSystem, Killed, Kind, kill_at

pytestmark = pytest.mark.sampled(10)

RAW_KEY = "5a" * 32
SECRET_TEXT = b"the roses are in bloom"


def secret_of(_known):
    return lambda: Secret.raw_key(RAW_KEY)


class Place:
    """Blobs in memory at any address, with faults for the next connections."""

    def __init__(self) -> None:
        self.content: dict[str, bytes] = {}
        self.faults: tuple[BlobFault, ...] = ()
        self.requests = 0

    def __call__(self, url: str, *, make: bool = False) -> Blobs:
        return _Counted(FaultyBlobs(MemoryBlobs(self.content), *self.faults), self)


class _Counted(WrappedBlobs):
    def __init__(self, inner: Blobs, place: Place) -> None:
        super().__init__(inner)
        self._place = place

    def around(self, method, proceed, arguments):
        self._place.requests += 1
        return proceed()


@pytest.fixture
def place() -> Place:
    return Place()


@pytest.fixture
def garden(tmp_path: Path) -> Path:
    """A directory with something of everything."""
    root = tmp_path / "garden"
    (root / "beds" / "empty").mkdir(parents=True)
    (root / "plants").write_bytes(SECRET_TEXT * 5)
    (root / "large").write_bytes(os.urandom(700_000))
    (root / "beds" / os.fsdecode(b"n\xffame\n")).write_text("odd")
    (root / "tool").write_text("#!/bin/sh\n")
    (root / "tool").chmod(0o4755)
    (root / "link").symlink_to("nowhere")
    os.link(root / "plants", root / "beds" / "same")
    with (root / "hole").open("wb") as file:
        file.truncate(1 << 20)
    os.utime(root / "plants", ns=(1, 1_000_000_007))
    return root


@pytest.fixture
def handle(garden: Path, tmp_path: Path) -> treesnap.Handle:
    return treesnap.open(garden, tmp_path / "store")


def opened(handle: treesnap.Handle, place: Callable[..., Blobs]) -> Remotes:
    return Remotes(handle, secret_of, place)


def cloned(
    directory: Path, store: Path, place: Callable[..., Blobs], *words: str, url: str = "s3://b"
):
    given = treesnap.open(directory, store)
    return opened(given, place).clone(url, *words, encrypted=False)


def ids(directory: Path, store: Path) -> list[str]:
    """Returns the snapshots of a directory that no restore made, newest first."""
    found = treesnap.open(directory, store).list()
    return [item.id for item in found if item.kind != SnapshotKind.SAFETY]


@pytest.mark.parametrize("encrypted", [False, True])
def test_another_machine_gets_the_same_files_and_history(handle, garden, tmp_path, encrypted):
    handle.create(label="spring")
    (garden / "plants").write_text("tulips")
    (garden / "beds" / "empty" / "new").write_text("new")
    handle.create(label="summer")
    disk = str(tmp_path / "disk")
    remotes = Remotes(handle, secret_of)
    remotes.add("disk", disk, encrypted=encrypted)
    pushed = remotes.push()

    found = cloned(tmp_path / "again", tmp_path / "other", open_blobs, url=disk)

    assert difference(record(garden), record(tmp_path / "again")) == []
    assert ids(tmp_path / "again", tmp_path / "other") == ids(garden, tmp_path / "store")
    assert pushed.snapshots == tuple(reversed(ids(garden, tmp_path / "store")))
    assert found.snapshot_id == pushed.snapshots[-1]
    treesnap.open(tmp_path / "again", tmp_path / "other").restore(pushed.snapshots[0])
    assert (tmp_path / "again" / "plants").read_bytes() == SECRET_TEXT * 5
    assert (
        treesnap.open(tmp_path / "again", tmp_path / "other").verify(read_data=True).problems == ()
    )


def test_an_encrypted_remote_shows_neither_content_nor_names(handle, garden, tmp_path):
    handle.create()
    remotes = Remotes(handle, secret_of)
    remotes.add("disk", str(tmp_path / "disk"), encrypted=True)
    remotes.push()

    stored = b"".join(p.read_bytes() for p in (tmp_path / "disk").rglob("*") if p.is_file())

    for text in (b"roses", b"plants", b"garden", b"TREESNAP\x01", str(garden).encode()):
        assert text not in stored


def test_only_what_is_new_is_pushed(handle, garden, place):
    remotes = opened(handle, place)
    remotes.add("backup", "s3://b")
    handle.create()
    first = remotes.push()
    (garden / "plants").write_text("tulips")
    handle.create()

    again = remotes.push()

    assert (len(first.snapshots), len(again.snapshots)) == (1, 1)
    assert again.stored.objects <= 4
    assert remotes.push().snapshots == ()
    (history,) = remotes.histories()
    assert (history.snapshots, history.newest_id) == (2, again.snapshots[0])


@pytest.mark.parametrize("encrypted", [False, True])
def test_a_small_push_takes_six_requests_however_many_came_before(handle, garden, place, encrypted):
    opened(handle, place).add("backup", "s3://b", encrypted=encrypted)
    handle.create()
    opened(handle, place).push()
    requests = []
    for number in range(4):
        (garden / "plants").write_text(f"tulips {number}")
        handle.create()
        place.requests = 0
        opened(handle, place).push()
        requests.append(place.requests)

    # format or key slot; commits and states listed; pack, commit; states listed again
    assert requests == [6] * 4


@pytest.mark.parametrize("is_denied", [False, True])
def test_pushes_are_folded_once_there_are_many(handle, garden, place, monkeypatch, is_denied):
    """So a reader does not ask for each. What keeps a machine from it fails no push."""
    monkeypatch.setattr(remotes_module, "FOLD_MIN", 4)
    monkeypatch.setattr(remotes_module, "FOLD_EVERY", 2)
    opened(handle, place).add("backup", "s3://b")
    fault = BlobFault(
        kind=BlobFaultKind.FAIL_BEFORE, methods=frozenset({"create"}), is_lasting=True
    )

    def opener(url, *, make=False):
        blobs = place(url, make=make)
        return FaultyBlobs(blobs, fault) if is_denied else blobs

    left = []
    for number in range(10):
        (garden / "plants").write_text(f"tulips {number}")
        handle.create()
        assert len(Remotes(handle, secret_of, opener).push().snapshots) == 1
        left.append(sum(name.startswith("commits/") for name in place.content))

    assert left == ([*range(1, 11)] if is_denied else [1, 2, 3, 4, 5, 0, 1, 2, 3, 4])
    (history,) = opened(handle, place).histories()
    assert history.snapshots == 10
    assert opened(handle, place).verify(read_data=True).problems == ()


def test_a_push_of_a_machine_that_a_state_limits_folds_nothing(handle, garden, place, monkeypatch):
    """As when a demotion was killed before the list of members said it: the push is done."""
    monkeypatch.setattr(remotes_module, "FOLD_MIN", 1)
    monkeypatch.setattr(remotes_module, "FOLD_EVERY", 1)
    opened(handle, place).add("backup", "s3://b")
    handle.create()
    opened(handle, place).push()
    with opened(handle, place)._connected("backup", "limit a machine") as remote:
        files, protocol = remote.connection.files, remote.connection.protocol
        number, state = protocol.read_state()
        limit = RoleLimit(files.own_id, MemberRole.MEMBER)
        limited = REMOTE_STATE.seal(state._replace(limits=(limit,)))
        assert files.create(state_name(protocol.next_number(number)), limited)
    (garden / "plants").write_text("tulips")
    handle.create()

    assert len(opened(handle, place).push().snapshots) == 1


def cached_files(handle: treesnap.Handle) -> list[Path]:
    return sorted(Path(handle.store_path, "remotes").glob(".cache-*/*"))


def test_what_is_kept_of_a_remote_is_no_more_readable_than_there(handle, garden, place):
    opened(handle, place).add("backup", "s3://b")
    handle.create(label="a secret label")
    opened(handle, place).push()
    opened(handle, place).histories()

    kept = b"".join(path.read_bytes() for path in cached_files(handle))

    assert {path.name.partition("_")[0] for path in cached_files(handle)} == {
        "commits",
        "keys",
        "members",
        "slot",
        "state",
    }
    assert b"a secret label" not in kept
    opened(handle, place).remove("backup")
    assert cached_files(handle) == []


def test_what_is_kept_of_a_remote_may_be_damaged_or_gone(handle, garden, place):
    opened(handle, place).add("backup", "s3://b")
    handle.create()
    opened(handle, place).push()
    expected = opened(handle, place).histories()
    for harm in (
        lambda path: path.write_bytes(path.read_bytes()[:-1]),
        lambda path: path.write_bytes(b""),
        lambda path: path.unlink(),
        lambda path: (path.unlink(), path.mkdir()),
    ):
        for path in cached_files(handle):
            if path.is_file():
                harm(path)
        assert opened(handle, place).histories() == expected


def test_only_what_is_needed_is_kept_of_a_remote(handle, garden, place):
    opened(handle, place).add("backup", "s3://b", encrypted=False)
    for number in range(5):
        (garden / "plants").write_text(f"tulips {number}")
        handle.create()
        opened(handle, place).push()
    opened(handle, place).collect()
    opened(handle, place).histories()

    folders = [path.name.partition("_")[0] for path in cached_files(handle)]

    there = [name.partition("/")[0] for name in place.content]
    assert folders.count("state") == 1
    assert all(folders.count(folder) <= there.count(folder) for folder in folders)


def test_a_state_of_the_same_number_with_other_content_is_refused(handle, garden, place, tmp_path):
    """As on a server that was set back, and went on with other machines."""
    opened(handle, place).add("backup", "s3://b", encrypted=False)
    handle.create()
    opened(handle, place).push()
    before = dict(place.content)
    opened(handle, place).collect()
    (garden / "plants").write_text("only before")
    handle.create()
    opened(handle, place).push()
    opened(handle, place).collect()
    states = {name for name in place.content if name.startswith("state/")}
    place.content.clear()
    place.content.update(before)
    other = treesnap.open(garden, tmp_path / "other")
    opened(other, place).add("backup", "s3://b", encrypted=False)
    other.create()
    while not states <= set(place.content):
        opened(other, place).push()
        opened(other, place).collect()

    with pytest.raises(Refused) as refused:
        opened(handle, place).histories()

    number = max(int(name[6:22], 16) for name in states)
    assert refused.value.code == ErrorCode.REMOTE_SET_BACK
    assert f"at state {number}, and was at another state {number} before" in str(refused.value)
    accepting = Remotes(handle, secret_of, place, accepts_rollback=True)
    assert accepting.histories() == opened(other, place).histories()
    assert opened(handle, place).histories() == opened(other, place).histories()


def test_automatic_snapshots_are_left_out_unless_told(handle, garden, place):
    remotes = opened(handle, place)
    remotes.add("backup", "s3://b")
    handle.create()
    (garden / "plants").write_text("tulips")
    handle.restore("latest")

    assert len(remotes.push(dry_run=True).snapshots) == 1
    assert len(remotes.push(every_kind=True, dry_run=True).snapshots) == 2
    safety = next(item for item in handle.list() if item.kind == SnapshotKind.SAFETY)
    assert remotes.push(refs=[safety.id]).snapshots == (safety.id,)


def test_steps_of_a_session_that_are_named_or_pinned_are_pushed(handle, garden, place):
    remotes = opened(handle, place)
    remotes.add("backup", "s3://b")
    named = handle.create(session="s1", step=0, name="v1")
    handle.create(session="s1", step=1)
    (garden / "plants").write_text("tulips")
    pinned = handle.create(session="s1", step=2)
    handle.pin(pinned.id)

    assert remotes.push().snapshots == (named.id, pinned.id)


FAULTS = (BlobFaultKind.FAIL_BEFORE, BlobFaultKind.FAIL_AFTER)


@pytest.mark.parametrize("kind", FAULTS)
@pytest.mark.parametrize("number", range(1, 8))
def test_a_push_of_which_any_request_fails_can_be_repeated(
    handle, garden, place, tmp_path, kind, number
):
    """A push takes seven requests here; one that failed may have been carried out all the same."""
    opened(handle, place).add("backup", "s3://b", encrypted=False)
    handle.create()
    before = record(tmp_path / "store" / "packs")
    place.faults = (BlobFault(kind=kind, number=number, is_lasting=True),)

    with pytest.raises(RemoteFailed):
        opened(handle, place).push()

    assert record(tmp_path / "store" / "packs") == before
    place.faults = ()
    opened(handle, place).push()
    cloned(tmp_path / "again", tmp_path / "other", place)
    assert difference(record(garden), record(tmp_path / "again")) == []


@pytest.mark.parametrize("number", range(1, 9))
def test_a_clone_of_which_any_request_fails_leaves_nothing_half_made(
    handle, garden, place, tmp_path, number
):
    opened(handle, place).add("backup", "s3://b", encrypted=False)
    handle.create()
    opened(handle, place).push()
    place.faults = (BlobFault(kind=BlobFaultKind.FAIL_BEFORE, number=number, is_lasting=True),)

    try:
        cloned(tmp_path / "again", tmp_path / "other", place)
    except RemoteFailed:
        assert not (tmp_path / "again").exists()
        place.faults = ()
        cloned(tmp_path / "again", tmp_path / "other", place)

    assert difference(record(garden), record(tmp_path / "again")) == []


@pytest.mark.parametrize("is_encrypted", [False, True])
def test_a_damaged_pack_is_refused_and_the_directory_does_not_appear(
    handle, garden, place, tmp_path, is_encrypted
):
    opened(handle, place).add("backup", "s3://b", encrypted=is_encrypted)
    handle.create()
    opened(handle, place).push()
    (pack,) = (name for name in place.content if name.startswith("packs/"))
    content = bytearray(place.content[pack])
    content[len(content) // 2] ^= 1
    place.content[pack] = bytes(content)

    with pytest.raises(Corrupt, match=pack) as refused:
        cloned(tmp_path / "again", tmp_path / "other", place)

    assert (refused.value.code, refused.value.path) == (ErrorCode.REMOTE_DAMAGED, pack)
    assert not (tmp_path / "again").exists()
    problems = opened(handle, place).verify(read_data=True).problems
    assert problems
    assert all(item.message.count(pack) == 1 for item in problems)


def test_another_remote_in_the_place_of_one_is_refused(handle, garden, place):
    remotes = opened(handle, place)
    remotes.add("backup", "s3://b")
    handle.create()
    remotes.push()
    kept = dict(place.content)
    place.content.clear()
    with pytest.raises(RemoteFailed) as emptied:
        remotes.push()
    opened(handle, place).add("other", "s3://b")

    with pytest.raises(Refused) as replaced:
        remotes.push("backup")

    assert emptied.value.code == ErrorCode.REMOTE_MISSING
    assert replaced.value.code == ErrorCode.REMOTE_REPLACED
    place.content.clear()
    place.content.update(kept)
    assert remotes.push("backup").snapshots == ()


def test_a_remote_that_says_it_is_not_encrypted_any_more_is_refused(handle, place):
    """What is kept of it serves one more push, which encrypts all the same."""
    opened(handle, place).add("backup", "s3://b")
    handle.create(label="a secret label")
    format_ = decode_format(place.content["format"], "here")
    place.content["format"] = encode_format(format_._replace(is_encrypted=False))

    opened(handle, place).push()
    with pytest.raises(Refused) as refused:
        opened(handle, place).push()

    assert refused.value.code == ErrorCode.REMOTE_REPLACED
    assert not [name for name, data in place.content.items() if b"a secret label" in data]
    assert {data[8] for name, data in place.content.items() if name.startswith("packs/")} == {0x12}


@pytest.mark.parametrize("pushes", [True, False])
def test_a_remote_that_was_set_back_is_refused(handle, garden, place, tmp_path, pushes):
    remotes = opened(handle, place)
    remotes.add("backup", "s3://b")
    handle.create()
    remotes.push()
    kept = dict(place.content)
    remotes.collect()
    if pushes:
        remotes.push()
    place.content.clear()
    place.content.update(kept)

    with pytest.raises(Refused) as refused:
        remotes.push()
    with pytest.raises(Refused) as not_cloned:
        cloned(tmp_path / "again", handle.store_path, place, url="backup")

    assert refused.value.code == not_cloned.value.code == ErrorCode.REMOTE_SET_BACK
    assert not (tmp_path / "again").exists()
    assert place.content == kept
    accepting = Remotes(handle, secret_of, place, accepts_rollback=True)
    assert accepting.push().snapshots == ()
    assert remotes.push().snapshots == ()


def test_a_copy_of_a_machine_begins_a_history_of_its_own(handle, garden, place, tmp_path):
    remotes = opened(handle, place)
    remotes.add("backup", "s3://b")
    handle.create()
    remotes.push()
    shutil.copytree(tmp_path / "store", tmp_path / "copied", symlinks=True)
    copied = treesnap.open(garden, tmp_path / "copied")
    copied.store_trust()
    (garden / "plants").write_text("of the one")
    handle.create()
    one = remotes.push()
    (garden / "plants").write_text("of the copy")
    copied.create()

    other = opened(copied, place).push()

    assert one.history_id != other.history_id
    assert [item.snapshots for item in remotes.histories()] == [2, 2]
    result = cloned(tmp_path / "again", tmp_path / "other", place, other.history_id[:12])
    assert result.snapshot_id == other.snapshots[-1]
    assert (tmp_path / "again" / "plants").read_text() == "of the copy"
    assert opened(copied, place).push().history_id == other.history_id
    assert remotes.push().history_id == one.history_id


@pytest.mark.needs("exchange")
@pytest.mark.parametrize("is_far", [False, True])
def test_a_store_that_was_moved_goes_on_with_its_history(
    handle, garden, place, tmp_path, monkeypatch, is_far
):
    remotes = opened(handle, place)
    remotes.add("backup", "s3://b")
    handle.create()
    first = remotes.push()
    if is_far:  # to another file system, where it is copied
        far = Fault(errno=errno.EXDEV, methods=frozenset({"exchange"}))
        monkeypatch.setattr(handle, "context", handle.context._replace(fs=FaultyFileSystem(far)))
    moved = handle.store_move(tmp_path / "new")
    assert (moved.left is not None) == is_far
    handle = treesnap.open(garden, tmp_path / "store")
    (garden / "plants").write_text("more")
    handle.create()

    second = opened(handle, place).push()

    assert second.history_id == first.history_id
    assert len(opened(handle, place).histories()) == 1


def test_two_machines_that_set_up_a_remote_at_once_share_the_one_that_won(handle, place, tmp_path):
    class Meeting(WrappedBlobs):
        """Lets another machine set the remote up just before this one creates its format."""

        def around(self, method, proceed, arguments):
            if method == "create" and arguments[0] == "format":
                other = treesnap.open(tmp_path / "garden", tmp_path / "other")
                opened(other, place).add("backup", "s3://b")
            return proceed()

    remotes = opened(handle, lambda url, *, make=False: Meeting(place(url, make=make)))

    remotes.add("backup", "s3://b")

    handle.create()
    assert len(remotes.push().snapshots) == 1
    assert len(list(Doubled(MemoryBlobs(place.content)).list("keys/"))) == 1


@pytest.mark.parametrize("number", range(1, 5))
def test_a_remote_of_which_the_set_up_was_interrupted_can_be_added_again(handle, place, number):
    fault = BlobFault(
        kind=BlobFaultKind.FAIL_BEFORE,
        number=number,
        methods=frozenset({"put", "create"}),
        names=lambda name: not name.startswith("probe/"),
        is_lasting=True,
    )
    place.faults = (fault,)
    try:
        opened(handle, place).add("backup", "s3://b")
    except RemoteFailed:
        place.faults = ()
        opened(handle, place).add("backup", "s3://b")
    place.faults = ()

    handle.create()

    assert len(opened(handle, place).push().snapshots) == 1


def test_a_wrong_key_opens_nothing(handle, place, tmp_path):
    opened(handle, place).add("backup", "s3://b")
    handle.create()

    wrong = Remotes(handle, lambda _: lambda: Secret.raw_key("00" * 32), place)
    with pytest.raises(RemoteLocked):
        wrong.push()
    with pytest.raises(Refused):
        Remotes(handle, opener=place).push()


def test_a_collection_frees_what_a_killed_push_left(handle, garden, place):
    remotes = opened(handle, place)
    remotes.add("backup", "s3://b")
    handle.create()
    fault = BlobFault(
        kind=BlobFaultKind.FAIL_BEFORE,
        methods=frozenset({"put"}),
        names=lambda name: name.startswith("commits/"),
    )
    place.faults = (fault,)
    with pytest.raises(RemoteFailed):
        remotes.push()
    place.faults = ()
    assert [name for name in place.content if name.startswith("packs/")]

    remotes.collect()

    assert [name for name in place.content if name.startswith("packs/")] == []
    assert len(remotes.push().snapshots) == 1


class Overwriting(WrappedBlobs):
    """Creates whatever is there, as some servers do."""

    def create(self, name, data, /):
        self.inner.put(name, data)
        return True


@pytest.mark.parametrize("encrypted", [False, True])
def test_a_machine_that_found_the_server_unreliable_collects_nothing(
    handle, place, tmp_path, encrypted
):
    """It may reach it in another way than the machine that has set the remote up."""
    opened(handle, place).add("backup", "s3://b", encrypted=encrypted)
    other = treesnap.open(handle.root, tmp_path / "other")
    remotes = Remotes(other, secret_of, lambda url, make=False: Overwriting(place(url)))

    assert not remotes.add("backup", "s3://b", encrypted=encrypted).may_collect
    for _ in range(2):  # the second time its key slot is known
        with pytest.raises(Refused) as refused:
            remotes.collect()
        assert refused.value.code == ErrorCode.REMOTE_UNRELIABLE
    assert opened(handle, place).collect().packs == 0


def test_a_server_that_creates_a_file_twice_is_used_without_collections(handle, place, tmp_path):
    def opener(url, *, make=False):
        return Overwriting(place(url, make=make))

    remotes = Remotes(handle, secret_of, opener)

    info = remotes.add("backup", "s3://b", encrypted=False)

    assert not info.may_collect
    handle.create()
    remotes.push()
    with pytest.raises(Refused) as refused:
        remotes.collect()
    assert refused.value.code == ErrorCode.REMOTE_UNRELIABLE
    cloned(tmp_path / "again", tmp_path / "other", opener)


def test_a_collection_removes_what_killed_writers_left_in_a_directory(handle, tmp_path):
    disk = tmp_path / "disk"
    remotes = Remotes(handle)
    remotes.add("disk", str(disk))
    handle.create()
    remotes.push()
    left = disk / "packs" / f".unfinished-{'ab' * 8}"
    left.write_bytes(b"half of a pack")
    held = disk / "commits" / f".unfinished-{'cd' * 8}"

    with held.open("wb") as being_written:
        fcntl.flock(being_written, fcntl.LOCK_EX)
        remotes.collect()

        assert held.exists()
    assert not left.exists()
    remotes.collect()
    assert not held.exists()


def test_one_machine_collects_on_a_server_that_creates_a_file_twice(handle, place, tmp_path):
    meeting = Barrier(4)

    def opener(_url, *, make=False):
        return RacingBlobs(MemoryBlobs(place.content), meeting, 1 << 20)

    first = Remotes(handle, secret_of, opener)
    other = Remotes(treesnap.open(handle.root, tmp_path / "other"), secret_of, opener)

    assert first.add("backup", "s3://b", only_collector=True).may_collect
    assert not other.add("backup", "s3://b").may_collect

    waste = Path(handle.root, "waste")
    waste.write_bytes(os.urandom(2_000_000))
    gone = handle.create().id
    first.push()
    waste.unlink()
    handle.create()
    first.push()
    first.prune(policy=Policy(keep_last=1))
    with pytest.raises(Refused) as refused:
        other.collect()
    assert refused.value.code == ErrorCode.REMOTE_UNRELIABLE
    assert first.collect().packs > 0
    assert gone not in {item.id for item in first.snapshots()}
    assert first.rotate_keys().generation == 2
    cloned(tmp_path / "again", tmp_path / "third", opener)
    assert (first.check().is_reliable, first.check().may_collect) == (True, True)
    assert (other.check().is_reliable, other.check().may_collect) == (True, False)

    assert other.add("backup", "s3://b", only_collector=True).may_collect  # takes over
    assert other.collect().packs == 0


@pytest.mark.parametrize("server", [lambda blobs: LateListBlobs(blobs, 1, []), Overwriting])
def test_no_machine_collects_where_lists_are_late_or_files_are_replaced(handle, place, server):
    def opener(_url, *, make=False):
        return server(MemoryBlobs(place.content))

    with pytest.raises(Refused) as refused:
        Remotes(handle, secret_of, opener).add("backup", "s3://b", only_collector=True)

    assert refused.value.code == ErrorCode.REMOTE_UNRELIABLE
    assert place.content == {}


def test_that_one_machine_collects_is_decided_at_the_beginning(handle, place):
    opened(handle, place).add("backup", "s3://b")
    with pytest.raises(Refused) as refused:
        opened(handle, place).add("backup", "s3://b", only_collector=True)
    assert refused.value.code == ErrorCode.REMOTE_NAME_TAKEN


def test_a_server_that_sends_no_parts_is_used_all_the_same(handle, garden, place, tmp_path):
    fault = BlobFault(kind=BlobFaultKind.CUT, methods=frozenset({"get_ranges"}), is_lasting=True)
    requests: list[str] = []

    class Noted(WrappedBlobs):
        def around(self, method, proceed, arguments):
            requests.append(method)
            return proceed()

    def opener(_url, *, make=False):
        return Noted(FaultyBlobs(MemoryBlobs(place.content), fault))

    remotes = Remotes(handle, secret_of, opener)
    remotes.add("backup", "s3://b")
    requests.clear()

    waste = garden / "waste"
    waste.write_bytes(os.urandom(2_000_000))
    handle.create()
    remotes.push()
    waste.unlink()
    made = handle.create().id
    remotes.push()
    remotes.prune(policy=Policy(keep_last=1))
    assert remotes.collect().packs > 0
    assert remotes.verify(read_data=True).problems == ()
    other = Remotes(treesnap.open(garden, tmp_path / "store2"), secret_of, opener)
    other.add("backup", "s3://b")
    assert other.fetch().newest_id == made
    assert requests.count("get_ranges") == 1  # when it was tried out again


def test_a_name_belongs_to_one_remote(handle, place):
    remotes = opened(handle, place)
    remotes.add("backup", "s3://b")

    assert remotes.add("backup", "s3://b") == remotes.list()[0]  # the same one again

    place.content = {}
    with pytest.raises(Refused) as refused:
        remotes.add("backup", "s3://c")
    assert refused.value.code == ErrorCode.REMOTE_NAME_TAKEN
    with pytest.raises(Refused):
        remotes.add("third", "s3://c", encrypted=False)
    remotes.remove("backup")
    assert remotes.list() == ()


@pytest.mark.parametrize("name", ["", ".", "../x", "a/b", "a b", "-x", "x" * 65])
def test_what_cannot_name_a_remote_is_refused(handle, place, name):
    with pytest.raises(InvalidArgument):
        opened(handle, place).add(name, "s3://b")

    assert place.content == {}


@pytest.mark.parametrize(
    "url", ["", "http://x/y", "ftp://x", "s3://", "s3://b?x=1", "file://far/x"]
)
def test_what_is_no_address_is_refused(handle, url):
    with pytest.raises(InvalidArgument):
        Remotes(handle, secret_of).add("backup", url)


def test_unknown_names_are_not_found(handle, place, tmp_path):
    remotes = opened(handle, place)
    with pytest.raises(NotFound):
        remotes.push()
    remotes.add("backup", "s3://b")
    with pytest.raises(NotFound) as missing:
        remotes.push("other")
    with pytest.raises(NotFound) as none:
        cloned(tmp_path / "again", tmp_path / "other", place)

    assert missing.value.code == ErrorCode.REMOTE_NOT_FOUND
    assert none.value.code == ErrorCode.HISTORY_NOT_FOUND
    assert not (tmp_path / "again").exists()


@pytest.mark.parametrize("is_gone", [False, True])
def test_a_push_of_nothing_notices_that_the_format_is_gone_or_damaged(handle, place, is_gone):
    """The key slot of last time opens the remote without it."""
    opened(handle, place).add("backup", "s3://b")
    handle.create()
    opened(handle, place).push()
    opened(handle, place).push()
    content = place.content.pop("format")
    if not is_gone:
        place.content["format"] = content[:-1] + bytes([content[-1] ^ 1])

    warned = treesnap.open(handle.root, handle.store_path, monitor=(monitor := Warned()))
    opened(warned, place).push()

    assert monitor.codes == {WarningCode.REMOTE_FILE_DAMAGED}
    assert opened(handle, place).repair().files == ("format",)
    assert place.content["format"] == content
    place.content.clear()
    with pytest.raises(RemoteFailed) as failed:
        opened(handle, place).push()
    assert failed.value.code == ErrorCode.REMOTE_MISSING


@pytest.mark.parametrize("is_there", [False, True])
def test_a_remote_that_cannot_be_set_up_leaves_no_directory(handle, tmp_path, is_there):
    place = tmp_path / "disk"
    if is_there:
        (place / "photos").mkdir(parents=True)

    def opener(url, *, make=False):
        full = Fault(kinds=frozenset({Kind.WRITE}), errno=errno.ENOSPC, number=3, lasting=True)
        return DirectoryBlobs(FaultyFileSystem(full), url, make=make)

    with pytest.raises(RemoteFailed) as failed:
        Remotes(handle, opener=opener).add("disk", str(place), encrypted=False)

    assert failed.value.code == ErrorCode.REMOTE_FULL
    assert place.exists() is is_there
    assert not is_there or os.listdir(place) == ["photos"]


def test_a_clone_refuses_a_directory_that_holds_something(handle, garden, place, tmp_path):
    opened(handle, place).add("backup", "s3://b")
    handle.create()
    opened(handle, place).push()
    (tmp_path / "again").mkdir()
    (tmp_path / "again" / "mine").write_text("mine")

    with pytest.raises(Refused) as refused:
        cloned(tmp_path / "again", tmp_path / "other", place)

    assert refused.value.code == ErrorCode.TARGET_NOT_EMPTY
    assert os.listdir(tmp_path / "again") == ["mine"]
    shutil.rmtree(garden)
    with pytest.raises(Refused):
        cloned(tmp_path / "elsewhere" / "..", tmp_path / "other", place)


def test_a_clone_that_was_killed_anywhere_goes_on_when_it_is_called_again(
    handle, garden, place, tmp_path
):
    """The kill may leave a whole directory, which is then refused like any other."""
    opened(handle, place).add("backup", "s3://b")
    handle.create()
    opened(handle, place).push()
    again, store = tmp_path / "again", tmp_path / "other"
    outcomes = set()

    for number in count(1, sized(9, 1)):
        fs = FaultyFileSystem(kill_at(number))
        killed = treesnap.Handle(treesnap.open(again, store).context._replace(fs=fs))
        try:
            opened(killed, place).clone("s3://b")
            break
        except Killed:
            pass
        is_whole = again.exists() and difference(record(garden), record(again)) == []
        outcomes.add(is_whole)
        if not is_whole:
            cloned(again, store, place)
        assert difference(record(garden), record(again)) == []
        assert treesnap.open(again, store).verify().problems == ()
        shutil.rmtree(again)
        shutil.rmtree(store)

    assert False in outcomes


def test_a_clone_that_goes_on_leaves_alone_what_others_put_there_meanwhile(
    handle, garden, place, tmp_path
):
    opened(handle, place).add("backup", "s3://b")
    handle.create()
    opened(handle, place).push()
    again, store = tmp_path / "again", tmp_path / "other"
    outcomes = set()

    for number in count(1):
        fs = FaultyFileSystem(kill_at(number))
        killed = treesnap.Handle(treesnap.open(again, store).context._replace(fs=fs))
        with suppress(Killed):
            opened(killed, place).clone("s3://b")
            break
        if again.exists() and treesnap.open(again, store).doctor().unfinished:
            (again / "mine").write_text("mine")
            code, conflicts = None, ()
            try:
                conflicts = cloned(again, store, place).conflicts
            except Refused as refused:
                code = refused.code
            outcomes.add((code, conflicts))
            if conflicts:
                (again / "mine").unlink()
                expected, actual = (without(record(root), b"") for root in (garden, again))
                assert difference(expected, actual) == []
            else:
                assert os.listdir(again) == ["mine"]
        shutil.rmtree(again, ignore_errors=True)
        shutil.rmtree(store, ignore_errors=True)

    assert outcomes == {(ErrorCode.TARGET_NOT_EMPTY, ()), (None, (b"mine",))}


def test_a_clone_replaces_nothing_that_appears_while_it_fetches(handle, place, tmp_path):
    opened(handle, place).add("backup", "s3://b")
    handle.create()
    opened(handle, place).push()
    again = tmp_path / "again"

    class Appearing(NullMonitor):
        def begin(self, phase, *totals):
            if phase is Phase.FETCH:
                again.mkdir(exist_ok=True)
                (again / "mine").write_text("mine")

    context = treesnap.open(again, tmp_path / "other").context._replace(monitor=Appearing())

    with pytest.raises(Refused) as refused:
        opened(treesnap.Handle(context), place).clone("s3://b")

    assert refused.value.code == ErrorCode.TARGET_NOT_EMPTY
    assert os.listdir(again) == ["mine"]


def test_a_clone_into_the_place_of_another_history_is_refused(handle, place, tmp_path):
    opened(handle, place).add("backup", "s3://b")
    handle.create()
    opened(handle, place).push()
    again = tmp_path / "again"
    again.mkdir()
    treesnap.open(again, tmp_path / "other").create()

    with pytest.raises(Refused) as refused:
        cloned(again, tmp_path / "other", place)

    assert refused.value.code == ErrorCode.ROOT_TAKEN


def test_of_many_histories_a_message_names_some(handle, place, tmp_path):
    opened(handle, place).add("backup", "s3://b")
    for number in range(7):
        (tmp_path / f"bed{number}").mkdir()
        bed = treesnap.open(tmp_path / f"bed{number}", handle.store_path)
        bed.create()
        opened(bed, place).push()

    with pytest.raises(NotFound, match=r"no history 'shed'; it has bed0@.*, bed4@.* and 2 more"):
        opened(handle, place).snapshots("backup", "shed")


def test_an_older_snapshot_can_be_cloned(handle, garden, place, tmp_path):
    opened(handle, place).add("backup", "s3://b")
    first = handle.create().id
    (garden / "plants").write_text("tulips")
    handle.create()
    opened(handle, place).push()

    found = cloned(tmp_path / "again", tmp_path / "other", place, "garden", first[:10])

    assert found.snapshot_id == first
    assert (tmp_path / "again" / "plants").read_bytes() == SECRET_TEXT * 5
    with pytest.raises(NotFound):
        cloned(tmp_path / "third", tmp_path / "other", place, "garden", "ffff")


def test_local_commands_never_ask_a_remote(handle, garden, place):
    opened(handle, place).add("backup", "s3://b")
    handle.create()
    opened(handle, place).push()
    place.requests = 0

    handle.create()
    handle.restore("latest")
    handle.gc()
    handle.verify()

    assert place.requests == 0


def test_what_was_cloned_survives_a_collection_and_goes_on(handle, garden, place, tmp_path):
    opened(handle, place).add("backup", "s3://b")
    handle.create()
    opened(handle, place).push()
    cloned(tmp_path / "again", tmp_path / "other", place)
    second = treesnap.open(tmp_path / "again", tmp_path / "other")
    second.gc()
    assert second.verify(read_data=True).problems == ()
    (tmp_path / "again" / "plants").write_text("from the second machine")
    second.create()
    opened(second, place).add("backup", "s3://b")

    pushed = opened(second, place).push()

    assert len(pushed.snapshots) == 2  # its own history, whole
    assert pushed.stored.objects <= 4  # what it shares with the other is there
    assert len(opened(handle, place).histories()) == 2


def test_a_collection_that_meets_another_says_so(handle, garden, place):
    remotes = opened(handle, place)
    remotes.add("backup", "s3://b")
    handle.create()
    remotes.push()

    class Overtaken(WrappedBlobs):
        """Lets another machine collect just before this one creates a state."""

        def create(self, name, data, /):
            if name.startswith("state/") and not hasattr(place, "met"):
                place.met = True
                remotes.collect()
            return self.inner.create(name, data)

    with pytest.raises(Busy):
        Remotes(handle, secret_of, lambda url, *, make=False: Overtaken(place(url))).collect()
    assert remotes.push().snapshots == ()


def small_steps(handle, garden, remotes, count: int) -> list[str]:
    """Pushes so many snapshots, one after the other, and returns their ids."""
    made = []
    for number in range(count):
        (garden / "plants").write_text(f"step {number}")
        (garden / "new").write_bytes(os.urandom(20_000))
        made.append(handle.create().id)
        remotes.push()
    return made


def test_a_remote_is_pruned_by_the_rules_of_the_store(handle, garden, place, tmp_path):
    remotes = opened(handle, place)
    remotes.add("backup", "s3://b")
    made = small_steps(handle, garden, remotes, 5)
    handle.pin(made[0])

    would = remotes.prune("backup", Policy(keep_last=2), dry_run=True)
    assert [item.snapshots for item in remotes.histories()] == [5]
    result = remotes.prune("backup", Policy(keep_last=2))

    assert would.removed == result.removed
    assert [item.id for item in result.removed] == [made[2], made[1]]
    assert result.reasons[made[0]] == ("pinned",)
    assert [item.snapshots for item in remotes.histories()] == [3]
    with pytest.raises(NotFound):
        cloned(tmp_path / "gone", tmp_path / "other", place, "garden", made[1])
    size_before = sum(map(len, place.content.values()))
    assert remotes.collect().freed_bytes > 30_000
    assert sum(map(len, place.content.values())) < size_before - 30_000
    assert [item.snapshots for item in remotes.histories()] == [3]
    cloned(tmp_path / "again", tmp_path / "other", place)
    assert difference(record(garden), record(tmp_path / "again")) == []
    assert ids(tmp_path / "again", tmp_path / "other") == [made[4], made[3], made[0]]


def test_no_push_brings_back_what_was_pruned_unless_it_is_named(handle, garden, place):
    remotes = opened(handle, place)
    remotes.add("backup", "s3://b")
    made = small_steps(handle, garden, remotes, 3)
    remotes.prune("backup", Policy(keep_last=1))
    remotes.collect()

    assert remotes.push().snapshots == ()
    assert remotes.push(refs=[made[0]]).snapshots == (made[0],)
    assert [item.snapshots for item in remotes.histories()] == [2]
    assert len(handle.list()) == 3  # nothing local went


def test_what_was_deleted_on_a_remote_is_stored_again_before_it_was_collected(
    handle, garden, place, tmp_path
):
    remotes = opened(handle, place)
    remotes.add("backup", "s3://b")
    made = small_steps(handle, garden, remotes, 3)
    remotes.delete("backup", "garden")

    assert remotes.push(refs=[made[1]]).snapshots == (made[1],)
    assert remotes.push(dry_run=True).snapshots == (made[0], made[2])
    assert remotes.push().snapshots == (made[0], made[2])
    assert remotes.push().snapshots == ()
    remotes.collect()
    cloned(tmp_path / "again", tmp_path / "other", place)
    assert ids(tmp_path / "again", tmp_path / "other") == made[::-1]
    assert difference(record(garden), record(tmp_path / "again")) == []


def test_what_was_pruned_is_stored_again_before_it_was_collected_if_it_is_named(
    handle, garden, place
):
    remotes = opened(handle, place)
    remotes.add("backup", "s3://b")
    made = small_steps(handle, garden, remotes, 3)
    remotes.prune("backup", Policy(keep_last=1))

    assert remotes.push().snapshots == ()
    assert remotes.push(refs=[made[0]]).snapshots == (made[0],)
    assert [item.snapshots for item in remotes.histories()] == [2]


def test_the_newest_snapshot_stays_on_a_remote(handle, garden, place):
    remotes = opened(handle, place)
    remotes.add("backup", "s3://b")
    made = small_steps(handle, garden, remotes, 2)

    result = remotes.prune("backup", Policy(keep_last=0))

    assert [item.id for item in result.kept] == [made[1]]


def test_a_remote_without_a_history_of_the_root_is_not_pruned(handle, place):
    remotes = opened(handle, place)
    remotes.add("backup", "s3://b")
    handle.create()

    with pytest.raises(NotFound) as missing:
        remotes.prune("backup")

    assert missing.value.code == ErrorCode.HISTORY_NOT_FOUND


def other_secret(_known):
    return lambda: Secret.raw_key("11" * 32)


def test_a_key_is_changed_without_writing_anything_else(handle, place):
    remotes = opened(handle, place)
    remotes.add("backup", "s3://b")
    handle.create()
    remotes.push()
    (first,) = remotes.keys()
    before = {name: data for name, data in place.content.items() if not name.startswith("keys/")}

    added = remotes.add_key("backup", other_secret(None))
    changed = Remotes(handle, other_secret, place)
    assert [
        item.is_used for item in sorted(changed.keys(), key=lambda item: item.id != added.id)
    ] == [
        True,
        False,
    ]
    removed = changed.remove_key("backup", first.id[:12])

    assert removed.id == first.id
    after = {name: data for name, data in place.content.items() if not name.startswith("keys/")}
    assert before == after
    assert changed.push().snapshots == ()
    with pytest.raises(RemoteLocked):
        remotes.push()


def generations(place: Place) -> set[int]:
    """Returns which key generations the packs and commits there are encrypted with."""
    files = [data for name, data in place.content.items() if name[:4] in {"pack", "comm"}]
    return {generation_of("a file", data) for data in files}


def test_rotated_keys_open_everything_and_older_ones_nothing_new(handle, garden, place, tmp_path):
    remotes = opened(handle, place)
    remotes.add("backup", "s3://b")
    remotes.add_key("backup", other_secret(None))
    handle.create()
    remotes.push()
    old_slots = {name: data for name, data in place.content.items() if name.startswith("keys/")}

    rotated = remotes.rotate_keys()

    assert rotated.generation == 2
    slots = remotes.keys()
    assert sorted(item.generation for item in slots) == [1, 2]
    assert generations(place) == {1}
    (garden / "plants").write_text("tulips")
    handle.create()
    opened(handle, place).push()
    assert generations(place) == {1, 2}
    cloned(tmp_path / "again", tmp_path / "other", place)
    assert (tmp_path / "again" / "plants").read_text() == "tulips"
    older = Remotes(handle, other_secret, place)
    other = Remotes(treesnap.open(tmp_path / "fifth", tmp_path / "sixth"), other_secret, place)
    for work in (older.histories, older.fetch, older.push, lambda: other.clone("s3://b")):
        with pytest.raises(KeysRotated) as problem:
            work()
        assert problem.value.code == ErrorCode.REMOTE_LOCKED
    for name in [name for name in place.content if name.startswith("keys/")]:
        del place.content[name]
    place.content.update(old_slots)
    assert len(cloned(tmp_path / "third", tmp_path / "fourth", place).unreadable) == 1
    assert (tmp_path / "third" / "plants").read_bytes() == SECRET_TEXT * 5


@pytest.mark.parametrize("is_removed_first", [True, False])
def test_a_secret_that_is_added_again_opens_what_is_newer(handle, garden, place, is_removed_first):
    remotes = opened(handle, place)
    remotes.add("backup", "s3://b")
    slot = remotes.add_key("backup", other_secret(None))
    handle.create()
    remotes.push()
    assert len(Remotes(handle, other_secret, place).histories()) == 1
    remotes.rotate_keys()
    (garden / "plants").write_text("tulips")
    handle.create()
    opened(handle, place).push()
    with pytest.raises(KeysRotated):
        Remotes(handle, other_secret, place).histories()

    if is_removed_first:
        remotes.remove_key("backup", slot.id)
    remotes.add_key("backup", other_secret(None))

    (history,) = Remotes(handle, other_secret, place).histories()
    assert history.snapshots == 2


def test_a_file_of_a_generation_that_no_slot_has_is_damaged(handle, place):
    opened(handle, place).add("backup", "s3://b")
    handle.create()
    opened(handle, place).push()
    (name,) = (name for name in place.content if name.startswith("commits/"))
    data = place.content[name]
    place.content[name] = data[:12] + b"\x07" + data[13:]

    other = opened(treesnap.open(handle.root, handle.store_path + "2"), place)
    other.add("backup", "s3://b")
    (problem,) = other.verify().problems
    assert (problem.code, problem.where) == ("bad-commit", name)
    assert "needs key generation 7" in problem.message


@pytest.mark.parametrize("kind", [BlobFaultKind.FAIL_BEFORE, BlobFaultKind.FAIL_AFTER])
@pytest.mark.parametrize(
    ("method", "beginning"),
    [("create", "mem"), ("put", "keys"), ("list", "mem"), ("delete", "keys")],
)
def test_a_rotation_that_was_stopped_is_begun_again(
    handle, garden, place, tmp_path, method, beginning, kind
):
    remotes = opened(handle, place)
    remotes.add("backup", "s3://b")
    handle.create()
    remotes.push()
    place.faults = (
        BlobFault(
            kind=kind,
            methods=frozenset({method}),
            names=lambda name: name.startswith(beginning),
        ),
    )
    with pytest.raises(RemoteFailed):
        remotes.rotate_keys()
    place.faults = ()

    with suppress(KeysRotated):  # its slot may be there, and was not opened yet
        remotes.rotate_keys()
    remotes.rotate_keys()

    (garden / "plants").write_text("tulips")
    handle.create()
    opened(handle, place).push()
    cloned(tmp_path / "again", tmp_path / "other", place)
    assert (tmp_path / "again" / "plants").read_text() == "tulips"


def test_one_of_two_rotations_wins(handle, garden, place):
    class Overtaken(WrappedBlobs):
        """Lets another machine rotate just before this one writes its slot."""

        def put(self, name, data, /):
            if name.startswith("keys/") and not hasattr(place, "met"):
                place.met = True
                opened(handle, place).rotate_keys()
            super().put(name, data)

    opened(handle, place).add("backup", "s3://b")

    with pytest.raises(Busy, match="meanwhile"):
        Remotes(handle, secret_of, lambda url, make=False: Overtaken(place(url))).rotate_keys()

    (slot,) = opened(handle, place).keys()
    assert slot.generation == 2
    assert opened(handle, place).push() is not None


def test_a_rotation_asks_for_the_secret_once(handle, place):
    asked = []

    def counted(known):
        return lambda: asked.append(known) or secret_of(known)()

    opened(handle, place).add("backup", "s3://b")

    Remotes(handle, counted, place).rotate_keys()

    assert len(asked) == 1


def test_a_remote_without_keys_rotates_none(handle):
    plain = opened(handle, Place())
    plain.add("plain", "s3://c", encrypted=False)

    with pytest.raises(Refused, match="is not encrypted"):
        plain.rotate_keys("plain")


def test_the_key_in_use_stays_whatever_others_are_there(handle, place):
    """A slot that is left of a killed set-up opens nothing, and looks like any other."""
    remotes = opened(handle, place)
    remotes.add("backup", "s3://b")
    (only,) = remotes.keys()
    left = new_slot(MasterKeys.new(), secret_of(None)(), b"x" * 16)
    place.content[left.name] = left.data

    with pytest.raises(Refused) as refused:
        remotes.remove_key("backup", only.id)
    remotes.remove_key("backup", left.name.removeprefix("keys/"))

    assert refused.value.code == ErrorCode.LAST_KEY
    assert remotes.keys() == (only,)


def test_the_last_key_stays(handle, place):
    remotes = opened(handle, place)
    remotes.add("backup", "s3://b")
    (only,) = remotes.keys()

    with pytest.raises(Refused) as refused:
        remotes.remove_key("backup", only.id)
    with pytest.raises(NotFound):
        remotes.remove_key("backup", "f" * 33)
    with pytest.raises(NotFound):
        remotes.remove_key("backup", "")

    assert refused.value.code == ErrorCode.LAST_KEY
    assert len(remotes.keys()) == 1


def test_a_remote_that_is_not_encrypted_has_no_keys(handle, place):
    remotes = opened(handle, place)
    remotes.add("backup", "s3://b", encrypted=False)

    for call in (
        remotes.keys,
        lambda: remotes.add_key("backup", other_secret(None)),
        lambda: remotes.remove_key("backup", "0"),
    ):
        with pytest.raises(Refused) as refused:
            call()
        assert refused.value.code == ErrorCode.NOT_ENCRYPTED


def test_whole_blocks_travel_as_they_are_and_others_without_what_was_deleted(
    handle, garden, tmp_path
):
    """A plain remote shows its packs, so what travelled can be seen."""
    secret = os.urandom(4_000).hex().encode()
    (garden / "secret").write_bytes(secret)
    handle.create()
    (garden / "secret").unlink()
    newest = handle.create().id
    remotes = Remotes(handle)
    remotes.add("disk", str(tmp_path / "disk"), encrypted=False)

    remotes.push(refs=[newest])

    stored = list((tmp_path / "disk" / "packs").iterdir())
    pushed = {
        entry.id
        for path in stored
        for entry in entries_of(path)
        if entry.kind != ObjectKind.SNAPSHOT
    }
    local = {
        entry.id for path in (tmp_path / "store" / "packs").iterdir() for entry in entries_of(path)
    }
    assert object_id(ObjectKind.CHUNK, secret) in local
    assert object_id(ObjectKind.CHUNK, secret) not in pushed
    assert pushed < local
    cloned(tmp_path / "again", tmp_path / "other", open_blobs, url=str(tmp_path / "disk"))
    assert difference(record(garden), record(tmp_path / "again")) == []


def test_a_store_that_is_pushed_whole_is_not_compressed_again(handle, garden, tmp_path):
    handle.create()
    remotes = Remotes(handle)
    remotes.add("disk", str(tmp_path / "disk"), encrypted=False)

    remotes.push()

    blocks = [
        {
            path.read_bytes()[table.block.offset : table.end]
            for path in directory.iterdir()
            for table in scan_blocks(path.read_bytes(), b"")
            if table.entries[0].kind != ObjectKind.SNAPSHOT  # which say what packs are of
        }
        for directory in (tmp_path / "store" / "packs", tmp_path / "disk" / "packs")
    ]
    assert blocks[0] == blocks[1] != set()


def entries_of(path: Path):
    return [entry for table in scan_blocks(path.read_bytes(), b"") for entry in table.entries]


def test_a_damaged_object_is_not_pushed(handle, garden, place, tmp_path):
    opened(handle, place).add("backup", "s3://b", encrypted=False)
    handle.create()
    (pack,) = (tmp_path / "store" / "packs").iterdir()
    content = bytearray(pack.read_bytes())
    content[200_000] ^= 1
    pack.chmod(0o600)
    pack.write_bytes(bytes(content))

    with pytest.raises(Corrupt):
        opened(handle, place).push()

    assert opened(handle, place).histories() == ()


def test_a_whole_remote_verifies(handle, garden, place):
    remotes = opened(handle, place)
    remotes.add("backup", "s3://b")
    small_steps(handle, garden, remotes, 3)

    looked = remotes.verify()
    read = remotes.verify(read_data=True)

    assert (looked.ok, looked.snapshots, looked.read_bytes) == (True, 3, 0)
    assert (read.ok, read.objects) == (True, looked.objects)
    assert read.read_bytes > 700_000


def test_what_is_missing_or_damaged_on_a_remote_is_named(handle, garden, place):
    remotes = opened(handle, place)
    remotes.add("backup", "s3://b", encrypted=False)
    made = small_steps(handle, garden, remotes, 2)
    packs = sorted(name for name in place.content if name.startswith("packs/"))
    kept = dict(place.content)
    for pack in packs:
        place.content = {**kept, pack: kept[pack][:-300] + bytes(300)}
        assert {item.code for item in remotes.verify(read_data=True).problems} <= {"damaged-object"}
        del place.content[pack]
        result = remotes.verify()
        assert {"bad-pack", "damaged-object"} == {item.code for item in result.problems}
        assert {key for item in result.problems for key in item.snapshot_ids} <= set(made)
    found = 0
    for pack in packs:
        content = bytearray(kept[pack])
        content[len(content) // 2] ^= 1
        place.content = {**kept, pack: bytes(content)}
        found += not remotes.verify(read_data=True).ok
    assert found == len(packs)


def damaged(content: bytes) -> bytes:
    middle = len(content) // 2
    return content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]


@pytest.mark.parametrize("harm", [None, damaged])
def test_what_is_lost_on_a_remote_is_stored_again(handle, garden, place, tmp_path, harm):
    """What lies below a lost directory too; and collections keep what can be read."""
    remotes = opened(handle, place)
    remotes.add("backup", "s3://b")
    small_steps(handle, garden, remotes, 3)
    for name in [name for name in place.content if name.startswith("packs/")]:
        if harm is None:
            del place.content[name]
        else:
            place.content[name] = harm(place.content[name])
        found = remotes.verify(read_data=True)
        assert found.left == found.problems != ()

        repaired = remotes.verify(read_data=True, repair=True)

        assert repaired.problems
        assert repaired.left == ()
        assert repaired.repaired
        assert remotes.verify(read_data=True).problems == ()
    for _ in range(2 * PARTIAL_EPOCHS):
        remotes.collect()
        assert remotes.verify(read_data=True).problems == ()
    cloned(tmp_path / "again", tmp_path / "other", place)
    assert record(tmp_path / "again") == record(garden)


def test_a_whole_remote_is_not_changed_by_a_repair(handle, garden, place):
    remotes = opened(handle, place)
    remotes.add("backup", "s3://b")
    small_steps(handle, garden, remotes, 2)
    before = dict(place.content)

    repaired = remotes.verify(read_data=True, repair=True)

    assert (repaired.problems, repaired.repaired) == ((), ())
    assert place.content == before


def test_what_no_machine_has_stays_named_and_the_rest_is_repaired(handle, garden, place, tmp_path):
    """Until another machine repairs it. Meanwhile collections remove no trace of it."""
    remotes = opened(handle, place)
    remotes.add("backup", "s3://b")
    small_steps(handle, garden, remotes, 2)
    (tmp_path / "shed").mkdir()
    (tmp_path / "shed" / "spade").write_bytes(b"spade" * 50)
    shed = treesnap.open(tmp_path / "shed", tmp_path / "store of the shed")
    theirs = opened(shed, place)
    theirs.add("backup", "s3://b")
    snapshot = shed.create()
    theirs.push()
    for name in [name for name in place.content if name.startswith("packs/")]:
        del place.content[name]

    mine = remotes.verify(repair=True)
    for _ in range(2 * PARTIAL_EPOCHS):
        with suppress(Corrupt):
            remotes.collect()

    assert {problem.code for problem in mine.left} == {"bad-pack", "damaged-object"}
    assert {key for problem in mine.left for key in problem.snapshot_ids} == {snapshot.id}
    assert remotes.verify().problems
    rest = theirs.verify(repair=True)
    assert rest.left == ()
    assert remotes.verify(read_data=True).problems == ()


def test_where_another_machine_collects_a_repair_leaves_lost_packs_named(
    handle, garden, place, tmp_path
):
    """It stores what was in them; that machine's collection lets go of them."""
    owner = opened(handle, place)
    owner.add("backup", "s3://b", only_collector=True)
    small_steps(handle, garden, owner, 1)
    cloned(tmp_path / "again", tmp_path / "other", place)
    theirs = opened(treesnap.open(tmp_path / "again", tmp_path / "other"), place)
    theirs.add("backup", "s3://b")
    (pack,) = (name for name in place.content if name.startswith("packs/"))
    del place.content[pack]

    repaired = theirs.verify(repair=True)
    owner.collect()

    assert [problem.where for problem in repaired.left] == [pack]
    assert repaired.left[0].message == f"Pack {pack} is missing on the remote"
    assert owner.verify(read_data=True).problems == ()


def test_a_clone_is_repaired_from_its_own_files(handle, garden, place, tmp_path):
    """The records of its snapshots say where the original was, which is gone."""
    opened(handle, place).add("backup", "s3://b")
    handle.create()
    opened(handle, place).push()
    again, store = tmp_path / "again", tmp_path / "other"
    cloned(again, store, place)
    shutil.rmtree(garden)
    second = treesnap.open(again, store)
    for pack in (store / "packs").iterdir():
        pack.chmod(0o600)
        content = bytearray(pack.read_bytes())
        content[len(content) // 2] ^= 1
        pack.write_bytes(bytes(content))
    assert not second.verify(read_data=True).ok

    repaired = second.verify(read_data=True, repair=True)

    assert {item.root for item in repaired.recovered} == {os.fsencode(again)}
    assert repaired.left == ()
    assert second.verify(read_data=True).ok


def test_an_encrypted_remote_in_a_directory_is_added_as_it_is(handle, tmp_path):
    disk = str(tmp_path / "disk")
    Remotes(handle, secret_of).add("one", disk, encrypted=True)
    other = treesnap.open(tmp_path / "garden", tmp_path / "other")

    assert Remotes(other, secret_of).add("two", disk).is_encrypted

    with pytest.raises(Refused) as locked:
        Remotes(other).add("three", disk)
    assert locked.value.code == ErrorCode.REMOTE_LOCKED


def test_a_clone_keeps_the_limit_of_the_store(handle, garden, place, tmp_path):
    opened(handle, place).add("backup", "s3://b")
    (garden / "much").write_bytes(os.urandom(3_000_000))
    handle.create()
    opened(handle, place).push()
    again, store, small = tmp_path / "again", tmp_path / "other", tmp_path / "small"
    small.mkdir()
    treesnap.open(small, store).create()  # makes the store, so that it can have settings
    treesnap.open(small, store).config("max-size", "1M")

    with pytest.raises(StorageFull) as full:
        cloned(again, store, place)

    assert full.value.code == ErrorCode.OVER_QUOTA
    assert not again.exists()


def test_a_push_tells_how_many_objects_it_will_store(handle, garden, place):
    opened(handle, place).add("backup", "s3://b", encrypted=False)
    totals, told = [], []

    class Counting(NullMonitor):
        def begin(self, phase, files, size_bytes):
            if phase is Phase.PUSH:
                totals.append(files)

        def advance(self, files, size_bytes):
            if totals:
                told.append(files)

    watched = treesnap.open(garden, handle.store_path, monitor=Counting())
    for number in range(2):
        (garden / "new").write_text(str(number))
        watched.create()
        totals.clear()
        told.clear()
        stored = opened(watched, place).push().stored

        assert totals == [None, stored.objects]
        assert sum(told) == stored.objects > 0


class FetchProgress(NullMonitor):
    """Remembers the totals of each fetch that began, and what was told since the last began."""

    def __init__(self):
        self.totals, self.objects, self.size_bytes = [], 0, 0

    def begin(self, phase, files, size_bytes):
        if phase is Phase.FETCH:
            self.totals.append((files, size_bytes))
            self.objects = self.size_bytes = 0

    def advance(self, files, size_bytes):
        self.objects += files
        self.size_bytes += size_bytes


def test_a_fetch_tells_how_many_objects_and_bytes_it_will_bring(handle, garden, place, tmp_path):
    opened(handle, place).add("backup", "s3://b", encrypted=False)
    (garden / "twins").mkdir()
    for name in ("one", "two"):  # the same chunks twice, which come once
        (garden / "twins" / name).write_bytes(b"same" * 500_000)
    other = tmp_path / "other"
    other.mkdir()
    watching = FetchProgress()
    elsewhere = treesnap.open(other, tmp_path / "other-store", monitor=watching)
    elsewhere.create()
    opened(elsewhere, place).add("backup", "s3://b", encrypted=False)
    for number in range(2):
        (garden / "plants").write_text(f"tulips {number}")
        handle.create()
        opened(handle, place).push()
        watching.totals.clear()

        fetched = opened(elsewhere, place).fetch(ref="latest").fetched

        assert watching.totals == [(None, None), (fetched.objects, fetched.size_bytes)]
        assert (watching.objects, watching.size_bytes) == watching.totals[-1]
        assert fetched.objects > 0


def test_a_fetch_of_more_objects_than_wait_at_once_has_no_total(
    handle, garden, place, tmp_path, monkeypatch
):
    opened(handle, place).add("backup", "s3://b", encrypted=False)
    for number in range(10):
        (garden / f"bed {number}").write_bytes(os.urandom(100))
    handle.create()
    opened(handle, place).push()
    monkeypatch.setattr("treesnap.remote.objects.OBJECTS_AT_ONCE", 4)
    watching = FetchProgress()

    again = treesnap.open(tmp_path / "again", tmp_path / "other", monitor=watching)

    opened(again, place).clone("s3://b", encrypted=False)

    assert set(watching.totals) == {(None, None)}
    assert watching.objects > 4


def test_a_snapshot_that_is_deleted_while_it_is_pushed_is_not_damage(handle, garden, place):
    opened(handle, place).add("backup", "s3://b", encrypted=False)
    handle.create()

    class Deleting(NullMonitor):
        """Lets another process delete and collect when the push begins to read."""

        def begin(self, phase, files, size_bytes):
            if phase is Phase.PUSH:
                for item in handle.list():
                    handle.delete(item.id)
                handle.gc()

    watched = treesnap.open(garden, handle.store_path, monitor=Deleting())
    with pytest.raises(NotFound):
        opened(watched, place).push()

    assert opened(handle, place).histories() == ()


@pytest.mark.parametrize("folder", ["commits", "state", "index", "catalog", "deletions"])
@pytest.mark.parametrize("encrypted", [False, True])
def test_what_arrives_damaged_once_is_read_again(handle, garden, place, folder, encrypted):
    opened(handle, place).add("backup", "s3://b", encrypted=encrypted)
    for number in range(3):
        (garden / "plants").write_text(f"tulips {number}")
        handle.create()
        opened(handle, place).push()
    opened(handle, place).collect()
    opened(handle, place).prune(policy=Policy(keep_last=2))
    (garden / "plants").write_text("tulips at last")
    handle.create()
    opened(handle, place).push()
    expected = opened(handle, place).histories()
    for path in cached_files(handle):
        path.unlink()
    place.faults = (
        BlobFault(
            kind=BlobFaultKind.CUT,
            methods=frozenset({"get"}),
            names=lambda name: name.startswith(folder),
        ),
    )

    found: object = None
    with suppress(Corrupt):
        found = opened(handle, place).histories()
    # Readers go on with copies of the state and the catalog, and with what packs say.
    assert found != expected or folder != "deletions"
    place.faults = ()

    assert opened(handle, place).histories() == expected


@pytest.mark.parametrize("folder", ["commits", "index"])
def test_what_is_missing_on_a_remote_is_found_although_it_is_kept_here(
    handle, garden, place, folder
):
    opened(handle, place).add("backup", "s3://b", encrypted=False)
    for number in range(3):
        (garden / "plants").write_text(f"tulips {number}")
        handle.create()
        opened(handle, place).push()
    opened(handle, place).collect()
    (garden / "plants").write_text("tulips at last")
    handle.create()
    opened(handle, place).push()
    opened(handle, place).histories()
    for name in [name for name in place.content if name.startswith(folder)]:
        place.content[name] = b""

    problems: object = True
    with suppress(Corrupt):
        problems = opened(handle, place).verify().problems
    assert problems


def test_one_damaged_commit_is_a_warning_and_the_rest_goes_on(handle, garden, place, tmp_path):
    opened(handle, place).add("backup", "s3://b", encrypted=False)
    handle.create()
    opened(handle, place).push()
    other = treesnap.open(garden, tmp_path / "other", monitor=(warned := Warned()))
    opened(other, place).add("backup", "s3://b", encrypted=False)
    (name,) = (name for name in place.content if name.startswith("commits/"))
    place.content[name] = place.content[name][:-1]
    other.create()

    pushed = opened(other, place).push()

    assert len(pushed.snapshots) == 1
    assert WarningCode.REMOTE_FILE_DAMAGED in warned.codes
    assert [item.snapshots for item in opened(other, place).histories()] == [1, 1]
    again, store = tmp_path / "again", tmp_path / "third"
    reader = treesnap.open(again, store, monitor=(cloning := Warned()))
    opened(reader, place).clone("s3://b", pushed.history_id, encrypted=False)
    assert WarningCode.REMOTE_FILE_DAMAGED in cloning.codes
    opened(other, place).collect()
    assert name not in place.content
    assert [item.snapshots for item in opened(other, place).histories()] == [1, 1]
    assert opened(other, place).verify(read_data=True).problems == ()


def pushed_in_turn(handle, garden, place, count_of: int = 4) -> list[str]:
    """Pushes snapshots with a file of its own each, of which the last one has only its own.

    Returns the packs, oldest first.
    """
    opened(handle, place).add("backup", "s3://b")
    for number in range(count_of):
        if number == count_of - 1:
            shutil.rmtree(garden)
            garden.mkdir()
        (garden / f"bed {number}").write_bytes(os.urandom(5000))
        handle.create()
        opened(handle, place).push()
    return [name for name in place.content if name.startswith("packs/")]


def spoiled(place, name: str) -> None:
    content = bytearray(place.content[name])
    content[len(content) // 2] ^= 1
    place.content[name] = bytes(content)


@pytest.mark.parametrize("is_lost", [False, True])
@pytest.mark.parametrize("which", [0, 1, 2])
def test_damage_of_older_snapshots_does_not_keep_the_newest_from_being_cloned_or_fetched(
    handle, garden, place, tmp_path, which, is_lost
):
    packs = pushed_in_turn(handle, garden, place)
    kept = dict(place.content)
    if is_lost:
        del place.content[packs[which]]
    else:
        spoiled(place, packs[which])
    again = tmp_path / "again"
    reader = treesnap.open(again, tmp_path / "third", monitor=(cloning := Warned()))

    done = opened(reader, place).clone("s3://b")

    assert difference(record(garden), record(again)) == []
    snapshots = ids(garden, tmp_path / "store")
    left_out = {item.snapshot_id for item in done.fetched.left_out}
    assert left_out == set(snapshots[1 : 4 - which])  # each needs what it took over
    assert all(packs[which] in item.message for item in done.fetched.left_out)
    assert WarningCode.REMOTE_SNAPSHOT_DAMAGED in cloning.codes
    assert ids(again, tmp_path / "third") == [each for each in snapshots if each not in left_out]
    assert treesnap.open(again, tmp_path / "third").verify().problems == ()
    other = treesnap.open(tmp_path / "empty", tmp_path / "fourth")
    Path(other.root).mkdir()
    opened(other, place).add("backup", "s3://b")
    assert opened(other, place).fetch().newest_id == snapshots[0]
    place.content.update(kept)  # as after a repair: the order is that of the history
    cloned(again, tmp_path / "third", place)
    assert ids(again, tmp_path / "third") == snapshots
    again_fetched = opened(other, place).fetch()
    assert (again_fetched.newest_id, again_fetched.fetched.left_out) == (snapshots[0], ())
    root = next(item for item in list_roots(other.context) if item.fetched is not None)
    listed = treesnap.open(os.fsdecode(root.path), tmp_path / "fourth").list()
    assert [item.id for item in listed] == snapshots


def test_a_snapshot_that_was_asked_for_and_is_damaged_is_not_replaced_by_another(
    handle, garden, place, tmp_path
):
    spoiled(place, pushed_in_turn(handle, garden, place)[-1])

    with pytest.raises(Corrupt):
        cloned(tmp_path / "again", tmp_path / "third", place)

    assert not (tmp_path / "again").exists()


def test_a_server_that_fails_after_the_newest_snapshot_leaves_a_whole_directory(
    handle, garden, place, tmp_path
):
    """The clone goes on when it is called again, and brings the rest."""
    packs = pushed_in_turn(handle, garden, place)
    snapshots = ids(garden, tmp_path / "store")
    again, store = tmp_path / "again", tmp_path / "third"
    place.faults = (
        BlobFault(
            kind=BlobFaultKind.FAIL_BEFORE,
            names=lambda name: name in packs[:-1],
            is_lasting=True,
        ),
    )

    with pytest.raises(RemoteFailed):
        cloned(again, store, place)

    assert difference(record(garden), record(again)) == []
    assert ids(again, store) == snapshots[:1]
    (again / "mine").write_text("mine")
    place.faults = ()
    cloned(again, store, place)
    assert (again / "mine").read_text() == "mine"
    assert ids(again, store) == snapshots
    with pytest.raises(Refused) as refused:
        cloned(again, store, place)
    assert refused.value.code == ErrorCode.TARGET_NOT_EMPTY


def test_a_commit_that_cannot_be_read_and_may_be_newer_is_named(handle, garden, place, tmp_path):
    pushed_in_turn(handle, garden, place)
    snapshots = ids(garden, tmp_path / "store")
    newest = [name for name in place.content if name.startswith("commits/")][-1]
    spoiled(place, newest)
    for name in packs_of(newest, place.content):
        del place.content[name]

    silent = cloned(tmp_path / "again", tmp_path / "third", place)
    named = cloned(tmp_path / "named", tmp_path / "third", place, "garden", snapshots[1])

    assert (silent.snapshot_id, silent.unreadable) == (snapshots[1], (newest,))
    assert (named.snapshot_id, named.unreadable) == (snapshots[1], ())


@pytest.mark.parametrize("is_encrypted", [False, True])
def test_a_damaged_deletion_is_a_warning_and_stops_nothing(
    handle, garden, place, tmp_path, is_encrypted
):
    opened(handle, place).add("backup", "s3://b", encrypted=is_encrypted)
    kept = handle.create().snapshot.id
    opened(handle, place).push()
    damaged = f"deletions/{1:016x}-{'ab' * 8}-{'ab' * 16}"
    place.content[damaged] = b"garbage"
    warned = Warned()
    mine = opened(treesnap.open(garden, handle.store_path, monitor=warned), place)

    def is_warned() -> bool:
        messages, warned.messages = warned.messages, []
        return any(damaged in message for message in messages)

    assert [item.snapshots for item in mine.histories()] == [1]
    assert is_warned()
    assert [item.id for item in mine.snapshots()] == [kept]
    assert is_warned()
    assert mine.prune(policy=Policy(keep_last=1)).removed == ()
    assert is_warned()
    other = treesnap.open(tmp_path / "again", tmp_path / "other", monitor=warned)
    assert opened(other, place).clone("s3://b", encrypted=False).snapshot_id == kept
    assert is_warned()
    assert mine.fetch().newest_id == kept
    assert is_warned()
    for repair in (False, True):
        found = mine.verify(repair=repair)
        assert [(item.code, item.where) for item in found.left] == [("bad-deletion", damaged)]
    assert mine.collect() is not None
    assert is_warned()

    del place.content[damaged]
    assert mine.collect() is not None
    assert mine.verify().problems == ()


class Warned(NullMonitor):
    def __init__(self) -> None:
        self.codes: set[WarningCode] = set()
        self.messages: list[str] = []

    def warn(self, code: WarningCode, message: str) -> None:
        self.codes.add(code)
        self.messages.append(message)


def test_a_root_is_pushed_by_one_process_at_a_time(handle, garden, place):
    class Meanwhile(WrappedBlobs):
        """Lets another process push while this one does."""

        def put(self, name, data, /):
            if not hasattr(place, "refused"):
                with pytest.raises(Busy) as place.refused:
                    opened(treesnap.open(garden, handle.store_path, wait_s=0), place).push()
            super().put(name, data)

    opened(handle, place).add("backup", "s3://b", encrypted=False)
    handle.create()

    Remotes(handle, secret_of, lambda url, make=False: Meanwhile(place(url))).push()

    assert "push" in str(place.refused.value)
    assert opened(handle, place).push().snapshots == ()


def test_a_remote_that_would_be_captured_is_refused(handle, garden, tmp_path):
    handle.create()
    (tmp_path / "link").symlink_to(garden / "beds")

    for inside in (garden / "disk", tmp_path / "link" / "disk", Path(handle.store_path) / "disk"):
        with pytest.raises(InvalidArgument, match="lies in the"):
            Remotes(handle).add("disk", str(inside))
        assert not inside.exists()
    Remotes(handle).add("disk", str(garden) + "-beside")
