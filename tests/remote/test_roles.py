"""Roles of machines on a remote: what each may sign, and how one is revoked."""

from __future__ import annotations

import shutil
from contextlib import nullcontext
from functools import partial
from pathlib import Path

import pytest

import treesnap
from blob_doubles import MemoryBlobs, WrappedBlobs
from treesnap.core.codec.index import encode_index
from treesnap.core.fs.local import LocalFileSystem
from treesnap.core.model.errors import (
    Corrupt,
    ErrorCode,
    InvalidArgument,
    NotFound,
    Refused,
    RemoteFailed,
    RemoteLocked,
    TreesnapError,
)
from treesnap.core.store.layout import Layout
from treesnap.core.store.maintenance.retention import Policy
from treesnap.remote import MemberRole, Remotes
from treesnap.remote.invitation import Invitation
from treesnap.remote.keys import MasterKeys, Secret, new_machine_slot, open_slots
from treesnap.remote.records import (
    COMMIT,
    DELETION,
    FILE_ID_SIZE,
    HEAD,
    MEMBERS,
    REMOTE_STATE,
    Deletion,
    Folder,
    Head,
    HeadName,
    HistoryName,
    MemberList,
    MemberRow,
    RemoteCommit,
    RemoteName,
    RemoteState,
    RoleLimit,
    file_number,
    members_name,
    state_name,
)
from treesnap.remote.registry import Registry
from treesnap.remote.sealing import Encrypted

pytestmark = pytest.mark.sampled(6)

URL = "s3://bucket"
OLD, NEW = "5a" * 32, "6b" * 32
SEQUENCE_MAX = (1 << 32) - 1
"""The highest number that the name of a push has room for."""


def key(text: str):
    return lambda _known: lambda: Secret.raw_key(text)


def no_secret(_known):
    def refuse() -> Secret:
        raise AssertionError("a machine that was invited was asked for a secret")

    return refuse


class Killed(Exception):
    """Stands for the end of a process."""


class Dying(WrappedBlobs):
    """Ends the process at a request that changes something."""

    def __init__(self, inner, left: list[int]) -> None:
        super().__init__(inner)
        self._left = left

    def around(self, method, proceed, arguments):
        if method in {"put", "create", "delete"}:
            self._left[0] -= 1
            if self._left[0] < 0:
                raise Killed
        return proceed()


