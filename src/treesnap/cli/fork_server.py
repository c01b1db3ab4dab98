"""The fork server: a process that has imported the commands, and forks to run each of them.

A child becomes like its client (streams, directory, variables, limits, signals) and then is the
command: it runs ``cli.main``. So output, exit codes and errors are those of the same code. The
protocol is in ``cli.fork_client``.

The server imports, forks and waits, and does nothing else. It has no threads, holds no lock but
its own and opens no file of the store, so a child inherits nothing that it must not have. A store
has at most one, which the lock ensures; it is its standard input from its start to its end,
however it ends. It ends after a time without a command, and when its socket is gone or replaced. A
child removes the socket when the program or the modules it needs have changed on disk, or when its
client is of another version.
"""

from __future__ import annotations

import io
import os
import select
import signal
import sys
import time
from contextlib import suppress
from importlib import import_module
from pkgutil import walk_packages
from socket import SHUT_RDWR, socket

import treesnap
from treesnap.cli.commands import COMMANDS
from treesnap.cli.fork_client import GO, READY, STATUS_BYTES, STREAMS, identity
from treesnap.cli.group import snap
from treesnap.cli.main import execute, prepare_process
from treesnap.cli.output import streams
from treesnap.cli.start import INTERRUPTED, SERVED
from treesnap.core import own_program
from treesnap.core.codec.compress import zstd_module
from treesnap.core.fs import peers
from treesnap.core.fs.client_process import TooLimited, take_limits, take_place
from treesnap.core.fs.listener import Listener
from treesnap.core.fs.local import LocalFileSystem
from treesnap.core.fs.peers import received, send
from treesnap.core.model.named_tuple import NamedTuple, make_constructors
from treesnap.core.model.type_names import NoReturn
from treesnap.core.store.layout import Layout

CHILDREN_MAX = 16
"""Commands that it runs at once; further clients do theirs themselves."""

_PACKAGES = ("cli", "core.codec", "core.fs", "core.ops", "core.store", "core.worktree")
_LIBRARIES = (
    "ctypes",
    "difflib",
    "json",
    "platformdirs",
    "pyfastcdc",
    "rich.progress",
    "shlex",
    "subprocess",
    "threading",
    "tomllib",
    "treesnap.agents.commands.hook",
    "treesnap.agents.hook",
    "treesnap.core.handle",
)
"""What the commands import when they need it."""
_REFUSED = 1


class _ClientMustRun(Exception):
    """This client has to do its command itself."""


class _ServerMustEnd(_ClientMustRun):
    """The server's program or limits are not its clients': it ends, and a new one starts."""


class ServedCommand(NamedTuple):
    """A child of the server that runs a command, as the server knows it."""

    process_id: int
    process_fd: int
    connection: socket


def serve(store_path: str, idle_s: float) -> None:
    """Runs commands as a process of its own. Standard input is the lock, which it keeps."""
    program = Program()
    preload()
    if not program.has_changed():  # else an upgrade is under way
        prepare_process()
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # ignored, it would keep no wait statuses
        listener = Listener(LocalFileSystem(), Layout(store_path).fork_server)
        ForkServer(listener, program).run(idle_s)


def preload() -> None:
    """Imports and makes what the commands import and make first, so that children share it."""
    unserved = unserved_modules()
    for package in _PACKAGES:
        imported = import_module(f"treesnap.{package}")
        for module in walk_packages(imported.__path__, f"treesnap.{package}."):
            if module.name not in unserved:
                import_module(module.name)
    for name in _LIBRARIES:
        import_module(name)
    zstd_module()
    make_constructors()  # of the records, which takes 1 ms of a command; so do the parsers
    with snap.make_context("snap", ["list"], resilient_parsing=True) as context:
        for name in SERVED:
            command = snap.get_command(context, name)
            assert command is not None
            command.make_context(name, [], parent=context, resilient_parsing=True).close()


def unserved_modules() -> set[str]:
    """Returns the modules of commands that a server runs none of."""
    commands = [entry for listed in COMMANDS.values() for entry in listed.items()]
    served = {module for name, (module, _) in commands if name in SERVED}
    return {module for _, (module, _) in commands} - served


class Program:
    """The files of this program, and whether they are as they were."""

    def __init__(self) -> None:
        package = os.path.dirname(treesnap.__file__)
        self._paths = list(filter(os.path.exists, sys.path))
        """Each name that is installed or removed there changes the time of a directory."""
        for directory, _, names in os.walk(package):
            self._paths += [f"{directory}/{name}" for name in names if name.endswith(".py")]
        self._before = self._looked_up()

    def _looked_up(self) -> list[tuple[int, int]]:
        return [(status.st_ino, status.st_mtime_ns) for status in map(os.stat, self._paths)]

    def has_changed(self) -> bool:
        """Returns whether a part was replaced or removed."""
        try:
            return self._looked_up() != self._before
        except OSError:
            return True


