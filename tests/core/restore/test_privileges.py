"""What comes from elsewhere brings files, and no privileges, unless the user asks for these."""

from __future__ import annotations

import os
import shutil
import stat
import tarfile
from functools import partial

import pytest

import treesnap
from prepared import trust_stores
from treesnap.core.handle import Handle
from treesnap.core.model.errors import ErrorCode, Refused, WarningCode
from treesnap.core.model.events import CollectingMonitor
from treesnap.core.model.results import Privileges
from treesnap.core.ops import privileges
from treesnap.core.ops.context import context_at
from treesnap.remote import Remotes
from treesnap.testing.children import in_child, killed
from treesnap.testing.doubles import kill_at

pytestmark = [pytest.mark.needs("attributes"), pytest.mark.sampled(12)]

IS_SUPERUSER = os.geteuid() == 0
STRANGER = 12345
CAPABILITY = bytes.fromhex("0100000200200000000000000000000000000000")
"""``cap_net_raw=ep``"""


def make_root(root):
    """Makes a directory with each privilege that this user can give."""
    root.mkdir(mode=0o755)
    root.chmod(0o775)
    for name, mode in (("plain", 0o644), ("suid", 0o4755), ("sgid", 0o2755)):
        (root / name).write_text(name)
        (root / name).chmod(mode)
    (root / "sub").mkdir()
    (root / "sub").chmod(0o2770)
    (root / "sub" / "deep").write_text("deep")
    (root / "sub" / "deep").chmod(0o6711)
    if IS_SUPERUSER:
        os.mknod(root / "device", stat.S_IFCHR | 0o666, os.makedev(1, 3))
        (root / "capable").write_text("capable")
        os.setxattr(root / "capable", "security.capability", CAPABILITY)
        (root / "theirs").write_text("theirs")
        os.chown(root / "theirs", STRANGER, STRANGER)


class Origin:
    """Where everything comes from: a root, its store, and a remote, made by another process."""

    def __init__(self, place):
        self.root = place / "root"
        self.store = place / "store"
        self.remote = str(place / "remote")
        make_root(self.root)
        self.handle = treesnap.open(self.root, self.store)
        in_child(self.handle.create)
        Remotes(self.handle).add("theirs", self.remote)
        Remotes(self.handle).push("theirs")


@pytest.fixture(scope="module")
def origin(tmp_path_factory):
    """One that the tests of this module share, and leave as it is."""
    return Origin(tmp_path_factory.mktemp("origin"))


@pytest.fixture
def root(origin):
    return origin.root


@pytest.fixture
def handle(origin):
    return origin.handle


@pytest.fixture
def remote(origin):
    return origin.remote


def powers(root):
    """Returns the privileges below a directory, by path."""
    found = {}
    for path in sorted([root, *root.rglob("*")]):
        status = path.lstat()
        what = [f"{bits:o}" for bits in (0o4000, 0o2000) if status.st_mode & bits]
        if stat.S_ISCHR(status.st_mode) or stat.S_ISBLK(status.st_mode):
            what.append("device")
        elif not path.is_symlink() and b"security.capability" in map(
            os.fsencode, os.listxattr(path)
        ):
            what.append("capability")
        if (status.st_uid, status.st_gid) != (os.geteuid(), os.getegid()):
            what.append("owner")
        if what:
            found[str(path.relative_to(root))] = what
    return found


def kinds(privileges, *, given):
    return sorted((item.path, item.kind) for item in privileges.listed if item.given == given)


OWN = [
    (b"sgid", "set-group-id"),
    (b"sub", "set-group-id"),
    (b"sub/deep", "set-group-id"),
    (b"sub/deep", "set-user-id"),
    (b"suid", "set-user-id"),
]
ALL = sorted([*OWN, (b"capable", "security.capability"), (b"device", "device")])
EXPECTED = ALL if IS_SUPERUSER else OWN


def elsewhere(tmp_path, name="elsewhere"):
    """Returns a handle on a new root and store of the same user."""
    (tmp_path / name).mkdir()
    return treesnap.open(tmp_path / name, tmp_path / f"{name}-store")


def check_left_out(found, privileges):
    assert powers(found) == {}
    assert kinds(privileges, given=False) == EXPECTED
    assert kinds(privileges, given=True) == []
    assert privileges.left_out == len(EXPECTED)
    assert privileges.owners_left_out == int(IS_SUPERUSER)
    assert (found / "sub" / "deep").read_text() == "deep"
    assert stat.S_IMODE((found / "sub" / "deep").stat().st_mode) == 0o711


