"""Changes by others while a restore is under way, and what a crash leaves behind."""

from __future__ import annotations

import os
import shutil

import pytest

from interfering import Interfering
from state import tree_state
from treesnap.core.fs.base import FileSystem
from treesnap.core.model.errors import Conflict, OperationFailed, TreesnapError
from treesnap.testing.children import killed
from treesnap.testing.doubles import Fault, FaultyFileSystem


@pytest.fixture
def changed(handle, root):
    """Two files and a directory to put back, one file to remove; the old state."""
    (root / "three").write_bytes(b"three")
    handle.create(name="before")
    for name in ("one", "three", "directory/two"):
        (root / name).write_bytes(b"changed " + name.encode())
    (root / "added").mkdir()
    (root / "added/file").write_bytes(b"added")
    return tree_state(root)


def edit(path, content: bytes = b"by another process") -> None:
    path.write_bytes(content)


class TestConflicts:
    @pytest.mark.parametrize("number", [1, 2, 3])
    def test_an_edit_while_files_are_replaced_takes_everything_back(
        self, make_handle, root, changed, number
    ):
        """Before the first, the second and the last replacement, which is of that file."""
        fs = Interfering("exchange", number, lambda: edit(root / "three"))

        with pytest.raises(Conflict) as caught:
            make_handle(fs=fs).restore("before")

        assert caught.value.path == b"three"
        assert (root / "three").read_bytes() == b"by another process"
        assert (root / "one").read_bytes() == b"changed one"
        assert (root / "directory/two").read_bytes() == b"changed directory/two"
        assert (root / "added/file").exists()

    def test_an_edit_after_the_capture_is_noticed(self, make_handle, root, changed):
        fs = Interfering("sync_file_system", 1, lambda: edit(root / "one"))

        with pytest.raises(Conflict) as caught:
            make_handle(fs=fs).restore("before")

        assert caught.value.path == b"one"
        assert (root / "one").read_bytes() == b"by another process"
        assert (root / "three").read_bytes() == b"changed three"

    def test_a_file_that_appears_where_one_is_put_back_is_noticed(
        self, make_handle, root, handle, changed
    ):
        (root / "one").unlink()
        fs = Interfering("sync_file_system", 1, lambda: edit(root / "one"))

        with pytest.raises(Conflict):
            make_handle(fs=fs).restore("before")

        assert (root / "one").read_bytes() == b"by another process"

    def test_a_file_added_to_a_directory_that_goes_is_noticed(self, make_handle, root, changed):
        fs = Interfering("rename_to_absent", 1, lambda: edit(root / "added/new"))

        with pytest.raises(Conflict):
            make_handle(fs=fs).restore("before")

        assert (root / "added/new").read_bytes() == b"by another process"
        assert (root / "one").read_bytes() == b"changed one"

    def test_a_directory_swapped_for_a_link_is_not_followed(
        self, make_handle, root, changed, tmp_path
    ):
        outside = tmp_path / "outside"
        outside.mkdir()
        (outside / "two").write_bytes(b"not yours")

        def swap() -> None:
            (root / "directory").rename(tmp_path / "moved away")
            (root / "directory").symlink_to(outside)

        fs = Interfering("sync_file_system", 1, swap)

        with pytest.raises(Conflict):
            make_handle(fs=fs).restore("before")

        assert (outside / "two").read_bytes() == b"not yours"
        assert os.listdir(outside) == ["two"]

    def test_force_takes_the_change_into_the_safety_snapshot(self, make_handle, root, changed):
        fs = Interfering("sync_file_system", 1, lambda: edit(root / "one"))
        handle = make_handle(fs=fs)

        handle.restore("before", force=True)

        assert (root / "one").read_bytes() == b"one"
        handle.undo()
        assert (root / "one").read_bytes() == b"by another process"

    @pytest.mark.needs("exchange")
    def test_what_was_changed_after_it_was_put_is_left_so(self, make_handle, root, changed):
        """Another process replaces a file that was just put, then the restore fails elsewhere."""

        def replace_file() -> None:
            edit(root / "replacement")
            for name in ("one", "three", "directory/two"):
                if not (root / name).read_bytes().startswith(b"changed"):
                    (root / "replacement").rename(root / name)
                    return

        interfering = Interfering("rename_to_absent", 1, replace_file)
        fault = Fault(methods=frozenset({"rename_to_absent"}), errno=5)
        handle = make_handle(fs=FaultyFileSystem(fault, inner=interfering))
        interfering.method = "exchange"
        interfering.left = 2

        with pytest.raises(OperationFailed):
            handle.restore("before")

        contents = {name: (root / name).read_bytes() for name in ("one", "three", "directory/two")}
        assert list(contents.values()).count(b"by another process") == 1
        assert sum(content.startswith(b"changed") for content in contents.values()) == 2
        assert any("left alone" in warning for warning in handle.context.monitor.warnings)
        assert handle.status().recovered is None

    def test_a_file_that_appears_as_one_is_put_back_is_not_replaced(
        self, make_handle, root, changed
    ):
        (root / "one").unlink()
        fs = Interfering(
            "rename_to_absent",
            1,
            lambda: edit(root / "one"),
            where=lambda call: call.arguments[1] == b"one",
        )

        with pytest.raises(Conflict) as caught:
            make_handle(fs=fs).restore("before")

        assert caught.value.path == b"one"
        assert (root / "one").read_bytes() == b"by another process"
        assert (root / "three").read_bytes() == b"changed three"


