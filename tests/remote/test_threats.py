"""What servers and writers that are not honest can do, as the threat model says."""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path
from unittest.mock import patch

import pytest

import treesnap
from blob_doubles import MemoryBlobs, WrappedBlobs
from treesnap.core.codec.index import encode_index
from treesnap.core.fs.local import LocalFileSystem
from treesnap.core.model.errors import ErrorCode, Refused
from treesnap.core.store.maintenance.retention import Policy
from treesnap.remote import Remotes
from treesnap.remote.blobs.base import Blobs
from treesnap.remote.blobs.directory import DirectoryBlobs
from treesnap.remote.keys import Secret
from treesnap.remote.records import COMMIT, HistoryName, RemoteCommit

pytestmark = pytest.mark.sampled(10)

URL = "s3://bucket"


def secret_of(_known):
    return lambda: Secret.raw_key("5a" * 32)


@pytest.fixture
def content() -> dict[str, bytes]:
    """What the server holds."""
    return {}


@pytest.fixture
def opener(content):
    return lambda _url, make=False: MemoryBlobs(content)


@pytest.fixture
def handle(tmp_path: Path) -> treesnap.Handle:
    (tmp_path / "garden").mkdir()
    return treesnap.open(tmp_path / "garden", tmp_path / "store")


@pytest.fixture
def remotes(handle, opener) -> Remotes:
    remotes = Remotes(handle, secret_of, opener)
    remotes.add("backup", URL)
    return remotes


def push(handle: treesnap.Handle, remotes: Remotes, text: str) -> None:
    Path(handle.root, "plants").write_text(text)
    handle.create()
    assert len(remotes.push().snapshots) == 1


def test_a_server_that_hides_the_newest_push_is_noticed_by_each_store_that_saw_it(
    handle, remotes, content, opener, tmp_path
):
    """Each file is authentic, and so is the state; a push is listed beside it."""
    push(handle, remotes, "roses")
    older = dict(content)
    push(handle, remotes, "tulips")
    seen = Remotes(treesnap.open(handle.root, tmp_path / "reader"), secret_of, opener)
    seen.add("backup", URL)
    assert seen.histories()[0].snapshots == 2
    content.clear()
    content.update(older)
    given = treesnap.open(tmp_path / "again", tmp_path / "other")

    Remotes(given, secret_of, opener).clone(URL)

    assert (tmp_path / "again" / "plants").read_text() == "roses"
    for machine in (remotes, remotes, seen):
        for work in (machine.push, machine.fetch, machine.histories):
            with pytest.raises(Refused, match="does not list push 2 of machine") as refused:
                work()
            assert refused.value.code is ErrorCode.REMOTE_SET_BACK
    assert content == older
    accepting = Remotes(handle, secret_of, opener, accepts_rollback=True)
    assert len(accepting.push().snapshots) == 1
    assert remotes.push().snapshots == ()


class Machines:
    """Machines with the same secret, each with a store and a root of its own."""

    def __init__(self, base: Path, opener) -> None:
        self._base = base
        self._opener = opener
        self._handles: dict[str, treesnap.Handle] = {}

    def remotes(self, name: str, **options: bool) -> Remotes:
        if name not in self._handles:
            root = self._base / name
            root.mkdir()
            self._handles[name] = treesnap.open(root, self._base / f"store of {name}")
            Remotes(self._handles[name], secret_of, self._opener).add("backup", URL)
        return Remotes(self._handles[name], secret_of, self._opener, **options)

    def push(self, name: str, text: str) -> None:
        push(self._handles.get(name) or self.handle(name), self.remotes(name), text)

    def handle(self, name: str) -> treesnap.Handle:
        self.remotes(name)
        return self._handles[name]

    def clone(self, **options: bool) -> None:
        """Clones what laptop pushed, to a machine that knows nothing."""
        self._handles.pop("new", None)
        place = self._base / f"new {len(list(self._base.iterdir()))}"
        given = treesnap.open(place, self._base / f"store of {place.name}")
        Remotes(given, secret_of, self._opener, **options).clone(URL, "laptop")


@pytest.fixture
def machines(tmp_path, opener) -> Machines:
    return Machines(tmp_path, opener)


def commits(content: dict[str, bytes]) -> list[str]:
    """Returns the pushes there, in the order in which they came."""
    return [name for name in content if name.startswith("commits/")]


