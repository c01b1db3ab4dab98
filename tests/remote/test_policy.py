"""What the credentials of each role can do, on a server that enforces the printed document."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

import treesnap
from blob_doubles import MemoryBlobs, WrappedBlobs
from oracle import difference, record
from treesnap.core.model.errors import ErrorCode, RemoteFailed
from treesnap.core.store.maintenance.retention import Policy
from treesnap.remote import MemberRole, Remotes, Role
from treesnap.remote.blobs.base import Blobs
from treesnap.remote.keys import Secret
from treesnap.remote.policy import REMOVED, WRITTEN, role_policies

pytestmark = pytest.mark.sampled(10)

URL = "s3://bucket/me"
ACTIONS = {
    "put": "s3:PutObject",
    "create": "s3:PutObject",
    "get": "s3:GetObject",
    "get_ranges": "s3:GetObject",
    "size_bytes": "s3:GetObject",
    "list": "s3:ListBucket",
    "delete": "s3:DeleteObject",
}


class GuardedBlobs(WrappedBlobs):
    """Does what a document of Amazon's IAM allows for ``s3://bucket/me``."""

    def __init__(self, inner: Blobs, document: Any, used: set[tuple[str, str]]) -> None:
        super().__init__(inner)
        self._document = document
        self._used = used
        """Actions that were tried, each with the folder or the file."""

    def around(self, method: str, proceed: Callable[[], Any], arguments: tuple[Any, ...]) -> Any:
        if method == "sweep_unfinished":  # of a bucket, it asks nothing
            return proceed()
        names = arguments[0] if method == "delete" else [arguments[0]]
        refused = [name for name in names if not self._is_allowed(method, name)]
        for name in names:
            self._used.add((ACTIONS[method], re.sub(r"(?<=/).*", "", name)))
        if method == "delete":
            self.inner.delete([name for name in names if name not in refused])
            return refused
        if refused:
            raise RemoteFailed(f"AccessDenied: {method} {refused[0]}", code=ErrorCode.REMOTE_DENIED)
        return proceed()

    def _is_allowed(self, method: str, name: str) -> bool:
        return any(
            statement["Effect"] == "Allow"
            and statement["Action"] == ACTIONS[method]
            and self._is_about(statement, f"me/{name}")
            and (method == "create" or not _needs_condition(statement))
            for statement in self._document["Statement"]
        )

    def _is_about(self, statement: Any, key: str) -> bool:
        if statement["Action"] == "s3:ListBucket":
            condition = statement["Condition"]["StringLike"]["s3:prefix"]
            return statement["Resource"] == "arn:aws:s3:::bucket" and _is_like(key, condition)
        return any(_is_like(f"arn:aws:s3:::bucket/{key}", item) for item in statement["Resource"])


def _needs_condition(statement: Any) -> bool:
    """Returns whether a request must say that it replaces nothing, as creating one does."""
    return statement.get("Condition") == {"Null": {"s3:if-none-match": "false"}}


def _is_like(text: str, pattern: str) -> bool:
    return re.fullmatch(".*".join(map(re.escape, pattern.split("*"))), text) is not None


class Server:
    """Blobs in memory, which several machines reach with credentials of a role."""

    def __init__(self) -> None:
        self.content: dict[str, bytes] = {}
        self.used: set[tuple[str, str]] = set()

    def opener(self, role: Role, *, appends_only: bool = False) -> Callable[..., Blobs]:
        (policy,) = role_policies(URL, [role], appends_only=appends_only)
        return lambda _url, make=False: GuardedBlobs(
            MemoryBlobs(self.content), policy.policy, self.used
        )


def secret_of(_known):
    return lambda: Secret.raw_key("5a" * 32)


@pytest.fixture
def handle(tmp_path: Path) -> treesnap.Handle:
    garden = tmp_path / "garden"
    garden.mkdir()
    (garden / "plants").write_text("roses")
    (garden / "large").write_bytes(os.urandom(700_000))
    return treesnap.open(garden, tmp_path / "store")


