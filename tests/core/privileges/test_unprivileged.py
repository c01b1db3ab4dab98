"""What a user without privileges may not read is left alone, and the rest comes back."""

from __future__ import annotations

import os
import shutil
import stat
from pathlib import Path
from random import Random

import pytest

import treesnap
from mutations import mutate
from oracle import Record, difference, record
from privileges import as_nobody, everything_is_loaded
from trees import build_small, is_directory, paths_below
from treesnap.core.model.entries import SkipReason

pytestmark = pytest.mark.sampled(10)


def make(root: Path, *paths: str) -> None:
    """Makes files that hold their own path, and the directories above them."""
    for path in paths:
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(path)


def test_unreadable_things_make_a_snapshot_incomplete_and_are_left_alone(open_directory):
    everything_is_loaded(open_directory)
    root = open_directory / "root"

    def act() -> None:
        root.mkdir()
        make(root, "readable", "secret", "closed/inside", "half/inside")
        (root / "secret").chmod(0)
        (root / "closed").chmod(0)
        handle = treesnap.open(root, open_directory / "store")
        result = handle.create()
        hidden = {b"secret", b"closed"}
        assert not result.complete
        assert not handle.resolve(result.id).complete
        assert {item.path for item in result.skipped} == hidden
        assert {item.reason for item in result.skipped} == {SkipReason.UNREADABLE}
        assert {item.path for item in handle.skipped(result.id)} == hidden

        (root / "secret").chmod(0o600)
        (root / "secret").write_text("edited")
        (root / "secret").chmod(0)
        (root / "readable").write_text("edited")
        (root / "half").chmod(0)
        handle.restore(result.id)
        assert (root / "readable").read_text() == "readable"
        (root / "half").chmod(0o755)
        handle.restore(result.id)
        (root / "secret").chmod(0o600)
        (root / "closed").chmod(0o700)
        assert (root / "secret").read_text() == "edited"
        assert (root / "closed/inside").read_text() == "closed/inside"
        second = handle.create()
        assert second.complete
        assert second.skipped == ()

    as_nobody(act)


def test_read_only_directories_come_back_without_privileges(open_directory):
    everything_is_loaded(open_directory)
    root = open_directory / "root"
    shut = {"shut/below": 0o500, "shut": 0o555, "": 0o555}

    def act() -> None:
        root.mkdir()
        make(root, "shut/file", "shut/gone", "shut/below/file", "open/file")
        for path, mode in shut.items():
            (root / path).chmod(mode)
        before = record(root)
        handle = treesnap.open(root, open_directory / "store")
        identity = handle.create().id

        for path in ("", "shut", "shut/below"):
            (root / path).chmod(0o755)
        (root / "shut/file").write_text("edited")
        (root / "shut/gone").unlink()
        make(root, "shut/new", "new/below/file", "shut/below/new")
        for path, mode in (
            ("new/below", 0o555),
            ("new", 0o500),
            ("shut/below", 0o500),
            ("shut", 0o555),
            ("", 0o555),
        ):
            (root / path).chmod(mode)
        damaged = record(root)
        handle.restore(identity)
        assert difference(before, record(root)) == []
        handle.undo()
        assert difference(damaged, record(root)) == []
        handle.redo()
        assert difference(before, record(root)) == []

    as_nobody(act)


def test_attributes_of_read_only_files_come_back_without_privileges(open_directory):
    everything_is_loaded(open_directory)
    root = open_directory / "root"

    def act() -> None:
        root.mkdir()
        make(root, "kept/file", "gone/file")
        for path, mode in (("kept/file", 0o444), ("kept", 0o555), ("gone/file", 0o400)):
            os.setxattr(root / path, "user.note", b"of " + path.encode())
            (root / path).chmod(mode)
        before = record(root)
        handle = treesnap.open(root, open_directory / "store")
        identity = handle.create().id
        for path, mode in (("kept", 0o755), ("kept/file", 0o644)):
            (root / path).chmod(mode)
            os.setxattr(root / path, "user.note", b"changed")
            (root / path).chmod(mode & 0o555)
        shutil.rmtree(root / "gone")

        handle.restore(identity)
        assert difference(before, record(root)) == []

    try:
        os.setxattr(open_directory, "user.note", b"")
    except OSError as error:
        pytest.skip(f"no attributes here: {error}")
    as_nobody(act)


