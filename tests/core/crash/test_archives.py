"""``archive`` and ``import``, killed or failing at every point: whole or not at all."""

from __future__ import annotations

import errno
import os
import tarfile

import pytest

from everywhere import fail_everywhere, kill_everywhere
from treesnap.testing.doubles import error_at, kill_halfway

pytestmark = pytest.mark.sampled(10)

BESIDE = {"root", "store", "target.tar"}


def keep_archive(scene) -> None:
    """Keeps "archived": a history whose first snapshot is in an archive outside of all cases."""
    scene.reset("restored")
    if not (scene.directory / "before.tar").exists():
        scene.handle().archive("before", scene.directory / "before.tar")


def write(scene, handle) -> None:
    handle.archive("before", scene.root.parent / "target.tar")


def archived(scene) -> str:
    """Returns whether the archive is there; then it is the one that was to be written."""
    target = scene.root.parent / "target.tar"
    if not os.path.lexists(target):
        return "absent"
    with tarfile.open(target) as archive:
        assert len(archive.getmembers()) == archive_length(scene)
    return "whole"


def archive_length(scene) -> int:
    with tarfile.open(scene.directory / "before.tar") as archive:
        return len(archive.getmembers())


def written_after_all(scene) -> str:
    """Writes another archive; nothing is left of the one before but a whole file."""
    found = archived(scene)
    other = scene.root.parent / "target.tar"
    scene.handle().archive("before", other, force=True)
    assert set(os.listdir(scene.root.parent)) == BESIDE
    assert archived(scene) == "whole"
    return found


def imported(scene) -> str:
    """Returns whether the import is there; then it is the tree that was archived."""
    handle = scene.handle()
    names = [item.name for item in handle.list()]
    assert handle.verify(read_data=True).problems == ()
    if "copy" not in names:
        return "absent"
    assert handle.diff("before", "copy") == ()
    return "published"


class TestArchive:
    @pytest.mark.parametrize("at", [None, kill_halfway], ids=["killed", "killed within a write"])
    def test_killed_leaves_a_whole_file_or_none(self, scene, at):
        keep_archive(scene)
        options = {} if at is None else {"at": at}

        outcomes = kill_everywhere(
            scene,
            "restored",
            lambda handle: write(scene, handle),
            lambda: written_after_all(scene),
            **options,
        )

        assert outcomes[0] == "absent"
        assert outcomes == sorted(outcomes)  # "whole" is last, if a call follows the rename

    @pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC])
    def test_failing_leaves_nothing_beside_a_whole_file(self, scene, number):
        keep_archive(scene)

        def check(error) -> str:
            found = archived(scene)
            assert found == "whole" or error is not None
            assert set(os.listdir(scene.root.parent)) <= BESIDE
            return found

        outcomes = fail_everywhere(
            scene,
            "restored",
            lambda handle: write(scene, handle),
            check,
            lambda point: error_at(point, number),
        )

        assert "absent" in outcomes


class TestImport:
    def test_killed_publishes_the_whole_tree_or_nothing(self, scene):
        keep_archive(scene)

        outcomes = kill_everywhere(
            scene,
            "restored",
            lambda handle: handle.import_from(scene.directory / "before.tar", name="copy"),
            lambda: imported(scene),
        )

        assert outcomes[0] == "absent"
        assert outcomes == sorted(outcomes)  # threads may write in more calls than were counted

    def test_failing_publishes_the_whole_tree_or_nothing(self, scene):
        keep_archive(scene)

        def check(error) -> str:
            found = imported(scene)
            assert found == "published" or error is not None
            return found

        outcomes = fail_everywhere(
            scene,
            "restored",
            lambda handle: handle.import_from(scene.directory / "before.tar", name="copy"),
            check,
            lambda point: error_at(point, errno.EIO),
        )

        assert "absent" in outcomes
