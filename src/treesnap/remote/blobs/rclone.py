"""Blobs in what ``rclone`` reaches: the user's own program, which serves S3 to this process alone.

    rclone:REMOTE:PATH         REMOTE is one of the user's rclone.conf

Blobs are files below ``PATH/treesnap``. The program listens on 127.0.0.1, at a port that the system
chooses, and asks for a key that is made for each connection. It ends with this process, however
that ends.

**What it is worth**: rclone knows no "only if there is none", so :meth:`RcloneBlobs.create` looks
and then writes, and several writers that meet may all win: one machine alone may collect, which
nothing but a person can make sure. It sends no parts of files, so whole ones are read. It lists
what a directory holds anew after a millisecond, which takes as long as the place behind it does.

The name of a remote has no comma and no colon: with those, rclone would take options from it, and
some of them are programs that it runs.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from threading import Event, Thread
from typing import IO

from treesnap.core.model.errors import ErrorCode, InvalidArgument, RemoteFailed, printable, quoted
from treesnap.core.model.named_tuple import NamedTuple
from treesnap.remote.blobs.base import BlobMissing, Blobs, Data, Facts, WrappedBlobs
from treesnap.remote.blobs.bucket import BucketBlobs, BucketUrl
from treesnap.remote.blobs.retries import Retries
from treesnap.remote.blobs.wrappers import WholeReads

PREFIX = "rclone:"
_BUCKET = "treesnap"
_START_S, _END_S = 60.0, 5.0
_SAID_BYTES_MAX, _WORDS_MAX = 4096, 300
_URL = re.compile(r"rclone:([A-Za-z0-9_][A-Za-z0-9_.+@ -]{0,127}):(?!//)([^\0\n]*)")
_LISTENS = re.compile(rb"\[(http://127\.0\.0\.1:[0-9]{1,5})/?\]")
_TOO_OLD = re.compile('unknown command "s3"|unknown flag')
_NO_REMOTE = re.compile("didn't find section in config file")
_NOT_THERE = re.compile("rclone: (?:command )?not found")
_OPTIONS = ("--addr", "127.0.0.1:0", "--dir-cache-time", "1ms")  # 0 costs half a second a blob
_GUARD = (
    'exec 3<&0; "$@" </dev/null 3<&- & server=$!; '
    'exec 2>&-; cat <&3 >/dev/null; kill "$server"; wait'
)
"""Ends the server when this process does: then its standard input ends."""


class RcloneUrl(NamedTuple):
    """The address of a remote that rclone reaches."""

    remote: str
    path: str

    def __str__(self) -> str:
        return f"{PREFIX}{self.remote}:{self.path}"


def parse_rclone_url(url: str) -> RcloneUrl:
    """Returns what an address says; raises InvalidArgument, without what may be a password."""
    match = _URL.fullmatch(url)
    if match is None:
        shown = ":".join(url.split(":", 2)[:2])
        raise InvalidArgument(f"{quoted(shown)} does not begin an address rclone:REMOTE:PATH")
    return RcloneUrl(match[1], match[2].rstrip("/"))


class _ServingProcess:
    """A process that serves S3 on this machine."""

    def __init__(self, url: RcloneUrl, key: tuple[str, str]) -> None:
        """Starts it, and waits until it listens; raises RemoteFailed."""
        self._url = url
        self._said = b""
        self._is_told = Event()
        self.endpoint = ""
        words = ["rclone", "serve", "s3", *_OPTIONS, f"{url.remote}:{url.path}"]
        environment = {**os.environ, "RCLONE_AUTH_KEY": f'"{",".join(key)}"'}
        self._process = subprocess.Popen(  # noqa: S603 - the user's own program, by a constant
            ["sh", "-c", _GUARD, "sh", *words],  # noqa: S607 - as everywhere
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            bufsize=0,
            env=environment,
            start_new_session=True,
        )
        stream = self._process.stderr
        assert stream is not None
        self._listener = Thread(target=self._listen, args=(stream,), daemon=True)
        self._listener.start()
        self._is_told.wait(_START_S)
        if not self.endpoint:
            self.close()
            raise failed(url, "start rclone", self._said.decode("utf-8", "replace"))

    def _listen(self, stream: IO[bytes]) -> None:
        with suppress(OSError, ValueError), stream:
            while part := stream.read(_SAID_BYTES_MAX):
                self._said = (self._said + part)[-_SAID_BYTES_MAX:]
                if not self.endpoint and (match := _LISTENS.search(self._said)):
                    self.endpoint = match[1].decode()
                    self._is_told.set()
        self._is_told.set()

    def close(self) -> None:
        """Ends the process."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._listener.join(_END_S)


