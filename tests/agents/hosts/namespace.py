"""Namespaces of processes and of a network with loopback alone, and a scripted model in them.

Hosts leave processes behind; they end with the namespace.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Self

from hosts import model_server

HOST_TIMEOUT_S = 300
START_TIMEOUT_S = 30


class CannotIsolate(Exception):
    """This user or this machine makes no network namespaces."""


class Request(NamedTuple):
    """What a host sent to its model."""

    path: str
    is_turn: bool  # offers tools
    body: dict[str, Any]


class Transcript(NamedTuple):
    """What a run of a host printed and asked."""

    code: int
    out: str
    err: str
    requests: list[Request]

    @property
    def asked(self) -> str:
        """All that the model was told, as JSON."""
        return json.dumps([request.body for request in self.requests], ensure_ascii=False)


class Namespace:
    """A network without a way out. A context manager; ``port`` is the scripted model's."""

    port: int

    def __init__(self, directory: Path, *, timeout_s: float = HOST_TIMEOUT_S) -> None:
        self._directory = directory
        self._timeout_s = timeout_s
        directory.mkdir(parents=True, exist_ok=True)

    def __enter__(self) -> Self:
        server = [sys.executable, model_server.__file__, str(self._directory)]
        flags = ["--net", "--pid", "--fork", "--mount-proc", "--kill-child"]
        try:
            self._process = subprocess.Popen(
                ["unshare", *flags, "--", *server],
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
            )
        except OSError as error:
            raise CannotIsolate(str(error)) from error
        port_file = self._directory / "port"
        deadline = time.monotonic() + START_TIMEOUT_S
        while not port_file.exists():
            if self._process.poll() is not None:
                raise CannotIsolate(self._process.communicate()[1].decode().strip())
            if time.monotonic() > deadline:
                self.__exit__()
                raise TimeoutError(server)
            select.select([], [], [], 0.01)
        self.port = int(port_file.read_text())
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()

    def run(
        self,
        words: Sequence[str],
        script: Sequence[model_server.Step],
        *,
        cwd: Path,
        variables: Mapping[str, str],
    ) -> Transcript:
        """Runs a host to its end, with nothing in its environment but ``variables``."""
        log = self._directory / "requests.jsonl"
        log.unlink(missing_ok=True)
        (self._directory / "script.json").write_text(json.dumps(list(script)))
        spaces = f"/proc/{self._process.pid}/ns"
        process = subprocess.Popen(
            [
                "nsenter",
                f"--net={spaces}/net",
                f"--pid={spaces}/pid_for_children",
                f"--mount={spaces}/mnt",
                f"--wdns={cwd}",
                "--",
                *words,
            ],
            env=dict(variables),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        try:
            out, err = process.communicate(timeout=self._timeout_s)
        except BaseException:
            os.killpg(process.pid, signal.SIGKILL)
            raise
        lines = log.read_text().splitlines() if log.exists() else []
        requests = [Request(**json.loads(line)) for line in lines]
        return Transcript(process.returncode, out.decode(), err.decode(), requests)
