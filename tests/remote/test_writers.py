"""Writers: what they deliver arrives, and what a thief of one has opens, removes and forges

pytestmark = pytest.mark.sampled(4)
nothing.
"""

from __future__ import annotations

import os
from contextlib import suppress
from functools import partial
from pathlib import Path
from random import Random

import pytest

import treesnap
from blob_doubles import MemoryBlobs
from oracle import difference, record
from sampling import sized
from treesnap.core.codec.pack import encode_objects, encode_pack
from treesnap.core.codec.snapshot import decode_snapshot, encode_snapshot
from treesnap.core.model.entries import ObjectKind
from treesnap.core.model.errors import (
    Corrupt,
    ErrorCode,
    InvalidArgument,
    NotFound,
    Refused,
    RemoteFailed,
    TreesnapError,
    WarningCode,
)
from treesnap.core.model.events import NullMonitor
from treesnap.core.model.ids import object_id
from treesnap.core.ops.access import opened
from treesnap.remote import MemberRole, Remotes, deliveries, push
from treesnap.remote.copies import Doubled
from treesnap.remote.deliveries import Inbox
from treesnap.remote.files import SealedFiles
from treesnap.remote.invitation import Invitation
from treesnap.remote.keys import Algorithm, MasterKeys, Secret, key_signer
from treesnap.remote.objects import needed_objects
from treesnap.remote.push_source import LocalObjects
from treesnap.remote.records import (
    DELIVERY,
    REMOTE_STATE,
    Delivery,
    DeliveryName,
    RemoteState,
    state_name,
)
from treesnap.remote.sealing import Encrypted, InboxSealer

URL = "s3://bucket"
REMOTE_ID = bytes(range(16))


def secret_of(_known):
    return lambda: Secret.raw_key("5a" * 32)


def no_secret(_known):
    def refuse() -> Secret:
        raise AssertionError("a writer was asked for a secret")

    return refuse


class Warned(NullMonitor):
    """Keeps the codes of warnings."""

    def __init__(self) -> None:
        self.codes: list[WarningCode] = []

    def warn(self, code: WarningCode, message: str) -> None:
        self.codes.append(code)


class Scene:
    """A remote in memory, an owner of it, and sandboxes."""

    def __init__(self, base: Path) -> None:
        self.base = base
        self.content: dict[str, bytes] = {}
        self.owner = self.machine("desk")

    def opener(self, _url: str, *, make: bool = False) -> MemoryBlobs:
        return MemoryBlobs(self.content)

    def machine(self, name: str) -> Remotes:
        remotes = Remotes(self.handle(name), secret_of, self.opener)
        remotes.add("backup", URL)
        return remotes

    def handle(self, name: str) -> treesnap.Handle:
        (self.base / name).mkdir(exist_ok=True)
        return treesnap.open(self.base / name, self.base / f"store of {name}")

    def deliver(self, name: str, invitation: Invitation, **options: bool):
        return Remotes(self.handle(name), no_secret, self.opener).deliver(
            URL, invitation, **options
        )

    def inbox(self) -> list[str]:
        return [name for name in self.content if name.startswith("inbox/")]

    def work(self, name: str, **files: bytes) -> None:
        for file, data in files.items():
            path = self.base / name / file
            path.parent.mkdir(exist_ok=True, parents=True)
            path.write_bytes(data)
        self.handle(name).create()


def writers(owner: Remotes) -> tuple[str, ...]:
    """Returns the ids of the writers that were invited."""
    return tuple(item.id for item in owner.members() if item.role == "writer")


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path)


@pytest.fixture
def delivered(scene: Scene) -> Scene:
    """One delivery of two files is in the inbox."""
    scene.invitation = scene.owner.invite(None, MemberRole.WRITER)
    scene.work("red", large=os.urandom(700_000), small=b"the work of red")
    scene.deliver("red", scene.invitation)
    return scene


