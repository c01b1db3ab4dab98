"""``restore --to`` and what it leaves when it is killed: removed, and nothing else is.

Killing it at every point is in ``core/crash/test_exports.py``.
"""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from exporting import STAGE_NAME, records, warnings, write_record
from oracle import difference, record
from treesnap.core.codec.message import pack
from treesnap.core.codec.root_files import EXPORT, ExportRecord
from treesnap.core.fs.base import FileSystem
from treesnap.core.fs.durable import create_locked
from treesnap.core.fs.local import LocalFileSystem
from treesnap.core.handle import Handle
from treesnap.core.model.errors import OperationFailed
from treesnap.core.model.events import CollectingMonitor
from treesnap.core.ops.context import context_at
from treesnap.testing.children import in_child, killed
from treesnap.testing.doubles import MUTATING, Fault, FaultyFileSystem, kill_at
from world import HOWS, World, damage

pytestmark = pytest.mark.sampled(10)

NOBODY_ID = 65534
NEWER = ("version", "10")
"""Damage that looks like a version or an encryption that is not known."""
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs the superuser")


@pytest.fixture
def world(tmp_path: Path) -> World:
    """A root with two snapshots."""
    (tmp_path / "world").mkdir()
    return World(tmp_path / "world")


@pytest.fixture
def open_world() -> Iterator[World]:
    """A root with two snapshots, to which the way is barred to no user."""
    path = Path(tempfile.mkdtemp(prefix="open-"))
    path.chmod(0o777)
    closed = [item for item in path.parents if not item.stat().st_mode & 0o001]
    if closed:
        shutil.rmtree(path)
        pytest.skip(f"only the owner may look into {closed[0]}")
    yield World(path)
    shutil.rmtree(path)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A directory to restore into."""
    (tmp_path / "place").mkdir()
    return tmp_path / "place"


def kill_export(world: World, place: Path) -> str:
    """Lets an export die when its files are built; returns the directory that it leaves."""
    at_rename = Fault(methods=frozenset({"rename"}), where=lambda call: "n0" in call.path)
    ended = killed(
        lambda fs: Handle(context_at(root=world.root, store_path=str(world.store), fs=fs)).restore(
            "first", to=place / "target"
        ),
        at_rename,
    )
    assert ended.was_killed, ended.error
    (left,) = os.listdir(place)
    return left


COMMANDS: dict[str, Callable[[Handle], object]] = {
    "create": lambda handle: handle.create(),
    "status": lambda handle: handle.status(),
    "delete": lambda handle: handle.delete("first"),
    "pin": lambda handle: handle.pin("first"),
    "gc": lambda handle: handle.gc(),
    "restore": lambda handle: handle.restore("second"),
    "undo": lambda handle: handle.undo(),
    "run": lambda handle: handle.run(["true"]),
}


@pytest.mark.sampled(6)
@pytest.mark.parametrize("name", COMMANDS)
def test_the_next_command_removes_what_was_left_and_says_so(world, place, name):
    left = kill_export(world, place)

    said = warnings(world, COMMANDS[name])

    assert os.listdir(place) == []
    assert records(world) == []
    assert [line for line in said if left in line] == [
        f"Removed what an interrupted restore, fork or removal had left: '{place / left}'"
    ]
    assert warnings(world, lambda handle: handle.status()) == []


def test_one_that_is_at_work_is_left_alone(world, place):
    said: list[str] = []

    class Meanwhile(CollectingMonitor):
        def advance(self, files: int, size_bytes: int) -> None:
            said.extend(warnings(world, lambda handle: handle.create()))
            assert len(os.listdir(place)) == 1
            assert len(records(world)) == 1

    handle = Handle(context_at(root=world.root, store_path=str(world.store), monitor=Meanwhile()))
    handle.restore("second", to=place / "target")

    assert said == []
    assert os.listdir(place) == ["target"]
    assert records(world) == []
    assert (place / "target/second").exists()


def test_of_several_each_is_removed(world, place, tmp_path):
    other = tmp_path / "other"
    left = kill_export(world, place)
    shutil.copytree(place, other)
    write_record(world, EXPORT.encode(ExportRecord(os.fsencode(other / left))))

    assert len(warnings(world, lambda handle: handle.status())) == 2
    assert os.listdir(place) == os.listdir(other) == []


def test_a_directory_that_is_gone_is_no_news(world, place):
    kill_export(world, place)
    shutil.rmtree(place)

    assert warnings(world, lambda handle: handle.status()) == []
    assert records(world) == []


@pytest.mark.sampled(6)
@pytest.mark.parametrize("how", [how for how in HOWS if how not in NEWER])
def test_a_damaged_record_is_removed_and_says_so(world, place, how):
    kill_export(world, place)
    damage(records(world)[0], how)

    (said,) = warnings(world, lambda handle: handle.status())

    assert said.startswith("Removed the record of an interrupted restore: File ")
    assert records(world) == []


@pytest.mark.parametrize("how", NEWER)
def test_a_record_of_a_newer_program_is_left_alone(world, place, how):
    left = kill_export(world, place)
    damage(records(world)[0], how)

    assert warnings(world, lambda handle: handle.create()) == []
    assert os.listdir(place) == [left]
    assert len(records(world)) == 1


@pytest.mark.sampled(5)
@pytest.mark.parametrize(
    "path",
    [
        "precious",
        ".treesnap-restore-" + "0" * 16,
        "../place/" + STAGE_NAME,
        "./" + STAGE_NAME,
        STAGE_NAME + "0",
        STAGE_NAME[:-1] + "A",
        STAGE_NAME + "-whole",
        STAGE_NAME + "/",
        STAGE_NAME + "\0",
    ],
)
def test_no_record_removes_a_directory_of_another_name(world, place, path):
    """That of a restore in a root neither: a user's files are kept aside in it."""
    for name in ("precious", ".treesnap-restore-" + "0" * 16, STAGE_NAME):
        (place / name).mkdir()
        (place / name / "file").write_text("precious")
    before = record(place)
    write_record(world, pack({"version": 1, "stage_path": os.fsencode(f"{place}/{path}")}))

    warnings(world, lambda handle: handle.create())

    assert difference(before, record(place)) == []
    assert records(world) == []