class Scene:
    """A remote in memory that ``desk`` owns, and machines that it invited."""

    def __init__(self, base: Path) -> None:
        self.base = base
        self.content: dict[str, bytes] = {}
        self.desk = self.owner("desk")

    def opener(self, _url: str, *, make: bool = False) -> MemoryBlobs:
        return MemoryBlobs(self.content)

    def handle(self, name: str) -> treesnap.Handle:
        (self.base / name).mkdir(exist_ok=True)
        return treesnap.open(self.base / name, self.base / f"store of {name}")

    def owner(self, name: str, secret: str = OLD) -> Remotes:
        remotes = Remotes(self.handle(name), key(secret), self.opener)
        remotes.add("backup", URL)
        return remotes

    def invited(self, name: str, role: MemberRole = MemberRole.MEMBER) -> Remotes:
        invitation = self.desk.invite("backup", role)
        remotes = Remotes(self.handle(name), no_secret, self.opener)
        remotes.add("backup", URL, invitation=Invitation.from_text(invitation.to_text()))
        return remotes

    def seed(self, name: str) -> bytes:
        """Returns the seed of a machine, as a thief of its store reads it."""
        registry = Registry(LocalFileSystem(), Layout(str(self.base / f"store of {name}")))
        return registry.machine(registry.get("backup").remote_id).seed()

    def sealer(self, name: str) -> Encrypted:
        """Returns what a thief of an invited machine seals with."""
        registry = Registry(LocalFileSystem(), Layout(str(self.base / f"store of {name}")))
        remote_id = registry.get("backup").remote_id
        secret = registry.machine(remote_id).secret()
        assert secret is not None
        slots = {k: v for k, v in self.content.items() if k.startswith("keys/") and k[-2:] != "-c"}
        return Encrypted(open_slots(slots, secret, remote_id).keys, remote_id)

    def head_of(self, name: str) -> Head:
        """Returns what a machine said with its push to have seen."""
        sealer = self.sealer(name)
        signer = sealer.signer(self.seed(name))
        (commit,) = (each for each in self.names("commits") if signer.id.hex() in each)
        keys = {signer.id: signer.public}
        return HEAD.decode(sealer.open_signed(commit, self.content[commit], keys.get).statement)

    def forge_commit(self, name: str, head: Head, sequence: int) -> None:
        """Stores a push of nothing with what a thief of an invited machine has."""
        sealer = self.sealer(name)
        signer = sealer.signer(self.seed(name))
        nothing = HistoryName(bytes(FILE_ID_SIZE), "")
        commit = RemoteCommit(nothing, (), (), bytes(encode_index([], {})), b"")
        prefix = RemoteName(Folder.COMMITS, 1, b"", signer.id, sequence).prefix
        file = sealer.seal(prefix, COMMIT.seal(commit), signer, HEAD.payload(head))
        self.content[file.name] = file.data

    def push(self, name: str, remotes: Remotes, text: str) -> None:
        Path(self.base, name, "plants").write_text(text)
        self.handle(name).create()
        assert len(remotes.push("backup").snapshots) == 1

    def id_of(self, remotes: Remotes) -> str:
        (own,) = (item.id for item in remotes.members("backup") if item.is_own)
        return own

    def names(self, folder: str) -> list[str]:
        return [name for name in self.content if name.startswith(f"{folder}/")]

    def clone(self, history: str, secret: str = OLD) -> str:
        """Returns what a new machine gets of a history."""
        place = self.base / f"clone {len(list(self.base.iterdir()))}"
        given = treesnap.open(place, self.base / f"store of {place.name}")
        Remotes(given, key(secret), self.opener).clone(URL, history)
        return (place / "plants").read_text()

    def shown(self, remotes: Remotes) -> list[str]:
        return sorted(item.name.partition("@")[0] for item in remotes.histories("backup"))


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path)


def refused_by_role(work) -> None:
    with pytest.raises(Refused) as refused:
        work()
    assert refused.value.code is ErrorCode.REMOTE_ROLE


def test_an_invited_member_reads_and_pushes_without_a_secret(scene):
    scene.push("desk", scene.desk, "roses")
    laptop = scene.invited("laptop")
    scene.push("laptop", laptop, "tulips")

    assert scene.shown(laptop) == scene.shown(scene.desk) == ["desk", "laptop"]
    assert scene.clone("laptop") == "tulips"
    place = treesnap.open(scene.base / "again", scene.base / "store of laptop")
    Remotes(place, no_secret, scene.opener).clone("backup", "desk")
    assert (scene.base / "again" / "plants").read_text() == "roses"
    assert [(item.role, item.is_own) for item in scene.desk.members()] == [
        ("owner", True),
        ("member", False),
    ]
    assert laptop.verify(read_data=True).problems == ()
    assert scene.desk.collect().packs == 0


def test_a_member_may_do_no_more_than_that(scene):
    """Its own program refuses, with nothing written; what if it did not, is below."""
    scene.push("desk", scene.desk, "roses")
    laptop = scene.invited("laptop")
    scene.push("laptop", laptop, "tulips")
    scene.push("laptop", laptop, "peas")
    before = dict(scene.content)
    desk = scene.id_of(scene.desk)

    for work in (
        laptop.collect,
        laptop.receive,
        laptop.rotate_keys,
        partial(laptop.delete, None, "desk"),
        partial(laptop.delete, None, "laptop"),
        partial(laptop.prune, policy=Policy(keep_last=1)),
        partial(laptop.invite, None, MemberRole.MEMBER),
        partial(laptop.revoke, None, desk, lambda: Secret.raw_key(NEW)),
        partial(laptop.demote, None, desk),
        partial(laptop.add_key, None, lambda: Secret.raw_key(NEW)),
        partial(laptop.change_secret, None, lambda: Secret.raw_key(NEW)),
        partial(laptop.remove_key, None, ""),
    ):
        with pytest.raises(Refused):
            work()

    assert scene.content == before
    scene.push("laptop", laptop, "beans")


