"""Blobs on another machine: addresses, what goes wrong on the way, and who wins."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import pytest

from mounting import mounting
from sampling import evenly, sized
from sftp_servers import sftp_server, write_program
from treesnap.core.model.errors import ErrorCode, InvalidArgument, RemoteFailed
from treesnap.remote.blobs import ssh
from treesnap.remote.blobs.base import BlobMissing
from treesnap.remote.blobs.probe import Creation, Effort, probe, server_of_files
from treesnap.remote.blobs.retries import Retries
from treesnap.remote.blobs.ssh import PROGRAM_VARIABLE, SshBlobs, SshUrl, Traits, parse_ssh_url

pytestmark = pytest.mark.sampled(3)

OLD, NEW = b"old content", bytes(range(256)) * 700
AT_ONCE = Retries(wait=lambda _event, _duration_s: None)
BEGUN = r"printf '\0\0\0\005\002\0\0\0\003'"
"""Says in a shell that a server of SFTP is there."""


# ------------------------------------------------------------------------- addresses


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("ssh://host/a/b", SshUrl("host", b"/a/b")),
        ("ssh://me@host:2222/a/", SshUrl("host", b"/a", "me", 2222)),
        ("ssh://Host_1.example/~/a b", SshUrl("Host_1.example", b"a b")),
        ("ssh://host/a%20%c3%a4", SshUrl("host", "/a ä".encode())),
        ("ssh://me@[fe80::1%25eth0]:22/a", SshUrl("fe80::1%25eth0", b"/a", "me", 22)),
        ("ssh://[::1]/a", SshUrl("::1", b"/a")),
    ],
)
def test_addresses(url, expected):
    found = parse_ssh_url(url)

    assert found == expected
    assert parse_ssh_url(str(found)) == found


@pytest.mark.parametrize(
    "url",
    [
        "ssh://host",
        "ssh://host/",
        "ssh://host/~",
        "ssh://host/~/",
        "ssh:///a",
        "ssh://-oProxyCommand=x/a",
        "ssh://-x@host/a",
        "ssh://me@-x/a",
        "ssh://ho st/a",
        "ssh://host;id/a",
        "ssh://$(id)/a",
        "ssh://a`id`@host/a",
        "ssh://host:port/a",
        "ssh://host:99999/a",
        "ssh://me:secret@host/a",
        "ssh://host/a?b=c",
        "ssh://host/a#b",
        "ssh://host/a%00b",
        "ssh://[::1/a",
    ],
)
def test_what_is_no_address_is_refused_without_its_secret(url):
    with pytest.raises(InvalidArgument) as caught:
        parse_ssh_url(url)

    assert "secret" not in caught.value.message


def test_the_program_is_the_users_and_gets_nothing_but_a_place_to_connect_to(tmp_path, monkeypatch):
    told = tmp_path / "told"
    program = write_program(tmp_path / "my ssh", f'printf "%s\\n" "$@" >{shlex.quote(str(told))}')
    monkeypatch.setenv(PROGRAM_VARIABLE, f"{shlex.quote(str(program))} -F 'a file'")

    with pytest.raises(RemoteFailed):
        SshBlobs(parse_ssh_url("ssh://me@host:22/a/$(id)")).get("format")

    words = told.read_text().splitlines()
    assert words[:2] == ["-F", "a file"]
    assert words[-8:] == ["-p", "22", "-l", "me", "-s", "--", "host", "sftp"]
    assert "-oBatchMode=yes" in words
    assert "id" not in " ".join(words)


@pytest.mark.parametrize("words", ["", "'"])
def test_a_variable_that_names_no_program_is_refused(monkeypatch, words):
    monkeypatch.setenv(PROGRAM_VARIABLE, words)

    with pytest.raises(InvalidArgument, match=PROGRAM_VARIABLE):
        SshBlobs(parse_ssh_url("ssh://host/a"))


# --------------------------------------------------------------------------- errors


@pytest.mark.parametrize(
    ("said", "exits", "code", "may_pass"),
    [
        ("Host key verification failed.", 255, ErrorCode.REMOTE_HOST_UNKNOWN, False),
        (
            "@ WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED! @",
            255,
            ErrorCode.REMOTE_HOST_UNKNOWN,
            False,
        ),
        (
            "me@host: Permission denied (publickey,password).",
            255,
            ErrorCode.REMOTE_CREDENTIALS,
            False,
        ),
        (
            "ssh: Could not resolve hostname host: Name or service not known",
            255,
            ErrorCode.REMOTE_UNREACHABLE,
            False,
        ),
        (
            "ssh: Could not resolve hostname host: Temporary failure in name resolution",
            255,
            ErrorCode.REMOTE_UNREACHABLE,
            True,
        ),
        (
            "ssh: connect to host h port 22: Connection refused",
            255,
            ErrorCode.REMOTE_UNREACHABLE,
            True,
        ),
        ("Connection reset by 192.0.2.1 port 22", 255, ErrorCode.REMOTE_UNREACHABLE, True),
        ("subsystem request failed on channel 0", 255, ErrorCode.REMOTE_FAILED, False),
        ("~/.ssh/config: line 1: Bad configuration option: x", 255, "remote-failed", False),
        ("sh: sftp-server: not found", 127, ErrorCode.REMOTE_UNREACHABLE, False),
        ("", 255, ErrorCode.REMOTE_UNREACHABLE, True),
    ],
)
def test_what_ssh_says_is_said_with_what_to_do_about_it(
    tmp_path, monkeypatch, said, exits, code, may_pass
):
    program = write_program(tmp_path / "ssh", f"echo {shlex.quote(said)} >&2; exit {exits}")
    monkeypatch.setenv(PROGRAM_VARIABLE, str(program))

    with pytest.raises(RemoteFailed) as caught:
        SshBlobs(parse_ssh_url("ssh://host/a")).put("packs/00", b"")

    error = caught.value
    assert (error.code, error.may_pass, error.is_unclear) == (code, may_pass, False)
    assert said in error.message
    assert "ssh://host/a" in error.message


@pytest.mark.parametrize(
    ("script", "code", "words"),
    [
        ("echo Welcome to this machine", ErrorCode.REMOTE_FAILED, "is not SFTP"),
        (f"{BEGUN}; exec sleep 60", ErrorCode.REMOTE_UNREACHABLE, "not answered for"),
        ("exec sleep 60", ErrorCode.REMOTE_UNREACHABLE, "not answered for"),
        (f"{BEGUN}; exit 255", ErrorCode.REMOTE_UNREACHABLE, "closed the connection"),
    ],
)
def test_a_program_that_is_no_server_is_not_waited_for(tmp_path, monkeypatch, script, code, words):
    monkeypatch.setenv(PROGRAM_VARIABLE, str(write_program(tmp_path / "ssh", script)))

    answer_s = 0.1 if "sleep" in script else 60.0
    with pytest.raises(RemoteFailed, match=words) as caught:
        SshBlobs(parse_ssh_url("ssh://host/a"), answer_s=answer_s).get("format")

    assert caught.value.code == code


def test_a_program_that_is_missing_is_named(monkeypatch):
    monkeypatch.setenv(PROGRAM_VARIABLE, "no-such-program --option")

    with pytest.raises(RemoteFailed, match="'no-such-program' cannot be started") as caught:
        SshBlobs(parse_ssh_url("ssh://host/a"), retries=AT_ONCE).get("format")

    assert caught.value.code == ErrorCode.REMOTE_PROGRAM_MISSING


def test_what_the_program_says_is_kept_in_part(tmp_path, monkeypatch):
    script = "i=0; while [ $i -lt 3000 ]; do echo $i a long line of a talkative program; "
    program = write_program(tmp_path / "ssh", script + "i=$((i+1)); done >&2; exit 255")
    monkeypatch.setenv(PROGRAM_VARIABLE, str(program))

    with pytest.raises(RemoteFailed, match="2999 a long line") as caught:
        SshBlobs(parse_ssh_url("ssh://host/a")).get("format")

    assert len(caught.value.message) < 1000


def test_a_person_sees_what_the_program_asks_for_and_nothing_later(sftp_url, monkeypatch, capfd):
    monkeypatch.setattr(ssh, "_QUIET_S", 0.05)
    script = f"echo touch the key >&2; sleep 0.3; echo later >&2; exec {sftp_server()}"
    write_program(Path(os.environ[PROGRAM_VARIABLE]), script)
    blobs = SshBlobs(parse_ssh_url(sftp_url), make=True, is_interactive=True)

    blobs.put("packs/00", NEW)

    blobs.close()
    assert "touch the key" in capfd.readouterr().err


# ------------------------------------------------------------------- the directory


@pytest.fixture
def place(sftp_url) -> Path:
    """The directory of the remote."""
    return Path(os.fsdecode(parse_ssh_url(sftp_url).path))


def opened(url: str, **options) -> SshBlobs:
    return SshBlobs(parse_ssh_url(url), make=True, **options)


def unfinished(place: Path) -> list[str]:
    return [item.name for item in place.rglob(".unfinished-*")]


def test_a_directory_that_is_no_remote_is_not_used(sftp_url, place):
    with pytest.raises(RemoteFailed, match="no such directory") as absent:
        SshBlobs(parse_ssh_url(sftp_url)).put("packs/00", NEW)
    with pytest.raises(RemoteFailed, match="no directory above") as without_parent:
        opened(f"{sftp_url}/a/b").put("packs/00", NEW)
    place.mkdir()
    with pytest.raises(RemoteFailed, match="its disk is not mounted") as empty:
        SshBlobs(parse_ssh_url(sftp_url)).put("packs/00", NEW)

    codes = {item.value.code for item in (absent, without_parent, empty)}
    assert codes == {ErrorCode.REMOTE_MISSING}
    assert list(place.iterdir()) == []


def test_a_directory_that_is_gone_is_not_taken_for_an_empty_one(sftp_url, place):
    blobs = opened(sftp_url)
    blobs.put("packs/00", NEW)
    assert list(blobs.list("state/")) == []
    place.rename(place.with_name("away"))

    with pytest.raises(RemoteFailed, match="no such directory") as caught:
        blobs.list("packs/")

    blobs.close()
    assert caught.value.code == ErrorCode.REMOTE_MISSING


def test_files_get_the_permissions_of_the_directory(sftp_url, place):
    place.mkdir()
    place.chmod(0o750)
    blobs = opened(sftp_url)

    blobs.put("packs/00", NEW)
    blobs.create("packs/01", NEW)

    blobs.close()
    modes = {item.name: item.stat().st_mode & 0o777 for item in place.rglob("*")}
    assert modes == {"packs": 0o750, "00": 0o640, "01": 0o640}
    assert unfinished(place) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts")
def test_a_full_disk_is_said_and_leaves_what_is_there(sftp_url, place):
    with mounting() as mounter:
        mounter.tmpfs(place, "1m")
        blobs = opened(sftp_url)
        blobs.put("packs/00", OLD)

        with pytest.raises(RemoteFailed, match="No space left") as put:
            blobs.put("packs/00", bytes(2 << 20))
        with pytest.raises(RemoteFailed, match="No space left") as created:
            blobs.create("packs/01", bytes(2 << 20))

        for error in (put.value, created.value):
            assert (error.code, error.is_unclear) == (ErrorCode.REMOTE_FULL, False)
        assert blobs.get("packs/00") == OLD
        blobs.close()
        assert unfinished(place) == []


def test_a_server_that_lets_nothing_be_written_is_read(sftp_url, place, sftp_program):
    blobs = opened(sftp_url)
    blobs.put("packs/00", OLD)
    blobs.put("format", b"")
    blobs.close()
    write_program(sftp_program, f"exec {sftp_server()} -R")
    blobs = SshBlobs(parse_ssh_url(sftp_url))

    for use in (
        lambda: blobs.put("packs/01", NEW),
        lambda: blobs.put("index/00", NEW),
        lambda: blobs.create("state/01", NEW),
    ):
        with pytest.raises(RemoteFailed, match="Permission denied") as caught:
            use()
        assert (caught.value.code, caught.value.is_unclear) == (ErrorCode.REMOTE_DENIED, False)

    assert blobs.delete(["packs/00", "packs/01"]) == ["packs/00", "packs/01"]
    assert blobs.get("packs/00") == OLD
    blobs.close()


def test_what_is_no_file_is_no_blob(sftp_url, place):
    blobs = opened(sftp_url)
    blobs.put("packs/00", OLD)
    (place / "packs" / "01").mkdir()
    (place / "packs" / "02").symlink_to("00")
    os.mkfifo(place / "packs" / "03")
    (place / "packs" / "UPPER").write_bytes(b"")

    assert [item.name for item in blobs.list("packs/")] == ["packs/00"]
    with pytest.raises(RemoteFailed, match="not a regular file"):
        blobs.size_bytes("packs/01")
    blobs.close()


# --------------------------------------------------------- connections that break


_TAP = """
import os
left = {size}
while left and (data := os.read(0, min(left, 65536))):
    os.write(1, data)
    left -= len(data)