def test_a_push_that_another_machine_saw_is_not_hidden_from_a_new_one(machines, content):
    machines.push("laptop", "roses")
    machines.push("tower", "tulips")
    machines.push("laptop", "peas")
    (_, of_tower, _) = commits(content)
    machines.clone()

    del content[of_tower]

    for work in (machines.clone, machines.remotes("third").histories):
        with pytest.raises(Refused, match="does not list push 1 of machine") as refused:
            work()
        assert refused.value.code is ErrorCode.REMOTE_SET_BACK
    machines.clone(accepts_rollback=True)
    accepting = machines.remotes("third", accepts_rollback=True)
    assert len(accepting.histories()) == 1
    assert len(machines.remotes("third").histories()) == 1
    machines.push("third", "beans")


def test_an_older_push_of_a_machine_is_not_hidden_beside_a_newer_one(machines, content):
    for text in ("roses", "tulips", "peas"):
        machines.push("laptop", text)
    (_, second, _) = commits(content)
    machines.remotes("tower").histories()

    del content[second]

    for work in (machines.clone, machines.remotes("tower").histories):
        with pytest.raises(Refused, match="does not list push 2 of machine"):
            work()


def test_an_older_state_beside_a_push_that_saw_the_newer_one_is_noticed(machines, content):
    machines.push("laptop", "roses")
    older = {
        name: data for name, data in content.items() if name[:5] in {"state", "index", "commi"}
    }
    machines.remotes("laptop").collect()
    machines.push("laptop", "tulips")
    for name in [name for name in content if name.startswith("state/")]:
        del content[name]
    content |= older

    with pytest.raises(Refused, match="at state 0, and machine"):
        machines.clone()


def test_a_thief_who_was_shut_out_enrols_no_machine_and_pushes_nothing_that_counts(
    machines, content, opener
):
    """A thief of the old slot, the secret and the credentials, on a machine of their own."""
    machines.push("laptop", "roses")
    old = dict(content)
    machines.remotes("laptop").rotate_keys()
    content_of_thief = dict(old)
    thief = Machines(machines._base, lambda _url, make=False: MemoryBlobs(content_of_thief))
    thief.push("thief", "weeds")
    theirs = {name: data for name, data in content_of_thief.items() if name not in old}
    assert {name.partition("/")[0] for name in theirs} == {"commits", "packs", "members"}

    content.update({name.replace("members/" + "0" * 15, "members/" + "0" * 14 + "1"): data
                    for name, data in theirs.items()})  # fmt: skip

    push(machines.handle("laptop"), machines.remotes("laptop"), "tulips")
    assert [item.name.partition("@")[0] for item in machines.remotes("laptop").histories()] == [
        "laptop"
    ]
    (problem,) = machines.remotes("laptop").verify().problems
    assert problem.code == "bad-commit"
    assert "not signed by a member" in problem.message


def test_both_of_a_machine_and_its_copy_go_on_as_machines_of_their_own(machines, content, tmp_path):
    machines.push("laptop", "roses")
    shutil.copytree(tmp_path / "store of laptop", tmp_path / "stolen", symlinks=True)
    copy = treesnap.open(tmp_path / "laptop", tmp_path / "stolen")
    copy.store_trust()

    theirs = Remotes(copy, secret_of, lambda _url, make=False: MemoryBlobs(content))
    for text in ("weeds", "thistles"):
        push(copy, theirs, text)
        Path(machines.handle("laptop").root, "plants").write_text("roses")
        machines.handle("laptop").create()
        machines.remotes("laptop").push()

    of_machine = Counter(name.split("-")[1] for name in commits(content))
    assert sorted(of_machine.values()) == [2, 3]
    assert machines.remotes("laptop").verify(read_data=True).problems == ()


