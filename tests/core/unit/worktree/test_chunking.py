"""Cutting files: the same wherever they are read from, and never by another library."""

from __future__ import annotations

import threading

import pytest

from treesnap.core.model.errors import OperationFailed
from treesnap.core.model.ids import expanded
from treesnap.core.worktree.scan import chunking


def test_chunks_keep_their_limits_and_cover_everything():
    data = expanded(b"limits", 3 << 20)

    sizes = list(chunking.cut(memoryview(data), is_last=True))

    assert sum(sizes) == len(data)
    assert all(chunking.CHUNK_SIZE_MIN < size <= chunking.CHUNK_SIZE_MAX for size in sizes[:-1])


@pytest.mark.parametrize("window", [300_000, 524_288, 1_000_001])
def test_windows_are_cut_like_the_whole(window):
    data = expanded(b"windows", 3 << 20)
    whole = list(chunking.cut(memoryview(data), is_last=True))

    sizes: list[int] = []
    position = 0
    while position < len(data):
        end = min(len(data), position + window)
        found = list(chunking.cut(memoryview(data)[position:end], is_last=end == len(data)))
        sizes += found
        position += sum(found)

    assert sizes == whole


def test_a_library_that_cuts_elsewhere_is_not_used(monkeypatch):
    monkeypatch.setattr(chunking, "CHUNK_SIZE_MIN", 8192)
    monkeypatch.setattr(chunking, "_own", threading.local())

    with pytest.raises(OperationFailed, match="cuts files elsewhere"):
        list(chunking.cut(memoryview(bytes(1 << 20)), is_last=True))


def test_every_thread_has_a_chunker_of_its_own():
    found = []
    threads = [threading.Thread(target=lambda: found.append(chunking._chunker())) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert found[0] is not found[1]
