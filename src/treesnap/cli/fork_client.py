"""The client of a fork server: a process that stands for the one that runs its command.

The server forks a child for each client, and the child runs the command. In order:

1. The client connects; the child says hello. The client compares the rights of both.
2. The client sends its words, its variables and its standard streams. The child compares the
   rights as well, becomes like the client, and says that it is ready.
3. The client tells it to go. From here on the command runs, and runs once.
4. The child says its exit code, then the server how the child ended. Each is a wait status.

Whatever goes wrong before the third step, the client does its command itself. Afterwards it passes
signals on, and ends as the child did. If it is killed, the server kills the child.

Imports nothing that takes long: ``socket`` and ``signal`` take longer than this module does.
"""

from __future__ import annotations

import _signal as signal  # type: ignore[import-not-found]  # typeshed has only the slow one
import os
import select
import sys

import treesnap
from treesnap.core.ending_signals import ENDING
from treesnap.core.fs import HAS_COMPANIONS
from treesnap.core.fs.peers import (
    connected,
    encode_call,
    opened_peer,
    received,
    require_running,
    send,
    tell_process,
)
from treesnap.core.own_program import python_words, start_in_background

TYPE_CHECKING = False
if TYPE_CHECKING:
    from _socket import socket
    from typing import NoReturn

    from treesnap.core.ops.context import Context

READY = b"R"
GO = b"G"
STATUS_BYTES = 4
STREAMS = 3
END_PATIENCE_S = 1.0
"""How long the server may take to say how a child ended; it may be suspended then, too."""
IDLE_S = 600.0
"""How long a server waits for the next command before it ends."""
_READ_AT_START = ("PYTHON", "LD_", "TREESNAP_PURE")
"""How variables begin that count when modules are imported, which a server has done."""
_PROGRAM = (
    "import sys; from treesnap.cli.fork_server import serve; serve(sys.argv[1], float(sys.argv[2]))"
)


def run_in_server(directory: str) -> None:
    """Has a server run the command of this process, and ends as the command does.

    Returns if no server runs it; then nothing was done. The directory is where the server listens.
    """
    try:
        connection, child = connected(directory)
    except OSError:
        return
    try:
        child_fd = _prepared_child(connection, child)
    except OSError:
        connection.close()
        return
    old_mask = signal.pthread_sigmask(signal.SIG_BLOCK, [*ENDING, signal.SIGTSTP])
    try:
        send(connection, GO)
    except OSError:  # the child has ended, and has done nothing
        connection.close()
        os.close(child_fd)
        signal.pthread_sigmask(signal.SIG_SETMASK, old_mask)
        return
    _pass_signals_on(child_fd)
    signal.pthread_sigmask(signal.SIG_SETMASK, old_mask)
    _end_as_child(connection, child_fd)


def identity() -> bytes:
    """Returns what must be equal in a server and its clients: program, interpreter, encodings."""
    variables = sorted(item for item in os.environ.items() if item[0].startswith(_READ_AT_START))
    encodings = (sys.getfilesystemencoding(), sys.stdout.encoding, sys.stdout.errors)
    program = (treesnap.__version__, __file__, sys.version, sys.prefix)
    return ascii((program, _options(), variables, encodings)).encode()


def _options() -> list[str]:
    """Returns the options of this interpreter, without those that say what it runs."""
    options = sys.orig_argv[1 : -len(sys.argv)]
    return [option for option in options if option not in {"-P", "-m", "-c"}]


def start_server_if_wanted(context: Context) -> None:
    """Starts the store's server in the background, unless it runs or the settings say no.

    The new process has the server's lock from its start. Only the owner of a store starts one:
    the superuser does its commands in stores of others itself. Does nothing where none can be
    started, or could listen: a directory is in the place of its socket.
    """
    from treesnap.core.fs.durable import ensure_directories, open_lock
    from treesnap.core.model.errors import TreesnapError
    from treesnap.core.ops.access import opened
    from treesnap.core.ops.maintenance.config import settings_of
    from treesnap.core.store.layout import Layout

    fs, layout = context.fs, Layout(context.store_path)
    try:
        with opened(context, "read the settings", recover=False) as session:
            if not settings_of(session).has_fork_server:
                return
        if not HAS_COMPANIONS or fs.lstat(layout.path).st_uid != os.geteuid():
            return
        ensure_directories(fs, layout.fork_server)
        fd = open_lock(fs, layout.fork_server_lock)
        try:
            if fs.lock(fd, exclusive=True) and not os.path.isdir(f"{layout.fork_server}/socket"):
                _start_server(layout.path, fd)
        finally:
            fs.close(fd)  # not unlocked: the server has the same lock
    except (TreesnapError, OSError):
        return


