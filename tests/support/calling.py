"""The command line as a process of its own, and what it leaves lying around."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import traceback
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from treesnap.cli.main import main
from treesnap.core.fs.local import unnamed_file

TIMEOUT_S = 120


@dataclass(frozen=True, slots=True)
class Ended:
    """How a command ended."""

    code: int
    out: str
    err: str


def run_forked(
    words: Sequence[str], *, cwd: Path, variables: Mapping[str, str], given: bytes = b""
) -> Ended:
    """Runs ``snap`` in a child of this process; returns how it ended, as text."""
    code, out, err = forked(words, cwd=cwd, variables=variables, given=given)
    return Ended(code, out.decode(), err.decode())


def forked(
    words: Sequence[str],
    *,
    cwd: Path,
    variables: Mapping[str, str],
    given: bytes = b"",
    program: Callable[[], object] = main,
) -> tuple[int, bytes, bytes]:
    """Runs ``snap`` in a child of this process, which has loaded everything already.

    It has its own streams, directory, variables and exit code, and costs a tenth of a new
    interpreter. What happens before ``main`` is only in a process that is really started.
    """
    fds = [unnamed_file(name) for name in ("stdin", "stdout", "stderr")]
    try:
        os.pwrite(fds[0], given, 0)
        with warnings.catch_warnings():
            # Other threads may exist; the child uses nothing of theirs.
            warnings.simplefilter("ignore", DeprecationWarning)
            child = os.fork()
        if child == 0:
            # The variables may be those of this process.
            become(words, fds, cwd, dict(variables), program=program)
        code = _code_of(child)
        out, err = (os.pread(fd, os.fstat(fd).st_size, 0) for fd in fds[1:])
    finally:
        for fd in fds:
            os.close(fd)
    return code, out, err


def run_command(
    words: Sequence[str],
    *,
    cwd: Path,
    variables: Mapping[str, str],
    given: bytes = b"",
    by: Sequence[str] = (),
) -> Ended:
    """Runs ``snap``; ``by`` is the command that runs it, for which it is really started."""
    if not by:
        return run_forked(words, cwd=cwd, variables=variables, given=given)
    done = subprocess.run(
        [*by, sys.executable, "-m", "treesnap", *words],
        cwd=cwd,
        env=dict(variables),
        input=given,
        capture_output=True,
        check=False,
        timeout=TIMEOUT_S,
    )
    return Ended(done.returncode, done.stdout.decode(), done.stderr.decode())


def become(
    words: Sequence[str],
    fds: Sequence[int],
    cwd: Path | int,
    variables: Mapping[str, str],
    *,
    line_buffering: bool = False,
    program: Callable[[], object] = main,
) -> NoReturn:
    """Makes this child of a fork the command, with three streams and a directory."""
    try:
        for number, fd in enumerate(fds):
            os.dup2(fd, number)
        sys.stdin = os.fdopen(0, encoding="utf-8", closefd=False)
        sys.stdout = os.fdopen(1, "w", encoding="utf-8", closefd=False)
        sys.stdout.reconfigure(line_buffering=line_buffering)
        sys.stderr = os.fdopen(2, "w", encoding="utf-8", errors="backslashreplace", closefd=False)
        sys.stderr.reconfigure(line_buffering=True)
        os.chdir(cwd)
        os.environ.clear()
        os.environ.update(variables)
        sys.argv = ["snap", *words]
        program()
    except BaseException:  # noqa: BLE001 - whatever it is, the test is told
        os.write(2, traceback.format_exc().encode())
    finally:
        os._exit(70)


def _code_of(child: int) -> int:
    """Waits for a child; kills one that takes too long."""
    too_long = threading.Timer(TIMEOUT_S, os.kill, (child, signal.SIGKILL))
    too_long.start()
    try:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    finally:
        too_long.cancel()
        too_long.join()  # or the next fork would be one of a process with threads


@dataclass(frozen=True, slots=True)
class Place:
    """A root and its store."""

    root: Path
    store: Path

    def make(self, *paths: str) -> None:
        """Makes files that hold their own path, and the directories above them."""
        for path in paths:
            (self.root / path).parent.mkdir(parents=True, exist_ok=True)
            (self.root / path).write_text(path)

    def edit(self, *paths: str) -> None:
        """Changes files."""
        for path in paths:
            (self.root / path).write_text(f"{path}, edited")

    def snap(self, *words: str, by: Sequence[str] = ()) -> Ended:
        """Runs a command on the root; ``by`` is the command that runs it."""
        words = ("-C", str(self.root), *words)
        variables = {**os.environ, "SNAP_STORE": str(self.store)}
        return run_command(words, cwd=Path.cwd(), variables=variables, by=by)

    def done(self, *words: str) -> None:
        """Runs a command that must succeed."""
        ended = self.snap(*words)
        assert ended.code == 0, ended

    def litter(self) -> list[str]:
        """Returns what an operation may leave only while it runs."""
        patterns = ("roots/*/journal", "roots/*/export-*", "temporary/*", "pending/*")
        found = [str(path) for pattern in patterns for path in self.store.glob(pattern)]
        return found + [str(path) for path in self.root.parent.rglob(".treesnap*")]
