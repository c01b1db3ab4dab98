"""Staging directories: made and removed."""

from __future__ import annotations

import errno
import os

import pytest

from treesnap.core.codec.journal import STAGE_PREFIX
from treesnap.core.worktree.apply.stage import make_stage, new_stage_name, open_stage, remove_stage
from treesnap.testing.doubles import Fault, FaultyFileSystem

NAME = STAGE_PREFIX + b"0" * 16


def test_names_are_reserved_and_never_the_same():
    names = {new_stage_name() for _ in range(100)}

    assert len(names) == 100
    assert all(name.startswith(STAGE_PREFIX) for name in names)


def test_it_is_private(fs, tmp_path, open_directory):
    fd = make_stage(fs, open_directory(tmp_path), NAME)

    assert os.fstat(fd).st_mode & 0o7777 == 0o700
    os.close(fd)


def test_a_root_without_write_permission_gets_it(tmp_path, open_directory):
    tmp_path.chmod(0o555)
    fs = FaultyFileSystem(Fault(methods=frozenset({"make_directory"}), errno=errno.EACCES))

    os.close(make_stage(fs, open_directory(tmp_path), NAME))

    assert tmp_path.stat().st_mode & 0o777 == 0o755


def test_opening_an_absent_one_returns_none(fs, tmp_path, open_directory):
    assert open_stage(fs, open_directory(tmp_path), NAME) is None


def test_it_is_removed_with_everything_in_it(fs, tmp_path, open_directory):
    fd = make_stage(fs, open_directory(tmp_path), NAME)
    stage = tmp_path / os.fsdecode(NAME)
    (stage / "a/b").mkdir(parents=True)
    (stage / "a/b/file").touch()
    (stage / "link").symlink_to(tmp_path)
    (stage / "a/b").chmod(0o000)
    (stage / "a").chmod(0o500)
    (tmp_path / "bystander").touch()

    remove_stage(fs, open_directory(tmp_path), NAME)

    os.close(fd)
    assert os.listdir(tmp_path) == ["bystander"]


def test_removing_twice_is_allowed(fs, tmp_path, open_directory):
    os.close(make_stage(fs, open_directory(tmp_path), NAME))

    remove_stage(fs, open_directory(tmp_path), NAME)
    remove_stage(fs, open_directory(tmp_path), NAME)

    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("number", range(1, 8))
def test_removing_can_be_continued_after_an_error(fs, tmp_path, open_directory, number):
    os.close(make_stage(fs, open_directory(tmp_path), NAME))
    stage = tmp_path / os.fsdecode(NAME)
    (stage / "a/b").mkdir(parents=True)
    (stage / "a/file").touch()
    (stage / "file").touch()
    fault = Fault(
        number=number, methods=frozenset({"unlink", "remove_directory", "scan"}), errno=errno.EIO
    )

    with pytest.raises(OSError, match=os.strerror(errno.EIO)):
        remove_stage(FaultyFileSystem(fault), open_directory(tmp_path), NAME)
    remove_stage(fs, open_directory(tmp_path), NAME)

    assert os.listdir(tmp_path) == []
