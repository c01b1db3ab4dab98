"""A small store whose paths are very long, or very many, exhausts neither memory nor time.

Each command is a process of its own, so that what it takes can be measured. One that walked
through all paths would not end before the test is given up.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from forge import Forge
from frames import FRAMES, few_frames
from memory import Ended, run_measured
from sampling import sized
from treesnap.core.codec.envelope import FileKind, seal
from treesnap.core.codec.journal import Commit, Journal, encode_journal
from treesnap.core.codec.root_files import HISTORY, RestoreHistory
from treesnap.core.model.entries import ObjectId, Totals
from treesnap.core.model.snapshots import SnapshotId
from treesnap.mount import HistoryView
from treesnap.plans.plan import new_ulid

pytestmark = pytest.mark.sampled(12)

PEAK_BYTES_MAX = 250 << 20
LEVELS = 450
"""Of names of 4,095 bytes: the paths of all levels together are 400 MB."""


class Scene:
    """A small root, and a store with a forged snapshot of it."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.root = place / "root"
        self.root.mkdir()
        (self.root / "kept").write_bytes(b"kept\n")
        self.forge = Forge(place / "store", self.root)
        self.bottom = self.forge.tree(self.forge.file(b"bottom"))

    def deep(self) -> ObjectId:
        """Returns a tree with long paths."""
        tree = self.bottom
        for _ in range(LEVELS):
            tree = self.forge.tree(self.forge.directory(b"d" * 4095, tree))
        return tree

    def wide(self, sizes: tuple[int, int] = (4000, 4000), *, is_true: bool = False) -> ObjectId:
        """Returns a tree with a thousand million paths, whose sums are true or not."""
        tree, sums = self.bottom, Totals(files=1)
        for _ in range(30):
            names = (b"a" * sizes[0], b"b" * sizes[1])
            sums = sums.plus(sums).plus(Totals(directories=2))
            entries = (self.forge.directory(name, tree) for name in names)
            tree = self.forge.tree(*entries, totals=sums if is_true else None)
        return tree

    def many(self) -> ObjectId:
        """Returns a tree with a thousand million short paths, as its sums say."""
        return self.wide((1, 1), is_true=True)

    def snap(self, *args: str) -> Ended:
        """Runs a command in the root."""
        program = [sys.executable, "-m", "treesnap", "-C", self.root]
        return run_measured(
            [*program, "--store", self.place / "store", *args], self.place / "errors"
        )

    def peak_of(self, *args: str) -> int:
        """Returns the peak of a command that has to end with a result, or a clean error."""
        ended = self.snap(*args)
        assert ended.exit_code in {0, 1, 3}, ended.error
        assert "Traceback" not in ended.error
        assert "Internal error" not in ended.error
        assert "not enough memory" not in ended.error
        return ended.peak_bytes


@pytest.fixture
def scene(tmp_path) -> Scene:
    """A scene without a snapshot."""
    return Scene(tmp_path)


COMMANDS = [
    ("diff", "--json"),
    ("status",),
    ("restore", "latest", "--dry-run"),
    ("restore", "latest"),
    ("ls", "-R", "latest"),
    ("find", "*"),
    ("restore", "latest", "--to", "../elsewhere"),
    ("fork", "latest", "../elsewhere"),
    ("diff", "--stat"),
    ("diff", "first", "latest"),
    ("grep", "absent"),
    ("grep", "absent", "--all"),
    ("du",),
    ("verify", "--read-data"),
    ("gc",),
    ("log",),
    ("log", "kept"),
    ("log", "kept", "-p"),
    ("show", "latest"),
    ("find", "absent"),
    ("du", "--depth", "100"),
    ("archive", "latest", "-o", "../archive.tar"),
    ("push", "disk"),
    ("stats",),
    ("revert", "first..latest", "--dry-run"),
]


