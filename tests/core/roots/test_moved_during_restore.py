"""A root that is renamed while it is restored: nothing is left in it that was not there."""

from __future__ import annotations

import errno
import shutil
from contextlib import suppress
from pathlib import Path

import pytest

from interfering import Interfering
from mounting import mounting
from state import differences, tree_state
from treesnap.core.handle import Handle
from treesnap.core.model.errors import ErrorCode, Refused, TreesnapError
from treesnap.core.model.events import CollectingMonitor
from treesnap.core.ops.context import context_at
from treesnap.testing.children import killed
from treesnap.testing.doubles import Fault, FaultyFileSystem, UnsyncedFileSystem

pytestmark = pytest.mark.sampled(10)


@pytest.fixture
def place(tmp_path: Path):
    """A root to restore, with its state before the restore and the one that is restored."""
    root = tmp_path / "root"
    (root / "directory").mkdir(parents=True)
    (root / "file").write_text("old")
    (root / "directory/file").write_text("old")
    handle = Handle(
        context_at(root=root, store_path=str(tmp_path / "store"), fs=UnsyncedFileSystem())
    )
    handle.create(name="wanted")
    wanted = tree_state(root)
    (root / "file").write_text("new")
    (root / "directory/file").write_text("new")
    (root / "added").mkdir()
    (root / "added/file").write_text("added")
    return root, wanted, tree_state(root)


MOMENTS = [
    *(("make_directory", number) for number in (1, 2)),
    *(("write_at", number) for number in (1, 2, 3)),
    *(("sync_file_system", number) for number in (1, 2)),
    *(("exchange", number) for number in (1, 2)),
    *(("rename_to_absent", number) for number in (1, 2)),
    *(("remove_directory", number) for number in (1, 2)),
]


def in_stage(call) -> bool:
    return ".treesnap-restore-" in str(call.path) or call.method == "sync_file_system"


def everything_is_as_promised(place, moved: Path) -> None:
    root, wanted, before = place
    where = moved if moved.exists() else root
    found = tree_state(where)
    assert differences(found, wanted) == [] or differences(found, before) == []
    assert not list(root.parent.rglob(".treesnap*"))
    assert not list(root.parent.glob("store/roots/*/journal"))


@pytest.mark.sampled(5)
@pytest.mark.parametrize(("method", "number"), MOMENTS)
def test_no_staging_directory_is_left(place, method, number, tmp_path):
    root = place[0]
    moved = tmp_path / "moved"
    fs = Interfering(method, number, lambda: root.rename(moved), in_stage)

    with suppress(TreesnapError):
        Handle(context_at(root=root, store_path=str(tmp_path / "store"), fs=fs)).restore("wanted")

    everything_is_as_promised(place, moved)


@pytest.mark.sampled(6)
@pytest.mark.parametrize(("method", "number"), MOMENTS)
@pytest.mark.parametrize("failing", ["exchange", "sync_file_system"])
def test_neither_by_one_that_fails_then(place, method, number, failing, tmp_path):
    root = place[0]
    moved = tmp_path / "moved"
    moving = Interfering(method, number, lambda: root.rename(moved), in_stage)
    fault = Fault(methods=frozenset({failing}), number=2, errno=errno.EIO)
    fs = FaultyFileSystem(fault, inner=moving)

    with suppress(TreesnapError):
        Handle(context_at(root=root, store_path=str(tmp_path / "store"), fs=fs)).restore("wanted")

    everything_is_as_promised(place, moved)


def test_what_is_written_into_a_replaced_file_meanwhile_is_kept(place, tmp_path):
    """The file that was put aside is written to, and the root is moved away."""
    root = place[0]
    moved = tmp_path / "moved"
    with (root / "file").open("r+") as file, (root / "directory/file").open("r+") as other:

        def act() -> None:
            root.rename(moved)
            for opened in (file, other):
                opened.write("precious")
                opened.flush()

        fs = Interfering("sync_file_system", 2, act)
        with pytest.raises(TreesnapError):
            Handle(context_at(root=root, store_path=str(tmp_path / "store"), fs=fs)).restore(
                "wanted"
            )

    assert (moved / "file").read_text() == "precious"
    assert (moved / "directory/file").read_text() == "precious"
    assert not list(moved.rglob(".treesnap*"))