def test_a_clone_leaves_privileges_out(remote, tmp_path):
    clone = elsewhere(tmp_path)
    done = Remotes(clone).clone(remote)

    check_left_out(tmp_path / "elsewhere", done.privileges)
    assert clone.status().changes == ()
    assert clone.diff() == ()
    clone.create()
    assert clone.status().changes == ()


def test_a_clone_gives_them_when_asked(root, remote, tmp_path):
    clone = elsewhere(tmp_path)
    done = Remotes(clone).clone(remote, privileged=True)

    assert powers(tmp_path / "elsewhere") == powers(root)
    assert kinds(done.privileges, given=True) == EXPECTED


@pytest.mark.parametrize(("mask", "mode"), [(0o077, 0o700), (0o022, 0o755), (0o002, 0o775)])
def test_the_root_of_a_clone_obeys_the_umask(remote, tmp_path, mask, mode):
    clone = treesnap.open(tmp_path / "new", tmp_path / "new-store")
    before = os.umask(mask)
    try:
        Remotes(clone).clone(remote)
    finally:
        os.umask(before)

    assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == mode
    assert clone.status().changes == ()


def test_a_clones_snapshots_stay_from_elsewhere_and_its_own_are_own(remote, tmp_path):
    clone = elsewhere(tmp_path)
    cloned = Remotes(clone).clone(remote).snapshot_id
    (tmp_path / "elsewhere" / "mine").write_text("mine")
    (tmp_path / "elsewhere" / "mine").chmod(0o4755)
    mine = clone.create().id
    (tmp_path / "elsewhere" / "mine").unlink()

    back = clone.restore(mine)
    again = clone.restore(cloned, to=tmp_path / "again")

    assert kinds(back.privileges, given=True) == [(b"mine", "set-user-id")]
    assert powers(tmp_path / "elsewhere") == {"mine": ["4000"]}
    check_left_out(tmp_path / "again", again.privileges)


def test_a_fetched_snapshot_is_restored_without_privileges(remote, tmp_path):
    here = elsewhere(tmp_path)
    here.create()
    Remotes(here).add("theirs", remote)
    fetched = Remotes(here).fetch("theirs")

    shown = here.restore(fetched.ref, dry_run=True)
    done = here.restore(fetched.ref)

    assert done.privileges == shown.privileges
    check_left_out(tmp_path / "elsewhere", done.privileges)
    status = here.status(fetched.ref)
    assert (status.changes, status.privileges) == ((), done.privileges)
    assert here.restore(fetched.ref).safety_id is None
    here.undo()
    assert os.listdir(tmp_path / "elsewhere") == []
    here.redo()
    assert powers(tmp_path / "elsewhere") == {}
    given = here.restore(fetched.ref, privileged=True)
    assert here.status(fetched.ref).privileges == Privileges()
    assert kinds(given.privileges, given=True) == EXPECTED
    here.undo()
    assert powers(tmp_path / "elsewhere") == {}


def test_a_fetched_history_that_is_moved_to_a_directory_stays_from_elsewhere(remote, tmp_path):
    here = elsewhere(tmp_path)
    here.create()
    Remotes(here).add("theirs", remote)
    newest = Remotes(here).fetch("theirs").newest_id
    history = next(each for each in here.root_list() if each.fetched)
    (tmp_path / "moved").mkdir()
    here.root_move(history.path, tmp_path / "moved")
    moved = treesnap.open(tmp_path / "moved", tmp_path / "elsewhere-store")

    done = moved.restore(newest)

    check_left_out(tmp_path / "moved", done.privileges)
    (tmp_path / "moved" / "plain").chmod(0o4755)
    mine = moved.create().id
    (tmp_path / "moved" / "plain").unlink()
    moved.restore(mine)
    assert powers(tmp_path / "moved") == {"plain": ["4000"]}


def test_what_was_there_before_stays(root, remote, tmp_path):
    """Bits of equal files stay, those of files that are replaced go; undo brings them back."""
    here = elsewhere(tmp_path)
    live = tmp_path / "elsewhere"
    shutil.copy2(root / "suid", live / "suid")
    (live / "sgid").write_text("another")
    (live / "sgid").chmod(0o2755)
    os.utime(live / "suid", ns=(1, 1))
    before = powers(live)
    Remotes(here).add("theirs", remote)
    here.create()

    done = here.restore(Remotes(here).fetch("theirs").ref)

    assert powers(live) == {"suid": ["4000"]}
    assert (b"suid", "set-user-id") in kinds(done.privileges, given=True)
    here.undo()
    assert powers(live) == before