@pytest.mark.sampled(8)
@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
@pytest.mark.parametrize("shape", ["deep", "wide", "many"])
def test_no_command_takes_what_a_store_asks_for(scene, command, shape):
    if command[0] == "push":
        (scene.place / "disk").mkdir()
        assert scene.snap("remote", "add", "disk", str(scene.place / "disk")).exit_code == 0
    scene.forge.snapshot(scene.forge.tree(scene.forge.file(b"kept")), name="first")
    scene.forge.snapshot(getattr(scene, shape)())

    assert scene.peak_of(*command) < PEAK_BYTES_MAX
    assert os.listdir(scene.root) == ["kept"]


@pytest.fixture
def chain_of_directories(scene):
    """Makes directories below the root whose paths together are 125 MB; removes them at the end."""
    name = b"d" * 250
    fd = os.open(scene.root, os.O_RDONLY)
    for _ in range(1000):
        os.mkdir(name, dir_fd=fd)
        above, fd = fd, os.open(name, os.O_RDONLY, dir_fd=fd)
        os.close(above)
    os.close(fd)
    yield scene.root / os.fsdecode(name)
    subprocess.run(["rm", "-rf", scene.root], check=True)


def test_no_walk_holds_the_paths_of_a_deep_root(scene, chain_of_directories):
    """A walk held the path of each directory above it, and the stat cache had all of them.

    A ``diff`` after a restore looked for each of them in all that had been removed.
    """

    def peak(*args: str) -> int:
        ended = scene.snap(*args)
        assert ended.exit_code == 0, ended.error
        return ended.peak_bytes

    peaks = {"first": peak("create"), "same": peak("create"), "status": peak("status")}
    (scene.root / "new").write_bytes(b"new")
    peaks["next"] = peak("create")
    peaks["back"] = peak("restore", "latest~1")
    assert not (scene.root / "new").exists()
    subprocess.run(["rm", "-rf", chain_of_directories], check=True)
    peaks |= {"restore": peak("restore", "latest"), "diff": peak("diff")}
    assert chain_of_directories.is_dir()
    peaks["undo"] = peak("undo")
    assert not chain_of_directories.exists()
    peaks["redo"] = peak("redo")
    assert chain_of_directories.is_dir()
    assert not [each for each in peaks.items() if each[1] > 90 << 20], peaks


@pytest.mark.parametrize("shape", ["wide", "many"])
@pytest.mark.parametrize(
    "command",
    [("restore", "latest"), ("restore", "latest", "--to", "../elsewhere"), ("grep", "absent")],
    ids=" ".join,
)
def test_a_tree_with_more_paths_than_the_store_is_worth_is_refused(scene, command, shape):
    scene.forge.snapshot(getattr(scene, shape)())

    ended = scene.snap(*command)

    if command[0] != "grep" or shape == "wide":  # true sums: grep reads equal directories once
        assert ended.exit_code == 1
        assert "The tree has 3,221,225,470 paths, and one in a store of this size" in ended.error
        assert "hint: name a PATH to take a part" in ended.error
    assert sorted(os.listdir(scene.place)) == ["errors", "root", "store"]
    assert os.listdir(scene.root) == ["kept"]


def test_a_part_of_such_a_tree_is_restored(scene):
    scene.forge.snapshot(scene.wide((1, 1)))
    path = "/".join(["a"] * 27)

    assert scene.snap("restore", "latest", path).exit_code == 0

    assert len(list((scene.root / path).rglob("bottom"))) == 8


@pytest.mark.parametrize("shape", ["deep", "wide", "many"])
def test_a_mount_shows_such_a_tree_a_directory_at_a_time(scene, shape):
    scene.forge.snapshot(getattr(scene, shape)())

    with HistoryView(scene.forge.handle().context) as view:
        path = b"/latest"
        for _ in range(29):
            path += b"/" + next(iter(view.names(path))).name
        assert view.node(path).is_directory


