"""Messages between commands and companions, and the sockets at which these listen."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest

from treesnap.core.fs import peers
from treesnap.core.fs.listener import Listener
from treesnap.core.fs.local import LocalFileSystem
from treesnap.core.fs.peers import (
    HELLO,
    connected,
    decode_call,
    encode_call,
    opened_peer,
    received,
    send,
)

pytestmark = pytest.mark.needs("companions")


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    one, other = socket.socketpair()
    with one, other:
        one.settimeout(30)
        other.settimeout(30)
        for end in (one, other):
            end.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        yield one, other


@contextmanager
def saying(directory: Path, hello: bytes) -> Iterator[None]:
    """A process that says something to its first client."""
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(directory / "socket"))
        listening.listen()

        def serve() -> None:
            connection, _ = listening.accept()
            with connection:
                connection.send(hello)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield
        finally:
            thread.join()


def test_a_message_says_which_process_sent_it_and_brings_descriptors(pair):
    one, other = pair
    with open(os.devnull) as file:
        send(one, b"message", [file.fileno()])

    message, sender, fds = received(other, 100, fds_max=1)

    assert (message, sender, len(fds)) == (b"message", os.getpid(), 1)
    assert os.readlink(f"/proc/self/fd/{fds[0]}") == os.devnull
    os.close(fds[0])


def test_descriptors_that_are_not_expected_are_not_kept(pair):
    one, other = pair
    before = os.listdir("/proc/self/fd")
    send(one, b"message", [0, 0, 0])

    assert received(other, 100) == (b"message", os.getpid(), [])
    assert os.listdir("/proc/self/fd") == before


def test_a_message_that_is_too_long_is_not_read(pair):
    one, other = pair
    send(one, b"message")

    with pytest.raises(OSError, match="too long"):
        received(other, 6)


def test_a_message_in_small_pieces_takes_no_longer_than_one_piece_may(pair, monkeypatch):
    one, other = pair
    times_s = iter([0.0, 29.0, 31.0])
    monkeypatch.setattr(peers, "time", SimpleNamespace(monotonic=lambda: next(times_s)))
    monkeypatch.setattr(peers, "_PIECE_SIZE", 1)
    one.sendall((9).to_bytes(4, "little") + b"ab")
    one.close()

    with pytest.raises(TimeoutError, match="takes too long"):
        received(other, 9)


def test_a_command_line_comes_back_with_its_variables_and_its_input():
    words = ["snap", "", "\udcff"]
    variables = {"A": "1=2", "B": ""}

    request = encode_call(b"me", words, variables, b"in\0put")

    assert decode_call(request) == (b"me", words, variables, b"in\0put")


@pytest.mark.parametrize("request_", [b"", b"me\0001", b"me\0one\0002\0"])
def test_what_is_not_a_command_line_is_refused(request_):
    with pytest.raises(ValueError, match=r"."):
        decode_call(request_)


@pytest.mark.needs("companions")
def test_a_companion_with_another_hello_counts_as_none(tmp_path):
    with saying(tmp_path, HELLO):
        connection, sender = connected(str(tmp_path), patience_s=30)
        connection.close()
    assert sender == os.getpid()
    (tmp_path / "socket").unlink()

    with saying(tmp_path, b"X"), pytest.raises(OSError, match="does not say hello"):
        connected(str(tmp_path), patience_s=30)


def test_a_system_that_does_not_say_who_sends_has_no_companions(tmp_path, monkeypatch):
    monkeypatch.setattr(peers, "HAS_COMPANIONS", False)

    with pytest.raises(OSError, match="does not say here who it is"):
        connected(str(tmp_path))
    with pytest.raises(OSError, match="does not say here who it is"):
        Listener(LocalFileSystem(), str(tmp_path))


@pytest.mark.needs("companions")
def test_a_process_that_has_ended_is_no_peer():
    process = os.fork()
    if process == 0:
        os._exit(0)
    os.waitpid(process, 0)

    os.close(opened_peer(os.getpid()))
    with pytest.raises(FileNotFoundError):
        opened_peer(process)


@pytest.mark.needs("companions")
def test_a_socket_lies_there_until_it_is_closed(tmp_path):
    for _ in range(2):  # a killed companion leaves the first one
        listener = Listener(LocalFileSystem(), str(tmp_path))
        listener.socket.close()
    listener = Listener(LocalFileSystem(), str(tmp_path))
    found = (tmp_path / "socket").lstat()

    assert (listener.is_in_place(), oct(found.st_mode & 0o777)) == (True, "0o600")
    listener.close()
    listener.close()
    assert os.listdir(tmp_path) == []


@pytest.mark.needs("companions")
def test_a_socket_that_was_replaced_is_left(tmp_path):
    listener = Listener(LocalFileSystem(), str(tmp_path))
    (tmp_path / "socket").unlink()
    (tmp_path / "socket").touch()

    assert not listener.is_in_place()
    listener.close()
    assert os.listdir(tmp_path) == ["socket"]
