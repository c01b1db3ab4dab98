"""What others did in the root while an interrupted restore waited: none of it is lost."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from frames import FRAMES, few_frames
from sampling import sized
from state import tree_state
from treesnap.core.model.errors import ErrorCode, Refused
from treesnap.testing.children import killed
from treesnap.testing.doubles import Call, Fault, WrappedFileSystem

pytestmark = pytest.mark.sampled(10)

MOVES = frozenset({"exchange", "rename_to_absent"})
FIRST_MOVE = Fault(number=1, methods=MOVES)
SECOND_MOVE = Fault(number=2, methods=MOVES)
ALL_MOVED = Fault(number=2, methods=frozenset({"sync_file_system"}))
FINISHED = Fault(
    number=1,
    methods=frozenset({"unlink"}),
    where=lambda call: call.path.endswith(("n0", "n1", "n2", "/x")),
)
"""Noted as done, and about to be tidied up after."""


@pytest.fixture
def crash(make_handle):
    """Kills a restore of the newest snapshot at a call."""

    def crasher(fault: Fault, ref: str = "latest") -> None:
        assert killed(lambda fs: make_handle(fs=fs).restore(ref), fault).was_killed

    return crasher


@pytest.fixture
def changed(handle, root):
    """Three files that a restore puts back."""
    (root / "three").write_bytes(b"three")
    handle.create()
    for name in ("one", "three", "directory/two"):
        (root / name).write_bytes(b"changed " + name.encode())


def copied(handle, tmp_path: Path) -> Path:
    """Returns the directory with what the newest snapshot holds."""
    handle.restore(handle.list()[0].id, to=tmp_path / "copied")
    return tmp_path / "copied"


class TestWrittenThroughAnOpenFile:
    def test_after_the_restore_was_done(self, handle, root, changed, crash, tmp_path):
        with (root / "directory/two").open("ab") as file:
            crash(FINISHED)
            file.write(b" precious")

        handle.recover()

        kept = copied(handle, tmp_path) / "directory/two"
        assert kept.read_bytes() == b"changed directory/two precious"
        assert (root / "directory/two").read_bytes() == b"two"

    def test_before_the_restore_is_forgotten(self, handle, root, changed, crash, tmp_path):
        with (root / "directory/two").open("ab") as file:
            crash(ALL_MOVED)
            file.write(b" precious")

        handle.doctor(forget=True)

        kept = copied(handle, tmp_path) / "directory/two"
        assert kept.read_bytes() == b"changed directory/two precious"


def test_what_is_written_into_a_file_that_lies_aside_comes_back(make_handle, root, changed):
    """No crash: a process had the file open, and writes while the moves are made durable."""
    with (root / "three").open("ab", buffering=0) as file:

        class Writing(WrappedFileSystem):
            def around(self, call: Call):
                if call.method == "sync_file_system" and (root / "three").read_bytes() == b"three":
                    file.write(b" precious")
                return call.proceed()

        with pytest.raises(Refused) as caught:
            make_handle(fs=Writing()).restore("latest")

    assert caught.value.path == b"three"
    assert (root / "three").read_bytes() == b"changed three precious"
    assert (root / "one").read_bytes() == b"changed one"


class TestMadeWhereNoSnapshotLooks:
    @pytest.mark.parametrize("fault", [FIRST_MOVE, SECOND_MOVE])
    def test_in_a_directory_to_be_removed_stays(self, handle, root, crash, fault):
        (root / ".snapignore").write_text("__pycache__/\n")
        handle.create()
        (root / "one").write_bytes(b"changed")
        (root / "package").mkdir()
        (root / "package/module").write_bytes(b"code")
        crash(fault)
        if not (root / "package").exists():
            pytest.skip("the directory was moved aside before")
        (root / "package/__pycache__").mkdir()
        (root / "package/__pycache__/cached").write_bytes(b"cached")

        handle.recover()

        assert (root / "package/__pycache__/cached").read_bytes() == b"cached"
        assert not list(root.glob(".treesnap*"))
        assert handle.recover() is None

    def test_in_a_directory_to_be_replaced_by_a_file_stays(self, handle, root, crash):
        (root / ".snapignore").write_text("__pycache__/\n")
        handle.create()
        (root / "one").unlink()
        (root / "one").mkdir()
        (root / "one/module").write_bytes(b"code")
        (root / "directory/two").write_bytes(b"changed")
        crash(FIRST_MOVE)
        (root / "one/__pycache__").mkdir()
        (root / "one/__pycache__/cached").write_bytes(b"cached")

        said = handle.recover()

        assert "left paths alone that another process changed meanwhile: 'one'" in said
        assert (root / "one/__pycache__/cached").read_bytes() == b"cached"
        assert (root / "one/module").read_bytes() == b"code"
        assert not list(root.glob(".treesnap*"))
        assert handle.recover() is None

    def test_in_a_directory_that_was_put_stays(self, handle, root, crash):
        (root / ".snapignore").write_text("*.log\n")
        (root / "d").mkdir()
        for name in ("x", "y"):
            (root / "d" / name).write_bytes(name.encode())
        handle.create()
        shutil.rmtree(root / "d")
        (root / "one").write_bytes(b"changed")
        crash(ALL_MOVED)
        (root / "d/app.log").write_bytes(b"not captured")
        (root / "d/y").chmod(0o600)

        handle.recover()

        assert (root / "d/app.log").read_bytes() == b"not captured"
        assert (root / "d/x").read_bytes() == b"x"

    def test_excluding_a_directory_hides_nothing_that_the_restore_writes(
        self, handle, root, changed, crash
    ):
        crash(FIRST_MOVE)
        (root / ".snapignore").write_text("directory/\n")
        (root / "directory/free").write_bytes(b"not captured")

        said = handle.recover()

        assert said == "completed an interrupted restore"
        assert (root / "directory/two").read_bytes() == b"two"
        assert (root / "directory/free").read_bytes() == b"not captured"


class TestChangedInPlace:
    def test_excluding_a_file_does_not_hide_it(self, handle, root, changed, crash):
        crash(FIRST_MOVE)
        (root / ".snapignore").write_text("three\n")

        assert handle.recover() == "completed an interrupted restore"

        assert (root / "three").read_bytes() == b"three"

    def test_permission_to_write_what_was_put_stays(self, handle, root, crash):
        (root / "one").chmod(0o4444)
        handle.create()
        (root / "one").write_bytes(b"changed")
        crash(ALL_MOVED)
        (root / "one").chmod(0o644)

        assert "'one'" in handle.recover()

        assert (root / "one").stat().st_mode & 0o7777 == 0o644
        assert (root / "one").read_bytes() == b"one"

    def test_in_nothing_but_the_time_is_named(self, handle, root, changed, crash):
        crash(FIRST_MOVE)
        os.utime(root / "three", ns=(5, 5))

        said = handle.recover()

        assert "'three'" in said
        assert (root / "three").stat().st_mtime_ns == 5
        assert (root / "three").read_bytes() == b"changed three"


def _set_mode(path: Path) -> None:
    path.chmod(0o711)


def _set_owner(path: Path) -> None:
    if os.geteuid():
        pytest.skip("owners are for root to give")
    os.chown(path, 1234, 4321)


def _set_attribute(path: Path) -> None:
    try:
        os.setxattr(path, "user.changed", b"by hand")
    except OSError:
        pytest.skip("no attributes here")


def _metadata(path: Path) -> tuple[object, ...]:
    found = path.lstat()
    attributes = {name: os.getxattr(path, name) for name in os.listxattr(path)}
    return found.st_mode, found.st_uid, found.st_gid, attributes


@pytest.mark.parametrize("change", [_set_mode, _set_owner, _set_attribute])
@pytest.mark.parametrize("name", ["d/x", "d/below", "d/below/y"])
class TestMetadataBelowADirectoryThatIsMovedWhole:
    """Set between the crash and the recovery: it stays, or is in a snapshot that is named."""

    @pytest.fixture
    def d(self, root) -> Path:
        (root / "d/below").mkdir(parents=True)
        (root / "d/x").write_bytes(b"x")
        (root / "d/below/y").write_bytes(b"y")
        return root / "d"

    @pytest.mark.sampled(6)
    @pytest.mark.parametrize("fault", [SECOND_MOVE, ALL_MOVED, FINISHED])
    def test_of_one_that_was_created(self, handle, root, d, crash, fault, name, change):
        handle.create()
        shutil.rmtree(d)
        (root / "one").write_bytes(b"changed")
        self.change_after(crash, fault, root / name, change)

        said = handle.recover()

        self.expect(root / name)
        assert (
            fault is FINISHED
            or "left paths alone that another process changed meanwhile: 'd'" in said
        )
        assert (root / "one").read_bytes() == (b"changed" if fault is SECOND_MOVE else b"one")
        assert handle.recover() is None

    @pytest.mark.sampled(6)
    @pytest.mark.parametrize(
        "fault", [pytest.param(SECOND_MOVE, marks=pytest.mark.needs("exchange")), ALL_MOVED]
    )
    def test_of_one_that_replaced_a_file(self, handle, root, d, crash, fault, name, change):
        handle.create()
        shutil.rmtree(d)
        d.write_bytes(b"a file")
        (root / "one").write_bytes(b"changed")
        self.change_after(crash, fault, root / name, change)

        assert "left paths alone that another process changed meanwhile: 'd'" in handle.recover()

        self.expect(root / name)

    @pytest.mark.sampled(8)
    def test_of_one_that_is_not_yet_removed(self, handle, root, crash, name, change):
        handle.create()
        self.made(root)
        self.change_after(crash, FIRST_MOVE, root / name, change)

        assert "left paths alone that another process changed meanwhile: 'd'" in handle.recover()

        self.expect(root / name)

    @pytest.mark.sampled(5)
    @pytest.mark.parametrize("fault", [ALL_MOVED, FINISHED])
    def test_of_one_that_lies_aside(self, handle, root, crash, fault, name, change, tmp_path):
        handle.create()
        self.made(root)
        crash(fault)
        (aside,) = root.glob(".treesnap-restore-*/*/below")
        self.change_after(None, fault, aside.parent / Path(name).relative_to("d"), change)

        handle.recover()

        assert not (root / "d").exists()
        assert handle.list()[0].label.startswith("changed during restore")
        self.expect(copied(handle, tmp_path) / name)

    def made(self, root: Path) -> None:
        (root / "d/below").mkdir(parents=True)
        (root / "d/x").write_bytes(b"x")
        (root / "d/below/y").write_bytes(b"y")

    def change_after(self, crash, fault, path: Path, change) -> None:
        if crash is not None:
            crash(fault)
        before = _metadata(path)
        change(path)
        self.changed = _metadata(path)
        assert self.changed != before

    def expect(self, path: Path) -> None:
        assert _metadata(path) == self.changed


@pytest.mark.sampled(5)
@pytest.mark.parametrize("touch", [False, True])
@pytest.mark.parametrize("fault", [SECOND_MOVE, ALL_MOVED, FINISHED])
def test_what_was_not_changed_in_a_directory_that_was_put_is_no_change(
    make_handle, handle, root, fault, touch
):
    """Nothing that the restore itself does to metadata is taken for the work of another."""
    (root / "d/closed").mkdir(parents=True)
    (root / "d/closed/file").write_bytes(b"closed")
    (root / "d/closed/file").chmod(0o4400)
    (root / "d/closed").chmod(0o500)
    (root / "d").chmod(0o500)
    handle.create()
    before = tree_state(root)
    (root / "d").chmod(0o700)
    (root / "d").rename(root / "f")
    (root / "one").write_bytes(b"changed")

    def restore(fs) -> None:
        make_handle(fs=fs).restore("latest", touch=touch)

    assert killed(restore, fault).was_killed

    assert handle.recover() == "completed an interrupted restore"
    assert len(handle.list()) == 2  # the one that was restored and the one before
    assert touch or tree_state(root) == before
    assert not (root / "f").exists()


def test_what_cannot_be_read_here_is_not_removed(handle, root, crash):
    """It was made in a directory that lies aside, and cannot go into a snapshot."""
    handle.create()
    (root / "new").mkdir()
    (root / "new/file").write_bytes(b"new")
    crash(ALL_MOVED)
    (aside,) = root.glob(".treesnap-restore-*/o*")
    (aside / ".treesnap-restore-like-ours").write_bytes(b"hidden from every walk")

    with pytest.raises(Refused) as caught:
        handle.recover()

    assert caught.value.code == ErrorCode.RESTORE_INTERRUPTED
    assert (aside / ".treesnap-restore-like-ours").exists()
    (aside / ".treesnap-restore-like-ours").rename(root / "saved")
    assert handle.recover() == "completed an interrupted restore"
    assert (root / "saved").exists()
    assert not (root / "new").exists()


@pytest.mark.usefixtures("of_any_depth")
def test_a_deep_tree_is_recovered(handle, root, crash):
    deepest = root.joinpath(*["d"] * sized(FRAMES + 50, 1500))
    subprocess.run(["mkdir", "-p", deepest], check=True)
    (deepest / "f").write_bytes(b"deep")
    handle.create()
    (deepest / "f").write_bytes(b"changed")
    crash(FIRST_MOVE)

    with few_frames():
        assert handle.recover() == "completed an interrupted restore"
    assert (deepest / "f").read_bytes() == b"deep"
    subprocess.run(["rm", "-r", root], check=True)  # too deep for the ways of Python


def test_names_of_a_linked_file_stay_together(handle, root, crash):
    (root / "d").mkdir()
    (root / "d/x").write_bytes(b"linked")
    (root / "d/y").write_bytes(b"y")
    os.link(root / "d/x", root / "e")
    handle.create()
    shutil.rmtree(root / "d")
    (root / "e").unlink()
    crash(ALL_MOVED)
    (root / "d/y").chmod(0o600)

    handle.recover()

    assert (root / "d/x").stat().st_ino == (root / "e").stat().st_ino


class TestMetadataOfDirectories:
    def test_set_before_the_commit_point_stays(self, handle, root, changed, crash):
        crash(Fault(number=1, methods=frozenset({"sync_file_system"})))
        root.chmod(0o711)

        handle.recover()

        assert root.stat().st_mode & 0o777 == 0o711

    @pytest.mark.parametrize("fault", [FIRST_MOVE, ALL_MOVED, FINISHED])
    def test_set_after_it_stays(self, handle, root, changed, crash, fault):
        crash(fault)
        (root / "directory").chmod(0o711)
        root.chmod(0o711)

        handle.recover()

        assert (root / "directory").stat().st_mode & 0o777 == 0o711
        assert root.stat().st_mode & 0o777 == 0o711


def test_a_directory_that_is_moved_away_meanwhile_is_a_conflict(
    make_handle, root, changed, tmp_path
):
    class Moving(WrappedFileSystem):
        def around(self, call: Call):
            two = root / "directory/two"
            if call.method == "sync_file_system" and two.exists() and two.read_bytes() == b"two":
                (root / "directory").rename(tmp_path / "away")
            return call.proceed()

    with pytest.raises(Refused):
        make_handle(fs=Moving()).restore("latest")

    assert (root / "one").read_bytes() == b"changed one"


def test_one_changed_file_does_not_take_a_touching_restore_back(make_handle, handle, root, changed):
    def restore(fs) -> None:
        make_handle(fs=fs).restore("latest", touch=True)

    assert killed(restore, ALL_MOVED).was_killed
    (root / "three").write_bytes(b"newer")

    assert handle.recover().startswith("completed")
    assert (root / "one").read_bytes() == b"one"
    assert (root / "three").read_bytes() == b"newer"


def test_recovery_knows_its_tree_after_a_kill_of_its_own(make_handle, handle, root, changed, crash):
    """The copy may lie on another file system: the staging directory tells that it is the tree."""
    crash(SECOND_MOVE)
    at_building = Fault(
        number=1,
        methods=frozenset({"open"}),
        where=lambda call: call.path.endswith("/building"),
    )
    assert killed(lambda fs: make_handle(fs=fs).recover(), at_building).was_killed

    assert list(root.glob(".treesnap-restore-*"))
    assert handle.recover() == "completed an interrupted restore"
    assert (root / "one").read_bytes() == b"one"


class Remounted(WrappedFileSystem):
    """A file system that got another device number at its last mount, as those of btrfs do."""

    def around(self, call: Call) -> Any:
        found = call.proceed()
        if call.method not in ("fstat", "lstat"):
            return found
        mode, inode, device, *rest = found
        names = [name for name in dir(found) if name.startswith("st_")]
        named = {name: getattr(found, name) for name in names if name not in found.__match_args__}
        return os.stat_result((mode, inode, device + 1, *rest), named)


@pytest.mark.parametrize(
    ("method", "path", "content"),
    [("make_directory", "/.treesnap-restore-", b"changed one"), ("unlink", "/journal", b"one")],
)
def test_recovery_knows_the_tree_by_its_file_system(
    make_handle, root, changed, crash, method, path, content
):
    """Where nothing is staged yet or any more, after a mount with another device number."""
    crash(Fault(number=1, methods=frozenset({method}), where=lambda call: path in call.path))
    assert not list(root.glob(".treesnap-restore-*"))

    assert make_handle(fs=Remounted()).recover()

    assert (root / "one").read_bytes() == content
    assert make_handle().create().complete


def test_recovery_knows_the_tree_by_its_staging_directory_where_files_may_be_missing(
    make_handle, root, changed, crash, tmp_path
):
    """Two overlays of one lower layer have the same inodes, and often the same id."""
    crash(SECOND_MOVE)
    (stage,) = root.glob(".treesnap-restore-*")
    stage.rename(tmp_path / "stage")
    half = tree_state(root)

    with pytest.raises(Refused, match="another directory is in its place") as caught:
        make_handle(fs=Remounted()).recover()
    assert caught.value.code == ErrorCode.RESTORE_INTERRUPTED
    assert tree_state(root) == half

    (tmp_path / "stage").rename(stage)
    assert make_handle(fs=Remounted()).recover() == "completed an interrupted restore"
    assert (root / "three").read_bytes() == b"three"


def test_a_restore_that_is_not_tidied_up_after_is_not_forgotten(handle, root, crash):
    handle.create()
    (root / "new").mkdir()
    (root / "new/file").write_bytes(b"new")
    at_tidying = Fault(
        number=1, methods=frozenset({"unlink"}), where=lambda call: call.path.endswith("/file")
    )
    crash(at_tidying)
    (kept,) = root.glob(".treesnap-restore-*/o*/file")
    if subprocess.run(["chattr", "+i", kept], capture_output=True, check=False).returncode:
        pytest.skip("no file attributes here")
    try:
        (root / "one").write_bytes(b"changed")
        with pytest.raises(Refused) as caught:
            handle.restore("latest")
        assert caught.value.code == ErrorCode.RESTORE_INTERRUPTED
        assert handle.status().changes
    finally:
        subprocess.run(["chattr", "-i", kept], check=True)

    handle.restore("latest")
    assert not list(root.glob(".treesnap*"))
    assert tree_state(root)[b"one"].content == b"one"
