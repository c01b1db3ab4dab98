"""A server that answers every HTTP request with bytes that a test chose."""

from __future__ import annotations

import re
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import NamedTuple

Answer = bytes | None
"""What is sent back; the connection is closed after an empty answer and after one that is cut. None
keeps the connection open and says nothing."""

_LENGTH = re.compile(rb"^content-length: *(\d+)", re.IGNORECASE | re.MULTILINE)


class HttpRequest(NamedTuple):
    """What a client sent."""

    method: str
    target: str
    headers: dict[str, str]
    body: bytes


class AnsweringServer:
    """Listens on 127.0.0.1, and keeps what it was asked."""

    def __init__(self, answer: Callable[[HttpRequest], Answer]) -> None:
        self._answer = answer
        self._socket = socket.create_server(("127.0.0.1", 0))
        self._connections: list[socket.socket] = []
        self.port: int = self._socket.getsockname()[1]
        self.endpoint = f"http://127.0.0.1:{self.port}"
        self.requests: list[HttpRequest] = []
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def close(self) -> None:
        """Ends all connections, and returns when no thread serves them any more."""
        self._socket.shutdown(socket.SHUT_RDWR)
        self._threads[0].join()
        for connection in self._connections:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        for thread in self._threads[1:]:
            thread.join()
        self._socket.close()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            self._connections.append(connection)
            self._threads.append(threading.Thread(target=self._serve, args=(connection,)))
            self._threads[-1].start()

    def _serve(self, connection: socket.socket) -> None:
        with connection, connection.makefile("rb") as stream, suppress(OSError):
            while (request := _read(stream)) is not None:
                self.requests.append(request)
                answer = self._answer(request)
                if answer is None:
                    stream.read()  # until the client has enough
                    return
                connection.sendall(answer)
                if _is_cut(answer, request.method):
                    return


def _read(stream) -> HttpRequest | None:
    lines = []
    while (line := stream.readline()) not in {b"\r\n", b""}:
        lines.append(line)
    if not lines:
        return None
    method, target, _ = lines[0].decode().split(" ", 2)
    pairs = [line.decode().strip().partition(":") for line in lines[1:]]
    headers = {name.lower(): value.strip() for name, _, value in pairs}
    return HttpRequest(method, target, headers, stream.read(int(headers.get("content-length", 0))))


def _is_cut(answer: bytes, method: str) -> bool:
    head, end, body = answer.partition(b"\r\n\r\n")
    length = _LENGTH.search(head)
    return not end or length is None or (method != "HEAD" and len(body) < int(length[1]))


def http_answer(status: str, body: bytes = b"", **headers: str) -> bytes:
    """Returns an answer; underscores in the names of headers become hyphens."""
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, "", ""]).encode() + body


def s3_error(status: str, code: str, message: str = "", **fields: str) -> bytes:
    """Returns the answer of an S3 server that refuses."""
    named = {"Code": code, "Message": message, **fields, "RequestId": "4442587FB7D0A2F9"}
    inside = "".join(f"<{name}>{value}</{name}>" for name, value in named.items())
    body = f'<?xml version="1.0" encoding="UTF-8"?>\n<Error>{inside}</Error>'
    return http_answer(status, body.encode(), Content_Type="application/xml")


@contextmanager
def answering(*answers: Answer | Callable[[HttpRequest], Answer]) -> Iterator[AnsweringServer]:
    """Runs a server that gives the answers in turn, and the last one again and again."""
    left = list(answers)
    turn = threading.Lock()

    def next_answer(request: HttpRequest) -> Answer:
        with turn:
            answer = left.pop(0) if len(left) > 1 else left[0]
        return answer(request) if callable(answer) else answer

    server = AnsweringServer(next_answer)
    try:
        yield server
    finally:
        server.close()