@pytest.mark.parametrize("value", [STAGE_NAME.encode(), "text", 7, None, b"", b"/"])
def test_a_path_that_is_not_absolute_or_none_is_refused(world, place, value, monkeypatch):
    monkeypatch.chdir(place)
    (place / STAGE_NAME).mkdir()
    write_record(world, pack({"version": 1, "stage_path": value}))

    warnings(world, lambda handle: handle.create())

    assert os.listdir(place) == [STAGE_NAME]


@pytest.mark.parametrize("kind", ["link", "file", "link above"])
def test_no_link_is_followed(world, place, tmp_path, kind):
    elsewhere = tmp_path / "elsewhere"
    (elsewhere / STAGE_NAME).mkdir(parents=True)
    (elsewhere / STAGE_NAME / "file").write_text("precious")
    before = record(elsewhere)
    path = place / STAGE_NAME
    if kind == "link":
        path.symlink_to(elsewhere / STAGE_NAME)
    elif kind == "file":
        path.write_text("precious")
    else:
        (place / "above").symlink_to(elsewhere)
        path = place / "above" / STAGE_NAME
    write_record(world, EXPORT.encode(ExportRecord(os.fsencode(path))))

    warnings(world, lambda handle: handle.create())

    assert difference(before, record(elsewhere)) == []
    assert len(os.listdir(place)) == 1
    assert records(world) == []


@pytest.mark.parametrize("kind", ["link", "pipe", "directory"])
def test_a_record_that_is_no_file_harms_nothing(world, place, kind):
    path = write_record(world, b"")
    path.unlink()
    if kind == "link":
        path.symlink_to(place)
    elif kind == "pipe":
        os.mkfifo(path)
    else:
        path.mkdir()

    warnings(world, lambda handle: handle.create())

    assert world.restores("second")
    assert place.exists()


@needs_root
def test_the_directory_of_another_user_is_left_to_them(world, place):
    left = kill_export(world, place)
    os.chown(place / left, NOBODY_ID, NOBODY_ID)

    assert warnings(world, lambda handle: handle.create()) == []
    assert os.listdir(place) == [left]
    assert len(records(world)) == 1

    os.chown(place / left, 0, 0)
    assert len(warnings(world, lambda handle: handle.create())) == 1
    assert os.listdir(place) == []


@needs_root
def test_a_tree_of_another_user_is_removed_with_the_directory_it_was_built_in(world, place):
    os.chown(world.root, NOBODY_ID, NOBODY_ID)
    world.root.chmod(0o500)
    world.handle().create(name="theirs")

    for number in range(1, 1000):
        ended = killed(
            lambda fs: Handle(
                context_at(root=world.root, store_path=str(world.store), fs=fs)
            ).restore("theirs", to=place / "target"),
            kill_at(number),
        )
        world.handle().status()
        assert set(os.listdir(place)) <= {"target"}
        if (place / "target").exists():
            break

    assert (place / "target").stat().st_uid == NOBODY_ID
    assert ended.error is None


def as_nobody() -> None:
    """Gives all privileges up; for children."""
    os.setgroups([])
    os.setresgid(NOBODY_ID, NOBODY_ID, NOBODY_ID)
    os.setresuid(NOBODY_ID, NOBODY_ID, NOBODY_ID)