def test_what_a_writer_delivers_is_cloned_as_it_was(delivered, tmp_path):
    sizes = [len(delivered.content[name]) for name in delivered.inbox()]
    before = {name for name in delivered.content if not name.startswith("inbox/")}

    (received,) = delivered.owner.receive().received

    assert delivered.inbox() == []
    assert received.history_name.startswith(f"writer-{received.writer}-red@")
    clone = Remotes(
        treesnap.open(tmp_path / "again", tmp_path / "other"), secret_of, delivered.opener
    ).clone(URL, received.history_id)
    assert clone.snapshot_id == received.snapshots[0]
    assert difference(record(tmp_path / "red"), record(tmp_path / "again")) == []
    assert delivered.owner.verify(read_data=True).problems == ()
    assert sum(sizes) < 900_000
    assert len(delivered.content.keys() - before) == 2  # a pack and a commit


def test_only_what_is_new_is_delivered_again(delivered):
    delivered.owner.receive()
    second = delivered.machine("second")
    for number in range(3):
        delivered.work("red", **{f"bed/{number}": b"%d" % number})
        done = delivered.deliver("red", delivered.invitation)
        assert (len(done.snapshots), done.stored.size_bytes < 2000) == (1, True)
    assert delivered.deliver("red", delivered.invitation).snapshots == ()

    received = second.receive().received

    assert [len(item.snapshots) for item in received] == [1, 1, 1]
    assert len({item.history_id for item in received}) == 1
    assert second.verify(read_data=True).problems == ()
    first, other = sorted(second.histories(), key=lambda item: item.snapshots)
    assert (first.snapshots, other.snapshots) == (1, 3)
    assert first.id[:16] == other.id[:16] == done.history  # each machine that received has its own


def test_what_was_received_before_it_was_removed_is_not_stored_twice(delivered):
    replayed = {name: delivered.content[name] for name in delivered.inbox()}
    assert len(delivered.owner.receive().received) == 1
    delivered.content.update(replayed)
    for machine in (delivered.owner, delivered.machine("second")):
        before = [item.snapshots for item in machine.histories()]

        (again,) = machine.receive().received

        assert (again.snapshots, delivered.inbox()) == ((), [])
        assert [item.snapshots for item in machine.histories()] == before == [1]
        delivered.content.update(replayed)


def test_each_root_of_each_writer_gets_a_history_of_its_own(scene):
    """With one invitation as well, which several sandboxes may share."""
    shared = scene.owner.invite(None, MemberRole.WRITER)
    other = scene.owner.invite(None, MemberRole.WRITER)
    for name, invitation in (("red", shared), ("green", shared), ("blue", other)):
        scene.work(name, result=name.encode())
        scene.deliver(name, invitation)

    received = scene.owner.receive().received

    assert len({item.history_id for item in received}) == 3
    assert len({item.writer for item in received}) == 2
    assert {item.history_name.partition("@")[0][24:] for item in received} == {
        "red",
        "green",
        "blue",
    }


def test_a_thief_of_a_writer_reads_nothing_not_even_what_it_delivered(delivered):
    """With its invitation, its store, and a copy of the whole bucket, before and after."""
    files = dict(delivered.content)
    delivered.owner.receive()
    files |= delivered.content
    names = delivered.handle("thief")
    opener = lambda _url, make=False: MemoryBlobs(files)  # noqa: E731 - as in other tests
    stolen = delivered.invitation
    known = b"".join(files[name] for name in files)
    assert b"the work of red" not in known

    opened = []
    public = stolen.writer().signer.public
    for keys in (stolen.seed, stolen.inbox):  # all that it has, taken for any key
        sealer = Encrypted(MasterKeys(b"\1\0\0\0\1" + keys), stolen.remote_id)
        for name, data in files.items():
            for read in (sealer.open, partial(sealer.open_delivered, key_of=lambda _: public)):
                with suppress(TreesnapError):
                    opened.append(read(name, data))
    assert opened == []
    for secret in (Secret.raw_key(stolen.seed.hex()), Secret.passphrase(stolen.to_text())):
        with pytest.raises(TreesnapError):
            Remotes(names, lambda _, secret=secret: lambda: secret, opener).add("backup", URL)


def test_the_secret_of_a_file_in_the_inbox_is_gone(delivered):
    """It follows from random bytes that are kept nowhere: with the seed alone, other keys come."""
    sealer = InboxSealer(delivered.invitation)
    for name in delivered.inbox():
        prefix = name[:-32]

        made = sealer.seal(prefix, b"")

        assert made.name != name
        assert delivered.content[name][172:204] != made.data[172:204]