def test_an_imported_snapshot_is_restored_without_privileges(root, tmp_path):
    with tarfile.open(tmp_path / "archive.tar", "w", format=tarfile.PAX_FORMAT) as archive:
        for name in sorted(os.listdir(root)):
            archive.add(root / name, name)
    here = elsewhere(tmp_path)
    here.create()

    done = here.restore(here.import_from(tmp_path / "archive.tar").id)

    assert powers(tmp_path / "elsewhere") == {}
    assert set(OWN) <= set(kinds(done.privileges, given=False))


@pytest.mark.parametrize("lists", [True, False])
def test_a_store_that_was_handed_over_gives_no_privileges(handle, root, tmp_path, lists):
    shutil.copytree(handle.context.store_path, tmp_path / "handed")
    theirs = treesnap.open(root, tmp_path / "handed")
    identity = handle.list()[0].id

    done = theirs.restore(identity, to=tmp_path / "to", list_changes=lists)
    given = theirs.restore(identity, to=tmp_path / "given", privileged=True, list_changes=lists)

    check_left_out(tmp_path / "to", done.privileges)
    assert powers(tmp_path / "given") == powers(root)
    assert kinds(given.privileges, given=True) == EXPECTED


@pytest.mark.skipif(not IS_SUPERUSER, reason="only the superuser sets capabilities")
@pytest.mark.parametrize("is_there", [True, False])
def test_plain_attributes_are_restored_beside_privileged_ones(tmp_path, is_there):
    origin = Origin(tmp_path)
    capable = origin.root / "capable"
    os.setxattr(capable, "user.color", b"red")
    in_child(origin.handle.create)
    shutil.copytree(origin.store, tmp_path / "handed")
    os.setxattr(capable, "user.color", b"blue")
    if not is_there:
        os.removexattr(capable, "security.capability")

    theirs = treesnap.open(origin.root, tmp_path / "handed")
    done = theirs.restore(theirs.resolve("latest").id)

    assert os.getxattr(capable, "user.color") == b"red"
    assert ("security.capability" in os.listxattr(capable)) == is_there
    assert ((b"capable", "security.capability") in kinds(done.privileges, given=False)) != is_there


@pytest.mark.parametrize("lists", [True, False])
def test_own_snapshots_are_restored_as_before_and_say_so(handle, root, tmp_path, lists):
    identity = handle.list()[0].id
    done = handle.restore(identity, to=tmp_path / "to", list_changes=lists)

    assert powers(tmp_path / "to") == powers(root)
    assert kinds(done.privileges, given=True) == EXPECTED
    assert done.privileges.left_out == done.privileges.owners_left_out == 0


def test_a_roll_back_in_any_store_is_of_what_this_process_captured(handle, tmp_path):
    root = tmp_path / "root"
    make_root(root)
    shutil.copytree(handle.context.store_path, tmp_path / "handed")
    theirs = treesnap.open(root, tmp_path / "handed")
    before = powers(root)

    def step():
        with theirs.rollback_on_error("step"):
            for name in ("suid", "sub/deep"):
                (root / name).unlink()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        step()

    assert powers(root) == before


def test_a_pulled_merge_is_not_own(tmp_path):
    origin = Origin(tmp_path)
    handle, root, remote = origin.handle, origin.root, origin.remote
    here = elsewhere(tmp_path)
    Remotes(here).clone(remote)
    Remotes(here).add("theirs", remote)
    (root / "later").write_text("later")
    (root / "later").chmod(0o4755)
    in_child(handle.create)
    Remotes(handle).push("theirs")

    done = Remotes(here).pull("theirs", handle_history(remote, here))

    assert done.restore is not None
    assert (tmp_path / "elsewhere" / "later").read_text() == "later"
    assert powers(tmp_path / "elsewhere") == {}
    assert (b"later", "set-user-id") in kinds(done.restore.privileges, given=False)
    merged = done.restore.snapshot.id
    here.restore(merged, to=tmp_path / "merged")
    assert powers(tmp_path / "merged") == {}