def test_a_mount_finds_what_lies_deeper_than_a_stack_is(scene):
    scene.bottom = scene.forge.tree(scene.forge.file(b"bottom", b"deep"))
    tree = scene.bottom
    for _ in range(FRAMES + 50):
        tree = scene.forge.tree(scene.forge.directory(b"d", tree))
    scene.forge.snapshot(tree)

    with HistoryView(scene.forge.handle().context) as view, few_frames():
        path = b"/latest" + b"/d" * (FRAMES + 50)
        assert view.read(view.open(path + b"/bottom"), 0, 9) == b"deep"


def test_a_list_that_is_refused_says_what_to_do(scene):
    scene.forge.snapshot(scene.wide(is_true=True))

    ended = scene.snap("ls", "-R", "latest")

    assert ended.exit_code == 1
    assert "result has more paths than a store of this size" in ended.error
    assert "hint: name a PATH to take a part" in ended.error
    assert scene.snap("ls", "latest").exit_code == 0


def journal_of(scene: Scene, path: bytes) -> bytes:
    """Returns the journal of a restore that was to change a path, in a root with its staging."""
    first, second = (
        scene.forge.snapshot(scene.forge.tree(scene.forge.file(b"kept", content)))
        for content in (b"kept\n", b"other\n")
    )
    stage = scene.root / ".treesnap-restore-0"
    stage.mkdir()
    journal = Journal(
        root_id=scene.forge.root_id,
        stage_name=os.fsencode(stage.name),
        root_before=None,
        file_system=0,
        device=0,
        inode=None,
        started_at_ns=1,
        commit=Commit(
            target_id=SnapshotId(second),
            safety_id=SnapshotId(first),
            paths=(path,),
            directories=(),
            history=HISTORY.payload(RestoreHistory()),
            touch=False,
        ),
    )
    return seal(FileKind.JOURNAL, encode_journal(journal))


@pytest.mark.parametrize("name", [b"d", b"d" * 250], ids=len)
def test_a_journal_with_a_path_of_megabytes_is_refused(scene, name):
    """The paths of all directories above it would be gigabytes."""
    path = b"/".join([name] * (sized(1_000_000, 5_000_000) // (len(name) + 1)))
    scene.forge.write_root_file("journal", journal_of(scene, path))

    ended = scene.snap("status")

    assert (ended.exit_code, "lie too deep" in ended.error) == (7, True)
    assert ended.peak_bytes < PEAK_BYTES_MAX
    assert scene.snap("doctor").exit_code == 3
    assert scene.snap("doctor", "--forget").exit_code == 0
    assert scene.snap("status").exit_code == 0


@pytest.mark.parametrize("name", ["journal", "history", "plan", "snapshot"])
def test_a_file_that_is_nearly_all_holes_is_not_read_whole(scene, name):
    path = scene.forge.write_root_file("journal", journal_of(scene, b"kept"))
    if name == "history":
        path = path.rename(path.with_name("history"))
        path.write_bytes(HISTORY.seal(RestoreHistory()))
    elif name == "snapshot":
        path.unlink()
        path = next((scene.place / "store" / "snapshots").glob("*/*"))
    elif name == "plan":
        path = path.rename(path.with_name(f"plan-{new_ulid(1)}"))
    os.truncate(path, 256 << 20)

    for command in (("status",), ("list",), ("verify",), ("doctor",), ("plan", "list")):
        ended = scene.snap(*command)

        assert "Traceback" not in ended.error
        assert ended.peak_bytes < PEAK_BYTES_MAX


def test_verify_names_what_a_deep_tree_lost(scene):
    lost = ObjectId(b"\xee" * 32)
    scene.bottom = scene.forge.tree(scene.forge.directory(b"lost", lost))
    scene.forge.snapshot(scene.deep())

    ended = scene.snap("verify")

    assert ended.exit_code == 7
    assert ended.peak_bytes < PEAK_BYTES_MAX