def test_a_rotation_that_a_server_undid_gets_no_push_in_the_old_generation(
    handle, remotes, content, opener, tmp_path
):
    """As when the user shut a secret out whose slot the server had kept."""
    other = treesnap.open(tmp_path / "garden", tmp_path / "other")
    seen = Remotes(other, secret_of, opener)
    seen.add("backup", URL)
    old = {name: data for name, data in content.items() if name.startswith("keys/")}
    remotes.rotate_keys()
    push(handle, remotes, "roses")
    assert len(seen.histories()) == 1
    Path(handle.root, "plants").write_text("tulips")
    handle.create()
    for name in [name for name in content if name.startswith(("keys/", "commits/", "packs/"))]:
        del content[name]
    content |= old
    before = dict(content)

    for machine in (remotes, seen):
        for work in (machine.push, machine.fetch, machine.collect, machine.verify):
            with pytest.raises(
                Refused, match="at key generation 1, and was at generation 2 before"
            ):
                work()

    assert content == before
    accepting = Remotes(handle, secret_of, opener, accepts_rollback=True)
    assert accepting.push().snapshots
    assert remotes.push().snapshots == ()


def test_a_rotation_is_remembered_by_the_machine_that_made_it(remotes, content):
    old = {name: data for name, data in content.items() if name.startswith("keys/")}
    remotes.rotate_keys()
    for name in [name for name in content if name.startswith("keys/")]:
        del content[name]
    content |= old

    with pytest.raises(Refused, match="key generation 1"):
        remotes.push()


class _Watched(WrappedBlobs):
    """Notes what is written there."""

    def __init__(self, inner: Blobs, written: list[str]) -> None:
        super().__init__(inner)
        self.written = written

    def around(self, method, proceed, arguments):
        if method in {"put", "create", "delete"}:
            self.written.append(str(arguments[0]))
        return proceed()


@pytest.mark.parametrize("is_bucket", [True, False])
@pytest.mark.parametrize("is_known", [True, False])
def test_an_unencrypted_remote_in_the_place_of_the_encrypted_one_is_refused(
    handle, tmp_path, is_bucket, is_known
):
    """All that a new machine knows is its secret; one that had pushed there remembers more."""
    written: list[str] = []
    url = URL if is_bucket else str(tmp_path / "disk")
    content: dict[str, bytes] = {}

    def opener(url, *, make=False):
        if is_bucket:
            return _Watched(MemoryBlobs(content), written)
        return _Watched(DirectoryBlobs(LocalFileSystem(), url, make=make), written)

    if is_known:
        remotes = Remotes(handle, secret_of, opener)
        remotes.add("backup", url)
        push(handle, remotes, "roses")
        content.clear()
        shutil.rmtree(tmp_path / "disk", ignore_errors=True)
    thief = treesnap.open(tmp_path / "weeds", tmp_path / "thief")
    Path(thief.root).mkdir()
    theirs = Remotes(thief, opener=opener)
    theirs.add("backup", url, encrypted=False)
    push(thief, theirs, "weeds")
    written.clear()
    machine = handle if is_known else treesnap.open(tmp_path / "again", tmp_path / "other")
    remotes = Remotes(machine, secret_of, opener)

    with pytest.raises(Refused) as not_cloned:
        remotes.clone(url) if not is_known else remotes.fetch("backup")
    with pytest.raises(Refused) as not_added:
        remotes.push("backup") if is_known else remotes.add("backup", url)

    code = ErrorCode.REMOTE_REPLACED if is_known else ErrorCode.ENCRYPTION_EXPECTED
    assert not_cloned.value.code == not_added.value.code == code
    assert written == []
    if not is_known:
        assert not (tmp_path / "again").exists()
        remotes.clone(url, encrypted=False)
        assert (tmp_path / "again" / "plants").read_text() == "weeds"


@pytest.mark.parametrize("data", [b"", b"not a commit", bytes(1000)])
def test_a_file_that_is_no_commit_stops_nothing(handle, remotes, content, data):
    push(handle, remotes, "roses")
    histories = remotes.histories()
    name = f"commits/{1:016x}-{'ab' * 8}-{1:08x}-{'ab' * 16}"
    content[name] = data

    assert remotes.push().snapshots == ()
    assert remotes.histories() == histories
    assert [problem.where for problem in remotes.verify().problems] == [name]
    remotes.collect()

    assert remotes.histories() == histories
    assert remotes.verify(read_data=True).problems == ()
    assert name not in content