class TestChangesBehindTheLastStep:
    """Everything is done, and about to be durable, when another process comes."""

    @pytest.fixture
    def restore(self, make_handle, root):
        """Fails to restore while another process acts and removes "three"; returns warnings."""

        def restorer(action) -> list[str]:
            def interfere() -> None:
                (root / "three").unlink()
                action()

            handle = make_handle(fs=Interfering("sync_file_system", 2, interfere))
            with pytest.raises(Conflict):
                handle.restore("before")
            assert (root / "three").read_bytes() == b"changed three"
            assert handle.status().recovered is None
            return handle.context.monitor.warnings

        return restorer

    def test_what_was_put_and_removed_by_another_process_becomes_what_it_was(
        self, restore, root, changed
    ):
        assert restore(lambda: None) == []

        assert tree_state(root) == changed

    def test_what_was_put_and_replaced_by_another_process_is_left_so(self, restore, root, changed):
        def replace() -> None:
            edit(root / "new")
            (root / "new").rename(root / "one")

        warnings = restore(replace)

        assert any("'one'" in warning and "left alone" in warning for warning in warnings)
        assert (root / "one").read_bytes() == b"by another process"

    def test_what_was_removed_and_made_anew_by_another_process_is_left_so(
        self, restore, root, changed
    ):
        warnings = restore(lambda: edit(root / "added"))

        assert any("'added'" in warning and "left alone" in warning for warning in warnings)
        assert (root / "added").read_bytes() == b"by another process"

    @pytest.fixture
    def permissions_changed(self, root, handle):
        """One file has only other permissions than before, another has other content."""
        (root / "three").write_bytes(b"three")
        (root / "one").chmod(0o600)
        handle.create(name="before")
        (root / "three").write_bytes(b"changed three")
        (root / "one").chmod(0o644)

    def test_a_file_that_was_written_to_after_its_permissions_came_back_is_left_so(
        self, restore, root, permissions_changed
    ):
        warnings = restore(lambda: edit(root / "one"))

        assert any("'one'" in warning and "left alone" in warning for warning in warnings)
        assert (root / "one").read_bytes() == b"by another process"
        assert (root / "one").stat().st_mode & 0o777 == 0o600

    def test_another_file_in_the_place_of_one_whose_permissions_came_back_keeps_its_own(
        self, restore, root, permissions_changed
    ):
        """Even one that cannot be told from it but by its inode."""

        def replace() -> None:
            (root / "new").write_bytes(b"new")
            shutil.copystat(root / "one", root / "new")
            (root / "new").chmod(0o755)
            (root / "new").rename(root / "one")

        restore(replace)

        assert (root / "one").read_bytes() == b"new"
        assert (root / "one").stat().st_mode & 0o777 == 0o755

    def test_another_link_in_the_place_of_one_whose_time_came_back_keeps_its_own(
        self, restore, root, handle
    ):
        times = {"old": (0, 10**18), "new": (0, 10**18 + 1)}
        (root / "three").write_bytes(b"three")
        (root / "link").symlink_to("one")
        os.utime(root / "link", ns=times["old"], follow_symlinks=False)
        handle.create(name="before")
        (root / "three").write_bytes(b"changed three")
        os.utime(root / "link", ns=times["new"], follow_symlinks=False)

        def replace() -> None:
            (root / "another").symlink_to("two")
            os.utime(root / "another", ns=times["old"], follow_symlinks=False)
            (root / "another").rename(root / "link")

        restore(replace)

        assert os.readlink(root / "link") == "two"
        assert (root / "link").lstat().st_mtime_ns == 10**18


class TestAfterACrash:
    @pytest.fixture
    def crash(self, make_handle, changed):
        """Kills a restore at its n-th renaming of a file in the tree."""

        def crasher(number: int) -> None:
            def action(fs: FileSystem) -> None:
                make_handle(fs=fs).restore("before")

            fault = Fault(number=number, methods=frozenset({"exchange"}))
            assert killed(action, fault).was_killed

        return crasher

    @pytest.mark.sampled(5)
    @pytest.mark.parametrize("verb", ["status", "list", "diff", "create", "gc"])
    def test_any_command_finishes_the_restore(self, handle, root, crash, verb):
        crash(2)
        handle.context.monitor.warnings.clear()

        getattr(handle, verb)()

        assert (root / "one").read_bytes() == b"one"
        assert not (root / "added").exists()
        assert handle.context.monitor.warnings == ["Completed an interrupted restore"]

    def test_status_says_so(self, handle, crash):
        crash(2)

        assert handle.status().recovered == "completed an interrupted restore"
        assert handle.status().recovered is None

    def test_a_file_changed_in_between_is_kept_and_the_restore_undone(self, handle, root, crash):
        crash(1)
        for name in ("one", "three", "directory/two"):
            edit(root / name)

        said = handle.recover()

        assert said is not None
        assert said.startswith("undid an interrupted restore")
        assert (root / "one").read_bytes() == b"by another process"
        assert (root / "added/file").read_bytes() == b"added"

    def test_a_root_that_was_removed_meanwhile_is_restored_anew(self, handle, root, crash):
        crash(2)
        shutil.rmtree(root)

        assert handle.recover() is None
        handle.restore("before")

        assert (root / "one").read_bytes() == b"one"
        assert handle.recover() is None

    def test_a_staging_directory_that_was_removed_meanwhile_is_not_missed(
        self, handle, root, crash
    ):
        crash(2)
        (stage,) = root.glob(".treesnap-restore-*")
        shutil.rmtree(stage)

        said = handle.recover()

        assert said == "completed an interrupted restore"
        assert (root / "one").read_bytes() == b"one"
        assert handle.undo().safety_id is not None

    def test_a_journal_that_cannot_be_read_is_named(self, handle, store_path, crash):
        crash(2)
        (journal,) = (store_path / "roots").glob("*/journal")
        journal.write_bytes(b"damaged")

        with pytest.raises(TreesnapError, match="journal"):
            handle.create()
