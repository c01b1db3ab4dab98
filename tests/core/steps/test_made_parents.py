"""A block with paths that fails: the directories above them that its body made go as well."""

from __future__ import annotations

from pathlib import Path

import pytest

from sampling import sized
from treesnap.core.handle import Handle
from treesnap.core.ops.context import context_at
from treesnap.testing.children import killed
from treesnap.testing.doubles import MUTATING, Fault, UnsyncedFileSystem

pytestmark = pytest.mark.sampled(10)

SCOPE = ["q/w/e/f"]


@pytest.fixture
def handle(tmp_path: Path) -> Handle:
    root = tmp_path / "root"
    root.mkdir()
    (root / "other").write_text("other")
    return Handle(
        context_at(root=root, store_path=str(tmp_path / "store"), fs=UnsyncedFileSystem())
    )


def fail(handle: Handle, *made: str, paths: list[str] | None = None) -> Path:
    """Makes files, or directories where a path ends in a slash, in a block that fails."""
    root = Path(handle.root)

    def act() -> None:
        with handle.rollback_on_error(paths=paths or SCOPE):
            for path in made:
                (root / path).parent.mkdir(parents=True, exist_ok=True)
                if path.endswith("/"):
                    (root / path).mkdir(exist_ok=True)
                else:
                    (root / path).write_text(path)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        act()
    return root


@pytest.mark.sampled(3)
@pytest.mark.parametrize("made", ["q/w/e/f", "q/w/e/f/g/h", "q/w/e/", "q/w/", "q/"])
def test_those_go_that_were_not_there(handle, made):
    root = fail(handle, made)

    assert [path.name for path in root.iterdir()] == ["other"]


def test_those_stay_that_were_there(handle):
    (Path(handle.root) / "q/w").mkdir(parents=True)

    root = fail(handle, "q/w/e/f")

    assert (root / "q/w").is_dir()
    assert not (root / "q/w/e").exists()


def test_those_stay_that_hold_something_else(handle):
    """What is outside of the scope is not the block's to remove."""
    root = fail(handle, "q/w/e/f", "q/w/beside")

    assert (root / "q/w/beside").read_text() == "q/w/beside"
    assert not (root / "q/w/e").exists()


def test_several_paths_are_looked_at_together(handle):
    root = fail(handle, "q/one/f", "q/two/f", paths=["q/one/f", "q/two/f"])

    assert not (root / "q").exists()


def test_undo_brings_them_back(handle):
    root = fail(handle, "q/w/e/f")

    handle.undo()

    assert (root / "q/w/e/f").read_text() == "q/w/e/f"
    handle.redo()
    assert not (root / "q/w/e/f").exists()


def test_a_kill_anywhere_leaves_all_or_nothing(handle, tmp_path):
    """The next command brings the tree to one of both states."""
    root = Path(handle.root)
    outcomes = set()
    for number in range(1, 200, sized(5, 1)):
        (root / "q/w/e").mkdir(parents=True, exist_ok=True)
        (root / "q/w/e/f").write_text("made")

        def roll_back(fs) -> None:
            (root / "q/w/e/f").unlink()
            for name in ("q/w/e", "q/w", "q"):
                (root / name).rmdir()
            with Handle(
                context_at(root=root, store_path=handle.store_path, fs=fs)
            ).rollback_on_error(paths=SCOPE):
                (root / "q/w/e").mkdir(parents=True)
                (root / "q/w/e/f").write_text("made")
                raise ZeroDivisionError

        fault = Fault(kinds=MUTATING, number=number)
        ended = killed(roll_back, fault)
        handle.recover()
        is_there = (root / "q").exists()
        if is_there and (root / "q/w/e").exists():
            assert (root / "q/w/e/f").read_text() == "made"
        else:
            assert not is_there
        assert not list(root.glob(".treesnap*"))
        outcomes.add(is_there)
        if not ended.was_killed:
            break

    assert outcomes == {False, True}
