"""The list of what processes have mapped and may write to."""

from __future__ import annotations

import errno
import mmap
import os
import resource
import subprocess
import sys
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from treesnap.core.fs.posix import open_whole
from treesnap.core.fs.processes import KernelThreads, writable_mappings

pytestmark = [pytest.mark.needs("linux"), pytest.mark.usefixtures("every_process")]

HOLDER = """
import mmap, sys
with open(sys.argv[1], "r+b") as file:
    mapped = mmap.mmap(file.fileno(), 0)
print("mapped", flush=True)
sys.stdin.read()
"""

FIRST_THREAD_ENDS = """
import ctypes, mmap, os, sys, threading
def hold():
    print("mapped", flush=True)
    os.read(0, 1)
    os._exit(0)
with open(sys.argv[1], "r+b") as file:
    mapped = mmap.mmap(file.fileno(), 0)
threading.Thread(target=hold).start()
ctypes.CDLL(None).pthread_exit(None)
"""

asking = pytest.mark.parametrize("asks", [True, False])


@pytest.fixture
def path(tmp_path: Path) -> Path:
    made = tmp_path / "a file"
    made.write_bytes(b"content")
    return made


def inodes(asks: bool) -> set[int]:
    return {mapping.inode for mapping in writable_mappings(asks=asks)}


@asking
def test_mappings_of_this_process_and_of_others_are_found(path, asks):
    inode = path.stat().st_ino
    assert inode not in inodes(asks)
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 0):
        (found,) = {mapping for mapping in writable_mappings(asks=asks) if mapping.inode == inode}
        assert found.path == os.fsencode(path)
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as holder:
        assert holder.stdout.readline() == b"mapped\n"
        assert inode in inodes(asks)
        holder.stdin.close()
    assert inode not in inodes(asks)


@asking
@pytest.mark.parametrize("access", [mmap.PROT_READ, 0])
def test_a_right_to_write_that_was_taken_away_may_be_given_back(path, asks, access):
    inode = path.stat().st_ino
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 0, prot=access):
        assert inode in inodes(asks)


@asking
def test_a_file_that_is_mapped_often_is_found_once(path, asks):
    """One process can have some 65,000 mappings, and all of one file."""
    with path.open("r+b") as file, ExitStack() as mapped:
        for _ in range(200):
            mapped.enter_context(mmap.mmap(file.fileno(), 0))
        found = [each.inode for each in writable_mappings(asks=asks)]
        assert found.count(path.stat().st_ino) == 1


@asking
def test_one_of_many_mappings_may_be_the_one_that_writes(path, asks):
    with path.open("r+b") as file, path.open("rb") as other, ExitStack() as mapped:
        for descriptor in (other, other, file, other):
            mapped.enter_context(mmap.mmap(descriptor.fileno(), 0, prot=mmap.PROT_READ))
        assert path.stat().st_ino in inodes(asks)


@asking
def test_of_what_lies_elsewhere_no_path_is_kept(path, asks):
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 0):
        elsewhere = os.fsencode(path.parent) + b"/no/"
        found = list(writable_mappings(elsewhere, asks=asks))
        assert {each.path for each in found} == {b""}
        assert path.stat().st_ino in {each.inode for each in found}


@asking
def test_mappings_whose_writes_others_do_not_see_are_left_out(path, asks):
    inode = path.stat().st_ino
    with (
        path.open("r+b") as file,
        path.open("rb") as other,
        mmap.mmap(other.fileno(), 0, access=mmap.ACCESS_READ),
        mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY),
    ):
        assert inode not in inodes(asks)


@asking
def test_mappings_of_a_process_are_found_after_its_first_thread_ended(path, asks):
    with subprocess.Popen(
        [sys.executable, "-c", FIRST_THREAD_ENDS, str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as holder:
        assert holder.stdout.readline() == b"mapped\n"
        while "Z" not in Path(f"/proc/{holder.pid}/stat").read_text().split():
            os.sched_yield()
        assert path.stat().st_ino in inodes(asks)
        holder.stdin.close()


@asking
def test_a_long_path_is_shown_whole(tmp_path, asks, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for _ in range(20):  # no path may be so long, but a place may lie so deep
        os.mkdir("d" * 250)
        os.chdir("d" * 250)
    with open("file", "w+b") as file:
        file.write(b"content")
        file.flush()
        with mmap.mmap(file.fileno(), 0):
            status = os.fstat(file.fileno())
            (found,) = {
                each for each in writable_mappings(asks=asks) if each.inode == status.st_ino
            }
    assert found.path == b"/".join([os.fsencode(tmp_path), *[b"d" * 250] * 20, b"file"])


def test_asking_finds_what_reading_finds(path):
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 0):
        assert path.stat().st_ino in inodes(asks=True) & inodes(asks=False)


def opened_in_a_look(kernel: KernelThreads) -> int:
    """Returns how often a look at all processes opens something."""
    calls = []
    sys.setprofile(lambda frame, event, _: calls.append(frame.f_code) if event == "call" else None)
    try:
        list(writable_mappings(kernel=kernel))
    finally:
        sys.setprofile(None)
    return calls.count(open_whole.__code__)


def test_threads_of_the_kernel_are_looked_at_once():
    kernel = KernelThreads()
    first = opened_in_a_look(kernel)
    threads = list(kernel.present())
    if not threads:
        pytest.skip("this machine shows no threads of the kernel")

    again = opened_in_a_look(kernel)

    # Twice, for what it has mapped and for its flags; a few processes may have started since.
    assert again < first - len(threads)
    command_lines = []
    for name in threads:
        with suppress(FileNotFoundError, ProcessLookupError):  # the kernel has ended it since
            command_lines.append(Path(f"/proc/{name}/cmdline").read_bytes())
    assert not any(command_lines)


def test_no_process_is_taken_for_a_thread_of_the_kernel():
    kernel = KernelThreads()
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        kernel.remember_process(str(child.pid))
        child.stdin.close()
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        kernel.remember_process(str(child.pid))  # which has no memory any more
        assert set(kernel.present()) == set()


def test_another_process_of_the_same_name_is_looked_at():
    kernel = KernelThreads()
    list(writable_mappings(kernel=kernel))
    if not kernel.present():
        pytest.skip("this machine shows no threads of the kernel")
    name = next(iter(kernel.present()))
    kernel._inodes[name] += 1  # as if it had ended, and its name had been given again

    assert name not in kernel.present()


def test_too_many_open_files_are_no_empty_list():
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, limits[1]))
    try:
        with pytest.raises(OSError, match=os.strerror(errno.EMFILE)):
            list(writable_mappings())
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
