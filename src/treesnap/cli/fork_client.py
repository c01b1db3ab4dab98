"""The client of a fork server: a process that stands for the one that runs its command.

The server forks a child for each client, and the child runs the command. In order:

1. The client connects; the child greets it. The client compares the rights of both.
2. The client sends its words, its variables and its standard streams. The child compares the
   rights as well, becomes like the client, and says that it is ready.
3. The client tells it to go. From here on the command runs, and runs once.
4. The child says its exit code, then the server how the child ended. Each is a wait status.

Whatever goes wrong before the third step, the client does its command itself. Afterwards it passes
signals on, and ends as the child did. If it is killed, the server kills the child.

With each message the kernel says which process sent it. Each side opens the directory of the other
in ``/proc``, looks there, and takes a later message of the same process as the proof that it
looked at the right one: an ended process cannot send, and its number may belong to another.

Imports nothing that takes long: ``socket`` and ``signal`` take longer than this module does.
"""

from __future__ import annotations

import _signal as signal  # type: ignore[import-not-found]  # typeshed has only the slow one
import _socket as socket
import os
import sys

import treesnap
from treesnap.core.ending_signals import ENDING
from treesnap.core.own_program import python_words

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import NoReturn

    from treesnap.core.ops.context import Context

HELLO = b"H"
READY = b"R"
GO = b"G"
SIZE_BYTES = 4
"""Of the numbers in messages: the size of a request, and a wait status."""
STREAMS = 3
PATIENCE_S = 1.0
"""How long the other side may take before a command has begun; it may be suspended."""
END_PATIENCE_S = 1.0
"""How long the server may take to say how a child ended; it may be suspended then, too."""
IDLE_S = 600.0
"""How long a server waits for the next command before it ends."""
_PROGRAM = (
    "import sys; from treesnap.cli.fork_server import serve; serve(sys.argv[1], float(sys.argv[2]))"
)
_CREDENTIALS_SIZE = 12
_RIGHTS = (
    b"Uid:",
    b"Gid:",
    b"Groups:",
    b"Cap",
    b"NoNewPrivs:",
    b"Seccomp",
)
"""Lines of a process's status that decide what it may do; see proc_pid_status(5)."""
_NAMESPACES = ("cgroup", "ipc", "mnt", "net", "pid", "user", "uts")


def run_in_server(directory: str) -> None:
    """Has a server run the command of this process, and ends as the command does.

    Returns if no server runs it; then nothing was done. The directory is where the server listens.
    """
    connection = connected(directory)
    if connection is None:
        return
    try:
        child_fd = _prepared_child(connection)
    except OSError:
        connection.close()
        return
    old_mask = signal.pthread_sigmask(signal.SIG_BLOCK, [*ENDING, signal.SIGTSTP])
    try:
        connection.send(GO)
    except OSError:  # the child has ended, and has done nothing
        connection.close()
        os.close(child_fd)
        signal.pthread_sigmask(signal.SIG_SETMASK, old_mask)
        return
    _pass_signals_on(child_fd)
    signal.pthread_sigmask(signal.SIG_SETMASK, old_mask)
    _end_as_child(connection, child_fd)