def test_a_fork_of_what_was_cloned_has_no_privileges(remote, tmp_path):
    here = elsewhere(tmp_path)
    cloned = Remotes(here).clone(remote).snapshot_id

    done = here.fork(cloned, [tmp_path / "fork"])

    check_left_out(tmp_path / "fork", done.privileges)
    fork = treesnap.open(tmp_path / "fork", tmp_path / "elsewhere-store")
    assert fork.status().changes == ()


@pytest.mark.parametrize("privileged", [False, True])
def test_a_killed_restore_gives_no_more_than_it_would_have(remote, tmp_path, privileged):
    """After a kill at any call, recovery leads to the old state or to the limited new one."""
    here = elsewhere(tmp_path)
    live, store = tmp_path / "elsewhere", str(tmp_path / "elsewhere-store")
    (live / "suid").write_text("before")
    here.create()
    Remotes(here).add("theirs", remote)
    ref = Remotes(here).fetch("theirs").ref
    seen = set()
    for number in range(20, 2000, 7):

        def restore(fs):
            Handle(context_at(live, store, fs=fs)).restore(ref, privileged=privileged)

        is_over = not killed(restore, kill_at(number)).was_killed
        status = Handle(context_at(live, store)).status()
        found = tuple(sorted(powers(live)))
        content = (live / "suid").read_text()
        assert (not found) if (content == "before" or not privileged) else found, number
        assert status is not None
        seen.add(content)
        here.restore("latest")
        if is_over:
            break
    assert seen == {"before", "suid"}


def test_a_journal_that_was_handed_over_is_not_obeyed(tmp_path):
    """A stranger can stop a restore anywhere, and hand over store and files."""
    root, store, handed = tmp_path / "root", tmp_path / "store", tmp_path / "handed"
    root.mkdir(mode=0o755)
    (root / "suid").write_text("before")
    here = Handle(context_at(root, str(store)))
    here.create()
    old = (root / "suid").stat()
    (root / "suid").write_text("suid")
    (root / "suid").chmod(0o6755)
    root.chmod(0o7777)
    ref = here.create().id
    kept, ways, is_over, number = tmp_path / "kept", set(), False, 20
    while not is_over:
        shutil.rmtree(root)
        root.mkdir(mode=0o755)
        (root / "suid").write_text("before")
        os.utime(root / "suid", ns=(old.st_atime_ns, old.st_mtime_ns))
        here.restore(here.list()[-1].id)
        shutil.copytree(store, kept)
        is_over = not killed(
            lambda fs: Handle(context_at(root, str(store), fs=fs)).restore(ref),
            kill_at(number),
        ).was_killed
        number += 1
        stages = [name for name in os.listdir(root) if name.startswith(".treesnap-restore-")]
        if stages and not is_over:
            shutil.copytree(store, handed)
            shutil.rmtree(root)
            root.mkdir(mode=0o755)
            (root / "suid").write_text("before")
            os.utime(root / "suid", ns=(old.st_atime_ns, old.st_mtime_ns))
            (root / stages[0]).mkdir()
            before = as_it_is(root)

            privileges._captured.clear()  # as in another process
            monitor = CollectingMonitor()
            theirs = Handle(context_at(root, str(handed), monitor=monitor))
            theirs.list()

            assert monitor.codes == [WarningCode.RESTORE_UNFINISHED]
            for write in (theirs.create, partial(theirs.restore, ref), theirs.undo):
                with pytest.raises(Refused, match="not proven to be yours") as refusal:
                    write()
                assert refusal.value.code == ErrorCode.RESTORE_NOT_OWN
            (unfinished,) = theirs.doctor().unfinished
            assert unfinished.blocked
            assert as_it_is(root) == before

            trust_stores(tmp_path)  # the user says who made it
            theirs.list()
            assert os.listdir(root) == ["suid"]
            ways.add((root / "suid").read_text())
            shutil.rmtree(handed)
        shutil.rmtree(store)
        kept.rename(store)

    assert ways == {"before", "suid"}


def as_it_is(root):
    """Returns what tells whether anything in a root was touched."""
    looks = [path.stat() for path in (root, root / "suid")]
    return sorted(os.listdir(root)), [(look.st_mode, look.st_ctime_ns) for look in looks]


def handle_history(remote, here):
    (history,) = [each for each in Remotes(here).histories("theirs") if each.snapshots > 1]
    return history.id
