"""Standard streams that are closed, full or gone, or cannot show a name."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import ExitStack
from functools import partial
from typing import Any

import pytest

pytestmark = pytest.mark.sampled(10)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_reader_that_goes_away_is_no_error_to_talk_about(root, environment, unbuffered):
    environment = {**environment, "PYTHONUNBUFFERED": unbuffered}
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


def test_error_that_cannot_be_written_goes_to_standard_error(root, environment):
    with open("/dev/full", "wb") as full:
        result = subprocess.run(
            [sys.executable, "-m", "treesnap", "show", "nosuch", "--json"],
            env=environment,
            cwd=root,
            stdout=full,
            stderr=subprocess.PIPE,
            check=False,
        )

    assert result.returncode == 5
    assert b"hint: " in result.stderr


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
    """Then our own modules cannot be loaded either, such as those that make objects of errors."""
    program = """
import resource, sys
from treesnap.cli.main import execute
limits = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (3, limits[1]))
code = execute(["--json", "list"])
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


COMMAND = [sys.executable, "-m", "treesnap"]
NOT_PRINTED = "Done, but the result could not be printed"


def unwritable(kind: str, stack: ExitStack) -> dict[str, Any]:
    """Returns how to start a process whose standard output cannot be written."""
    if kind == "full":
        return {"stdout": stack.enter_context(open("/dev/full", "wb"))}
    if kind == "closed":
        return {"stdout": subprocess.DEVNULL, "preexec_fn": partial(os.close, 1)}
    reader, writer = os.pipe()
    os.close(reader)
    stack.callback(os.close, writer)
    return {"stdout": writer}


@pytest.fixture
def unprinted(root, environment):
    """Runs a command that cannot print, and returns its exit code and standard error."""

    def run(kind: str, *words: str) -> tuple[int, str]:
        with ExitStack() as stack:
            result = subprocess.run(
                [*COMMAND, *words],
                env=environment,
                cwd=root,
                stderr=subprocess.PIPE,
                text=True,
                check=False,
                **unwritable(kind, stack),
            )
        return result.returncode, result.stderr

    return run


KINDS = ["full", "closed", "pipe"]


@pytest.mark.sampled(6)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("form", [[], ["--json"]], ids=["text", "json"])
def test_snapshot_whose_id_cannot_be_printed_is_there(root, snap, unprinted, kind, form):
    (root / "a").write_text("a")

    code, err = unprinted(kind, "create", *form)

    assert code == 0, err
    assert NOT_PRINTED in err
    assert len(snap("list", "--json").json["snapshots"]) == 1


@pytest.mark.sampled(5)
@pytest.mark.parametrize("kind", KINDS)
def test_incomplete_snapshot_whose_id_cannot_be_printed_exits_4(root, unprinted, kind):
    (root / ".snapignore").symlink_to("nothing")

    code, err = unprinted(kind, "create")

    assert code == 4, err
    assert NOT_PRINTED in err


@pytest.mark.sampled(6)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("wanted", [0, 3])
def test_run_keeps_the_code_of_its_command(root, unprinted, kind, wanted):
    (root / "a").write_text("a")

    script = f"echo changed > a; exit {wanted}"
    code, err = unprinted(kind, "run", "--json", "--", "sh", "-c", script)

    assert code == wanted, err
    assert NOT_PRINTED in err
    assert (root / "a").read_text() == ("changed\n" if wanted == 0 else "a")


DOING = {
    "restore": ["restore", "latest"],
    "undo": ["undo"],
    "pin": ["pin", "latest"],
    "delete": ["delete", "latest"],
    "prune": ["prune", "--keep-last", "1"],
    "gc": ["gc"],
    "verify": ["verify"],
    "config": ["config", "keep.last", "20"],
}


@pytest.mark.sampled(6)
@pytest.mark.parametrize("name", DOING)
def test_command_that_does_something_keeps_its_code(root, snap, unprinted, name):
    (root / "a").write_text("a")
    snap("create")
    (root / "a").write_text("b")
    snap("create")
    snap("restore", "latest~1")
    wanted = snap(*DOING[name], "--json").code
    if name in ("undo", "delete"):
        snap("restore", "latest")
        snap("restore", "latest~1")

    code, err = unprinted("full", *DOING[name], "--json")

    assert code == wanted == 0, err
    assert NOT_PRINTED in err


@pytest.mark.sampled(3)
@pytest.mark.parametrize("kind", ["full", "closed"])
@pytest.mark.needs("exit codes")
def test_plan_goes_on_where_the_output_of_its_steps_cannot_be_printed(
    root, snap, unprinted, plan_file, kind
):
    (root / "ready").touch()

    code, err = unprinted(kind, "plan", "run", str(plan_file))

    assert code == 0, err
    assert NOT_PRINTED in err
    assert (root / "code").read_text() == "feature\n"


@pytest.mark.sampled(6)
@pytest.mark.parametrize(
    "words",
    [
        ["list"],
        ["cat", "latest", "a"],
        ["status", "--json"],
        ["config"],
        ["--help"],
        ["list", "-h"],
        ["agent", "install", "claude", "--dry-run"],
        ["gc", "--dry-run"],
        ["prune", "--keep-last", "1", "--dry-run", "--json"],
        ["restore", "latest", "--dry-run"],
    ],
    ids=" ".join,
)
def test_command_that_only_prints_fails_when_it_cannot(root, snap, unprinted, words):
    (root / "a").write_text("a")
    snap("create")
    (root / "a").write_text("b")

    codes = {kind: unprinted(kind, *words)[0] for kind in KINDS}

    assert codes == {"full": 1, "closed": 1, "pipe": 141}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("form", [[], ["--json"]], ids=["text", "json"])
def test_standard_error_that_cannot_be_written_ends_no_work(root, snap, environment, form):
    (root / "a").write_text("a")
    (root / ".snapignore").write_text("!\n")

    with open("/dev/full", "wb") as full:
        for words in (["create"], ["run", "--", "false"], ["restore", "latest"], ["show", "none"]):
            result = subprocess.run(
                [*COMMAND, *words[:1], *form, *words[1:]],
                env=environment,
                cwd=root,
                stdout=subprocess.PIPE,
                stderr=full,
                check=False,
            )
            wanted = {"run": 1, "show": 5}.get(words[0], 0)
            assert result.returncode == wanted, words
