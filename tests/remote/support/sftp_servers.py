"""A real server of SFTP by a pipe, in the place of the user's ``ssh``: OpenSSH's own, no network.

Between the two may be a tap that counts what is sent, and cuts the connection.
"""

from __future__ import annotations

import itertools
import shlex
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from treesnap.remote.blobs.ssh import PROGRAM_VARIABLE, SshBlobs, parse_ssh_url

_PLACES = (
    "/usr/lib/openssh/sftp-server",
    "/usr/libexec/openssh/sftp-server",
    "/usr/lib/ssh/sftp-server",
    "/usr/libexec/sftp-server",
)


def sftp_server() -> str:
    """Returns the program; skips the test where it is not installed."""
    for place in _PLACES:
        if Path(place).exists():
            return place
    pytest.skip("There is no sftp-server: the package openssh-sftp-server has it")


def write_program(path: Path, script: str) -> Path:
    """Makes a program of a shell script."""
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


@pytest.fixture
def sftp_program(tmp_path, monkeypatch) -> Path:
    """What is called in the place of ``ssh``: it starts the server, whatever it is told."""
    program = write_program(tmp_path / "ssh", f"exec {shlex.quote(sftp_server())}")
    monkeypatch.setenv(PROGRAM_VARIABLE, str(program))
    return program


_numbers = itertools.count()


@pytest.fixture
def sftp_url(sftp_program, tmp_path) -> str:
    """The address of an empty place behind the server."""
    return f"ssh://tests{tmp_path}/remote{next(_numbers)}"


@pytest.fixture
def new_sftp(sftp_url) -> Iterator[Callable[[], SshBlobs]]:
    """Makes connections to one empty place behind the server."""
    made = []

    def connect() -> SshBlobs:
        made.append(SshBlobs(parse_ssh_url(sftp_url), make=True))
        return made[-1]

    yield connect
    for blobs in made:
        blobs.close()
