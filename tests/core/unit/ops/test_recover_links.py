"""Recovery of trees with hard links, and with directories that the stat cache knows."""

from __future__ import annotations

import os
import time

import pytest

from state import differences, tree_state
from treesnap.testing.children import killed
from treesnap.testing.doubles import Fault

MOVES = frozenset({"exchange", "rename_to_absent"})


class TestWhatWasCachedOrLinked:
    """Trees in which recovery once found conflicts of its own making."""

    def test_directories_that_the_stat_cache_knows_are_moved_aside(self, make_handle, handle, root):
        """Files come in the place of directories that did not change since they were captured."""
        for number in range(6):
            (root / f"{number}").write_bytes(b"file")
        handle.create(name="files")
        files = tree_state(root)
        for number in range(6):
            (root / f"{number}").unlink()
            (root / f"{number}").mkdir()
            (root / f"{number}/inside").write_bytes(b"inside")
            for path in (root / f"{number}/inside", root / f"{number}"):
                os.utime(path, ns=(10**18, 10**18))
        make_handle(clock_ns=lambda: time.time_ns() + 10**10).create()
        fault = Fault(number=1, methods=MOVES)
        assert killed(lambda fs: make_handle(fs=fs).restore("files"), fault).was_killed

        assert handle.recover() == "completed an interrupted restore"
        assert differences(tree_state(root), files) == []

    @pytest.mark.sampled(5)
    @pytest.mark.parametrize("number", [1, 2, 3, 4])
    def test_a_linked_file_moves_into_a_directory_that_took_the_place_of_a_file(
        self, make_handle, handle, root, number
    ):
        (root / "m").write_bytes(b"linked")
        os.link(root / "m", root / "again")
        (root / "f").write_bytes(b"file")
        handle.create(name="first")
        first = tree_state(root)
        (root / "f").unlink()
        (root / "f").mkdir()
        (root / "again").rename(root / "f/again")
        second = tree_state(root)
        handle.restore("first")
        fault = Fault(number=number, methods=MOVES)
        ended = killed(lambda fs: make_handle(fs=fs).undo(), fault)

        handle.recover()

        assert (
            tree_state(root) == second
            if ended.was_killed
            else tree_state(root)
            in (
                first,
                second,
            )
        )
        assert not list(root.glob(".treesnap*"))

    @pytest.mark.sampled(3)
    @pytest.mark.parametrize("share", [1, 2, 3, 4, 5])
    def test_names_of_a_file_of_which_one_was_kept_aside(self, make_handle, handle, root, share):
        """Emptying the old staging directory changes the times of the other names."""
        (root / "a").write_bytes(b"linked")
        for name in ("b", "c"):
            os.link(root / "a", root / name)
        handle.create(name="together")
        together = tree_state(root)
        (root / "b").unlink()
        (root / "b").write_bytes(b"apart")
        (root / "a").chmod(0o600)
        fault = Fault(number=share, methods=MOVES)
        killed(lambda fs: make_handle(fs=fs).restore("together"), fault)

        handle.recover()

        found = tree_state(root)
        assert found == together or found[b"b"].content == b"apart"
        assert not list(root.glob(".treesnap*"))