@pytest.mark.sampled(6)
@pytest.mark.parametrize("seed", range(10))
def test_any_change_is_undone_and_forth_without_privileges(open_directory, seed):
    everything_is_loaded(open_directory)
    random = Random(seed)
    root = open_directory / "root"

    def act() -> None:
        build_small(root, seed)
        handle = treesnap.open(root, open_directory / "store")
        for _ in range(4):
            before = changed(root, random)
            identity = handle.create().id
            damaged = changed(root, random)
            handle.restore(identity)
            assert difference(before, record(root)) == []
            if damaged != before:
                handle.undo()
                assert difference(damaged, record(root)) == []

    as_nobody(act)


def changed(root: Path, random: Random) -> Record:
    """Changes a tree at random, but so that its owner may read everything; returns what it is."""
    mutate(root, random, random.randrange(1, 10))
    top = os.fsencode(root)
    while shut := [path for path in [top, *paths_below(top)] if not may_be_read(path)]:
        os.chmod(shut[0], 0o700)
    for path in [top, *paths_below(top)]:
        if not os.path.islink(path) and random.random() < 0.3:
            mode = random.choice((0o755, 0o700, 0o555, 0o500, 0o2555, 0o1777, 0o4750))
            os.chmod(path, mode if is_directory(path) else mode & ~0o100)
    return record(root)


def may_be_read(path: bytes) -> bool:
    """Returns whether a file or directory may be read by its owner."""
    if os.path.islink(path):
        return True
    return os.access(path, os.R_OK | os.X_OK if is_directory(path) else os.R_OK)


def closed_root(root: Path) -> None:
    (root / "file").write_text("edited")
    root.chmod(0o755)


def closed_parent(root: Path) -> None:
    shutil.rmtree(root)
    root.parent.chmod(0o755)


def closed_directory(root: Path) -> None:
    (root / "below" / "file").write_text("edited")


def sticky_root(root: Path) -> None:
    (root / "file").write_text("edited")
    root.chmod(0o1777)


def contents(top: Path) -> dict[bytes, tuple[str, int, str]]:
    """Returns what is there but for times: that of a foreign directory cannot be put back."""
    return {path: (each.kind, each.mode, each.digest) for path, each in record(top).items()}


@pytest.mark.sampled(5)
@pytest.mark.parametrize(
    ("close", "named", "to"),
    [
        pytest.param(closed_root, "", None, marks=pytest.mark.needs("linux")),
        (closed_parent, "", None),
        (closed_parent, "..", "to"),
        (closed_directory, "below/file", None),
        (sticky_root, "file", None),
    ],
)
def test_a_restore_where_another_user_forbids_it_names_the_path(open_directory, close, named, to):
    if os.geteuid() != 0:
        pytest.skip("only the superuser can make a directory of another user")
    everything_is_loaded(open_directory)
    root = open_directory / "above" / "root"
    make(root, "file", "below/file")
    root.chmod(0o777)
    store = open_directory / "store"
    as_nobody(treesnap.open(root, store).create)
    close(root)
    edited = contents(root.parent)

    def go_back() -> None:
        with pytest.raises(treesnap.OperationFailed) as caught:
            treesnap.open(root, store).restore("latest", to=root.parent / to if to else None)
        assert caught.value.code == "not-permitted"
        path = os.fsdecode(caught.value.path)
        assert os.path.normpath(root / path) == os.path.normpath(root / named)
        assert path in str(caught.value)

    as_nobody(go_back)

    assert contents(root.parent) == edited


def test_a_device_that_only_the_superuser_may_make_is_named(open_directory):
    if os.geteuid() != 0:
        pytest.skip("only the superuser makes the device")
    everything_is_loaded(open_directory)
    root, store = open_directory / "root", open_directory / "store"
    make(root, "below/file")
    root.chmod(0o777)
    os.mknod(root / "below" / "null", 0o600 | stat.S_IFCHR, os.makedev(1, 3))
    (root / "below").chmod(0o777)
    as_nobody(treesnap.open(root, store).create)
    (root / "below" / "null").unlink()

    def go_back() -> None:
        for to in (None, open_directory / "to"):
            with pytest.raises(
                treesnap.OperationFailed, match="'below/null' is a device"
            ) as caught:
                treesnap.open(root, store).restore("latest", to=to)
            assert (caught.value.code, caught.value.path) == ("not-permitted", b"below/null")
        treesnap.open(root, store).restore("latest", [root / "below" / "file"])

    as_nobody(go_back)
