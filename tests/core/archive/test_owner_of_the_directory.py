"""The superuser writes a file into a directory of another user, who replaces what leads there.

At the N-th call, for every N, that user puts a link in the place of the directory, of the one above
it, or of the file. Nothing is made or changed where the link leads.
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

import treesnap
from calling import Place as Called
from other_user import OTHER_ID, Other, replace_by
from privileges import NOBODY_ID, as_nobody
from sampling import sized
from state import differences, tree_state
from treesnap.core.fs.base import FileSystem
from treesnap.core.handle import Handle
from treesnap.core.model.errors import ErrorCode, NotFound, Refused, TreesnapError
from treesnap.core.ops.context import context_at
from treesnap.core.ops.output_file import write_output
from treesnap.testing.doubles import UnsyncedFileSystem

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only the superuser becomes another user")

CALLS_MAX = 5000


@pytest.fixture(autouse=True)
def no_safe_directories(monkeypatch: pytest.MonkeyPatch) -> None:
    """Names no directory as safe, as most users do."""
    monkeypatch.delenv("SNAP_SAFE_DIRECTORIES", raising=False)


class Place:
    """A root of the superuser, the directories of the other user, and what must not change."""

    def __init__(self, base: Path) -> None:
        self.base, self.root, self.victim = base, base / "root", base / "victim"
        self.root.mkdir(parents=True)
        (self.root / "file").write_text("secret")
        Handle(self.context(UnsyncedFileSystem())).create()
        (self.victim / "below").mkdir(parents=True)
        for name in ("file.tar", "below/file.tar"):
            (self.victim / name).write_text("precious")
        self.before = tree_state(self.victim)
        self.theirs = base / "theirs"
        (self.theirs / "out" / "below").mkdir(parents=True)
        for path in (self.theirs, self.theirs / "out", self.theirs / "out" / "below"):
            os.chown(path, OTHER_ID, OTHER_ID)
        self.target = self.theirs / "out" / "below" / "file.tar"

    def context(self, fs: FileSystem) -> treesnap.core.ops.context.Context:
        """Returns the context of a command of the superuser."""
        return context_at(self.root, str(self.base / "store"), fs=fs)

    def put_link(self, name: str) -> bool:
        """Puts a link in the place of something on the way to the target."""
        path, leads_to = {
            "above": (self.theirs / "out", self.victim),
            "directory": (self.theirs / "out" / "below", self.victim),
            "file": (self.target, self.victim / "file.tar"),
        }[name]
        if not path.is_symlink():
            replace_by(
                path,
                self.theirs / "aside",
                lambda fd, name: os.symlink(leads_to, name, dir_fd=fd),
            )
        return True


def archive(place: Place, fs: FileSystem) -> None:
    """Writes an archive, over what may be there."""
    Handle(place.context(fs)).archive("latest", place.target, force=True)


def archive_new(place: Place, fs: FileSystem) -> None:
    """Writes an archive where there is none."""
    Handle(place.context(fs)).archive("latest", place.target)


def page(place: Place, fs: FileSystem) -> None:
    """Writes what ``snap timeline --html`` writes."""
    write_output(fs, str(place.target), b"secret")


@pytest.mark.sampled(6)
@pytest.mark.parametrize("name", ["above", "directory", "file"])
@pytest.mark.parametrize("write", [archive, archive_new, page])
def test_what_is_written_goes_nowhere_else(tmp_path, write, name):
    ends = set()
    number, left = 0, 0
    while left <= 0:
        number += 1 if write is page else sized(3, 1)
        assert number < CALLS_MAX
        place = Place(tmp_path / "place")
        fs = Other(number, lambda first, place=place: place.put_link(name))
        try:
            write(place, fs)
            ends.add("done")
        except TreesnapError as error:
            ends.add(str(error.code))
        except OSError:
            ends.add("error")
        assert differences(tree_state(place.victim), place.before) == [], number
        left = fs.left
        shutil.rmtree(place.base)

    assert "done" in ends


@pytest.fixture
def place(tmp_path: Path) -> Place:
    """The place, at peace."""
    return Place(tmp_path / "place")


def refusal(place: Place) -> tuple[int, str]:
    """Returns how ``snap timeline --html`` ends, and the code of its error."""
    called = Called(place.root, place.base / "store")
    ended = called.snap("timeline", "--html", str(place.target), "--json")
    return ended.code, json.loads(ended.out or ended.err)["code"]


def test_a_link_of_another_user_is_not_followed_to_a_device(place):
    place.target.symlink_to("/dev/null")
    os.lchown(place.target, OTHER_ID, OTHER_ID)

    assert refusal(place) == (3, ErrorCode.FOREIGN_OWNER)


def test_a_pipe_of_another_user_is_not_written_to(place):
    """And no process waits for its reader."""
    os.mkfifo(place.target)
    os.chown(place.target, OTHER_ID, OTHER_ID)
    fd = os.open(place.target, os.O_RDONLY | os.O_NONBLOCK)

    ended = refusal(place)
    read = os.read(fd, 100)
    os.close(fd)

    assert (ended, read) == ((3, ErrorCode.FOREIGN_OWNER), b"")


def test_an_own_pipe_without_a_reader_is_named(place):
    os.mkfifo(place.target)

    with pytest.raises(TreesnapError, match="No process reads"):
        write_output(UnsyncedFileSystem(), str(place.target), b"page")


@pytest.mark.parametrize("exists", [True, False])
def test_an_own_link_is_followed(place, exists):
    """So that a file that /dev/stdout leads to is replaced, and not /dev/stdout."""
    page = place.base / "page.html"
    if exists:
        page.write_text("old")
    place.target.symlink_to(page)

    write_output(UnsyncedFileSystem(), str(place.target), b"page")

    assert place.target.is_symlink()
    assert page.read_bytes() == b"page"


def test_errors_name_the_place(place):
    fs = UnsyncedFileSystem()
    (place.base / "file").touch()

    for target in (place.base / "absent" / "x", place.base / "file" / "x"):
        with pytest.raises(NotFound, match="There is no directory"):
            write_output(fs, str(target), b"page")
    with pytest.raises(IsADirectoryError):
        write_output(fs, str(place.root), b"page")


@pytest.mark.parametrize("what", ["pipe", "link"])
def test_an_ordinary_user_is_not_led_on_either(what):
    with TemporaryDirectory() as base:
        os.chmod(base, 0o777)
        target, own = Path(base, "page.html"), Path(base, "own")
        own.write_text("precious")
        os.chown(own, NOBODY_ID, NOBODY_ID)
        if what == "pipe":
            os.mkfifo(target)
        else:
            target.symlink_to(own)
        os.lchown(target, OTHER_ID, OTHER_ID)

        def write() -> None:
            with pytest.raises(Refused):
                write_output(UnsyncedFileSystem(), str(target), b"page")

        as_nobody(write)

        assert own.read_text() == "precious"


@pytest.mark.parametrize("link", ["directory", "above/below"])
def test_no_link_of_another_user_leads_an_import_elsewhere(tmp_path, link):
    """Else what is private is in a snapshot, and where that is restored."""
    place = Place(tmp_path / "place")
    source = place.theirs / link
    made = source if source.parent == place.theirs else source.parent
    made.symlink_to(place.victim)
    os.chown(made, OTHER_ID, OTHER_ID, follow_symlinks=False)
    handle = Handle(place.context(UnsyncedFileSystem()))

    with pytest.raises(Refused) as refused:
        handle.import_from(source)

    assert refused.value.code is ErrorCode.FOREIGN_OWNER
    assert len(handle.list()) == 1
    handle.import_from(place.victim)
