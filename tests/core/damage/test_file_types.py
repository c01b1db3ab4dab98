"""Pipes and other types of files in place of those of a store: damage, and nothing waits."""

from __future__ import annotations

import os
import shutil
import signal
from contextlib import suppress
from pathlib import Path

import pytest

from oracle import difference, record
from treesnap.core.handle import Handle
from treesnap.core.model.errors import TreesnapError
from treesnap.core.ops.context import context_at
from world import World

PATTERNS = [
    "format",
    "config.toml",
    "packs/*",
    "index/*",
    "snapshots/*/*",
    "slots/*",
    "collector/lock",
    "collector/state",
    "roots/*/root",
    "roots/*/config.toml",
    "roots/*/lock",
    "roots/*/cache",
    "roots/*/cache-recent",
    "roots/*/names",
    "roots/*/journal",
    "roots/*/history",
    "roots/*/watch/socket",
    "index/lock",
]
OPERATIONS = {
    "create": lambda handle: handle.create(),
    "list": lambda handle: handle.list(),
    "status": lambda handle: handle.status(),
    "restore": lambda handle: handle.restore("first"),
    "gc": lambda handle: handle.gc(),
    "prune": lambda handle: handle.prune(),
    "verify": lambda handle: handle.verify(),
    "repair": lambda handle: handle.verify(repair=True),
    "stats": lambda handle: handle.stats(),
    "doctor": lambda handle: handle.doctor(),
}


def put_in_place(path: Path, kind: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.is_file():
        path.unlink()
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "directory":
        path.mkdir()
    else:
        path.symlink_to("/dev/zero")


@pytest.fixture
def limit():
    """Ends a test in which something waits."""

    def waited(*_) -> None:
        raise AssertionError("something waits for a pipe")

    previous = signal.signal(signal.SIGALRM, waited)
    signal.alarm(60)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, previous)


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> World:
    return World(tmp_path_factory.mktemp("made"))


@pytest.mark.sampled(6)
@pytest.mark.parametrize("kind", ["pipe", "link", "directory"])
@pytest.mark.parametrize("pattern", PATTERNS)
def test_nothing_waits_and_nothing_fails_unawares(made, tmp_path, limit, pattern, kind):
    """All operations do their work, or say what is wrong as they say it of any damage."""
    for operation in OPERATIONS.values():
        shutil.rmtree(made.store.parent / "copy", ignore_errors=True)
        copy = made.store.parent / "copy"
        shutil.copytree(made.store, copy, symlinks=True)
        found = list(copy.glob(pattern))
        (only,) = copy.glob("roots/*/")
        for path in found or [copy / pattern.replace("roots/*", f"roots/{only.name}")]:
            put_in_place(path, kind)
        handle = Handle(context_at(root=made.root, store_path=str(copy), wait_s=0.0))
        with suppress(TreesnapError):
            operation(handle)
    shutil.rmtree(copy)


@pytest.mark.parametrize("kind", ["pipe", "link", "directory"])
def test_an_object_is_stored_again_when_its_pack_is_none(made, tmp_path, limit, kind):
    copy = tmp_path / "store"
    shutil.copytree(made.store, copy)
    for path in copy.glob("packs/*"):
        put_in_place(path, kind)
    (copy / next(iter(made.store.glob("roots/*/cache"))).relative_to(made.store)).unlink()
    handle = Handle(context_at(root=made.root, store_path=str(copy)))

    assert not handle.verify().ok
    made_again = handle.create()

    assert handle.restore(made_again.id, to=tmp_path / "there").created > 0


@pytest.mark.sampled(5)
@pytest.mark.parametrize("kind", ["pipe", "link", "directory"])
@pytest.mark.parametrize("name", ["roots/ROOT/lock", "roots/lock", "index/lock", "collector/lock"])
def test_what_is_in_the_place_of_a_lock_stops_nothing(made, tmp_path, limit, name, kind):
    copy = tmp_path / "store"
    shutil.copytree(made.store, copy)
    (root,) = copy.glob("roots/*/root")
    put_in_place(copy / name.replace("ROOT", root.parent.name), kind)
    handle = Handle(context_at(root=made.root, store_path=str(copy), wait_s=0.0))

    (made.root / "later").write_text(f"{name} {kind}")
    handle.create()
    handle.restore("first")
    handle.gc()

    assert handle.verify(read_data=True).ok


@pytest.mark.parametrize("name", ["root", "history", "cache", "cache-recent", "names", "gaps"])
def test_a_directory_in_the_place_of_a_file_keeps_no_command_from_going_back(made, tmp_path, name):
    copy = tmp_path / "store"
    shutil.copytree(made.store, copy)
    (root,) = copy.glob("roots/*/root")
    put_in_place(root.with_name(name), "directory")
    (root.with_name(name) / "content").touch()
    handle = Handle(context_at(root=made.root, store_path=str(copy)))
    before = record(made.root)

    result = handle.run(["sh", "-c", "echo no > damage; exit 3"])

    assert (result.exit_code, result.rolled_back) == (3, True)
    assert difference(before, record(made.root)) == []


@pytest.mark.parametrize(
    "name", ["format", "roots/ROOT/root", "roots/ROOT/history", "collector/state", "collector/size"]
)
def test_a_repair_mends_what_a_directory_is_in_the_place_of(made, tmp_path, name):
    copy = tmp_path / "store"
    shutil.copytree(made.store, copy)
    (root,) = copy.glob("roots/*/root")
    place = copy / name.replace("ROOT", root.parent.name)
    put_in_place(place, "directory")
    (place / "content").touch()
    handle = Handle(context_at(root=made.root, store_path=str(copy)))

    handle.verify(repair=True)

    assert handle.verify(read_data=True).ok
    handle.create()


def test_a_directory_among_temporary_files_is_left_alone(made, tmp_path):
    copy = tmp_path / "store"
    shutil.copytree(made.store, copy)
    (copy / "temporary" / "0123456789abcdef").mkdir()
    handle = Handle(context_at(root=made.root, store_path=str(copy)))

    handle.gc()
    handle.create()


@pytest.mark.parametrize("folder", ["roots", "snapshots"])
def test_a_file_that_is_named_like_a_root_is_of_none(made, tmp_path, folder):
    shutil.copytree(made.store, tmp_path / "store", symlinks=True)
    handle = Handle(context_at(root=made.root, store_path=str(tmp_path / "store")))
    (tmp_path / "store" / folder / f"{1:032x}").write_bytes(b"")
    os.mkfifo(tmp_path / "store" / folder / f"{2:032x}")

    for operation in OPERATIONS.values():
        operation(handle)
    assert len(handle.root_list()) == 1