@pytest.fixture
def server(handle, tmp_path) -> Server:
    """A remote that a collector has set up, and on which the handle's store may push."""
    server = Server()
    owner = treesnap.open(handle.root, tmp_path / "owner")
    Remotes(owner, secret_of, server.opener(Role.COLLECTOR)).add("backup", URL)
    server.used.clear()
    return server


def acting(handle: treesnap.Handle, server: Server, role: Role) -> Remotes:
    return Remotes(handle, secret_of, server.opener(role))


def pushed(handle: treesnap.Handle, server: Server, *texts: str) -> Remotes:
    """Returns a member that has added the remote, and pushed a snapshot of each text."""
    remotes = acting(handle, server, Role.MEMBER)
    remotes.add("backup", URL)
    for text in texts:
        Path(handle.root, "plants").write_text(text)
        handle.create()
        remotes.push()
    return remotes


def kinds(used: set[tuple[str, str]], action: str) -> set[str]:
    return {about for name, about in used if name == action}


def test_a_member_adds_a_remote_and_pushes(handle, server):
    remotes = acting(handle, server, Role.MEMBER)
    info = remotes.add("backup", URL)
    server.used.clear()
    handle.create()

    assert len(remotes.push().snapshots) == 1

    assert (info.is_encrypted, info.may_collect) == (True, True)
    assert kinds(server.used, "s3:PutObject") == set(WRITTEN[Role.MEMBER])
    assert kinds(server.used, "s3:DeleteObject") == set()


def refused_of(act: Callable[[], object]) -> ErrorCode:
    with pytest.raises(RemoteFailed) as refused:
        act()
    return refused.value.code


@pytest.mark.parametrize("role", [Role.READER, Role.MEMBER])
def test_nothing_is_removed_with_the_credentials_of_a_reader_or_member(handle, server, role):
    pushed(handle, server, "roses", "tulips", "violets")
    remotes = acting(handle, server, role)
    owner = acting(handle, server, Role.COLLECTOR)
    added = owner.add_key("backup", lambda: Secret.raw_key("6b" * 32))
    before = dict(server.content)

    codes = [
        refused_of(lambda: remotes.prune(policy=Policy(keep_last=1))),
        refused_of(remotes.collect),
        refused_of(lambda: remotes.remove_key("backup", added.id)),
        refused_of(lambda: remotes.add_key("backup", lambda: Secret.raw_key("7c" * 32))),
        refused_of(remotes.check),
    ]
    kept = server.opener(role)(URL).delete(sorted(before))

    assert set(codes) == {ErrorCode.REMOTE_DENIED}
    assert sorted(kept) == sorted(before)
    assert {name: server.content[name] for name in before} == before


def test_what_a_refused_prune_did_not_remove_is_removed_by_a_collector(handle, server):
    remotes = pushed(handle, server, "roses", "tulips")
    refused_of(lambda: remotes.prune(policy=Policy(keep_last=1)))
    owner = acting(handle, server, Role.COLLECTOR)

    assert [item.snapshots for item in remotes.histories()] == [2]
    assert len(owner.prune(policy=Policy(keep_last=1)).removed) == 1
    assert [item.snapshots for item in remotes.histories()] == [1]


def test_a_reader_adds_clones_and_verifies(handle, server, tmp_path):
    pushed(handle, server, "roses")
    before = dict(server.content)
    server.used.clear()
    given = treesnap.open(tmp_path / "again", tmp_path / "other")
    opener = server.opener(Role.READER)

    Remotes(given, secret_of, opener).clone(URL)
    assert kinds(server.used, "s3:PutObject") == set()
    remotes = acting(given, server, Role.READER)
    remotes.add("backup", URL)

    assert difference(record(Path(handle.root)), record(tmp_path / "again")) == []
    assert remotes.verify(read_data=True).problems == ()
    assert server.content == before
    Path(given.root, "plants").write_text("mine")
    given.create()
    assert refused_of(remotes.push) == ErrorCode.REMOTE_DENIED
    assert server.content == before


