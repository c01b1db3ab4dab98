"""SFTP with servers that answer what no server should: one clear end, and no memory taken."""

from __future__ import annotations

import os
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from treesnap.remote.blobs import sftp
from treesnap.remote.blobs.sftp import PACKET_MAX, SftpClient, SftpLost, SftpRefused

VERSION = b"\0\0\0\x05\x02\0\0\0\x03"
STATUS, HANDLE, DATA, NAMES, ATTRIBUTES, REPLY = 101, 102, 103, 104, 105, 201
A_FILE = struct.pack(">IQI", 1 | 4, 10, 0o100644)


def text(data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + data


def answer(number: int, kind: int, body: bytes) -> bytes:
    return text(struct.pack(">BI", kind, number) + body)


def status(code: int, words: bytes = b"") -> tuple[int, bytes]:
    return STATUS, struct.pack(">I", code) + text(words) + text(b"en")


GOOD = {
    3: (HANDLE, text(b"h")),
    4: status(0),
    5: (DATA, text(b"0123456789")),
    6: status(0),
    7: (ATTRIBUTES, A_FILE),
    8: (ATTRIBUTES, A_FILE),
    11: (HANDLE, text(b"h")),
    13: status(0),
    14: status(0),
    18: status(0),
    200: status(0),
}
"""What a server answers that has one file of ten bytes, by the kind of the request."""

Serve = Callable[[int, int], bytes]
"""Returns what is sent for a request of a kind and number."""


@contextmanager
def served(serve: Serve, hello: bytes = VERSION, answer_s: float = 5.0) -> Iterator[SftpClient]:
    """Yields a client of a server that answers so."""
    requests, send = os.pipe()
    receive, answers = os.pipe()

    def work() -> None:
        with os.fdopen(requests, "rb") as read, os.fdopen(answers, "wb", buffering=0) as write:
            try:
                while header := read.read(4):
                    packet = read.read(int.from_bytes(header))
                    if packet[0] == 1:
                        write.write(hello)
                    else:
                        write.write(serve(packet[0], int.from_bytes(packet[1:5])))
            except (BrokenPipeError, StopIteration, IndexError):
                pass

    thread = threading.Thread(target=work)
    thread.start()
    client = SftpClient(receive, send, lambda: None, answer_s=answer_s)
    try:
        yield client
    finally:
        os.close(send)
        thread.join()
        client.join(5)
        os.close(receive)


def good(kind: int, number: int) -> bytes:
    return answer(number, *GOOD[kind])


def use(client: SftpClient) -> list[bytes]:
    """Asks for everything that is asked for."""
    assert client.begin(5)
    client.extensions = frozenset({sftp.HARD_LINK, sftp.SYNC, sftp.REPLACE, sftp.SPACE})
    found = client.read(b"a", lambda attributes: [(0, attributes.size_bytes or 0)])
    client.write_new(b"b", b"0123456789", 0o600)
    client.link(b"b", b"c")
    client.replace(b"b", b"c")
    client.move(b"b", b"c")
    client.make_directory(b"d", 0o700)
    client.sync_directory(b"d")
    assert client.remove([b"a", b"b"]) == [None, None]
    client.settle()
    return found


def test_a_good_server_is_used():
    with served(good) as client:
        assert use(client) == [b"0123456789"]


@pytest.mark.parametrize(
    "hello",
    [
        b"Welcome to this machine!\n",
        struct.pack(">IB", PACKET_MAX + 1, 2),
        b"\0\0\0\0",
        b"\0\0\0\x05\x02\0\0\0\x02",  # version 2
        b"\0\0\0\x05\x65\0\0\0\x03",  # another packet
        b"\0\0\0\x09\x02\0\0\0\x03\0\0\0\x09",  # an extension that is cut
    ],
)
def test_what_is_no_server_of_sftp_is_said(hello):
    with served(good, hello) as client, pytest.raises(SftpLost) as caught:
        client.begin(5)

    assert caught.value.is_senseless


@pytest.mark.parametrize(
    ("kind", "reply"),
    [
        (3, (HANDLE, text(b"h" * 257))),
        (3, status(0)),
        (3, (DATA, text(b"h"))),
        (3, (HANDLE, b"\xff\xff\xff\xff")),
        (5, (DATA, text(b"more than the ten bytes"))),
        (5, (DATA, text(b""))),
        (5, (DATA, struct.pack(">I", 1 << 31))),
        (5, status(0)),
        (6, (DATA, text(b""))),
        (8, (ATTRIBUTES, struct.pack(">II", 1 << 31, 0xFFFFFFFF))),
        (8, (ATTRIBUTES, b"")),
        (8, (HANDLE, text(b"h"))),
        (13, (REPLY, b"")),
        (200, (STATUS, b"")),
    ],
)
def test_answers_that_make_no_sense_are_not_taken(kind, reply):
    def serve(asked: int, number: int) -> bytes:
        return answer(number, *(reply if asked == kind else GOOD[asked]))

    with served(serve) as client, pytest.raises(SftpLost) as caught:
        use(client)

    assert caught.value.is_senseless


def test_an_answer_to_nothing_ends_the_connection():
    with served(lambda kind, number: good(kind, number + 1)) as client:
        with pytest.raises(SftpLost, match="not asked"):
            use(client)
        with pytest.raises(SftpLost, match="not asked"):
            client.status_of(b"a")


@pytest.mark.parametrize("count", [0, 3, 0xFFFFFFFF])
def test_a_list_without_end_is_not_read_to_it(monkeypatch, count):
    monkeypatch.setattr(sftp, "LISTED_MAX", 100)
    names = struct.pack(">I", count) + (text(b"a") + text(b"") + A_FILE) * 3

    def serve(kind: int, number: int) -> bytes:
        return answer(number, NAMES, names) if kind == 12 else good(kind, number)

    with served(serve) as client:
        client.begin(5)
        with pytest.raises(SftpLost, match="lists") as caught:
            list(client.names_in(b"d"))

    assert caught.value.is_senseless


def test_a_file_that_comes_in_pieces_is_whole_and_one_that_ends_early_is_refused():
    left = [text(b"0123"), text(b"45678"), text(b"9")]

    def serve(kind: int, number: int) -> bytes:
        if kind != 5:
            return good(kind, number)
        return answer(number, DATA, left.pop(0)) if left else answer(number, *status(1))

    with served(serve) as client:
        client.begin(5)
        assert client.read(b"a", lambda _: [(0, 10)]) == [b"0123456789"]
        with pytest.raises(SftpRefused) as caught:
            client.read(b"a", lambda _: [(0, 10)])

    assert caught.value.status == sftp.END


def test_silence_ends_the_connection():
    with served(lambda _kind, _number: b"", answer_s=0.05) as client:
        client.begin(5)
        with pytest.raises(SftpLost, match="has not answered for"):
            client.status_of(b"a")


def test_words_of_a_server_are_short_and_printable():
    def serve(_kind: int, number: int) -> bytes:
        return answer(number, *status(4, b"\x1b[2Jfull\n" + b"x" * 5000))

    with served(serve) as client:
        client.begin(5)
        with pytest.raises(SftpRefused) as caught:
            client.status_of(b"a")

    assert caught.value.words.isprintable()
    assert len(caught.value.words) == 300


@given(st.lists(st.binary(max_size=40), max_size=12), st.integers(0, 12))
def test_no_answer_does_anything_but_end_a_call(bodies, at):
    """Whatever is in an answer of any kind, after some that are good."""
    count = 0
    left = list(bodies)

    def serve(kind: int, number: int) -> bytes:
        nonlocal count
        count += 1
        if count <= at:
            return good(kind, number)
        body = left.pop()
        return answer(number, 101 + body[0] % 6 if body else 201, body[1:])

    with served(serve) as client, suppress(SftpLost, SftpRefused, AssertionError):
        use(client)