def test_a_thief_of_a_writer_speaks_as_no_other(delivered):
    other = delivered.owner.invite(None, MemberRole.WRITER)
    other_id = other.machine_id.hex()
    stolen = InboxSealer(delivered.invitation)
    letter = DELIVERY.seal(Delivery(bytes(16), "desk@desk", (), ()))
    mine = stolen.seal(DeliveryName(stolen.writer_id, 0, 0).prefix, letter)
    forged = stolen.seal(DeliveryName(bytes.fromhex(other_id), 0, 0).prefix, letter)
    stranger = InboxSealer(
        Invitation(other.remote_id, other.generation, other.algorithm, other.inbox, os.urandom(32))
    )
    strange = stranger.seal(DeliveryName(stranger.writer_id, 0, 0).prefix, letter)
    renamed = mine.name.replace(stolen.writer_id.hex(), other_id)
    packs = [DeliveryName(bytes.fromhex(other_id), 0, 1, bytes(16))]
    of_others = stolen.seal(
        DeliveryName(stolen.writer_id, 0, 0).prefix,
        DELIVERY.seal(Delivery(bytes(16), "desk@desk", (), tuple(packs))),
    )
    bad = {forged.name: forged.data, strange.name: strange.data, renamed: mine.data}
    bad[of_others.name] = of_others.data
    delivered.content |= bad
    state = Encrypted(MasterKeys.new(), delivered.invitation.remote_id)
    number = state_name(1 << 40)
    forged_state = REMOTE_STATE.seal(RemoteState(epoch=1 << 40))
    signer = delivered.invitation.writer().signer

    result = delivered.owner.receive()

    assert set(result.left) == set(bad)
    assert [len(item.snapshots) for item in result.received] == [1]
    before = delivered.owner.histories()
    delivered.content[number] = state.sign(number, forged_state, signer)
    assert delivered.owner.push().snapshots == ()
    assert delivered.owner.histories() == before