def test_a_collector_does_everything_else_and_no_more_is_allowed_than_it_does(
    handle, server, tmp_path
):
    """Every name that a command writes or removes is in the tables, and no other."""
    pushed(handle, server, *(f"{number}" for number in range(20)))
    owner = acting(handle, server, Role.COLLECTOR)
    server.content.clear()
    owner.remove("backup")
    owner.add("backup", URL)
    for number in range(20):
        Path(handle.root, "plants").write_text(f"again {number}")
        handle.create()
        owner.push()
    owner.prune(policy=Policy(keep_last=1))

    assert owner.collect().packs > 0

    owner.prune(policy=Policy(keep_last=1))
    for text in ("more", "most"):
        Path(handle.root, "plants").write_text(text)
        handle.create()
        owner.push()
        owner.prune(policy=Policy(keep_last=1))
        owner.collect()
    assert owner.check().is_reliable
    added = owner.add_key("backup", lambda: Secret.raw_key("6b" * 32))
    owner.remove_key("backup", added.id)
    deliver(owner, server, treesnap.open(handle.root, tmp_path / "sandbox"))
    server.used.discard(("s3:PutObject", "inbox/"))  # that of the writer
    assert len(owner.receive().received) == 1
    owner.rotate_keys()
    assert owner.verify(read_data=True).problems == ()
    assert kinds(server.used, "s3:PutObject") == set(WRITTEN[Role.COLLECTOR])
    assert kinds(server.used, "s3:DeleteObject") == set(REMOVED[Role.COLLECTOR])


def test_a_place_without_a_remote_is_not_set_up_by_a_member(handle):
    server = Server()

    code = refused_of(lambda: acting(handle, server, Role.MEMBER).add("backup", URL))

    assert (code, server.content) == (ErrorCode.REMOTE_DENIED, {})


def deliver(owner: Remotes, server: Server, given: treesnap.Handle) -> Remotes:
    """Returns a writer that the owner invited, and that delivered a snapshot."""
    invitation = owner.invite(None, MemberRole.WRITER)
    given.create()
    writer = Remotes(given, secret_of, server.opener(Role.WRITER))
    assert len(writer.deliver(URL, invitation).snapshots) == 1
    return writer


def test_a_writer_delivers_and_can_do_nothing_else(handle, server, tmp_path):
    owner = acting(handle, server, Role.COLLECTOR)
    owner.add("backup", URL)
    given = treesnap.open(handle.root, tmp_path / "sandbox")
    writer = deliver(owner, server, given)
    again = owner.invite(None, MemberRole.WRITER)
    server.used.clear()
    before = dict(server.content)
    assert len(writer.deliver(URL, again, whole=True).snapshots) == 1

    assert server.used == {("s3:PutObject", about) for about in WRITTEN[Role.WRITER]}
    assert refused_of(lambda: writer.add("backup", URL)) == ErrorCode.REMOTE_DENIED
    empty = treesnap.open(tmp_path / "again", tmp_path / "sandbox")
    refused_of(lambda: Remotes(empty, secret_of, server.opener(Role.WRITER)).clone(URL))
    blobs = server.opener(Role.WRITER)(URL)
    assert set(blobs.delete(sorted(server.content))) == set(server.content)
    assert {name: server.content[name] for name in before} == before
    server.used.clear()
    assert [len(item.snapshots) for item in owner.receive().received] == [1, 1]
    assert kinds(server.used, "s3:DeleteObject") == set(WRITTEN[Role.WRITER])


def test_roles_are_allowed_more_and_more():
    assert set(WRITTEN[Role.READER]) < set(WRITTEN[Role.MEMBER]) < set(WRITTEN[Role.COLLECTOR])
    assert set(REMOVED[Role.READER]) == set(REMOVED[Role.MEMBER]) < set(REMOVED[Role.COLLECTOR])


def resources(url: str, role: Role = Role.MEMBER) -> Sequence[object]:
    (found,) = role_policies(url, [role])
    return [item["Resource"] for item in found.policy["Statement"]]


