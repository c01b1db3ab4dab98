"""Remotes on another machine: all that a remote is for, and a real ``sshd`` where there is one."""

from __future__ import annotations

import getpass
import os
import shlex
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import treesnap
from ceph import free_ports
from oracle import record
from sftp_servers import sftp_server, write_program
from treesnap.core.model.errors import ErrorCode, Refused, RemoteFailed
from treesnap.core.store.maintenance.retention import Policy
from treesnap.remote import Remotes
from treesnap.remote.blobs.probe import Creation
from treesnap.remote.blobs.ssh import PROGRAM_VARIABLE, SshBlobs, parse_ssh_url
from treesnap.remote.keys import Secret

pytestmark = pytest.mark.sampled(4)


def secret_of(_known):
    return lambda: Secret.raw_key("5a" * 32)


@pytest.fixture
def garden(tmp_path) -> Path:
    path = tmp_path / "garden"
    path.mkdir()
    for number in range(20):
        (path / f"plant{number}").write_bytes(os.urandom(5000))
    return path


@pytest.fixture
def handle(garden, tmp_path) -> treesnap.Handle:
    return treesnap.open(garden, tmp_path / "store")


def test_a_history_goes_there_and_comes_back(handle, garden, sftp_url, tmp_path):
    remotes = Remotes(handle, secret_of)
    handle.create()
    assert remotes.add("nas", sftp_url).is_encrypted
    remotes.push()
    (garden / "plant0").unlink()
    handle.create()
    remotes.push()

    other = treesnap.open(tmp_path / "again", tmp_path / "other")
    Remotes(other, secret_of).clone(sftp_url)

    assert record(tmp_path / "again") == record(garden)
    assert len(other.list()) >= 2
    assert not remotes.verify(read_data=True).problems
    assert len(remotes.prune(policy=Policy(keep_last=1)).removed) == 1
    remotes.collect()
    assert not remotes.verify(read_data=True).problems


def test_the_directory_is_that_of_a_remote_in_a_directory(handle, garden, sftp_url, tmp_path):
    remotes = Remotes(handle, secret_of)
    remotes.add("nas", sftp_url)
    handle.create()
    remotes.push("nas")

    remotes.add("here", os.fsdecode(parse_ssh_url(sftp_url).path), encrypted=True)
    handle.create()
    remotes.push("here")

    assert [item.snapshots for item in remotes.histories("nas")] == [2]


@pytest.mark.parametrize(
    ("lacks", "creation", "reason"),
    [
        ("", Creation.ATOMIC, None),
        ("hardlink", Creation.SEQUENTIAL, "without hard links lets several writers"),
        ("fsync", Creation.SEQUENTIAL, "without fsync may lose what it wrote"),
    ],
)
def test_where_the_server_can_do_less_one_machine_collects(
    handle, sftp_url, sftp_program, lacks, creation, reason
):
    if lacks:
        write_program(sftp_program, f"exec {sftp_server()} -P {lacks}")
    remotes = Remotes(handle, secret_of)

    assert remotes.add("nas", sftp_url).may_collect is (not lacks)

    found = remotes.check("nas")
    assert (found.creation, found.lists_current, found.has_ranges) == (creation, True, True)
    assert found.server is not None
    assert found.server.startswith("A server of SFTP")
    assert (reason or "") in " ".join(found.reasons)
    if lacks:
        with pytest.raises(Refused) as refused:
            remotes.collect("nas")
        assert refused.value.code == ErrorCode.REMOTE_UNRELIABLE
        assert remotes.add("alone", f"{sftp_url}2", only_collector=True).may_collect
        remotes.collect("alone")


# ---------------------------------------------------------------------- a real sshd


