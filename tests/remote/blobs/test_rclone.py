"""Blobs by rclone: which addresses are taken, what goes wrong, and that it ends with its user."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest

import treesnap
from sftp_servers import write_program
from treesnap.core.model.errors import ErrorCode, InvalidArgument, RemoteFailed
from treesnap.remote import Remotes
from treesnap.remote.blobs import rclone
from treesnap.remote.blobs.probe import Creation
from treesnap.remote.blobs.rclone import RcloneBlobs, RcloneUrl, parse_rclone_url
from treesnap.remote.keys import Secret


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("rclone:drive:", RcloneUrl("drive", "")),
        ("rclone:My Drive_1:a/b c/", RcloneUrl("My Drive_1", "a/b c")),
        ("rclone:x@y.z:/srv:a", RcloneUrl("x@y.z", "/srv:a")),
    ],
)
def test_addresses(url, expected):
    assert parse_rclone_url(url) == expected
    assert parse_rclone_url(str(expected)) == expected


@pytest.mark.parametrize(
    "url",
    [
        "rclone:",
        "rclone:path",
        "rclone::sftp,ssh=id:path",
        "rclone:drive,command=id:path",
        "rclone:--config:path",
        "rclone:/local:path",
        "rclone:a\nb:path",
        "rclone:nas://me:secret@host",
        "rclone:drive:a\0b",
    ],
)
def test_an_address_gives_rclone_no_options(url):
    with pytest.raises(InvalidArgument) as caught:
        parse_rclone_url(url)

    assert "secret" not in caught.value.message


@pytest.fixture
def program(tmp_path, monkeypatch):
    """Makes the program ``rclone`` of a script."""

    def make(script: str) -> None:
        (tmp_path / "bin").mkdir()
        write_program(tmp_path / "bin" / "rclone", script)
        monkeypatch.setenv("PATH", f"{tmp_path}/bin:/usr/bin:/bin")

    return make


@pytest.mark.parametrize(
    ("script", "code", "words"),
    [
        (
            'echo \'Error: unknown command "s3" for "rclone serve"\' >&2; exit 1',
            ErrorCode.REMOTE_PROGRAM_MISSING,
            "version 1.65 is needed",
        ),
        (
            'echo "CRITICAL: didn\'t find section in config file (\\"x\\")" >&2; exit 1',
            ErrorCode.REMOTE_MISSING,
            "find section",
        ),
        ("exit 1", ErrorCode.REMOTE_FAILED, "does not say why"),
        ("sleep 60", ErrorCode.REMOTE_FAILED, "does not say why"),
    ],
)
@pytest.mark.parametrize("make", [True, False])
def test_an_rclone_that_serves_nothing_is_said(program, monkeypatch, script, code, words, make):
    if make and "sleep" in script:
        words = "has not ended"
    if "sleep" in script:
        monkeypatch.setattr(rclone, "_START_S", 0.5)
        monkeypatch.setattr(rclone, "_END_S", 0.1)
    program(f'test "$1" = mkdir && test {int(make)} = 0 && exit 0; {script}')

    with pytest.raises(RemoteFailed) as caught:
        RcloneBlobs(parse_rclone_url("rclone:x:y"), make=make)

    assert caught.value.code == code
    assert words in caught.value.message


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        ('echo \'{"total": 100, "used": 30, "free": 70}\'', 70),
        ("echo '{\"used\": 30}'", None),
        ('echo \'{"free": "much"}\'', None),
        ("echo 70", None),
        ("echo no json", None),
        ("echo 'about is not supported' >&2; exit 1", None),
    ],
)
def test_the_room_that_is_left_is_said_where_rclone_tells_it(program, script, expected):
    program(f'test "$*" = "about --retries 1 --json x:y" || exit 9; {script}')

    assert rclone.free_bytes(parse_rclone_url("rclone:x:y")) == expected


def test_a_place_by_rclone_tells_its_room(new_rclone):
    assert (new_rclone().facts().free_bytes or 0) > 0


@pytest.mark.parametrize("make", [True, False])
def test_an_rclone_that_is_missing_is_said(tmp_path, monkeypatch, make):
    for name in ("sh", "cat"):
        (tmp_path / name).symlink_to(f"/bin/{name}")
    monkeypatch.setenv("PATH", str(tmp_path))

    with pytest.raises(RemoteFailed) as caught:
        RcloneBlobs(parse_rclone_url("rclone:x:y"), make=make)

    assert caught.value.code == ErrorCode.REMOTE_PROGRAM_MISSING, caught.value.message


def test_a_history_goes_there_and_one_machine_may_collect(rclone_url, rclone_place, tmp_path):
    (tmp_path / "garden").mkdir()
    (tmp_path / "garden" / "plant").write_bytes(os.urandom(5000))
    handle = treesnap.open(tmp_path / "garden", tmp_path / "store")
    remotes = Remotes(handle, lambda _known: lambda: Secret.raw_key("5a" * 32))

    assert not remotes.add("any", rclone_url).may_collect
    assert remotes.add("drive", f"{rclone_url}-one", only_collector=True).may_collect
    handle.create()
    remotes.push("drive")

    found = remotes.check("drive")
    assert (found.creation, found.lists_current, found.is_reliable) == (
        Creation.SEQUENTIAL,
        True,
        True,
    )
    assert found.server == "rclone"
    assert "create a blob" in found.reasons[0] or "create one blob" in found.reasons[0]
    remotes.collect("drive")
    again = treesnap.open(tmp_path / "again", tmp_path / "other")
    other = Remotes(again, lambda _known: lambda: Secret.raw_key("5a" * 32))
    other.clone(f"{rclone_url}-one")
    assert (tmp_path / "again" / "plant").read_bytes() == (
        tmp_path / "garden" / "plant"
    ).read_bytes()


def test_the_program_ends_with_its_user_however_that_ends(rclone_url):
    script = (
        "import time\n"
        "from treesnap.remote.blobs.rclone import *\n"
        f"blobs = RcloneBlobs(parse_rclone_url({rclone_url!r}), make=True)\n"
        "print(blobs._server.endpoint, flush=True)\n"
        "time.sleep(60)\n"
    )
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE) as user:
        assert user.stdout is not None
        port = user.stdout.readline().decode().strip().rpartition(":")[2]
        assert is_listening(port)
        user.send_signal(signal.SIGKILL)

    deadline_s = time.monotonic() + 20
    while is_listening(port):
        assert time.monotonic() < deadline_s
        time.sleep(0.02)


def is_listening(port: str) -> bool:
    """Returns whether a process listens at a port of this machine."""
    with open("/proc/net/tcp") as table:
        rows = [line.split() for line in table]
    return any(row[1] == f"0100007F:{int(port):04X}" and row[3] == "0A" for row in rows[1:])
