"""Directories like ``/tmp``: everyone makes names there, and decides about their own."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import treesnap
from privileges import NOBODY_ID, as_nobody, everything_is_loaded
from treesnap.core.codec.journal import STAGE_PREFIX
from treesnap.core.handle import Handle
from treesnap.core.model.errors import TreesnapError, WarningCode
from treesnap.core.model.events import CollectingMonitor
from treesnap.core.ops.context import context_at
from treesnap.testing.children import killed
from treesnap.testing.doubles import Fault

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="only the superuser changes owners"),
    pytest.mark.sampled(10),
]
OTHER_ID = 12345


@pytest.fixture
def root(open_directory: Path) -> Path:
    """A directory like /tmp, with a file of this user's."""
    everything_is_loaded(open_directory)
    root = open_directory / "root"
    root.mkdir()
    root.chmod(0o1777)
    (root / "mine").write_text("mine")
    os.chown(root / "mine", NOBODY_ID, NOBODY_ID)
    return root


def leave(path: Path, kind: str, owner_id: int) -> None:
    """Makes an ignore file that excludes everything, or cannot be read."""
    if kind == "link":
        path.symlink_to("/nowhere")
    else:
        path.write_text("*\n")
        path.chmod(0o000 if kind == "closed" else 0o644)
    os.chown(path, owner_id, owner_id, follow_symlinks=False)


def captured(handle: Handle, identity: str) -> set[bytes]:
    """Returns the names that a snapshot holds."""
    return {entry.name for entry in handle.ls(identity) if not entry.is_skipped}


@pytest.mark.parametrize("kind", ["file", "link", "closed"])
def test_an_ignore_file_of_another_user_excludes_nothing(root, open_directory, kind):
    leave(root / ".snapignore", kind, OTHER_ID)

    def act() -> None:
        monitor = CollectingMonitor()
        handle = Handle(context_at(root, str(open_directory / "store"), monitor=monitor))
        result = handle.create()
        assert b"mine" in captured(handle, result.id)
        told = dict(zip(monitor.codes, monitor.warnings, strict=True))
        assert told[WarningCode.RULE_SKIPPED] == (
            "'.snapignore' excludes nothing: it belongs to another user, in a directory where "
            "everyone may make files"
        )

    as_nobody(act)


@pytest.mark.parametrize(
    ("owner_id", "mode"), [(NOBODY_ID, 0o1777), (0, 0o1777), (OTHER_ID, 0o777), (OTHER_ID, 0o775)]
)
def test_that_of_this_user_and_of_who_may_replace_it_all_excludes(
    root, open_directory, owner_id, mode
):
    root.chmod(mode)
    leave(root / ".snapignore", "file", owner_id)

    def act() -> None:
        handle = treesnap.open(root, open_directory / "store")
        assert captured(handle, handle.create().id) == set()

    as_nobody(act)


def test_that_of_the_owner_of_the_directory_excludes(root, open_directory):
    os.chown(root, OTHER_ID, OTHER_ID)
    leave(root / ".snapignore", "file", OTHER_ID)

    def act() -> None:
        handle = treesnap.open(root, open_directory / "store")
        assert captured(handle, handle.create().id) == set()

    as_nobody(act)


def test_a_staging_directory_of_another_user_is_not_taken_for_ones_own(root, open_directory):
    """Its name was seen before a power cut, and is made again since."""
    store = open_directory / "store"
    (root / "mine").unlink()
    (root / "other").write_text("other")

    def handle(**options) -> Handle:
        return Handle(context_at(root, str(store), **options))

    def interrupt() -> None:
        (root / "mine").write_text("one")
        handle().create(name="one")
        (root / "mine").write_text("two")
        exchange = Fault(number=1, methods=frozenset({"exchange"}))
        assert killed(lambda fs: handle(fs=fs).restore("one"), exchange).was_killed

    as_nobody(interrupt)
    (stage,) = root.glob(f"{os.fsdecode(STAGE_PREFIX)}*")
    stage.rename(open_directory / "lost")
    stage.mkdir()
    (stage / "0").write_text("forged")
    for path in (stage, stage / "0"):
        os.chown(path, OTHER_ID, OTHER_ID)
    stage.chmod(0o777)

    def go_on() -> None:
        with pytest.raises(TreesnapError):
            handle().create()
        assert handle().doctor(forget=True).forgotten
        assert (root / "mine").read_text() == "two"
        handle().create()

    as_nobody(go_on)
    assert [path.read_text() for path in stage.iterdir()] == ["forged"]
