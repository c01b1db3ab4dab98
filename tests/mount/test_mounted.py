"""A mounted history, looked at by system calls and programs alone."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from random import Random

import pytest

import oracle
import trees
from mount.conftest import PROGRAM, is_mounted
from treesnap.core.model.errors import Busy

pytestmark = pytest.mark.sampled(12)


def build_large(root, seed):
    """Makes a tree of large files and directories with many names."""
    random = Random(seed)
    root.mkdir()
    (root / "many").mkdir()
    for number in range(4200):  # more than one part of a directory holds
        (root / "many" / f"{number:04d}").touch()
    (root / "large").write_bytes(random.randbytes(9_000_000))
    top = os.fsencode(root)
    pieces = [(at * 300_001, random.randbytes(5000)) for at in range(1, 90)]
    trees.write_sparse(top + b"/sparse", 90 * 300_001, *pieces)
    trees.write_sparse(top + b"/hole", 1 << 30)
    for number in range(3):
        (root / f"links{number}").mkdir()
        os.link(root / "large", root / f"links{number}" / "large")
        os.link(root / "sparse", root / f"links{number}" / "sparse")


BUILDERS = {"awkward": trees.build, "small": trees.build_small, "large": build_large}


@pytest.mark.parametrize("kind", BUILDERS)
def test_a_mounted_snapshot_equals_a_restored_one(kind, mount, handle, root, tmp_path):
    BUILDERS[kind](root, 11)
    identity = handle.create().id
    handle.restore(identity, to=tmp_path / "restored")
    mounted = mount().place

    expected = oracle.record(tmp_path / "restored")
    assert oracle.difference(expected, oracle.record(mounted / "ids" / identity)) == []
    assert oracle.difference(expected, oracle.record(mounted / "latest")) == []


@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=[pytest.mark.slow] * (kind == "large")) for kind in BUILDERS]
)
def test_a_copy_out_of_it_equals_a_restored_one(kind, mount, handle, root, tmp_path):
    BUILDERS[kind](root, 12)
    identity = handle.create().id
    handle.restore(identity, to=tmp_path / "restored")
    subprocess.run(["cp", "-a", tmp_path / "restored", tmp_path / "expected"], check=True)
    expected = oracle.record(tmp_path / "expected")  # cp writes tiny holes, wherever they are from
    mounted = mount().place

    for name in ("latest", f"ids/{identity}"):
        copy = tmp_path / name.replace("/", "-")
        subprocess.run(["cp", "-a", mounted / name, copy], check=True)
        assert oracle.difference(expected, oracle.record(copy)) == []
    if kind == "large":
        assert (copy / "hole").stat().st_blocks == 0
        assert (copy / "sparse").stat().st_blocks < (copy / "large").stat().st_blocks


def test_nothing_can_be_written(mount, handle, root):
    trees.build_small(root, 1)
    handle.create()
    latest = mount().place / "latest"

    for attempt in (
        (latest / "new").touch,
        lambda: (latest / "file").write_text("x"),
        (latest / "file").unlink,
        lambda: os.chmod(latest / "file", 0),
        lambda: os.rename(latest / "file", latest / "x"),
        lambda: os.mkdir(latest.parent / "names" / "new"),
    ):
        with pytest.raises(OSError, match="Errno") as caught:
            attempt()
        assert caught.value.errno == errno.EROFS


def test_a_new_snapshot_appears_and_open_files_stay(mount, handle, root):
    root.mkdir()
    (root / "file").write_text("first")
    handle.create()
    place = mount().place
    with (place / "latest" / "file").open("rb", buffering=0) as old:
        assert old.read(2) == b"fi"
        (root / "file").write_text("second, which is longer")
        identity = handle.create(name="v2").id

        assert (place / "ids" / identity / "file").read_text() == "second, which is longer"
        with (place / "names" / "v2" / "file").open("rb", buffering=0) as new:
            assert new.read() == b"second, which is longer"
        assert os.pread(old.fileno(), 100, 0) == b"first"
    assert set(os.listdir(place / "names")) == {"v2"}


def damage_a_file(handle, root, tmp_path):
    """Captures a good file, then a bad one, and damages that in the store; returns the snapshot."""
    root.mkdir()
    random = Random(3)
    (root / "good").write_bytes(random.randbytes(700_000))
    handle.create()
    before = set((tmp_path / "store" / "packs").iterdir())
    sizes = {pack: pack.stat().st_size for pack in before}
    (root / "bad").write_bytes(random.randbytes(700_000))
    identity = handle.create().id
    grown = [
        (pack, sizes.get(pack, 0))
        for pack in (tmp_path / "store" / "packs").iterdir()
        if pack.stat().st_size > sizes.get(pack, 0)
    ]
    for pack, start in grown:
        with pack.open("r+b") as file:
            file.seek(start + 100_000)  # in what `bad` holds, far before its tree
            file.write(b"damage")
    return identity


def test_damage_is_an_error_for_the_files_that_need_it(mount, handle, root, tmp_path):
    identity = damage_a_file(handle, root, tmp_path)
    mounted = mount()
    snapshot = mounted.place / "ids" / identity

    assert (snapshot / "good").read_bytes() == (root / "good").read_bytes()
    with pytest.raises(OSError, match="Errno") as caught:
        (snapshot / "bad").read_bytes()
    assert caught.value.errno == errno.EIO
    assert sorted(os.listdir(snapshot)) == ["bad", "good"]
    code, err = mounted.end()
    assert code == 0
    assert f"/ids/{identity}/bad cannot be read: " in err
    assert "good" not in err


@pytest.mark.parametrize("option", ["--json", "--quiet"])
def test_only_a_person_is_told_why_a_path_cannot_be_read(option, mount, handle, root, tmp_path):
    identity = damage_a_file(handle, root, tmp_path)
    mounted = mount(None, option)

    with pytest.raises(OSError, match="Errno"):
        (mounted.place / "ids" / identity / "bad").read_bytes()
    assert mounted.end() == (0, "")


def test_what_is_read_is_not_deleted_and_survives_a_collection(mount, handle, root):
    root.mkdir()
    content = Random(4).randbytes(3_000_000)
    (root / "file").write_bytes(content)
    old = handle.create().id
    (root / "file").write_bytes(b"new")
    gone = handle.create().id
    handle.create(label="the newest one")
    mounted = mount()
    with (mounted.place / "ids" / old / "file").open("rb", buffering=0) as file:
        assert file.read(10) == content[:10]
        with pytest.raises(Busy, match=r"is what process \d+ reads"):
            handle.delete(old)
        handle.delete(gone)
        handle.gc()
        assert os.pread(file.fileno(), len(content), 0)[: 1 << 20] == content[: 1 << 20]
        assert (mounted.place / "ids" / old / "file").read_bytes() == content
    assert handle.run(["true"]).exit_code == 0  # it goes back to nothing of what is read
    mounted.end()
    handle.delete(old)


def test_what_was_collected_is_an_error_and_never_wrong_bytes(mount, handle, root, tmp_path):
    root.mkdir()
    (root / "file").write_bytes(Random(5).randbytes(30_000_000))
    old = handle.create().id
    (root / "file").write_bytes(b"new")
    handle.create()
    mounted = mount()
    with (mounted.place / "ids" / old / "file").open("rb", buffering=0) as file:
        file.read(10)
        for hold in (tmp_path / "store" / "roots").glob("*/hold-*"):
            hold.unlink()  # as if the store could not be written to
        handle.delete(old)
        handle.gc()
        assert old not in os.listdir(mounted.place / "ids")  # here it closes the deleted packs
        with pytest.raises(OSError, match="Errno") as caught:
            os.pread(file.fileno(), 100, 29_000_000)
        assert caught.value.errno == errno.EIO
    _, err = mounted.end()
    assert f"/ids/{old}/file cannot be read: " in err


def test_readers_in_several_threads_get_their_bytes(mount, handle, root):
    root.mkdir()
    contents = {str(number): Random(number).randbytes(400_000) for number in range(12)}
    for name, content in contents.items():
        (root / name).write_bytes(content)
    handle.create()
    latest = mount().place / "latest"

    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda name: (latest / name).read_bytes(), contents))
    assert found == list(contents.values())


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_it_and_leaves_no_mount(mount, handle, root, number):
    root.mkdir()
    handle.create()
    mounted = mount()
    assert is_mounted(mounted.place)

    assert mounted.end(number) == (0, "")
    assert not is_mounted(mounted.place)
    assert os.listdir(mounted.place) == []


@pytest.mark.parametrize("words", [["restore", "latest"], ["run", "--", "rm", "file", "nothing"]])
def test_a_stopped_mount_holds_up_no_restore(words, mount, handle, root):
    """Who has which files open is asked of all processes, and not of what serves these files."""
    root.mkdir()
    (root / "file").write_text("here")
    handle.create()
    if words[0] == "restore":
        (root / "file").write_text("changed")
    stopped = mount()
    with (stopped.place / "latest" / "file").open("rb", buffering=0) as file:
        holder = subprocess.Popen(["sleep", "600"], stdin=file)
        file.read()  # so that stat(2) asks for the time of the access
    where = ["-C", handle.root, "--store", handle.store_path]
    stopped.process.send_signal(signal.SIGSTOP)
    command = subprocess.Popen([*PROGRAM, *where, *words])
    try:
        command.wait(60)
    finally:
        stopped.process.send_signal(signal.SIGCONT)  # before anything that may wait for it
        command.kill()
        holder.kill()
        holder.wait()

    assert (root / "file").read_text() == "here"


def test_what_a_killed_process_left_is_cleared_by_the_next_mount(mount, handle, root):
    root.mkdir()
    (root / "file").write_text("here")
    handle.create()
    killed = mount()
    opened = os.open(killed.place / "latest" / "file", os.O_RDONLY)
    killed.end(signal.SIGKILL)
    with pytest.raises(OSError, match="Errno") as caught:
        os.listdir(killed.place)
    assert caught.value.errno == errno.ENOTCONN

    again = mount(killed.place)
    assert again.lines[0].startswith("Cleared")
    assert (again.place / "latest" / "file").read_text() == "here"
    with suppress(OSError):  # it belongs to the mount that was cleared
        os.close(opened)
    again.end()
    assert not is_mounted(again.place)