@needs_root
def test_without_privileges_a_target_that_may_not_be_written_to_is_whole(open_world):
    """A directory without write permission can be moved by the superuser alone."""
    world, target = open_world, open_world.root.parent / "target"
    world.root.chmod(0o555)
    world.handle().create(name="closed")
    for path in [world.store, *world.store.rglob("*")]:
        os.chown(path, NOBODY_ID, NOBODY_ID)

    def export(fs: FileSystem) -> None:
        as_nobody()
        Handle(context_at(root=world.root, store_path=str(world.store), fs=fs)).restore(
            "closed", to=target
        )

    for number in range(1, 1000):
        ended = killed(export, kill_at(number))
        assert ended.error is None, ended.error
        if target.exists():
            assert target.stat().st_mode & 0o7777 == 0o555
            break
    assert ended.was_killed
    world.handle().status()  # the superuser does not touch what is another user's

    (last,) = records(world)
    ended = in_child(lambda: (as_nobody(), world.handle().status()))
    assert ended.error is None, ended.error
    assert not last.exists()
    assert set(os.listdir(target.parent)) == {"root", "store", "target"}


@needs_root
def test_a_store_that_may_only_be_read_is_restored_from_all_the_same(open_world):
    world, target = open_world, open_world.root.parent / "target"
    for path in [world.store, *world.store.rglob("*")]:
        path.chmod(0o755)
    monitor = CollectingMonitor()

    def export() -> None:
        as_nobody()
        Handle(context_at(root=world.root, store_path=str(world.store), monitor=monitor)).restore(
            "second", to=target
        )
        assert [text for text in monitor.warnings if "cannot be written to" in text]

    ended = in_child(export)

    assert ended.error is None, ended.error
    assert (target / "second").exists()
    assert set(os.listdir(target.parent)) == {"root", "store", "target"}


@needs_root
def test_the_directory_above_the_target_keeps_its_mode(open_world):
    world, above = open_world, open_world.root.parent / "above"
    above.mkdir()
    for path in [above, world.store, *world.store.rglob("*")]:
        os.chown(path, NOBODY_ID, NOBODY_ID)
    above.chmod(0o555)

    def export() -> None:
        as_nobody()
        with pytest.raises(OperationFailed, match="Permission denied"):
            world.handle().restore("second", to=above / "target")

    ended = in_child(export)

    assert ended.error is None, ended.error
    assert above.stat().st_mode & 0o7777 == 0o555
    assert records(world) == []


def test_a_locked_file_is_locked_from_its_first_moment(tmp_path):
    fs = LocalFileSystem()
    (tmp_path / "temporary").mkdir()

    fd = create_locked(
        fs, str(tmp_path / "name"), b"content", temporary=str(tmp_path / "temporary")
    )

    other = os.open(tmp_path / "name", os.O_RDONLY)
    assert not fs.lock(other, exclusive=True)
    os.close(fd)
    assert fs.lock(other, exclusive=True)
    os.close(other)
    assert (tmp_path / "name").read_bytes() == b"content"
    assert os.listdir(tmp_path / "temporary") == []


class TestParentsThatAreNotThere:
    def export(self, world: World, place: Path, *faults: Fault) -> bool:
        """Restores into new directories; returns whether the process was killed on the way."""
        ended = killed(
            lambda fs: Handle(
                context_at(root=world.root, store_path=str(world.store), fs=fs)
            ).restore("first", to=place / "new/newer/target"),
            *faults,
        )
        assert ended.error is None, ended.error
        return ended.was_killed

    def test_come_with_the_target(self, world, place):
        world.handle().restore("first", to=place / "before")
        assert not self.export(world, place)

        assert difference(record(place / "before"), record(place / "new/newer/target")) == []
        assert sorted(os.listdir(place)) == ["before", "new"]
        assert os.listdir(place / "new") == ["newer"]
        assert os.listdir(place / "new/newer") == ["target"]
        assert (place / "new").stat().st_mode & 0o777 == 0o700

    def test_are_not_left_by_a_kill(self, world, place):
        number = 0
        was_killed = True
        while was_killed:
            number += 1
            at_call = Fault(
                number=number, kinds=MUTATING, where=lambda call: str(place) in call.path
            )
            was_killed = self.export(world, place, at_call)
            if was_killed:
                warnings(world, Handle.status)
                left = os.listdir(place)
                assert left in ([], ["new"])
                if left:
                    assert (place / "new/newer/target").is_dir()
                    shutil.rmtree(place / "new")
        assert number > 5

    def test_are_not_left_by_an_error(self, world, place):
        fault = Fault(errno=errno.EIO, methods=frozenset({"sync_file_system"}))
        handle = Handle(
            context_at(root=world.root, store_path=str(world.store), fs=FaultyFileSystem(fault))
        )

        with pytest.raises(OperationFailed):
            handle.restore("first", to=place / "new/newer/target")

        assert os.listdir(place) == []