def test_a_document_names_the_place_and_nothing_else():
    assert resources("s3://bbb") == [
        "arn:aws:s3:::bbb",
        ["arn:aws:s3:::bbb/*"],
        ["arn:aws:s3:::bbb/commits/*", "arn:aws:s3:::bbb/members/*", "arn:aws:s3:::bbb/packs/*"],
    ]
    assert resources("s3://bbb/x?region=cn-north-1")[1] == ["arn:aws-cn:s3:::bbb/x/*"]
    assert resources("s3://bbb/x?region=us-gov-west-1")[1] == ["arn:aws-us-gov:s3:::bbb/x/*"]
    assert resources("s3://bbb/a*b$c")[1] == ["arn:aws:s3:::bbb/a${*}b${$}c/*"]


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("gs://bucket/me", "objectCreator"),
        ("az://bucket/me", "add/action"),
        ("/mnt/disk", "chmod +t"),
        ("ssh://me@host/disk", "chmod +t"),
        ("rclone:drive:me", "Give rclone credentials"),
    ],
)
def test_other_places_are_told_in_words(url, said):
    policies = {item.role: item for item in role_policies(url, list(Role))}

    assert {item.policy for item in policies.values()} == {None}
    assert said in " ".join(policies[Role.MEMBER].advice)
    assert all(item.advice for item in policies.values())
    assert all("{" not in line for item in policies.values() for line in item.advice)


def test_a_member_that_only_appends_pushes_and_replaces_nothing(handle, server, tmp_path):
    opener = server.opener(Role.MEMBER, appends_only=True)
    remotes = Remotes(handle, secret_of, opener)
    assert remotes.add("backup", URL, append_only=True).appends_only
    handle.create()

    remotes.push()

    before = dict(server.content)
    thief = opener(URL)
    for name in before:
        with pytest.raises(RemoteFailed):
            thief.put(name, b"something else")
        if name.startswith(("packs/", "commits/")):
            assert thief.create(name, b"something else") is False
    assert list(thief.delete(list(before))) == list(before)
    assert server.content == before
    Remotes(treesnap.open(handle.root, tmp_path / "other"), secret_of, opener).add("two", URL)
    other = treesnap.open(handle.root, tmp_path / "other")
    other.create()
    with pytest.raises(RemoteFailed) as refused:
        Remotes(other, secret_of, opener).push()
    assert refused.value.code == ErrorCode.REMOTE_DENIED


def test_a_writer_that_only_appends_replaces_nothing(handle, server, tmp_path):
    owner = acting(handle, server, Role.COLLECTOR)
    owner.add("backup", URL)
    invitation = owner.invite(None, MemberRole.WRITER)
    given = treesnap.open(handle.root, tmp_path / "sandbox")
    given.create()
    opener = server.opener(Role.WRITER, appends_only=True)
    writer = Remotes(given, secret_of, opener)

    assert refused_of(lambda: writer.deliver(URL, invitation)) == ErrorCode.REMOTE_DENIED
    assert len(writer.deliver(URL, invitation, append_only=True).snapshots) == 1

    before = dict(server.content)
    for name in before:
        with pytest.raises(RemoteFailed):
            opener(URL).put(name, b"something else")
    assert server.content == before
    assert len(owner.receive().received) == 1


def test_the_rules_of_a_remote_that_is_only_appended_to_say_so(handle, server):
    owner = acting(handle, server, Role.COLLECTOR)
    owner.add("backup", URL, append_only=True)

    rules = {item.role: item.policy for item in owner.policy("backup").roles}

    conditions = {
        role: [item["Condition"] for item in rules[role]["Statement"] if "Put" in item["Action"]]
        for role in rules
        if role is Role.MEMBER
    }
    assert conditions == {Role.MEMBER: [{"Null": {"s3:if-none-match": "false"}}]}
    assert "if-none-match" not in str(rules[Role.COLLECTOR])