class ForkServer:
    """Forks for each client of a listener."""

    def __init__(self, listener: Listener, program: Program) -> None:
        self._listener = listener
        self._program = program
        self._is_ending = False
        self._children: dict[int, ServedCommand] = {}
        """By the descriptors of the processes and of the connections."""
        listener.socket.settimeout(0)
        self._poll = select.poll()

    def run(self, idle_s: float) -> None:
        """Runs the commands of clients, until it has to end and the last one has ended."""
        listening_fd = self._listener.socket.fileno()
        self._poll.register(listening_fd, select.POLLIN)
        while self._children or not self._is_ending:
            events = self._poll.poll(None if self._children else idle_s * 1000)
            if not events or not self._listener.is_in_place():
                self._end()
            # In the order in which they were registered, so a client is accepted before any
            # descriptor is closed, and no event is of a number that is in use again.
            for fd, _ in events:
                if fd != listening_fd:
                    self._attend(fd)
                elif not self._is_ending:
                    self._accept()

    def _end(self) -> None:
        """Takes no more commands; those that run go on."""
        if not self._is_ending:
            self._is_ending = True
            self._poll.unregister(self._listener.socket)
            self._listener.close()

    def _accept(self) -> None:
        try:
            connection, _ = self._listener.socket.accept()
        except BlockingIOError:  # the client has left
            return
        except OSError:  # for example, because too many files are open
            self._end()
            return
        try:
            if len(self._children) >= 2 * CHILDREN_MAX:  # each child is there twice
                raise BlockingIOError("too many at once")
            process_id = os.fork()
        except OSError:
            connection.close()
            return
        if process_id == 0:
            self._become_command(connection)
        process_fd = peers.opened_process(process_id)
        child = ServedCommand(process_id, process_fd, connection)
        self._children[process_fd] = self._children[connection.fileno()] = child
        self._poll.register(process_fd, select.POLLIN)
        self._poll.register(connection, 0)  # which reports a client that is gone

    def _attend(self, fd: int) -> None:
        """Tells a client how its child ended, or ends the child of a client that is gone."""
        child = self._children.get(fd)
        if child is None:  # forgotten just now
            return
        if fd != child.process_fd:
            self._poll.unregister(fd)
            os.kill(child.process_id, signal.SIGKILL)  # which is not waited for, so it is ours
            return
        _, status = os.waitpid(child.process_id, 0)
        with suppress(OSError):
            send(child.connection, status.to_bytes(STATUS_BYTES, "little"))
        self._poll.unregister(fd)
        with suppress(KeyError):
            self._poll.unregister(child.connection)
        del self._children[child.process_fd], self._children[child.connection.fileno()]
        child.connection.close()
        os.close(child.process_fd)

    def _become_command(self, connection: socket) -> NoReturn:
        """Runs in a child; becomes like the client and runs its command, or ends."""
        try:
            connection.settimeout(peers.PATIENCE_S)
            self._close_inherited()
            try:
                self._prepare(connection)
            except _ServerMustEnd:
                self._listener.remove()
                raise
        except (_ClientMustRun, OSError, ValueError, LookupError):
            with suppress(OSError):
                connection.shutdown(SHUT_RDWR)
            os._exit(_REFUSED)
        except KeyboardInterrupt:
            os._exit(INTERRUPTED)
        try:
            code = execute(sys.argv[1:], streams.program_name())
            with suppress(OSError):  # in case that the server is killed before it can say so
                send(connection, (code << 8).to_bytes(STATUS_BYTES, "little"))
            streams.end_process(code)
        except KeyboardInterrupt:
            os._exit(INTERRUPTED)

    def _close_inherited(self) -> None:
        """Closes what is the server's, so that other clients notice when they are left."""
        self._listener.socket.close()
        for child in self._children.values():
            child.connection.close()
            with suppress(OSError):  # each child is there twice
                os.close(child.process_fd)

    def _prepare(self, connection: socket) -> None:
        """Makes this process like the client. When it returns, the command may begin."""
        peers.greet(connection)
        request, client, fds = received(connection, peers.CALL_SIZE_MAX, STREAMS)
        client_fd = peers.opened_peer(client)
        sender, words, variables, _ = peers.decode_call(request)
        if sender != identity() or self._program.has_changed():
            raise _ServerMustEnd
        if len(fds) != STREAMS:
            raise _ClientMustRun
        _take_limits(client)
        _replace_environment(variables)
        take_place(client_fd)
        _take_streams(fds)
        sys.argv[:] = words
        own_fd = peers.opened_process(os.getpid())
        send(connection, READY, [own_fd])
        os.close(own_fd)
        connection.settimeout(None)  # a client that is late must find this child, or none
        answer, sender_again, _ = received(connection, len(GO))
        if answer != GO or sender_again != client:
            raise _ClientMustRun
        peers.require_running(client_fd)
        os.close(client_fd)
        own_program.stand_for(client)


def _replace_environment(variables: dict[str, str]) -> None:
    for name in os.environ.keys() - variables.keys():
        del os.environ[name]
    for name, value in variables.items():
        if os.environ.get(name) != value:
            os.environ[name] = value
    time.tzset()


def _take_limits(client: int) -> None:
    """Takes the limits of the client, its priority and its cores.

    Raises _ServerMustEnd where that would raise those that the server was started with, which are
    no use for such clients, and _ClientMustRun for a limit that the command alone might keep.
    """
    try:
        take_limits(client)
    except TooLimited as error:
        raise _ClientMustRun from error
    except (OSError, ValueError) as error:
        raise _ServerMustEnd from error


def _take_streams(fds: list[int]) -> None:
    """Makes the streams of the client those of this process, as Python makes them at its start."""
    for number, (name, fd) in enumerate(zip(("stdin", "stdout", "stderr"), fds, strict=True)):
        old = getattr(sys, name)
        os.dup2(fd, number)
        os.close(fd)
        mode = "wb" if number else "rb"
        is_unbuffered = number and old.write_through
        raw = os.fdopen(number, mode, 0 if is_unbuffered else -1, closefd=False)
        stream = io.TextIOWrapper(
            raw,
            old.encoding,
            old.errors,
            newline="\n",
            line_buffering=name == "stderr" or os.isatty(number),
            write_through=old.write_through,
        )
        setattr(sys, name, stream)