class TestMovedAfterAKill:
    """Nothing takes the mix for a state: it is finished first, or refused."""

    @pytest.fixture
    def kill_and_move(self, place, tmp_path):
        """Kills a restore at a call, and renames the root, or copies it."""

        def act(method: str, number: int, *, copied: bool = False) -> Handle:
            root = place[0]
            store = str(tmp_path / "store")
            fault = Fault(methods=frozenset({method}), number=number)

            def restore(fs) -> None:
                Handle(context_at(root=root, store_path=store, fs=fs)).restore("wanted")

            assert killed(restore, fault).was_killed
            moved = tmp_path / "moved"
            if copied:
                shutil.copytree(root, moved, symlinks=True)
            else:
                root.rename(moved)
            return Handle(context_at(root=moved, store_path=store, fs=UnsyncedFileSystem()))

        return act

    @pytest.mark.parametrize(("method", "number"), [("exchange", 2), ("sync_file_system", 2)])
    def test_a_capture_of_a_copy_is_refused(self, place, kill_and_move, method, number):
        moved = kill_and_move(method, number, copied=True)
        found = tree_state(Path(moved.root))

        for write in (moved.create, lambda: moved.run(["false"])):
            with pytest.raises(Refused, match="was interrupted") as caught:
                write()
            assert caught.value.code == ErrorCode.RESTORE_INTERRUPTED
            assert str(place[0]) in caught.value.message

        assert differences(tree_state(Path(moved.root)), found) == []
        assert moved.list() == ()

    @pytest.mark.parametrize(("method", "number"), [("exchange", 2), ("sync_file_system", 2)])
    def test_it_is_finished_where_it_is_or_when_it_is_back(
        self, place, kill_and_move, method, number, tmp_path
    ):
        """Where the file system keeps birth times, a moved root is recognised."""
        root, wanted, _ = place
        moved = kill_and_move(method, number)
        try:
            moved.create()
            root = Path(moved.root)
        except Refused:
            Path(moved.root).rename(root)

        Handle(context_at(root=root, store_path=str(tmp_path / "store"))).status()

        assert differences(tree_state(root), wanted) == []
        assert not list(root.glob(".treesnap*"))

    def test_a_copy_is_captured_once_the_tree_itself_is_finished(
        self, place, kill_and_move, tmp_path
    ):
        copied = kill_and_move("exchange", 2, copied=True)
        Handle(context_at(root=place[0], store_path=str(tmp_path / "store"))).recover()

        assert copied.create().complete

    def test_one_that_was_only_prepared_is_no_mix(self, kill_and_move):
        moved = kill_and_move("sync_file_system", 1)

        assert moved.create().complete
        assert (Path(moved.root) / "file").read_text() == "new"

    def test_what_was_only_prepared_is_named_where_no_journal_is_left(self, kill_and_move, place):
        moved = kill_and_move("sync_file_system", 1)
        place[0].mkdir()
        handle = Handle(
            context_at(root=place[0], store_path=moved.store_path, fs=UnsyncedFileSystem())
        )
        handle.create()
        (stage,) = Path(moved.root).glob(".treesnap-restore-*")
        monitor = CollectingMonitor()

        Handle(context_at(root=moved.root, store_path=moved.store_path, monitor=monitor)).create()

        assert [text for text in monitor.warnings if stage.name in text]

    @pytest.mark.parametrize(("method", "number"), [("exchange", 2), ("sync_file_system", 2)])
    def test_another_directory_in_its_place_is_left_alone(
        self, place, kill_and_move, method, number
    ):
        """Today's directory at the old path is not what was restored."""
        root, wanted, _ = place
        moved = kill_and_move(method, number)
        root.mkdir()
        (root / "file").write_text("another")
        found = tree_state(root)
        handle = Handle(context_at(root=root, store_path=moved.store_path, fs=UnsyncedFileSystem()))

        for act in (handle.create, lambda: handle.restore("wanted"), handle.recover):
            with pytest.raises(Refused, match="was interrupted") as caught:
                act()
            assert caught.value.code == ErrorCode.RESTORE_INTERRUPTED

        assert differences(tree_state(root), found) == []
        (listed,) = handle.root_list()
        assert listed.interrupted
        (work,) = handle.doctor().unfinished
        assert work.blocked
        assert "another directory is in its place" in work.resolution
        with pytest.raises(Refused, match="is not the directory that was restored"):
            handle.root_move(root, root)

        info = moved.root_move(root)

        assert not info.interrupted
        assert differences(tree_state(Path(moved.root)), wanted) == []
        assert not list(Path(moved.root).glob(".treesnap*"))
        assert differences(tree_state(root), found) == []
        assert handle.create().complete

    def test_it_is_given_up_where_the_tree_is_gone(self, place, kill_and_move):
        moved = kill_and_move("exchange", 2)
        shutil.rmtree(moved.root)
        place[0].mkdir()
        handle = Handle(
            context_at(root=place[0], store_path=moved.store_path, fs=UnsyncedFileSystem())
        )

        assert handle.doctor(forget=True).forgotten

        assert handle.create().complete

    def test_one_that_is_not_recognised_is_finished_by_a_move(self, place, kill_and_move):
        """After a move to another file system, where birth times are not told, and for a copy."""
        root, wanted, _ = place
        moved = kill_and_move("exchange", 2, copied=True)
        shutil.rmtree(root)
        with pytest.raises(Refused, match="was interrupted"):
            moved.create()

        moved.root_move(root)

        assert differences(tree_state(Path(moved.root)), wanted) == []
        assert not list(Path(moved.root).glob(".treesnap*"))

    def test_a_file_system_that_is_mounted_in_its_place_is_left_alone(self, place, kill_and_move):
        root, wanted, _ = place
        moved = kill_and_move("exchange", 2)
        Path(moved.root).rename(root)
        handle = Handle(context_at(root=root, store_path=moved.store_path, fs=UnsyncedFileSystem()))
        with mounting() as mounter:
            mounter.tmpfs(root)
            (root / "file").write_text("another")
            found = tree_state(root)

            for act in (handle.create, handle.recover, lambda: handle.root_move(root, root)):
                with pytest.raises(Refused):
                    act()
            (work,) = handle.doctor().unfinished
            assert "another file system is in its place" in work.resolution

            assert differences(tree_state(root), found) == []

        assert handle.recover() == "completed an interrupted restore"
        assert differences(tree_state(root), wanted) == []