def _start_server(store_path: str, lock_fd: int) -> None:
    words = python_words(*_options(), "-c", _PROGRAM, store_path, str(IDLE_S))
    start_in_background(words, stdin=lock_fd)


def end_server(store_path: str) -> None:
    """Ends the server of a store, if there is one, once its commands have ended."""
    from treesnap.core.store.layout import Layout

    try:
        connection, _ = connected(Layout(store_path).fork_server)
    except OSError:
        return
    try:
        send(connection, encode_call(b"", (), {}))  # which ends it, as one of another version does
        connection.recv(1)
    except OSError:
        pass
    finally:
        connection.close()


def _prepared_child(connection: socket, child: int) -> int:
    """Returns a descriptor of the child that is ready; raises OSError if there is none."""
    peer_fd = opened_peer(child)
    try:
        send(connection, encode_call(identity(), sys.argv, os.environ), range(STREAMS))
        answer, sender, fds = received(connection, len(READY), fds_max=1)
        require_running(peer_fd)
    finally:
        os.close(peer_fd)
    if answer != READY or sender != child or not fds:
        raise ConnectionError("refused")
    return fds[0]


def _pass_signals_on(child_fd: int) -> None:
    """Makes signals that would end or suspend this process do that to the child."""

    def tell(number: int) -> None:
        try:
            tell_process(child_fd, number)
        except ProcessLookupError:  # it has ended, and this process is about to
            return

    def suspend(number: int, _: object) -> None:
        tell(signal.SIGSTOP)  # no terminal is there for the child, so SIGTSTP would not stop it
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)  # goes on when this process is continued
        signal.signal(number, suspend)
        tell(signal.SIGCONT)

    handlers = {**dict.fromkeys(ENDING, lambda number, _: tell(number)), signal.SIGTSTP: suspend}
    for number, handler in handlers.items():
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, handler)


def _end_as_child(connection: socket, child_fd: int) -> NoReturn:
    """Waits for the child and ends as it did, with its exit code or by its signal."""
    statuses = _received_statuses(connection, child_fd)
    if not statuses:
        _report_lost_child()
        _die(signal.SIGKILL)
    code = os.waitstatus_to_exitcode(int.from_bytes(statuses[-1], "little"))
    if code < 0:
        _die(-code)
    os._exit(code)


def _received_statuses(connection: socket, child_fd: int) -> list[bytes]:
    """Returns what child and server say at the end, as far as they do. Waits for that."""
    ending = select.poll()
    ending.register(connection.fileno(), 0)  # which reports that both are gone
    ending.register(child_fd, select.POLLIN)
    ending.poll()
    connection.settimeout(END_PATIENCE_S)
    statuses: list[bytes] = []
    try:
        while len(statuses) < 2:
            statuses.append(received(connection, STATUS_BYTES)[0])
    except OSError:  # one is gone, or the server is suspended
        pass
    return statuses


def _die(number: int) -> NoReturn:
    if number != signal.SIGKILL:
        import resource

        _, most = resource.getrlimit(resource.RLIMIT_CORE)
        resource.setrlimit(resource.RLIMIT_CORE, (0, most))  # the child has left its own
        signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [number])
    os.kill(os.getpid(), number)
    os._exit(128 + number)


def _report_lost_child() -> None:
    """Prints that the child and the server were both killed, so that no process knows more."""
    from treesnap.cli.failure import ExitCode, Failure
    from treesnap.cli.output.streams import Output, program_name

    program = program_name()
    output = Output(program)
    output.as_json = "--json" in sys.argv
    output.error(
        Failure(
            "operation-failed",
            "The command was killed together with the fork server that ran it",
            ExitCode.FAILED,
            f"'{program} list' shows whether it made a snapshot, '{program} doctor' what it left",
        )
    )