@pytest.mark.parametrize("snapshot", [b"", b"no snapshot"])
def test_a_commit_of_what_is_no_snapshot_stops_nothing(handle, opener, content, tmp_path, snapshot):
    """Where nothing is encrypted, a writer needs no key for it."""
    remotes = Remotes(handle, opener=opener)
    remotes.add("backup", URL, encrypted=False)
    push(handle, remotes, "roses")
    histories = remotes.histories()
    rows = bytes(encode_index([], {}))
    weeds = RemoteCommit(HistoryName(b"w" * 16, "weeds"), (snapshot,), (), rows)
    name = f"commits/{1:016x}-{'ab' * 8}-{1:08x}-{'ab' * 16}"
    content[name] = COMMIT.seal(weeds)

    given = treesnap.open(tmp_path / "again", tmp_path / "other")
    Remotes(given, opener=opener).clone(URL, encrypted=False)
    push(handle, remotes, "tulips")

    assert (tmp_path / "again" / "plants").read_text() == "roses"
    assert [item.id for item in remotes.histories()] == [item.id for item in histories]
    assert [problem.where for problem in remotes.verify().problems] == [name]
    remotes.collect()
    assert remotes.verify(read_data=True).problems == ()
    assert name not in content


def test_a_file_that_is_no_state_stops_no_machine(handle, remotes, opener, content, tmp_path):
    """Near to the state collections pass it; further off a repair removes it."""
    push(handle, remotes, "roses")
    near, far = (f"state/{number:016x}" for number in (1, (1 << 64) - 1))
    content[near] = content[far] = content[far + "-c"] = b"junk"

    push(handle, remotes, "tulips")
    Remotes(treesnap.open(tmp_path / "new", tmp_path / "other"), secret_of, opener).clone(URL)

    assert (tmp_path / "new" / "plants").read_text() == "tulips"
    assert [problem.where for problem in remotes.verify().problems] == [near, far]
    assert remotes.check().unsigned_states == 2
    assert remotes.repair().removed == (far,)
    remotes.collect()
    assert remotes.verify(read_data=True).problems == ()
    assert content.keys().isdisjoint((near, far, far + "-c"))


def test_what_a_store_has_kept_of_a_damaged_file_is_stored_again(handle, remotes, content):
    """A deletion has no copy, and nor has a commit."""
    push(handle, remotes, "roses")
    push(handle, remotes, "tulips")
    assert len(remotes.prune(policy=Policy(keep_last=1)).removed) == 1
    assert remotes.histories()[0].snapshots == 1
    names = [name for name in content if name.startswith(("commits/", "deletions/"))]
    before = dict(content)
    for name in names:
        content[name] = content[name][:-1] + bytes([content[name][-1] ^ 1])

    assert {problem.where for problem in remotes.verify().problems} == set(names)
    assert set(remotes.repair().files) == set(names)

    assert (content, len(names)) == (before, 3)


def test_a_pack_that_a_writer_replaced_is_named(handle, remotes, content):
    push(handle, remotes, "roses")
    (pack,) = (name for name in content if name.startswith("packs/"))
    content[pack] = bytes(len(content[pack]))

    found = remotes.verify(read_data=True)

    assert found.problems
    assert all(pack in problem.message for problem in found.problems)


def test_a_stolen_machine_does_not_go_on_with_the_history_of_another_one(machines, tmp_path):
    machines.push("laptop", "roses")
    laptop = machines.remotes("laptop")
    (history,) = laptop.histories()
    stolen = HistoryName(bytes.fromhex(history.id), history.name)
    with (
        patch.object(HistoryName, "new", return_value=stolen),
        patch.object(HistoryName, "is_of", return_value=True),
    ):
        machines.push("thief", "weeds")

    assert laptop.histories() == (history,)
    assert [problem.code for problem in laptop.verify().problems] == ["bad-commit"]
    machines.clone()
    assert [path.read_text() for path in tmp_path.glob("new*/plants")] == ["roses"]
    machines.push("laptop", "tulips")
    laptop.collect()
    assert laptop.verify(read_data=True).problems == ()


def test_a_copy_of_a_store_can_go_on_with_the_history_of_its_machine(
    handle, remotes, content, opener, tmp_path
):
    """With its key; then the machine itself goes on with a new history."""
    push(handle, remotes, "roses")
    history = remotes.histories()[0].id
    shutil.copytree(tmp_path / "store", tmp_path / "stolen", symlinks=True)
    thief = treesnap.open(handle.root, tmp_path / "stolen")
    thief.store_trust()
    push(thief, Remotes(thief, secret_of, opener), "weeds")

    assert len(remotes.push().snapshots) == 1

    assert {item.id: item.snapshots for item in remotes.histories()}[history] == 2
    assert len(remotes.histories()) == 2


