"""A command ``snap`` for shells, which costs a fraction of a new interpreter.

This file is the server: it has loaded everything, and forks for each command. What a
shell starts sends the server its words, variables, directory and streams.
"""

from __future__ import annotations

import importlib
import os
import pkgutil
import select
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

CLIENT = """\
#!{python} -IS
import os, socket, sys
server = socket.socket(socket.AF_UNIX)
server.connect({address!r})
socket.send_fds(server, [b"s"], [0, 1, 2, os.open(".", os.O_PATH)])
variables = [name + b"=" + value for name, value in os.environb.items()]
words = [os.fsencode(word) for word in sys.argv[1:]]
server.sendall(b"\\0".join([b"%d" % len(words), *words, *variables]))
server.shutdown(socket.SHUT_WR)
sys.exit(server.recv(1)[0])
"""


@contextmanager
def warm_snap(directory: Path, variables: Mapping[str, str]) -> Iterator[Path]:
    """Starts a server; returns the directory with the command, for PATH, while it runs."""
    address = directory / "socket"
    command = directory / "bin" / "snap"
    command.parent.mkdir()
    command.write_text(CLIENT.format(python=sys.executable, address=str(address)))
    command.chmod(0o755)
    with subprocess.Popen(
        [sys.executable, __file__, str(address)],
        env=dict(variables),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as server:
        assert server.stdin
        assert server.stdout
        assert server.stdout.readline() == b"ready\n"
        yield command.parent
        server.stdin.close()  # which ends it, as the end of this process does


def serve(address: str) -> None:
    """Runs commands until standard input ends."""
    import treesnap

    for module in pkgutil.walk_packages(treesnap.__path__, "treesnap."):
        if not module.name.startswith("treesnap.testing") and "__main__" not in module.name:
            importlib.import_module(module.name)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(address)
        listener.listen(64)
        os.write(1, b"ready\n")
        running: list[int] = []
        while listener in select.select([listener, 0], [], [])[0]:
            connection, _ = listener.accept()
            handler = os.fork()
            if handler == 0:
                handle(connection)
            connection.close()
            running = [child for child in [*running, handler] if is_running(child)]


def is_running(child: int) -> bool:
    """Returns whether a child runs, and forgets one that has ended."""
    return os.waitpid(child, os.WNOHANG)[0] == 0


def handle(connection: socket.socket) -> NoReturn:
    """Runs one command in a child and tells its exit code."""
    from calling import become

    _, fds, _, _ = socket.recv_fds(connection, 1, 4)
    for fd in fds:
        os.set_inheritable(fd, False)
    with connection.makefile("rb") as sent:
        count, *texts = map(os.fsdecode, sent.read().split(b"\0"))
    words, variables = texts[: int(count)], texts[int(count) :]
    child = os.fork()
    if child == 0:
        pairs = (variable.partition("=") for variable in variables)
        named = {name: value for name, _, value in pairs}
        become(words, fds[:3], fds[3], named, line_buffering=True)  # as on a terminal
    for fd in fds:
        os.close(fd)  # else the reader of a pipe waits for this process
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    connection.sendall(bytes([code if code >= 0 else 128 - code]))
    os._exit(0)


if __name__ == "__main__":
    serve(sys.argv[1])