def connected(directory: str, name: str = "socket") -> socket.socket | None:
    """Returns a connection to the server that listens in a directory, or None."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        # A store from elsewhere must not lead to another server.
        flags = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
        directory_fd = os.open(directory, flags)
        try:
            connection.settimeout(PATIENCE_S)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
            # Addresses of sockets have at most 107 bytes, and stores may lie deep.
            connection.connect(f"/proc/self/fd/{directory_fd}/{name}")
        finally:
            os.close(directory_fd)
    except OSError:
        connection.close()
        return None
    return connection


def read_facts(directory: str, name: str) -> bytes:
    """Returns the content of a file in the directory of a process; raises OSError."""
    fd = os.open(f"{directory}/{name}", os.O_RDONLY | os.O_CLOEXEC)
    try:
        return b"".join(iter(lambda: os.read(fd, 1 << 16), b""))
    finally:
        os.close(fd)


def rights_of(directory: str, status: bytes) -> tuple[object, ...]:
    """Returns what decides what a process may do and see, and which user it is.

    The directory is that of the process in ``/proc``, and the status what it says there.
    """
    lines = [line for line in status.splitlines() if line.startswith(_RIGHTS)]
    spaces = [os.readlink(f"{directory}/ns/{name}") for name in _NAMESPACES]
    top = os.stat(f"{directory}/root")
    label: bytes | int | None
    try:
        label = read_facts(directory, "attr/current")
    except OSError as error:  # no security module has labels
        label = error.errno
    return lines, spaces, top.st_dev, top.st_ino, label


def received(connection: socket.socket, size_bytes: int) -> tuple[bytes, int, bytes]:
    """Returns a message, the process that sent it, and the descriptors in it; raises OSError."""
    room = socket.CMSG_SPACE(_CREDENTIALS_SIZE) + socket.CMSG_SPACE(STREAMS * 4)
    message, ancillary, _, _ = connection.recvmsg(size_bytes, room, socket.MSG_CMSG_CLOEXEC)
    found = {kind: data for _, kind, data in ancillary}
    sender = int.from_bytes(found.get(socket.SCM_CREDENTIALS, b"")[:4], sys.byteorder)
    return message, sender, found.get(socket.SCM_RIGHTS, b"")


def identity() -> bytes:
    """Returns what must be equal in a server and its clients: program, interpreter, encodings."""
    variables = sorted(item for item in os.environ.items() if item[0].startswith(("PYTHON", "LD_")))
    encodings = (sys.getfilesystemencoding(), sys.stdout.encoding, sys.stdout.errors)
    program = (treesnap.__version__, __file__, sys.version, sys.prefix)
    return ascii((program, _options(), variables, encodings)).encode()


def _options() -> list[str]:
    """Returns the options of this interpreter, without those that say what it runs."""
    options = sys.orig_argv[1 : -len(sys.argv)]
    return [option for option in options if option not in {"-P", "-m", "-c"}]


def encode_request(sender: bytes) -> bytes:
    """Returns the words and variables of this process, with the identity of the sender."""
    words = [os.fsencode(word) for word in sys.argv]
    variables = [b"%b=%b" % item for item in os.environb.items()]
    body = b"\0".join([sender, b"%d" % len(words), *words, *variables])
    return len(body).to_bytes(SIZE_BYTES, "little") + body


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
        if sys.platform != "linux" or fs.lstat(layout.path).st_uid != os.geteuid():
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
    import subprocess

    words = python_words(*_options(), "-c", _PROGRAM, store_path, str(IDLE_S))
    subprocess.Popen(  # noqa: S603 - our own program, without a shell
        words,
        stdin=lock_fd,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd="/",
        start_new_session=True,
    )


def end_server(store_path: str) -> None:
    """Ends the server of a store, if there is one, once its commands have ended."""
    from treesnap.core.store.layout import Layout

    connection = connected(Layout(store_path).fork_server)
    if connection is None:
        return
    try:
        send(
            connection, encode_request(b""), range(STREAMS)
        )  # which is refused, as from another version
        while connection.recv(1):
            pass
    except OSError:
        pass
    finally:
        connection.close()


def send(connection: socket.socket, message: bytes, fds: Sequence[int]) -> None:
    """Sends a message with descriptors. ``socket.send_fds`` would have to import something."""
    data = b"".join(fd.to_bytes(4, sys.byteorder) for fd in fds)
    sent = connection.sendmsg([message], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, data)])
    if sent < len(message):
        connection.sendall(message[sent:])


def _prepared_child(connection: socket.socket) -> int:
    """Returns a descriptor of the child that is ready; raises OSError if there is none."""
    greeting, child, _ = received(connection, 1)
    directory_fd = os.open(f"/proc/{child}", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        own, other = "/proc/self", f"/proc/self/fd/{directory_fd}"
        own_rights = rights_of(own, read_facts(own, "status"))
        if greeting != HELLO or rights_of(other, read_facts(other, "status")) != own_rights:
            raise ConnectionError("refused")
        send(connection, encode_request(identity()), range(STREAMS))
        answer, sender, descriptor = received(connection, 1)
        os.lstat(f"{other}/status")  # there is no such process if it has ended
    finally:
        os.close(directory_fd)
    if answer != READY or sender != child or not descriptor:
        raise ConnectionError("refused")
    return int.from_bytes(descriptor, sys.byteorder)


def _pass_signals_on(child_fd: int) -> None:
    """Makes signals that would end or suspend this process do that to the child."""

    def tell(number: int) -> None:
        try:
            signal.pidfd_send_signal(child_fd, number)
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


def _end_as_child(connection: socket.socket, child_fd: int) -> NoReturn:
    """Waits for the child and ends as it did, with its exit code or by its signal."""
    statuses = _received_statuses(connection, child_fd)
    if len(statuses) < SIZE_BYTES:
        _report_lost_child()
        _die(signal.SIGKILL)
    code = os.waitstatus_to_exitcode(int.from_bytes(statuses[-SIZE_BYTES:], "little"))
    if code < 0:
        _die(-code)
    os._exit(code)


def _received_statuses(connection: socket.socket, child_fd: int) -> bytes:
    """Returns what child and server say at the end, as far as they do."""
    statuses = b""
    connection.settimeout(END_PATIENCE_S)
    has_ended = False
    try:
        while len(statuses) < 2 * SIZE_BYTES:
            try:
                piece = connection.recv(2 * SIZE_BYTES)
            except TimeoutError:
                if has_ended:  # and the server, which would have said so since, is suspended
                    break
                has_ended = _is_ready(child_fd)
                continue
            if not piece:
                break
            statuses += piece
    except OSError:  # the same as its end
        pass
    return statuses


def _is_ready(fd: int) -> bool:
    import select

    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(0))


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
