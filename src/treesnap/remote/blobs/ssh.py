"""Blobs as files of a directory on another machine, by the user's own ``ssh`` and SFTP.

    ssh://[USER@]HOST[:PORT]/PATH          an absolute path
    ssh://[USER@]HOST[:PORT]/~/PATH        a path from the home directory there

The files are those of :mod:`treesnap.remote.blobs.directory`, so the directory can be used there
as well. Which keys, agents, jump hosts and known hosts count, ``ssh`` knows from its own settings.
It is the program in ``TREESNAP_SSH``, or ``ssh``; nothing that a store or a server says is run.
Without a terminal it asks nothing.

A blob is written under a temporary name beside its place and synced. ``create`` then adds a hard
link, which fails where the name is taken, and ``put`` renames it over what is there; both are
extensions of OpenSSH (``hardlink@openssh.com``, ``posix-rename@openssh.com``, and
``fsync@openssh.com`` for the sync). A server without hard links renames, which may let two writers
win that meet: :meth:`SshBlobs.traits` finds out which one it is. Without the other extension what
is there is removed first, unless it is the same.

One connection serves all threads. It is opened by the first request, and again after it broke. What
a broken connection left unfinished is removed by the next one, and what a killed writer left by
:meth:`SshBlobs.sweep_unfinished` after a day, by the clock of the server: a sweep cannot know
whether a writer is alive. One that is finds its file gone when it publishes, and writes it again.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from threading import Lock, Thread
from typing import TypeAlias, TypeVar
from urllib.parse import unquote_to_bytes, urlsplit

from treesnap.core.model.errors import ErrorCode, InvalidArgument, RemoteFailed, printable, quoted
from treesnap.core.model.named_tuple import NamedTuple
from treesnap.remote.blobs.base import (
    BLOB_SIZE_MAX,
    KIND,
    MARKERS,
    BlobInfo,
    BlobMissing,
    Data,
    Facts,
    Range,
    check_listing,
    check_name,
    check_names,
    check_ranges,
    cut_ranges,
    is_name,
    is_unfinished,
    merged_ranges,
    split_name,
    too_large,
    unfinished_name,
)
from treesnap.remote.blobs.retries import Repeater, Retries
from treesnap.remote.blobs.sftp import (
    ANSWER_S,
    CONNECTION_LOST,
    END,
    FAILURE,
    HARD_LINK,
    NO_CONNECTION,
    NO_SUCH_FILE,
    PERMISSION_DENIED,
    REPLACE,
    SYNC,
    Attributes,
    SftpClient,
    SftpLost,
    SftpRefused,
)

_Result = TypeVar("_Result")

PROGRAM_VARIABLE = "TREESNAP_SSH"
UNFINISHED_S = 86_400
"""How old a temporary file is that a sweep removes."""
_ATTEMPTS = 3
"""Attempts to write a blob when others remove its temporary file."""
_SAID_BYTES_MAX, _LINES_MAX, _WORDS_MAX = 4096, 4, 600
_ROOM_BYTES = 1 << 16
"""Where less is free, a write that failed has no room."""
_END_S = 2.0
"""How long a program that has nothing more to do may take to end."""
_QUIET_S = 1.5
"""When a person is shown what the program says before it is connected, such as to touch a key."""
_OPTIONS = (
    "-T",
    "-x",
    "-oClearAllForwardings=yes",
    "-oConnectTimeout=15",
    "-oPermitLocalCommand=no",
    "-oRemoteCommand=none",
)
_BATCH = ("-oBatchMode=yes",)


# ------------------------------------------------------------------------- addresses


class SshUrl(NamedTuple):
    """The address of a remote on another machine."""

    host: str
    path: bytes
    """Absolute, or from the home directory of the user there."""
    user: str | None = None
    port: int | None = None

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        place = f"{self.user}@{host}" if self.user is not None else host
        port = f":{self.port}" if self.port is not None else ""
        slash = "" if self.path.startswith(b"/") else "/~/"
        return f"ssh://{place}{port}{slash}{printable(self.path)}"


_USER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]{0,63}")
_HOST = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,254}|[0-9a-fA-F:]{2,45}(?:%[A-Za-z0-9]{1,16})?")


def parse_ssh_url(url: str) -> SshUrl:
    """Returns what a URL says; raises InvalidArgument, without what may be a password.

    No part of it can be taken for an option of a program, or for more than one word of a shell.
    """
    scheme, _, rest = url.partition("://")
    shown = f"{scheme}://{rest.rpartition('@')[2]}"
    try:
        parts = urlsplit(url)
        user, password, port = parts.username, parts.password, parts.port
    except ValueError:
        raise InvalidArgument(f"{shown!r} is not a URL") from None
    host = parts.hostname or ""
    host = parts.netloc.rpartition("@")[2].partition(":")[0] if ":" not in host else host
    if password is not None:
        raise InvalidArgument(f"The URL of {shown!r} has a password, which does not belong there")
    if not _HOST.fullmatch(host):
        raise InvalidArgument(f"{host!r} in {shown!r} is not the name of a machine")
    if user is not None and not _USER.fullmatch(user):
        raise InvalidArgument(f"{user!r} before {shown!r} is not the name of a user")
    path = unquote_to_bytes(parts.path).rstrip(b"/")
    path = path[3:] if path.startswith(b"/~/") else path
    if parts.query or parts.fragment or not path or b"\0" in path or path == b"/~":
        raise InvalidArgument(f"{shown!r} does not have the form ssh://HOST/PATH")
    return SshUrl(host, path, user, port)


# --------------------------------------------------------------------------- errors


class _Cause(NamedTuple):
    """What the last words of ``ssh`` mean."""

    pattern: re.Pattern[str]
    code: ErrorCode
    may_pass: bool = False


_CAUSES = (
    _Cause(
        re.compile(r"Host key verification failed|HOST IDENTIFICATION HAS CHANGED"),
        ErrorCode.REMOTE_HOST_UNKNOWN,
    ),
    _Cause(
        re.compile(
            r"Permission denied \(|Too many authentication failures"
            r"|No supported authentication methods"
        ),
        ErrorCode.REMOTE_CREDENTIALS,
    ),
    _Cause(re.compile("subsystem request failed"), ErrorCode.REMOTE_FAILED),
    _Cause(
        re.compile("Name or service not known|No address associated"), ErrorCode.REMOTE_UNREACHABLE
    ),
    _Cause(
        re.compile("Bad configuration option|Bad owner or permissions on|[Uu]nknown option"),
        ErrorCode.REMOTE_FAILED,
    ),
)
_SSH_FAILED = 255
"""How ssh ends where it has no connection, or lost it; else as the program on the other side."""
FULL = 14
"""What later versions of SFTP answer, and what is made of a failure for want of room."""
_STATUS_CODES = {
    NO_SUCH_FILE: ErrorCode.REMOTE_MISSING,
    PERMISSION_DENIED: ErrorCode.REMOTE_DENIED,
    NO_CONNECTION: ErrorCode.REMOTE_UNREACHABLE,
    CONNECTION_LOST: ErrorCode.REMOTE_UNREACHABLE,
    FULL: ErrorCode.REMOTE_FULL,
}
_NOT_DONE = frozenset({ErrorCode.REMOTE_DENIED, ErrorCode.REMOTE_FULL})


class Traits(NamedTuple):
    """What a server can do that blobs need."""

    has_links: bool
    """Whether a file gets a second name, so that one writer wins of those that meet."""
    has_sync: bool
    """Whether what is written can be made durable."""


class _TemporaryGone(Exception):
    """A sweep of another machine took a temporary file."""


_Publish: TypeAlias = Callable[[SftpClient, bytes, bytes], bool]
"""Gives a temporary file the name of its blob; returns False if another file has it."""


# ---------------------------------------------------------------------- connections


class _Session:
    """A process of ``ssh``, and the connection that it is."""

    def __init__(self, words: Sequence[str], *, is_interactive: bool, answer_s: float) -> None:
        """Starts the program; raises OSError."""
        self.kinds: set[str] = set()
        """Directories of kinds that are there, whose names are durable."""
        self.mode = 0
        """The permissions of the directory."""
        self.is_begun = False
        """Whether a server of SFTP has answered."""
        self._is_interactive = is_interactive
        self._answer_s = answer_s
        self._said = b""
        self._echoes = False
        self._close_lock = Lock()
        self._is_closed = False
        self._process = subprocess.Popen(  # noqa: S603 - the user's own program, without a shell
            words,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            start_new_session=not is_interactive,  # without a terminal, nor its Ctrl-C
        )
        send, receive, said = self._process.stdin, self._process.stdout, self._process.stderr
        assert send is not None
        assert receive is not None
        assert said is not None
        self._send, self._receive, self._said_stream = send, receive, said
        self._listener = Thread(target=self._listen, args=(said.fileno(),), daemon=True)
        self._listener.start()
        self.client = SftpClient(
            receive.fileno(), send.fileno(), self._process.kill, answer_s=answer_s
        )

    def begin(self) -> None:
        """Waits until the server is there; raises SftpLost."""
        if self._is_interactive:
            while not self.client.begin(_QUIET_S):  # a person may be typing
                self._show()
        elif not self.client.begin(self._answer_s):
            raise self.client.lost(f"it has not answered for {self._answer_s:.0f} s")
        self._echoes = False
        self.is_begun = True

    def _show(self) -> None:
        """Shows a person what the program said, and what it will say until it is connected."""
        if not self._echoes:
            self._echoes = True
            with suppress(OSError):
                os.write(2, self._said)

    def _listen(self, fd: int) -> None:
        """Keeps the last words of the program, which would wait if they were not read."""
        with suppress(OSError):
            while part := os.read(fd, _SAID_BYTES_MAX):
                self._said = (self._said + part)[-_SAID_BYTES_MAX:]
                if self._echoes:
                    os.write(2, part)

    def close(self) -> None:
        """Ends the program, which may have begun others that keep its pipes."""
        with self._close_lock:
            if self._is_closed:
                return
            self._is_closed = True
            self.client.settle()
            self._send.close()
            try:
                self._process.wait(_END_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            if self.client.join(_END_S):
                self._receive.close()
            self._listener.join(_END_S)
            if not self._listener.is_alive():
                self._said_stream.close()

    @property
    def exit_code(self) -> int:
        """How the program ended, or the number of a signal below zero, once this is closed."""
        return self._process.returncode

    def last_words(self) -> str:
        """Returns what the program said at the end."""
        lines = self._said.decode("utf-8", "replace").splitlines()
        kept = [printable(line.strip()) for line in lines if line.strip()]
        return " | ".join(kept[-_LINES_MAX:])[-_WORDS_MAX:]


class SshBlobs:
    """Implements :class:`treesnap.remote.blobs.base.Blobs`.

    With ``make`` the directory is made if need be, but not its parent, and may be empty. New files
    and directories get the permissions of the directory, less the umask there. ``is_interactive``
    lets the program ask a person at the terminal. Without ``retries`` no request is repeated.
    """

    def __init__(
        self,
        url: SshUrl,
        *,
        make: bool = False,
        is_interactive: bool = False,
        retries: Retries | None = None,
        answer_s: float = ANSWER_S,
    ) -> None:
        self.url = url
        self.endpoint: str = str(url)
        self._make = make
        self._is_interactive = is_interactive
        self._answer_s = answer_s
        self._repeater = Repeater(retries or Retries(for_s=0))
        self._words = _words(url, is_interactive=is_interactive)
        self._lock = Lock()
        self._current: _Session | None = None
        self._left: list[bytes] = []
        """Temporary files that broken connections left."""
        self._has_links: bool | None = None
        """Whether a hard link was made there, or could not be."""

    def give_up(self) -> None:
        """Ends the pauses between requests that are being repeated."""
        self._repeater.give_up()

    def close(self) -> None:
        """Ends the connection."""
        with self._lock:
            session, self._current = self._current, None
        if session is not None:
            session.close()

    # ------------------------------------------------------------------- writing

    def put(self, name: str, data: Data, /) -> None:
        """Writes a blob, whether or not there is one."""
        check_name(name)
        self._request(
            f"write blob {name!r}", lambda session: self._write(session, name, data, self._replace)
        )

    def create(self, name: str, data: Data, /) -> bool:
        """Writes a blob if there is none; returns whether it did.

        What comes before is repeated, the call that gives the name is not.
        """
        check_name(name)
        is_sent = False

        def add(client: SftpClient, temporary: bytes, target: bytes) -> bool:
            nonlocal is_sent
            is_sent = True
            return self._add(client, temporary, target)

        def attempt() -> bool:
            try:
                return self._sent(
                    f"create blob {name!r}", lambda session: self._write(session, name, data, add)
                )
            except RemoteFailed as error:
                if is_sent:
                    error.is_unclear = error.code not in _NOT_DONE
                    error.may_pass = False
                raise

        return self._repeater.repeated(attempt)

    def _write(self, session: _Session, name: str, data: Data, publish: _Publish) -> bool:
        """Writes a temporary file, and publishes it with one call; returns what that returned."""
        kind, base = split_name(name)
        client, directory = session.client, self._kind_to_write(session, kind)
        for attempt in range(1, _ATTEMPTS + 1):
            temporary = b"%b/%b" % (directory, unfinished_name().encode())
            try:
                client.write_new(temporary, data, session.mode & 0o666)
                is_written = publish(client, temporary, b"%b/%b" % (directory, base.encode()))
                if is_written:
                    client.sync_directory(directory)
                return is_written
            except _TemporaryGone:
                if attempt == _ATTEMPTS:
                    raise SftpRefused(NO_SUCH_FILE, "its file is removed again and again") from None
            except SftpLost:
                self._left.append(temporary)
                raise
            except SftpRefused as error:
                if error.status == FAILURE and self._is_full(client, len(data)):
                    raise SftpRefused(FULL, "No space left on device") from error
                raise
            finally:
                client.discard(temporary)
        raise AssertionError("the last attempt returns or raises")

    def _is_full(self, client: SftpClient, size_bytes: int) -> bool:
        """Returns whether a blob has no room, which version 3 has no word for."""
        free_bytes = client.free_bytes(self.url.path)
        return free_bytes is not None and free_bytes < max(size_bytes, _ROOM_BYTES)

    def _replace(self, client: SftpClient, temporary: bytes, target: bytes) -> bool:
        try:
            if REPLACE in client.extensions:
                client.replace(temporary, target)
                return True
            client.move(temporary, target)
        except SftpRefused as error:
            if error.status == NO_SUCH_FILE:
                raise _TemporaryGone from error
            if REPLACE in client.extensions or not _exists(client, target):
                raise
            if client.read(target, _all) != client.read(temporary, _all):
                client.remove([target])
                client.move(temporary, target)
        return True

    def _add(self, client: SftpClient, temporary: bytes, target: bytes) -> bool:
        calls = []
        if HARD_LINK in client.extensions and self._has_links is not False:
            calls.append(client.link)
        if not self._has_links:
            calls.append(client.move)
        for call in calls:
            try:
                call(temporary, target)
            except SftpRefused as error:
                if error.status == NO_SUCH_FILE:
                    raise _TemporaryGone from error
                if _exists(client, target):
                    return False
                if call is calls[-1]:
                    raise
            else:
                self._has_links = call == client.link
                return True
        raise AssertionError("the last call returns or raises")

    def _kind_to_write(self, session: _Session, kind: str) -> bytes:
        """Returns the directory of a kind, whose name is durable."""
        path = self._path(kind)
        if kind and kind not in session.kinds:
            try:
                session.client.make_directory(path, session.mode)
            except SftpRefused:
                if not _exists(session.client, path + b"/."):
                    raise
            session.client.sync_directory(self.url.path)  # its maker may have been killed before
            session.kinds.add(kind)
        return path

    # ------------------------------------------------------------------- reading

    def get(self, name: str, /, size_bytes_max: int = BLOB_SIZE_MAX) -> bytes:
        """Returns a blob; raises BlobMissing, and RemoteFailed for a larger one."""
        check_name(name)

        def whole(size_bytes: int) -> list[Range]:
            if size_bytes > size_bytes_max:
                raise too_large(name, size_bytes, size_bytes_max, self.endpoint)
            return [(0, size_bytes)]

        return self._read(name, whole)[0]

    def get_ranges(self, name: str, ranges: Sequence[Range], /) -> Sequence[bytes]:
        """Returns parts of a blob; raises BlobMissing."""
        check_name(name)
        check_ranges(ranges)
        requests = merged_ranges(ranges)
        parts = self._read(
            name,
            lambda end: [(start, max(min(size, end - start), 0)) for start, size in requests],
        )
        return cut_ranges(ranges, requests, parts)

    def _read(self, name: str, ranges_of: Callable[[int], list[Range]]) -> list[bytes]:
        """Returns the parts of a blob that ``ranges_of`` chooses, when it knows its size."""

        def ranges(attributes: Attributes) -> list[Range]:
            return ranges_of(self._size_of(name, attributes))

        def read(session: _Session) -> list[bytes]:
            with _missing_as_such(name):
                return session.client.read(self._path(name), ranges)

        return self._request(f"read blob {name!r}", read)

    def size_bytes(self, name: str, /) -> int:
        """Returns the size of a blob; raises BlobMissing."""
        check_name(name)

        def look(session: _Session) -> int:
            with _missing_as_such(name):
                return self._size_of(name, session.client.status_of(self._path(name)))

        return self._request(f"look at blob {name!r}", look)

    def _size_of(self, name: str, attributes: Attributes) -> int:
        if not attributes.is_file:
            raise self._failed(f"use {name!r}", "it is not a regular file")
        if attributes.size_bytes is None:
            raise self._failed(f"use {name!r}", "the server does not say how large it is")
        return attributes.size_bytes

    def list(self, prefix: str, /, after: str = "") -> Iterator[BlobInfo]:
        """Yields the blobs whose names begin with ``prefix``, as they were at the call."""
        check_listing(prefix, after)
        return iter(
            self._request(f"list {prefix!r}", lambda session: self._listed(session, prefix, after))
        )

    def _listed(self, session: _Session, prefix: str, after: str) -> Sequence[BlobInfo]:
        kind, _ = split_name(prefix)
        client, blobs = session.client, []
        try:
            for base, attributes in client.names_in(self._path(kind)):
                name = f"{kind}/{base.decode('latin-1')}"
                if name.startswith(prefix) and name > after and is_name(name):
                    is_told = None not in attributes[:2]
                    status = attributes if is_told else client.status_of(self._path(name))
                    if status.is_file:
                        blobs.append(BlobInfo(name, self._size_of(name, status)))
        except SftpRefused as error:
            if error.status != NO_SUCH_FILE:
                raise
            self._require_directory(client)  # its disk may be gone
        return sorted(blobs)

    # ------------------------------------------------------------------ removing

    def delete(self, names: Sequence[str], /) -> Sequence[str]:
        """Removes blobs; returns those that may not be removed."""
        check_names(names)

        def delete(session: _Session) -> Sequence[str]:
            refused = []
            errors = session.client.remove([self._path(name) for name in names])
            for name, error in zip(names, errors, strict=True):
                if error is not None and error.status == PERMISSION_DENIED:
                    refused.append(name)
                elif error is not None and error.status != NO_SUCH_FILE:
                    raise error
            for kind in {split_name(name)[0] for name in names}:
                session.client.sync_directory(self._path(kind))
            return refused

        return self._request("remove blobs", delete)

    def sweep_unfinished(self) -> int:
        """Removes temporary files that are older than a day; returns how many."""
        return self._request("remove unfinished files", self._sweep)

    def _sweep(self, session: _Session) -> int:
        client = session.client
        modified_s: dict[bytes, int] = {}

        def look(path: bytes) -> Sequence[str]:
            kinds = []
            for base, attributes in client.names_in(path):
                name = base.decode("latin-1")
                if is_unfinished(name) and attributes.mtime_s is not None:
                    modified_s[b"%b/%b" % (path, base)] = attributes.mtime_s
                elif attributes.is_directory and KIND.fullmatch(name):
                    kinds.append(name)
            return kinds

        for kind in look(self.url.path):
            look(self._path(kind))
        if not modified_s:
            return 0
        now_s = self._time_s(session) or 0
        old = [path for path, mtime_s in modified_s.items() if mtime_s <= now_s - UNFINISHED_S]
        return sum(error is None for error in client.remove(old))

    def _time_s(self, session: _Session) -> int | None:
        """Returns the time of the server, which it notes of a file."""
        clock = self._path(unfinished_name())
        try:
            session.client.write_new(clock, b"", session.mode & 0o666)
            return session.client.status_of(clock).mtime_s
        finally:
            session.client.discard(clock)

    def facts(self) -> Facts:
        """Returns the time of the server, and how much room there is."""

        def ask(session: _Session) -> Facts:
            free_bytes = session.client.free_bytes(self.url.path)
            return Facts(self._time_s(session), free_bytes)

        return self._request("look at the server", ask)

    def traits(self) -> Traits:
        """Returns what the server can do; tries out what a place has to be able to do."""

        def look(session: _Session) -> Traits:
            client = session.client
            paths = [self._path(unfinished_name()) for _ in range(2)]
            try:
                client.write_new(paths[0], b"", session.mode & 0o666)
                self._add(client, *paths)
            finally:
                client.remove(paths)
            return Traits(bool(self._has_links), SYNC in client.extensions)

        return self._request("try out links", look)

    # ----------------------------------------------------------------- connecting

    def _path(self, name: str) -> bytes:
        return b"%b/%b" % (self.url.path, name.encode()) if name else self.url.path

    def _request(self, doing: str, call: Callable[[_Session], _Result]) -> _Result:
        """Makes requests that may be repeated. ``doing`` completes the sentence "Could not ..."."""
        return self._repeater.repeated(lambda: self._sent(doing, call))

    def _sent(self, doing: str, call: Callable[[_Session], _Result]) -> _Result:
        """Makes requests; their errors are our own."""
        session = self._session(doing)
        try:
            return call(session)
        except SftpLost as error:
            raise self._broken(doing, session, error) from error
        except SftpRefused as error:
            raise self._refused(doing, error) from error

    def _session(self, doing: str) -> _Session:
        """Returns the connection, which is opened if need be."""
        with self._lock:
            if self._current is None:
                try:
                    session = _Session(
                        self._words, is_interactive=self._is_interactive, answer_s=self._answer_s
                    )
                except OSError as error:
                    raise self._failed(
                        doing,
                        f"the program {quoted(self._words[0])} cannot be started: {error.strerror}",
                        ErrorCode.REMOTE_PROGRAM_MISSING,
                    ) from error
                try:
                    session.begin()
                    self._open(session)
                except SftpLost as error:
                    raise self._broken(doing, session, error) from error
                except SftpRefused as error:
                    session.close()
                    raise self._refused(doing, error) from error
                except BaseException:
                    session.close()
                    raise
                self._current = session
            return self._current

    def _open(self, session: _Session) -> None:
        """Looks whether a remote is there, or makes the directory of a new one."""
        client = session.client
        try:
            attributes = self._require_directory(client)
        except RemoteFailed:
            if not self._make:
                raise
            try:
                client.make_directory(self.url.path, 0o700)
            except SftpRefused as error:
                if error.status == NO_SUCH_FILE:
                    raise self._failed(
                        "make it", "there is no directory above it", ErrorCode.REMOTE_MISSING
                    ) from error
                if not _exists(client, self.url.path):  # else another connection made it
                    raise
            client.sync_directory(os.path.dirname(self.url.path) or b".")
            attributes = self._require_directory(client)
        session.mode = (attributes.mode or 0o700) & 0o777
        if not self._make and not any(_exists(client, self._path(name)) for name in MARKERS):
            raise self._failed(
                "use it as a remote",
                "it holds no file 'format', so it is not a remote, or its disk is not mounted",
                ErrorCode.REMOTE_MISSING,
            )
        left, self._left = self._left, []
        client.remove(left)

    def _require_directory(self, client: SftpClient) -> Attributes:
        try:
            return client.status_of(self.url.path + b"/.")
        except SftpRefused as error:
            if error.status != NO_SUCH_FILE:
                raise
            raise self._failed(
                "use it as a remote", "there is no such directory", ErrorCode.REMOTE_MISSING
            ) from error

    # ------------------------------------------------------------------- failing

    def _broken(self, doing: str, session: _Session, error: SftpLost) -> RemoteFailed:
        """Ends a connection that broke; returns what is to be raised."""
        if self._current is session:
            self._current = None
        session.close()
        words = session.last_words()
        for cause in _CAUSES:
            if cause.pattern.search(words):
                return self._failed(doing, words, cause.code)
        reason = ": ".join(filter(None, [error.reason, words]))
        if error.is_senseless:
            return self._failed(doing, reason)
        return self._failed(
            doing,
            reason if session.is_begun or not words else words,
            ErrorCode.REMOTE_UNREACHABLE,
            may_pass=session.is_begun or session.exit_code == _SSH_FAILED or session.exit_code < 0,
        )

    def _refused(self, doing: str, error: SftpRefused) -> RemoteFailed:
        reason = f"the server answers {error.words}"
        if error.status == FAILURE:
            reason += ", and not why: a quota may be used up, or a disk may be faulty"
        elif error.status == END:
            reason = "a file there is shorter than the server said"
        return self._failed(
            doing,
            reason,
            _STATUS_CODES.get(error.status, ErrorCode.REMOTE_FAILED),
            may_pass=error.status in {NO_CONNECTION, CONNECTION_LOST},
        )

    def _failed(
        self,
        doing: str,
        reason: str,
        code: ErrorCode = ErrorCode.REMOTE_FAILED,
        *,
        may_pass: bool = False,
    ) -> RemoteFailed:
        return RemoteFailed(
            f"Could not {doing} at {quoted(self.endpoint)}: {reason}",
            code=code,
            endpoint=self.endpoint,
            may_pass=may_pass,
        )


@contextmanager
def _missing_as_such(name: str) -> Iterator[None]:
    try:
        yield
    except SftpRefused as error:
        if error.status == NO_SUCH_FILE:
            raise BlobMissing(name) from None
        raise


def _exists(client: SftpClient, path: bytes) -> bool:
    try:
        client.status_of(path)
    except SftpRefused as error:
        if error.status == NO_SUCH_FILE:
            return False
        raise
    return True


def _all(attributes: Attributes) -> list[Range]:
    return [(0, attributes.size_bytes or 0)]


def _words(url: SshUrl, *, is_interactive: bool) -> list[str]:
    """Returns the command that connects; raises InvalidArgument for a variable that is none."""
    said = os.environ.get(PROGRAM_VARIABLE, "ssh")
    try:
        program = shlex.split(said)
    except ValueError as error:
        raise InvalidArgument(f"{PROGRAM_VARIABLE} is not a command: {error}") from error
    if not program:
        raise InvalidArgument(f"{PROGRAM_VARIABLE} is empty")
    words = [*program, *_OPTIONS, *(() if is_interactive else _BATCH)]
    if url.port is not None:
        words += ["-p", str(url.port)]
    if url.user is not None:
        words += ["-l", url.user]
    return [*words, "-s", "--", url.host, "sftp"]