def test_what_a_thief_of_a_member_deletes_or_collects_counts_for_nothing(scene):
    """With all that the member has, and a program that does what the member may not."""
    scene.push("desk", scene.desk, "roses")
    laptop = scene.invited("laptop")
    scene.push("laptop", laptop, "tulips")
    sealer = scene.sealer("laptop")
    signer = sealer.signer(scene.seed("laptop"))
    lists, states = len(scene.names("members")) // 2, len(scene.names("state")) // 2
    commits = [RemoteName.parse(name) for name in scene.names("commits")]
    for commit in commits:
        gone = DELETION.seal(Deletion(commit, tuple(scene_ids(scene))))
        prefix = RemoteName(Folder.DELETIONS, 1, b"", signer.id).prefix
        file = sealer.seal(prefix, gone, signer)
        scene.content[file.name] = file.data
    state = state_name(states)
    empty = REMOTE_STATE.seal(RemoteState(epoch=50, closing=50, floor=50))
    scene.content[state] = sealer.sign(state, empty, signer)
    mine = MemberList(bytes(16), (MemberRow(signer.public, MemberRole.OWNER),))
    name = members_name(lists)
    scene.content[name] = sealer.sign(name, MEMBERS.seal(mine), signer)

    for remotes in (scene.desk, laptop, scene.owner("new")):
        assert scene.shown(remotes) == ["desk", "laptop"]
        assert {item.snapshots for item in remotes.histories("backup")} == {1}
    problems = {problem.where for problem in scene.desk.verify().problems}
    assert state in problems
    scene.desk.collect()
    scene.push("desk", scene.desk, "peas")
    assert [item.role for item in scene.desk.members()] == ["owner", "member"]
    assert scene.clone("laptop") == "tulips"
    assert scene.clone("desk") == "peas"