def test_contents_that_a_writer_only_claims_to_have_stored_are_named(
    handle, remotes, content, opener, tmp_path
):
    """Another machine does not upload them, because a commit lists them."""
    (tmp_path / "liar").mkdir()
    liar = treesnap.open(tmp_path / "liar", tmp_path / "store of the liar")
    lying = Remotes(liar, secret_of, opener)
    lying.add("backup", URL)
    push(liar, lying, "roses")
    (pack,) = (name for name in content if name.startswith("packs/"))
    del content[pack]
    push(handle, remotes, "roses")

    found = remotes.verify(read_data=True)

    assert any(problem.code == "bad-pack" and problem.where == pack for problem in found.problems)
    (lost,) = (item.id for item in liar.list())
    repaired = remotes.verify(read_data=True, repair=True)
    assert {key for problem in repaired.left for key in problem.snapshot_ids} == {lost}


def test_a_list_of_machines_that_was_set_back_is_refused(
    handle, remotes, opener, content, tmp_path
):
    """Else a collection would sweep what the machines pushed that the older list lacks."""
    push(handle, remotes, "roses")
    other = treesnap.open(handle.root, tmp_path / "second")
    theirs = Remotes(other, secret_of, opener)
    theirs.add("backup", URL)
    push(other, theirs, "tulips")
    remotes.histories()
    lists = sorted(name for name in content if name.startswith("members/"))
    for name in lists[2:]:
        del content[name]
    (kept,) = Path(handle.store_path).rglob(".cache-*")
    shutil.rmtree(kept)

    with pytest.raises(Refused) as refused:
        remotes.collect()

    assert refused.value.code == ErrorCode.REMOTE_SET_BACK
    assert len(lists) == 4


def test_a_change_of_the_secret_keeps_a_thief_out_who_has_all_of_the_old_one(
    handle, remotes, opener, content, tmp_path
):
    """The old secret, the old slot, the seed of the machine that was stolen, and the bucket."""
    push(handle, remotes, "roses")
    remotes.add_key("backup", lambda: Secret.raw_key("77" * 32))
    shutil.copytree(handle.store_path, tmp_path / "stolen")
    before = dict(content)
    for old in ("5a" * 32, "77" * 32):
        with pytest.raises(Refused) as refused:
            remotes.change_secret("backup", lambda old=old: Secret.raw_key(old))
        assert refused.value.code == ErrorCode.SECRET_IN_USE
    assert content == before

    info, removed = remotes.change_secret("backup", lambda: Secret.raw_key("88" * 32))

    assert (info.generation, len(removed)) == (2, 2)
    changed = Remotes(handle, lambda _: lambda: Secret.raw_key("88" * 32), opener)
    slots = changed.keys()
    assert [item.generation for item in slots] == [2]
    push(handle, changed, "tulips")
    content |= {name: data for name, data in before.items() if name.startswith("keys/")}
    stolen = treesnap.open(handle.root, tmp_path / "stolen")
    thief = Remotes(stolen, secret_of, opener)
    for work in (thief.push, thief.fetch, lambda: Remotes(handle, secret_of, opener).push()):
        with pytest.raises(Refused):
            work()
    assert changed.verify(read_data=True).problems == ()
    given = treesnap.open(tmp_path / "again", tmp_path / "other")
    Remotes(given, lambda _: lambda: Secret.raw_key("88" * 32), opener).clone(URL)
    assert (tmp_path / "again" / "plants").read_text() == "tulips"


def test_a_change_of_the_secret_that_was_stopped_is_finished_by_the_same_one(
    handle, remotes, opener, content
):
    push(handle, remotes, "roses")
    old = {name: data for name, data in content.items() if name.startswith("keys/")}
    remotes.change_secret("backup", lambda: Secret.raw_key("88" * 32))
    content |= old  # as where it was killed before it removed them

    accepting = Remotes(handle, secret_of, opener, accepts_rollback=True)
    _, removed = accepting.change_secret("backup", lambda: Secret.raw_key("88" * 32))

    assert len(removed) == 1
    assert not old.keys() & content.keys()
