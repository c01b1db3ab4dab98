"""A store belongs to one user, no matter who works in it: what root writes there is the owner's."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

import treesnap
from privileges import NOBODY_ID, as_nobody, everything_is_loaded
from treesnap.core.watch import control
from treesnap.plans import Planner, Step

pytestmark = pytest.mark.sampled(10)

ONLY_ROOT = pytest.mark.skipif(
    os.geteuid() != 0, reason="only the superuser writes to the stores of others"
)


def strangers(top: Path, owner: int = NOBODY_ID) -> list[str]:
    """Returns what lies at and below a directory and belongs to another user."""
    found = [top, *top.rglob("*")]
    return [str(path.relative_to(top)) for path in found if path.lstat().st_uid != owner]


def make(root: Path, text: str = "first") -> None:
    """Makes or changes a root of the unprivileged user's."""
    root.mkdir(exist_ok=True)
    (root / "file").write_text(text)
    (root / "below").mkdir(exist_ok=True)
    (root / "below" / "file").write_text(text * 1000)


@pytest.fixture
def place(open_directory):
    """A directory with a root and a store of the unprivileged user's, with two snapshots."""
    everything_is_loaded(open_directory)

    def begin() -> None:
        for name in ("root", "other"):
            make(open_directory / name)
            handle = treesnap.open(open_directory / name, open_directory / "store")
            handle.create(name="begin")
            make(open_directory / name, "second")
            handle.create()

    as_nobody(begin)
    return open_directory


def fail(root: Path) -> None:
    """Does what a failing step does."""
    (root / "below" / "file").unlink()
    raise RuntimeError("the step failed")


def step(handle: treesnap.Handle, root: Path) -> None:
    """A step that fails, and is rolled back."""
    with pytest.raises(RuntimeError), handle.rollback_on_error("step"):
        fail(root)


def damage_index(handle: treesnap.Handle, root: Path) -> None:
    """Repairs an index that another program removed."""
    for part in (root.parent / "store" / "index").iterdir():
        part.unlink()
    handle.verify(repair=True)


def watch(handle: treesnap.Handle, root: Path) -> None:
    """Captures with a watcher."""
    with handle.watch(force=True) as watched:
        watched.create()
        (root / "file").write_text("third")
        watched.create()


WORK: dict[str, Callable[[treesnap.Handle, Path], object]] = {
    "create": lambda handle, root: handle.create(),
    "restore": lambda handle, root: handle.restore("begin"),
    "restore and undo": lambda handle, root: (handle.restore("begin"), handle.undo()),
    "restore elsewhere": lambda handle, root: handle.restore("begin", to=root.parent / "to"),
    "pin": lambda handle, root: handle.pin("begin"),
    "gc": lambda handle, root: (handle.delete("begin"), handle.gc()),
    "prune": lambda handle, root: handle.prune(max_size_bytes=0),
    "repair": damage_index,
    "roll-back": step,
    "config": lambda handle, root: handle.config("max-size", "1G", for_root=True),
    "run": lambda handle, root: handle.run(["sh", "-c", "echo changed > file"]),
    "plan": lambda handle, root: Planner(handle).run("p", [Step(name="one", run="echo done")]),
    "watch": watch,
    "forget": lambda handle, root: handle.root_forget(root, force=True),
}
CASES = [
    pytest.param(name, marks=pytest.mark.needs("notices") if name == "watch" else ())
    for name in WORK
]


@pytest.mark.sampled(6)
@ONLY_ROOT
@pytest.mark.parametrize("work", CASES)
@pytest.mark.parametrize("name", ["root", "new"])
def test_what_root_does_in_a_store_of_another_user_leaves_that_user_everything(place, work, name):
    root = place / name
    if name == "new":
        make(root)
        treesnap.open(root, place / "store").create(name="begin")
        make(root, "second")

    WORK[work](treesnap.open(root, place / "store"), root)

    assert strangers(place / "store") == []

    def go_on() -> None:
        for each in ("root", "other"):
            handle = treesnap.open(place / each, place / "store")
            assert handle.list() or work == "forget"
            handle.status()
            make(place / each, "third")
            third = handle.create().id
            make(place / each, "fourth")
            handle.restore(third)
            assert (place / each / "file").read_text() == "third"
            handle.gc()
            assert handle.verify(read_data=True).ok

    as_nobody(go_on)


@pytest.mark.needs("companions")
@ONLY_ROOT
def test_the_owner_may_ask_and_stop_a_watcher_of_roots(place):
    words = ["-C", str(place / "root"), "--store", str(place / "store"), "watch", "--detach"]
    subprocess.run([sys.executable, "-m", "treesnap", *words], check=True, capture_output=True)

    def stop() -> None:
        handle = treesnap.open(place / "root", place / "store")
        assert control.status(handle.context) is not None
        assert control.stop(handle.context) is not None
        assert control.status(handle.context) is None

    as_nobody(stop)

    assert strangers(place / "store") == []