class RcloneBlobs(WrappedBlobs):
    """Implements :class:`treesnap.remote.blobs.base.Blobs`.

    With ``make`` the directory is made if need be. Raises RemoteFailed.
    """

    def __init__(
        self, url: RcloneUrl, *, make: bool = False, retries: Retries | None = None
    ) -> None:
        if make:
            _run(url, "mkdir", "make the directory", f"{url.remote}:{_below(url)}")
        key = os.urandom(8).hex(), os.urandom(20).hex()
        try:
            self._server = _ServingProcess(url, key)
        except OSError as error:
            raise _missing(url, error) from error
        self._url = url
        bucket = BucketUrl("s3", _BUCKET, endpoint=self._server.endpoint, region="us-east-1")
        taken = {"access_key_id": key[0], "secret_access_key": key[1], "expires_at": None}
        try:
            blobs: Blobs = BucketBlobs(bucket, credentials=lambda: taken, retries=retries)
        except BaseException:
            self._server.close()
            raise
        super().__init__(WholeReads(blobs))

    def create(self, name: str, data: Data, /) -> bool:
        """Writes a blob if there is none; two that meet may both do so."""
        with suppress(BlobMissing):
            self._blobs.size_bytes(name)
            return False
        try:
            self._blobs.put(name, data)
        except RemoteFailed as error:
            error.is_unclear = True
            raise
        return True

    def facts(self) -> Facts:
        """Returns how much room there is, where the place behind tells its quota."""
        return Facts(free_bytes=free_bytes(self._url))

    def close(self) -> None:
        """Ends the program."""
        super().close()
        self._server.close()


def _below(url: RcloneUrl) -> str:
    return f"{url.path}/{_BUCKET}" if url.path else _BUCKET


def free_bytes(url: RcloneUrl) -> int | None:
    """Returns what is left of the quota of a place, or None where that is not told."""
    try:
        told = json.loads(_run(url, "about", "look for room", "--json", f"{url.remote}:{url.path}"))
    except (RemoteFailed, ValueError):
        return None
    free = told.get("free") if isinstance(told, dict) else None
    return free if isinstance(free, int) and free >= 0 else None


def _run(url: RcloneUrl, command: str, doing: str, *words: str) -> bytes:
    """Returns what the program writes; raises RemoteFailed."""
    try:
        ended = subprocess.run(  # noqa: S603 - the user's own program, without a shell
            ["rclone", command, "--retries", "1", *words],  # noqa: S607 - as everywhere
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_START_S,
            check=False,
        )
    except OSError as error:
        raise _missing(url, error) from error
    except subprocess.TimeoutExpired as error:
        raise failed(url, doing, f"it has not ended for {_START_S:.0f} s") from error
    if ended.returncode:
        raise failed(url, doing, ended.stderr.decode("utf-8", "replace"))
    return ended.stdout


def _missing(url: RcloneUrl, error: OSError) -> RemoteFailed:
    return RemoteFailed(
        f"Could not reach {quoted(str(url))}: the program 'rclone' cannot be started: "
        f"{error.strerror}",
        code=ErrorCode.REMOTE_PROGRAM_MISSING,
        endpoint=str(url),
    )


def failed(url: RcloneUrl, doing: str, said: str) -> RemoteFailed:
    """Returns the error for what rclone said at its end."""
    code, reason = ErrorCode.REMOTE_FAILED, _last_words(said.splitlines())
    if _TOO_OLD.search(said):
        code = ErrorCode.REMOTE_PROGRAM_MISSING
        reason = "the program 'rclone' is too old: version 1.65 is needed"
    elif _NO_REMOTE.search(said):
        code = ErrorCode.REMOTE_MISSING
    elif _NOT_THERE.search(said):
        code = ErrorCode.REMOTE_PROGRAM_MISSING
    return RemoteFailed(
        f"Could not {doing} for {quoted(str(url))}: {reason}", code=code, endpoint=str(url)
    )


def _last_words(lines: Sequence[str]) -> str:
    kept = [printable(line.strip()) for line in lines if line.strip()]
    return kept[-1][-_WORDS_MAX:] if kept else "it does not say why"