class Daemon:
    """An ``sshd`` on 127.0.0.1, and what a user's ``ssh`` needs to be let in."""

    def __init__(self, directory: Path, program: str) -> None:
        self.directory = directory
        (self.port,) = free_ports(1)
        for name in ("host", "user", "other"):
            self._run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(directory / name))
        shutil.copy(directory / "user.pub", directory / "authorized")
        self.write_known("host.pub")
        lines = [
            f"ListenAddress 127.0.0.1:{self.port}",
            f"HostKey {directory}/host",
            f"AuthorizedKeysFile {directory}/authorized",
            "StrictModes no",
            "UsePAM no",
            "PidFile none",
            "PasswordAuthentication no",
            "KbdInteractiveAuthentication no",
            f"Subsystem sftp {sftp_server()}",
        ]
        (directory / "sshd_config").write_text("\n".join([*lines, ""]))
        self._process = subprocess.Popen(
            [program, "-D", "-E", str(directory / "log"), "-f", str(directory / "sshd_config")],
            stdin=subprocess.DEVNULL,
        )

    def _run(self, *words: str) -> None:
        subprocess.run(words, check=True, stdin=subprocess.DEVNULL, capture_output=True)

    def write_known(self, key: str) -> None:
        """Lets the user know the machine by a key."""
        text = (self.directory / key).read_text()
        (self.directory / "known").write_text(f"[127.0.0.1]:{self.port} {text}")

    def program(self, key: str = "user") -> str:
        """Returns what is called in the place of ``ssh``, with a key of the user."""
        options = {
            "IdentityFile": self.directory / key,
            "IdentitiesOnly": "yes",
            "IdentityAgent": "none",
            "UserKnownHostsFile": self.directory / "known",
            "GlobalKnownHostsFile": "/dev/null",
        }
        words = ["ssh", "-F", "none", *(f"-o{name}={value}" for name, value in options.items())]
        return shlex.join(words)

    def close(self) -> None:
        self._process.terminate()
        self._process.wait()


@pytest.fixture
def daemon(tmp_path, monkeypatch) -> Iterator[Daemon]:
    program = shutil.which("sshd", path=f"{os.environ['PATH']}:/usr/sbin")
    if program is None or shutil.which("ssh") is None:
        pytest.skip("There is no sshd: the package openssh-server has it")
    if os.geteuid() == 0:
        Path("/run/sshd").mkdir(exist_ok=True)
    directory = tmp_path / "ssh"
    directory.mkdir()
    daemon = Daemon(directory, program)
    monkeypatch.setenv(PROGRAM_VARIABLE, daemon.program())
    yield daemon
    daemon.close()


@pytest.fixture
def connect(daemon, tmp_path) -> Iterator[Callable[[], SshBlobs]]:
    """Makes connections by ``ssh`` to a place."""
    url = f"ssh://{getpass.getuser()}@127.0.0.1:{daemon.port}{tmp_path}/remote"
    made = []

    def connect() -> SshBlobs:
        made.append(SshBlobs(parse_ssh_url(url), make=True))
        return made[-1]

    deadline_s = time.monotonic() + 20
    while not (log := daemon.directory / "log").exists() or "listening" not in log.read_text():
        assert time.monotonic() < deadline_s
        time.sleep(0.01)
    yield connect
    for blobs in made:
        blobs.close()


def test_a_real_sshd_is_used(connect):
    blobs, content = connect(), os.urandom(3 << 20)

    blobs.put("packs/00", content)

    assert connect().get("packs/00") == content
    assert blobs.create("state/00", b"mine")
    assert not connect().create("state/00", b"other")
    assert [item.name for item in blobs.list("packs/")] == ["packs/00"]
    assert blobs.delete(["packs/00"]) == []
    assert blobs.traits() == (True, True)


@pytest.mark.parametrize("known", [None, "other.pub"])
def test_a_machine_with_another_key_is_not_talked_to(connect, daemon, known):
    if known is None:
        (daemon.directory / "known").unlink()
    else:
        daemon.write_known(known)

    with pytest.raises(RemoteFailed, match="Host key verification failed") as caught:
        connect().put("packs/00", b"secret")

    assert caught.value.code == ErrorCode.REMOTE_HOST_UNKNOWN


def test_a_key_that_is_refused_is_said(connect, daemon, monkeypatch):
    monkeypatch.setenv(PROGRAM_VARIABLE, daemon.program("other"))

    with pytest.raises(RemoteFailed, match="Permission denied") as caught:
        connect().put("packs/00", b"")

    assert caught.value.code == ErrorCode.REMOTE_CREDENTIALS


def test_a_server_that_is_gone_is_said(connect, daemon):
    daemon.close()

    with pytest.raises(RemoteFailed, match="Connection refused") as caught:
        connect().put("packs/00", b"")

    assert (caught.value.code, caught.value.may_pass) == (ErrorCode.REMOTE_UNREACHABLE, True)
