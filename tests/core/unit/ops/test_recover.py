"""What becomes of a restore that was killed, when something happened before the next command."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from interfering import Interfering
from sampling import sized
from state import differences, tree_state
from treesnap.core.model.errors import Conflict, ErrorCode, Refused, TreesnapError
from treesnap.core.model.snapshots import SnapshotKind
from treesnap.testing.children import killed
from treesnap.testing.doubles import (
    MUTATING,
    Call,
    Fault,
    FaultyFileSystem,
    Kind,
    WrappedFileSystem,
    kill_at,
)

pytestmark = pytest.mark.sampled(10)

MOVES = frozenset({"exchange", "rename_to_absent"})
NAMES = ("one", "three", "directory/two")


@pytest.fixture
def before(handle, root):
    """Files to put back, a directory to remove, metadata to change; the state to restore."""
    (root / "three").write_bytes(b"three" * 30)
    for name in NAMES:
        os.utime(root / name, ns=(10**18, 10**18))
    os.link(root / "one", root / "linked")
    handle.create(name="before")
    state = tree_state(root)
    for name in NAMES:
        (root / name).write_bytes(b"changed " + name.encode())
    (root / "added").mkdir()
    (root / "added/file").write_bytes(b"added")
    (root / "directory").chmod(0o700)
    return state


@pytest.fixture
def crash(make_handle, after):
    """Kills a restore at its n-th move of something in the tree."""

    def crasher(number: int) -> None:
        fault = Fault(number=number, methods=MOVES)
        assert killed(lambda fs: make_handle(fs=fs).restore("before"), fault).was_killed

    return crasher


@pytest.fixture
def crash_after_all_moves(make_handle, after):
    """Kills a restore just before it makes its moves durable."""

    def crasher() -> None:
        fault = Fault(number=2, methods=frozenset({"sync_file_system"}))
        assert killed(lambda fs: make_handle(fs=fs).restore("before"), fault).was_killed

    return crasher


def stage_of(root: Path) -> Path:
    (stage,) = root.glob(".treesnap-restore-*")
    return stage


def with_other_inodes(root: Path) -> None:
    """Puts a copy in the place of a tree."""
    copy = root.with_name("copy")
    subprocess.run(["cp", "-a", root, copy], check=True)
    shutil.rmtree(root)
    copy.rename(root)


class TestACopy:
    """The tree is copied between the crash and the recovery, as containers and backups do."""

    @pytest.mark.sampled(3)
    @pytest.mark.parametrize("number", [1, 2, 3, 4, 5])
    def test_is_completed_like_the_original(self, handle, root, before, crash, number):
        crash(number)
        with_other_inodes(root)

        handle.recover()

        assert differences(tree_state(root), before) == []

    def test_is_completed_after_a_kill_anywhere(self, make_handle, root, before, after):
        again = root.with_name("again")
        subprocess.run(["cp", "-a", root, again], check=True)
        outcomes = []
        for number in range(1, 1000, sized(5, 1)):
            ended = killed(lambda fs: make_handle(fs=fs).restore("before"), kill_at(number))
            with_other_inodes(root)
            make_handle().recover()
            found = tree_state(root)
            assert found in (before, after)
            outcomes.append(found == before)
            if not ended.was_killed:
                break
            shutil.rmtree(root)
            subprocess.run(["cp", "-a", again, root], check=True)

        assert outcomes == sorted(outcomes)
        assert set(outcomes) == {False, True}


class TestChangesByOthers:
    def test_to_a_directory_that_was_removed_are_in_a_snapshot(
        self, handle, root, before, crash_after_all_moves, tmp_path
    ):
        """Another process works in the directory that the restore had moved aside."""
        crash_after_all_moves()
        (aside,) = stage_of(root).glob("*/file")
        aside.with_name("new").write_bytes(b"work of an hour")
        (aside.parent / ".snapignore").write_text("*")

        handle.recover()

        assert differences(tree_state(root), before) == []
        newest = handle.list()[0]
        assert newest.kind == SnapshotKind.SAFETY
        assert any(newest.id[:12] in warning for warning in handle.context.monitor.warnings)
        handle.restore(newest.id, to=tmp_path / "copied")
        assert (tmp_path / "copied/added/new").read_bytes() == b"work of an hour"
        assert (tmp_path / "copied/added/file").read_bytes() == b"added"

    def test_through_a_file_that_was_open_are_in_a_snapshot(
        self, handle, root, before, crash, tmp_path
    ):
        with (root / "directory/two").open("ab") as file:
            crash(3)
            file.write(b" and more")

        handle.recover()

        assert differences(tree_state(root), before) == []
        handle.restore(handle.list()[0].id, to=tmp_path / "copied")
        copied = (tmp_path / "copied/directory/two").read_bytes()
        assert copied == b"changed directory/two and more"

    def test_deep_in_a_directory_to_be_removed_are_kept(self, handle, root, crash):
        crash(1)
        (root / "added/deep").mkdir()
        (root / "added/deep/new").write_bytes(b"new")

        said = handle.recover()

        assert (root / "added/deep/new").read_bytes() == b"new"
        assert (root / "one").read_bytes() == b"changed one"
        assert "'added'" in said

    def test_after_all_was_done_leave_the_new_state_around_them(
        self, handle, root, crash_after_all_moves
    ):
        crash_after_all_moves()
        (root / "three").write_bytes(b"newer")

        said = handle.recover()

        assert said.startswith("completed")
        assert "'three'" in said
        assert (root / "one").read_bytes() == b"one"
        assert (root / "three").read_bytes() == b"newer"

    @pytest.mark.parametrize("as_link", [False, True])
    def test_that_took_a_directory_away_are_left(self, handle, root, crash, as_link, tmp_path):
        crash(1)
        shutil.rmtree(root / "directory")
        if as_link:
            (tmp_path / "elsewhere").mkdir()
            (tmp_path / "elsewhere/two").write_bytes(b"not ours")
            (root / "directory").symlink_to(tmp_path / "elsewhere")

        said = handle.recover()

        assert "'directory/two'" in said
        assert (root / "directory").is_symlink() == as_link
        assert not as_link or (tmp_path / "elsewhere/two").read_bytes() == b"not ours"
        assert not list(root.glob(".treesnap*"))

    def test_of_metadata_are_noticed(self, handle, root, crash):
        crash(1)
        (root / "three").chmod(0o604)

        said = handle.recover()

        assert "'three'" in said
        assert (root / "three").stat().st_mode & 0o777 == 0o604


class TestWhatRecoveryNeeds:
    def test_is_not_deleted(self, handle, root, crash):
        crash(2)
        aside = root.rename(root.with_name("aside"))
        for snapshot in handle.list():
            with pytest.raises(Refused) as caught:
                handle.delete(snapshot.id)
            assert caught.value.code == ErrorCode.RESTORE_INTERRUPTED

        aside.rename(root)

        handle.delete(handle.list()[0].id)
        assert (root / "one").read_bytes() == b"one"

    def test_may_be_damaged_on_one_side(self, handle, root, store_path, after, crash):
        """The new state cannot be built any more, so the old one comes back."""
        crash(1)
        damage_last_record_of_first_pack(store_path, handle)

        said = handle.recover()

        assert said.startswith("undid an interrupted restore")
        assert differences(tree_state(root), after) == []

    def test_is_asked_for_where_the_root_is_something_else(self, handle, root, crash):
        crash(1)
        aside = root.rename(root.with_name("aside"))
        root.write_bytes(b"a file")

        with pytest.raises(Refused) as caught:
            handle.recover()

        assert caught.value.code == ErrorCode.NOT_A_DIRECTORY
        assert root.read_bytes() == b"a file"
        root.unlink()
        aside.rename(root)
        assert handle.recover() == "completed an interrupted restore"


def damage_last_record_of_first_pack(store_path: Path, handle) -> None:
    """Flips a bit in the content of the file that the first snapshot alone has."""
    needle = b"three"
    for path in store_path.glob("packs/*"):
        data = bytearray(path.read_bytes())
        position = data.find(needle)
        if position >= 0:
            data[position] ^= 1
            path.write_bytes(data)
            return
    raise AssertionError("The content is stored in another way")


def is_mount_permitted(tmp_path_factory: pytest.TempPathFactory) -> bool:
    place = tmp_path_factory.mktemp("mount")
    done = subprocess.run(["mount", "-t", "tmpfs", "none", place], capture_output=True, check=False)
    if done.returncode == 0:
        subprocess.run(["umount", place], check=True)
    return done.returncode == 0


def test_a_file_system_that_is_not_mounted_is_waited_for(
    handle, root, before, crash, tmp_path, tmp_path_factory
):
    """The tree lies on a file system of its own, which was not mounted at the next command."""
    if not is_mount_permitted(tmp_path_factory):
        pytest.skip("mounting is not permitted here")
    content = root.rename(root.with_name("content"))
    root.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "none", root], check=True)
    try:
        subprocess.run(["cp", "-a", f"{content}/.", root], check=True)
        handle.create()  # until then, what is mounted is not the root
        crash(2)
        hidden = root.with_name("hidden")
        hidden.mkdir()
        subprocess.run(["mount", "--move", root, hidden], check=False, capture_output=True)
        if os.path.ismount(root):
            subprocess.run(["mount", "--bind", root, hidden], check=True)
            subprocess.run(["umount", root], check=True)
        try:
            with pytest.raises(Refused) as caught:
                handle.restore("before")
            assert caught.value.code == ErrorCode.RESTORE_INTERRUPTED
            assert os.listdir(root) == []
        finally:
            subprocess.run(["mount", "--bind", hidden, root], check=True)
            subprocess.run(["umount", hidden], check=True)

        assert handle.recover() == "completed an interrupted restore"
        assert (root / "one").read_bytes() == b"one"
    finally:
        subprocess.run(["umount", root], check=True)


def test_errors_in_recovery_leave_the_journal_for_the_next(
    make_handle, handle, root, before, after, crash
):
    """Recovery is tried again and again, and each time a later call fails."""
    crash(2)
    failures = 0
    for number in range(1, 1000):
        fault = Fault(number=number, errno=errno.EIO, kinds=MUTATING | {Kind.SYNC})
        fs = FaultyFileSystem(fault)
        try:
            make_handle(fs=fs).recover()
        except TreesnapError:
            failures += 1
        if not fs.hits_of(fault):
            break

    assert failures > 0
    assert tree_state(root) in (before, after)
    assert handle.recover() is None
    assert not list(root.glob(".treesnap*"))


def test_what_was_written_into_a_new_directory_is_kept_when_an_error_takes_it_back(
    make_handle, handle, root, before, after, tmp_path
):
    """Another process works in the directory that the restore has just put, and then it fails."""
    shutil.rmtree(root / "directory")

    class Working(WrappedFileSystem):
        def around(self, call: Call):
            if call.method == "sync_file_system" and (root / "directory").is_dir():
                (root / "directory/new").write_bytes(b"work")
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            return call.proceed()

    with pytest.raises(TreesnapError):
        make_handle(fs=Working()).restore("before")
    handle.recover()

    copied = [item for item in handle.list() if item.record.scope == (b"directory",)]
    found = [path for path in (root / "directory/new",) if path.exists()]
    assert found or copied
    if copied:
        handle.restore(copied[0].id, to=tmp_path / "copied")
        assert (tmp_path / "copied/directory/new").read_bytes() == b"work"


class TestMeanwhile:
    """What happens while a restore is being finished."""

    def test_another_process_that_finishes_it_first_is_enough(
        self, make_handle, handle, root, before, crash
    ):
        crash(2)
        late = make_handle(fs=Interfering("lock", 1, handle.recover))

        assert late.recover() is None

        assert late.context.monitor.warnings == []
        assert differences(tree_state(root), before) == []

    def test_a_change_makes_it_look_again_and_is_left(self, make_handle, root, crash):
        crash(1)
        fs = Interfering("exchange", 1, lambda: (root / "three").write_bytes(b"newer"))

        said = make_handle(fs=fs).recover()

        assert "left paths alone that another process changed meanwhile: 'three'" in said
        assert (root / "three").read_bytes() == b"newer"
        assert not list(root.glob(".treesnap*"))

    def test_a_process_that_is_always_faster_is_a_conflict(self, make_handle, handle, root, crash):
        crash(1)
        edited = set()

        class Restless(WrappedFileSystem):
            def around(self, call: Call):
                if call.method == "exchange":
                    names = {os.path.relpath(path, root) for path in call.paths}
                    for name in names & set(NAMES) - edited:
                        (root / name).write_bytes(b"newer")
                        edited.add(name)
                return call.proceed()

        with pytest.raises(Conflict) as caught:
            make_handle(fs=Restless()).recover()

        assert os.fsdecode(caught.value.path) in edited
        assert handle.recover() == "completed an interrupted restore"
        assert len(edited) == 3
        for name in edited:
            (found,) = handle.find(f"/{name}")
            assert b"newer" in {handle.read(ref, name) for ref in found.snapshot_ids}

    def test_a_directory_that_cannot_be_looked_into_has_it_undone(
        self, make_handle, root, after, crash
    ):
        crash(1)
        fault = Fault(
            errno=errno.EIO,
            methods=frozenset({"open"}),
            where=lambda call: call.path == str(root / "directory"),
        )

        said = make_handle(fs=FaultyFileSystem(fault)).recover()

        assert "because it could not be finished" in said
        assert differences(tree_state(root), after) == []
