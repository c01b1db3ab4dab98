"""Damaged and missing small files of a remote.

Of one that is there twice nothing is lost, and a repair makes the remote what it was. Where both
are damaged, readers go on, and nothing is written.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import treesnap
from blob_doubles import MemoryBlobs, WrappedBlobs
from oracle import difference, record
from sampling import seeded, sized
from treesnap.core.codec.pack import MAGIC
from treesnap.core.model.errors import (
    Corrupt,
    ErrorCode,
    GenerationMissing,
    InvalidArgument,
    Refused,
    RemoteFailed,
    RemoteLocked,
    WarningCode,
)
from treesnap.core.model.events import NullMonitor
from treesnap.remote import Remotes
from treesnap.remote.copies import copy_name, original_name
from treesnap.remote.keys import Secret

pytestmark = pytest.mark.sampled(12)

GENERATION_AT = 12
"""Where the header of an encrypted file says which keys it needs."""
PARTS = 24
"""How many seeds try all of it in full size."""
FOLDERS = ["state", "index", "catalog", "commits"]


class Warned(NullMonitor):
    """Keeps the codes of warnings."""

    def __init__(self) -> None:
        self.codes: set[WarningCode] = set()

    def warn(self, code: WarningCode, message: str) -> None:
        self.codes.add(code)


class Scene:
    """A remote in memory, of which a part was folded and a part was not."""

    def __init__(self, base: Path, *, encrypted: bool) -> None:
        self.base = base
        self.content: dict[str, bytes] = {}
        self.garden = base / "garden"
        self.garden.mkdir()
        self.handle = treesnap.open(self.garden, base / "store")
        self.remotes = self.opened(self.handle)
        self.remotes.add("backup", "s3://b", encrypted=encrypted)
        for number in range(3):
            (self.garden / f"bed {number}").write_bytes(os.urandom(3000))
            self.handle.create()
            self.remotes.push()
            if number == 1:
                self.remotes.collect()
        self.whole = dict(self.content)
        self._clones = 0

    def opened(self, handle: treesnap.Handle) -> Remotes:
        return Remotes(
            handle,
            lambda _: lambda: Secret.raw_key("5a" * 32),
            lambda _url, make=False: MemoryBlobs(self.content),
        )

    def names(self, folder: str) -> list[str]:
        """Returns the names of files, without those of their copies."""
        return [
            name
            for name in self.whole
            if name.partition("/")[0] == folder and original_name(name) == name
        ]

    def clone(self, monitor: NullMonitor, ref: str | None = None):
        """Clones on a machine that knows nothing; returns the directory and the result."""
        self._clones += 1
        directory = self.base / f"again {self._clones}"
        handle = treesnap.open(directory, self.base / f"store {self._clones}", monitor=monitor)
        return directory, self.opened(handle).clone("s3://b", ref=ref, encrypted=False)

    def spoil(self, name: str, at: int | None, *, is_one: bool = False) -> None:
        """Flips a bit of a file and of its copy, or of that ``is_one``, or removes it; all else is
        whole."""
        self.content.clear()
        self.content |= self.whole
        data = bytearray(self.whole[name])
        if at is not None:
            data[at // 8] ^= 1 << at % 8
        for each in (name,) if is_one else (name, copy_name(name)):
            if each in self.whole:
                self.content[each] = bytes(data)
                if at is None:
                    del self.content[each]


@pytest.fixture(params=[True, False], ids=["encrypted", "plain"])
def scene(request, tmp_path: Path) -> Scene:
    return Scene(tmp_path, encrypted=request.param)


@pytest.mark.parametrize("folder", ["format", "keys", "members", "state", "catalog"])
def test_what_is_there_twice_is_read_from_its_copy_and_stored_again(scene, folder):
    """Every byte, and every bit of some, where all seeds are tried; with the format, which other
    files say as well."""
    expected = record(scene.garden)
    for original in scene.names(folder):
        for name in filter(None, (original, copy_name(original))):
            size = len(scene.whole[name])
            bits = [*range(64), *(8 * byte + byte % 8 for byte in range(8, size))]
            for at in (None, *sized(bits[::499], seeded(bits, PARTS))):
                scene.spoil(name, at, is_one=True)

                directory, done = scene.clone(warned := Warned())

                assert difference(expected, record(directory)) == [], (name, at)
                assert (len(done.fetched.ids), done.unreadable) == (3, ()), (name, at)
                is_said = WarningCode.REMOTE_FILE_DAMAGED in warned.codes
                assert is_said == (name == original), (name, at)

                assert scene.remotes.repair().files == (name,)
                assert scene.content == scene.whole
    assert scene.remotes.repair().files == ()


@pytest.mark.parametrize("folder", FOLDERS)
def test_a_damaged_file_keeps_no_new_machine_from_the_newest_snapshot(scene, folder):
    """Of what only the damaged file said, all that can be found otherwise is there."""
    snapshots = [item.id for item in scene.handle.list()]
    expected = record(scene.garden)
    for name in scene.names(folder):
        bits = range(8 * len(scene.whole[name]))
        for at in (None, 8 * GENERATION_AT, *sized(bits[::1111], seeded(bits, PARTS))):
            scene.spoil(name, at)

            directory, done = scene.clone(warned := Warned())

            if folder == "commits" and at is None:  # nothing says that it was there
                assert (done.snapshot_id, done.unreadable) == (snapshots[1], ())
                continue
            assert difference(expected, record(directory)) == [], (name, at)
            assert WarningCode.REMOTE_FILE_DAMAGED in warned.codes
            assert done.unreadable == ((name,) if folder == "catalog" else ()), (name, at)
            whole = 1 if folder == "catalog" else 3
            assert (len(done.fetched.ids), done.fetched.left_out) == (whole, ()), (name, at)


@pytest.mark.parametrize("folder", FOLDERS[:3])
@pytest.mark.parametrize("is_lost", [True, False])
def test_nothing_is_written_while_such_a_file_is_damaged(scene, folder, is_lost):
    other = scene.opened(treesnap.open(scene.base / "garden", scene.base / "second"))
    other.add(
        "backup", "s3://b", encrypted=False if not scene.remotes.list()[0].is_encrypted else None
    )
    (name,) = scene.names(folder)
    scene.spoil(name, None if is_lost else 8 * len(scene.whole[name]) // 2)
    before = dict(scene.content)

    for work in (other.push, other.collect, lambda: other.delete(None, "garden")):
        with pytest.raises(Corrupt) as refused:
            work()
        assert refused.value.code is ErrorCode.REMOTE_DAMAGED
    assert f"bad-{folder}" in {problem.code for problem in other.verify().problems}

    assert scene.content == before
    assert len(other.histories()) == 1
    scene.content[name] = scene.whole[name]
    assert other.verify(read_data=True).problems == ()
    other.collect()


def test_a_machine_that_kept_the_state_goes_on_with_that(scene):
    """Everything that the remote holds is as it was for it."""
    shown = scene.remotes.snapshots()
    (name,) = scene.names("state")
    for at in (8 * 5, 8 * 14, 8 * len(scene.whole[name]) - 1):
        scene.spoil(name, at)

        assert scene.remotes.snapshots() == shown
        assert scene.remotes.verify(read_data=True).problems[0].where == name
        assert scene.remotes.push().snapshots == ()
        assert set(scene.remotes.repair().files) == {name, copy_name(name)}
        assert scene.content == scene.whole


@pytest.mark.parametrize(
    "folders",
    [
        ["commits"],
        ["index"],
        ["catalog"],
        ["state"],
        ["members"],
        ["state", "index", "catalog", "commits", "members", "format"],
    ],
    ids=" ".join,
)
@pytest.mark.parametrize("is_lost", [True, False])
def test_a_remote_is_rebuilt_from_its_packs(scene, folders, is_lost):
    """On a machine that knows nothing of it; then the newest is cloned, and all is written."""
    expected = record(scene.garden)
    snapshots = [item.id for item in scene.handle.list()]
    for name in list(scene.content):
        if name.partition("/")[0] in folders:
            data = scene.content.pop(name)
            if not is_lost:
                scene.content[name] = data[:-5] + bytes(5)
    other = treesnap.open(scene.base / "garden", scene.base / "second")
    remotes = scene.opened(other)
    encrypted = scene.remotes.list()[0].is_encrypted
    remotes.add("backup", "s3://b", encrypted=None if encrypted else False)

    result = remotes.repair(rebuild=True)

    assert (result.rebuilt.packs, result.rebuilt.snapshots) == (3, 3)
    directory, done = scene.clone(Warned())
    assert difference(expected, record(directory)) == []
    assert [*reversed(done.fetched.ids)] == snapshots
    assert remotes.verify(read_data=True).problems == ()
    other.create()
    assert len(remotes.push().snapshots) == 1
    assert remotes.collect() is not None
    assert [item.snapshots for item in remotes.histories()] == [1, 3]
    if not encrypted and is_lost and "format" in folders:
        return  # nothing says any more which remote it was
    accepting = scene.opened(scene.handle)._accepting()
    assert accepting.push().snapshots == ()
    assert scene.remotes.verify(read_data=True).problems == ()


@pytest.mark.parametrize(
    ("folders", "counts"),
    [([], (0, 0)), (["catalog"], (0, 4)), (["index", "catalog", "commits"], (3, 3))],
    ids=["nothing", "catalog", "all"],
)
def test_a_rebuild_reads_what_a_pack_says_of_its_commit_once(scene, folders, counts):
    """A whole pack, or what it says of its commit; beside that the directories of what is found."""
    for name in list(scene.content):
        if name.partition("/")[0] in folders:
            del scene.content[name]
    other = treesnap.open(scene.base / "garden", scene.base / "second")
    encrypted = scene.remotes.list()[0].is_encrypted
    scene.opened(other).add("backup", "s3://b", encrypted=None if encrypted else False)
    read: list[str] = []

    class Noted(WrappedBlobs):
        def around(self, method, proceed, arguments):
            if method in {"get", "get_ranges"} and arguments[0].startswith("packs/"):
                read.append(method)
            return proceed()

    def opener(_url, *, make=False):
        return Noted(MemoryBlobs(scene.content))

    secret_of = scene.remotes._secret_of

    result = Remotes(other, secret_of, opener).repair(rebuild=True)

    assert result.rebuilt.snapshots == 3
    assert (read.count("get"), read.count("get_ranges")) == counts


@pytest.mark.parametrize("where", ["header", "content", "table", "end"])
def test_what_is_whole_in_a_damaged_pack_is_rebuilt(scene, where):
    """In the pack of a push of two snapshots, the file of one is damaged; the rest is gone."""
    (scene.garden / "fence").write_bytes(os.urandom(1000))
    small = scene.handle.create().snapshot.id
    (scene.garden / "plan").write_bytes(os.urandom(3 << 20))
    large = scene.handle.create().snapshot.id
    before = set(scene.content)
    assert scene.remotes.push().snapshots == (small, large)
    (pack,) = (name for name in scene.content.keys() - before if name.startswith("packs/"))
    data = bytearray(scene.content[pack])
    middle = len(data) // 2
    positions = {"header": 13, "content": middle, "end": len(data) - 1}
    positions["table"] = max(data.find(MAGIC, middle), 0) or middle
    data[positions[where]] ^= 1
    for name in list(scene.content):
        if not name.startswith(("keys/", "format", "packs/")):
            del scene.content[name]
    scene.content[pack] = bytes(data)

    scene.remotes.repair(rebuild=True)

    found = {item.id for item in scene.remotes.snapshots()} & {small, large}
    is_encrypted = scene.remotes.list()[0].is_encrypted
    if where == "end":  # it says what the pack holds
        assert found == (set() if is_encrypted else {small, large})
    else:
        assert found == ({small, large} if where == "header" else {small})
    assert scene.remotes.verify(read_data=True).problems == ()


def test_a_list_of_machines_is_put_back_from_where_it_was_kept(scene):
    (name,) = scene.names("members")
    for at in (8 * 40, 8 * len(scene.whole[name]) - 1):
        scene.spoil(name, at)

        with pytest.raises(Corrupt) as refused:
            scene.clone(Warned())
        assert (refused.value.path, refused.value.code) == (name, ErrorCode.REMOTE_DAMAGED)
        assert set(scene.remotes.repair().files) == {name, copy_name(name)}
        assert scene.content == scene.whole


def test_a_list_of_machines_that_is_made_anew_has_all_of_them(scene):
    """Those that a machine pushed to which an older list is all that can be read."""
    encrypted = None if scene.remotes.list()[0].is_encrypted else False
    (scene.base / "shed").mkdir()
    shed = treesnap.open(scene.base / "shed", scene.base / "second")
    theirs = scene.opened(shed)
    theirs.add("backup", "s3://b", encrypted=encrypted)
    (scene.base / "shed" / "spade").write_text("new")
    shed.create()
    theirs.push()
    newest = max(name for name in scene.content if name.startswith("members/") and "-c" not in name)
    for name in (newest, copy_name(newest)):
        scene.content[name] = scene.content[name][:-3] + bytes(3)
    third = scene.opened(treesnap.open(scene.base / "garden", scene.base / "third"))
    third.add("backup", "s3://b", encrypted=encrypted)
    assert [item.snapshots for item in third.histories()] == [3]

    third.repair(rebuild=True)

    assert sorted(item.snapshots for item in third.histories()) == [1, 3]
    assert third.verify(read_data=True).problems == ()
    assert scene.opened(scene.handle)._accepting().push().snapshots == ()


def test_what_a_state_left_out_does_not_come_back_where_the_state_was_kept(scene):
    scene.remotes.prune(policy=None)
    (history,) = scene.remotes.histories()
    (name,) = scene.names("state")
    scene.whole = dict(scene.content)
    scene.spoil(name, 8 * 14)

    assert scene.remotes.histories() == (history,)


@pytest.fixture
def encrypted(tmp_path: Path) -> Scene:
    return Scene(tmp_path, encrypted=True)


def lose_the_key_slot(scene: Scene, at: int | None = None) -> str:
    (name,) = scene.names("keys")
    scene.spoil(name, at)
    return name


def test_a_machine_that_kept_the_key_slot_goes_on_with_that(encrypted):
    """Gone, or with any bit flipped, in both places; it is stored again, as it was."""
    size = len(encrypted.whole[encrypted.names("keys")[0]])
    for at in (None, *range(0, 8 * size, sized(331, 7))):
        name = lose_the_key_slot(encrypted, at)
        warned = Warned()
        remotes = encrypted.opened(
            treesnap.open(encrypted.garden, encrypted.base / "store", monitor=warned)
        )

        assert remotes.push().snapshots == ()
        assert WarningCode.REMOTE_FILE_DAMAGED in warned.codes
        assert set(remotes.repair().files) == {name, copy_name(name)}

        assert encrypted.content == encrypted.whole
        assert remotes.repair().files == ()


def test_a_machine_that_kept_the_key_slot_rebuilds_what_is_left(encrypted):
    expected = record(encrypted.garden)
    for name in list(encrypted.content):
        if not name.startswith("packs/"):
            del encrypted.content[name]

    assert encrypted.remotes.repair(rebuild=True).rebuilt.snapshots == 3

    directory, _ = encrypted.clone(Warned())
    assert difference(expected, record(directory)) == []


def test_a_key_slot_that_was_removed_does_not_come_back(encrypted):
    """The store kept it, and the remote has another one."""
    encrypted.remotes.add_key("backup", lambda: Secret.raw_key("66" * 32))
    other = Remotes(
        treesnap.open(encrypted.garden, encrypted.base / "second"),
        lambda _: lambda: Secret.raw_key("66" * 32),
        lambda _url, make=False: MemoryBlobs(encrypted.content),
    )
    other.add("backup", "s3://b")
    (old,) = encrypted.names("keys")
    other.remove_key("backup", old.removeprefix("keys/"))
    before = dict(encrypted.content)

    for work in (encrypted.remotes.push, encrypted.remotes.repair):
        with pytest.raises(RemoteLocked):
            work()

    assert encrypted.content == before
    for name in [name for name in encrypted.content if name.startswith("keys/")]:
        del encrypted.content[name]
    assert len(other.repair().files) == 2
    assert {name.startswith(old) for name in encrypted.content if name.startswith("keys/")} == {
        False
    }


def test_exported_key_slots_open_a_remote_that_lost_its_own(encrypted):
    text = encrypted.remotes.export_keys()
    name = lose_the_key_slot(encrypted)
    del encrypted.content["format"]
    other = encrypted.opened(treesnap.open(encrypted.base / "new", encrypted.base / "other"))

    with pytest.raises(Corrupt, match="has no key slot"):
        other.add("backup", "s3://b")
    other.add("backup", "s3://b", exported_keys=text.replace("\n", "\r\n") + "\n")

    assert encrypted.content == encrypted.whole
    lose_the_key_slot(encrypted)
    assert set(other.repair().files) == {name, copy_name(name)}
    assert len(other.histories()) == 1


def test_exported_key_slots_are_refused_where_they_do_not_belong(encrypted):
    text = encrypted.remotes.export_keys()
    title, _, slots = text.partition("\n")
    for bad, problem in (
        (text.replace("treesnap", "other", 1), "does not hold the key slots"),
        (title, "No key slot"),
        (title + slots.replace("A", "B"), "does not hold"),
        (f"{title}\n{slots.swapcase()}", "No key slot"),
    ):
        with pytest.raises(InvalidArgument, match=problem):
            encrypted.remotes.add("again", "s3://b", exported_keys=bad)
    other = text.replace(encrypted.remotes.list()[0].remote_id, "77" * 16)
    with pytest.raises(Refused, match="The key slots are for the remote 7777") as refused:
        encrypted.remotes.add("again", "s3://b", exported_keys=other)
    assert refused.value.code is ErrorCode.REMOTE_REPLACED

    encrypted.content.clear()
    with pytest.raises(RemoteFailed):  # nothing is set up
        encrypted.remotes.add("again", "s3://b", exported_keys=text)
    assert encrypted.content == {}


def test_exported_key_slots_bring_no_keys_back_that_were_changed(encrypted):
    text = encrypted.remotes.export_keys()
    encrypted.remotes.change_secret("backup", lambda: Secret.raw_key("66" * 32))
    newer = Remotes(
        encrypted.handle,
        lambda _: lambda: Secret.raw_key("66" * 32),
        lambda _url, make=False: MemoryBlobs(encrypted.content),
    )
    newer.collect()
    encrypted.whole = dict(encrypted.content)
    lose_the_key_slot(encrypted)
    before = dict(encrypted.content)
    other = encrypted.opened(treesnap.open(encrypted.base / "new", encrypted.base / "other"))

    with pytest.raises(GenerationMissing):
        other.add("backup", "s3://b", exported_keys=text)

    assert encrypted.content == before