@ONLY_ROOT
def test_a_store_that_root_makes_belongs_to_the_owner_of_the_directory(place):
    home = place / "home"
    home.mkdir()
    os.chown(home, NOBODY_ID, NOBODY_ID)

    treesnap.open(place / "root", home / "share" / "treesnap").create()

    assert strangers(home) == []
    as_nobody(treesnap.open(place / "root", home / "share" / "treesnap").create)


@ONLY_ROOT
def test_a_store_of_roots_stays_roots(place):
    treesnap.open(place / "root", place / "roots-store").create()

    assert strangers(place / "roots-store", owner=0) == []


@ONLY_ROOT
def test_nothing_but_the_store_changes_hands(place):
    (place / "root" / "of-root").write_text("of root")
    handle = treesnap.open(place / "root", place / "store")
    identity = handle.create().id
    (place / "root" / "of-root").unlink()

    handle.restore(identity)
    handle.restore(identity, to=place / "to")

    assert strangers(place / "to" / "of-root", owner=0) == []
    assert strangers(place / "root" / "of-root", owner=0) == []


@ONLY_ROOT
def test_what_the_owner_links_into_the_store_is_not_given_away(place):
    secret = place / "secret"
    secret.write_text("of root")
    os.link(secret, place / "store" / "slots" / "link")
    fs = treesnap.open(place / "root", place / "store").context.fs

    fs.close(fs.open(str(place / "store" / "slots" / "link"), os.O_RDWR | os.O_CREAT))

    assert secret.stat().st_uid == 0
    with pytest.raises(FileExistsError):
        fs.open(str(place / "store" / "slots" / "link"), os.O_RDWR | os.O_CREAT | os.O_EXCL)


def closed_files(store: Path) -> dict[str, list[Path]]:
    """Returns files and directories of a store that another user's command may have left."""
    (root,) = (path.parent for path in store.glob("roots/*/root") if b"/root" in path.read_bytes())
    (other,) = (
        path.parent for path in store.glob("roots/*/root") if b"/other" in path.read_bytes()
    )
    return {
        "newest snapshot": [max((store / "snapshots" / root.name).iterdir())],
        "oldest snapshot": [min((store / "snapshots" / root.name).iterdir())],
        "snapshots of another root": list((store / "snapshots" / other.name).iterdir()),
        "states": list((store / "states").iterdir()),
        "index": list((store / "index").iterdir()),
        "one index part": [min((store / "index").iterdir())],
        "cache": [path for path in (root / "cache", root / "cache-recent") if path.exists()],
        "slots": list((store / "slots").iterdir()),
        "temporary": list((store / "temporary").iterdir()),
        "size": [path for path in [store / "collector" / "size"] if path.exists()],
        "record of another root": [other / "root"],
        "files of another root": [other],
        "packs": list((store / "packs").iterdir()),
    }


CLOSED = [
    "newest snapshot",
    "oldest snapshot",
    "snapshots of another root",
    "states",
    "packs",
    "index",
    "one index part",
    "cache",
    "slots",
    "temporary",
    "size",
    "record of another root",
    "files of another root",
]


@pytest.mark.sampled(6)
@ONLY_ROOT
@pytest.mark.parametrize("what", CLOSED)
def test_what_may_not_be_opened_stops_nothing_else(place, what):
    store = place / "store"

    def pin() -> None:
        treesnap.open(place / "root", store).pin("begin")

    def work() -> None:
        handle = treesnap.open(place / "root", store)
        handle.list()
        handle.status()
        make(place / "root", "third")
        third = handle.create(name="third").id
        make(place / "root", "fourth")
        handle.restore(third)
        assert (place / "root" / "file").read_text() == "third"
        handle.undo()
        assert (place / "root" / "file").read_text() == "fourth"
        handle.delete("third")
        for check in (handle.stats, handle.gc, handle.verify, partial(handle.verify, repair=True)):
            try:
                check()
            except treesnap.OperationFailed as error:
                assert "Permission denied" in str(error)  # noqa: PT017 - either may be

    def everything_is_there() -> None:
        for name in ("root", "other"):
            handle = treesnap.open(place / name, store)
            assert handle.verify(read_data=True).ok
            handle.restore("begin")
            assert (place / name / "file").read_text() == "first"
            assert handle.ls("latest")

    as_nobody(pin)
    if what == "temporary":
        (store / "temporary" / "0123456789abcdef").touch()
    closed = closed_files(store)[what]
    for path in closed:
        os.chown(path, 0, 0)
        path.chmod(0o700 if path.is_dir() else 0o600)
    as_nobody(work)
    assert [path for path in closed if not path.exists()] == []
    for path in closed:
        os.chown(path, NOBODY_ID, NOBODY_ID)
    as_nobody(everything_is_there)
