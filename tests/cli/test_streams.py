"""Standard streams that are closed, full or gone, or cannot show a name."""

from __future__ import annotations

import json
import subprocess
import sys


def test_reader_that_goes_away_is_no_error_to_talk_about(root, environment):
    (root / "big").write_bytes(bytes(1_000_000))
    subprocess.run(
        [sys.executable, "-m", "treesnap", "create", "-q"], env=environment, cwd=root, check=True
    )
    process = subprocess.Popen(
        [sys.executable, "-m", "treesnap", "cat", "latest", "big"],
        env=environment,
        cwd=root,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout
    process.stdout.read(10)
    process.stdout.close()
    assert process.stderr
    err = process.stderr.read()
    process.stderr.close()

    assert (process.wait(timeout=30), err) == (141, b"")


def test_output_that_cannot_be_written_is_an_error(root, environment, snap):
    snap("create")
    with open("/dev/full", "wb") as full:
        result = subprocess.run(
            [sys.executable, "-m", "treesnap", "list"],
            env=environment,
            cwd=root,
            stdout=full,
            stderr=subprocess.PIPE,
            check=False,
        )

    assert result.returncode == 1
    assert result.stderr == b"treesnap: No space left on device\n"


def test_closed_standard_output_is_no_error(root, environment):
    (root / "a").write_text("a")

    result = subprocess.run(
        ["sh", "-c", f"exec {sys.executable} -m treesnap create >&-"],
        env=environment,
        cwd=root,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )

    assert result.returncode == 0, result.stderr


def test_error_that_cannot_be_written_keeps_its_exit_code(root, environment):
    with open("/dev/full", "wb") as full:
        result = subprocess.run(
            [sys.executable, "-m", "treesnap", "show", "nosuch", "--json"],
            env=environment,
            cwd=root,
            stdout=full,
            stderr=subprocess.PIPE,
            check=False,
        )

    assert (result.returncode, result.stderr) == (5, b"")


def test_closed_streams_do_not_give_their_numbers_to_files(root, environment):
    (root / "a").write_text("a")

    result = subprocess.run(
        ["sh", "-c", f"exec {sys.executable} -m treesnap create <&- >&- 2>&-"],
        env=environment,
        cwd=root,
        check=False,
    )

    assert result.returncode == 0


def test_names_that_the_terminal_cannot_encode_are_escaped(root, environment, snap):
    (root / "naïve").write_text("a")
    snap("create")

    result = subprocess.run(
        [sys.executable, "-m", "treesnap", "ls", "latest"],
        env={**environment, "PYTHONIOENCODING": "ascii"},
        cwd=root,
        capture_output=True,
        check=False,
    )

    assert (result.returncode, result.stdout) == (0, b"na\\xefve\n")


def test_json_is_one_line_of_ascii(snap, root):
    (root / "naïve\n\x1b[31m").write_text("a")
    snap("create")

    result = snap("ls", "latest", "--json")

    assert result.raw.isascii()
    assert json.loads(result.raw)["entries"][0]["path"] == "naïve\n\x1b[31m"


def test_process_that_can_open_nothing_says_so(root, environment):
    """Then our own modules cannot be loaded either, those that describe errors among them."""
    program = """
import resource, sys
from treesnap.cli.main import execute
limits = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (3, limits[1]))
code = execute(["list"])
resource.setrlimit(resource.RLIMIT_NOFILE, limits)
sys.exit(code)
"""

    result = subprocess.run(
        [sys.executable, "-c", program], env=environment, cwd=root, capture_output=True, check=False
    )

    assert (result.returncode, result.stdout) == (1, b"")
    assert result.stderr.startswith(b"snap: ")
    assert result.stderr.count(b"Too many open files") == 2
    assert result.stderr.count(b"\n") == 1


def test_closed_stream_gets_its_number_back_where_a_lower_one_is_free(root, environment):
    program = """
import os, sys
from treesnap.cli.main import execute
os.close(0)
code = execute(["create", "-q"])
sys.exit(code or os.readlink("/proc/self/fd/1") != os.devnull or os.path.exists("/proc/self/fd/0"))
"""

    result = subprocess.run(
        ["sh", "-c", 'exec "$0" -c "$1" >&-', sys.executable, program],
        env=environment,
        cwd=root,
        stdin=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        check=False,
    )

    assert (result.returncode, result.stderr) == (0, b"")