def test_no_delivery_is_taken_that_was_changed(delivered):
    """Any bit of any file, or a file that is missing; nothing of it is stored."""
    whole = dict(delivered.content)
    others = {name: data for name, data in whole.items() if not name.startswith("inbox/")}
    for name in delivered.inbox():
        size = len(whole[name])
        for at in (None, *range(0, 8 * size, sized(8 * size // 7, 8 * size // 200))):
            delivered.content.clear()
            delivered.content |= whole
            if at is None:
                del delivered.content[name]
            else:
                data = bytearray(whole[name])
                data[at // 8] ^= 1 << at % 8
                delivered.content[name] = bytes(data)

            result = delivered.owner.receive()

            assert result.received == ()
            assert len(result.left) == (0 if at is None and "-00000000-" in name[30:] else 1)
            assert delivered.owner.histories() == ()
            assert others.items() <= delivered.content.items()


def test_a_delivery_that_relies_on_a_lost_one_is_named_and_delivered_whole(delivered):
    for name in delivered.inbox():
        del delivered.content[name]
    delivered.work("red", more=b"more")
    delivered.deliver("red", delivered.invitation)

    left = delivered.owner.receive().left

    assert ["delivers it again with --whole" in why for why in left.values()] == [True]
    done = delivered.deliver("red", delivered.invitation, whole=True)
    assert len(done.snapshots) == 2
    received = delivered.owner.receive().received
    assert tuple(each for item in received for each in item.snapshots) == done.snapshots
    delivered.owner.receive()
    assert delivered.inbox() == []


def test_a_writer_that_was_removed_or_whose_keys_were_rotated_delivers_no_more(delivered):
    other = delivered.owner.invite(None, MemberRole.WRITER)
    first, _ = sorted(writers(delivered.owner))
    removed = delivered.owner.revoke("backup", first[:8]).member.id
    assert removed not in writers(delivered.owner)
    for invitation, name in ((delivered.invitation, "red"), (other, "green")):
        delivered.work(name, more=b"more")
        delivered.deliver(name, invitation)

    assert len({item.writer for item in delivered.owner.receive().received}) == 1
    warned = Warned()
    watched = treesnap.open(
        delivered.base / "desk", delivered.base / "store of desk", monitor=warned
    )
    for remotes in (delivered.owner, Remotes(watched, secret_of, delivered.opener)):
        remotes.rotate_keys()
    assert warned.codes == []  # there was none left to end
    delivered.owner.invite(None, MemberRole.WRITER)
    Remotes(watched, secret_of, delivered.opener).rotate_keys()
    assert warned.codes == [WarningCode.INVITATIONS_ENDED]
    assert writers(delivered.owner) == ()
    delivered.work("green", again=b"more")
    delivered.deliver("green", other)
    result = delivered.owner.receive()
    assert (result.received, len(result.left) > 0) == ((), True)
    with pytest.raises(NotFound, match="No machine"):
        delivered.owner.revoke("backup", first)
    newer = delivered.owner.invite(None, MemberRole.WRITER)
    delivered.deliver("green", newer, whole=True)
    assert [len(item.snapshots) for item in delivered.owner.receive().received] == [2]


def test_a_server_that_brings_a_removed_writer_back_is_refused(delivered):
    """It puts an older list of the machines back; nothing of the inbox is received."""
    older = {name for name in delivered.content if name.startswith("members/")}
    delivered.owner.revoke("backup", writers(delivered.owner)[0])
    for name in [name for name in delivered.content if name.startswith("members/")]:
        if name not in older:
            del delivered.content[name]

    with pytest.raises(Refused, match="list 1 of its machines, and had list 2") as refused:
        delivered.owner.receive()

    assert refused.value.code is ErrorCode.REMOTE_SET_BACK
    assert not any(name.startswith("commits/") for name in delivered.content)


def test_only_an_encrypted_remote_has_writers(tmp_path):
    content: dict[str, bytes] = {}
    handle = treesnap.open(tmp_path / "desk", tmp_path / "store")
    remotes = Remotes(handle, opener=lambda _url, make=False: MemoryBlobs(content))
    remotes.add("backup", URL, encrypted=False)
    for work in (lambda: remotes.invite(None, MemberRole.WRITER), remotes.members):
        with pytest.raises(Refused, match="not encrypted"):
            work()


def test_an_invitation_is_read_as_it_is_given_and_refused_when_it_was_changed():
    keys = MasterKeys.new().rotated(Algorithm.CHACHA20_POLY1305).of_remote(REMOTE_ID)[2]
    made = Invitation.new(keys, REMOTE_ID)
    text = made.to_text()

    for given in (text, f" {text}\n", text.upper().replace("TREESNAP-WRITER", "treesnap-writer")):
        read = Invitation.from_text(given)
        assert read.to_text() == text
        assert read.writer().signer.public == key_signer(made.seed).public
    for bad in (
        "",
        "5a" * 32,
        text[:-1],
        f"{text}a",
        *(text[:at] + "b" + text[at + 1 :] for at in range(16, len(text)) if text[at] != "b"),
    ):
        with pytest.raises(InvalidArgument, match="not an invitation"):
            Invitation.from_text(bad)
    assert made.seed.hex() not in f"{made!r} {vars(InboxSealer(made))!r}"


@pytest.mark.parametrize("algorithm", Algorithm)
def test_repeated_random_bytes_give_two_contents_two_keys(algorithm):
    """As on a machine that was restored twice from one memory image."""
    master = MasterKeys.new(algorithm)
    invitation = Invitation.new(master.of_remote(REMOTE_ID)[1], REMOTE_ID)
    sealer = InboxSealer(invitation, random=bytes)
    prefix = DeliveryName(sealer.writer_id, 0, 1).prefix
    other = DeliveryName(sealer.writer_id, 0, 2).prefix

    made = [sealer.seal(*each) for each in ((prefix, b"a"), (prefix, b"b"), (other, b"a"))]

    assert made[0] == sealer.seal(prefix, b"a")
    assert len({file.name[-32:] for file in made}) == 3
    assert len({file.data[172:204] for file in made}) == 3  # the public keys of the exchange
    reader = Encrypted(master, REMOTE_ID)
    public = invitation.writer().signer.public
    contents = [reader.open_delivered(*file, lambda _: public) for file in made]
    assert contents == [b"a", b"b", b"a"]


def test_no_key_in_the_inbox_is_of_low_order():
    """An exchange with such a key would give everybody the keys of the file."""
    master = MasterKeys.new()
    keys = master.of_remote(REMOTE_ID)[1]
    own = Invitation.new(keys, REMOTE_ID)
    for low in (bytes(32), b"\1" + bytes(31)):
        bad = Invitation(REMOTE_ID, 1, keys.algorithm, low, own.seed)
        with pytest.raises(InvalidArgument, match="not one"):
            InboxSealer(bad).seal("inbox/0123456789abcdef-00000000-00000000-", b"secret")
        assert keys.delivered(low) is None


def test_junk_in_the_inbox_is_not_fetched(delivered):
    huge = {
        f"inbox/{bytes(8).hex()}-{0:08x}-{0:08x}-{number:032x}": bytes(1 << 20)
        for number in range(9)
    }
    delivered.content |= huge
    delivered.content["inbox/0"] = b"no name"
    fetched = []

    of_other = delivered.owner.invite(None, MemberRole.WRITER)
    known = InboxSealer(of_other)
    forged = DeliveryName(known.writer_id, 0, 0, bytes(16))
    huge[str(forged)] = bytes(1 << 20)
    delivered.content[str(forged)] = bytes(1 << 20)

    class Counting(MemoryBlobs):
        def get(self, name: str, size_bytes_max: int = 1 << 28, /) -> bytes:
            fetched.append(name)
            return super().get(name, size_bytes_max)

    other = Remotes(
        delivered.handle("desk"), secret_of, lambda _url, make=False: Counting(delivered.content)
    )
    result = other.receive()

    assert (len(result.received), len(result.left)) == (1, 10)
    assert not huge.keys() & set(fetched)


def test_a_delivery_of_too_many_objects_is_refused_before_anything_is_written(scene, monkeypatch):
    monkeypatch.setattr(deliveries, "OBJECTS_MAX", 30)
    monkeypatch.setattr(push, "PACK_SIZE_TARGET", 1 << 16)
    invitation = scene.owner.invite(None, MemberRole.WRITER)
    random = Random(1)
    scene.work("box", **{f"file-{number}": random.randbytes(1 << 14) for number in range(40)})

    with pytest.raises(InvalidArgument, match="at most 30 objects"):
        scene.deliver("box", invitation)

    assert scene.inbox() == []


@pytest.mark.parametrize("name", ["deliver", "receive"])
def test_a_server_that_fails_at_any_request_loses_and_doubles_nothing(delivered, name):
    """What failed is done again; all that was delivered is received, once."""
    delivered.owner.receive()
    delivered.work("red", more=os.urandom(3000))
    for number in range(99):
        if name == "receive":
            delivered.deliver("red", delivered.invitation)
        blobs = FailingBlobs(delivered.content, number)
        opener = lambda _url, make=False, blobs=blobs: blobs  # noqa: E731 - as in other tests
        writer = Remotes(delivered.handle("red"), no_secret, opener)
        owner = Remotes(delivered.handle("desk"), secret_of, opener)
        try:
            if name == "deliver":
                writer.deliver(URL, delivered.invitation)
            else:
                owner.receive()
        except RemoteFailed:
            delivered.deliver("red", delivered.invitation)
        else:
            break
        delivered.owner.receive()
        (history,) = delivered.owner.histories()
        assert history.snapshots == len(delivered.handle("red").list()) == 2 + number
        assert not [item for item in delivered.inbox() if "-00000000-" in item[30:]]
        delivered.work("red", more=os.urandom(3000))
    assert number > 1
    assert delivered.owner.verify(read_data=True).problems == ()


@pytest.mark.parametrize("seed", range(sized(4, 60)))
def test_what_a_hostile_writer_makes_up_stops_no_other_delivery(delivered, seed):
    """Its files are authentic; what is in them is another tree, record or pack than any is."""
    random = Random(seed)
    invitation = delivered.owner.invite(None, MemberRole.WRITER)
    sealer = InboxSealer(invitation)

    def spoiled(data: bytes) -> bytes:
        changed = bytearray(data)
        for _ in range(random.choice([0, 1, 1, 2, 9])):
            changed[random.randrange(len(changed))] = random.randrange(256)
        return bytes(changed[: random.choice([len(data), len(data), len(data) - 1, 3])])

    def put(part: int, content: bytes) -> DeliveryName:
        file = sealer.seal(DeliveryName(sealer.writer_id, 0, part).prefix, content)
        delivered.content[file.name] = file.data
        return DeliveryName.parse(file.name)

    handle = delivered.handle("red")
    with opened(handle.context, "look") as session:
        log, source = session.store.snapshots, LocalObjects(session.store)
        (name,) = log.names(session.root.id)
        payload = log.payload(session.root.id, name)
        needed = [*needed_objects(source, [payload], source.seen())]
        objects = [(item.kind, source.get(item.kind, item.id)) for item in needed]
    bad = [(kind, spoiled(data) if random.random() < 0.3 else data) for kind, data in objects]
    root = next(data for kind, data in bad if kind is ObjectKind.TREE)
    record_ = decode_snapshot(payload)
    root_id = object_id(ObjectKind.TREE, root)
    own = encode_snapshot(record_._replace(root=record_.root._replace(content=root_id)))
    blocks = [encode_objects([(kind, object_id(kind, data), data)]) for kind, data in bad if data]
    packs = [
        put(1, content) for content in (encode_pack(blocks)[0], spoiled(encode_pack(blocks)[0]))
    ]
    letter = Delivery(
        random.randbytes(16),
        random.choice(["", "desk@desk", "\x1b[2J\n", "x" * 10_000, "../.."]),
        (random.choice([own, payload, spoiled(own)]),) * random.choice([0, 1, 2]),
        tuple(random.sample(packs, random.randrange(3))),
    )
    sealed = DELIVERY.seal(letter)
    put(0, random.choice([sealed, sealed, sealed, spoiled(sealed), b""]))

    result = delivered.owner.receive()

    honest = delivered.invitation.writer().signer.id.hex()
    assert [len(item.snapshots) for item in result.received if item.writer == honest] == [1]
    assert delivered.owner.verify(read_data=True).problems == ()
    for history in delivered.owner.histories():
        place = delivered.base / f"again {history.id}"
        given = treesnap.open(place, delivered.base / f"store of {history.id}")
        Remotes(given, secret_of, delivered.opener).clone(URL, history.id)


class FailingBlobs(MemoryBlobs):
    """Fails at one request, before or after it is done, and at all that follow."""

    def __init__(self, content: dict[str, bytes], number: int) -> None:
        super().__init__(content)
        self._left = number // 2
        self._is_done_first = number % 2 == 1

    def _count(self) -> bool:
        self._left -= 1
        if self._left < -1 or (self._left == -1 and not self._is_done_first):
            raise RemoteFailed("the server is gone")
        return self._left == -1

    def put(self, name, data, /):
        is_failing = self._count()
        super().put(name, data)
        if is_failing:
            raise RemoteFailed("the answer is lost")

    def delete(self, names, /):
        is_failing = self._count()
        found = super().delete(names)
        if is_failing:
            raise RemoteFailed("the answer is lost")
        return found


def test_what_is_under_way_is_left_alone(delivered):
    letter = next(name for name in delivered.inbox() if "-00000000-" in name[30:])
    kept = delivered.content.pop(letter)

    result = delivered.owner.receive()

    assert (result.received, dict(result.left), result.incomplete) == ((), {}, 1)
    delivered.content[letter] = kept
    assert len(delivered.owner.receive().received) == 1


def test_a_key_that_says_it_is_a_writer_of_another_remote_opens_nothing():
    master = MasterKeys.new()
    invitation = Invitation.new(master.of_remote(REMOTE_ID)[1], REMOTE_ID)
    sealer = InboxSealer(invitation)
    blobs = MemoryBlobs()
    file = sealer.seal(DeliveryName(sealer.writer_id, 0, 0).prefix, b"x")
    blobs.put(file.name, file.data)
    files = SealedFiles(Doubled(blobs), Encrypted(master, bytes(16)))

    inbox = Inbox(files)

    (letter,) = inbox.letters()
    with pytest.raises(Corrupt, match="not of a writer"):
        inbox.read(letter)
