"""A plain container: a root file system that cannot be written to, with one volume, /data.

It has a table of users without the one that runs, a /dev/shm of a few kilobytes, and no /tmp. Made
of a mount namespace and chroot, so nothing of it stays.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import pytest

import treesnap

USER_ID = 54321
DATA = "/data"
_SHM_SIZE = "64k"
_SYSTEM = ("/bin", "/sbin", "/lib", "/lib32", "/lib64", "/usr")
_DEVICES = ("null", "zero", "full", "random", "urandom")
_SOURCES = str(Path(treesnap.__file__).parents[1])
_SPACES = ("--mount", "--pid", "--fork", "--kill-child")
"""With it end the processes in it, such as a watcher."""
_DRIVER = """
import json, subprocess, sys
for words, text in json.loads(sys.argv[1]):
    done = subprocess.run(
        words, input=text, capture_output=True, text=True, cwd=sys.argv[2], check=False
    )
    print(json.dumps([done.returncode, done.stdout, done.stderr]))
"""
"""Runs commands one after the other, and prints what became of each."""


class Done(NamedTuple):
    """What became of a command."""

    code: int
    out: str
    err: str


class PlainContainer:
    """Runs ``snap`` in a container whose volume is a directory of this machine."""

    def __init__(self, directory: Path, *, user_id: int = USER_ID) -> None:
        self.volume = directory / "volume"
        self.root = self.volume / "root"
        self.root.mkdir(parents=True)
        self._user_id = user_id
        self._root_file_system = directory / "root-file-system"
        self._root_file_system.mkdir()

    def run(
        self, commands: Sequence[Sequence[str] | tuple[Sequence[str], str]], env: Mapping[str, str]
    ) -> list[Done]:
        """Runs commands of ``snap`` in /data/root; one may come with its standard input."""
        foreign = ["-not", "-uid", str(self._user_id), "-exec", "chown", "-h"]
        owner = f"{self._user_id}:{self._user_id}"
        subprocess.run(["find", self.volume, *foreign, owner, "{}", "+"], check=True)
        snap = [sys.executable, "-m", "treesnap"]
        calls = []
        for command in commands:
            is_pair = isinstance(command, tuple)
            words, text = command if is_pair else (command, "")  # type: ignore[misc]  # as typed
            calls.append([[*snap, *words], text])
        variables = {"PATH": "/usr/bin:/bin", "PYTHONPATH": _SOURCES, "LC_ALL": "C.UTF-8", **env}
        inside = [
            *("env", "-i", *(f"{name}={value}" for name, value in variables.items())),
            *(sys.executable, "-c", _DRIVER, json.dumps(calls), f"{DATA}/root"),
        ]
        script = f"{self._script()}\n{shlex.join(self._chroot(inside))}\n"
        ran = subprocess.run(
            ["unshare", *_SPACES, "--propagation", "private", "sh", "-ec", script],
            capture_output=True,
            text=True,
            check=False,
        )
        assert ran.returncode == 0, ran.stderr
        return [Done(*json.loads(line)) for line in ran.stdout.splitlines()]

    def _script(self) -> str:
        """Returns the lines that make the root file system."""
        new = shlex.quote(str(self._root_file_system))
        lines = [f"mount -t tmpfs -o mode=755 tmpfs {new}"]
        for path in _SYSTEM:
            if os.path.islink(path):
                lines.append(f"cp -a {path} {new}{path}")
            elif os.path.isdir(path):
                lines += _bound(path, f"{new}{path}")
        for path in sorted({sys.base_prefix, sys.prefix, str(Path(_SOURCES).parent)}):
            if not path.startswith("/usr"):
                lines += _bound(shlex.quote(path), f"{new}{shlex.quote(path)}")
        lines += [f"mkdir -p {new}/dev {new}/etc {new}{DATA}"]
        lines += [
            f"touch {new}/dev/{name}; mount --bind /dev/{name} {new}/dev/{name}"
            for name in _DEVICES
        ]
        lines += [
            f"mkdir {new}/proc {new}/dev/shm",
            f"mount -t proc proc {new}/proc",
            f"mount -t tmpfs -o size={_SHM_SIZE},mode=1777 tmpfs {new}/dev/shm",
            f"echo root:x:0:0::/root:/bin/sh > {new}/etc/passwd",
            f"mount --bind {shlex.quote(str(self.volume))} {new}{DATA}",
            f"mount -o remount,ro,mode=755 {new}",
        ]
        return "\n".join(lines)

    def _chroot(self, words: Sequence[str]) -> list[str]:
        user = f"--userspec={self._user_id}:{self._user_id}"
        return ["exec", "chroot", user, "--groups=", str(self._root_file_system), *words]


def _bound(path: str, place: str) -> list[str]:
    return [
        f"mkdir -p {place}",
        f"mount --rbind {path} {place}",
        f"mount -o remount,bind,ro {place}",
    ]


def require_containers() -> None:
    """Skips the test where no container can be made."""
    if os.geteuid() != 0:
        pytest.skip("only the superuser makes a container here")
    try:
        made = subprocess.run(["unshare", *_SPACES, "true"], capture_output=True, check=False)
    except FileNotFoundError:
        pytest.skip("unshare is not installed")
    if made.returncode != 0:
        pytest.skip(f"no namespace is possible here: {made.stderr.decode()}")