LIES = {
    "a state that never was": lambda _: Head(1 << 40, bytes(16)),
    "another state": lambda _: Head(0, b"x" * 16),
    "a push that never was": lambda desk: Head(0, bytes(16), (HeadName(desk, 1 << 30, bytes(16)),)),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_member_that_says_to_have_seen_what_is_not_there_is_revoked(scene, lie):
    """Only the server could be to blame else, so all machines refuse until then."""
    scene.push("desk", scene.desk, "roses")
    laptop = scene.invited("laptop")
    scene.push("laptop", laptop, "tulips")
    desk, thief = (bytes.fromhex(scene.id_of(remotes)) for remotes in (scene.desk, laptop))
    scene.forge_commit("laptop", LIES[lie](desk), sequence=2)

    with pytest.raises(Refused) as refused:
        scene.push("desk", scene.desk, "peas")
    assert refused.value.code is ErrorCode.REMOTE_SET_BACK
    scene.desk.revoke(None, thief.hex())

    assert scene.desk.push().snapshots
    assert scene.shown(scene.owner("new")) == ["desk", "laptop"]
    assert scene.clone("laptop") == "tulips"
    assert scene.desk.verify(read_data=True).problems == ()


def test_a_machine_is_not_revoked_while_another_one_saw_what_is_not_there(scene):
    scene.push("desk", scene.desk, "roses")
    laptop, other = scene.invited("laptop"), scene.invited("other")
    scene.push("laptop", laptop, "tulips")
    scene.push("other", other, "peas")
    identity = scene.id_of(other)
    scene.forge_commit("laptop", Head(1 << 40, bytes(16)), sequence=2)
    before = dict(scene.content)

    with pytest.raises(Refused) as refused:
        scene.desk.revoke(None, identity)

    assert refused.value.code is ErrorCode.REMOTE_SET_BACK
    assert scene.content == before


def test_a_push_with_the_highest_number_costs_no_more_than_another_one(scene):
    """Which a thief of a member says to be its next one."""
    scene.push("desk", scene.desk, "roses")
    laptop = scene.invited("laptop")
    scene.push("laptop", laptop, "tulips")
    head = scene.head_of("laptop")._replace(void=((2, SEQUENCE_MAX - 1),))
    scene.forge_commit("laptop", head, sequence=SEQUENCE_MAX)

    assert scene.shown(scene.owner("new")) == ["desk", "laptop"]
    scene.push("desk", scene.desk, "peas")


def scene_ids(scene: Scene) -> list[bytes]:
    return [
        bytes.fromhex(item.id) for name in ("desk", "laptop") for item in scene.handle(name).list()
    ]


def test_a_member_has_no_key_that_signs_lists_of_machines(scene):
    scene.invited("laptop")

    refused_by_role(lambda: scene.sealer("laptop").owner)


def test_a_collector_deletes_and_collects_and_enrols_no_machine(scene):
    scene.push("desk", scene.desk, "roses")
    scene.push("desk", scene.desk, "tulips")
    box = scene.invited("box", MemberRole.COLLECTOR)

    box.delete(None, "desk")
    assert box.collect().packs > 0

    assert scene.shown(scene.desk) == []
    assert scene.desk.verify(read_data=True).problems == ()
    for work in (
        box.rotate_keys,
        partial(box.invite, None, MemberRole.MEMBER),
        partial(box.revoke, None, scene.id_of(scene.desk), lambda: Secret.raw_key(NEW)),
    ):
        refused_by_role(work)
    scene.push("box", box, "peas")
    assert scene.clone("box") == "peas"


def test_a_collector_that_became_a_member_collects_no_more(scene):
    """Nor does what it signs later count for those who know it as a collector."""
    scene.push("desk", scene.desk, "roses")
    laptop, other = scene.invited("laptop", MemberRole.COLLECTOR), scene.invited("other")
    identity = scene.id_of(laptop)
    assert laptop.collect() is not None
    scene.shown(other)

    assert scene.desk.demote(None, identity).role == "member"

    refused_by_role(laptop.collect)
    refused_by_role(partial(laptop.delete, None, "desk"))
    scene.push("laptop", laptop, "tulips")
    sealer = scene.sealer("laptop")
    number = max(file_number(name) or 0 for name in scene.names("state")) + 1
    scene.content[state_name(number)] = sealer.sign(
        state_name(number),
        REMOTE_STATE.seal(RemoteState(epoch=50, closing=50, floor=50)),
        sealer.signer(scene.seed("laptop")),
    )
    for remotes in (other, scene.desk, laptop):
        assert scene.shown(remotes) == ["desk", "laptop"]
    assert scene.desk.collect() is not None
    assert scene.desk.verify(read_data=True).problems == ()
    refused_by_role(partial(scene.desk.demote, None, identity))


def test_an_owner_is_what_opens_a_remote_with_a_secret(scene):
    laptop = scene.owner("laptop")
    scene.push("laptop", laptop, "tulips")

    refused_by_role(partial(scene.desk.demote, None, scene.id_of(laptop)))
    with pytest.raises(InvalidArgument):
        scene.desk.invite(None, MemberRole.OWNER)


def test_an_owner_lifts_the_limits_that_a_stolen_collector_put_on_it(scene):
    """A collector can write any state; what it cannot do is to keep an owner out for ever."""
    scene.push("desk", scene.desk, "roses")
    box = scene.invited("box", MemberRole.COLLECTOR)
    limits = (RoleLimit(bytes.fromhex(scene.id_of(scene.desk)), MemberRole.WRITER),)
    sealer = scene.sealer("box")
    name = state_name(max(file_number(name) or 0 for name in scene.names("state")) + 1)
    scene.content[name] = sealer.sign(
        name, REMOTE_STATE.seal(RemoteState(limits=limits)), sealer.signer(scene.seed("box"))
    )
    for work in (scene.desk.push, scene.desk.collect):
        Path(scene.base, "desk", "plants").write_text("tulips")
        scene.handle("desk").create()
        refused_by_role(work)

    scene.desk.repair(rebuild=True)
    scene.desk.revoke(None, scene.id_of(box))

    assert scene.desk.push().snapshots
    assert scene.desk.verify(read_data=True).problems == ()


@pytest.mark.parametrize("role", [MemberRole.MEMBER, MemberRole.COLLECTOR])
def test_what_a_revoked_machine_pushed_stays_and_what_it_pushes_later_does_not_count(scene, role):
    """Also for a machine that was at work before, and with a program that goes on pushing."""
    scene.push("desk", scene.desk, "roses")
    laptop, other = scene.invited("laptop", role), scene.invited("other")
    scene.push("laptop", laptop, "tulips")
    scene.push("other", other, "peas")
    scene.shown(other)
    before = dict(scene.content)
    commit = max(scene.names("commits"), key=lambda name: (scene.id_of(laptop) in name, name))

    done = scene.desk.revoke(None, scene.id_of(laptop)[:6])

    assert (done.member.role, done.generation) == (role.words, 2)
    assert scene.shown(other) == scene.shown(scene.desk) == ["desk", "laptop", "other"]
    assert scene.clone("laptop") == "tulips"
    assert scene.desk.verify(read_data=True).problems == ()
    with pytest.raises((RemoteLocked, Refused)):
        laptop.push("backup")
    # The thief of its store has a copy of the bucket as it was, and can write to it as it is.
    theirs = dict(before)
    thief = Remotes(scene.handle("laptop"), no_secret, lambda _url, make=False: MemoryBlobs(theirs))
    scene.push("laptop", thief, "weeds")
    forged = {name: data for name, data in theirs.items() if name not in before}
    assert {name.partition("/")[0] for name in forged} == {"packs", "commits"}
    scene.content |= forged | {commit: before[commit]}

    for remotes in (other, scene.desk, scene.owner("new")):
        histories = {item.name.partition("@")[0]: item for item in remotes.histories("backup")}
        assert histories["laptop"].snapshots == 1
    scene.push("other", other, "beans")
    scene.desk.collect()
    scene.desk.collect()
    assert not forged.keys() & scene.content.keys()
    assert scene.clone("laptop") == "tulips"
    assert scene.clone("other") == "beans"
    assert scene.desk.verify(read_data=True).problems == ()


def test_a_revoked_machine_reads_nothing_that_is_stored_later(scene):
    laptop, other = scene.invited("laptop"), scene.invited("other")
    scene.push("laptop", laptop, "tulips")
    old_slots = {name: scene.content[name] for name in scene.names("keys")}

    scene.desk.revoke(None, "laptop@" + scene.desk.histories()[0].name.partition("@")[2])
    scene.push("other", other, "peas")

    before = set(old_slots)
    scene.content |= old_slots  # a server that helps the thief
    sealer = scene.sealer("laptop")
    new = [name for name in scene.names("packs") if scene.id_of(other) in name]
    assert new
    for name in new:
        with pytest.raises(Corrupt):
            sealer.open(name, scene.content[name])
    for name in before:
        del scene.content[name]
    with pytest.raises(RemoteLocked):
        laptop.histories("backup")
    assert scene.clone("other") == "peas"


def test_an_owner_is_revoked_by_another_secret(scene):
    """A thief of its store may know the old one."""
    laptop, other = scene.owner("laptop"), scene.invited("other")
    scene.push("laptop", laptop, "tulips")
    shutil.copytree(scene.base / "store of laptop", scene.base / "stolen")
    before = dict(scene.content)
    with pytest.raises(Refused) as refused:
        scene.desk.revoke(None, "laptop@" + scene.desk.histories()[0].name.partition("@")[2])
    assert refused.value.code is ErrorCode.SECRET_IN_USE
    assert scene.content == before

    scene.desk.revoke(None, scene.id_of(laptop), lambda: Secret.raw_key(NEW))

    desk = Remotes(scene.handle("desk"), key(NEW), scene.opener)
    assert [item.role for item in desk.members()] == ["owner", "member"]
    scene.push("other", other, "peas")
    scene.push("desk", desk, "roses")
    scene.content |= {name: before[name] for name in before if name.startswith("keys/")}
    for work in (laptop.push, laptop.histories, laptop.collect):
        with pytest.raises(TreesnapError):
            work()
    for name in [name for name in before if name.startswith("keys/")]:
        del scene.content[name]
    theirs = dict(before)
    thief = Remotes(scene.handle("laptop"), key(OLD), lambda _url, make=False: MemoryBlobs(theirs))
    scene.push("laptop", thief, "weeds")
    scene.content |= {name: data for name, data in theirs.items() if name not in before}
    for remotes in (desk, other):
        assert {item.snapshots for item in remotes.histories("backup")} == {1}
    assert scene.clone("laptop", NEW) == "tulips"


def test_an_owner_whose_revocation_gets_no_new_secret_goes_on_as_before(scene):
    """What is wrong with the secret is found before the machine is limited, for good."""
    laptop = scene.owner("laptop")
    scene.push("laptop", laptop, "tulips")
    before = dict(scene.content)

    def missing() -> Secret:
        raise Refused("A passphrase is needed", code=ErrorCode.REMOTE_LOCKED)

    for source, code in (
        (missing, ErrorCode.REMOTE_LOCKED),
        (lambda: Secret.raw_key(OLD), ErrorCode.SECRET_IN_USE),
    ):
        with pytest.raises(Refused) as refused:
            scene.desk.revoke(None, scene.id_of(laptop), source)
        assert refused.value.code is code

    assert scene.content == before
    scene.push("laptop", laptop, "peas")
    assert scene.clone("laptop") == "peas"


def test_a_new_secret_for_a_machine_that_knows_none_is_refused(scene):
    """Else its caller takes the old one for changed."""
    laptop = scene.invited("laptop")
    scene.push("laptop", laptop, "tulips")
    before = dict(scene.content)

    with pytest.raises(InvalidArgument, match="is a member, which knows no secret"):
        scene.desk.revoke(None, scene.id_of(laptop), lambda: Secret.raw_key(NEW))

    assert scene.content == before


REVOCATION_REQUESTS = 16
"""How many requests a revocation makes of a remote with three histories."""


@pytest.mark.parametrize("number", range(REVOCATION_REQUESTS + 1))
def test_a_revocation_that_was_killed_is_done_again(scene, number):
    """At any of its requests; no push that was acknowledged is lost meanwhile."""
    scene.push("desk", scene.desk, "roses")
    laptop, other = scene.invited("laptop"), scene.invited("other")
    scene.push("laptop", laptop, "tulips")
    scene.push("other", other, "peas")
    identity, left = scene.id_of(laptop), [number]
    dying = Remotes(
        scene.handle("desk"),
        key(OLD),
        lambda _url, make=False: Dying(MemoryBlobs(scene.content), left),
    )

    is_killed = number < REVOCATION_REQUESTS
    with pytest.raises(Killed) if is_killed else nullcontext():
        dying.revoke(None, identity)

    assert scene.shown(other) == ["desk", "laptop", "other"]
    scene.push("other", other, "beans")
    if identity in [item.id for item in scene.desk.members()]:
        scene.desk.revoke(None, identity)
    scene.desk.repair()
    scene.desk.collect()
    assert scene.shown(other) == scene.shown(scene.desk) == ["desk", "laptop", "other"]
    assert scene.desk.verify(read_data=True).problems == ()
    assert scene.clone("laptop") == "tulips"
    with pytest.raises((Refused, RemoteLocked)):
        laptop.push("backup")


def test_a_copy_of_an_invited_machine_ends_both(scene):
    laptop = scene.invited("laptop")
    scene.push("laptop", laptop, "tulips")
    shutil.copytree(scene.base / "store of laptop", scene.base / "stolen", symlinks=True)
    copy = treesnap.open(scene.base / "laptop", scene.base / "stolen")
    copy.store_trust()
    theirs = Remotes(copy, no_secret, scene.opener)
    Path(scene.base, "laptop", "plants").write_text("weeds")
    copy.create()
    theirs.push("backup")
    Path(scene.base, "laptop", "plants").write_text("peas")
    scene.handle("laptop").create()

    refused_by_role(partial(laptop.push, "backup"))

    again = scene.desk.invite(None, MemberRole.MEMBER)
    laptop.add("backup", URL, invitation=again)
    assert laptop.push("backup").snapshots
    assert scene.desk.verify(read_data=True).problems == ()


def test_a_machine_follows_no_owner_that_its_own_did_not_name(scene):
    """A thief of the old master key, who was shut out, makes slots for machines all the same."""
    laptop = scene.invited("laptop")
    scene.push("laptop", laptop, "tulips")
    stolen = dict(scene.content)
    scene.desk.rotate_keys()
    scene.push("laptop", laptop, "peas")
    registry = Registry(LocalFileSystem(), Layout(str(scene.base / "store of desk")))
    remote_id = registry.get("backup").remote_id
    slots = {k: v for k, v in stolen.items() if k.startswith("keys/") and k[-2:] != "-c"}
    old = open_slots(slots, Secret.raw_key(OLD), remote_id).keys
    assert isinstance(old, MasterKeys)
    invitation = Invitation(
        remote_id, 1, old.generations[1], bytes(32), scene.seed("laptop"), is_writer=False
    )
    forged = old
    for _ in range(2):
        forged = forged.rotated()
    slot = new_machine_slot(forged, invitation.recipient(), remote_id)
    before = dict(scene.content)
    for name in scene.names("keys"):
        del scene.content[name]
    scene.content[slot.name] = slot.data

    with pytest.raises((Corrupt, Refused)):
        laptop.push("backup")

    assert scene.content.keys() <= {*before, slot.name}


def test_an_invitation_is_for_one_remote_and_one_use(scene, tmp_path):
    invitation = scene.desk.invite(None, MemberRole.MEMBER)
    assert Invitation.from_text(invitation.to_text()).to_text() == invitation.to_text()
    writer = scene.desk.invite(None, MemberRole.WRITER)
    laptop = Remotes(scene.handle("laptop"), no_secret, scene.opener)
    with pytest.raises(InvalidArgument, match="deliveries alone"):
        laptop.add("backup", URL, invitation=writer)
    with pytest.raises(InvalidArgument, match="of a writer is for deliveries"):
        laptop.deliver(URL, invitation)
    other: dict[str, bytes] = {}
    with pytest.raises(RemoteFailed):
        Remotes(scene.handle("laptop"), no_secret, lambda _url, make=False: MemoryBlobs(other)).add(
            "backup", URL, invitation=invitation
        )
    assert other == {}
    Remotes(scene.handle("third"), key(NEW), lambda _url, make=False: MemoryBlobs(other)).add(
        "backup", URL
    )
    with pytest.raises(Refused) as refused:
        Remotes(scene.handle("laptop"), no_secret, lambda _url, make=False: MemoryBlobs(other)).add(
            "backup", URL, invitation=invitation
        )
    assert refused.value.code is ErrorCode.REMOTE_REPLACED
    scene.desk.revoke(None, invitation.machine_id.hex())
    with pytest.raises((RemoteLocked, Refused)):
        laptop.add("backup", URL, invitation=invitation)


def test_a_machine_is_named_by_what_it_pushed_if_that_is_clear(scene):
    for name in ("laptop", "other"):
        scene.push(name, scene.invited(name), name)
    host = scene.desk.histories()[0].name.partition("@")[2]
    for words in ("nothing", ""):
        with pytest.raises(NotFound) as missing:
            scene.desk.revoke(None, words)
        assert missing.value.code is ErrorCode.MEMBER_NOT_FOUND
    with pytest.raises(InvalidArgument, match="Several"):
        scene.desk.revoke(None, host)
    refused_by_role(partial(scene.desk.revoke, None, scene.id_of(scene.desk)))

    assert scene.desk.revoke(None, f"other@{host}").member.histories == (f"other@{host}",)
