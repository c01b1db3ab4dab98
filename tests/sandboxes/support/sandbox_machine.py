"""The machine of a sandbox: a directory, an environment of its own, and commands that really run.

The doubles of providers put their API in front of it. What a client of theirs says over HTTP is
what it says to the provider; only the virtual machine is missing.
"""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import treesnap

SOURCES = Path(treesnap.__file__).parents[1]


class Machine:
    """Runs commands until it is paused or dies."""

    def __init__(self, directory: Path, *, has_snap: bool = True) -> None:
        self.home = directory / "home"
        self.project = self.home / "project"
        self.project.mkdir(parents=True)
        self.place = self.home / ".treesnap-handed-out"
        self.bin = directory / "bin"
        self.bin.mkdir()
        # A login shell forgets the PATH that it was given.
        (self.home / ".profile").write_text(f"PATH={shlex.quote(str(self.bin))}:$PATH\n")
        if has_snap:
            self.install_snap()
        self.commands: list[str] = []
        """What ran, checkpoints too."""
        self.reads: list[str] = []
        """The files that were asked for."""
        self.is_paused = False
        self.is_dead = False
        self._running: set[subprocess.Popen[bytes]] = set()
        self._lock = threading.Lock()

    def install_snap(self, before: str = "") -> None:
        program = f"{shlex.quote(sys.executable)} -m treesnap"
        script = (
            f'#!/bin/sh\n{before}\nexec env PYTHONPATH={shlex.quote(str(SOURCES))} {program} "$@"\n'
        )
        (self.bin / "snap").write_text(script)
        (self.bin / "snap").chmod(0o755)

    @property
    def answers(self) -> bool:
        return not (self.is_paused or self.is_dead)

    def start(
        self,
        words: list[str],
        envs: Mapping[str, str] | None = None,
        directory: str | None = None,
        stderr: int = subprocess.PIPE,
    ) -> subprocess.Popen[bytes]:
        environment = {"HOME": str(self.home), "PATH": f"{self.bin}:/usr/local/bin:/usr/bin:/bin"}
        process = subprocess.Popen(
            words,
            cwd=directory or self.home,
            env=environment | dict(envs or {}),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=stderr,
            start_new_session=True,
        )
        with self._lock:
            self.commands.append(words[-1])
            self._running.add(process)
        return process

    def end(self, process: subprocess.Popen[bytes]) -> None:
        """Kills a command with all that it started, and lets go of it."""
        self._kill(process)
        with self._lock:
            self._running.discard(process)
        process.wait()
        for pipe in (process.stdout, process.stderr):
            if pipe is not None:
                pipe.close()

    def _kill(self, process: subprocess.Popen[bytes]) -> None:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)

    def pause(self) -> None:
        self.is_paused = True

    def resume(self) -> None:
        self.is_paused = False

    def die(self) -> None:
        self.is_dead = True
        with self._lock:
            running = list(self._running)
        for process in running:
            self._kill(process)


class Request(BaseHTTPRequestHandler):
    """A request to the double of a provider; a subclass knows the provider's paths."""

    protocol_version = "HTTP/1.1"
    machine: ClassVar[Machine]

    def log_message(self, *words: Any) -> None:
        pass

    def body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") == "chunked":
            parts = []
            while size := int(self.rfile.readline(), 16):
                parts.append(self.rfile.read(size))
                self.rfile.readline()
            self.rfile.readline()
            return b"".join(parts)
        return self.rfile.read(int(self.headers.get("Content-Length", 0)))

    def reply(self, status: int, fields: object = None) -> None:
        data = b"" if fields is None else json.dumps(fields).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    @contextmanager
    def streamed(self, content_type: str) -> Iterator[Any]:
        """Yields what sends a part of the body."""
        self.send_response(200)
        self.send_header("Content-Type", content_type)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()

        def send(data: bytes) -> None:
            if data:
                self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
                self.wfile.flush()

        yield send
        self.wfile.write(b"0\r\n\r\n")


@contextmanager
def served(handler: type[Request], machine: Machine) -> Iterator[str]:
    """Yields the address of a double for a machine."""

    class Server(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, *words: Any) -> None:
            """A client that went away is no failure of the server."""

    own = type("OwnRequest", (handler,), {"machine": machine})
    with Server(("127.0.0.1", 0), own) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            machine.die()
            server.shutdown()
            thread.join()
