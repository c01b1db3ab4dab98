"""A command ``snap`` for shells, which costs a fraction of a new interpreter.

This file is the server: it has loaded everything, and forks for each command. What a
shell starts sends the server its words, variables, directory and streams.
"""

from __future__ import annotations

import gc
import importlib
import os
import pkgutil
import select
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

CLIENT = """\
#!{python} -IS
import _socket, os, sys
server = _socket.socket(_socket.AF_UNIX)
server.connect({address!r})
streams = [0, 1, 2, os.open(".", os.O_PATH)]
packed = b"".join(fd.to_bytes(4, sys.byteorder) for fd in streams)
server.sendmsg([b"s"], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, packed)])
variables = [name + b"=" + value for name, value in os.environb.items()]
words = [os.fsencode(word) for word in sys.argv[1:]]
server.sendall(b"\\0".join([b"%d" % len(words), *words, *variables]))
server.shutdown(_socket.SHUT_WR)
os._exit(server.recv(1)[0])
"""
"""Imports ``_socket``, because ``socket`` takes as long as all the rest of it."""

NO_COMMANDS = (
    "treesnap.__main__",
    "treesnap.agents.frameworks.",
    "treesnap.sandboxes.",
    "treesnap.mount.adapter",  # imports libfuse
    "treesnap.testing",
)


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
    load_everything()
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


def load_everything() -> None:
    """Imports what commands may need, and makes what is made once when it is first used."""
    import treesnap

    for module in pkgutil.walk_packages(treesnap.__path__, "treesnap."):
        if not module.name.startswith(NO_COMMANDS):
            importlib.import_module(module.name)
    importlib.import_module("calling")
    importlib.import_module("younger_processes").hide_older_processes()
    with tempfile.TemporaryDirectory() as directory:
        root, store = Path(directory, "root"), Path(directory, "store")
        root.mkdir()
        handle = treesnap.open(root, store=store)
        handle.create()
        (root / "a").touch()
        handle.status()
        handle.restore("latest")
        handle.undo()
    gc.freeze()  # a collection in a child would copy all of it
    importlib.import_module("large_pages").use_large_pages()


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
