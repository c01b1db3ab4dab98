"""Names that differ in spelling alone, on a file system where they are one name."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from folding import Fold, FoldingFileSystem, without_case_or_form, without_form
from sampling import sized
from state import differences, tree_state
from treesnap.core.fs.base import FileSystem
from treesnap.core.handle import Handle
from treesnap.core.model.errors import ErrorCode, Refused, TreesnapError
from treesnap.core.model.events import CollectingMonitor
from treesnap.core.ops.context import context_at
from treesnap.core.worktree.apply.capabilities import capabilities_of
from treesnap.testing.children import killed
from treesnap.testing.doubles import (
    MUTATING,
    Fault,
    FaultyFileSystem,
    UnsyncedFileSystem,
    kill_at,
)

pytestmark = pytest.mark.sampled(2)

RENAMES = """
import os, sys
os.rename("Gate", "x"); os.rename("x", "gate")
os.rename("Wide/Inner", "x"); os.rename("x", "Wide/inner")
os.rename("Wide", "x"); os.rename("x", "wide")
sys.exit(3)
"""


class Place:
    """A root on a file system that folds names, with a snapshot ``before``."""

    def __init__(self, base: Path, **options: Any) -> None:
        self.base = base
        self.options = options
        self.root = base / "folding/root"
        (self.root / "Wide").mkdir(parents=True)
        (self.root / "Gate").write_text("gate")
        (self.root / "Wide/Inner").write_text("inner")
        (self.root / "other").write_text("other")
        self.handle().create(name="before")
        self.before = tree_state(self.root)

    def fs(self, inner=None) -> FoldingFileSystem:
        inner = inner or UnsyncedFileSystem()
        return FoldingFileSystem(self.base / "folding", inner, **self.options)

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


@pytest.fixture(params=[False, True], ids=["renames", "exchanges"])
def place(tmp_path: Path, request: pytest.FixtureRequest) -> Place:
    """Names change places on APFS, and on exfat they do not."""
    return Place(tmp_path, exchanges=request.param)


@pytest.mark.parametrize(
    ("fold", "found"),
    [(str.casefold, (True, False)), (without_form, (False, True))],
    ids=["case", "accents"],
)
def test_what_a_directory_folds_is_found_out(tmp_path, fold, found):
    (tmp_path / "folding").mkdir()
    fs = FoldingFileSystem(tmp_path / "folding", fold=fold)
    fd = fs.open(str(tmp_path / "folding"), os.O_RDONLY)

    capabilities = capabilities_of(fs, fd)

    fs.close(fd)
    assert (capabilities.folds_case, capabilities.folds_accents) == found
    assert (capabilities.exchange, capabilities.hard_links) == (False, True)
    assert os.listdir(tmp_path / "folding") == []


def found_in(directory: Path, fs: FileSystem) -> object:
    fd = fs.open(str(directory), os.O_RDONLY)
    try:
        return capabilities_of(fs, fd)
    finally:
        fs.close(fd)


@pytest.mark.parametrize("number", [1, 2, 9, 14])
def test_what_a_killed_look_left_is_removed_by_the_next(tmp_path, number):
    ended = killed(lambda fs: found_in(tmp_path, fs), kill_at(number))
    assert (ended.was_killed, len(os.listdir(tmp_path))) == (True, min(1, number - 1))

    found_in(tmp_path, UnsyncedFileSystem())

    assert os.listdir(tmp_path) == []


def test_a_look_leaves_that_of_another_process_alone(tmp_path):
    fs = UnsyncedFileSystem()
    other = tmp_path / f".treesnap-restore-doctor-{os.geteuid()}"
    other.mkdir()
    fd = fs.open(str(other), os.O_RDONLY)
    fs.lock(fd, exclusive=True)

    found_in(tmp_path, fs)
    fs.close(fd)
    assert os.listdir(tmp_path) == [other.name]
    found_in(tmp_path, fs)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("make", [Path.touch, lambda path: path.symlink_to("..")])
def test_a_look_leaves_a_file_or_a_link_of_its_name_alone(tmp_path, make):
    other = tmp_path / f".treesnap-restore-doctor-{os.geteuid()}"
    make(other)

    found_in(tmp_path, UnsyncedFileSystem())

    assert os.listdir(tmp_path) == [other.name]


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


COMPOSED, DECOMPOSED = "caf\u00e9", "cafe\u0301"


@pytest.mark.parametrize("fold", [without_form, without_case_or_form])
class TestAccents:
    """Names in another normal form, with ASCII names around them."""

    @pytest.fixture
    def place(self, tmp_path: Path, fold: Fold) -> Place:
        place = Place(tmp_path, fold=fold, exchanges=True)
        (place.root / "Wide" / COMPOSED).write_text("composed")
        place.handle().create(name="accents")
        place.before = tree_state(place.root)
        return place

    @pytest.mark.parametrize("is_new", [True, False])
    def test_go_back_and_forth(self, place, is_new):
        """A program may write the file anew, under the form that it prefers, or rename it."""
        directory = place.root / "Wide"
        (directory / COMPOSED).rename(directory / DECOMPOSED)
        if is_new:
            (directory / DECOMPOSED).unlink()
            (directory / DECOMPOSED).write_text("decomposed")
        after = tree_state(place.root)

        place.handle().restore("accents")

        assert place.is_before()
        place.handle().undo()
        assert differences(tree_state(place.root), after) == []
        place.handle().redo()
        assert place.is_before()


@pytest.mark.parametrize(
    ("fold", "before", "after"),
    [
        (str.casefold, COMPOSED, (COMPOSED.upper(), DECOMPOSED.upper())),
        (str.casefold, DECOMPOSED, (COMPOSED, DECOMPOSED.upper())),
        (without_form, COMPOSED, (COMPOSED.upper(), DECOMPOSED)),
        (without_form, DECOMPOSED, (DECOMPOSED.upper(), COMPOSED)),
    ],
)
def test_of_two_names_the_one_goes_back_that_is_the_same_file(tmp_path, fold, before, after):
    """Where case alone is folded, or accents alone, two names may look as if they were one."""
    place = Place(tmp_path, fold=fold)
    directory = place.root / "names"
    directory.mkdir()
    (directory / before).write_text("before")
    place.handle().create(name="one")
    place.before = tree_state(place.root)
    (directory / before).unlink()
    for name in after:
        (directory / name).write_text(name)
    found = tree_state(place.root)

    place.handle().restore("one")

    assert place.is_before()
    place.handle().undo()
    assert differences(tree_state(place.root), found) == []


@pytest.mark.parametrize(
    "make", [lambda path: path.write_text("new\n"), lambda path: path.symlink_to("other")]
)
def test_rules_in_another_spelling_hold_neither_for_all_nor_for_a_path(tmp_path, make):
    place = Place(tmp_path)
    make(place.root / ".SnapIgnore")
    place.handle().create(name="ruled")
    (place.root / "new").write_text("new")

    made = place.handle().create(["new"])
    place.handle().restore("ruled", ["new"])

    assert made.skipped == ()
    assert not (place.root / "new").exists()


def without_marks(name: str) -> str:
    """Returns what HFS+ and ext4 compare of marks that are not seen."""
    return name.casefold().translate(dict.fromkeys((0x200C, 0x3164, 0xFE0F, 0xE0100)))


def letter_by_letter(name: str) -> str:
    """Returns what a table compares, which has one letter for each."""
    return "".join(min(letter.lower(), letter, key=len) for letter in name)


@pytest.mark.parametrize("paths", [None, ["Wide"]])
@pytest.mark.parametrize(
    ("fold", "before", "after"),
    [
        (str.casefold, "\u01c5", "\u01c4"),
        (str.casefold, "\u01c4", "\u01c5"),
        (without_form, "K", "\u212a"),
        (without_form, "\u8c48", "\uf900"),
        (letter_by_letter, "stra\u00dfe", "stra\u1e9ee"),
        (without_marks, "file", "fi\u200cle"),
        (without_marks, "10", "1\u200c0"),
        (without_marks, "\u2764", "\u2764\ufe0f"),
    ],
)
def test_a_spelling_goes_back_that_cannot_be_made_from_the_name(
    tmp_path, fold, before, after, paths
):
    """There are letters with three cases, others with one form, and marks that are not seen."""
    place = Place(tmp_path, fold=fold)
    directory = place.root / "Wide"
    (directory / before).write_text("before")
    place.handle().create(name="one")
    place.before = tree_state(place.root)
    (directory / before).unlink()
    (directory / after).write_text("after")
    found = tree_state(place.root)

    place.handle().restore("one", paths)

    assert place.is_before()
    place.handle().undo()
    assert differences(tree_state(place.root), found) == []
    place.handle().redo()
    assert place.is_before()


@pytest.mark.parametrize(
    ("fold", "before", "after"),
    [
        (str.casefold, "\u01c5", "\u01c4"),
        (without_form, "\u212a", "K"),
        (letter_by_letter, "stra\u00dfe", "stra\u1e9ee"),
    ],
)
def test_a_path_that_is_there_in_another_spelling_is_refused(tmp_path, fold, before, after):
    """It would replace what was not named."""
    place = Place(tmp_path, fold=fold)
    (place.root / before).write_text("before")
    place.handle().create(name="one")
    (place.root / before).unlink()
    (place.root / after).write_text("after")
    found = tree_state(place.root)

    with pytest.raises(Refused) as caught:
        place.handle().restore("one", [before])

    assert caught.value.code == ErrorCode.NAMES_COLLIDE
    assert differences(tree_state(place.root), found) == []


@pytest.mark.parametrize("paths", [None, ["directory"]])
@pytest.mark.parametrize(
    ("fold", "names"),
    [
        (str.casefold, ("NAME", "NA\u200cME", "name")),
        (str.casefold, (COMPOSED.upper(), DECOMPOSED, COMPOSED)),
        (without_marks, ("\u845b", "\u845b\U000e0100")),
        (without_marks, ("\u3164name", "name")),
    ],
)
def test_spellings_that_are_one_name_are_refused_before_anything_is_touched(
    tmp_path, fold, names, paths
):
    """Of three spellings too, of which the one in the middle is another name."""
    source, root = tmp_path / "source", tmp_path / "folding/root"
    (source / "directory").mkdir(parents=True)
    for name in names:
        (source / "directory" / name).write_text(name)
    fs = FoldingFileSystem(tmp_path / "folding", UnsyncedFileSystem(), fold=fold)
    store = str(tmp_path / "store")
    Handle(context_at(root=source, store_path=store, fs=fs)).create(name="three")
    (root / "directory").mkdir(parents=True)
    source.rename(tmp_path / "away")
    there = Handle(context_at(root=root, store_path=store, fs=fs))
    there.root_move(source)
    found = (root / "directory").stat()

    with pytest.raises(Refused) as caught:
        there.restore("three", paths)

    assert caught.value.code == ErrorCode.NAMES_COLLIDE
    for name in (names[0], names[-1]):  # as escapes, where they look the same
        assert name in caught.value.message or ascii(name)[1:-1] in caught.value.message
    assert (root / "directory").stat().st_ctime_ns == found.st_ctime_ns


@pytest.mark.parametrize(
    ("names", "fold"),
    [
        (("Name", "name"), str.casefold),
        ((COMPOSED, DECOMPOSED), without_form),
        (("name", "na\u200cme"), without_marks),
        (("\u2764", "\u2764\ufe0f"), without_marks),
    ],
    ids=["case", "accents", "marks", "variants"],
)
class TestTwoNames:
    """A snapshot from a file system that tells them apart has both."""

    @pytest.fixture
    def both(self, tmp_path, names, fold):
        source = tmp_path / "source"
        (source / "directory").mkdir(parents=True)
        for name in names:
            (source / "directory" / name).write_text(name)
            (source / name).mkdir()
        handle = Handle(
            context_at(
                root=source,
                store_path=str(tmp_path / "store"),
                fs=FoldingFileSystem(tmp_path / "folding", UnsyncedFileSystem(), fold=fold),
            )
        )
        (tmp_path / "folding").mkdir(exist_ok=True)
        handle.create(name="both")
        return handle

    def test_are_refused_elsewhere_before_anything_is_there(self, both, tmp_path, names):
        target = tmp_path / "folding/target"

        with pytest.raises(Refused) as caught:
            both.restore("both", to=target)

        assert caught.value.code == ErrorCode.NAMES_COLLIDE
        for name in names:  # as escapes, where they look the same; the first of both directories
            assert ascii(name)[1:] in caught.value.message
        assert os.listdir(tmp_path / "folding") == []

    def test_are_restored_where_they_are_two(self, both, tmp_path, names):
        source = Path(both.root)
        for path in (source / "directory").iterdir():
            path.unlink()

        both.restore("both", to=tmp_path / "target")
        both.restore("both")

        for root in (tmp_path / "target", source):
            assert sorted(os.listdir(root)) == sorted(["directory", *names])
            assert sorted(os.listdir(root / "directory")) == sorted(names)

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