if {ends}:
    os.kill(os.getppid(), 9)
"""


@pytest.fixture
def cut(sftp_program):
    """Cuts the next connection after so many bytes that were sent, or received."""

    def cut(*, sent: int | None = None, received: int | None = None) -> None:
        server, flag = sftp_server(), sftp_program.with_name("cut")
        flag.touch()
        size, ends = (received, True) if sent is None else (sent, False)
        tap = shlex.join([sys.executable, "-ISc", _TAP.format(size=size, ends=ends)])
        line = f"{tap} | {server}" if sent is not None else f"{server} | {tap}"
        write_program(
            sftp_program, f"if [ -e {flag} ]; then rm {flag}; {line}; exit 255; fi; exec {server}"
        )

    return cut


ONE_PUT = 186_000
"""The bytes that a put of NEW sends, and a few more."""


@pytest.mark.parametrize("size", [ONE_PUT * at // 20 for at in evenly(20, 7)])
@pytest.mark.parametrize("is_new", [True, False])
def test_a_connection_that_breaks_while_a_blob_is_written_fails_nothing(
    sftp_url, place, cut, size, is_new
):
    if not is_new:
        first = opened(sftp_url)
        first.put("packs/00", OLD)
        first.close()
    cut(sent=size)
    blobs = opened(sftp_url, retries=AT_ONCE)

    blobs.put("packs/00", NEW)

    blobs.close()
    assert (place / "packs" / "00").read_bytes() == NEW
    assert unfinished(place) == []


@pytest.mark.parametrize("received", evenly(1000, 20))
def test_a_create_whose_answers_are_lost_anywhere_never_says_what_is_not_true(
    sftp_url, place, cut, received
):
    cut(received=received)
    blobs = opened(sftp_url, retries=AT_ONCE)

    error = None
    try:
        assert blobs.create("state/00", b"mine")
    except RemoteFailed as failed:
        error = failed
    if error is not None:
        assert (error.code, error.is_unclear) == (ErrorCode.REMOTE_UNREACHABLE, True)
    else:
        assert (place / "state" / "00").read_bytes() == b"mine"
    blobs.close()
    is_there = (place / "state" / "00").exists()
    again = opened(sftp_url)
    assert again.create("state/00", b"other") is not is_there
    again.close()


@pytest.mark.parametrize("received", evenly(40, 5))
def test_reads_go_on_in_another_connection(sftp_url, place, cut, received):
    first = opened(sftp_url)
    for number in range(3):
        first.put(f"packs/0{number}", NEW)
    first.close()
    cut(received=received * 4600)
    blobs = opened(sftp_url, retries=AT_ONCE)

    assert [blobs.get(f"packs/0{number}") for number in range(3)] == [NEW] * 3
    assert blobs.get_ranges("packs/00", [(5, 100_000)]) == [NEW[5:100_005]]
    assert len(list(blobs.list("packs/"))) == 3
    assert blobs.delete(["packs/01"]) == []
    with pytest.raises(BlobMissing):
        blobs.size_bytes("packs/01")
    blobs.close()


def test_without_repetition_a_broken_connection_is_an_error_and_the_next_request_works(
    sftp_url, cut
):
    cut(sent=100_000)
    blobs = opened(sftp_url)

    with pytest.raises(RemoteFailed, match="closed the connection") as caught:
        blobs.put("packs/00", NEW)
    blobs.put("packs/00", NEW)

    assert (caught.value.code, caught.value.may_pass) == (ErrorCode.REMOTE_UNREACHABLE, True)
    assert blobs.get("packs/00") == NEW
    blobs.close()


def test_threads_that_share_a_connection_which_breaks_all_go_on(sftp_url, cut):
    cut(sent=500_000)
    blobs = opened(sftp_url, retries=AT_ONCE)

    def work(number: int) -> bool:
        blobs.put(f"packs/{number:02x}", NEW + bytes([number]))
        return blobs.get(f"packs/{number:02x}") == NEW + bytes([number])

    with ThreadPoolExecutor(4) as threads:
        assert all(threads.map(work, range(8)))
    blobs.close()


def test_a_writer_that_is_killed_leaves_whole_blobs_and_a_sweep_removes_the_rest(
    sftp_url, place, monkeypatch
):
    script = (
        "from treesnap.remote.blobs.ssh import *\n"
        f"blobs = SshBlobs(parse_ssh_url({sftp_url!r}), make=True)\n"
        "blobs.put('packs/ff', b'')\n"
        "print(flush=True)\n"
        "for number in range(10**6):\n"
        "    data = bytes([number % 256]) * 400_000\n"
        "    (blobs.put if number % 2 else blobs.create)(f'packs/{number:06x}', data)\n"
    )
    for pause_s in (0.01, 0.05, 0.09):
        with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE) as writer:
            assert writer.stdout is not None
            writer.stdout.readline()
            time.sleep(pause_s)
            writer.send_signal(signal.SIGKILL)

    blobs = opened(sftp_url)
    for item in blobs.list("packs/"):
        data = blobs.get(item.name)
        assert data in {b"", data[:1] * 400_000}
    assert blobs.sweep_unfinished() == 0  # they are young
    monkeypatch.setattr(ssh, "UNFINISHED_S", 0)
    deadline_s = time.monotonic() + 30
    while unfinished(place):  # a server may still write what it had received
        blobs.sweep_unfinished()
        assert time.monotonic() < deadline_s
    blobs.close()


def test_a_sweep_removes_what_is_a_day_old_and_leaves_the_rest(sftp_url, place):
    blobs = opened(sftp_url)
    blobs.put("packs/00", OLD)
    names = [place / "packs" / f".unfinished-{number:016x}" for number in range(2)]
    names.append(place / ".unfinished-0000000000000002")
    for name in [*names, place / "packs" / ".unfinished-else"]:
        name.touch()
        os.utime(name, (time.time() - 90_000,) * 2)
    os.utime(names[0])

    assert blobs.sweep_unfinished() == 2

    blobs.close()
    assert sorted(unfinished(place)) == [".unfinished-0000000000000000", ".unfinished-else"]


def test_a_writer_whose_file_a_sweep_took_writes_it_again(sftp_url, place, monkeypatch):
    blobs = opened(sftp_url)
    blobs.put("packs/ff", OLD)
    write_new = ssh.SftpClient.write_new
    swept = []

    def write_and_lose(client, path, data, mode):
        write_new(client, path, data, mode)
        if len(swept) < 2:
            swept.append(path)
            os.unlink(path)

    monkeypatch.setattr(ssh.SftpClient, "write_new", write_and_lose)

    blobs.put("packs/00", NEW)
    swept.clear()
    assert blobs.create("packs/01", NEW)
    swept.extend([b""] * -10)
    assert (blobs.get("packs/00"), blobs.get("packs/01")) == (NEW, NEW)
    blobs.close()


# ---------------------------------------------------------------- who is the first


@pytest.mark.parametrize("lacks", ["", "hardlink", "hardlink,posix-rename,fsync,statvfs"])
def test_of_writers_that_meet_one_wins_whatever_the_server_can(sftp_url, sftp_program, lacks):
    """OpenSSH makes a link for a rename as well."""
    if lacks:
        write_program(sftp_program, f"exec {sftp_server()} -P {lacks}")
    writers = [opened(sftp_url) for _ in range(8)]
    with ThreadPoolExecutor(len(writers)) as threads:
        for race in range(sized(8, 300)):
            name, start = f"state/{race:04x}", Barrier(len(writers))

            def write(number: int, name: str = name, start: Barrier = start) -> bool:
                start.wait()
                return writers[number].create(name, b"%d" % number * 5000)

            won = list(threads.map(write, range(len(writers))))
            assert won.count(True) == 1
            assert writers[0].get(name) == b"%d" % won.index(True) * 5000
    for writer in writers:
        writer.close()


def test_without_its_extensions_a_server_replaces_and_repeats(sftp_url, sftp_program, place):
    write_program(sftp_program, f"exec {sftp_server()} -P hardlink,posix-rename,fsync,statvfs")
    blobs = opened(sftp_url)

    for content in (OLD, NEW, NEW, b""):
        blobs.put("packs/00", content)
        assert blobs.get("packs/00") == content
    assert blobs.create("packs/01", NEW)
    assert not blobs.create("packs/01", OLD)
    assert blobs.facts().free_bytes is None

    blobs.close()
    assert unfinished(place) == []


@pytest.mark.parametrize(
    ("lacks", "traits", "creation"),
    [
        ("", Traits(has_links=True, has_sync=True), Creation.ATOMIC),
        ("hardlink", Traits(has_links=False, has_sync=True), Creation.SEQUENTIAL),
        ("fsync", Traits(has_links=True, has_sync=False), Creation.SEQUENTIAL),
    ],
)
def test_what_a_server_guarantees_is_found_out(sftp_url, sftp_program, lacks, traits, creation):
    if lacks:
        write_program(sftp_program, f"exec {sftp_server()} -P {lacks}")
    blobs = opened(sftp_url)

    found = blobs.traits()
    effort = Effort(listings=1, small_races=2, small_writers=4)
    report = probe(lambda: opened(sftp_url), server_of_files(**found._asdict()), effort)

    assert found == traits
    assert (report.creation, report.lists_current, report.has_ranges) == (creation, True, True)
    assert bool(report.reasons) == bool(lacks)
    assert (blobs.facts().free_bytes or 0) > 0
    assert abs((blobs.facts().server_time_s or 0) - time.time()) < 60
    blobs.close()
