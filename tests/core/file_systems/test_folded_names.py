"""Names that differ in case alone, on a file system where they are one name."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import pytest

from folding import FoldingFileSystem
from sampling import sized
from state import differences, tree_state
from treesnap.core.handle import Handle
from treesnap.core.model.errors import ErrorCode, Refused, TreesnapError
from treesnap.core.model.events import CollectingMonitor
from treesnap.core.ops.context import context_at
from treesnap.testing.children import killed
from treesnap.testing.doubles import MUTATING, Fault, FaultyFileSystem, UnsyncedFileSystem

RENAMES = """
import os, sys
os.rename("Gate", "x"); os.rename("x", "gate")
os.rename("Wide/Inner", "x"); os.rename("x", "Wide/inner")
os.rename("Wide", "x"); os.rename("x", "wide")
sys.exit(3)
"""


class Place:
    """A root on a file system that folds case, with a snapshot ``before``."""

    def __init__(self, base: Path) -> None:
        self.base = base
        self.root = base / "folding/root"
        (self.root / "Wide").mkdir(parents=True)
        (self.root / "Gate").write_text("gate")
        (self.root / "Wide/Inner").write_text("inner")
        (self.root / "other").write_text("other")
        self.handle().create(name="before")
        self.before = tree_state(self.root)

    def fs(self, inner=None) -> FoldingFileSystem:
        return FoldingFileSystem(self.base / "folding", inner or UnsyncedFileSystem())

    def handle(self, **options) -> Handle:
        return Handle(
            context_at(
                root=self.root,
                store_path=str(self.base / "store"),
                **({"fs": self.fs(), "wait_s": 0} | options),
            )
        )

    def rename(self) -> None:
        """Gives three names another case, as people have to do it there."""
        (self.root / "Gate").rename(self.root / "gate")
        (self.root / "Wide/Inner").rename(self.root / "Wide/inner")
        (self.root / "Wide").rename(self.root / "wide")

    def is_before(self) -> bool:
        return differences(tree_state(self.root), self.before) == []


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


@pytest.mark.parametrize("force", [True, False])
def test_names_in_another_case_go_back_and_forth(place, force):
    place.rename()
    after = tree_state(place.root)

    place.handle().restore("before", force=force)

    assert place.is_before()
    place.handle().undo()
    assert differences(tree_state(place.root), after) == []
    place.handle().redo()
    assert place.is_before()


def test_a_file_with_other_content_goes_back(place):
    place.rename()
    (place.root / "gate").write_text("changed")

    place.handle().restore("before", force=True)

    assert place.is_before()


def test_a_failed_command_is_rolled_back(place):
    monitor = CollectingMonitor()
    result = place.handle(monitor=monitor).run([sys.executable, "-c", RENAMES])

    assert result.exit_code == 3
    assert place.is_before()


def test_a_block_is_rolled_back(place):
    def fail() -> None:
        with place.handle().rollback_on_error():
            place.rename()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()

    assert place.is_before()


def test_a_kill_anywhere_leaves_one_of_both_states(place):
    again = place.base / "again"
    place.rename()
    shutil.copytree(place.root, again, copy_function=shutil.copy2)
    after = tree_state(place.root)
    outcomes = []
    for number in range(1, 1000, sized(7, 1)):
        fault = Fault(
            kinds=MUTATING, number=number, where=lambda call: str(place.root) in call.path
        )
        ended = killed(
            lambda fs: place.handle(fs=place.fs(fs)).restore("before", force=True), fault
        )
        place.handle().recover()
        found = tree_state(place.root)
        is_before = differences(found, place.before) == []
        assert is_before or differences(found, after) == []
        outcomes.append(is_before)
        if not ended.was_killed:
            break
        if is_before:
            place.handle().undo()
            assert differences(tree_state(place.root), after) == []

    assert set(outcomes) == {False, True}


def test_an_error_takes_everything_back(place):
    place.rename()
    after = tree_state(place.root)
    fault = Fault(methods=frozenset({"rename_to_absent"}), number=3, errno=5)
    fs = place.fs(FaultyFileSystem(fault, inner=UnsyncedFileSystem()))

    with pytest.raises(TreesnapError, match="Input/output"):
        place.handle(fs=fs).restore("before", force=True)

    assert differences(tree_state(place.root), after) == []


def test_a_path_in_another_case_is_refused_while_that_one_stays(place):
    """It would replace a file that was not named."""
    place.rename()
    found = tree_state(place.root)

    with pytest.raises(Refused) as caught:
        place.handle().restore("before", ["Gate"])

    assert caught.value.code == ErrorCode.NAMES_COLLIDE
    assert "'gate'" in caught.value.message
    assert "'Gate'" in caught.value.message
    assert differences(tree_state(place.root), found) == []


class TestTwoNames:
    """A snapshot from a file system that tells the case has both."""

    @pytest.fixture
    def both(self, tmp_path):
        source = tmp_path / "source"
        (source / "directory").mkdir(parents=True)
        for name in ("Name", "name"):
            (source / "directory" / name).write_text(name)
            (source / name).mkdir()
        handle = Handle(
            context_at(
                root=source,
                store_path=str(tmp_path / "store"),
                fs=FoldingFileSystem(tmp_path / "folding", UnsyncedFileSystem()),
            )
        )
        (tmp_path / "folding").mkdir(exist_ok=True)
        handle.create(name="both")
        return handle

    def test_are_refused_elsewhere_before_anything_is_there(self, both, tmp_path):
        target = tmp_path / "folding/target"

        with pytest.raises(Refused) as caught:
            both.restore("both", to=target)

        assert caught.value.code == ErrorCode.NAMES_COLLIDE
        message = caught.value.message
        assert "'Name'" in message or "'directory/Name'" in message
        assert "'name'" in message or "'directory/name'" in message
        assert os.listdir(tmp_path / "folding") == []

    def test_are_restored_where_the_case_counts(self, both, tmp_path):
        both.restore("both", to=tmp_path / "target")

        assert sorted(os.listdir(tmp_path / "target")) == ["Name", "directory", "name"]

    def test_are_refused_in_place_before_anything_is_touched(self, both, tmp_path):
        root = tmp_path / "folding/root"
        root.mkdir()
        (root / "file").write_text("file")
        os.rename(both.root, tmp_path / "away")
        there = Handle(context_at(root=root, store_path=both.store_path, fs=both.context.fs))
        there.root_move(tmp_path / "source")
        found = tree_state(root)

        with pytest.raises(Refused) as caught:
            there.restore("both")

        assert caught.value.code == ErrorCode.NAMES_COLLIDE
        assert differences(tree_state(root), found) == []
