"""The processes of a command, and others that show more than a process has."""

from __future__ import annotations

import subprocess
import sys
import tracemalloc

import pytest

from treesnap.core.fs.children import marked_processes

pytestmark = pytest.mark.usefixtures("every_process")

CLAIMS_ITS_MEMORY = """
import ctypes, mmap, os, struct, sys
size = int(sys.argv[1])
memory = mmap.mmap(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
library = ctypes.CDLL(None, use_errno=True)
library.sbrk.restype = ctypes.c_void_p
fields = [0, 0, 0, *open("/proc/self/stat").read().rpartition(")")[2].split()]
code, stack, data, arguments = ([int(fields[at]) for at in where]
    for where in ([26, 27], [28], [45, 46, 47], [48, 49]))
places = struct.pack("=12Q2I", *code, *data[:2], data[2], library.sbrk(0), *stack, *arguments,
    start, start + size, 0, 0, 0xFFFFFFFF)
PR_SET_MM, PR_SET_MM_MAP = 35, 14
done = library.prctl(PR_SET_MM, PR_SET_MM_MAP, places, len(places), 0)
print(done, flush=True)
sys.stdin.read()
"""
"""Says that so much of its memory is its environment, which takes no privilege."""


def test_a_process_that_calls_its_memory_its_environment_costs_no_memory_here():
    words = [sys.executable, "-c", CLAIMS_ITS_MEMORY, f"{64 << 20}"]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        if process.stdout.readline() != b"0\n":
            pytest.skip("the kernel has no PR_SET_MM_MAP")
        tracemalloc.start()
        try:
            found = list(marked_processes("TREESNAP_TEST", "no such mark", None))
            _, peak_bytes = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
            process.stdin.close()

    assert found == []
    assert peak_bytes < 32 << 20
